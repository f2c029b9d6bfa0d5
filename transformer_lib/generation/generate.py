"""Generation: one token after another.

Three parts that know little of each other: ``DecodingStep`` asks the model for the scores of
the next token (it feeds the prompt first, then only what its cache has not seen), ``draw_token``
picks one, and a loop goes round until the end. :func:`stream` checks its arguments and starts the
loop, :func:`generate` collects what it yields.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_lib.core.fast_path_register import fast_path
from transformer_lib.generation.decoding_step import DecodingStep, LanguageModel, prompt_rows
from transformer_lib.generation.fast_interfaces import FastBatch, FastDecoder
from transformer_lib.generation.sampling import ScoreWatch, draw_token
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.generation.stopping import Ending, Stop, end_tokens
from transformer_lib.layers.kv_cache import KeyValueCache

_CUDA_GRAPH = fast_path("cuda_graph")

AT_ONCE = 512  # tokens that a GPU is asked for before it is waited for, where nobody looks on


def _token_loop(
    step: Callable[[Tensor], Tensor],
    prompt: Int[Tensor, "B T"],
    max_new_tokens: int,
    sampling: Sampling,
    ending: Ending,
    seen: Bool[Tensor, "B V"] | None,
    generator: torch.Generator | None,
) -> Iterator[Int[Tensor, " B"]]:
    """Ask for scores, choose a token and add it, until all rows have ended."""
    n_prompt, watch = prompt.shape[1], ScoreWatch()  # for NaN
    ids = F.pad(prompt, (0, max_new_tokens), value=ending.pad_id)  # (B, L)
    running = torch.ones_like(prompt[:, 0], dtype=torch.bool)
    for n in range(n_prompt, ids.shape[1]):
        with torch.no_grad():  # not across the yield, where the caller's own code runs
            logits = step(ids[:, :n])  # reads only what its cache has not seen
            watch.look(logits, running if ending.may_come else None)
            tokens = draw_token(logits, sampling, seen, generator)
        tokens = tokens.where(running, ending.pad_id) if ending.may_come else tokens
        ids[:, n] = tokens
        if seen is not None:
            seen.scatter_(1, tokens[:, None], True)
        if n + 1 == ids.shape[1]:
            watch.check()
        yield tokens
        if ending.may_come:  # else nobody waits for the GPU here
            running &= ~ending.reached(ids[:, n_prompt : n + 1])
            if not running.any():
                watch.check()
                return


class _BestTokens(Iterator[Tensor]):
    """The best token of each row of a batch, one after the other, or all that are left at once.

    Args:
        batch: where nothing ends a row.
        prompt: what it starts with.
        n_new: how many tokens follow.
    """

    def __init__(self, batch: FastBatch, prompt: Int[Tensor, "B T"], n_new: int) -> None:
        self._batch, self._prompt, self._watch = batch, prompt, ScoreWatch()  # for NaN
        self._next, self._end = prompt.shape[1], prompt.shape[1] + n_new

    def __next__(self) -> Int[Tensor, " B"]:
        """Return the next token of each row; the model is looked at first."""
        if self._next == self._end:
            raise StopIteration
        best, chosen = self._take(1)
        self._watch.note(best[0])
        if self._next == self._end:
            self._watch.check()
        return chosen[0]

    def rest(self) -> Int[Tensor, "B n"]:
        """Return all that are left; nobody can change the model meanwhile."""
        found = [self._prompt.new_zeros(0, len(self._prompt))]
        while self._next < self._end:
            best, chosen = self._take(min(AT_ONCE, self._end - self._next))
            self._watch.check(best)
            found.append(chosen)
        return torch.cat(found).T

    @torch.no_grad()
    def _take(self, n: int) -> tuple[Float[Tensor, "n B"], Int[Tensor, "n B"]]:
        """Choose so many tokens; return their scores, and copies of them."""
        found = self._batch.read_best(self._prompt, self._next, n)
        self._next += n
        return found


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
    tokens = stream(
        model, prompt, max_new_tokens=max_new_tokens,
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, generator=generator,
        eos_id=eos_id, pad_id=pad_id, stop=stop,
        prompt_mask=prompt_mask, source=source, source_mask=source_mask,
        use_cache=use_cache, cache=cache,
    )  # fmt: skip
    if isinstance(tokens, _BestTokens) and on_token is None:  # so nobody looks on
        return torch.cat((prompt, tokens.rest()), dim=1)
    ids = [prompt]
    for newest in tokens:
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
) -> Iterator[Int[Tensor, " B"]]:
    """Yield the tokens of :func:`generate` as they come, until all rows have ended.

    Tokens are computed in evaluation mode, and nothing of the model is changed between two of them:
    there may be several streams, and any of them may be thrown away. If weights change meanwhile,
    the next token is made with the new ones; keys and values of earlier tokens stay as they were.

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

    Returns:
        An iterator over the newest token of each row, ``(B,)``.

    Raises:
        FloatingPointError: if scores become NaN or infinite. On a GPU they are looked at every 16
            tokens, so that it need not wait.
        RuntimeError: if a model in training, with hooks or parts of its own, is used by another
            thread, too; one in evaluation mode may be used by any number of threads.
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
    sampling = Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    if temperature is None:
        sampling = _greedy_unless_it_draws(sampling)
    ending = Ending(end_tokens(eos_id, pad_id, prompt, model.config.vocab_size), stop, pad_id)
    step = _make_step(
        model, prompt, max_new_tokens, prompt_mask, source, source_mask, use_cache, cache
    )
    seen = None
    if sampling.repetition_penalty != 1:
        seen = _seen(prompt, prompt_mask, model.config.vocab_size)
    if (
        isinstance(step, FastBatch)
        and sampling == Sampling(temperature=0.0)
        and not ending.may_come
    ):
        return _BestTokens(step, prompt, max_new_tokens)
    return _token_loop(step, prompt, max_new_tokens, sampling, ending, seen, generator)


