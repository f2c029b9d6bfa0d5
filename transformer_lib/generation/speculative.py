"""Speculative decoding: a draft guesses several tokens, and the model judges them in one pass.

A step of a large model reads all its weights, for one token as for five. So a small model, or the
text so far, guesses the next tokens, and the large model scores all of them at once. A guess is
kept with probability ``min(1, p / q)``, where p is the model's probability of it and q the draft's;
in the place of the first one that is not kept, a token is drawn from what p has more than q. The
text has exactly the distribution of the model alone, however bad the draft is (Leviathan et al.,
2023).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Float, Int
from torch import Tensor

from transformer_lib.core.checks import check_whole
from transformer_lib.generation.constrained import AllowedText, AllowedTokens, next_ones
from transformer_lib.generation.decoding_step import DecodingStep
from transformer_lib.generation.sampling import GREEDY, ScoreWatch, at_least_float32, filter_logits
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.generation.stopping import end_tokens
from transformer_lib.models.language_models import CausalLM


@dataclass(frozen=True)
class NgramDraft:
    """Guesses that a text goes on as it did before (prompt lookup): no second model is needed.

    The last tokens are looked for earlier in the text; what followed them there is the guess. That
    pays where texts repeat themselves: code, summaries, answers that quote the question.

    Args:
        longest: how many of the last tokens are looked for; if they are not found, fewer.

    Raises:
        ValueError: if it is not a whole number of at least 1.

    Example:
        >>> text = torch.tensor([[7, 1, 2, 3, 4, 9, 1, 2]])
        >>> NgramDraft().guess(text, 2)  # after 1, 2 came 3, 4
        tensor([3, 4])
    """

    longest: int = 3

    def __post_init__(self) -> None:
        check_whole("longest", self.longest)

    def guess(self, ids: Int[Tensor, "1 T"], n: int) -> Int[Tensor, " n"]:
        """Guess up to ``n`` tokens after ``ids``, ``(1, T)``; none if nothing was found."""
        text = ids[0]
        for length in range(min(self.longest, len(text) - 1), 0, -1):
            places = text[:-1].unfold(0, length, 1)  # all but the last tokens themselves
            starts = (places == text[-length:]).all(dim=1).nonzero()[:, 0] + length
            if len(starts):
                long = starts[starts + n <= len(text)]  # where n tokens followed
                start = int((long if len(long) else starts)[-1])
                return text[start : start + n]
        return text[:0]


def speculative_generate(
    model: CausalLM,
    prompt: Int[Tensor, "1 T"],
    *,
    draft: CausalLM | NgramDraft,
    max_new_tokens: int,
    n_guesses: int = 4,
    sampling: Sampling = GREEDY,
    eos_id: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    allowed: AllowedText | None = None,
) -> Int[Tensor, "1 L"]:
    """Do what :func:`~transformer_lib.generation.generate.generate` does, with guesses of a draft.

    The model scores several tokens in one pass, whose rounding is not that of one token after the
    other: where two tokens are equally good to the last digits, a greedy text may part.

    Args:
        model: whose distribution the text has.
        prompt: what to go on from, ``(1, T)``. Of several rows, each would keep another number of
            guesses.
        draft: a smaller model with the same vocabulary, or an :class:`NgramDraft`.
        max_new_tokens: how many tokens are written at most.
        n_guesses: how many tokens are guessed in each round.
        sampling: how tokens are drawn, by both models; the best ones if left out.
        eos_id: the token after which the text ends, or several of them.
        generator: the source of random numbers; PyTorch's own if left out.
        allowed: what may be written, and guessed: a ``OneOf`` or a ``Pattern``, which needs
            ``eos_id``.

    Returns:
        The prompt and what follows, ``(1, L)``.

    Raises:
        FloatingPointError: if scores become NaN or infinite.
        TypeError: if a model or the draft is of another kind.
        ValueError: if there are several rows, another vocabulary, a repetition penalty, or not
            enough room in one of the models.

    Example:
        >>> from transformer_lib import TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model, draft = CausalLM(config), CausalLM(config)
        >>> speculative_generate(
        ...     model, torch.tensor([[5, 7]]), draft=draft, max_new_tokens=4
        ... ).shape
        torch.Size([1, 6])
    """
    rounds = speculative_stream(
        model, prompt, draft=draft, max_new_tokens=max_new_tokens, n_guesses=n_guesses,
        sampling=sampling, eos_id=eos_id, generator=generator, allowed=allowed,
    )  # fmt: skip
    return torch.cat([prompt, *(new[None] for new in rounds)], dim=1)


def speculative_stream(
    model: CausalLM,
    prompt: Int[Tensor, "1 T"],
    *,
    draft: CausalLM | NgramDraft,
    max_new_tokens: int,
    n_guesses: int = 4,
    sampling: Sampling = GREEDY,
    eos_id: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    allowed: AllowedText | None = None,
) -> Iterator[Int[Tensor, " n"]]:
    """Yield the tokens of :func:`speculative_generate`, those of one pass of the model at a time.

    Args:
        model: as for :func:`speculative_generate`, and so are all others.
        prompt: what to go on from, ``(1, T)``.
        draft: what guesses.
        max_new_tokens: how many tokens are written at most.
        n_guesses: how many tokens are guessed in each round.
        sampling: how tokens are drawn.
        eos_id: the token after which the text ends, or several of them.
        generator: the source of random numbers.
        allowed: what may be written, and guessed.

    Returns:
        An iterator over new tokens, one to ``n_guesses + 1`` at a time; as many as there are
        items, as many passes the model made.

    Raises:
        FloatingPointError: if scores become NaN or infinite.
        TypeError: if a model or the draft is of another kind.
        ValueError: if something is out of range or does not fit together.

    Example:
        >>> from transformer_lib import TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model, prompt = CausalLM(config), torch.tensor([[5, 7]])
        >>> rounds = speculative_stream(
        ...     model, prompt, draft=model, max_new_tokens=9
        ... )
        >>> [len(new) for new in rounds]  # the model's own guesses are kept
        [1, 5, 3]
    """
    _check(model, draft, prompt, sampling)
    check_whole("n_guesses", n_guesses)
    ends = end_tokens(eos_id, 0, prompt, model.config.vocab_size)
    may_come = next_ones(allowed, 1, ends, model.config.vocab_size)
    judge = DecodingStep(model, prompt, max_new_tokens)
    guesser = None if isinstance(draft, NgramDraft) else DecodingStep(draft, prompt, max_new_tokens)

    def rounds() -> Iterator[Tensor]:
        ids, longest, watch = prompt, prompt.shape[1] + max_new_tokens, ScoreWatch()
        while ids.shape[1] < longest:
            with torch.no_grad():  # not across the yield, where the caller's own code runs
                if ids is prompt:  # of a long prompt, only the last position is scored
                    guesses, guessed = prompt[0, :0], None
                    logits = judge(prompt)
                else:
                    n = min(n_guesses, longest - ids.shape[1] - 1)
                    guesses, guessed = _guess(draft, guesser, ids, n, sampling, generator, may_come)
                    logits = _score(judge, torch.cat((ids, guesses[None]), dim=1))
                if may_come is not None:
                    logits = may_come.along(guesses).mask(logits)
                watch.n_checked = ids.shape[1] - prompt.shape[1]  # guesses were not all kept
                watch.check(logits.amax(dim=-1, keepdim=True))
                new = keep_guesses(guesses, _probabilities(logits, sampling), guessed, generator)
            ended = torch.isin(new, ends).nonzero()[:, 0]
            new = new[: int(ended[0]) + 1] if len(ended) else new
            ids = torch.cat((ids, new[None]), dim=1)
            if may_come is not None:
                for token in new:
                    may_come.push(token[None])
            for step in (judge, guesser):  # the newest token has not been read by anyone
                if step is not None and step.cache is not None:
                    step.cache.rewind(min(step.cache.length, ids.shape[1] - 1))
            yield new
            if len(ended):
                break

    return rounds()


def keep_guesses(
    guesses: Int[Tensor, " n"],
    wanted: Float[Tensor, "n_wanted V"],
    guessed: Float[Tensor, "n V"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " n_kept"]:
    """Keep the first guesses, as many as chance allows, and add a token of the model's own.

    Args:
        guesses: n tokens.
        wanted: the model's probabilities at their places and at the next one, ``(n + 1, V)``.
        guessed: the probabilities that the guesses were drawn with, ``(n, V)``; if left out, they
            were certain.
        generator: the source of random numbers; PyTorch's own if left out.

    Returns:
        One token to n + 1, distributed as the model's own.

    Example:
        >>> wanted = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
        >>> keep_guesses(
        ...     torch.tensor([1, 1]), wanted
        ... )  # the second is not kept
        tensor([1, 0])
    """
    if guessed is None:
        guessed = F.one_hot(guesses, wanted.shape[-1]).to(wanted.dtype)
    places = torch.arange(len(guesses), device=guesses.device)
    chances = wanted[places, guesses] / guessed[places, guesses]
    n = _count_kept(chances, generator)
    last = wanted[n] if n == len(guesses) else left_over(wanted[n], guessed[n])
    return torch.cat((guesses[:n], _draw(last, generator)[None]))


def left_over(wanted: Float[Tensor, " V"], guessed: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
    """The distribution of what takes the place of a guess that was not kept.

    Tokens that are guessed more often than wanted come often enough by guesses that are kept.

    Args:
        wanted: the model's probabilities.
        guessed: the draft's.

    Returns:
        ``max(0, wanted - guessed)``, scaled to sum to 1.

    Example:
        >>> left_over(
        ...     torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.8, 0.1])
        ... )
        tensor([0.8000, 0.0000, 0.2000])
    """
    more = (wanted - guessed).clamp(min=0)
    more = torch.where(more.sum() > 0, more, wanted)  # equal up to rounding
    return more / more.sum()


def _guess(
    draft: CausalLM | NgramDraft,
    step: DecodingStep | None,
    ids: Int[Tensor, "1 T"],
    n: int,
    sampling: Sampling,
    generator: torch.Generator | None,
    may_come: AllowedTokens | None,
) -> tuple[Int[Tensor, " m"], Float[Tensor, "m V"] | None]:
    """Guess n tokens, with the probabilities that each was drawn with."""
    if isinstance(draft, NgramDraft):
        return draft.guess(ids, n), None
    assert step is not None, "a model guesses by steps"
    start, guessed = ids.shape[1], []
    ahead = None if may_come is None else may_come.along(ids[0, :0])  # goes on with the guesses
    for _ in range(n):
        logits = step(ids)  # (1, V)
        logits = logits if ahead is None else ahead.mask(logits)
        guessed.append(_probabilities(logits, sampling))
        token = _draw(guessed[-1], generator)  # (1,)
        ids = torch.cat((ids, token[None]), dim=1)
        if ahead is not None:
            ahead.push(token)
    return ids[0, start:], torch.cat(guessed) if guessed else None


def _score(step: DecodingStep, ids: Int[Tensor, "1 T"]) -> Float[Tensor, "n V"]:
    """The scores after each token that the model has not read yet."""
    assert step.cache is not None, "made with one"
    with step.in_evaluation():
        logits: Tensor = step.model(ids[:, step.cache.length :], cache=step.cache)
    return logits[0]


def _probabilities(logits: Float[Tensor, "n V"], sampling: Sampling) -> Float[Tensor, "n V"]:
    """What tokens are drawn with; with temperature 0 the best one is certain."""
    if sampling.temperature == 0:
        certain = F.one_hot(logits.argmax(dim=-1), logits.shape[-1])
        return certain.to(at_least_float32(logits).dtype)
    return filter_logits(logits, sampling).softmax(dim=-1)


def _count_kept(chances: Float[Tensor, " n"], generator: torch.Generator | None) -> int:
    """How many guesses come before the first that is not kept, each kept with its chance."""
    kept = torch.rand(chances.shape, generator=generator, device=chances.device) < chances
    return int(kept.long().cumprod(dim=0).sum())


def _draw(
    probabilities: Float[Tensor, "*rows V"], generator: torch.Generator | None
) -> Int[Tensor, "*rows"]:
    """Draw a token; see :func:`~transformer_lib.generation.sampling.draw_token`."""
    waiting = torch.empty_like(probabilities).exponential_(generator=generator)
    return (probabilities / waiting).argmax(dim=-1)


def _check(model: object, draft: object, prompt: Tensor, sampling: Sampling) -> None:
    """Refuse what does not fit together."""
    if not isinstance(model, CausalLM):
        raise TypeError(f"model has type {type(model).__name__}; expected a CausalLM")
    if not isinstance(draft, CausalLM | NgramDraft):
        wanted = "expected a CausalLM or an NgramDraft"
        raise TypeError(f"draft has type {type(draft).__name__}; {wanted}")
    if isinstance(draft, CausalLM) and draft.config.vocab_size != model.config.vocab_size:
        wanted = f"expected that of the model, {model.config.vocab_size}"
        raise ValueError(f"draft has vocab_size={draft.config.vocab_size}; {wanted}")
    if prompt.ndim != 2 or len(prompt) != 1:
        wanted = "expected one row, (1, T): rows would keep different numbers of guesses"
        raise ValueError(f"prompt has shape {tuple(prompt.shape)}; {wanted}")
    if sampling.repetition_penalty != 1:
        why = "guesses are judged before it is known which tokens come before them"
        raise ValueError(f"repetition_penalty={sampling.repetition_penalty} must be 1: {why}")
