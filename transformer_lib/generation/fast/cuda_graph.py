"""Decoding steps recorded as a CUDA graph, and replayed.

A step of a small model is hundreds of tiny kernels, and to launch them one by one takes longer than
to run them. A recording (a CUDA graph) is launched at once. It has fixed shapes and addresses, so
its cache is static. A replay runs no Python code, so whoever replays checks first that the model is
still the one that was recorded.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from enum import Enum
from functools import cache, partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer_lib.core.eval_twin import shared_copy
from transformer_lib.core.fast_path_register import fast_path
from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.core.precision import autocast_dtype
from transformer_lib.generation.decoding_step import DecodingStep, LanguageModel
from transformer_lib.generation.fast_interfaces import FastBatch
from transformer_lib.layers.caches.static_kv_cache import StaticCache
from transformer_lib.layers.feedforward import MixtureOfExperts

_DECODE_KERNEL = fast_path("decode_kernel")

WORTH_RECORDING = 16  # new tokens; to record takes about as long as five plain steps

Run = Callable[[], Tensor]


def _nothing() -> None:
    """What comes before steps that read the weights where they are."""


def _run_nothing() -> Tensor:
    raise AssertionError("a first run comes before all others")


class StepRunner(NamedTuple):
    """What runs steps with a copy of the model.

    Args:
        run: runs one step, and returns the scores of the next token.
        refresh: comes before one step or several: the weights may have changed.

    Example:
        >>> StepRunner(lambda: torch.zeros(1, 100)).run().shape
        torch.Size([1, 100])
    """

    run: Run
    refresh: Callable[[], None] = _nothing


class Places(NamedTuple):
    """Where steps read and write, at addresses that stay.

    Args:
        filled: how many tokens the cache holds.
        token: the newest token of each row, ``(B, 1)``, which a step reads and replaces by the one
            with the best score.
        chosen: the best token of each row after so many tokens, ``(max_len + 1, B)``.
        best: its score, ``(max_len + 1, B)``.

    Example:
        >>> Places(*torch.zeros(4)).token
        tensor(0.)
    """

    filled: Int[Tensor, ""]
    token: Int[Tensor, "B 1"]
    chosen: Int[Tensor, "L B"]
    best: Float[Tensor, "L B"]


class _Next(Enum):
    """How the next step is run, as long as the model is what it was.

    =========  ==============================  ===============================================
    state      if it works                     if it does not
    =========  ==============================  ===============================================
    FIRST_RUN  RECORDING; REPLAY on a CPU      MODEL, after a try without the decode kernel
    RECORDING  REPLAY                          MODEL
    REPLAY     REPLAY                          an error: what is replayed has run before
    MODEL      MODEL                           an error of the model
    =========  ==============================  ===============================================
    """

    FIRST_RUN = "by a copy of the model, as it will be recorded"
    RECORDING = "the same, recorded and then replayed"
    REPLAY = "replayed; on a CPU run by the copy"
    MODEL = "by the model itself: its steps cannot be recorded"


def can_record(model: LanguageModel, prompt: Int[Tensor, "B T"], max_new_tokens: int) -> bool:
    """Say whether steps may be replayed with the same output, and whether it is worth it.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``.
        prompt: what the batch starts with.
        max_new_tokens: how many tokens will be asked for.

    Returns:
        ``False`` on a CPU, for a few tokens, and where Python code may act in each step: a hook, a
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
        make_runner: given a step with a copy of the model and the token that it reads, returns
            what runs it; :func:`run_joined` if left out. If it is given, the choice of a token is
            compiled, too, on a GPU.

    Attributes:
        cache: the same for all batches, at fixed addresses.
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
        make_runner: Callable[[DecodingStep, Tensor], StepRunner] | None = None,
    ) -> None:
        self.model, self._device, self._make_runner = model, device, make_runner or run_joined
        self._falls_back = make_runner is None  # an error of a runner that was given is its giver's
        self._compiles_choice = make_runner is not None and device.type == "cuda"
        self.cache = StaticCache(model.config.n_layers, max_len, device)
        self.batch: object = None
        self.lock = threading.RLock()
        self.fingerprint = Fingerprint(model.modules(), to_compare=True)
        self._step: DecodingStep | None = None  # of the first batch; others are copied to its place
        self._places: Places | None = None
        self._runner = StepRunner(_run_nothing)  # the first run makes another
        self._next = _Next.FIRST_RUN if _may_be_recorded(model) else _Next.MODEL

    def start(self, step: DecodingStep, logits: Float[Tensor, "B V"]) -> None:
        """Put what the prompt left behind to where recorded steps read.

        Args:
            step: has read the prompt, with a cache of its own or one made by ``cache.for_prompt``.
            logits: what it returned.
        """
        if self._step is None:
            self._step = copy(step)
            self._step.cache = self.cache
            token = logits.argmax(dim=-1, keepdim=True)
            best = logits.new_zeros(self.cache.max_len + 1, len(logits))
            self._places = Places(self.cache.filled, token, token.new_zeros(best.shape), best)
        for old, new in zip(_state(self._step), _state(step), strict=True):
            if old is not None and new is not None and old is not new:
                old.copy_(new)
        if step.cache is not None:
            self.cache.go_on_after(step.cache, self._step.memory)
        _write_best(logits, *self.places)

    def advance(self, length: int, n_steps: int = 1) -> Float[Tensor, "B V"]:
        """Read one token of each row; return the scores of the next, at a fixed address.

        Args:
            length: how many tokens each row has, this one included.
            n_steps: how many are read one after the other, each the best after those before it.
        """
        is_same = self.fingerprint.holds()
        if is_same:
            self._runner.refresh()
        for _ in range(n_steps - 1):
            self._advance_one(length, by_copy=is_same)
            length += 1
        return self._advance_one(length, by_copy=is_same)

    def _advance_one(self, length: int, *, by_copy: bool) -> Tensor:
        by_copy = by_copy and self._next is not _Next.MODEL
        logits = self._run_copy() if by_copy else self._ask_model()
        self.cache.note_length(length)  # replays are not seen by Python
        return logits

    @property
    def places(self) -> Places:
        """Where a step counts, reads its token, and writes tokens and scores."""
        assert self._places is not None, "a prompt comes first"
        return self._places

    def _ask_model(self) -> Tensor:
        """Run a step with the model itself, which is always right."""
        assert self._step is not None, "a prompt comes first"
        with self._step.in_evaluation():
            logits = self._step.read(self.places.token, self.cache.max_len)
        _write_best(logits, *self.places)
        return logits

    def _run_copy(self) -> Tensor:
        """Run a step with a copy of the model: the first, the recorded one, or a replay."""
        if self._next is _Next.REPLAY:
            self._hide_length()
            return self._runner.run()
        return self._first_run() if self._next is _Next.FIRST_RUN else self._record_and_run()

    def _first_run(self) -> Tensor:
        """Run a step as it will be recorded, with the fastest copy of the model that works."""
        has_kernel = (
            _DECODE_KERNEL is not None
            and self._device.type == "cuda"
            and _DECODE_KERNEL.has_step_kernel(self.places.best.dtype)
        )
        length = self.cache.filled.clone()
        for kernel in (True, False) if has_kernel else (False,):
            try:
                runner = self._runner_of_copy(kernel=kernel)
                self._hide_length()
                logits = runner.run()
            # A kernel that cannot be compiled, or does not fit this GPU: compilers raise exceptions
            # of many kinds. If it is the model that fails, it will fail again in _ask_model.
            except Exception as error:
                if not (kernel or self._falls_back):
                    raise
                _warn_once("the decode kernel" if kernel else "a copy of the model", error)
                self.cache.filled.copy_(length)  # it may have counted its token before it failed
                self.cache.note_length(None)  # in Python, too
                continue
            on_gpu = self._device.type == "cuda"
            self._runner, self._next = runner, _Next.RECORDING if on_gpu else _Next.REPLAY
            return logits
        return self._give_up()

    def _record_and_run(self) -> Tensor:
        """Record a step, and run it by its first replay."""
        try:
            run = _record(self._runner.run)
        except RuntimeError as error:  # something in it waits for the GPU
            _warn_once("a CUDA graph", error)
            return self._give_up()
        self._runner, self._next = self._runner._replace(run=run), _Next.REPLAY
        return run()

    def _give_up(self) -> Tensor:
        """Ask the model from now on."""
        self._next = _Next.MODEL
        return self._ask_model()

    def _hide_length(self) -> None:
        """Keep the number of tokens from Python: a compiled step must not depend on it."""
        if self._device.type == "cpu":  # on a GPU only blocks are compiled, which do not ask
            self.cache.note_length(None)

    def _runner_of_copy(self, *, kernel: bool) -> StepRunner:
        """What runs the step with a copy of the model, and writes the best token."""
        assert self._step is not None, "a prompt comes first"
        step, twin = copy(self._step), shared_copy(self.model)
        if kernel and _DECODE_KERNEL is not None:
            _DECODE_KERNEL.use_step_kernel(twin, self._device)
        step.use(twin)
        runner = self._make_runner(step, self.places.token)
        write = torch.compile(_write_best) if self._compiles_choice else _write_best
        # Nothing in it leads back here: a recording holds GPU memory, and must go at once.
        return runner._replace(run=partial(_read_and_write, runner.run, write, self.places))


