"""What a model is trained to guess: masks and spans.

:func:`mask_tokens` prepares what BERT learns from, :func:`corrupt_spans` what T5 learns from. Both
change token ids and know nothing of models.
"""

import random
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from transformer_lib import IGNORE, Ids, check_number, check_whole


def mask_tokens(
    ids: Int[Tensor, "B T"],
    mask_id: int,
    symbols: Sequence[int],
    *,
    rate: float = 0.15,
    shares: tuple[float, float] = (0.8, 0.1),
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Choose some tokens to be guessed, and hide most of them, as BERT does.

    Args:
        ids: a batch, ``(B, T)``; only tokens among ``symbols`` are chosen.
        mask_id: the token that stands for a hidden one.
        symbols: all ordinary tokens: neither padding nor special.
        rate: how probable it is that a token is chosen.
        shares: which part of the chosen ones becomes the mask token, and which part a random
            symbol; the rest stays as it is, but has to be guessed all the same.
        generator: the source of random numbers; PyTorch's own if left out.

    Returns:
        What the model reads; what it should answer, ``IGNORE`` where nothing was chosen; and which
        tokens were chosen. All ``(B, T)``.

    Raises:
        ValueError: if a number is no probability, or there are no symbols.
        TypeError: if ``ids`` are no whole numbers.

    Example:
        >>> ids = torch.arange(3, 103)[None]
        >>> inputs, targets, chosen = mask_tokens(
        ...     ids,
        ...     2,
        ...     range(3, 103),
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> (
        ...     int(chosen.sum()),
        ...     int((inputs == 2).sum()),
        ...     torch.equal(targets[chosen], ids[chosen]),
        ... )
        (14, 13, True)
    """
    parts = {"shares[0]": shares[0], "shares[1]": shares[1], "sum(shares)": sum(shares)}
    for name, value in ({"rate": rate} | parts).items():
        check_number(name, value, lambda x: 0 <= x <= 1, "from 0 to 1")
    if not len(symbols):
        raise ValueError("symbols is empty; expected at least one ordinary token")
    if ids.is_floating_point():
        raise TypeError(f"ids has dtype {ids.dtype}; expected whole numbers such as torch.long")
    allowed = torch.as_tensor(symbols, device=ids.device)
    chosen = torch.isin(ids, allowed) & (_uniform(ids, generator) < rate)
    targets = ids.masked_fill(~chosen, IGNORE)
    fate = _uniform(ids, generator)  # one number decides: mask, random, or unchanged
    random_ones = allowed[torch.randint(len(allowed), ids.shape, generator=generator)]
    inputs = ids.masked_fill(chosen & (fate < shares[0]), mask_id)
    replaced = chosen & (fate >= shares[0]) & (fate < sum(shares))
    return torch.where(replaced, random_ones, inputs), targets, chosen


def _uniform(ids: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw a number between 0 and 1 for each token, on the CPU."""
    return torch.rand(ids.shape, generator=generator).to(ids.device)


def draw_spans(n: int, *, rate: float, mean_length: float, seed: int) -> list[tuple[int, int]]:
    """Draw which parts of a sequence are cut out, much as T5 does.

    Their number and the sum of their lengths are fixed by ``n``; where they stand and how long each
    is are random. No two touch. T5's own code never cuts the first token and always the last; here
    both ends are like any other place.

    Args:
        n: how many tokens the sequence has, at least 2.
        rate: which part of them is cut out.
        mean_length: of a span.
        seed: another seed, other spans.

    Returns:
        The first place of each span, and the place after its last.

    Raises:
        ValueError: if a number is out of range.

    Example:
        >>> draw_spans(20, rate=0.3, mean_length=3, seed=0)
        [(6, 10), (16, 18)]
    """
    check_whole("n", n, least=2)
    check_number("rate", rate, lambda x: 0 < x < 1, "greater than 0 and less than 1")
    check_number("mean_length", mean_length, lambda x: x > 0, "greater than 0")
    n_cut = min(max(round(n * rate), 1), n - 1)
    n_spans = min(max(round(n_cut / mean_length), 1), n_cut, n - n_cut + 1)
    rng = random.Random(seed)
    cut = _parts(n_cut, n_spans, rng)
    # What is kept before, between and after them; only the first and the last may be nothing.
    kept = _parts(n - n_cut + 2, n_spans + 1, rng)
    kept[0] -= 1
    spans, place = [], 0
    for before, length in zip(kept, cut, strict=False):
        spans.append((place + before, place + before + length))
        place += before + length
    return spans


def _parts(total: int, n: int, rng: random.Random) -> list[int]:
    """Divide a number into ``n`` parts of at least 1, each division as likely as any other."""
    borders = [0, *sorted(rng.sample(range(1, total), n - 1)), total]
    return [after - before for before, after in pairwise(borders)]


def corrupt_spans(
    ids: Ids, spans: Sequence[tuple[int, int]], sentinels: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Cut spans out of a sequence; a sentinel stands for each, and announces it in the answer.

    Args:
        ids: the sequence.
        spans: first place and the place after the last of each span, in order.
        sentinels: one for each span, and one more that closes the answer.

    Returns:
        What the encoder reads, and what the decoder should write.

    Raises:
        ValueError: if there is no span, a span is empty or out of order, or there are not enough
            different sentinels.

    Example:
        >>> corrupt_spans(
        ...     [5, 6, 7, 8, 9], [(1, 3), (4, 5)], sentinels=[90, 91, 92]
        ... )
        ([5, 90, 8, 91], [90, 6, 7, 91, 9, 92])
    """
    if not spans:
        raise ValueError("spans is empty; expected at least one span to cut out")
    if len(set(sentinels)) <= len(spans):
        found = f"sentinels holds {len(set(sentinels))} different tokens"
        raise ValueError(f"{found}; {len(spans)} spans need {len(spans) + 1} sentinels or more")
    tokens = [int(token) for token in ids]
    edges = [0, *(edge for span in spans for edge in span), len(tokens)]
    if edges != sorted(edges) or any(start == end for start, end in spans):
        expected = f"in order, none of them empty, within {len(tokens)} tokens"
        raise ValueError(f"spans={list(spans)} must be {expected}")
    source: list[int] = []
    target: list[int] = []
    place = 0
    for (start, end), sentinel in zip(spans, sentinels, strict=False):
        source += [*tokens[place:start], sentinel]
        target += [sentinel, *tokens[start:end]]
        place = end
    return source + tokens[place:], [*target, sentinels[len(spans)]]
