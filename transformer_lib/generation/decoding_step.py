"""One decoding step: tokens in, scores of the next one out."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib.core.checks import check_whole
from transformer_lib.core.eval_mode import evaluating
from transformer_lib.core.eval_twin import Twin
from transformer_lib.core.fast_path_register import fast_path
from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.core.shapes import expect_shape
from transformer_lib.generation.fast_interfaces import FastStep
from transformer_lib.generation.shared_prefix import SharedPrefix
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.embeddings import check_ids
from transformer_lib.models.blocks import next_positions
from transformer_lib.models.encoder_decoder import Decoder, EncoderDecoder
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.models.padding import prompt_rows, real_positions

LanguageModel = CausalLM | Seq2SeqLM

_SINGLE_TOKEN = fast_path("single_token")


class DecodingStep:
    """The tokens so far in, the scores of the next one out; with a cache only new ones are read.

    For use under ``torch.no_grad``. One object serves one batch. Tokens are read in evaluation
    mode; a model in training is left as it is, or put back after each call: see
    :func:`~transformer_lib.core.eval_mode.evaluating`. Only the last position is scored, so the
    parts of the model are called, not its ``forward``. A model with hooks is called as a whole (a
    ``Seq2SeqLM`` then without a cache), and so is a ``CausalLM`` with its own ``forward``.

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
            first tokens of the prompt. If it holds all of them, the last one is read again.
        prefill_chunk: how many tokens of the prompt are read at once, so that a long one needs less
            memory; all of them if left out.
        prefix: what :func:`read_prefix` made of the tokens with which every row begins.
        weights_stay: whether no weight changes between the calls, so that copies may be made.

    Raises:
        RuntimeError: in a call, if a model in training is used by another thread, too.
        TypeError: if the model is of another kind or a ``Seq2SeqLM`` with its own ``forward``, ids
            are not whole numbers, or the prompt's mask is not boolean.
        ValueError: if something does not fit together, or there is no room for so many tokens.

    Example:
        >>> import torch
        >>> from transformer_lib import TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config).eval()
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
        prefill_chunk: int | None = None,
        prefix: SharedPrefix | None = None,
        weights_stay: bool = False,
    ) -> None:
        _check_kind(model, source)
        if prefill_chunk is not None:
            check_whole("prefill_chunk", prefill_chunk)
            if not use_cache:
                raise ValueError(f"{prefill_chunk=} needs a cache: leave out use_cache=False")
        self.prefill_chunk = prefill_chunk
        check_ids("prompt", prompt, model.config.vocab_size)
        sizes = {"1": 1, "B": prompt.shape[0], "T": prompt.shape[1]}
        max_len = _checked_max_len(model, sizes["T"], max_new_tokens, cache)
        self._given, self._twin, self._weights_stay = model, Twin(model), weights_stay
        self.use(model)
        self._source, self._has_callers_cache = source, cache is not None
        if prefix is not None:
            if not use_cache:
                raise ValueError("prefix needs a cache: leave out use_cache=False")
            cache = prefix.cache_for(model, prompt, prompt_mask, n_places=max_len, cache=cache)
        if use_cache and cache is None:
            cache = KeyValueCache(model.config.n_layers, max_len)
        self.cache = cache
        self.memory, self.memory_mask = self._encode(source, source_mask, sizes)
        self.real = self.positions = None
        if prompt_mask is not None:
            n_places = max_len if cache is None else cache.max_len
            self.real, self.positions = _real_places(prompt_mask, sizes, n_places)

    def _encode(
        self, source: Tensor | None, source_mask: Tensor | None, sizes: dict[str, int]
    ) -> tuple[Float[Tensor, "B S D"] | None, Bool[Tensor, "B 1 1 S"] | None]:
        """Encode the source; return the memory, and what hides its padding."""
        if source is None or not isinstance(self.model, Seq2SeqLM):
            return None, None
        expect_shape("source", source, "B S", sizes)
        if source_mask is not None:
            expect_shape("source_mask", source_mask, "B 1 1 S", sizes)
            source_mask = source_mask.clone()  # recorded steps will write to it
        with self.in_evaluation():
            assert isinstance(self.model, Seq2SeqLM), "a twin is of the same class"
            return self.model.body.encoder(source, source_mask), source_mask

    def __call__(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Return the scores ``(B, V)`` of the token after ``ids``, ``(B, T)``, all of them."""
        with self.in_evaluation():
            if isinstance(self.model, Seq2SeqLM) and not self._shortcuts.may_bypass_model():
                return self._call_seq2seq(ids)
            start, n_keys = 0, ids.shape[1]
            if self.cache is not None:
                start = self.cache.length
                if start == ids.shape[1]:  # the caller's cache holds all of the prompt
                    start -= 1
                    self.cache.rewind(start)
                start = self._read_chunks(ids, start)
                n_keys = self.cache.n_keys(ids.shape[1] - start)
            return self.read(ids[:, start:], n_keys, lean=True)

    def _read_chunks(self, ids: Int[Tensor, "B T"], start: int) -> int:
        """Read all but the last chunk of new tokens; return where that begins."""
        chunk = self.prefill_chunk
        while self.cache is not None and chunk is not None and ids.shape[1] - start > chunk:
            self.read(ids[:, start : start + chunk], self.cache.n_keys(chunk))
            start += chunk
        return start

    def _call_seq2seq(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Call a ``Seq2SeqLM`` as a whole: its ``forward`` takes no cache, and no positions."""
        if self.real is not None or self._has_callers_cache:
            why = "it has hooks or a forward of its own, and takes neither as a whole"
            raise TypeError(f"model with a prompt_mask or a cache: {why}")
        logits: Tensor = self.model(self._source, ids, self.memory_mask)
        return logits[:, -1]

    @contextmanager
    def in_evaluation(self) -> Iterator[None]:
        """Read in evaluation mode until the block ends: with the model, or a twin of it."""
        with evaluating(self._given, self._twin) as model:
            if model is not self.model:
                self.use(model)
            yield

    def read(
        self, new: Int[Tensor, "B T"], n_keys: int, *, lean: bool = False
    ) -> Float[Tensor, "B V"]:
        """Return the scores of the token after ``new``, ``(B, T)``, which the cache has not seen.

        The model stays in the mode it is in.

        Args:
            new: the tokens that come next.
            n_keys: how many places attention sees: those before, the new ones, and in a static
                cache some that are not in use.
            lean: whether to take the single-token path where the output is the same.

        Returns:
            Logits of the last position, ``(B, V)``.
        """
        mask = positions = None
        if self.real is not None and self.positions is not None:
            mask = self.real[:, None, None, :n_keys]
            positions = self.positions[:, next_positions(new, self.cache)[0]]
        if isinstance(self.model, CausalLM) and not self._shortcuts.may_bypass_model():
            logits: Tensor = self.model(new, mask, positions=positions, cache=self.cache)
            return logits[:, -1]
        decoder = self.decoder
        fast = self._shortcuts.single_token_path(decoder, new, self.cache) if lean else None
        if fast is not None and self.cache is not None:
            x = fast(new, self.cache, mask, positions)
        else:
            x = decoder(
                new, self.memory, mask, self.memory_mask, positions=positions, cache=self.cache
            )
        if not self._shortcuts.may_score_last_only():
            scores: Tensor = self.model.output(x)
            return scores[:, -1]
        last: Tensor = self.model.output(x[:, -1])
        return last

    @property
    def decoder(self) -> Decoder:
        """The decoder that the model has now."""
        return self.model.decoder if isinstance(self.model, CausalLM) else self.model.body.decoder

    def use(self, model: LanguageModel) -> None:
        """Go on with this model, which has the same configuration and weights as the last."""
        self.model, self._shortcuts = model, _Shortcuts(model, self._weights_stay)

    def select(self, rows: Int[Tensor, " B"]) -> None:
        """Go on with these rows of the batch, in this order; the encoder's memory is not moved."""
        if self.cache is not None:
            self.cache.select(rows)


class _Shortcuts:
    """What a step may leave out or do faster with the same output; asked for every token.

    Parts are looked up on the model each time: one may be exchanged between two tokens.
    """

    def __init__(self, model: LanguageModel, weights_stay: bool) -> None:
        self._model, self._weights_stay = model, weights_stay
        self._outer: Fingerprint | None = None  # of the model and its body
        self._output: Fingerprint | None = None  # of the output layer
        self._fast_step: FastStep | None = None
        self._decoder: Decoder | None = None  # the one that the fast step is for

    def may_bypass_model(self) -> bool:
        """Whether to call the parts of the model does what its ``forward`` does."""
        if torch.compiler.is_compiling():  # this was asked before
            return True
        if self._outer is None or not self._outer.holds():
            self._outer = Fingerprint(_outer_parts(self._model), to_compare=True)
        return self._outer.is_untouched and _has_library_forward(self._model)

    def may_score_last_only(self) -> bool:
        """Whether the output layer may be given the last position alone."""
        if torch.compiler.is_compiling():
            return True
        if self._output is None or not self._output.holds():
            self._output = Fingerprint(self._model.output.modules(), to_compare=True)
        return self._output.is_plain

    def single_token_path(
        self, decoder: Decoder, new: Int[Tensor, "B T"], cache: KeyValueCache | None
    ) -> FastStep | None:
        """The faster forward pass of a decoder, if it can read the new tokens."""
        if _SINGLE_TOKEN is None or cache is None or new.shape[1] != 1:
            return None
        if self._fast_step is None or self._decoder is not decoder:
            lean = _SINGLE_TOKEN.LeanDecoder(decoder, weights_stay=self._weights_stay)
            self._fast_step, self._decoder = lean, decoder
        return self._fast_step if self._fast_step.can_read(new, cache) else None


@torch.no_grad()
def read_prefix(
    model: CausalLM, ids: Int[Tensor, "1 T"], *, prefill_chunk: int | None = None
) -> SharedPrefix:
    """Read a text with which many prompts begin.

    Each prompt still holds the whole text, and what follows. Only the reading is saved. If weights
    change, the text must be read again.

    Args:
        model: a ``CausalLM``. The keys of a ``Seq2SeqLM`` depend on its source too.
        ids: the text, ``(1, T)``.
        prefill_chunk: how many tokens are read at once, so that a long text needs less memory.

    Returns:
        What ``generate``, ``stream`` and ``beam_search`` take as ``prefix``.

    Raises:
        TypeError: if the model is of another kind, or the ids are not whole numbers.
        ValueError: if there is more than one row, or more than fits into the model; for RoPE scaled
            by the length of the text ("ntk"), with which keys depend on what comes later.

    Example:
        >>> from transformer_lib import TransformerConfig, generate
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config)
        >>> prompts = torch.tensor([[5, 7, 9, 1], [5, 7, 9, 2]])
        >>> prefix = read_prefix(model, torch.tensor([[5, 7, 9]]))
        >>> ids = generate(model, prompts, prefix=prefix, max_new_tokens=4)
        >>> torch.equal(ids, generate(model, prompts, max_new_tokens=4))
        True
    """
    if not isinstance(model, CausalLM):
        kind = type(model).__name__
        raise TypeError(f"model has type {kind}; expected a CausalLM, which reads ids alone")
    check_ids("ids", ids, model.config.vocab_size)
    if len(ids) != 1:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; expected one row, (1, T)")
    scaling = model.config.rope_scaling
    if scaling is not None and scaling.kind == "ntk":
        why = "keys depend on the length of the whole text, and cannot be kept for another"
        raise ValueError(f"rope_scaling has kind='ntk': {why}")
    step = DecodingStep(model, ids, 1, prefill_chunk=prefill_chunk)
    step(ids)
    assert step.cache is not None, "a step has one unless it was told otherwise"
    return SharedPrefix(model, ids, step.cache)


def _check_kind(model: nn.Module, source: Tensor | None) -> None:
    """Refuse other models, and a ``Seq2SeqLM`` whose own ``forward`` would be bypassed."""
    kind = type(model).__name__
    if not isinstance(model, LanguageModel) or isinstance(model, CausalLM) != (source is None):
        raise TypeError(f"model is a {kind}; expected a CausalLM, or a Seq2SeqLM with a source")
    own = not _has_library_forward(model) or any("forward" in vars(x) for x in _outer_parts(model))
    if own and isinstance(model, Seq2SeqLM):
        why = "would not be called, only its encoder, decoder and output are"
        raise TypeError(f"model is a {kind}, whose own forward {why}")


def _checked_max_len(
    model: LanguageModel, n_prompt: int, max_new_tokens: int, cache: KeyValueCache | None
) -> int:
    """Return how many tokens will be read at most; raise an error if there is no room for them."""
    check_whole("max_new_tokens", max_new_tokens)
    max_len = n_prompt + max_new_tokens - 1  # the last token is not read
    limit = model.config.max_len if cache is None else min(model.config.max_len, cache.max_len)
    if max_len > limit:
        room = f"there is room for max_len={limit}, not counting the last token"
        raise ValueError(f"{max_new_tokens=} after a prompt of {n_prompt} tokens: {room}")
    if cache is not None and cache.length > n_prompt:
        more = f"more than a prompt of {n_prompt} tokens: begin the prompt with all of them"
        raise ValueError(f"cache holds {cache.length} tokens, {more}, or rewind it")
    return max_len


def _real_places(
    prompt_mask: Bool[Tensor, "..."], sizes: dict[str, int], n_places: int
) -> tuple[Bool[Tensor, "B n_places"], Int[Tensor, "B n_places"]]:
    """Where real tokens stand, and all positions: padding on the left is not counted."""
    rows = prompt_rows(prompt_mask, sizes)
    real = F.pad(rows, (0, n_places - sizes["T"]), value=True)  # (B, n_places)
    return real, real_positions(real)


def _outer_parts(model: LanguageModel) -> list[nn.Module]:
    """The modules that are bypassed where parts are called: the model, and a body."""
    return [model] if isinstance(model, CausalLM) else [model, model.body]


def _has_library_forward(model: LanguageModel) -> bool:
    """Whether the class of a model, and that of a body, has the forward pass of this library."""
    if isinstance(model, CausalLM):
        return type(model).forward is CausalLM.forward
    return (
        type(model).forward is Seq2SeqLM.forward
        and type(model.body).forward is EncoderDecoder.forward
    )
