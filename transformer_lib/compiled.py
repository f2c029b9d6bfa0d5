"""Decoding steps that are compiled and, on a GPU, recorded."""

import math
from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib.checks import check_whole
from transformer_lib.config import TransformerConfig
from transformer_lib.decoding import DecodingStep, LanguageModel, generating
from transformer_lib.hooks import forward_hooks, is_plain_linear
from transformer_lib.static_cache import StaticCache

_CompilerOptions = dict[str, str | int | bool | Callable[..., object]]
ROOM = 64  # attention looks at so many places, then at twice as many, ...


class _RecordedSteps:
    """Steps of one token for batches of one shape, and the memory that they read and write.

    Args:
        step: reads the batch for which they are recorded.
        cache: that of the step.
        key: what the recordings depend on.
        token: where the newest token of each row is put, ``(B, 1)``.
    """

    def __init__(
        self, step: DecodingStep, cache: StaticCache, key: list[object], token: Tensor
    ) -> None:
        self.step, self.cache, self.key, self.token = step, cache, key, token
        self._fast: DecodingStep | None = None  # the same with a copy of the model
        self._replays: dict[int, Callable[[], Tensor]] = {}  # by the number of places seen

    def take_over(self, other: DecodingStep) -> None:
        """Go on with another batch, at the addresses from which recordings read."""
        for old, new in zip(_state(self.step), _state(other), strict=True):
            if old is not None and new is not None:
                old.copy_(new)
        self.cache.reset()

    def run_plainly(self, new: Int[Tensor, "B T"], n_keys: int) -> Float[Tensor, "B V"]:
        """Run a step with the model itself."""
        with generating(self.step.model):
            return self.step.read(new, n_keys)

    def replay(self, token: Int[Tensor, "B 1"], n_keys: int) -> Float[Tensor, "B V"]:
        """Run a recorded step; if it is the first that sees so many places, record it."""
        self.token.copy_(token)
        if n_keys not in self._replays:
            self._replays[n_keys] = self._record(n_keys)
        self.cache.count_on_device()
        return self._replays[n_keys]()

    def _record(self, n_keys: int) -> Callable[[], Tensor]:
        """Compile a step that looks at so many places; return what runs it."""
        on_gpu, single = self.token.device.type == "cuda", len(self.token) == 1
        if self._fast is None:
            twin = _shared_copy(self.step.model)
            self._fast = copy(self.step)
            self._fast.use(_biases_apart(twin) if on_gpu and single else twin)
        # For a single row, products are sums over one pass of the weights. Told so, the compiler
        # writes them itself, together with all that happens to the row before and after.
        options: _CompilerOptions | None = None
        if on_gpu and single:
            options = {"coordinate_descent_tuning": True}
        run = partial(torch.compile(self._fast.read, options=options), self.token, n_keys)
        if not on_gpu:
            return run
        start, graph, side = self.cache.length, torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())  # CUDA wants a stream of its own for this
        with torch.cuda.stream(side):
            for _ in range(2):
                run()
                self.cache.rewind(start)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            logits = run()

        def replay() -> Tensor:
            graph.replay()
            return logits.clone()  # the next replay writes to the same place

        return replay


