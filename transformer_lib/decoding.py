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
from torch.nn.modules import module as all_modules

from transformer_lib.blocks import next_positions
from transformer_lib.cache import KeyValueCache
from transformer_lib.checks import check_whole, expect_shape
from transformer_lib.config import TransformerConfig
from transformer_lib.embeddings import check_ids
from transformer_lib.encoder_decoder import EncoderDecoder
from transformer_lib.hooks import is_plain_linear
from transformer_lib.models import CausalLM, Seq2SeqLM

LanguageModel = CausalLM | Seq2SeqLM


class DecodingStep:
    """The tokens so far in, the scores of the next one out; with a cache only new ones are read.

    For use under ``torch.no_grad``. One object serves one batch. The model is in eval mode during
    a call, and only then. A ``CausalLM`` with a ``forward`` or hooks of its own is called as a
    whole; of others the parts are, since nobody asks for scores at every position of the prompt.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``.
        prompt: what the batch starts with, ``(B, T)``.
        max_new_tokens: how many tokens will be asked for.
        prompt_mask: where the prompt has real tokens, ``(B, T)`` or ``(B, 1, 1, T)``; padding
            stands on the left.
        source: what a ``Seq2SeqLM`` reads, ``(B, S)``; it is encoded here, once.
        source_mask: what hides padding in the source, ``(B, 1, 1, S)``.
        use_cache: whether to keep keys and values, or to compute them anew in each step.
        cache: a cache to use instead of one of its own; what it holds already is taken for the
            first tokens of the prompt.

    Raises:
        TypeError: if the model is of another kind, ids are not whole numbers, or the prompt's mask
            is not boolean.
        ValueError: if something does not fit together, or there is no room for so many tokens.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2)).eval()
        >>> prompt = torch.tensor([[5, 7, 9]])
        >>> with torch.no_grad():
        ...     DecodingStep(model, prompt, max_new_tokens=4)(prompt).shape
        torch.Size([1, 100])
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: Int[Tensor, "B T"],
        max_new_tokens: int,
        *,
        prompt_mask: Bool[Tensor, "..."] | None = None,
        source: Int[Tensor, "B S"] | None = None,
        source_mask: Bool[Tensor, "B 1 1 S"] | None = None,
        use_cache: bool = True,
        cache: KeyValueCache | None = None,
    ) -> None:
        _check_kind(model, source)
        check_ids("prompt", prompt, model.config.vocab_size)
        check_whole("max_new_tokens", max_new_tokens)
        sizes = {"1": 1, "B": prompt.shape[0], "T": prompt.shape[1]}
        max_len = sizes["T"] + max_new_tokens - 1  # nobody reads the last token
        limit = model.config.max_len if cache is None else cache.max_len
        if max_len > limit:
            room = f"there is room for max_len={limit}, not counting the last token"
            raise ValueError(f"{max_new_tokens=} after a prompt of {sizes['T']} tokens: {room}")
        self.model, self.output = model, model.output
        self.decoder = model.decoder if isinstance(model, CausalLM) else model.body.decoder
        if use_cache and cache is None:
            cache = KeyValueCache(model.config.n_layers, max_len)
        self.cache = cache
        self.memory = self.memory_mask = None
        if isinstance(model, Seq2SeqLM) and source is not None:
            expect_shape("source", source, "B S", sizes)
            if source_mask is not None:
                expect_shape("source_mask", source_mask, "B 1 1 S", sizes)
                self.memory_mask = source_mask.clone()  # compiled steps will write to it
            with generating(model):
                self.memory = model.body.encoder(source, source_mask)
        self.real = self.positions = None
        if prompt_mask is not None:
            n_places = max_len if cache is None else cache.max_len
            real = prompt_rows(prompt_mask, sizes)
            self.real = F.pad(real, (0, n_places - sizes["T"]), value=True)  # (B, n_places)
            # A place is the number of real tokens before it: padding does not push a row along.
            self.positions = (self.real.cumsum(dim=1) - 1).clamp(min=0)

    def __call__(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Return the scores ``(B, V)`` of the token after ``ids``, ``(B, T)``, all of them."""
        start = 0 if self.cache is None else self.cache.length
        with generating(self.model):
            return self.read(ids[:, start:], ids.shape[1])

    def read(self, new: Int[Tensor, "B T"], n_keys: int) -> Float[Tensor, "B V"]:
        """Return the scores of the token after ``new``, ``(B, T)``, which the cache has not seen.

        The model stays in the mode it is in.

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
        options: Any = {"positions": positions, "cache": self.cache}
        if isinstance(self.model, CausalLM) and not _is_as_built(self.model, CausalLM):
            logits: Tensor = self.model(new, mask, **options)[:, -1]
        else:  # nobody asks for the scores at other positions
            x = self.decoder(new, self.memory, mask, self.memory_mask, **options)
            logits = self.output(x[:, -1])
        return logits

    def select(self, rows: Int[Tensor, " B"]) -> None:
        """Go on with these rows of the batch in this order, each with the memory of its place."""
        for store in () if self.cache is None else self.cache.own:
            for stored in store.read():
                stored.copy_(stored[rows])


def prompt_rows(prompt_mask: Bool[Tensor, "..."], sizes: dict[str, int]) -> Bool[Tensor, "B T"]:
    """Check where a prompt has real tokens, and give the mask two dimensions.

    Args:
        prompt_mask: ``(B, T)``, or ``(B, 1, 1, T)`` as :func:`~transformer_lib.data.pad` makes it.
        sizes: those that are known, B and T.

    Returns:
        The mask, ``(B, T)``.

    Raises:
        ValueError: if the shape is another one, or padding does not stand on the left.

    Example:
        >>> prompt_rows(torch.tensor([[False, True, True]])[:, None, None], {"B": 1, "T": 3})
        tensor([[False,  True,  True]])
    """
    is_wide = prompt_mask.ndim == 4 and prompt_mask.shape[1:3] == (1, 1)
    rows = prompt_mask[:, 0, 0] if is_wide else prompt_mask
    expect_shape("prompt_mask", rows, "B T", sizes)
    if not (rows[:, -1].all() and (rows.int().diff() >= 0).all()):
        raise ValueError("prompt_mask hides a token that comes after a real one")
    return rows


@contextmanager
def generating(model: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards each module is as it was.

    Args:
        model: any model of this library.

    Example:
        >>> model = nn.Dropout()
        >>> with generating(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    # For every token, hence faster than model.modules() and attributes; a shared part comes twice.
    in_training, parts = [], [vars(model)]
    for attributes in parts:
        parts += [vars(child) for child in attributes["_modules"].values() if child is not None]
        if attributes["training"]:
            in_training.append(attributes)
    try:
        for attributes in in_training:
            attributes["training"] = False
        yield
    finally:
        for attributes in in_training:
            attributes["training"] = True


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
        """Make ready for a batch.

        Args:
            prompt: what the batch starts with, ``(B, T)``.
            max_new_tokens: how many tokens will be asked for.
            inputs: as for :class:`DecodingStep`.

        Returns:
            A function from all tokens so far, ``(B, T)``, to the scores of the next, ``(B, V)``.

        Raises:
            TypeError: if the inputs name a cache: this one is always used.
        """
        for name in {"cache", "use_cache"} & inputs.keys():
            raise TypeError(f"a CompiledDecoder has a cache of its own: leave out {name}=")
        cache = KeyValueCache(self.config.n_layers, self.max_len, prompt.device)
        step = DecodingStep(self.model, prompt, max_new_tokens, cache=cache, **inputs)
        state = [step.memory, step.memory_mask, step.real, step.positions]
        shapes = [prompt.shape[:1], *(None if part is None else part.shape for part in state)]
        shapes += _looks(self.model)
        if shapes != self.shapes:
            self.step, self.state, self.shapes = step, state, shapes
            self.cache, self.token = cache, prompt[:, -1:].clone()
            self.replays: dict[int, Callable[[], Tensor]] = {}
        else:  # what was recorded reads from these addresses
            for old, new in zip(self.state, state, strict=True):
                if old is not None and new is not None:
                    old.copy_(new)
            self.cache.reset()
        self.hooks = list(_hooks(*self.model.modules()))
        self.attributes = [vars(part) for part in self.model.modules()]
        self.fresh, self.current = True, step
        return partial(self._next, step)

    def _next(self, begun: DecodingStep, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """The scores of the token after ``ids``: plainly for the prompt, compiled afterwards."""
        if begun is not self.current:  # they would write into the same cache
            raise RuntimeError("another batch was begun before this one had ended")
        # Attention looks at 64 places, then at 128, ...: less to read, and not many recordings.
        n_keys = min(self.max_len, 64 * math.ceil(ids.shape[1] / 64))
        self.cache.show(n_keys)
        is_prompt, self.fresh = self.fresh, False
        # Looked at in every step, hence without a call for each part.
        watched = any(self.hooks) or any("forward" in names for names in self.attributes)
        if is_prompt or watched:
            with generating(self.model):
                return self.step.read(ids if is_prompt else ids[:, -1:], n_keys)
        self.token.copy_(ids[:, -1:])
        if n_keys not in self.replays:
            with generating(self.model):
                self.replays[n_keys] = self._record(n_keys)
        self.cache.count_on_device()
        return self.replays[n_keys]()

    def _run(self, read: Callable[..., Tensor], n_keys: int) -> Tensor:
        with generating(self.model):
            return read(self.token, n_keys)

    def _record(self, n_keys: int) -> Callable[[], Tensor]:
        """Compile a step that looks at so many places; return what runs it."""
        if self.token.device.type != "cuda":
            return partial(self._run, torch.compile(self.step.read), n_keys)
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
            return logits.clone()  # the next replay writes to the same place

        return replay


def _check_kind(model: nn.Module, source: Tensor | None) -> None:
    """Refuse models that cannot be decoded, or not without leaving out something of theirs."""
    kind = type(model).__name__
    if not isinstance(model, LanguageModel) or isinstance(model, CausalLM) != (source is None):
        raise TypeError(f"model is a {kind}; expected a CausalLM, or a Seq2SeqLM with a source")
    if isinstance(model, Seq2SeqLM):
        for part, built in ((model, Seq2SeqLM), (model.body, EncoderDecoder)):
            if not _has_forward_of(part, built):
                why = "would not be called, only its encoder, decoder and output are"
                raise TypeError(f"model is a {kind}, whose own forward {why}")


def _has_forward_of(part: nn.Module, built: type[nn.Module]) -> bool:
    return type(part).forward is built.forward and "forward" not in vars(part)


def _is_as_built(model: nn.Module, built: type[nn.Module]) -> bool:
    """Whether to call a model is to call its parts: nobody replaced its forward, or listens."""
    return _has_forward_of(model, built) and not any(_hooks(model))


def _hooks(*parts: nn.Module) -> Iterator[dict[int, Any]]:
    """Where whoever listens to what these modules are given and return is entered."""
    yield from (all_modules._global_forward_pre_hooks, all_modules._global_forward_hooks)
    for part in parts:
        yield from (part._forward_pre_hooks, part._forward_hooks)


def _looks(model: nn.Module) -> list[Any]:
    """All that a recorded step of a model depends on, but for the values of its weights."""
    plain = (bool, int, float, str, TransformerConfig, type(None))
    found: list[Any] = []
    for part in model.modules():
        settings = {name: x for name, x in vars(part).items() if isinstance(x, plain)}
        found.append((type(part), {**settings, "training": False}))
    tensors = (*model.parameters(), *model.buffers())
    return found + [(x.data_ptr(), x.dtype, x.shape, x.stride()) for x in tensors]


@contextmanager
def _biases_apart(model: nn.Module) -> Iterator[None]:
    """Let linear layers add their biases after the product, which the compiler can then take over.

    Product and bias in one are a call of a library, which leaves nothing to the compiler.
    """
    linears = [part for part in model.modules() if isinstance(part, nn.Linear)]
    layers = [part for part in linears if is_plain_linear(part) and part.bias is not None]
    try:
        for layer in layers:
            vars(layer)["forward"] = partial(_product_and_bias, layer)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _product_and_bias(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight) + layer.bias
