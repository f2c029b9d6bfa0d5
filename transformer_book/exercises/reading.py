"""Exercises of chapter 00, Reading this book."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_book.exercises.grading.checking import Exercise, UnfitError, random_inputs

Module = Callable[[Tensor], Tensor]


def _reach(n_words: int, place: int, boxes: int) -> list[int]:
    return list(range(place, min(n_words, place + boxes + 1)))


REACH = Exercise(
    reference=_reach,
    inputs=[(5, 1, 1), (5, 1, 2), (5, 1, 4), (9, 2, 3), (6, 0, 0), (7, 6, 2)],
    mistakes={
        "The change runs to the right: a word hears its left neighbour, so what it says is heard "
        "by the word on its right.": lambda t, place, n: list(range(max(0, place - n), place + 1)),
        "A word hears its left neighbour only. The change does not run to both sides.": (
            lambda t, place, n: list(range(max(0, place - n), min(t, place + n + 1)))
        ),
        "Each further box hands the change on by one more word.": (
            lambda t, place, n: list(range(place, min(t, place + min(n, 1) + 1)))
        ),
        "A box takes the change one word further, and does not double its reach.": (
            lambda t, place, n: list(range(place, min(t, place + 2**n)))
        ),
        "The text has an end: there is no word behind the last one.": (
            lambda t, place, n: list(range(place, place + n + 1))
        ),
        "The word that was changed moves, too: it takes part in its own mean.": (
            lambda t, place, n: list(range(place + 1, min(t, place + n + 1)))
        ),
        "One word is missing at the far end: after one box the right neighbour has moved.": (
            lambda t, place, n: list(range(place, min(t, place + max(n, 1))))
        ),
        "Not every word: which word can hear of the change after a single box?": (
            lambda t, place, n: list(range(t))
        ),
        "Words to the left never hear of it.": lambda t, place, n: list(
            range(min(t, place + n + 1))
        ),
        "Count the words from 0, as Python does.": (
            lambda t, place, n: list(range(place + 1, min(t, place + n + 1) + 1))
        ),
    },
    hints=(
        "Draw the words in a row, and below them the same row once more for each box. Draw an "
        "arrow from each word down to itself and to its right neighbour. Where can a change go?",
        "Each box lets the change go one word further to the right. It stops at the last word.",
        "The places begin with `place` and end before `min(T, place + boxes + 1)`.",
    ),
)


def _score_shape(b: int, t: int, s: int, h: int, d: int) -> tuple[int, ...]:
    queries = torch.empty(b, h, t, d // h, device="meta")  # shapes without numbers
    keys = torch.empty(b, h, s, d // h, device="meta")
    return tuple((queries @ keys.mT).shape)


SCORE_SHAPE = Exercise(
    reference=_score_shape,
    inputs=[(2, 5, 7, 8, 512), (3, 4, 4, 2, 16)],
    mistakes={
        "The head belongs before the positions: each head has its own matrix.": (
            lambda b, t, s, h, d: (b, t, s, h)
        ),
        "The head stands between T and S; each head has a whole table of its own, so H comes "
        "before both.": lambda b, t, s, h, d: (b, t, h, s),
        "Who looks comes first: one row for each of the T tokens, one column for each of the S.": (
            lambda b, t, s, h, d: (b, h, s, t)
        ),
        "The batch comes first: the heads belong to one sequence.": (
            lambda b, t, s, h, d: (h, b, t, s)
        ),
        "There is a width in it: a score is one number, so no width is left.": (
            lambda b, t, s, h, d: (b, h, t, d // h)
        ),
        "That is the shape of the model's vectors; a score is one number for two tokens.": (
            lambda b, t, s, h, d: (b, t, d)
        ),
        "There is one column for each token that is looked at, and there are S of them: T and S "
        "may differ.": (lambda b, t, s, h, d: (b, h, t, t)),
        "Each head keeps a matrix of its own: H is missing.": lambda b, t, s, h, d: (b, t, s),
        "Each sequence keeps matrices of its own: B is missing.": lambda b, t, s, h, d: (h, t, s),
        "That is one matrix; there is one for each sequence and each head.": (
            lambda b, t, s, h, d: (t, s)
        ),
        "Keep batch and heads apart: two dimensions, not one.": lambda b, t, s, h, d: (b * h, t, s),
    },
    hints=(
        "A score is one number. How many numbers are there for one head of one sequence, and in "
        "what table do they stand?",
        "That table has a row for each of the T tokens that look, and a column for each of the S "
        "tokens that they look at. The width D is gone: a comparison gives one number.",
        "Each sequence has H such tables, and the batch comes first: `(B, H, ..., ...)`.",
    ),
)


Directions = tuple[bool, bool]


def _directions(module: Module, x: Tensor) -> Directions:
    return _read(_moved(module, x, _nudge(x)))


def _nudge(x: Tensor) -> Tensor:
    """Another number for each feature."""
    return random_inputs(x.shape[2:])[0]


def _moved(module: Module, x: Tensor, nudge: Tensor) -> Tensor:
    """Which outputs (rows) move when an input (column) is changed by the nudge."""
    columns = []
    for place in range(x.shape[1]):
        changed = x.clone()
        changed[:, place] += nudge
        columns.append(~torch.isclose(module(changed), module(x)).all(dim=-1)[0])
    return torch.stack(columns, dim=1)


def _read(moved: Tensor) -> Directions:
    """Whether an output reads an earlier input, and whether one reads a later input."""
    return bool(moved.tril(-1).any()), bool(moved.triu(1).any())


def _with(nudge: Callable[[Tensor], Tensor]) -> Callable[[Module, Tensor], Directions]:
    """An answer that changes a token by another nudge."""
    return lambda module, x: _read(_moved(module, x, nudge(x)))


def _from(see: Callable[[Tensor], Tensor]) -> Callable[[Module, Tensor], Directions]:
    """An answer that sees the whole matrix in another way."""
    return lambda module, x: _read(see(_moved(module, x, _nudge(x))))


def _one_feature(x: Tensor, feature: int) -> Tensor:
    nudge = torch.zeros_like(x[0, 0])
    nudge[feature] = 1.0
    return nudge


def _columns(moved: Tensor, *places: int) -> Tensor:
    """Only some inputs were changed."""
    kept = torch.zeros_like(moved)
    kept[:, places] = moved[:, places]
    return kept


def _neighbours(moved: Tensor) -> Tensor:
    return moved.triu(-1).tril(1)


def _with_itself(module: Module, x: Tensor) -> Directions:
    moved = _moved(module, x, _nudge(x))
    return bool(moved.tril().any()), bool(moved.triu().any())


def _same_for_both(module: Module, x: Tensor) -> Directions:
    mixes = any(_directions(module, x))
    return mixes, mixes


def _all_of_them(module: Module, x: Tensor) -> Directions:
    lower = torch.ones(x.shape[1], x.shape[1]).tril(-1).bool()
    moved = _moved(module, x, _nudge(x))
    return bool(moved[lower].all()), bool(moved[lower.T].all())


def _without_abs(module: Module, x: Tensor) -> Directions:
    nudge = torch.linspace(-0.5, 1, x.shape[-1], dtype=x.dtype, device=x.device)
    columns = []
    for place in range(x.shape[1]):
        changed = x.clone()
        changed[:, place] += nudge
        columns.append((module(changed) - module(x)).amax(dim=-1)[0] > 1e-6)
    return _read(torch.stack(columns, dim=1))


def _measure_truths(found: object) -> object:
    parts = found if isinstance(found, tuple | list) else ()
    if any(torch.as_tensor(part).dtype != torch.bool for part in parts):
        raise UnfitError("Return two truth values: whether anything moves, not how far.")
    return found


_TOKENS = random_inputs((1, 5, 3))[0]

DIRECTIONS = Exercise(
    reference=_directions,
    inputs=[
        (torch.tanh, _TOKENS),
        (lambda x: x.cumsum(dim=1), _TOKENS),
        (lambda x: x.flip(1).cumsum(dim=1).flip(1), _TOKENS),
        (lambda x: x.softmax(dim=1), _TOKENS),  # each from all
        (lambda x: x - x.mean(dim=-1, keepdim=True), _TOKENS),
        (lambda x: (x - x.mean(dim=-1, keepdim=True)).cumsum(dim=1), _TOKENS),
        (lambda x: x[:, [0, 3, 2, 1, 4]], _TOKENS),  # neither the first place nor the last mixes
        (lambda x: x[:, [0, 1, 2, 4, 4]], _TOKENS),  # only the last place is read by another
        (lambda x: x[:, [0, 0, 2, 3, 4]], _TOKENS),  # only a neighbour reads
        (lambda x: x[:, [0, 1, 0, 3, 4]], _TOKENS),  # only one that is no neighbour
        (lambda x: x[..., :1].cumsum(dim=1), _TOKENS),  # reads the first feature only
        (lambda x: -x[..., -1:].cumsum(dim=1), _TOKENS),  # the last one only, turned round
        (lambda x: x * x.flip(1), _TOKENS),  # the size of a token decides how far another moves
        (lambda x: x + x.mean(dim=(1, 2), keepdim=True), _TOKENS),  # mixes by the means alone
        (torch.zeros_like, _TOKENS),
    ],
    returns=("earlier", "later"),
    measure=_measure_truths,
    mistakes={
        "The two are swapped: an output that reads an earlier input stands below the diagonal, "
        "since rows are outputs and columns are inputs.": _from(lambda moved: moved.mT),
        "A position may read itself: leave the diagonal out.": _with_itself,
        "It gives the same answer twice: which side of the diagonal is not zero?": _same_for_both,
        "One output that reads an earlier input is enough; not all of them have to.": _all_of_them,
        "It changes the first position only: change every one in turn.": (
            _from(lambda moved: _columns(moved, 0))
        ),
        "It changes the last position only: change every one in turn.": (
            _from(lambda moved: _columns(moved, -1))
        ),
        "It changes the first and the last position; one in between may be the only one that "
        "others read.": _from(lambda moved: _columns(moved, 0, -1)),
        "It looks at direct neighbours only; tokens further away count, too.": _from(_neighbours),
        "It adds the same number to all features, and a norm does not notice that.": (
            _with(lambda x: torch.ones_like(x[0, 0]))
        ),
        "It adds numbers whose sum is 0, and a part that mixes means does not notice that.": (
            _with(lambda x: torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype, device=x.device))
        ),
        "It changes the first feature only; change all of them, each by another number.": (
            _with(lambda x: _one_feature(x, 0))
        ),
        "It changes the last feature only; change all of them, each by another number.": (
            _with(lambda x: _one_feature(x, -1))
        ),
        "It misses outputs that fall: compare absolute values.": _without_abs,
        "It always says no: is the changed position the only one that is compared?": (
            lambda module, x: (False, False)
        ),
        "It always says yes: does it compare an output with itself, or with the input?": (
            lambda module, x: (True, True)
        ),
        "True and False are swapped: True means that such an input is read.": (
            lambda module, x: tuple(not one for one in _directions(module, x))
        ),
    },
    hints=(
        "What does the matrix of `influence` look like for a part that treats each token alone? "
        "Where would a number appear if output 2 read input 0?",
        "Rows are outputs, columns are inputs. An earlier input has the smaller number: its "
        "column stands to the left of the diagonal.",
        "`influence(module, x).tril(-1)` keeps what lies below the diagonal, and `.triu(1)` what "
        "lies above it. Is there anything above `1e-6`?",
    ),
)


def _running_mean(x: Tensor) -> Tensor:
    counts = torch.arange(1, x.shape[1] + 1)[:, None]  # (T, 1)
    return x.cumsum(dim=1) / counts


def _counts(x: Tensor) -> Tensor:
    return torch.arange(1, x.shape[1] + 1)


RUNNING_MEAN = Exercise(
    reference=_running_mean,
    inputs=[
        lambda: random_inputs((1, 4, 4)),
        lambda: random_inputs((2, 5, 3)),
        lambda: random_inputs((3, 3, 3)),
    ],
    mistakes={
        "It adds up the numbers of one vector: the words stand on axis 1, and the last axis holds "
        "the D numbers.": lambda x: x.cumsum(dim=-1) / _counts(x)[:, None],
        "The counts lie along the wrong axis: shape (T,) is laid along the last axis, the D "
        "numbers.": lambda x: x.cumsum(dim=1) / _counts(x),
        "The texts of a batch are added up: axis 0 is the batch.": (
            lambda x: x.cumsum(dim=0) / _counts(x)[:, None]
        ),
        "It is the mean of all words. Each word may take only itself and those before it.": (
            lambda x: x.mean(dim=1, keepdim=True).expand_as(x)
        ),
        "It is a sum: divide by the number of words in it.": lambda x: x.cumsum(dim=1),
        "Divide by how many words are in the sum, not by T.": lambda x: (
            x.cumsum(dim=1) / x.shape[1]
        ),
        "Each word takes part in its own mean.": lambda x: (
            (x.cumsum(dim=1) - x) / (_counts(x)[:, None] - 1).clamp(min=1)
        ),
        "It runs from the end: each word hears those behind it.": lambda x: (
            x.flip(1).cumsum(dim=1).flip(1) / _counts(x).flip(0)[:, None]
        ),
        "There is one word in the first mean, so the counts begin with 1.": lambda x: (
            x.cumsum(dim=1) / (_counts(x)[:, None] + 1)
        ),
    },
    hints=(
        "The influence is a diagonal: no word hears another. So which axis was added up? Then try "
        "it with 5 words of width 3: why does it fail?",
        "`x` has the axes B, T and D, in this order. The words stand on axis 1. Each word has a "
        "count of its own: what shape must the counts have, so that they go down the words?",
        "`x.cumsum(dim=1) / counts[:, None]`: the counts become `(T, 1)`.",
    ),
)


Keep = Callable[[nn.Module, Tensor], None]


class _AddTable(nn.Module):
    """Adds the first rows of a table, which is kept in one of several ways."""

    table: Tensor

    def __init__(self, table: Tensor, keep: Keep) -> None:
        super().__init__()
        keep(self, table)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


def _unsaved(module: nn.Module, table: Tensor) -> None:
    module.register_buffer("table", table, persistent=False)


def _table_module(table: Tensor) -> nn.Module:
    return _AddTable(table, _unsaved)


class _WholeTable(_AddTable):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class _LastRows(_AddTable):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[-x.shape[1] :]


class _RowsOfTheBatch(_AddTable):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[0], None]


def _measure_module(module: object) -> dict[str, object]:
    """What it computes, and what becomes of its table when it is moved, trained or saved."""
    if not isinstance(module, nn.Module):
        raise UnfitError("Return a module: an object of a class that inherits from nn.Module.")
    x = random_inputs((2, 3, 4))[0]
    try:
        follows = bool(copy.deepcopy(module).to("meta")(x.to("meta")).is_meta)
    except (RuntimeError, NotImplementedError):
        follows = False  # a tensor stayed where it was
    return {
        "output": module(x).detach(),
        "follows": follows,
        "parameters": len(list(module.parameters())),
        "trained": sum(p.requires_grad for p in module.parameters()),
        "saved": len(module.state_dict()),
    }


TABLE_MODULE = Exercise(
    reference=_table_module,
    inputs=[lambda: random_inputs((5, 4)), lambda: random_inputs((3, 4))],
    measure=_measure_module,
    mistakes={
        "The table stays behind when the module moves: a plain attribute is not registered.": (
            lambda table: _AddTable(table, lambda module, t: setattr(module, "table", t))
        ),
        "It is saved with the weights. A buffer can be registered without that.": (
            lambda table: _AddTable(table, lambda module, t: module.register_buffer("table", t))
        ),
        "A parameter is trained, and this table is fixed.": (
            lambda table: _AddTable(
                table, lambda module, t: setattr(module, "table", nn.Parameter(t))
            )
        ),
        "A parameter without gradient is not trained, but it is saved: register a buffer.": (
            lambda table: _AddTable(
                table, lambda module, t: setattr(module, "table", nn.Parameter(t, False))
            )
        ),
        "A text may be shorter than the table: take as many rows as it has tokens.": (
            lambda table: _WholeTable(table, _unsaved)
        ),
        "It takes the last rows; positions count from the first one.": (
            lambda table: _LastRows(table, _unsaved)
        ),
        "The rows belong to positions, dimension 1 of x, and not to the sentences.": (
            lambda table: _RowsOfTheBatch(table, _unsaved)
        ),
    },
    hints=(
        "Three kinds of tensor can live in a module: a plain attribute, a parameter and a buffer. "
        "Which of them move, which are trained, which are saved?",
        "A buffer moves and is not trained. With `persistent=False` it is not saved, either.",
        '`self.register_buffer("table", table, persistent=False)`, and in `forward` '
        "`x + self.table[: x.shape[1]]`.",
    ),
)
