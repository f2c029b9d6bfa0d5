"""Exercises of chapter 11, The encoder."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs

Function = Callable[[Tensor], Tensor]


def _halve(x: Tensor) -> Tensor:
    return x / 2


def _sublayer(x: Tensor, f: Function, norm: Function, pre: bool) -> Tensor:
    return x + f(norm(x)) if pre else norm(x + f(x))


def _stream_normalised(x: Tensor, f: Function, norm: Function, pre: bool) -> Tensor:
    return norm(x) + f(norm(x)) if pre else norm(x + f(x))


def _norm_on_the_branch(x: Tensor, f: Function, norm: Function, pre: bool) -> Tensor:
    return x + f(norm(x)) if pre else x + norm(f(x))


SUBLAYER = Exercise(
    reference=_sublayer,
    inputs=[
        (*random_inputs((2, 3)), torch.sin, _halve, True),
        (*random_inputs((2, 3)), torch.sin, _halve, False),
    ],
    mistakes={
        "The flag is turned round: pre means that the norm comes before f.": (
            lambda x, f, norm, pre: _sublayer(x, f, norm, not pre)
        ),
        "With the norm first, add to x itself, not to norm(x).": _stream_normalised,
        "With the norm last, normalise the sum, not what f says.": _norm_on_the_branch,
        "The sum is missing: x must go past f and be added to its result.": (
            lambda x, f, norm, pre: f(norm(x)) if pre else norm(f(x))
        ),
        "The norm is missing.": lambda x, f, norm, pre: x + f(x),
        "The norm stands behind the sum in both cases; look at pre.": (
            lambda x, f, norm, pre: norm(x + f(x))
        ),
        "The norm stands before f in both cases; look at pre.": (
            lambda x, f, norm, pre: x + f(norm(x))
        ),
    },
)


def _norm(x: Tensor, correction: int = 0) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / x.var(dim=-1, correction=correction, keepdim=True).sqrt()


def _attend(x: Tensor, allowed: Tensor, *matrices: Tensor, scale: float | None = None) -> Tensor:
    w_q, w_k, w_v, w_o = matrices
    factor = 1 / math.sqrt(x.shape[-1]) if scale is None else scale
    scores = factor * (x @ w_q) @ (x @ w_k).mT
    return scores.masked_fill(~allowed, -math.inf).softmax(dim=-1) @ (x @ w_v) @ w_o


def _layer(
    x: Tensor, real: Tensor, *w: Tensor, scale: float | None = None, correction: int = 0
) -> Tensor:
    x = _norm(x + _attend(x, real, *w[:4], scale=scale), correction)
    return _norm(x + (x @ w[4]).relu() @ w[5], correction)


def _layer_pre(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    x = x + _attend(_norm(x), real, *w[:4])
    return x + (_norm(x) @ w[4]).relu() @ w[5]


def _layer_without_sums(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    x = _norm(_attend(x, real, *w[:4]))
    return _norm((x @ w[4]).relu() @ w[5])


def _layer_linear(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    x = _norm(x + _attend(x, real, *w[:4]))
    return _norm(x + x @ w[4] @ w[5])


def _layer_normed_once(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    x = x + _attend(x, real, *w[:4])
    return _norm(x + (x @ w[4]).relu() @ w[5])


_ALL = torch.tensor([True, True, True], device="cpu")
_THREE_OF_FIVE = torch.tensor([True, True, True, False, False], device="cpu")
_MATRICES = random_inputs((4, 4), (4, 4), (4, 4), (4, 4), (4, 7), (7, 4))

LAYER = Exercise(
    reference=_layer,
    inputs=[
        (*random_inputs((3, 4)), _ALL, *_MATRICES),
        (*random_inputs((5, 4)), _THREE_OF_FIVE, *_MATRICES),
    ],
    mistakes={
        "Padding is looked at: hide its keys before the softmax.": (
            lambda x, real, *w: _layer(x, torch.ones_like(real), *w)
        ),
        "The mask is turned round: True in real may be looked at.": (
            lambda x, real, *w: _layer(x, ~real | real.all(), *w)
        ),
        "The scores are not scaled: divide them by the square root of D.": (
            lambda x, real, *w: _layer(x, real, *w, scale=1.0)
        ),
        "The norm stands before the sublayers; here it comes last.": _layer_pre,
        "Both sums are missing: what was there must be added to what is new.": _layer_without_sums,
        "The ReLU is missing between the two matrices of the network.": _layer_linear,
        "The first norm is missing: there is one after each sum.": _layer_normed_once,
        "The variance is divided by D - 1; x.var() does so unless it is told otherwise.": (
            lambda x, real, *w: _layer(x, real, *w, correction=1)
        ),
    },
)


def _parts(d_model: int, d_ff: int) -> tuple[int, int, int]:
    """Attention, feed-forward network, the two norms."""
    return 4 * (d_model**2 + d_model), 2 * d_model * d_ff + d_ff + d_model, 4 * d_model


def _parameters(
    vocab_size: int, max_len: int, d_model: int, d_ff: int, n_layers: int, pre: bool
) -> int:
    tables = (vocab_size + max_len) * d_model
    return tables + n_layers * sum(_parts(d_model, d_ff)) + (2 * d_model if pre else 0)


def _without_biases(v: int, m: int, d: int, f: int, n: int, pre: bool) -> int:
    return (v + m) * d + n * (4 * d * d + 2 * d * f + 4 * d) + (2 * d if pre else 0)


PARAMETERS = Exercise(
    reference=_parameters,
    inputs=[
        (30_000, 512, 512, 2048, 6, False),
        (100, 16, 8, 20, 3, True),
        (7, 5, 6, 10, 1, False),
    ],
    mistakes={
        "The biases of the linear layers are missing.": _without_biases,
        "The norms are missing: two in each layer, each with a gain and a bias.": (
            lambda v, m, d, f, n, pre: _parameters(v, m, d, f, n, False) - n * 4 * d
        ),
        "The final norm is missing: with pre the stack ends with one more.": (
            lambda v, m, d, f, n, pre: _parameters(v, m, d, f, n, False)
        ),
        "With the norm last there is no final norm.": (
            lambda v, m, d, f, n, pre: _parameters(v, m, d, f, n, True)
        ),
        "The positions are missing: a row of width D for each place.": (
            lambda v, m, d, f, n, pre: _parameters(v, 0, d, f, n, pre)
        ),
        "W_O is missing: attention has four matrices.": (
            lambda v, m, d, f, n, pre: _parameters(v, m, d, f, n, pre) - n * (d * d + d)
        ),
        "That is one layer; there are N of them.": (
            lambda v, m, d, f, n, pre: _parameters(v, m, d, f, 1, pre)
        ),
        "F is not always 4 D; use d_ff.": (
            lambda v, m, d, f, n, pre: _parameters(v, m, d, 4 * d, n, pre)
        ),
    },
)


def _pool(x: Tensor, real: Tensor) -> Tensor:
    return x.masked_fill(~real[..., None], 0.0).sum(dim=1) / real.sum(dim=1)[:, None]


_REAL = torch.tensor([[True, True, True, True], [True, True, False, False]], device="cpu")

POOL = Exercise(
    reference=_pool,
    inputs=[(*random_inputs((2, 4, 3)), _REAL)],
    mistakes={
        "Padding is counted: take the mean over real tokens only.": lambda x, real: x.mean(dim=1),
        "Padding is left out of the sum and counted in the division.": (
            lambda x, real: x.masked_fill(~real[..., None], 0.0).mean(dim=1)
        ),
        "That is one vector for all sequences; each has its own.": (
            lambda x, real: x[real].mean(0)
        ),
        "That is the mean over the features; take it over the tokens.": (
            lambda x, real: x.mean(dim=-1)
        ),
        "That is the sum; divide by the number of real tokens.": (
            lambda x, real: x.masked_fill(~real[..., None], 0.0).sum(dim=1)
        ),
        "That is the first token; the mean is asked for.": lambda x, real: x[:, 0],
    },
)


def _share(x: Tensor, group: Tensor) -> Tensor:
    mean = x.mean(dim=0)
    means = torch.stack([x[group == g].mean(dim=0) for g in group])  # (n, D): of each row's group
    return (means - mean).square().sum() / (x - mean).square().sum()


def _share_of_even_groups(x: Tensor, group: Tensor) -> Tensor:
    means = torch.stack([x[group == g].mean(dim=0) for g in group.unique()])
    spread = (means - x.mean(dim=0)).square().sum(dim=1).mean()
    return spread / (x - x.mean(dim=0)).square().sum(dim=1).mean()


def _share_around_zero(x: Tensor, group: Tensor) -> Tensor:
    means = torch.stack([x[group == g].mean(dim=0) for g in group])
    return means.square().sum() / x.square().sum()


_GROUPS = torch.tensor([0, 0, 0, 1, 1, 2], device="cpu")

SHARE = Exercise(
    reference=_share,
    inputs=[(random_inputs((6, 3))[0] + 1, _GROUPS), (random_inputs((6, 2))[0], _GROUPS)],
    mistakes={
        "That is the share within the groups, what the group does not explain: 1 minus it.": (
            lambda x, g: 1 - _share(x, g)
        ),
        "A large group must count more than a small one: every vector counts once.": (
            _share_of_even_groups
        ),
        "Subtract the mean of all vectors first: the share is one of variance.": _share_around_zero,
        "That is a root; variances are squares.": lambda x, g: _share(x, g).sqrt(),
        "Divide by the spread of all vectors: a share is between 0 and 1.": (
            lambda x, g: _share(x, g) * (x - x.mean(dim=0)).square().sum()
        ),
    },
)


def _cosines(states: Tensor, *, start: int = 0) -> Tensor:
    return torch.cosine_similarity(states, states[start], dim=-1).mean(dim=-1)


COSINES = Exercise(
    reference=_cosines,
    inputs=[random_inputs((4, 3, 5)), random_inputs((3, 2, 4))],
    mistakes={
        "Those are dot products: divide by both lengths.": (
            lambda s: (s * s[0]).sum(dim=-1).mean(dim=-1)
        ),
        "Each layer is compared with the one before it; compare with the input, states[0].": (
            lambda s: torch.cat(
                [
                    torch.ones(1, dtype=s.dtype, device=s.device),
                    torch.cosine_similarity(s[1:], s[:-1], dim=-1).mean(dim=-1),
                ]
            )
        ),
        "The comparison is with the last layer; states[0] is the input.": (
            lambda s: _cosines(s, start=-1)
        ),
        "The mean of the vectors was compared, not the vectors: take the mean of cosines.": (
            lambda s: torch.cosine_similarity(s.mean(dim=1), s[0].mean(dim=0), dim=-1)
        ),
        "Take the mean over the tokens: one number for each layer.": (
            lambda s: torch.cosine_similarity(s, s[0], dim=-1)
        ),
    },
)