class CompiledDecoder(nn.Module):
    """A language model whose steps of one token are compiled and, on a GPU, recorded.

    A step of a small model is hundreds of tiny kernels, and to launch them one by one takes longer
    than to run them. A recording (a CUDA graph) is launched at once. It has fixed shapes and
    addresses, so the cache is static. Use it in the place of the model: ``generate(fast, ...)``.
    The first call for a batch of some shape compiles; later ones replay.

    Weights that change in place (an optimizer's step, ``load_state_dict``) are seen at once. If
    parts were exchanged, moved or set otherwise, the next batch compiles anew. While somebody
    listens with a hook or has replaced a ``forward``, steps are neither compiled nor replayed.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``. It may be trained on; one batch at a time.
        max_len: the longest sequence, prompt included.

    Example:
        >>> from transformer_lib.models import CausalLM
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2))
        >>> CompiledDecoder(model, max_len=32).config.d_model
        8
    """

    def __init__(self, model: LanguageModel, max_len: int) -> None:
        super().__init__()
        check_whole("max_len", max_len)
        most = model.config.max_len
        if max_len > most:
            raise ValueError(f"max_len={max_len} must be at most that of the model, {most}")
        self.model, self.config, self.max_len = model, model.config, max_len
        self._recorded: _RecordedSteps | None = None  # for batches of one shape
        self._begun: DecodingStep | None = None  # the batch that is decoded now

    def begin(
        self,
        prompt: Int[Tensor, "B T"],
        max_new_tokens: int,
        *,
        prompt_mask: Bool[Tensor, "..."] | None = None,
        source: Int[Tensor, "B S"] | None = None,
        source_mask: Bool[Tensor, "B 1 1 S"] | None = None,
    ) -> Callable[[Tensor], Tensor]:
        """Make ready for a batch.

        Args:
            prompt: what the batch starts with, ``(B, T)``.
            max_new_tokens: how many tokens will be asked for.
            prompt_mask: where the prompt has real tokens; see ``DecodingStep``.
            source: what a ``Seq2SeqLM`` reads, ``(B, S)``.
            source_mask: what hides padding in the source, ``(B, 1, 1, S)``.

        Returns:
            A function from all tokens so far, ``(B, T)``, to the scores of the next, ``(B, V)``.
        """
        cache = StaticCache(self.config.n_layers, self.max_len, prompt.device)
        step = DecodingStep(
            self.model,
            prompt,
            max_new_tokens,
            prompt_mask=prompt_mask,
            source=source,
            source_mask=source_mask,
            cache=cache,
        )
        key = [len(prompt), [None if x is None else x.shape for x in _state(step)]]
        key += _looks(self.model)
        if self._recorded is None or self._recorded.key != key:
            self._recorded = _RecordedSteps(step, cache, key, prompt[:, -1:].clone())
        else:
            self._recorded.take_over(step)
        self._hooks = list(forward_hooks(*self.model.modules()))
        self._attributes = [vars(part) for part in self.model.modules()]
        self._begun, self._reads_prompt = step, True
        return partial(self._next, step, self._recorded)

    def _next(
        self, begun: DecodingStep, steps: _RecordedSteps, ids: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B V"]:
        """The scores of the token after ``ids``: plainly for the prompt, compiled afterwards."""
        if begun is not self._begun:  # they would write into the same cache
            raise RuntimeError("another batch was begun before this one had ended")
        # Attention looks at 64 places, then at 128, ...: less to read, and not many recordings.
        n_keys = min(self.max_len, ROOM * math.ceil(ids.shape[1] / ROOM))
        steps.cache.show(n_keys)
        if self._reads_prompt:
            self._reads_prompt = False
            return steps.run_plainly(ids, n_keys)
        # Looked at in every step, hence without a call for each part.
        if any(self._hooks) or any("forward" in names for names in self._attributes):
            return steps.run_plainly(ids[:, -1:], n_keys)
        return steps.replay(ids[:, -1:], n_keys)


def _state(step: DecodingStep) -> list[Tensor | None]:
    """What a step reads of its batch, beside the tokens and the cache."""
    return [step.memory, step.memory_mask, step.real, step.positions]


def _looks(model: nn.Module) -> list[object]:
    """All that a recorded step of a model depends on, but for the values of its weights."""
    plain = (bool, int, float, str, TransformerConfig, type(None))
    found: list[object] = []
    for part in model.modules():
        settings = {name: x for name, x in vars(part).items() if isinstance(x, plain)}
        found.append((type(part), {**settings, "training": False}))
    tensors = (*model.parameters(), *model.buffers())
    return found + [(x.data_ptr(), x.dtype, x.shape, x.stride()) for x in tensors]


def _shared_copy(model: LanguageModel) -> LanguageModel:
    """A copy in evaluation mode whose parts are new, and whose weights are those of the model.

    It can be changed for speed without a trace on the model, which may be trained meanwhile.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return deepcopy(model, shared).eval()


def _biases_apart(model: LanguageModel) -> LanguageModel:
    """Let linear layers add their biases after the product, which the compiler can then take over.

    Product and bias in one are a call of a library, which leaves nothing to the compiler.
    """
    for part in list(model.modules()):
        for name, child in part.named_children():
            if isinstance(child, nn.Linear) and is_plain_linear(child) and child.bias is not None:
                setattr(part, name, _ProductAndBias(child))
    return model.eval()


class _ProductAndBias(nn.Module):
    """A linear layer in two steps, with the weights of another one."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        return F.linear(x, self.weight) + self.bias
