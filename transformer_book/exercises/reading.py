"""Exercises of chapter 00, Reading this book."""

from collections.abc import Callable

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


def _score_shape(b: int, t: int, s: int, h: int, d: int) -> tuple[int, ...]:
    return (b, h, t, s)


SCORE_SHAPE = Exercise(
    reference=_score_shape,
    inputs=[(2, 5, 7, 8, 512), (3, 4, 4, 2, 16)],
    mistakes={
        "The head belongs before the positions: each head has its own matrix.": (
            lambda b, t, s, h, d: (b, t, s, h)
        ),
        "Queries come first: one row for each query, one column for each key.": (
            lambda b, t, s, h, d: (b, h, s, t)
        ),
        "That is the shape of the queries; a score has no width left.": (
            lambda b, t, s, h, d: (b, h, t, d // h)
        ),
        "Each head keeps a matrix of its own: H is missing.": lambda b, t, s, h, d: (b, t, s),
        "Keep batch and heads apart: two dimensions, not one.": lambda b, t, s, h, d: (b * h, t, s),
    },
)


def _moved(function: Callable[[Tensor], Tensor], x: Tensor, place: int, nudge: Tensor) -> Tensor:
    """Whether each output position moves when one input position is changed."""
    changed = x.clone()
    changed[:, place] += nudge
    return ((function(changed) - function(x)).abs().amax(dim=-1)[0] > 1e-6).float()


def _mixes_tokens(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    places: slice = slice(None),
    same_for_all_features: bool = False,
    others_only: bool = True,
) -> bool:
    nudge = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)
    nudge = torch.ones_like(nudge) if same_for_all_features else nudge
    for place in range(x.shape[1])[places]:
        moved = _moved(function, x, place, nudge)
        if others_only:
            moved[place] = 0
        if moved.any():
            return True
    return False


_TOKENS = random_inputs((1, 4, 3))[0]

MIXES_TOKENS = Exercise(
    reference=_mixes_tokens,
    inputs=[
        (torch.tanh, _TOKENS),
        (lambda x: x.cumsum(dim=1), _TOKENS),  # mixes forwards only
        (lambda x: x.flip(1).cumsum(dim=1).flip(1), _TOKENS),  # mixes backwards only
        (lambda x: x - x.mean(dim=-1, keepdim=True), _TOKENS),
        (lambda x: (x - x.mean(dim=-1, keepdim=True)).cumsum(dim=1), _TOKENS),
    ],
    mistakes={
        "It says yes whenever the output changes at all; look only at the positions that were "
        "not touched.": lambda function, x: _mixes_tokens(function, x, others_only=False),
        "It misses modules that mix backwards only: change every position in turn.": (
            lambda function, x: _mixes_tokens(function, x, places=slice(0, 1))
        ),
        "It misses modules that mix forwards only: change every position in turn.": (
            lambda function, x: _mixes_tokens(function, x, places=slice(-1, None))
        ),
        "It adds the same number to all features, and a norm does not notice that.": (
            lambda function, x: _mixes_tokens(function, x, same_for_all_features=True)
        ),
        "It always says no: is the changed position the only one that is compared?": (
            lambda function, x: False
        ),
    },
)
