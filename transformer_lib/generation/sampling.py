"""Sampling: from logits to a token, the best or one drawn at random."""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_lib.generation.sampling_options import Sampling

COLD = 1e-6  # below this temperature, logits might overflow where they are divided by it
LOOK_EVERY = 16  # how many tokens a GPU may make before their scores are checked for NaN
GREEDY = Sampling(temperature=0.0)


def filter_logits(
    logits: Float[Tensor, "B V"], sampling: Sampling, seen: Bool[Tensor, "B V"] | None = None
) -> Float[Tensor, "B V"]:
    """Change the scores of the next token as the sampling asks for.

    In this order, which is that of ``transformers``: repetition penalty, temperature, top-k,
    top-p, min-p. So top-p and min-p look at probabilities after the temperature, and at those
    of the tokens that are left. One difference: the repetition penalty of ``transformers`` takes
    padding in the prompt for a token that was there before;
    :func:`~transformer_lib.generation.generate.generate` does not.

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
        logits = at_least_float32(logits)
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
    return draw_token(logits, sampling, seen, generator)


def draw_token(
    logits: Float[Tensor, "B V"],
    sampling: Sampling,
    seen: Bool[Tensor, "B V"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " B"]:
    """Do what :func:`choose_token` does, without its check, which would have to wait for a GPU.

    Args:
        logits: scores of the next token, ``(B, V)``; see :class:`ScoreWatch`.
        sampling: how to draw.
        seen: which tokens came before in each row, ``(B, V)``, for the repetition penalty.
        generator: the source of random numbers; PyTorch's own if left out.

    Returns:
        One token for each row, ``(B,)``.

    Example:
        >>> draw_token(torch.tensor([[0.0, 2.0, 1.0]]), Sampling(top_k=1))
        tensor([1])
    """
    logits = filter_logits(logits, sampling, seen)
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    # The least of exponential variables with rates p is the i-th with probability p_i.
    # torch.multinomial does the same, but checks its input first, which has to wait for a GPU.
    probabilities = logits.softmax(dim=-1)
    waiting = torch.empty_like(probabilities).exponential_(generator=generator)
    return (probabilities / waiting).argmax(dim=-1)


def at_least_float32(logits: Float[Tensor, "*batch V"]) -> Float[Tensor, "*batch V"]:
    """Return scores in which small differences are not lost.

    Args:
        logits: scores, ``(..., V)``.

    Returns:
        The same in float32, or in float64 if they were.

    Example:
        >>> at_least_float32(torch.zeros(3, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class ScoreWatch:
    """Checks scores for NaN and infinity, on a GPU without waiting for every token.

    Args:
        n_beams: how many rows of scores belong to one row of the prompt.

    Example:
        >>> logits = torch.full((1, 3), math.nan)
        >>> ScoreWatch().look(logits, None)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FloatingPointError: logits: the best score of row 0 at new token 1 ...
    """

    def __init__(self, n_beams: int = 1) -> None:
        self.n_beams, self.n_checked = n_beams, 0
        self.best: list[Tensor] = []  # the best score of each row, for tokens not checked yet

    def look(self, logits: Float[Tensor, "B V"], running: Bool[Tensor, " B"] | None) -> None:
        """Note the best scores, and check them now and then; on a CPU at once.

        Args:
            logits: scores of the next token.
            running: rows in which a token is wanted; ``None``: all.
        """
        best = logits.amax(dim=-1)  # NaN if one is; minus infinity if nothing is left
        self.note(best if running is None else best.where(running, 0.0))

    def note(self, best: Float[Tensor, " B"]) -> None:
        """Note scores of which each is known to be the best of its row, and check as ``look`` does.

        Args:
            best: they stay as they are until they are checked.
        """
        self.best.append(best)
        if best.device.type == "cpu":
            # One number says that all is well: a sum is not finite if one of its parts is not.
            if math.isfinite(self.best[-1].sum()):
                self._go_on()
            else:
                self.check()
        elif len(self.best) == LOOK_EVERY:
            self.check()

    def check(self, more: Iterable[Float[Tensor, " B"]] = ()) -> None:
        """Raise an error if there was a row without a finite best score.

        Args:
            more: the best scores of further tokens.

        Raises:
            FloatingPointError: which says in which row, and at which new token.
        """
        self.best += more
        wrong = ~torch.stack(self.best).isfinite() if self.best else torch.zeros(0)
        if wrong.any():
            token, row = wrong.nonzero()[0].tolist()
            when = f" at new token {self.n_checked + token + 1}"
            best = float(self.best[token][row])
            raise FloatingPointError(_no_choice(row // self.n_beams, best, when))
        self._go_on()

    def _go_on(self) -> None:
        self.n_checked, self.best = self.n_checked + len(self.best), []


def _no_choice(row: int, best: float, when: str = "") -> str:
    why = "the weights or what flows through the model are not finite any more"
    return f"logits: the best score of row {row}{when} is {best}; expected a finite number ({why})"
