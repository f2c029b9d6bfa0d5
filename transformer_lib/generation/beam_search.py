"""Beam search: several answers at once, and the best one."""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_lib.core.checks import check_number, check_whole
from transformer_lib.generation.constrained import AllowedText, AllowedTokens, next_ones
from transformer_lib.generation.decoding_step import DecodingStep, LanguageModel
from transformer_lib.generation.sampling import ScoreWatch, at_least_float32
from transformer_lib.generation.shared_prefix import SharedPrefix
from transformer_lib.generation.stopping import end_tokens
from transformer_lib.layers.caches.kv_cache import KeyValueCache

_Length = TypeVar("_Length", float, Tensor)


def beam_search(
    model: LanguageModel,
    prompt: Int[Tensor, "B T"],
    *,
    n_beams: int,
    max_new_tokens: int,
    length_penalty: float = 0.6,
    eos_id: int | Sequence[int] | None = None,
    pad_id: int = 0,
    prompt_mask: Bool[Tensor, "..."] | None = None,
    source: Int[Tensor, "B S"] | None = None,
    source_mask: Bool[Tensor, "B 1 1 S"] | None = None,
    use_cache: bool = True,
    cache: KeyValueCache | None = None,
    prefix: SharedPrefix | None = None,
    allowed: AllowedText | None = None,
) -> tuple[Int[Tensor, "B N L"], Float[Tensor, "B N"]]:
    """Look for the most probable continuations, following ``n_beams`` of them at a time.

    The ``n_beams`` most probable hypotheses stay in each step, those that ended among them: they
    can only rise, since the others lose probability with every token. So one beam is greedy
    decoding, and enough beams find the best answer there is. Lengths are weighed at the end.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``.
        prompt: what to go on from, ``(B, T)``; the start token for a ``Seq2SeqLM``.
        n_beams: N, how many hypotheses are followed and returned.
        max_new_tokens: after so many tokens every hypothesis ends as it is.
        length_penalty: the exponent α of Wu et al. (2016); 0 favours short answers. The paper of
            2017 used 0.6 and 4 beams.
        eos_id: the token that ends a hypothesis, or several of them.
        pad_id: fills what has ended.
        prompt_mask: where the prompt has real tokens, ``(B, T)`` or ``(B, 1, 1, T)``; padding
            stands on the left.
        source: what a ``Seq2SeqLM`` reads, ``(B, S)``.
        source_mask: what hides padding in the source, ``(B, 1, 1, S)``.
        use_cache: whether to keep keys and values, or to compute them anew in each step.
        cache: a cache for ``B * N`` rows to use instead of one of its own.
        prefix: what :func:`~transformer_lib.generation.decoding_step.read_prefix` made of tokens
            with which every row begins.
        allowed: what may be written: ``OneOf([...], tokenizer)`` or ``Pattern(r"...", tokenizer)``.
            It needs ``eos_id``. With enough beams, the first hypothesis is the best of all that are
            allowed. A text may come several times, cut into other tokens.

    Returns:
        The hypotheses with the prompt, ``(B, N, L)``, best first, and their scores ``(B, N)``: the
        logarithm of the model's probability divided by :func:`length_divisor` of the new tokens,
        the end token included. Minus infinity if there are not that many; the tokens of such a
        hypothesis say nothing.

    Raises:
        FloatingPointError: if scores are not numbers any more.
        RuntimeError: if a model in training, with hooks or parts of its own, is used by another
            thread, too; one in evaluation mode may be used by any number of threads.
        TypeError: if the model or a tensor is of the wrong kind.
        ValueError: if something is out of range or does not fit together.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config)
        >>> ids, scores = beam_search(
        ...     model, torch.tensor([[5, 7]]), n_beams=4, max_new_tokens=3
        ... )
        >>> ids.shape, scores.shape
        (torch.Size([1, 4, 5]), torch.Size([1, 4]))

        Which of two answers does a model think more probable, as a whole?

        >>> from transformer_lib import CharTokenizer, OneOf
        >>> tokenizer = CharTokenizer()
        >>> sizes = {"vocab_size": 259, "d_model": 8, "n_heads": 2}
        >>> ids, _ = beam_search(
        ...     CausalLM(TransformerConfig(**sizes)),
        ...     torch.tensor([tokenizer.encode("Is it? ")]),
        ...     allowed=OneOf(["yes", "no"], tokenizer),
        ...     eos_id=tokenizer.eos_id,
        ...     n_beams=2,
        ...     max_new_tokens=4,
        ...     length_penalty=0,
        ... )
        >>> answers = [tokenizer.decode(row.tolist()) for row in ids[0]]
        >>> sorted(answers)
        ['Is it? no', 'Is it? yes']
    """
    check_whole("n_beams", n_beams)
    check_number("length_penalty", length_penalty, lambda x: x >= 0, "of at least 0")
    with torch.no_grad():
        step = DecodingStep(
            model,
            _repeat(prompt, n_beams),
            max_new_tokens,
            prompt_mask=None if prompt_mask is None else _repeat(prompt_mask, n_beams),
            source=None if source is None else _repeat(source, n_beams),
            source_mask=None if source_mask is None else _repeat(source_mask, n_beams),
            use_cache=use_cache,
            cache=cache,
            prefix=prefix,
        )
        ends = end_tokens(eos_id, pad_id, prompt, model.config.vocab_size)
        may_come = next_ones(allowed, len(prompt) * n_beams, ends, model.config.vocab_size)
        ids, totals = _search(step, prompt, n_beams, max_new_tokens, ends, pad_id, may_come)
    is_end = torch.isin(ids[..., prompt.shape[1] :], ends)  # (B, N, n)
    lengths = (is_end.cumsum(dim=-1) - is_end.int() == 0).sum(dim=-1)  # up to the first end token
    scores = totals / length_divisor(lengths.to(totals), length_penalty)
    scores, order = scores.sort(descending=True)
    return ids.gather(1, order[..., None].expand_as(ids)), scores


def length_divisor(n_tokens: _Length, length_penalty: float) -> _Length:
    """Return what the logarithm of a probability is divided by, so that longer answers may win.

    Args:
        n_tokens: the number of new tokens, or a tensor of such numbers.
        length_penalty: the exponent α of Wu et al. (2016).

    Returns:
        ``((5 + n_tokens) / 6) ** length_penalty``.

    Example:
        >>> length_divisor(13, length_penalty=0.5) == 3**0.5
        True
    """
    divisor: _Length = ((5 + n_tokens) / 6) ** length_penalty
    return divisor


def _search(
    step: DecodingStep,
    prompt: Tensor,
    n: int,
    max_new_tokens: int,
    ends: Tensor,
    pad_id: int,
    allowed: AllowedTokens | None,
) -> tuple[Int[Tensor, "B N L"], Float[Tensor, "B N"]]:
    """Follow N hypotheses of each row; return them and the logarithms of their probabilities."""
    ids = _repeat(prompt, n)  # (B * N, T)
    watch = ScoreWatch(n)
    first_row = n * torch.arange(len(prompt), device=ids.device)[:, None]  # (B, 1)
    # All beams start alike; if more than one counted, they would stay copies of each other.
    totals = torch.where(torch.arange(n, device=ids.device) > 0, -math.inf, 0.0 * first_row)
    for _ in range(max_new_tokens):
        has_ended = torch.isin(ids[:, prompt.shape[1] :], ends).any(dim=1, keepdim=True)  # (B*N, 1)
        has_ended |= totals.view(-1, 1) == -math.inf  # nor can anything come of these
        if len(ends) and has_ended.all():  # only then a GPU has to wait
            break
        logits = step(ids)  # (B * N, V)
        watch.look(logits, ~has_ended[:, 0])
        gains = at_least_float32(logits).log_softmax(dim=-1)  # (B * N, V)
        if allowed is not None:
            gains = allowed.mask(gains)  # now, since texts are compared by what the model thinks
        # What has ended goes on in one way only: with padding, which costs nothing.
        is_padding = torch.arange(gains.shape[-1], device=ids.device) == pad_id
        gains = gains.where(~has_ended, torch.where(is_padding, 0.0, -math.inf))
        candidates = totals.view(-1, 1) + gains  # (B * N, V)
        totals, best = candidates.view(len(prompt), -1).topk(n)  # (B, N)
        rows = (first_row + best // gains.shape[-1]).flatten()  # (B * N,): whom each goes on from
        tokens = (best % gains.shape[-1]).flatten()  # (B * N,)
        ids = torch.cat((ids[rows], tokens[:, None]), dim=1)
        step.select(rows)
        if allowed is not None:
            allowed.select(rows)
            allowed.push(tokens)
    watch.check()
    return ids.unflatten(0, (-1, n)), totals


def _repeat(x: Tensor, n: int) -> Tensor:
    """Each row ``n`` times, one beside the other."""
    return x.repeat_interleave(n, dim=0)
