"""Generation: one token after another.

Three parts: ``DecodingStep`` asks the model for the scores of the next token (it feeds the prompt
first, then only what its cache has not seen), ``draw_token`` picks one, and a loop repeats that.
:func:`stream` yields the tokens of the loop, :func:`generate` collects them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Int
from torch import Tensor

from transformer_lib.core.fast_path_register import fast_path
from transformer_lib.generation.constrained import AllowedText, AllowedTokens, next_ones
from transformer_lib.generation.decoding_step import DecodingStep, LanguageModel
from transformer_lib.generation.fast_interfaces import FastBatch, FastDecoder
from transformer_lib.generation.sampling import GREEDY, ScoreWatch, draw_token
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.generation.shared_prefix import SharedPrefix
from transformer_lib.generation.stopping import Ending, Stop, end_tokens
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.models.padding import prompt_rows

_CUDA_GRAPH = fast_path("cuda_graph")

AT_ONCE = 512  # tokens that a GPU may choose before Python waits for them, if none is streamed


def generate(
    model: LanguageModel | FastDecoder,
    prompt: Int[Tensor, "B T"],
    *,
    max_new_tokens: int,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    eos_id: int | Sequence[int] | None = None,
    pad_id: int = 0,
    stop: Stop | None = None,
    generator: torch.Generator | None = None,
    prompt_mask: Bool[Tensor, "..."] | None = None,
    source: Int[Tensor, "B S"] | None = None,
    source_mask: Bool[Tensor, "B 1 1 S"] | None = None,
    use_cache: bool = True,
    cache: KeyValueCache | None = None,
    prefill_chunk: int | None = None,
    prefix: SharedPrefix | None = None,
    allowed: AllowedText | None = None,
    on_token: Callable[[Tensor], object] | None = None,
) -> Int[Tensor, "B L"]:
    """Let a language model go on from a prompt, or write what it reads in a source.

    Args:
        model: a ``CausalLM``, ``Seq2SeqLM`` or ``CompiledDecoder``.
        prompt: what to go on from, ``(B, T)``; the start token for a ``Seq2SeqLM``.
        max_new_tokens: how many tokens each row gets at most.
        temperature: what the logits are divided by before a token is drawn; 0 takes the best token
            always. Left out, it is 0, or 1 if ``top_k``, ``top_p`` or ``min_p`` asks for a draw.
        top_k: how many of the best tokens are left to draw from; ``None``: all.
        top_p: draw from the fewest best tokens whose probabilities add up to at least this.
        min_p: leave out tokens less probable than this share of the best one's probability.
        repetition_penalty: what the logits of tokens that were there before are divided by, or
            multiplied by where they are negative.
        eos_id: the token after which a row has ended, or several of them.
        pad_id: fills rows that have ended.
        stop: sequences of ids after any of which a row has ended; or a function that gets the new
            tokens so far, ``(B, n)``, and says which rows have ended, ``(B,)`` boolean.
        generator: the source of random numbers, if tokens are drawn; PyTorch's own if left out.
        prompt_mask: where the prompt has real tokens, ``(B, T)`` or ``(B, 1, 1, T)``; padding
            stands on the left.
        source: what a ``Seq2SeqLM`` reads, ``(B, S)``.
        source_mask: what hides padding in the source, ``(B, 1, 1, S)``.
        use_cache: whether to keep keys and values, or to compute them anew in each step.
        cache: a cache to use instead of one of its own; what it holds already is taken for the
            first tokens of the prompt. If it holds all of them, the last one is read again.
        prefill_chunk: how many tokens of the prompt are read at once, so that a long one needs less
            memory; all of them if left out.
        prefix: what :func:`~transformer_lib.generation.decoding_step.read_prefix` made of tokens
            with which every row begins: they are not read again.
        allowed: what may be written: ``OneOf([...], tokenizer)`` or ``Pattern(r"...", tokenizer)``.
            It needs ``eos_id``, the token that says that a text is complete.
        on_token: called with the newest token of each row, ``(B,)``, after each step.

    Returns:
        The prompt and what follows, ``(B, L)``: as many new tokens as the longest row has. Rows
        that ended before are filled with ``pad_id``.

    Raises:
        FloatingPointError: if scores become NaN or infinite.
        RuntimeError: if a model in training, with hooks or parts of its own, is used by another
            thread, too; one in evaluation mode may be used by any number of threads.
        TypeError: if the model or a tensor is of the wrong kind.
        ValueError: if something is out of range or does not fit together.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config)
        >>> ids = generate(
        ...     model, torch.tensor([[5, 7], [8, 9]]), max_new_tokens=4
        ... )
        >>> ids.shape, ids[:, :2].tolist()
        (torch.Size([2, 6]), [[5, 7], [8, 9]])
    """
    decoding = _prepare(
        model, prompt, max_new_tokens,
        _sampling(temperature, top_k, top_p, min_p, repetition_penalty), generator,
        eos_id, pad_id, stop, prompt_mask, source, source_mask, use_cache, cache, prefill_chunk,
        prefix, allowed, weights_stay=on_token is None and not callable(stop),
    )  # fmt: skip
    batch = decoding.greedy_batch
    if batch is not None and on_token is None:
        return torch.cat((prompt, decoding.all_greedy_tokens(batch)), dim=1)
    ids = [prompt]
    for newest in decoding.tokens():
        ids.append(newest[:, None])
        if on_token is not None:
            on_token(newest)
    return torch.cat(ids, dim=1)


def stream(
    model: LanguageModel | FastDecoder,
    prompt: Int[Tensor, "B T"],
    *,
    max_new_tokens: int,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    eos_id: int | Sequence[int] | None = None,
    pad_id: int = 0,
    stop: Stop | None = None,
    generator: torch.Generator | None = None,
    prompt_mask: Bool[Tensor, "..."] | None = None,
    source: Int[Tensor, "B S"] | None = None,
    source_mask: Bool[Tensor, "B 1 1 S"] | None = None,
    use_cache: bool = True,
    cache: KeyValueCache | None = None,
    prefill_chunk: int | None = None,
    prefix: SharedPrefix | None = None,
    allowed: AllowedText | None = None,
) -> Iterator[Int[Tensor, " B"]]:
    """Yield the tokens of :func:`generate` as they come, until all rows have ended.

    Tokens are computed in evaluation mode, and nothing of the model is changed between two of them:
    there may be several streams, and any of them may be thrown away. If weights change meanwhile,
    the next token is made with the new ones; keys and values of earlier tokens stay as they were.

    Args:
        model: as for :func:`generate`, and so are all others.
        prompt: what to go on from, ``(B, T)``.
        max_new_tokens: how many tokens each row gets at most.
        temperature: what the logits are divided by; 0 takes the best token always.
        top_k: draw from so many of the best tokens.
        top_p: draw from the best tokens that have this probability together.
        min_p: leave out tokens below this share of the best one's probability.
        repetition_penalty: what lowers the logits of tokens that were there before.
        eos_id: the token after which a row has ended, or several of them.
        pad_id: fills rows that have ended.
        stop: sequences, or a function, that end a row.
        generator: the source of random numbers.
        prompt_mask: where the prompt has real tokens; padding stands on the left.
        source: what a ``Seq2SeqLM`` reads, ``(B, S)``.
        source_mask: what hides padding in the source.
        use_cache: whether to keep keys and values.
        cache: a cache to use instead of one of its own.
        prefill_chunk: how many tokens of the prompt are read at once.
        prefix: what was made of the tokens with which every row begins.
        allowed: what may be written.

    Returns:
        An iterator over the newest token of each row, ``(B,)``.

    Raises:
        FloatingPointError: if scores become NaN or infinite. On a GPU they are looked at every 16
            tokens, so that it need not wait.
        RuntimeError: as in :func:`generate`.
        TypeError: if the model or a tensor is of the wrong kind.
        ValueError: if something is out of range or does not fit together.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config)
        >>> [
        ...     t.shape
        ...     for t in stream(
        ...         model, torch.tensor([[5], [7]]), max_new_tokens=2
        ...     )
        ... ]
        [torch.Size([2]), torch.Size([2])]
    """
    return _prepare(
        model, prompt, max_new_tokens,
        _sampling(temperature, top_k, top_p, min_p, repetition_penalty), generator,
        eos_id, pad_id, stop, prompt_mask, source, source_mask, use_cache, cache, prefill_chunk,
        prefix, allowed, weights_stay=False,
    ).tokens()  # fmt: skip


@dataclass(frozen=True)
class _Decoding:
    """A batch that is ready to be decoded: what :func:`generate` and :func:`stream` start from."""

    step: DecodingStep | FastBatch
    prompt: Int[Tensor, "B T"]
    max_new_tokens: int
    sampling: Sampling
    ending: Ending
    seen: Bool[Tensor, "B V"] | None  # tokens that the repetition penalty applies to
    generator: torch.Generator | None
    allowed: AllowedTokens | None

    @property
    def greedy_batch(self) -> FastBatch | None:
        """The batch if it can choose the tokens itself: the best ones, and nothing ends a row."""
        is_plain = self.sampling == GREEDY and not self.ending.may_come
        return self.step if is_plain and isinstance(self.step, FastBatch) else None

    def tokens(self) -> Iterator[Int[Tensor, " B"]]:
        """Yield the next token of each row, until all have ended."""
        batch = self.greedy_batch
        return self._loop() if batch is None else self._greedy_tokens(batch)

    def _loop(self) -> Iterator[Int[Tensor, " B"]]:
        """Ask for scores, choose a token and add it, until all rows have ended."""
        step, sampling, seen, allowed = self.step, self.sampling, self.seen, self.allowed
        ending, may_end, pad_id = self.ending, self.ending.may_come, self.ending.pad_id
        n_prompt, watch = self.prompt.shape[1], ScoreWatch()  # for NaN
        ids = F.pad(self.prompt, (0, self.max_new_tokens), value=pad_id)  # (B, L)
        running = torch.ones_like(ids[:, 0], dtype=torch.bool)
        for n in range(n_prompt, ids.shape[1]):
            with torch.no_grad():  # not across the yield, where the caller's own code runs
                logits = step(ids[:, :n])  # reads only what its cache has not seen
                if allowed is not None:
                    logits = allowed.mask(logits)
                watch.look(logits, running if may_end else None)
                tokens = draw_token(logits, sampling, seen, self.generator)
            tokens = tokens.where(running, pad_id) if may_end else tokens
            ids[:, n] = tokens
            if allowed is not None:
                allowed.push(tokens)
            if seen is not None:
                seen.scatter_(1, tokens[:, None], True)
            if n + 1 == ids.shape[1]:
                watch.check()
            yield tokens
            if may_end:  # else a GPU need not be waited for
                running &= ~ending.reached(ids[:, n_prompt : n + 1])
                if not running.any():
                    watch.check()
                    return

    def _greedy_tokens(self, batch: FastBatch) -> Iterator[Int[Tensor, " B"]]:
        """Let the batch choose the tokens one by one: the model may change between two."""
        watch, end = ScoreWatch(), self.prompt.shape[1] + self.max_new_tokens
        for n in range(self.prompt.shape[1], end):
            with torch.no_grad():
                best, chosen = batch.read_best(self.prompt, n, 1)
            watch.note(best[0])
            if n + 1 == end:
                watch.check()
            yield chosen[0]

    @torch.no_grad()
    def all_greedy_tokens(self, batch: FastBatch) -> Int[Tensor, "B n"]:
        """Let the batch choose many tokens at a time: nothing else runs between them."""
        watch, found = ScoreWatch(), []
        end = self.prompt.shape[1] + self.max_new_tokens
        for first in range(self.prompt.shape[1], end, AT_ONCE):
            best, chosen = batch.read_best(self.prompt, first, min(AT_ONCE, end - first))
            watch.check(best)
            found.append(chosen)
        return torch.cat(found).T


def _prepare(
    model: LanguageModel | FastDecoder,
    prompt: Int[Tensor, "B T"],
    max_new_tokens: int,
    sampling: Sampling,
    generator: torch.Generator | None,
    eos_id: int | Sequence[int] | None,
    pad_id: int,
    stop: Stop | None,
    prompt_mask: Bool[Tensor, "..."] | None,
    source: Int[Tensor, "B S"] | None,
    source_mask: Bool[Tensor, "B 1 1 S"] | None,
    use_cache: bool,
    cache: KeyValueCache | None,
    prefill_chunk: int | None,
    prefix: SharedPrefix | None,
    allowed: AllowedText | None,
    *,
    weights_stay: bool,
) -> _Decoding:
    """Check all arguments, and make what the tokens come from.

    Weights stay as they are if none of the caller's code runs between two tokens.
    """
    ending = Ending(end_tokens(eos_id, pad_id, prompt, model.config.vocab_size), stop, pad_id)
    step = _make_step(
        model, prompt, max_new_tokens, prompt_mask, source, source_mask, use_cache, cache,
        prefill_chunk, prefix, weights_stay,
    )  # fmt: skip
    seen = None
    may_come = next_ones(allowed, len(prompt), ending.tokens, model.config.vocab_size)
    if sampling.repetition_penalty != 1:
        seen = _seen(prompt, prompt_mask, model.config.vocab_size)
    return _Decoding(step, prompt, max_new_tokens, sampling, ending, seen, generator, may_come)


def _make_step(
    model: LanguageModel | FastDecoder,
    prompt: Int[Tensor, "B T"],
    max_new_tokens: int,
    prompt_mask: Bool[Tensor, "..."] | None,
    source: Int[Tensor, "B S"] | None,
    source_mask: Bool[Tensor, "B 1 1 S"] | None,
    use_cache: bool,
    cache: KeyValueCache | None,
    prefill_chunk: int | None,
    prefix: SharedPrefix | None,
    weights_stay: bool,
) -> DecodingStep | FastBatch:
    """What turns all tokens so far, ``(B, T)``, into scores of the next, ``(B, V)``."""
    with torch.no_grad():  # an encoder reads the source now
        if isinstance(model, FastDecoder):
            if cache is not None or not use_cache:
                why = f"a {type(model).__name__} has a cache of its own"
                raise TypeError(f"{why}: leave out cache= and use_cache=")
            return model.begin(
                prompt, max_new_tokens, prompt_mask=prompt_mask,
                source=source, source_mask=source_mask, prefill_chunk=prefill_chunk,
                prefix=prefix,
            )  # fmt: skip
        step = DecodingStep(
            model, prompt, max_new_tokens, prompt_mask=prompt_mask,
            source=source, source_mask=source_mask, use_cache=use_cache, cache=cache,
            prefill_chunk=prefill_chunk, prefix=prefix, weights_stay=weights_stay,
        )  # fmt: skip
        if _CUDA_GRAPH is None or cache is not None or step.cache is None:
            return step
        if not _CUDA_GRAPH.can_record(model, prompt, max_new_tokens):
            return step
        recorded: FastBatch = _CUDA_GRAPH.record(model, step, prompt.device)
        return recorded


def _sampling(
    temperature: float | None,
    top_k: int | None,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
) -> Sampling:
    """The options as one; without a temperature greedy, unless one other than the penalty draws."""
    sampling = Sampling(
        temperature=1.0 if temperature is None else temperature, top_k=top_k, top_p=top_p,
        min_p=min_p, repetition_penalty=repetition_penalty,
    )  # fmt: skip
    draws = sampling != Sampling(repetition_penalty=repetition_penalty)
    return sampling if draws or temperature is not None else replace(sampling, temperature=0.0)


def _seen(
    prompt: Int[Tensor, "B T"], prompt_mask: Bool[Tensor, "..."] | None, vocab_size: int
) -> Bool[Tensor, "B V"]:
    """Which tokens each row has, once or more; padding is not one of them."""
    real = torch.ones_like(prompt)  # (B, T)
    if prompt_mask is not None:
        real = prompt_rows(prompt_mask, {"B": len(prompt), "T": prompt.shape[1]}).long()
    return prompt.new_zeros(len(prompt), vocab_size).scatter_add(1, prompt, real) > 0
