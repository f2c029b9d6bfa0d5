"""Slips that can happen in any exercise: a swapped axis, a missing scale, one place too far.

Each relation asks how a wrong result is related to the right one. They are shared by all exercises
and speak where the exercise itself does not know the mistake.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from transformer_book.exercises.grading.comparing import as_tensor, is_close, parts, show

Relation = Callable[[Tensor, Tensor], str]


def relate(
    returned: Sequence[object], expected: Sequence[object], names: Sequence[str] = ()
) -> str:
    """Say how wrong results are related to right ones, if it is the same in every test.

    Args:
        returned: what the answer returned, test by test.
        expected: what was expected.
        names: what the parts of a result are called.

    Returns:
        A sentence, or nothing if no relation is known.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> relate([x.mT], [x])
        'The last two axes are swapped: transpose it.'
        >>> relate([x + 1], [x])
        'Every number is 1 too large.'
    """
    pairs = list(zip(returned, expected, strict=True))
    first = parts(expected[0], names) if expected else None
    if first is None:
        return _same_everywhere([_tensors(*pair) for pair in pairs])
    wanted = [parts(right, list(first)) for _, right in pairs]
    got = [parts(answer, list(first), several=True) for answer, _ in pairs]
    if any(g is None or w is None or set(g) != set(w) for g, w in zip(got, wanted, strict=True)):
        return ""
    both = [(list(g.values()), list(w.values())) for g, w in zip(got, wanted, strict=True)]  # type: ignore[union-attr]
    if _other_order(both):
        return f"The parts are right but in another order: return {', '.join(first)}."
    for i, name in enumerate(first):
        tests = [_tensors(g[i], w[i]) for g, w in both]
        if not all(test is not None and _equal(*test) for test in tests):
            sentence = _same_everywhere(tests)
            return sentence and f"{name}: {sentence[0].lower()}{sentence[1:]}"
    return ""


def _tensors(returned: object, expected: object) -> tuple[Tensor, Tensor] | None:
    try:
        return as_tensor(returned), as_tensor(expected)
    except (TypeError, ValueError, RuntimeError):
        return None


def _same_everywhere(tests: Sequence[tuple[Tensor, Tensor] | None]) -> str:
    """The first relation that holds in all tests that went wrong."""
    wrong = [test for test in tests if test is None or not _equal(*test)]
    for relation in RELATIONS:
        said = [relation(*test) if test is not None else "" for test in wrong]
        if said and all(said):
            return said[0]
    return _factor_of_all(tests)


def _factor_of_all(tests: Sequence[tuple[Tensor, Tensor] | None]) -> str:
    """Whether numbers, one from each test, are wrong by the same factor."""
    pairs = [test for test in tests if test is not None and not test[0].ndim + test[1].ndim]
    if not pairs or len(pairs) < len(tests):
        return ""
    got, right = (torch.stack(numbers) for numbers in zip(*pairs, strict=True))
    return _factor(got, right)


def _equal(got: Tensor, right: Tensor) -> bool:
    return got.shape == right.shape and bool(is_close(got, right).all())


def _other_order(tests: Sequence[tuple[list[object], list[object]]]) -> bool:
    n_parts = len(tests[0][1])
    if n_parts > 4:
        return False

    def fits(order: Sequence[int]) -> bool:
        pairs = (_tensors(got[i], right[j]) for got, right in tests for j, i in enumerate(order))
        return all(pair is not None and _equal(*pair) for pair in pairs)

    orders = itertools.permutations(range(n_parts))
    next(orders)  # the order as it should be
    return any(fits(order) for order in orders)


def _transposed(got: Tensor, right: Tensor) -> str:
    if got.ndim >= 2 and _equal(got.mT, right):
        return "The last two axes are swapped: transpose it."
    if 3 <= got.ndim <= 4:
        for order in itertools.permutations(range(got.ndim)):
            if _equal(got.permute(order), right):
                return f"The axes are in another order: .permute{order} would set it right."
    return ""


def _other_shape(got: Tensor, right: Tensor) -> str:
    if got.shape == right.shape:
        return ""
    shapes = f"the shape is {tuple(got.shape)}, expected {tuple(right.shape)}"
    if _equal(got.flatten(), right.flatten()):
        return f"The numbers are right, but {shapes}."
    try:
        full = got.expand(right.shape)
    except RuntimeError:
        return ""
    return f"It would broadcast, but {shapes}: write it in full." if _equal(full, right) else ""


def _too_long(got: Tensor, right: Tensor) -> str:
    for axis in range(got.ndim if got.ndim == right.ndim else 0):
        more = got.shape[axis] - right.shape[axis]
        if abs(more) != 1 or not min(got.shape[axis], right.shape[axis]):
            continue
        long, short = (got, right) if more > 0 else (right, got)
        n, what = short.shape[axis], "too many" if more > 0 else "missing"
        if _equal(long.narrow(axis, 0, n), short):
            return f"One entry is {what} at the end of axis {axis}; the others are right."
        if _equal(long.narrow(axis, 1, n), short):
            return f"One entry is {what} at the beginning of axis {axis}; the others are right."
    return ""


def _moved(got: Tensor, right: Tensor) -> str:
    if got.shape != right.shape:
        return ""
    for axis in range(got.ndim):
        n = got.shape[axis]
        if n > 1 and _equal(got.flip(axis), right):
            return f"The order along axis {axis} is reversed."
        if n > 2 and _equal(got.narrow(axis, 1, n - 1), right.narrow(axis, 0, n - 1)):
            return f"Everything stands one place too late along axis {axis}."
        if n > 2 and _equal(got.narrow(axis, 0, n - 1), right.narrow(axis, 1, n - 1)):
            return f"Everything stands one place too early along axis {axis}."
    return ""


def _complement(got: Tensor, right: Tensor) -> str:
    if got.shape != right.shape or not _equal(1 - got, right):
        return ""
    truth = ((got == 0) | (got == 1)).all()
    if truth and not got.ndim:
        return ""  # a wrong yes or no always is
    return "True and False are swapped." if truth else "It is one minus what is asked for."


def _sign(got: Tensor, right: Tensor) -> str:
    return "The sign is turned round." if got.shape == right.shape and _equal(-got, right) else ""


def _offset(got: Tensor, right: Tensor) -> str:
    if got.shape != right.shape or not got.isfinite().all() or not right.isfinite().all():
        return ""
    gap = got - right
    if gap.numel() < 2 or not _equal(gap, gap.mean().expand_as(gap)):
        return ""
    size = gap.mean().item()
    return f"Every number is {show(round(abs(size), 6))} too {'large' if size > 0 else 'small'}."


def _factor(got: Tensor, right: Tensor) -> str:
    if got.shape != right.shape:
        return ""
    counted = (right.abs() > 1e-6) & right.isfinite() & got.isfinite()
    if counted.sum() < 3 or not _equal(got[~counted], right[~counted]):
        return ""
    ratios = got[counted] / right[counted]
    factor = ratios[0].item()
    if abs(factor) < 1e-3 or not _equal(ratios / factor, torch.ones_like(ratios)):
        return ""
    return (
        f"Right but for a constant factor, {show(round(factor, 4))} here: is a scale missing or "
        "doubled, or a sum taken for a mean?"
    )


_FUNCTIONS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("The softmax over the last axis is missing.", lambda got: got.softmax(dim=-1)),
    ("These are logarithms; take exp.", torch.exp),
    ("The logarithm is missing.", torch.log),
    ("The square root is missing.", torch.sqrt),
    ("That is the root; square it.", torch.square),
    ("It is upside down: take 1 divided by it.", torch.reciprocal),
    ("Take absolute values.", torch.abs),
)


def _one_function_away(got: Tensor, right: Tensor) -> str:
    if got.shape != right.shape or (not got.ndim and got in (0, 1)):
        return ""
    for sentence, function in _FUNCTIONS:
        if (got.ndim or "softmax" not in sentence) and _equal(function(got), right):
            return sentence
    if got.ndim and _equal(right.softmax(dim=-1), got):
        return "These are probabilities: the softmax is one step too many."
    return ""


def _by_axis(got: Tensor, right: Tensor) -> str:
    if got.shape != right.shape or got.ndim < 1:
        return ""
    for sentence, function in _along(got):
        if _equal(function, right):
            return sentence
    return ""


def _along(got: Tensor) -> Iterator[tuple[str, Tensor]]:
    for axis in range(got.ndim):
        yield (
            f"It is added up along axis {axis}; leave that out.",
            got.diff(dim=axis, prepend=torch.zeros_like(got.narrow(axis, 0, 1))),
        )
        yield f"It is not added up along axis {axis} (cumsum).", got.cumsum(dim=axis)
        norm = got.sum(dim=axis, keepdim=True)
        yield f"It is not normalised: divide by the sum along axis {axis}.", got / norm


RELATIONS: tuple[Relation, ...] = (
    _transposed,
    _other_shape,
    _too_long,
    _moved,
    _complement,
    _sign,
    _offset,
    _factor,
    _one_function_away,
    _by_axis,
)