def _make_step(
    model: LanguageModel | FastDecoder,
    prompt: Int[Tensor, "B T"],
    max_new_tokens: int,
    prompt_mask: Bool[Tensor, "..."] | None,
    source: Int[Tensor, "B S"] | None,
    source_mask: Bool[Tensor, "B 1 1 S"] | None,
    use_cache: bool,
    cache: KeyValueCache | None,
) -> Callable[[Tensor], Tensor]:
    """What turns all tokens so far, ``(B, T)``, into scores of the next, ``(B, V)``."""
    with torch.no_grad():  # an encoder reads the source now
        if isinstance(model, FastDecoder):
            if cache is not None or not use_cache:
                why = f"a {type(model).__name__} has a cache of its own"
                raise TypeError(f"{why}: leave out cache= and use_cache=")
            return model.begin(
                prompt, max_new_tokens, prompt_mask=prompt_mask,
                source=source, source_mask=source_mask,
            )  # fmt: skip
        step = DecodingStep(
            model, prompt, max_new_tokens, prompt_mask=prompt_mask,
            source=source, source_mask=source_mask, use_cache=use_cache, cache=cache,
        )  # fmt: skip
        if _CUDA_GRAPH is None or cache is not None or step.cache is None:
            return step
        if not _CUDA_GRAPH.can_record(model, prompt, max_new_tokens):
            return step
        recorded: FastBatch = _CUDA_GRAPH.record(model, step, prompt.device)
        return recorded


def _greedy_unless_it_draws(sampling: Sampling) -> Sampling:
    """Take the best token, unless an option asks for a draw: any does, but for the penalty."""
    draws = sampling != Sampling(repetition_penalty=sampling.repetition_penalty)
    return sampling if draws else replace(sampling, temperature=0.0)


def _seen(
    prompt: Int[Tensor, "B T"], prompt_mask: Bool[Tensor, "..."] | None, vocab_size: int
) -> Bool[Tensor, "B V"]:
    """Which tokens each row has, once or more; padding is not one of them."""
    real = torch.ones_like(prompt)  # (B, T)
    if prompt_mask is not None:
        real = prompt_rows(prompt_mask, {"B": len(prompt), "T": prompt.shape[1]}).long()
    return prompt.new_zeros(len(prompt), vocab_size).scatter_add(1, prompt, real) > 0
