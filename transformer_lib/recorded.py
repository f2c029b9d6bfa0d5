"""Decoding steps recorded on a GPU, and replayed.

A step of a small model is hundreds of tiny kernels, and to launch them one by one takes longer than
to run them. A recording (a CUDA graph) is launched at once. It has fixed shapes and addresses, so
its cache is static. It knows nothing of what happens in Python: whoever replays it looks first
whether the model is still the one that was recorded.
"""

from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from itertools import chain, repeat
from operator import contains, methodcaller

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer_lib.decoding import DecodingStep, LanguageModel, generating
from transformer_lib.feedforward import MixtureOfExperts
from transformer_lib.hooks import forward_hooks
from transformer_lib.precision import autocast_dtype
from transformer_lib.static_cache import StaticCache
from transformer_lib.step_kernel import has_step_kernel, use_step_kernel

WORTH_RECORDING = 16  # new tokens; to record takes about as long as five plain steps

Run = Callable[[], Tensor]
_values = methodcaller("values")


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
        >>> from transformer_lib.config import TransformerConfig
        >>> from transformer_lib.models import CausalLM
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2))
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
        and all(map(_is_known, parts := list(model.modules())))
        and not any(forward_hooks(*parts))
        and _may_be_recorded(model)
    )


def _is_known(part: nn.Module) -> bool:
    """Whether a part does the same in every call, as all of this library and of PyTorch do."""
    return type(part).__module__.startswith(("transformer_lib.", "torch.")) and (
        "forward" not in vars(part)
    )


def _may_be_recorded(model: nn.Module) -> bool:
    """Whether no part has to ask the GPU what comes next: which expert gets a token, say."""
    return not any(isinstance(part, MixtureOfExperts) for part in model.modules())


