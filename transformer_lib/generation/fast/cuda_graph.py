"""Decoding steps recorded as a CUDA graph, and replayed.

A step of a small model is hundreds of tiny kernels, and to launch them one by one takes longer than
to run them. A recording (a CUDA graph) is launched at once. It has fixed shapes and addresses, so
its cache is static. It knows nothing of what happens in Python: whoever replays it looks first
whether the model is still the one that was recorded.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer_lib.core.eval_twin import shared_copy
from transformer_lib.core.fast_path_register import fast_path
from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.core.precision import autocast_dtype
from transformer_lib.generation.decoding_step import DecodingStep, LanguageModel
from transformer_lib.generation.fast_interfaces import FastBatch
from transformer_lib.layers.feedforward import MixtureOfExperts
from transformer_lib.layers.static_kv_cache import StaticCache

_DECODE_KERNEL = fast_path("decode_kernel")

WORTH_RECORDING = 16  # new tokens; to record takes about as long as five plain steps

Run = Callable[[], Tensor]
Runs = tuple[Callable[[], None], Run]  # what comes before one step or several, and what runs one


def can_record(model: LanguageModel, prompt: Int[Tensor, "B T"], max_new_tokens: int) -> bool:
    """Say whether steps may be replayed so that nobody can tell, and whether it is worth it.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``.
        prompt: what the batch starts with.
        max_new_tokens: how many tokens will be asked for.

    Returns:
        ``False`` on a CPU, for a few tokens, and wherever Python has a say in each step: a hook, a
        ``forward`` or a class that is not of this library or PyTorch, autocast, a dispatch mode.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config)
        >>> can_record(model, torch.tensor([[5, 7, 9]]), max_new_tokens=100)
        False
    """
    if not prompt.is_cuda or max_new_tokens < WORTH_RECORDING:
        return False
    return (
        prompt.device.index == torch.cuda.current_device()
        and not torch.cuda.is_current_stream_capturing()
        and autocast_dtype(prompt.device) is None
        and torch._C._len_torch_dispatch_stack() == 0
        and _may_be_recorded(model)
        and Fingerprint(model.modules()).is_plain
    )


def _may_be_recorded(model: nn.Module) -> bool:
    """Whether no part has to ask the GPU what comes next, or cannot be copied with its weights."""
    kinds = (MixtureOfExperts, torch.jit.ScriptModule)  # which expert gets a token; code in C++
    return not any(isinstance(part, kinds) for part in model.modules())


class RecordedSteps:
    """Steps of one token for batches of one shape, recorded once and replayed for every token.

    The first step runs unrecorded, the second one is recorded, all others are replays. Where a step
    cannot be recorded, or the model is not any more what it was, the model itself is asked.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``, in any mode.
        max_len: the longest sequence, prompt included.
        device: where the model is.
        make_run: given a step with a copy of the model and the token that it reads, returns what
            runs it, and what comes before; :func:`run_joined` if left out. If it is given, the
            choice of a token is compiled, too, on a GPU.

    Attributes:
        cache: the same for all batches, at fixed addresses.
        token: the newest token of each row, ``(B, 1)``, which a step reads and replaces by the one
            with the best score; a fixed address too.
        chosen: the best token of each row after so many tokens, ``(max_len + 1, B)``.
        best: its score, ``(max_len + 1, B)``.
        batch: stands for the one that is decoded now.
        fingerprint: of the model; as long as it holds, steps may be replayed.
        lock: held while something is read; threads would write to the same places.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config)
        >>> RecordedSteps(
        ...     model, max_len=32, device=torch.device("cpu")
        ... ).cache.max_len
        32
    """

    def __init__(
        self,
        model: LanguageModel,
        max_len: int,
        device: torch.device,
        make_run: Callable[[DecodingStep, Tensor], Runs] | None = None,
    ) -> None:
        self.model, self._device, self._make_run = model, device, make_run or run_joined
        self._was_asked_for = make_run is not None  # so its errors are the caller's
        is_compiled = self._was_asked_for and device.type == "cuda"
        self._note_best = torch.compile(_note_best) if is_compiled else _note_best
        self.cache = StaticCache(model.config.n_layers, max_len, device)
        self.batch: object = None
        self.lock = threading.RLock()
        self.fingerprint = Fingerprint(model.modules(), to_compare=True)
        self._step: DecodingStep | None = None  # of the first batch; others are copied to its place
        self._run: Run | None = None  # runs a step; later, a recording
        self._before: Callable[[], None] = lambda: None
        self._is_recorded, self._gave_up = False, not _may_be_recorded(model)

    def start(self, step: DecodingStep, logits: Float[Tensor, "B V"]) -> None:
        """Put what the prompt left behind to where recorded steps read.

        Args:
            step: has read the prompt, with a cache of its own or one made by ``cache.for_prompt``.
            logits: what it returned.
        """
        if self._step is None:
            self._step = copy(step)
            self._step.cache = self.cache
            self.token = logits.argmax(dim=-1, keepdim=True)
            self.best = logits.new_zeros(self.cache.max_len + 1, len(logits))
            self.chosen = self.token.new_zeros(self.best.shape)
        for old, new in zip(_state(self._step), _state(step), strict=True):
            if old is not None and new is not None and old is not new:
                old.copy_(new)
        if step.cache is not None:
            self.cache.go_on_after(step.cache, self._step.memory)
        self._choose(logits)

    def advance(self, length: int, n_steps: int = 1) -> Float[Tensor, "B V"]:
        """Read one token of each row; return the scores of the next, at a fixed address.

        Args:
            length: how many tokens each row has, this one included.
            n_steps: how many are read one after the other, each the best after those before it.
        """
        is_same = self.fingerprint.holds()
        if is_same:
            self._before()  # the values of weights may have changed since the last call
        for last in range(length, length + n_steps):
            replay = is_same and not self._gave_up
            logits = self._replay() if replay else self._choose(self._ask_model())
            self.cache.note_length(last)  # replays are not seen by Python
        return logits

    def _choose(self, logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Note the best token and its score."""
        _note_best(logits, *self._places())
        return logits

    def _places(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where a step counts, reads its token, and notes tokens and scores."""
        return self.cache.filled, self.token, self.chosen, self.best

    def _ask_model(self) -> Tensor:
        """Run a step with the model itself, which is always right."""
        assert self._step is not None, "a prompt comes first"
        with self._step.in_evaluation():
            return self._step.read(self.token, self.cache.max_len)

    def _replay(self) -> Tensor:
        """Run a step; the second one is recorded."""
        if self._run is None:
            return self._first_run()
        if self._device.type == "cuda" and not self._is_recorded:
            try:
                self._run = _record(self._run)
            except RuntimeError:  # something in it waits for the GPU
                self._gave_up = True
                return self._choose(self._ask_model())
            self._is_recorded = True
        self._hide_length()
        return self._run()

    def _first_run(self) -> Tensor:
        """Run a step as it will be recorded, with the fastest copy of the model that works."""
        has_kernel = (
            _DECODE_KERNEL is not None
            and self._device.type == "cuda"
            and _DECODE_KERNEL.has_step_kernel(self.best.dtype)
        )
        for kernel in (True, False) if has_kernel else (False,):
            step = self._copied_step(kernel=kernel)
            try:
                before, read = self._make_run(step, self.token)
                # Nothing in it leads back here: a recording holds GPU memory, and must go at once.
                run = partial(_read_and_note, read, self._note_best, self._places())
                self._hide_length()
                logits = run()
            except Exception:  # a kernel that does not fit this GPU; or the model itself will tell
                if self._was_asked_for and not kernel:
                    raise
                continue
            self._before, self._run = before, run
            return logits
        self._gave_up = True
        return self._choose(self._ask_model())

    def _hide_length(self) -> None:
        """Keep the number of tokens from Python: a compiled step must not depend on it."""
        if self._device.type == "cpu":  # on a GPU only blocks are compiled, which do not ask
            self.cache.note_length(None)

    def _copied_step(self, *, kernel: bool) -> DecodingStep:
        """The same step with a copy of the model, that may be changed for speed."""
        assert self._step is not None, "a prompt comes first"
        step, twin = copy(self._step), shared_copy(self.model)
        if kernel and _DECODE_KERNEL is not None:
            _DECODE_KERNEL.use_step_kernel(twin, self._device)
        step.use(twin)
        return step


def nothing() -> None:
    """What comes before steps that read the weights where they are.

    Example:
        >>> nothing()
    """


def run_joined(step: DecodingStep, token: Int[Tensor, "B 1"]) -> Runs:
    """Return what reads a token with a step, by fewer and larger products.

    Args:
        step: with a copy of the model.
        token: the newest token of each row.

    Returns:
        What lays weights together, for whenever they may have changed; and what runs a step with
        them and returns the scores of the next token.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config).eval()
        >>> step = DecodingStep(
        ...     model, prompt := torch.tensor([[5]]), max_new_tokens=6
        ... )
        >>> _, run = run_joined(step, prompt)
        >>> run().shape
        torch.Size([1, 100])
    """
    assert step.cache is not None, "a recorded step has one"
    read = partial(step.read, token, step.cache.max_len)
    if _DECODE_KERNEL is None:
        return nothing, read
    return _DECODE_KERNEL.join_projections(step.model), read


class RecordedBatch(FastBatch):
    """A batch that is decoded by recorded steps; its prompt is read as always.

    In the place of a :class:`~transformer_lib.generation.decoding_step.DecodingStep`.

    Args:
        steps: it may serve one batch after the other.
        step: reads the prompt.

    Raises:
        RuntimeError: in a call, if another batch was begun with the same steps.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config)
        >>> prompt = torch.tensor([[5, 7, 9]])
        >>> steps = RecordedSteps(model, 8, torch.device("cpu"))
        >>> batch = RecordedBatch(
        ...     steps, DecodingStep(model, prompt, max_new_tokens=6)
        ... )
        >>> with torch.no_grad():
        ...     batch(prompt).shape
        torch.Size([1, 100])
    """

    def __init__(self, steps: RecordedSteps, step: DecodingStep) -> None:
        self.steps, self._step, self._has_read_prompt = steps, step, False
        self._sign = steps.batch = object()  # not the batch itself: each would keep the other alive

    def __call__(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Return the scores ``(B, V)`` of the token after ``ids``, ``(B, T)``, all of them."""
        with self.steps.lock:
            self._check()
            if not self._has_read_prompt:
                return self._read_prompt(ids)
            self.steps.token.copy_(ids[:, -1:])
            return self.steps.advance(ids.shape[1]).clone()  # the next is written to its place

    def read_best(
        self, prompt: Int[Tensor, "B T"], first: int, n: int
    ) -> tuple[Float[Tensor, "n B"], Int[Tensor, "n B"]]:
        """Choose the best token, again and again: recorded steps can do so by themselves.

        Args:
            prompt: what the batch starts with.
            first: the number of tokens that the first choice follows.
            n: how many tokens are chosen.

        Returns:
            Their scores, and copies of them.
        """
        new = slice(first, first + n)
        with self.steps.lock:
            self._check()
            if not self._has_read_prompt:
                self._read_prompt(prompt)
                first, n = first + 1, n - 1
            if n:
                self.steps.advance(first, n)
            return self.steps.best[new], self.steps.chosen[new].clone()  # others are written there

    def _read_prompt(self, prompt: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        logits = self._step(prompt)
        self.steps.start(self._step, logits)
        self._has_read_prompt = True
        return logits

    def _check(self) -> None:
        if self.steps.batch is not self._sign:  # they would write into the same cache
            raise RuntimeError("another batch was begun before this one had ended")


def record(model: LanguageModel, step: DecodingStep, device: torch.device) -> RecordedBatch:
    """Let a batch be decoded by recorded steps, made for it alone.

    Args:
        model: that of the batch.
        step: reads the prompt, with a cache of its own.
        device: where the batch is.

    Returns:
        What takes the place of the step.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model, prompt = CausalLM(config), torch.tensor([[5, 7, 9]])
        >>> step = DecodingStep(model, prompt, max_new_tokens=6)
        >>> batch = record(model, step, torch.device("cpu"))
        >>> with torch.no_grad():
        ...     batch(prompt).shape
        torch.Size([1, 100])
    """
    assert step.cache is not None, "recorded steps go on from it"
    return RecordedBatch(RecordedSteps(model, step.cache.max_len, device), step)


def _state(step: DecodingStep) -> list[Tensor | None]:
    """What a step reads of its batch, beside the tokens and the cache."""
    return [step.memory, step.memory_mask, step.real, step.positions]


def _note_best(
    logits: Float[Tensor, "B V"],
    n: Int[Tensor, ""],
    token: Int[Tensor, "B 1"],
    chosen: Int[Tensor, "L B"],
    best: Float[Tensor, "L B"],
) -> None:
    """Write the best token of each row where the next step reads it, and into row n of the past."""
    score, index = logits.max(dim=-1)
    token.copy_(index[:, None])
    for past, new in ((chosen, index), (best, score)):
        past.index_copy_(0, n[None], new[None])


def _read_and_note(
    read: Run, note: Callable[..., None], places: tuple[Tensor, Tensor, Tensor, Tensor]
) -> Float[Tensor, "B V"]:
    """Make the scores and choose a token: both are recorded, so that no step waits."""
    logits = read()
    note(logits, *places)
    return logits


def _record(run: Run) -> Run:
    """Record what a function does on the GPU; return what does it again."""
    graph = torch.cuda.CUDAGraph()
    with _own_workspace(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        logits = run()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay


@contextmanager
def _own_workspace() -> Iterator[None]:
    """Let products in a recording have their scratch memory in the recording's own pool.

    PyTorch keeps one for each stream. A recording that found one there would go on writing to it
    after somebody else's recording has given it back
    (https://github.com/pytorch/pytorch/issues/193402).
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
