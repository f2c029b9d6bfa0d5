"""Exercises of chapter 00, Reading this book."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_book.exercises.checking import Exercise, UnfitError, random_inputs

Module = Callable[[Tensor], Tensor]


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
        "The head stands between queries and keys; each head has a whole matrix of its own, so H "
        "comes before both.": lambda b, t, s, h, d: (b, t, h, s),
        "Queries come first: one row for each query, one column for each key.": (
            lambda b, t, s, h, d: (b, h, s, t)
        ),
        "The batch comes first: the heads belong to one sequence.": (
            lambda b, t, s, h, d: (h, b, t, s)
        ),
        "That is the shape of the queries; a score has no width left.": (
            lambda b, t, s, h, d: (b, h, t, d // h)
        ),
        "That is the shape of the model's vectors; a score is one number for a query and a key.": (
            lambda b, t, s, h, d: (b, t, d)
        ),
        "There is one column for each key, and there are S keys: T and S may differ.": (
            lambda b, t, s, h, d: (b, h, t, t)
        ),
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
        "That table has a row for each of the T queries and a column for each of the S keys. The "
        "width D is gone: the dot product has added it up.",
        "Each sequence has H such tables, and the batch comes first: `(B, H, ..., ...)`.",
    ),
)


def _mixes_tokens(module: Module, x: Tensor) -> bool:
    return _mixes(module, x, _nudge(x))


def _nudge(x: Tensor) -> Tensor:
    """Another number for each feature."""
    return random_inputs(x.shape[2:])[0]


def _mixes(module: Module, x: Tensor, nudge: Tensor) -> bool:
    return any(_moves_others(module, x, place, nudge) for place in range(x.shape[1]))


def _moves_others(module: Module, x: Tensor, place: int, nudge: Tensor) -> bool:
    """Whether a change of one position moves the output at another."""
    moved = _moved(module, x, place, nudge)
    moved[place] = False
    return bool(moved.any())


def _moved(module: Module, x: Tensor, place: int, nudge: Tensor) -> Tensor:
    """At which positions the output moves when one position of the input is changed."""
    changed = x.clone()
    changed[:, place] += nudge
    return ~torch.isclose(module(changed), module(x)).all(dim=-1)[0]


def _counts_itself(module: Module, x: Tensor) -> bool:
    return any(bool(_moved(module, x, t, _nudge(x)).any()) for t in range(x.shape[1]))


def _one_place(module: Module, x: Tensor, place: int) -> bool:
    return _moves_others(module, x, place % x.shape[1], _nudge(x))


def _one_feature(module: Module, x: Tensor, feature: int) -> bool:
    nudge = torch.zeros_like(x[0, 0])
    nudge[feature] = 1.0
    return _mixes(module, x, nudge)


def _without_abs(module: Module, x: Tensor) -> bool:
    nudge = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype, device=x.device)
    for place in range(x.shape[1]):
        changed = x.clone()
        changed[:, place] += nudge
        grown = (module(changed) - module(x)).amax(dim=-1)[0]
        grown[place] = 0
        if grown.max() > 1e-6:
            return True
    return False


_TOKENS = random_inputs((1, 5, 3))[0]

MIXES_TOKENS = Exercise(
    reference=_mixes_tokens,
    inputs=[
        (torch.tanh, _TOKENS),
        (lambda x: x.cumsum(dim=1), _TOKENS),  # mixes forwards only
        (lambda x: x.flip(1).cumsum(dim=1).flip(1), _TOKENS),  # mixes backwards only
        (lambda x: x - x.mean(dim=-1, keepdim=True), _TOKENS),
        (lambda x: (x - x.mean(dim=-1, keepdim=True)).cumsum(dim=1), _TOKENS),
        (lambda x: x[:, [0, 3, 2, 1, 4]], _TOKENS),  # neither the first place nor the last mixes
        (lambda x: x[:, [0, 1, 2, 4, 4]], _TOKENS),  # only the last place is read by another
        (lambda x: x[..., :1].cumsum(dim=1), _TOKENS),  # reads the first feature only
        (lambda x: -x[..., -1:].cumsum(dim=1), _TOKENS),  # the last one only, turned round
        (lambda x: x * x.flip(1), _TOKENS),  # the size of a token decides how far another moves
        (torch.zeros_like, _TOKENS),
    ],
    mistakes={
        "It says yes whenever the output changes at all; look only at the positions that were "
        "not touched.": _counts_itself,
        "It misses modules that mix backwards only: change every position in turn.": (
            lambda module, x: _one_place(module, x, 0)
        ),
        "It misses modules that mix forwards only: change every position in turn.": (
            lambda module, x: _one_place(module, x, -1)
        ),
        "It changes the first and the last position; one in between may be the only one that "
        "others read.": lambda module, x: _one_place(module, x, 0) or _one_place(module, x, -1),
        "It adds the same number to all features, and a norm does not notice that.": (
            lambda module, x: _mixes(module, x, torch.ones_like(x[0, 0]))
        ),
        "It changes the first feature only; change all of them, each by another number.": (
            lambda module, x: _one_feature(module, x, 0)
        ),
        "It changes the last feature only; change all of them, each by another number.": (
            lambda module, x: _one_feature(module, x, -1)
        ),
        "It misses outputs that fall: compare absolute values.": _without_abs,
        "It always says no: is the changed position the only one that is compared?": (
            lambda module, x: False
        ),
        "It always says yes: does it compare an output with itself, or with the input?": (
            lambda module, x: True
        ),
        "True and False are swapped: True means that it mixes.": (
            lambda module, x: not _mixes_tokens(module, x)
        ),
    },
    hints=(
        "Change one position of the input. Which positions of the output may move if the module "
        "works on each token alone?",
        "Do that for every position in turn: a module may mix in one direction only. Leave the "
        "position that you changed out of the comparison, and change its features by different "
        "numbers.",
        "Compare `(module(changed) - module(x)).abs()`, where `changed = x.clone()` and one "
        "position of it, `changed[:, place]`, has got other numbers.",
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
        "A buffer moves and is not trained. Look in the documentation of `register_buffer` for "
        "the argument that keeps it out of the checkpoint.",
        '`self.register_buffer("table", table, persistent=False)`, and in `forward` '
        "`x + self.table[: x.shape[1]]`.",
    ),
)
