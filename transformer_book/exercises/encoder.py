"""Exercises of chapter 11, The encoder."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from transformer_book.exercises.grading.checking import Answer, Exercise, random_inputs
from transformer_book.exercises.grading.slips import attend, mask_slips, scale_slips

Function = Callable[[Tensor], Tensor]


def _shrink(x: Tensor) -> Tensor:
    """A norm that is neither linear nor the same when it is applied twice."""
    return x / (1 + x.square().mean(dim=-1, keepdim=True))


def _sublayer(x: Tensor, f: Function, norm: Function, pre: bool) -> Tensor:
    return x + f(norm(x)) if pre else norm(x + f(x))


def _stream_normalised(x: Tensor, f: Function, norm: Function, pre: bool) -> Tensor:
    return norm(x) + f(norm(x)) if pre else norm(x + f(x))


def _norm_on_the_branch(x: Tensor, f: Function, norm: Function, pre: bool) -> Tensor:
    return x + f(norm(x)) if pre else x + norm(f(x))


SUBLAYER = Exercise(
    reference=_sublayer,
    inputs=[
        (*random_inputs((2, 3, 5)), torch.sin, _shrink, True),
        (*random_inputs((2, 3, 5)), torch.sin, _shrink, False),
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
        "The norm stands between f and the sum; with pre it comes before f, else after the sum.": (
            lambda x, f, norm, pre: x + norm(f(x))
        ),
        "With the norm last, normalise the sum, not its two parts.": (
            lambda x, f, norm, pre: x + f(norm(x)) if pre else norm(x) + norm(f(x))
        ),
        "With the norm last there is one norm, of the sum: f reads x as it is.": (
            lambda x, f, norm, pre: x + f(norm(x)) if pre else norm(x + f(norm(x)))
        ),
        "With the norm first nothing comes after the sum: the stream itself is not normalised.": (
            lambda x, f, norm, pre: norm(x + f(norm(x))) if pre else norm(x + f(x))
        ),
    },
    hints=(
        "In both cases `x` goes past `f` and is added to what `f` says. The only question is where "
        "the norm stands.",
        "With `pre`, `f` reads a normalised copy and the sum is left alone. Without it, `f` reads "
        "`x` and the sum is normalised.",
        "With `pre` it is `x + f(norm(x))`; else the norm is applied to the whole sum.",
    ),
)


def _norm(x: Tensor) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / centred.square().mean(dim=-1, keepdim=True).sqrt()


def _norm_by_n_minus_1(x: Tensor) -> Tensor:
    return (x - x.mean(dim=-1, keepdim=True)) / x.std(dim=-1, keepdim=True)


def _norm_over_tokens(x: Tensor) -> Tensor:
    return _norm(x.mT).mT


def _layer(
    x: Tensor, real: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *w: Tensor
) -> Tensor:
    scores = (x @ w_q) @ (x @ w_k).mT / math.sqrt(x.shape[-1])
    weights = scores.masked_fill(~real, -math.inf).softmax(dim=-1)
    x = _norm(x + weights @ (x @ w_v) @ w_o)
    return _norm(x + (x @ w[0]).relu() @ w[1])


def _for_slips(x: Tensor, real: Tensor, *w: Tensor) -> tuple[Tensor, ...]:
    return x @ w[0], x @ w[1], x @ w[2], real


def _attention(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    return attend(*_for_slips(x, real, *w)) @ w[3]


def _layer_with(norm: Function = _norm, activation: Function = F.relu) -> Answer:
    """A layer with another norm or another activation."""

    def layer(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
        x = norm(x + _attention(x, real, *w))
        return norm(x + activation(x @ w[4]) @ w[5])

    return layer


def _rest_of_layer(found: Tensor, x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    x = _norm(x + found @ w[3])
    return _norm(x + (x @ w[4]).relu() @ w[5])


def _layer_pre(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    x = x + _attention(_norm(x), real, *w)
    return x + (_norm(x) @ w[4]).relu() @ w[5]


def _layer_without_sums(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    x = _norm(_attention(x, real, *w))
    return _norm((x @ w[4]).relu() @ w[5])


def _layer_normed_once(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    x = x + _attention(x, real, *w)
    return _norm(x + (x @ w[4]).relu() @ w[5])


def _layer_side_by_side(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    between = _norm(x + _attention(x, real, *w))
    return _norm(x + (between @ w[4]).relu() @ w[5])


def _layer_without_w_o(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    x = _norm(x + attend(*_for_slips(x, real, *w)))
    return _norm(x + (x @ w[4]).relu() @ w[5])


def _layer_with_silent_padding(x: Tensor, real: Tensor, *w: Tensor) -> Tensor:
    q, k, v, _ = _for_slips(x, real, *w)
    return _rest_of_layer(attend(q, k, v, real & real[:, None]), x, real, *w)


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
        **mask_slips(_for_slips, _rest_of_layer),
        **scale_slips(_for_slips, _rest_of_layer, equal_widths=True),
        "The norm stands before the sublayers; here it comes last.": _layer_pre,
        "Both sums are missing: what was there must be added to what is new.": _layer_without_sums,
        "The ReLU is missing between the two matrices of the network.": _layer_with(
            activation=lambda x: x
        ),
        "The network of this page has a ReLU, not a GELU.": _layer_with(activation=F.gelu),
        "The first norm is missing: there is one after each sum.": _layer_normed_once,
        "The variance is divided by D - 1; x.var() and x.std() do so unless they are told "
        "otherwise.": _layer_with(norm=_norm_by_n_minus_1),
        "The norm runs over the tokens; each token is normalised by itself (dim=-1).": _layer_with(
            norm=_norm_over_tokens
        ),
        "The norm does not subtract the mean.": _layer_with(
            norm=lambda x: x / x.var(dim=-1, correction=0, keepdim=True).sqrt()
        ),
        "The norm divides by the variance; divide by its square root.": _layer_with(
            norm=lambda x: _norm(x) / x.var(dim=-1, correction=0, keepdim=True).sqrt()
        ),
        "The second sum adds to the stream after attention, not to the input.": (
            _layer_side_by_side
        ),
        "W_O is missing: what attention finds is multiplied by it.": _layer_without_w_o,
        "The rows of padding are hidden, too, and a row of -inf alone is NaN. Hide its keys: who "
        "asks from padding does no harm.": _layer_with_silent_padding,
        "The rows of padding are set to 0 at the end; only its keys are to be hidden.": (
            lambda x, real, *w: _layer(x, real, *w) * real[:, None]
        ),
    },
    hints=(
        "Four steps: attention, sum and norm, the network, sum and norm. Write them one below the "
        "other, and only then think of padding.",
        "The scores are (T, T), with a column for each key. Hide the columns of padding before the "
        "softmax. The norm subtracts the mean of each row and divides by its standard deviation.",
        "`scores.masked_fill(~real, -math.inf)` hides the keys; after attention it is "
        "`x = norm(x + ... @ w_o)`, after the network the same with `(x @ w_1).relu() @ w_2`.",
    ),
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
        "Those are the matrices alone; biases and norms are missing.": (
            lambda v, m, d, f, n, pre: (v + m) * d + n * (4 * d * d + 2 * d * f)
        ),
        "The table of tokens is missing: a row of width D for each of V tokens.": (
            lambda v, m, d, f, n, pre: _parameters(0, m, d, f, n, pre)
        ),
        "A norm has a gain and a bias, both of width D.": (
            lambda v, m, d, f, n, pre: _parameters(v, m, d, f, n, pre) - 2 * n * d - pre * d
        ),
        "A layer has two norms: one for attention, one for the network.": (
            lambda v, m, d, f, n, pre: _parameters(v, m, d, f, n, pre) - 2 * n * d
        ),
    },
    hints=(
        "Count the tables, then one layer, then what comes at the end.",
        "A layer has four matrices of D × D, two of D × F, a bias for each of the six, and two "
        "norms with gain and bias.",
        "The tables have `(vocab_size + max_len) * d_model` parameters, attention `4 * (d_model**2 "
        "+ d_model)`; with `pre` add `2 * d_model` at the end.",
    ),
)


def _pool(x: Tensor, real: Tensor) -> Tensor:
    return x.masked_fill(~real[..., None], 0.0).sum(dim=1) / real.sum(dim=1)[:, None]


_REAL = torch.tensor([[True, True, True, True], [True, True, False, False]], device="cpu")
_HOLES = torch.tensor(  # the first row is padded in front
    [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0], [1, 0, 0, 0, 0]], dtype=torch.bool, device="cpu"
)

POOL = Exercise(
    reference=_pool,
    inputs=[(*random_inputs((2, 4, 3)), _REAL), (*random_inputs((3, 5, 2)), _HOLES)],
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
        "That is the last place, which may be padding; the mean is asked for.": (
            lambda x, real: x[:, -1]
        ),
        "That is the mean over the sequences; take it over the tokens of each.": (
            lambda x, real: x.mean(dim=0)
        ),
        "That is the mean of the padding: True in real is a real token.": (
            lambda x, real: _pool(x, ~real)
        ),
        "That is the largest number of each feature; the mean is asked for.": (
            lambda x, real: x.masked_fill(~real[..., None], -math.inf).amax(dim=1)
        ),
    },
    hints=(
        "A mean is a sum divided by a count. What must padding add to the sum, and to the count?",
        "Set the vectors of padding to 0, add up over the tokens, axis 1, and divide by the number "
        "of real tokens of each sequence, as a column (B, 1).",
        "`x * real[..., None]` is 0 at padding; the counts are `real.sum(dim=1, keepdim=True)`.",
    ),
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


def _share_feature_by_feature(x: Tensor, group: Tensor) -> Tensor:
    return torch.stack([_share(feature[:, None], group) for feature in x.mT]).mean()


_GROUPS = torch.tensor([0, 0, 0, 1, 1, 2], device="cpu")
_UNSORTED = torch.tensor([5, 2, 5, 9, 2, 2, 5], device="cpu")

SHARE = Exercise(
    reference=_share,
    inputs=[
        (random_inputs((6, 3))[0] + 1, _GROUPS),
        (random_inputs((6, 2))[0], _GROUPS),
        (random_inputs((7, 4))[0] - 1, _UNSORTED),
    ],
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
        "Those are shares of single features, averaged; add up all features, then divide.": (
            _share_feature_by_feature
        ),
        "The mean is one vector, the mean over all rows (dim=0), not one number.": (
            lambda x, g: (
                (torch.stack([x[g == i].mean(dim=0) for i in g]) - x.mean()).square().sum()
                / (x - x.mean()).square().sum()
            )
        ),
    },
    hints=(
        "If the group explained everything, every vector would be the mean of its group. How much "
        "of the spread is left if you put these means in place of the vectors?",
        "Spread means: subtract the mean of all vectors, square, add everything up. The share is "
        "the spread of the group means, each as often as its group has members, over that of `x`.",
        "The mean of a group is `x[group == g].mean(dim=0)`; put it into a copy of `x` wherever "
        "`group == g`, for each `g` in `group.unique()`.",
    ),
)


def _cosines(states: Tensor) -> Tensor:
    return torch.cosine_similarity(states, states[0], dim=-1).mean(dim=-1)


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
            lambda s: torch.cosine_similarity(s, s[-1], dim=-1).mean(dim=-1)
        ),
        "The mean of the vectors was compared, not the vectors: take the mean of cosines.": (
            lambda s: torch.cosine_similarity(s.mean(dim=1), s[0].mean(dim=0), dim=-1)
        ),
        "Take the mean over the tokens: one number for each layer.": (
            lambda s: torch.cosine_similarity(s, s[0], dim=-1)
        ),
        "The cosine of two vectors runs over their features, the last axis.": (
            lambda s: torch.cosine_similarity(s, s[0], dim=-2).mean(dim=-1)
        ),
        "All tokens were joined to one long vector; take a cosine for each token.": (
            lambda s: torch.cosine_similarity(s.flatten(1), s[0].flatten(), dim=-1)
        ),
        "The input itself is missing: layer 0 has a cosine, too (it is 1).": (
            lambda s: _cosines(s)[1:]
        ),
        "That is one number for all layers; keep the axis of the layers.": (
            lambda s: _cosines(s).mean()
        ),
    },
    hints=(
        "Compare each token with itself in `states[0]`: one cosine for each layer and token. Only "
        "then comes the mean.",
        "The input broadcasts against all layers. The cosine uses up the last axis, which leaves "
        "(layers, T); the mean uses up T.",
        "`F.cosine_similarity(states, states[:1], dim=-1)` gives all cosines; take `.mean` over "
        "the tokens.",
    ),
)
