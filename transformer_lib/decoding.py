"""One decoding step: with a cache, and compiled."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib.attention import MultiHeadAttention
from transformer_lib.blocks import next_positions
from transformer_lib.cache import KeyValueCache
from transformer_lib.embeddings import check_ids
from transformer_lib.heads import CausalLM, Seq2SeqLM
from transformer_lib.shapes import check_whole, expect_shape

LanguageModel = CausalLM | Seq2SeqLM


class DecodingStep:
    """The tokens so far in, the scores of the next one out; with a cache only new ones are read.

    For use inside :func:`generating` and ``torch.no_grad``. One object serves one batch.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``.
        prompt: what the batch starts with, ``(B, T)``.
        max_new_tokens: how many tokens will be asked for.
        prompt_mask: where the prompt has real tokens, ``(B, T)``; padding stands on the left.
        source: what a ``Seq2SeqLM`` reads, ``(B, S)``; it is encoded here, once.
        source_mask: what hides padding in the source, ``(B, 1, 1, S)``.
        use_cache: whether to keep keys and values, or to compute them anew in each step.
        cache: a cache to use instead of one of its own.

    Raises:
        TypeError: if the model is of another kind, ids are not whole numbers, or the prompt's mask
            is not boolean.
        ValueError: if something does not fit together, or there is no room for so many tokens.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2)).eval()
        >>> prompt = torch.tensor([[5, 7, 9]])
        >>> with generating(model), torch.no_grad():
        ...     DecodingStep(model, prompt, max_new_tokens=4)(prompt).shape
        torch.Size([1, 100])
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: Int[Tensor, "B T"],
        max_new_tokens: int,
        *,
        prompt_mask: Bool[Tensor, "B T"] | None = None,
        source: Int[Tensor, "B S"] | None = None,
        source_mask: Bool[Tensor, "B 1 1 S"] | None = None,
        use_cache: bool = True,
        cache: KeyValueCache | None = None,
    ) -> None:
        if not isinstance(model, LanguageModel) or isinstance(model, CausalLM) != (source is None):
            kind = type(model).__name__
            raise TypeError(f"model is a {kind}; expected a CausalLM, or a Seq2SeqLM with a source")
        check_ids("prompt", prompt, model.config.vocab_size)
        check_whole("max_new_tokens", max_new_tokens)
        sizes = {"1": 1, "B": prompt.shape[0], "T": prompt.shape[1]}
        max_len = sizes["T"] + max_new_tokens - 1  # nobody reads the last token
        limit = model.config.max_len if cache is None else cache.max_len
        if max_len > limit:
            room = f"there is room for max_len={limit}, not counting the last token"
            raise ValueError(f"{max_new_tokens=} after a prompt of {sizes['T']} tokens: {room}")
        self.decoder = model.decoder if isinstance(model, CausalLM) else model.body.decoder
        self.output = model.output
        if use_cache and cache is None:
            cache = KeyValueCache(model.config.n_layers, max_len)
        self.cache = cache
        self.memory, self.memory_mask = None, source_mask
        if isinstance(model, Seq2SeqLM) and source is not None:
            expect_shape("source", source, "B S", sizes)
            if source_mask is not None:
                expect_shape("source_mask", source_mask, "B 1 1 S", sizes)
            self.memory = model.body.encoder(source, source_mask)
        self.real = self.positions = None
        if prompt_mask is not None:
            expect_shape("prompt_mask", prompt_mask, "B T", sizes)
            if not (prompt_mask[:, -1].all() and (prompt_mask.int().diff() >= 0).all()):
                raise ValueError("prompt_mask hides a token that comes after a real one")
            n_places = max_len if cache is None else cache.max_len
            self.real = F.pad(prompt_mask, (0, n_places - sizes["T"]), value=True)  # (B, n_places)
            # A place is the number of real tokens before it: padding does not push a row along.
            self.positions = (self.real.cumsum(dim=1) - 1).clamp(min=0)

    def __call__(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Return the scores ``(B, V)`` of the token after ``ids``, ``(B, T)``, all of them."""
        start = 0 if self.cache is None else self.cache.length
        return self.read(ids[:, start:], ids.shape[1])

    def read(self, new: Int[Tensor, "B T"], n_keys: int) -> Float[Tensor, "B V"]:
        """Return the scores of the token after ``new``, ``(B, T)``, which the cache has not seen.

        Args:
            new: the tokens that come next.
            n_keys: how many places attention sees: those before, the new ones, and in a static
                cache some that are not in use.

        Returns:
            Logits of the last position, ``(B, V)``.
        """
        places = next_positions(new, self.cache)[0]
        mask = None if self.real is None else self.real[:, None, None, :n_keys]
        positions = None if self.positions is None else self.positions[:, places]
        x = self.decoder(
            new, self.memory, mask, self.memory_mask, positions=positions, cache=self.cache
        )
        logits: Tensor = self.output(x[:, -1])  # nobody asks for the scores at other positions
        return logits

    def select(self, rows: Int[Tensor, " B"]) -> None:
        """Go on with these rows of the batch in this order, each with the memory of its place."""
        for store in () if self.cache is None else self.cache.own:
            for stored in store.read():
                stored.copy_(stored[rows])


@contextmanager
def generating(model: nn.Module) -> Iterator[None]:
    """Eval mode, and projections joined; afterwards each module is as it was.

    Args:
        model: any model of this library.

    Example:
        >>> model = nn.Dropout()
        >>> with generating(model):
        ...     model.training
        False
    """
    modes = [(module, module.training) for module in model.modules()]
    attentions = [module for module, _ in modes if isinstance(module, MultiHeadAttention)]
    model.eval()
    try:
        for attention in attentions:
            with torch.no_grad():
                attention.joined = attention.join() if attention.fused else None
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for attention in attentions:
            attention.joined = None


class CompiledDecoder(nn.Module):
    """A language model whose steps of one token are compiled and, on a GPU, recorded.

    A step of a small model is hundreds of tiny kernels, and to launch them one by one takes longer
    than to run them. A recording (a CUDA graph) is launched at once. It has fixed shapes and
    addresses, so the cache is static. Use it in the place of the model: ``generate(fast, ...)``.
    The first call for a batch of some shape compiles; later ones replay.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``. It may be trained on; one batch at a time.
        max_len: the longest sequence, prompt included.

    Example:
        >>> from transformer_lib.config import TransformerConfig
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
        self.shapes: list[Any] = []

    def begin(
        self, prompt: Int[Tensor, "B T"], max_new_tokens: int, **inputs: Any
    ) -> Callable[[Tensor], Tensor]:
        """Make ready for a batch, inside :func:`generating`.

        Args:
            prompt: what the batch starts with, ``(B, T)``.
            max_new_tokens: how many tokens will be asked for.
            inputs: as for :class:`DecodingStep`.

        Returns:
            A function from all tokens so far, ``(B, T)``, to the scores of the next, ``(B, V)``.
        """
        cache = KeyValueCache(self.config.n_layers, self.max_len, prompt.device)
        step = DecodingStep(self.model, prompt, max_new_tokens, cache=cache, **inputs)
        attentions = [part for part in self.modules() if isinstance(part, MultiHeadAttention)]
        joined = [part.joined for part in attentions]
        state = [step.memory, step.memory_mask, step.real, step.positions]
        state += [tensor for pair in joined if pair is not None for tensor in pair]
        shapes = [prompt.shape[:1], *(None if part is None else part.shape for part in state)]
        shapes += [(p.data_ptr(), p.dtype) for p in self.parameters()]  # a model that was moved
        if shapes != self.shapes:
            self.step, self.state, self.joined, self.shapes = step, state, joined, shapes
            self.cache, self.token = cache, prompt[:, -1:].clone()
            self.replays: dict[int, Callable[[], Tensor]] = {}
        else:  # what was recorded reads from these addresses
            for old, new in zip(self.state, state, strict=True):
                if old is not None and new is not None:
                    old.copy_(new)
            for part, pair in zip(attentions, self.joined, strict=True):
                part.joined = pair
            self.cache.rewind()
        self.fresh, self.current = True, step
        return partial(self._next, step)

    def _next(self, begun: DecodingStep, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """The scores of the token after ``ids``: plainly for the prompt, compiled afterwards."""
        if begun is not self.current:  # they would write into the same cache
            raise RuntimeError("another batch was begun before this one had ended")
        # Attention looks at 64 places, then at 128, ...: less to read, and not many recordings.
        n_keys = min(self.max_len, 64 * math.ceil(ids.shape[1] / 64))
        self.cache.show(n_keys)
        if self.fresh:
            self.fresh = False
            return self.step.read(ids, n_keys)
        self.token.copy_(ids[:, -1:])
        if n_keys not in self.replays:
            self.replays[n_keys] = self._record(n_keys)
        return self.replays[n_keys]()

    def _record(self, n_keys: int) -> Callable[[], Tensor]:
        """Compile a step that looks at so many places; return what runs it."""
        if self.token.device.type != "cuda":
            return partial(torch.compile(self.step.read), self.token, n_keys)
        # For a single row, products are sums over one pass of the weights. Told so, the compiler
        # writes them itself, together with all that happens to the row before and after.
        single = len(self.token) == 1
        options: Any = {"coordinate_descent_tuning": True} if single else None
        run = partial(torch.compile(self.step.read, options=options), self.token, n_keys)
        start, graph, side = self.cache.length, torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())  # CUDA wants a stream of its own for this:
        with _biases_apart(self.model) if single else nullcontext():
            with torch.cuda.stream(side):
                for _ in range(2):
                    run()
                    self.cache.rewind(start)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph):
                logits = run()

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay


@contextmanager
def _biases_apart(model: nn.Module) -> Iterator[None]:
    """Let linear layers add their biases after the product, which the compiler can then take over.

    Product and bias in one are a call of a library, which leaves nothing to the compiler.
    """
    layers = [part for part in model.modules() if type(part) is nn.Linear and part.bias is not None]
    for layer in layers:
        vars(layer)["forward"] = partial(_product_and_bias, layer)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def _product_and_bias(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight) + layer.bias
