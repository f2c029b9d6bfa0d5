"""The sums inside the boxes that a real number passes: small enough to check one by hand.

Numbers are rounded to hundredths. Of the features of a vector, and of the heads, the first is shown
whose rounded numbers give the rounded result; where numbers are left out, their share is what makes
the sum whole.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from transformer_book.live.wording import named, number

LARGEST = 3  # products, and weights, that are written out
Sums = dict[str, str]  # of the steps of a box, by the words that the trace has for them
_EPSILON = 1e-5  # of the norm


def _rounded(*values: float) -> list[float]:
    return [round(value, 2) for value in values]


def _feature(rows: Sequence[Tensor], result: Tensor, count: Callable[..., float]) -> int:
    """The first feature whose rounded numbers give the rounded result."""
    for n, values in enumerate(zip(*(row.tolist() for row in rows), result.tolist(), strict=True)):
        *parts, whole = _rounded(*values)
        if abs(count(*parts) - whole) < 0.0049:
            return n
    raise ArithmeticError("rounded to hundredths, no feature of the vector gives its result")


def _plus(value: float) -> str:
    """A number behind a sum: with its sign."""
    text = number(value)
    return f"− {text[1:]}" if text.startswith("−") else f"+ {text}"


def add(step: str, stream: Tensor, update: Tensor, total: Tensor) -> Sums:
    """Add one feature of an update to that of the stream.

    Args:
        step: what the trace calls it.
        stream: the vector that flowed past, ``(D,)``.
        update: what joins it, ``(D,)``.
        total: both, ``(D,)``.

    Returns:
        The sum.

    Example:
        >>> import torch
        >>> add(
        ...     "add",
        ...     torch.tensor([1.0]),
        ...     torch.tensor([-0.5]),
        ...     torch.tensor([0.5]),
        ... )
        {'add': 'feature 0: 1.00 − 0.50 = 0.50'}
    """
    n = _feature([stream, update], total, lambda one, other: one + other)
    one, other, whole = (row[n].item() for row in (stream, update, total))
    return {step: f"feature {n}: {number(one)} {_plus(other)} = {number(whole)}"}


def looked_up(row: int, vector: Tensor, scaled: Tensor) -> Sums:
    """Show one feature of a row of the table, before and after it is scaled by √D.

    Args:
        row: its number.
        vector: the row, ``(D,)``.
        scaled: the same times √D.

    Returns:
        What the two steps give.

    Example:
        >>> import torch
        >>> vector = torch.tensor([0.5, 1.0, 0.0, 2.0])
        >>> looked_up(7, vector, 2 * vector)["scale by √D"]
        '0.50 × √4 = 1.00'
    """
    width = len(vector)
    n = _feature([vector], scaled, lambda value: value * width**0.5)
    before, after = number(vector[n].item()), number(scaled[n].item())
    return {
        "look up token vectors": f"row {row}, feature {n}: {before}",
        "scale by √D": f"{before} × √{width} = {after}",
    }


def normed(x: Tensor, after: Tensor, gain: Tensor, bias: Tensor) -> Sums:
    """Normalise one feature of a vector.

    Args:
        x: the vector, ``(D,)``.
        after: the same behind the norm, ``(D,)``.
        gain: what each feature is multiplied by, ``(D,)``.
        bias: what is added to each, ``(D,)``.

    Returns:
        The calculation.

    Example:
        >>> import torch
        >>> x, one = torch.tensor([1.0, 3.0]), torch.ones(2)
        >>> sums = normed(x, x - 2, gain=one, bias=0 * one)
        >>> sums["layer norm"].split("; ")[1]
        'feature 0: (1.00 − 2.00) ÷ 1.00 × 1.00 + 0.00 = −1.00'
    """
    mean = x.mean().item()
    spread = (x.var(correction=0) + _EPSILON).sqrt().item()
    m, s = _rounded(mean, spread)
    n = _feature([x, gain, bias], after, lambda value, g, b: (value - m) / s * g + b)
    value, g, result = (number(row[n].item()) for row in (x, gain, after))
    middle = f"({value} {_plus(-mean)}) ÷ {number(spread)} × {g} {_plus(bias[n].item())}"
    about = f"mean {number(mean)}, spread {number(spread)}; feature {n}"
    return {"layer norm": f"{about}: {middle} = {result}"}


def _head(query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, float]:
    """Scores, scaled scores, and what the largest weight divides 1 by."""
    score = keys @ query
    scaled = score / len(query) ** 0.5
    return score, scaled, (scaled - scaled.max()).exp().sum().item()


def _is_plain(score: Tensor, scaled: Tensor, total: float, width: int) -> bool:
    """Whether the rounded numbers of a head give its rounded results."""
    divided, whole = _rounded(score.max().item(), total)
    largest, weight = (row.max().item() for row in (scaled, scaled.softmax(dim=-1)))
    pairs = ((divided / width**0.5, largest), (1 / whole, weight))
    return all(number(by_hand) == number(value) for by_hand, value in pairs)


def attended(q: Tensor, k: Tensor, who: str, keys: list[str]) -> Sums:
    """Let one head look: one q · k, the scaled scores, the row of weights.

    Args:
        q: the queries of the position that asks, ``(H, Dk)``.
        k: the keys, ``(H, S, Dk)``.
        who: the token that asks.
        keys: the tokens whose keys these are.

    Returns:
        What the three steps give.

    Raises:
        ArithmeticError: if the rounded numbers of no head give its rounded results.

    Example:
        >>> import torch
        >>> q, k = torch.tensor([[2.0, 1.0, 0.0, 1.0]]), torch.eye(4)[None, :2]
        >>> attended(q, k, "b", ["a", "b"])["scale"]
        '2.00 ÷ √4 = 1.00; all 2 keys: 1.00, 0.50'
    """
    heads = [_head(*head) for head in zip(q, k, strict=True)]
    n = next((n for n, head in enumerate(heads) if _is_plain(*head, q.shape[-1])), None)
    if n is None:
        raise ArithmeticError("rounded to hundredths, no head gives its results")
    query, (score, scaled, total) = q[n], heads[n]
    weights, at = scaled.softmax(dim=-1), int(scaled.argmax())
    products, divided = query * k[n], round(score[at].item(), 2)
    largest = products[at].abs().topk(min(LARGEST, len(query))).indices
    first, *more = _rounded(*products[at][largest].tolist())
    rest = divided - sum((first, *more))
    sum_of = " ".join([number(first), *map(_plus, [*more, rest])])
    best = weights.topk(min(LARGEST, len(keys))).indices.tolist()
    listed = ", ".join(f"{named(keys[s])} {number(weights[s].item())}" for s in best)
    if others := len(keys) - len(best):
        left = 1 - sum(_rounded(*weights[best].tolist()))
        listed += f", {others} others {number(left)}"
    return {
        "scores: queries · keys": f"head {n + 1}, {named(who)} · {named(keys[at])}: {sum_of} "
        f"({len(query) - len(largest)} others) = {number(divided)}",
        "scale": f"{number(divided)} ÷ √{len(query)} = {number(scaled[at].item())}; "
        f"all {len(keys)} keys: {', '.join(map(number, scaled.tolist()))}",
        "softmax": f"{listed}: 1.00 in all; the first is "
        f"1 ÷ Σ e^(score {_plus(-scaled[at].item())}) = 1 ÷ {number(total)} "
        f"= {number(weights[at].item())}",
    }


def bent(x: Tensor, hidden: Tensor, after: Tensor) -> Sums:
    """Follow a vector through the feed-forward network.

    Args:
        x: what goes in, ``(D,)``.
        hidden: the units before ReLU, ``(F,)``.
        after: what comes out, ``(D,)``.

    Returns:
        What the three steps give.

    Example:
        >>> import torch
        >>> bent(torch.ones(1), torch.tensor([-3.0, 2.0]), torch.ones(1))[
        ...     "activate (ReLU)"
        ... ]
        '1 above 0, the largest 2.00; 1 others become 0: 2 units'
    """
    units, kept = len(hidden), int((hidden > 0).sum())
    before, behind, inner = (number(one.norm().item(), 1) for one in (x, after, hidden.relu()))
    return {
        "expand": f"from {len(x)} numbers of length {before}",
        "activate (ReLU)": f"{kept} above 0, the largest {number(hidden.max().item())}; "
        f"{units - kept} others become 0: {units} units",
        "contract": f"{units} numbers of length {inner} → {len(after)} of length {behind}",
    }
