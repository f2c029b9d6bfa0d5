"""Checks of lab 3, Positions, and none."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Answer, Exercise, random_inputs

Task = Callable[[Tensor], Tensor]


def _counts(ids: Tensor) -> Tensor:
    """How often the symbol of each place occurs in its sequence."""
    return (ids[:, :, None] == ids[:, None]).sum(dim=-1)


def _left(ids: Tensor) -> Tensor:
    return ids.roll(1, dims=1)


def _running_sum(ids: Tensor) -> Tensor:
    return ids.cumsum(dim=1)


def _nearly_the_symbol(ids: Tensor) -> Tensor:
    """The symbol itself, with an error as small as that of rounding."""
    return ids + 1e-6 * torch.arange(ids.shape[1], dtype=torch.float64)


def _a_thousandth_at_first(ids: Tensor) -> Tensor:
    """Changes by exactly 0.001, which is not more than 0.001."""
    return 1e-3 * (torch.arange(ids.shape[1]) == 0).double().expand(ids.shape)


def _share(gap: Tensor) -> Tensor:
    return (gap.abs() > 1e-3).double().mean()


def _moved(task: Task, ids: Tensor, order: Tensor) -> Tensor:
    return _share(task(ids[:, order]) - task(ids)[:, order])


_IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 2, 0, 3, 2], [0, 1, 2, 3, 4]])
_ORDER = torch.tensor([2, 0, 1, 4, 3])  # it is not its own inverse
_TASKS = (_counts, _left, _running_sum, _nearly_the_symbol, _a_thousandth_at_first)

MOVED = Exercise(
    reference=_moved,
    inputs=[(task, _IDS, _ORDER) for task in _TASKS],
    mistakes={
        "The answers of the reordered sequence are compared with those of the old order: move the "
        "old answers, too.": lambda task, ids, order: _share(task(ids[:, order]) - task(ids)),
        "That is the share that stays; the share that changes is asked for.": (
            lambda task, ids, order: 1 - _moved(task, ids, order)
        ),
        "The old answers are moved by the inverse order: index them as you index the ids.": (
            lambda task, ids, order: _share(task(ids[:, order]) - task(ids)[:, order.argsort()])
        ),
        "Rounding counts as a change here: count what differs by more than 0.001.": (
            lambda task, ids, order: (task(ids[:, order]) != task(ids)[:, order]).double().mean()
        ),
        "That is how many answers change; divide by how many there are.": (
            lambda task, ids, order: _moved(task, ids, order) * ids.numel()
        ),
        "Only answers that grow are counted: compare the absolute value of the difference.": (
            lambda task, ids, order: (
                (task(ids[:, order]) - task(ids)[:, order] > 1e-3).double().mean()
            )
        ),
        "The symbols themselves are compared; compare the answers of the task.": (
            lambda task, ids, order: _share(ids[:, order] - ids)
        ),
    },
    hints=(
        "Two ways to the same place: reorder the symbols and then ask, or ask and then reorder "
        "the answers. A task that needs no order gives the same on both.",
        "The first is `task(ids[:, order])`. Index the answers of the second in the same way as "
        "the symbols, then compare place by place.",
        "With `gap` as the difference of the two, return `(gap.abs() > 1e-3).double().mean()`.",
    ),
)

# What the notebook's judge returns: does the first task change when the order does, does the
# second, and does one of them give the same answer everywhere?
TASKS = Exercise(
    reference=lambda: [0, 1, 0],
    inputs=[()],
    mistakes={
        "One of your tasks has the same answer everywhere: nobody needs to read for that.": (
            lambda: [0, 1, 1]
        ),
        "Both change with the order. In the first, an answer may depend on which symbols are "
        "there and on how often, not on where.": lambda: [1, 1, 0],
        "Neither changes with the order. In the second, let an answer depend on what stands "
        "beside, before or after.": lambda: [0, 0, 0],
        "They have changed places: the first task is to need no order.": lambda: [1, 0, 0],
        "One of your tasks has the same answer everywhere, and neither changes with the order. "
        "In the second, let an answer depend on what stands beside, before or after.": (
            lambda: [0, 0, 1]
        ),
        "One of your tasks has the same answer everywhere, and the first changes with the order: "
        "there an answer may depend on which symbols there are, not on where.": lambda: [1, 0, 1],
    },
    hints=(
        "For the first, think of questions about a bag of symbols: how many, how large, how "
        "often. For the second, of questions about neighbours.",
        "Both return a tensor like `ids`, one answer for each place. `ids.amax(dim=1, "
        "keepdim=True)` is the same for all places of a row; `ids.roll(1, dims=1)` is what stands "
        "to the left.",
        "Compare each symbol with the largest, `ids.amax(dim=1, keepdim=True) - ids`, for the one, "
        "and with its neighbour, `ids > ids.roll(1, dims=1)`, as numbers, for the other.",
    ),
)


def _offsets(n: int) -> Tensor:
    """Key minus query, ``(n, n)``: positive to the right."""
    places = torch.arange(n)
    return places[None] - places[:, None]


def _bias(n: int, slopes: Tensor, penalty: float, hidden: Tensor) -> Tensor:
    return -slopes[:, None, None] * _offsets(n).abs() - penalty * hidden.double()


def _bias_of(distance: Callable[[Tensor], Tensor]) -> Answer:
    """The bias with something else in place of the distance; it gets key minus query."""

    def bias(n: int, slopes: Tensor, penalty: float) -> Tensor:
        offsets = _offsets(n)
        return -slopes[:, None, None] * distance(offsets) - penalty * (offsets > 0).double()

    return bias


ARROW = Exercise(
    reference=lambda n, slopes, penalty: _bias(n, slopes, penalty, _offsets(n) > 0),
    inputs=[
        (4, torch.tensor([0.5, 0.25], dtype=torch.float64), 3.0),
        (5, torch.tensor([1.0, 0.3, 0.1], dtype=torch.float64), 0.5),
    ],
    mistakes={
        "This is ALiBi: left and right are alike. The penalty for keys to the right is missing.": (
            lambda n, slopes, penalty: _bias(n, slopes, 0.0, _offsets(n) > 0)
        ),
        "The penalty is on keys to the left: are rows the queries and columns the keys?": (
            lambda n, slopes, penalty: _bias(n, slopes, penalty, _offsets(n) < 0)
        ),
        "A place pays the penalty for itself, too: only keys further right do.": (
            lambda n, slopes, penalty: _bias(n, slopes, penalty, _offsets(n) >= 0)
        ),
        "Far keys are preferred: the slope times the distance is taken away, not added.": (
            lambda n, slopes, penalty: _bias(n, -slopes, penalty, _offsets(n) > 0)
        ),
        "The penalty is multiplied by the slope; it is the same for all heads.": (
            lambda n, slopes, penalty: (
                -slopes[:, None, None] * (_offsets(n).abs() + penalty * (_offsets(n) > 0))
            )
        ),
        "The penalty is added, so that keys to the right are preferred: subtract it.": (
            lambda n, slopes, penalty: _bias(n, slopes, -penalty, _offsets(n) > 0)
        ),
        "Both signs are turned round: subtract the slope times the distance, and the penalty.": (
            lambda n, slopes, penalty: -_bias(n, slopes, penalty, _offsets(n) > 0)
        ),
        "The distance, key minus query, is negative to the left, so that far keys on the left are "
        "preferred: take abs() of it.": _bias_of(lambda offsets: offsets),
        "The distance, query minus key, is negative to the right, so that far keys on the right "
        "are preferred: take abs() of it.": _bias_of(lambda offsets: -offsets),
        "Only keys to the left have a distance: take abs() of it, as there is no mask.": (
            _bias_of(lambda offsets: (-offsets).clamp(min=0))
        ),
        "The penalty grows with the distance; it is fixed, the same for every key to the right.": (
            lambda n, slopes, penalty: _bias(n, slopes, penalty, _offsets(n).clamp(min=0))
        ),
        "Keys to the right are hidden for good; the penalty makes them dear, but leaves them to "
        "be seen.": lambda n, slopes, penalty: _bias(n, slopes, 1.0, torch.ones(n, n).triu(1) / 0),
    },
    hints=(
        "Make a table of `key - query`, `(n, n)`. Its size is the distance, its sign the side.",
        "A bias is added to the scores, so what is to be avoided gets a negative number, twice: "
        "minus slope times distance, minus the penalty where the key is to the right.",
        "`offset = places[None] - places[:, None]` with `places = torch.arange(n)`; the slopes "
        "need two axes more, `slopes[:, None, None]`, and `offset > 0` is the right side.",
    ),
)


def _with_one(x: Tensor) -> Tensor:
    return torch.cat((x, torch.ones_like(x[:, :1])), dim=1).double()


def _ridge(a: Tensor, y: Tensor, penalty: Tensor) -> Tensor:
    weights: Tensor = torch.linalg.solve(a.mT @ a + penalty, a.mT @ y.double())
    return weights


def _identity(a: Tensor) -> Tensor:
    return torch.eye(a.shape[1], dtype=torch.float64)


def _probe(x: Tensor, places: Tensor, new: Tensor) -> Tensor:
    a = _with_one(x)
    return _with_one(new) @ _ridge(a, places, _identity(a))


def _probe_with(penalty: Callable[[Tensor], Tensor]) -> Answer:
    """A probe with another penalty; it gets the matrix A."""

    def probe(x: Tensor, places: Tensor, new: Tensor) -> Tensor:
        a = _with_one(x)
        return _with_one(new) @ _ridge(a, places, penalty(a))

    return probe


def _constant_left_out(a: Tensor) -> Tensor:
    eye = _identity(a)
    eye[-1, -1] = 0
    return eye


PROBE = Exercise(
    reference=_probe,
    inputs=[
        (x.float(), torch.arange(9) % 3, new.float())  # as the stream of a model is
        for x, new in (random_inputs((9, 4), (5, 4)), random_inputs((9, 2), (7, 2)))
    ],
    mistakes={
        "The constant is missing: append a 1 to every vector, old and new.": (
            lambda x, places, new: new.double() @ _ridge(x.double(), places, _identity(x))
        ),
        "The penalty is missing: add the identity before you solve.": (
            _probe_with(lambda a: 0 * _identity(a))
        ),
        "The constant is not penalised. Many do it like that, but here it is: add the whole "
        "identity, with the 1 in its last row, as the formula says.": (
            _probe_with(_constant_left_out)
        ),
        "AᵀA and Aᵀy are means here; both are sums, beside a penalty of 1.": (
            _probe_with(lambda a: len(a) * _identity(a))
        ),
        "These are places read from the old vectors, which the probe was fitted to: read the "
        "new ones.": lambda x, places, new: _probe(x, places, x),
        "These are the weights of the probe; return what it reads from the new vectors.": (
            lambda x, places, new: _ridge(_with_one(x), places, _identity(_with_one(x)))
        ),
        "The readings are rounded to whole places; leave them as they are.": (
            lambda x, places, new: _probe(x, places, new).round()
        ),
    },
    hints=(
        "Two steps: solve for the parameters with the old vectors and their places, then apply "
        "them to the new vectors. Both kinds of vector get a 1 appended.",
        "A is `(N, D + 1)`, so the identity is `(D + 1, D + 1)`: the constant is penalised like "
        "the others. Turn x, places and x_new into doubles before you multiply.",
        "`w = torch.linalg.solve(A.mT @ A + eye, A.mT @ places.double())`, where A is "
        "`torch.cat((x, torch.ones_like(x[:, :1])), dim=1).double()`; return `new @ w`.",
    ),
)


def _spans(right: Tensor, counted: Tensor, edges: Sequence[int]) -> list[float]:
    pairs = itertools.pairwise(edges)
    return [right[:, a:b][:, counted[a:b]].double().mean().item() for a, b in pairs]


def _spans_from_zero(right: Tensor, counted: Tensor, edges: Sequence[int]) -> list[float]:
    return [_spans(right, counted, [0, edge])[0] for edge in edges[1:]]


def _spans_per_place(right: Tensor, counted: Tensor, edges: Sequence[int]) -> list[float]:
    """Divide by all places of a span, where only some are counted."""
    return _spans_everywhere(right & counted, counted, edges)


def _spans_everywhere(right: Tensor, counted: Tensor, edges: Sequence[int]) -> list[float]:
    return _spans(right, torch.ones_like(counted), edges)


def _spans_inclusive(right: Tensor, counted: Tensor, edges: Sequence[int]) -> list[float]:
    pairs = itertools.pairwise(edges)
    return [_spans(right, counted, [a, b + 1])[0] for a, b in pairs]


def _spans_summed(right: Tensor, counted: Tensor, edges: Sequence[int]) -> list[float]:
    pairs = itertools.pairwise(edges)
    return [right[:, a:b][:, counted[a:b]].double().sum().item() for a, b in pairs]


def _spans_by_sequence(right: Tensor, counted: Tensor, edges: Sequence[int]) -> Tensor:
    pairs = itertools.pairwise(edges)
    return torch.stack([right[:, a:b][:, counted[a:b]].double().mean(dim=1) for a, b in pairs])


SPANS = Exercise(
    reference=_spans,
    inputs=[
        (random_inputs((4, 8))[0] > 0, torch.arange(8) > 0, [0, 3, 8]),
        (random_inputs((3, 9))[0] > -0.5, torch.arange(9) % 4 > 1, [0, 4, 6, 9]),
    ],
    mistakes={
        "Places that do not count are counted: leave out those where counted is False.": (
            _spans_everywhere
        ),
        "The sum is right, but it is divided by all places of the span, not by the counted ones.": (
            _spans_per_place
        ),
        "Each span begins at place 0 here: long tests look better than they are.": (
            _spans_from_zero
        ),
        "A span ends before its second edge; here the edge belongs to it.": _spans_inclusive,
        "That is how many are right; divide by how many there are in the span.": _spans_summed,
        "That is one share for each sequence; return one for each span, over all sequences.": (
            _spans_by_sequence
        ),
    },
    hints=(
        "Neighbouring edges are a span. In each, keep the places that count, in all sequences.",
        "`right[:, a:b]` is the span from a up to b, and `counted[a:b]` says which of its columns "
        "to keep: a table of True and False can index an axis.",
        "For `a, b` in `pairwise(edges)` take `right[:, a:b][:, counted[a:b]].double().mean()`.",
    ),
)
