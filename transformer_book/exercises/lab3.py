"""Checks of lab 3, Positions, and none."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs

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


def _share(gap: Tensor) -> Tensor:
    return (gap.abs() > 1e-3).double().mean()


def _moved(task: Task, ids: Tensor, order: Tensor) -> Tensor:
    return _share(task(ids[:, order]) - task(ids)[:, order])


_IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 2, 0, 3, 2], [0, 1, 2, 3, 4]])
_ORDER = torch.tensor([2, 0, 1, 4, 3])  # it is not its own inverse

MOVED = Exercise(
    reference=_moved,
    inputs=[(task, _IDS, _ORDER) for task in (_counts, _left, _running_sum, _nearly_the_symbol)],
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
    },
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
    },
)


def _offsets(n: int) -> Tensor:
    """Key minus query, ``(n, n)``: positive to the right."""
    places = torch.arange(n)
    return places[None] - places[:, None]


def _bias(n: int, slopes: Tensor, penalty: float, hidden: Tensor) -> Tensor:
    return -slopes[:, None, None] * _offsets(n).abs() - penalty * hidden.double()


ARROW = Exercise(
    reference=lambda n, slopes, penalty: _bias(n, slopes, penalty, _offsets(n) > 0),
    inputs=[
        (4, torch.tensor([0.5, 0.25], dtype=torch.float64), 3.0),
        (3, torch.tensor([1.0], dtype=torch.float64), 0.5),
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
    },
)


def _with_one(x: Tensor) -> Tensor:
    return torch.cat((x, torch.ones_like(x[:, :1])), dim=1).double()


def _ridge(a: Tensor, y: Tensor, penalty: float = 1.0) -> Tensor:
    eye = penalty * torch.eye(a.shape[1], dtype=torch.float64)
    weights: Tensor = torch.linalg.solve(a.mT @ a + eye, a.mT @ y.double())
    return weights


PROBE = Exercise(
    reference=lambda x, places, new: _with_one(new) @ _ridge(_with_one(x), places),
    inputs=[
        (x, torch.arange(9) % 3, new)
        for x, new in (random_inputs((9, 4), (5, 4)), random_inputs((9, 2), (7, 2)))
    ],
    mistakes={
        "The constant is missing: append a 1 to every vector, old and new.": (
            lambda x, places, new: new.double() @ _ridge(x.double(), places)
        ),
        "The penalty is missing: add the identity before you solve.": (
            lambda x, places, new: _with_one(new) @ _ridge(_with_one(x), places, 0.0)
        ),
        "These are places read from the old vectors, which the probe was fitted to: read the "
        "new ones.": lambda x, places, new: _with_one(x) @ _ridge(_with_one(x), places),
        "These are the weights of the probe; return what it reads from the new vectors.": (
            lambda x, places, new: _ridge(_with_one(x), places)
        ),
    },
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
    },
)