def run_joined(step: DecodingStep, token: Int[Tensor, "B 1"]) -> StepRunner:
    """Return what reads a token with a step, by fewer and larger products.

    Args:
        step: with a copy of the model.
        token: the newest token of each row.

    Returns:
        What runs the step, and joins the weights again before.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config).eval()
        >>> step = DecodingStep(
        ...     model, prompt := torch.tensor([[5]]), max_new_tokens=6
        ... )
        >>> run_joined(step, prompt).run().shape
        torch.Size([1, 100])
    """
    assert step.cache is not None, "a recorded step has one"
    read = partial(step.read, token, step.cache.max_len)
    if _DECODE_KERNEL is None:
        return StepRunner(read)
    return StepRunner(read, _DECODE_KERNEL.join_projections(step.model))


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
            self.steps.places.token.copy_(ids[:, -1:])
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
            places = self.steps.places
            return places.best[new], places.chosen[new].clone()  # others are written there

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


def _warn_once(what: str, error: Exception) -> None:
    """Log that steps are slower than they could be, and why."""
    _log_once(f"decoding goes on without {what}: {type(error).__name__}: {error}")


@cache  # each message once
def _log_once(message: str) -> None:
    logging.getLogger(__name__).warning(message)


def _write_best(
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


def _read_and_write(read: Run, write: Callable[..., None], places: Places) -> Float[Tensor, "B V"]:
    """Make the scores and choose a token: both are recorded, so that no step waits."""
    logits = read()
    write(logits, *places)
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