class RecordedSteps:
    """Steps of one token for batches of one shape, recorded once and replayed for every token.

    The first step runs unrecorded, the second one is recorded, all others are replays. Where a step
    cannot be recorded, or the model is not any more what it was, the model itself is asked.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``, in any mode.
        max_len: the longest sequence, prompt included.
        device: where the model is.
        make_run: given a step with a copy of the model and the token that it reads, returns what
            runs it; see ``CompiledDecoder``.

    Attributes:
        cache: the same for all batches, at fixed addresses.
        token: the newest token of each row, ``(B, 1)``, which a step reads and replaces by the one
            with the best score; a fixed address too.
        best: the best score of each row after so many tokens, ``(max_len + 1, B)``.
        batch: the one that is decoded now.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> from transformer_lib.models import CausalLM
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2))
        >>> RecordedSteps(model, max_len=32, device=torch.device("cpu")).cache.max_len
        32
    """

    def __init__(
        self,
        model: LanguageModel,
        max_len: int,
        device: torch.device,
        make_run: Callable[[DecodingStep, Tensor], Run] | None = None,
    ) -> None:
        self.model, self._device, self._make_run = model, device, make_run or _run_plainly
        self._was_asked_for = make_run is not None  # so its errors are the caller's
        self.cache = StaticCache(model.config.n_layers, max_len, device)
        self.batch: object = None
        self._watch = ModelWatch(model)
        self._step: DecodingStep | None = None  # of the first batch; others are copied to its place
        self._run: Run | None = None  # runs a step; later, a recording
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
        for old, new in zip(_state(self._step), _state(step), strict=True):
            if old is not None and new is not None and old is not new:
                old.copy_(new)
        if step.cache is not None:
            self.cache.go_on_after(step.cache, self._step.memory)
        self._choose(logits)

    def advance(self, length: int) -> Float[Tensor, "B V"]:
        """Read one token of each row; return the scores of the next, at a fixed address.

        Args:
            length: how many tokens each row has, this one included.
        """
        replay = self._watch.sees_no_change() and not self._gave_up
        logits = self._replay() if replay else self._choose(self._ask_model())
        self.cache.note_length(length)  # replays are not seen by Python
        return logits

    def _choose(self, logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Note the best token and its score: a part of each recording, so that none waits."""
        self.token.copy_(logits.argmax(dim=-1, keepdim=True))
        self.best.index_copy_(0, self.cache.filled[None], logits.amax(dim=-1)[None])
        return logits

    def _ask_model(self) -> Tensor:
        """Run a step with the model itself, which is always right."""
        assert self._step is not None, "a prompt comes first"
        with generating(self.model):
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
        has_kernel = self._device.type == "cuda" and has_step_kernel(self.best.dtype)
        for kernel in (True, False) if has_kernel else (False,):
            step = self._copied_step(kernel=kernel)
            try:
                read = self._make_run(step, self.token)
                self._hide_length()
                logits = read()
            except Exception:  # a kernel that does not fit this GPU; or the model itself will tell
                if self._was_asked_for and not kernel:
                    raise
                continue
            self._run = lambda read=read: self._choose(read())
            return self._choose(logits)
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
        if kernel:
            use_step_kernel(twin, self._device)
        step.use(twin)
        return step


def _run_plainly(step: DecodingStep, token: Int[Tensor, "B 1"]) -> Run:
    """What reads a token with a step, as it is."""
    assert step.cache is not None, "a recorded step has one"
    return partial(step.read, token, step.cache.max_len)


class RecordedBatch:
    """A batch that is decoded by recorded steps; its prompt is read as always.

    In the place of a :class:`~transformer_lib.decoding.DecodingStep`.

    Args:
        steps: it may serve one batch after the other.
        step: reads the prompt.

    Raises:
        RuntimeError: in a call, if another batch was begun with the same steps.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> from transformer_lib.models import CausalLM
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2))
        >>> prompt, steps = torch.tensor([[5, 7, 9]]), RecordedSteps(model, 8, torch.device("cpu"))
        >>> batch = RecordedBatch(steps, DecodingStep(model, prompt, max_new_tokens=6))
        >>> [tuple(tokens.shape) for tokens, _ in batch.best_tokens(prompt, n_new=2)]
        [(1,), (1,)]
    """

    def __init__(self, steps: RecordedSteps, step: DecodingStep) -> None:
        self._steps, self._step, self._has_read_prompt = steps, step, False
        steps.batch = self

    def __call__(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Return the scores ``(B, V)`` of the token after ``ids``, ``(B, T)``, all of them."""
        if not self._has_read_prompt:
            return self._read_prompt(ids)
        self._check()
        self._steps.token.copy_(ids[:, -1:])
        return self._steps.advance(ids.shape[1]).clone()  # the next one is written to its place

    def best_tokens(
        self, prompt: Int[Tensor, "B T"], n_new: int
    ) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, " B"]]]:
        """Take the best token always: then recorded steps can go on by themselves.

        Args:
            prompt: what the batch starts with.
            n_new: how many tokens follow.

        Yields:
            The newest token of each row, and its score.
        """
        for length in range(prompt.shape[1], prompt.shape[1] + n_new):
            with torch.no_grad():  # not across the yield, where the caller's own code runs
                if self._has_read_prompt:
                    self._check()
                    self._steps.advance(length)
                else:
                    self._read_prompt(prompt)
                newest = self._steps.token[:, 0].clone()
            yield newest, self._steps.best[length]

    def _read_prompt(self, prompt: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        self._check()
        logits = self._step(prompt)
        self._steps.start(self._step, logits)
        self._has_read_prompt = True
        return logits

    def _check(self) -> None:
        if self._steps.batch is not self:  # they would write into the same cache
            raise RuntimeError("another batch was begun before this one had ended")


class ModelWatch:
    """Tells whether a model is still the one that was recorded, but for the values of its weights.

    Asked for every token, so it looks at what it has noted down instead of walking the model.

    Args:
        model: any model.

    Example:
        >>> watch = ModelWatch(model := nn.Sequential(nn.Linear(2, 2)))
        >>> watch.sees_no_change()
        True
        >>> model[0].weight = nn.Parameter(torch.zeros(2, 2))
        >>> watch.sees_no_change()
        False
    """

    def __init__(self, model: nn.Module) -> None:
        parts = list(model.modules())
        self._hooks = list(forward_hooks(*parts))
        self._attributes = [vars(part) for part in parts]
        tensors = [x for part in parts for x in (part._parameters, part._buffers) if x]
        self._owners = [part._modules for part in parts if part._modules] + tensors
        self._tensors = [x for owned in tensors for x in owned.values() if x is not None]
        # As long as these are held, nothing else can come to stand at their addresses.
        self._held = [x.detach() for x in self._tensors]
        self._before = self._look()

    def sees_no_change(self) -> bool:
        """Say whether nobody listens or has replaced a ``forward``, and all are where they were."""
        return (
            not any(self._hooks)
            and not any(map(contains, self._attributes, repeat("forward")))
            and self._look() == self._before
        )

    def _look(self) -> list[int]:
        """Which parts and weights there are, and where the weights lie."""
        found = list(map(id, chain.from_iterable(map(_values, self._owners))))
        found += map(Tensor.data_ptr, self._tensors)
        return found


def shared_copy(model: LanguageModel) -> LanguageModel:
    """Copy a model in evaluation mode: its parts are new, its weights are those of the model.

    The copy can be changed for speed without a trace on the model, which may be trained meanwhile.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``.

    Returns:
        A copy that sees every change of the weights.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> from transformer_lib.models import CausalLM
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2))
        >>> shared_copy(model).output.projection.weight is model.output.projection.weight
        True
    """
    copies: dict[int, nn.Module] = {}

    def copied(part: nn.Module) -> nn.Module:
        if id(part) not in copies:
            twin: nn.Module = object.__new__(type(part))
            copies[id(part)] = twin
            vars(twin).update(vars(part), training=False)
            vars(twin)["_modules"] = {
                name: None if child is None else copied(child)
                for name, child in part._modules.items()
            }
        return copies[id(part)]

    twin = copied(model)
    assert isinstance(twin, LanguageModel)
    return twin


def _state(step: DecodingStep) -> list[Tensor | None]:
    """What a step reads of its batch, beside the tokens and the cache."""
    return [step.memory, step.memory_mask, step.real, step.positions]


def _record(run: Run) -> Run:
    """Record what a function does on the GPU; return what does it again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        logits = run()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay
