"""Generation: one token after another.

Three parts that know little of each other: ``DecodingStep`` asks the model for the scores of
the next token, :func:`choose_token` picks one, and :func:`stream` goes round until the end.
:func:`generate` collects what it yields. :func:`beam_search` follows several answers at once.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_lib.checks import check_number, check_whole, expect_shape
from transformer_lib.decoding import (
    CompiledDecoder,
    DecodingStep,
    LanguageModel,
    prompt_rows,
)
from transformer_lib.embeddings import check_ids

Decodes = LanguageModel | CompiledDecoder
Stop = Callable[[Tensor], Tensor] | Sequence[Sequence[int]]

COLD = 1e-6  # below this temperature, logits might overflow where they are divided by it
LOOK_EVERY = 16  # how many tokens a GPU may make before somebody looks at its scores

# What other libraries call it
INSTEAD = {
    "do_sample": "sampling=Sampling() draws, sampling=GREEDY takes the best token",
    "num_beams": "beam_search(..., n_beams=...)",
    "n_beams": "beam_search",
    "attention_mask": "prompt_mask=",
    "mask": "prompt_mask=",
    "eos_token_id": "eos_id=",
    "pad_token_id": "pad_id=",
    "input_ids": "prompt",
    "max_length": "max_new_tokens=",
    "max_tokens": "max_new_tokens=",
    "stop_strings": "stop=",
    "seed": "generator=torch.Generator().manual_seed(...)",
}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn. As it stands, from the model's own distribution.

    Args:
        temperature: what the logits are divided by: less than 1 sharpens the distribution, more
            flattens it; 0 takes the best token always (greedy).
        top_k: how many of the best tokens are left to draw from; ``None``: all. Tokens as good as
            the last of them stay too.
        top_p: draw from the fewest best tokens whose probabilities add up to at least this
            (nucleus sampling); 1: all.
        min_p: leave out tokens less probable than this share of the best one's probability; 0:
            none.
        repetition_penalty: what the logits of tokens that were there before are divided by, or
            multiplied by where they are negative; 1 changes nothing.

    Raises:
        ValueError: if a value is out of range.

    Example:
        >>> Sampling(temperature=0.8, top_k=40).top_p
        1.0
        >>> Sampling(top_p=0)
        Traceback (most recent call last):
        ValueError: top_p=0 must be a number greater than 0 and at most 1
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, lambda x: x >= 0, "of at least 0")
        if self.top_k is not None:
            check_whole("top_k", self.top_k)
        check_number("top_p", self.top_p, lambda x: 0 < x <= 1, "greater than 0 and at most 1")
        check_number("min_p", self.min_p, lambda x: 0 <= x <= 1, "from 0 to 1")
        penalty = self.repetition_penalty
        check_number("repetition_penalty", penalty, lambda x: x > 0, "greater than 0")


GREEDY = Sampling(temperature=0.0)


def filter_logits(
    logits: Float[Tensor, "B V"], sampling: Sampling, seen: Bool[Tensor, "B V"] | None = None
) -> Float[Tensor, "B V"]:
    """Change the scores of the next token as the sampling asks for.

    In this order, which is that of ``transformers``: repetition penalty, temperature, top-k,
    top-p, min-p. So top-p and min-p look at probabilities after the temperature, and at those
    of the tokens that are left. One difference: the repetition penalty of ``transformers`` takes
    padding in the prompt for a token that was there before, :func:`generate` does not.

    Args:
        logits: scores of the next token, ``(B, V)``.
        sampling: what to do with them. With temperature 0 only the penalty is applied: the best
            token survives everything that comes after it.
        seen: which tokens came before in each row, ``(B, V)``, for the repetition penalty.

    Returns:
        New logits, ``(B, V)``, minus infinity for tokens that may not be drawn. Below a temperature
        of a millionth they are shifted, so that the best is 0.

    Example:
        >>> logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
        >>> filter_logits(logits, Sampling(temperature=0.5, top_k=2))
        tensor([[6., 4., -inf, -inf]])
    """
    if sampling.temperature > 0:
        logits = _precise(logits)
    if seen is not None:
        penalty = sampling.repetition_penalty
        penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
        logits = torch.where(seen, penalised, logits)
    if sampling.temperature == 0:
        return logits
    if sampling.temperature < COLD:  # the best becomes 0, which changes no probability
        logits = logits - logits.amax(dim=-1, keepdim=True)
    logits = logits / max(sampling.temperature, torch.finfo(logits.dtype).tiny)
    if sampling.top_k is not None:
        kept = logits.topk(min(sampling.top_k, logits.shape[-1])).values
        logits = logits.masked_fill(logits < kept[:, -1:], -math.inf)
    if sampling.top_p < 1:
        probabilities, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
        better = probabilities.cumsum(dim=-1) - probabilities  # what those before it add up to
        drop = (better >= sampling.top_p).gather(-1, order.argsort(dim=-1))  # back in their places
        logits = logits.masked_fill(drop, -math.inf)
    if sampling.min_p > 0:  # p < min_p * p_best, in logarithms
        least = logits.amax(dim=-1, keepdim=True) + math.log(sampling.min_p)
        logits = logits.masked_fill(logits < least, -math.inf)
    return logits


def choose_token(
    logits: Float[Tensor, "B V"],
    sampling: Sampling = GREEDY,
    seen: Bool[Tensor, "B V"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " B"]:
    """Pick the next token of each row: the best one, or one drawn at random.

    Args:
        logits: scores of the next token, ``(B, V)``.
        sampling: how to draw.
        seen: which tokens came before in each row, ``(B, V)``, for the repetition penalty.
        generator: the source of random numbers; PyTorch's own if left out.

    Returns:
        One token for each row, ``(B,)``.

    Raises:
        FloatingPointError: if the best score of a row is not a finite number.

    Example:
        >>> choose_token(torch.tensor([[0.0, 2.0, 1.0]]))
        tensor([1])
    """
    best = logits.amax(dim=-1)
    if not best.isfinite().all():
        row = int((~best.isfinite()).int().argmax())
        raise FloatingPointError(_no_choice(row, float(best[row])))
    return _choose(logits, sampling, seen, generator)


def _choose(
    logits: Tensor, sampling: Sampling, seen: Tensor | None, generator: torch.Generator | None
) -> Int[Tensor, " B"]:
    """Pick tokens without a look at the scores, for which a GPU would have to wait."""
    logits = filter_logits(logits, sampling, seen)
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    # The first of several clocks to ring, each with rate p, is clock i with probability p_i: that
    # is what torch.multinomial does too, but it looks at its input first, and a GPU has to wait.
    probabilities = logits.softmax(dim=-1)
    waiting = torch.empty_like(probabilities).exponential_(generator=generator)
    return (probabilities / waiting).argmax(dim=-1)


def stream(
    model: Decodes,
    prompt: Int[Tensor, "B T"],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    eos_id: int | Sequence[int] | None = None,
    pad_id: int = 0,
    stop: Stop | None = None,
    generator: torch.Generator | None = None,
    **inputs: Any,
) -> Iterator[Int[Tensor, " B"]]:
    """Yield the tokens of :func:`generate` as they come, until all rows have ended.

    Between two tokens nothing is kept on the model: each module is in its own mode, there may be
    several streams, and any of them may be thrown away. If weights change meanwhile, the next token
    is made with the new ones; keys and values of earlier tokens stay as they were.

    Args:
        model: a ``CausalLM``, ``Seq2SeqLM`` or ``CompiledDecoder``.
        prompt: what to go on from, ``(B, T)``; the start token for a ``Seq2SeqLM``.
        max_new_tokens: how many tokens each row gets at most.
        sampling: how to draw; the best token always if left out.
        eos_id: the token after which a row has ended, or several of them.
        pad_id: fills rows that have ended.
        stop: sequences of ids after any of which a row has ended; or a function that gets the new
            tokens so far, ``(B, n)``, and says which rows have ended, ``(B,)`` boolean.
        generator: the source of random numbers; PyTorch's own if left out.
        inputs: those of ``DecodingStep``, such as ``prompt_mask`` or ``source``.

    Returns:
        An iterator over the newest token of each row, ``(B,)``.

    Raises:
        FloatingPointError: if scores are not numbers any more; on a GPU up to 16 tokens later.
        TypeError: if the model or a tensor is of the wrong kind, or an option is not known.
        ValueError: if something is out of range or does not fit together.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> from transformer_lib.models import CausalLM
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2))
        >>> [t.shape for t in stream(model, torch.tensor([[5], [7]]), max_new_tokens=2)]
        [torch.Size([2]), torch.Size([2])]
    """
    _check_options(inputs, stream)
    if not isinstance(sampling, Sampling):
        raise TypeError(f"{sampling=} must be a Sampling, such as Sampling(temperature=0.8)")
    draw = partial(_choose, sampling=sampling, generator=generator)
    seen = sampling.repetition_penalty != 1
    return _stream(model, prompt, max_new_tokens, draw, eos_id, pad_id, stop, inputs, seen)


def _stream(
    model: Decodes,
    prompt: Int[Tensor, "B T"],
    max_new_tokens: int,
    draw: Callable[..., Tensor],
    eos_id: int | Sequence[int] | None,
    pad_id: int,
    stop: Stop | None,
    inputs: dict[str, Any],
    penalised: bool,
) -> Iterator[Int[Tensor, " B"]]:
    begin = model.begin if isinstance(model, CompiledDecoder) else partial(DecodingStep, model)
    with torch.no_grad():  # not where the caller goes on between two tokens
        step = begin(prompt, max_new_tokens, **inputs)
    ends = _end_tokens(model, prompt, eos_id, pad_id)
    seen = _seen(prompt, model, inputs) if penalised else None
    may_end = eos_id is not None or stop is not None
    running = torch.ones_like(prompt[:, 0], dtype=torch.bool)
    watch, n_prompt = _Watch(), prompt.shape[1]
    ids = F.pad(prompt, (0, max_new_tokens), value=pad_id)  # (B, L)
    for n in range(n_prompt, ids.shape[1]):
        with torch.no_grad():
            logits = step(ids[:, :n])
            watch.look(logits, running if may_end else None)
            tokens = draw(logits, seen=seen)
        tokens = tokens.where(running, pad_id) if may_end else tokens
        ids[:, n] = tokens
        if seen is not None:
            seen.scatter_(1, tokens[:, None], True)
        if n + 1 == ids.shape[1]:
            watch.check()
        yield tokens
        if may_end:
            running &= ~_has_ended(ids[:, n_prompt : n + 1], ends, stop)
            if not running.any():  # only then a GPU has to wait
                watch.check()
                return


class _Watch:
    """Looks for scores that are not numbers, without making a GPU wait for every token.

    Args:
        n_beams: how many rows of scores belong to one row of the prompt.
    """

    def __init__(self, n_beams: int = 1) -> None:
        self.n_beams, self.n_checked = n_beams, 0
        self.best: list[Tensor] = []  # the best score of each row, for tokens not looked at yet

    def look(self, logits: Float[Tensor, "B V"], running: Bool[Tensor, " B"] | None) -> None:
        """Note the best scores, and check them now and then; on a CPU at once.

        Args:
            logits: scores of the next token.
            running: rows in which a token is wanted; ``None``: all.
        """
        best = logits.amax(dim=-1)  # NaN if one is; minus infinity if nothing is left
        self.best.append(best if running is None else best.where(running, 0.0))
        if best.device.type == "cpu" or len(self.best) == LOOK_EVERY:
            self.check()

    def check(self) -> None:
        """Raise an error if there was a row without a finite best score.

        Raises:
            FloatingPointError: which says in which row, and at which new token.
        """
        wrong = ~torch.stack(self.best).isfinite() if self.best else torch.zeros(0)
        if wrong.any():
            token, row = wrong.nonzero()[0].tolist()
            when = f" at new token {self.n_checked + token + 1}"
            best = float(self.best[token][row])
            raise FloatingPointError(_no_choice(row // self.n_beams, best, when))
        self.n_checked, self.best = self.n_checked + len(self.best), []


def _no_choice(row: int, best: float, when: str = "") -> str:
    why = "the weights or what flows through the model are not finite any more"
    return f"logits: the best score of row {row}{when} is {best}; expected a finite number ({why})"


def generate(
    model: Decodes,
    prompt: Int[Tensor, "B T"],
    *,
    max_new_tokens: int,
    on_token: Callable[[Tensor], object] | None = None,
    **options: Any,
) -> Int[Tensor, "B L"]:
    """Let a language model go on from a prompt, or write what it reads in a source.

    Args:
        model: a ``CausalLM``, ``Seq2SeqLM`` or ``CompiledDecoder``.
        prompt: what to go on from, ``(B, T)``; the start token for a ``Seq2SeqLM``.
        max_new_tokens: how many tokens each row gets at most.
        on_token: called with the newest token of each row, ``(B,)``, after each step.
        options: ``sampling``, ``eos_id``, ``pad_id``, ``stop``, ``generator`` as in :func:`stream`,
            ``prompt_mask``, ``source``, ``source_mask``, ``use_cache``, ``cache`` as in
            ``DecodingStep``.

    Returns:
        The prompt and what follows, ``(B, L)``: as many new tokens as the longest row has. Rows
        that ended before are filled with ``pad_id``.

    Raises:
        FloatingPointError: if scores are not numbers any more.
        TypeError: if the model or a tensor is of the wrong kind, or an option is not known.
        ValueError: if something is out of range or does not fit together.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> from transformer_lib.models import CausalLM
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2))
        >>> ids = generate(model, torch.tensor([[5, 7], [8, 9]]), max_new_tokens=4)
        >>> ids.shape, ids[:, :2].tolist()
        (torch.Size([2, 6]), [[5, 7], [8, 9]])
    """
    _check_options(options, generate, stream)
    ids = [prompt]
    for tokens in stream(model, prompt, max_new_tokens=max_new_tokens, **options):
        ids.append(tokens[:, None])
        if on_token is not None:
            on_token(tokens)
    return torch.cat(ids, dim=1)


def beam_search(
    model: LanguageModel,
    prompt: Int[Tensor, "B T"],
    *,
    n_beams: int,
    max_new_tokens: int,
    length_penalty: float = 0.6,
    eos_id: int | Sequence[int] | None = None,
    pad_id: int = 0,
    **inputs: Any,
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
        inputs: ``prompt_mask``, ``source``, ``source_mask``, ``use_cache``, ``cache``: see
            ``DecodingStep``.

    Returns:
        The hypotheses with the prompt, ``(B, N, L)``, best first, and their scores ``(B, N)``: the
        logarithm of the probability divided by ``((5 + n) / 6) ** length_penalty``, where n counts
        the new tokens, the end token included. Minus infinity if there are not that many.

    Raises:
        FloatingPointError: if scores are not numbers any more.
        TypeError: if the model or a tensor is of the wrong kind, or an option is not known.
        ValueError: if something is out of range or does not fit together.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> from transformer_lib.models import CausalLM
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2))
        >>> ids, scores = beam_search(model, torch.tensor([[5, 7]]), n_beams=4, max_new_tokens=3)
        >>> ids.shape, scores.shape
        (torch.Size([1, 4, 5]), torch.Size([1, 4]))
    """
    _check_options(inputs, beam_search)
    check_whole("n_beams", n_beams)
    check_number("length_penalty", length_penalty, lambda x: x >= 0, "of at least 0")
    inputs = {name: _repeat(value, n_beams) for name, value in inputs.items()}
    with torch.no_grad():
        step = DecodingStep(model, _repeat(prompt, n_beams), max_new_tokens, **inputs)
        ends = _end_tokens(model, prompt, eos_id, pad_id)
        ids, totals = _search(step, prompt, n_beams, max_new_tokens, ends, pad_id)
    is_end = torch.isin(ids[..., prompt.shape[1] :], ends)  # (B, N, n)
    lengths = (is_end.cumsum(dim=-1) - is_end.int() == 0).sum(dim=-1)  # up to the first end token
    penalty = ((5 + lengths.to(totals)) / 6) ** length_penalty
    scores, order = (totals / penalty).sort(descending=True)
    return ids.gather(1, order[..., None].expand_as(ids)), scores


def _search(
    step: DecodingStep, prompt: Tensor, n: int, max_new_tokens: int, ends: Tensor, pad_id: int
) -> tuple[Int[Tensor, "B N L"], Float[Tensor, "B N"]]:
    """Follow N hypotheses of each row; return them and the logarithms of their probabilities."""
    ids = _repeat(prompt, n)  # (B * N, T)
    watch = _Watch(n)
    first_row = n * torch.arange(len(prompt), device=ids.device)[:, None]  # (B, 1)
    # All beams start alike; if more than one counted, they would stay copies of each other.
    totals = torch.where(torch.arange(n, device=ids.device) > 0, -math.inf, 0.0 * first_row)
    for _ in range(max_new_tokens):
        has_ended = torch.isin(ids[:, prompt.shape[1] :], ends).any(dim=1, keepdim=True)  # (B*N, 1)
        if len(ends) and has_ended.all():  # only then a GPU has to wait
            break
        logits = step(ids)  # (B * N, V)
        watch.look(logits, ~has_ended[:, 0])
        gains = _precise(logits).log_softmax(dim=-1)  # (B * N, V)
        # What has ended goes on in one way only: with padding, which costs nothing.
        is_padding = torch.arange(gains.shape[-1], device=ids.device) == pad_id
        gains = gains.where(~has_ended, torch.where(is_padding, 0.0, -math.inf))
        candidates = totals.view(-1, 1) + gains  # (B * N, V)
        totals, best = candidates.view(len(prompt), -1).topk(n)  # (B, N)
        rows = (first_row + best // gains.shape[-1]).flatten()  # (B * N,): whom each goes on from
        ids = torch.cat((ids[rows], (best % gains.shape[-1]).view(-1, 1)), dim=1)
        step.select(rows)
    watch.check()
    return ids.unflatten(0, (-1, n)), totals


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _repeat(value: Any, n: int) -> Any:
    """Each row of a tensor ``n`` times, one beside the other; anything else as it is."""
    return value.repeat_interleave(n, dim=0) if isinstance(value, Tensor) else value


def _seen(prompt: Tensor, model: Decodes, inputs: dict[str, Any]) -> Bool[Tensor, "B V"]:
    """Which tokens each row has; padding is not one of them."""
    mask = inputs.get("prompt_mask")
    real = torch.ones_like(prompt) if mask is None else prompt_rows(mask, {}).long()
    return prompt.new_zeros(len(prompt), model.config.vocab_size).scatter_add(1, prompt, real) > 0


def _has_ended(
    new: Int[Tensor, "B n"], ends: Int[Tensor, " n_ends"], stop: Stop | None
) -> Bool[Tensor, " B"]:
    """Which rows end with their newest token."""
    ended = torch.isin(new[:, -1], ends)
    if callable(stop):
        answer = torch.as_tensor(stop(new), device=new.device)
        expect_shape("what stop returned", answer, "B", {"B": len(new)})
        return ended | answer
    for sequence in stop or ():
        if not isinstance(sequence, Sequence) or not sequence:
            raise ValueError(f"{stop=} must hold sequences of ids, each with one id at least")
        start = new.shape[1] - len(sequence)
        if start >= 0:
            ended = ended | (new[:, start:] == new.new_tensor(sequence)).all(dim=1)
    return ended


def _end_tokens(
    model: Decodes, prompt: Tensor, eos_id: int | Sequence[int] | None, pad_id: int
) -> Int[Tensor, " n_ends"]:
    """Check the ids; return those of end tokens, none if they were left out."""
    ends = list(eos_id) if isinstance(eos_id, Sequence) else [] if eos_id is None else [eos_id]
    if eos_id is not None and not ends:
        raise ValueError(f"{eos_id=} must have one id at least; leave it out if nothing ends a row")
    check_ids("eos_id and pad_id", torch.tensor([[pad_id, *ends]]), model.config.vocab_size)
    return prompt.new_tensor(ends, dtype=torch.long)


def _check_options(given: dict[str, Any], *functions: Callable[..., Any]) -> None:
    """Refuse an option that neither the first function nor those it calls read; say what to do."""
    known = {
        parameter.name
        for function in (DecodingStep.__init__, *functions)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for option, value in given.items():
        if option in known:
            continue
        if option in {field.name for field in fields(Sampling)}:
            sampling = f"sampling=Sampling({option}={value!r})"
            draws = "sampling" in known
            advice = f"put it into {sampling}" if draws else f"generate() draws, with {sampling}"
        elif option in INSTEAD:
            advice = f"use {INSTEAD[option]}"
        else:
            advice = f"it takes {', '.join(sorted(known))}"
        raise TypeError(f"{functions[0].__name__}() has no option {option}={value!r}: {advice}")
