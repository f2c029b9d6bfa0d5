"""Exercises of chapter 18, The modern block, and beyond text."""

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs


def _rms(x: Tensor) -> Tensor:
    return x / x.square().mean(dim=-1, keepdim=True).sqrt()


def _gated(x: Tensor, gate: Tensor, expand: Tensor, contract: Tensor) -> Tensor:
    return (F.silu(x @ gate) * (x @ expand)) @ contract


def _sublayer(x: Tensor, gate: Tensor, expand: Tensor, contract: Tensor) -> Tensor:
    return x + _gated(_rms(x), gate, expand, contract)


def _centred(x: Tensor) -> Tensor:
    return _rms(x - x.mean(dim=-1, keepdim=True))


SUBLAYER = Exercise(
    reference=_sublayer,
    inputs=[random_inputs((2, 3, 4), (4, 6), (4, 6), (6, 4)), random_inputs((2, 5), *[(5, 5)] * 3)],
    mistakes={
        "Pre-norm adds to the stream itself, not to the normalised copy.": (
            lambda x, g, e, c: _rms(x) + _gated(_rms(x), g, e, c)
        ),
        "What the network says is not added to the stream.": (
            lambda x, g, e, c: _gated(_rms(x), g, e, c)
        ),
        "The norm is missing: the network reads a normalised copy.": (
            lambda x, g, e, c: x + _gated(x, g, e, c)
        ),
        "That is post-norm: the norm comes before the network, not after the sum.": (
            lambda x, g, e, c: _rms(x + _gated(x, g, e, c))
        ),
        "That is LayerNorm: RMSNorm does not take the mean away.": (
            lambda x, g, e, c: x + _gated(_centred(x), g, e, c)
        ),
        "SiLU belongs to the gate, not to the other matrix.": (
            lambda x, g, e, c: x + _gated(_rms(x), e, g, c)
        ),
        "There is no SiLU in it.": lambda x, g, e, c: x + ((_rms(x) @ g) * (_rms(x) @ e)) @ c,
        "The norm divides by the length; the root of the mean square is smaller by √D.": (
            lambda x, g, e, c: x + _gated(F.normalize(x, dim=-1), g, e, c)
        ),
        "That is a sigmoid; SiLU multiplies it by its argument once more.": (
            lambda x, g, e, c: x + ((_rms(x) @ g).sigmoid() * (_rms(x) @ e)) @ c
        ),
        "That is GELU; SwiGLU has SiLU.": (
            lambda x, g, e, c: x + (F.gelu(_rms(x) @ g) * (_rms(x) @ e)) @ c
        ),
        "SiLU comes after the product; it belongs to the gate alone.": (
            lambda x, g, e, c: x + F.silu((_rms(x) @ g) * (_rms(x) @ e)) @ c
        ),
        "Gate and expansion are added; the gate multiplies.": (
            lambda x, g, e, c: x + (F.silu(_rms(x) @ g) + _rms(x) @ e) @ c
        ),
        "Only the gate reads the normalised copy; the other matrix reads it, too.": (
            lambda x, g, e, c: x + (F.silu(_rms(x) @ g) * (x @ e)) @ c
        ),
    },
    hints=(
        "Three steps: normalise a copy, send it through the gated network, add the result to the "
        "stream as it was.",
        "RMSNorm divides by the root of the mean square of the last axis. `gate` and `expand` both "
        "read the normalised copy, and their results are multiplied, number by number.",
        "With `read` for the copy, the network is `(F.silu(read @ gate) * (read @ expand)) @ "
        "contract`.",
    ),
)


def _equal_width(d_model: int, n_heads: int, n_kv_heads: int) -> float:
    return d_model * (10 - 2 * n_kv_heads / n_heads) / 3


EQUAL_WIDTH = Exercise(
    reference=_equal_width,
    inputs=[(128, 4, 2), (512, 8, 8), (4096, 32, 8), (20, 4, 3)],
    mistakes={
        "8D/3 pays for the gate; fewer heads for keys and values leave more for the network.": (
            lambda d, h, kv: 8 * d / 3
        ),
        "A gated network has three matrices, not two.": lambda d, h, kv: d * (10 - 2 * kv / h) / 2,
        "Keys *and* values have fewer heads.": lambda d, h, kv: d * (9 - kv / h) / 3,
        "The output projection keeps its size: it reads all heads.": (
            lambda d, h, kv: d * (11 - 3 * kv / h) / 3
        ),
        "Queries keep all heads; only keys and values are shared.": (
            lambda d, h, kv: d * (12 - 4 * kv / h) / 3
        ),
        "Right, but rounded: leave the fraction as it is.": (
            lambda d, h, kv: float(round(_equal_width(d, h, kv)))
        ),
        "Right, but rounded down: leave the fraction as it is.": (
            lambda d, h, kv: float(int(_equal_width(d, h, kv)))
        ),
        "The share is upside down: n_kv_heads of n_heads are left.": (
            lambda d, h, kv: _equal_width(d, kv, h)
        ),
    },
    hints=(
        "Count the parameters of both blocks, attention and network. Set them equal and solve "
        "for F.",
        "The block of 2017: 4 D² for attention, 2 D · 4D for the network, 12 D² in all. In the "
        "new one keys and values have only the share r = n_kv_heads / n_heads of their size, "
        "and the network has three matrices, D times F each.",
        "Solve `12 * D**2 == (2 + 2 * r) * D**2 + 3 * D * F` for F.",
    ),
)


def _route(logits: Tensor, k: int) -> Tensor:
    n_experts = logits.shape[-1]
    return logits.topk(k, dim=-1).indices.flatten().bincount(minlength=n_experts)


def _without_last_choice(n_tokens: int, n_experts: int) -> Tensor:
    """Logits with which nobody chooses the last expert."""
    (logits,) = random_inputs((n_tokens, n_experts))
    logits[:, -1] -= 10
    return logits


ROUTE = Exercise(
    reference=_route,
    inputs=[
        (*random_inputs((9, 4)), 2),
        (*random_inputs((7, 5)), 3),
        (*random_inputs((6, 8)), 1),
        (_without_last_choice(8, 5), 2),
    ],
    mistakes={
        "Only the best expert of each token is counted; there are k.": lambda x, k: _route(x, 1),
        "Those are the router's probabilities, added up; count choices.": (
            lambda x, k: x.softmax(dim=-1).sum(dim=0)
        ),
        "Those are shares; count tokens.": lambda x, k: _route(x, k) / (k * len(x)),
        "The softmax ran over the tokens: each token chooses among experts.": (
            lambda x, k: _route(x.softmax(dim=0), k)
        ),
        "The least probable experts were taken.": lambda x, k: _route(-x, k),
        "Here experts choose tokens; tokens choose experts.": (
            lambda x, k: torch.full((x.shape[-1],), k)
        ),
        "Experts that nobody chose are missing at the end: bincount has minlength for that.": (
            lambda x, k: x.topk(k, dim=-1).indices.flatten().bincount()
        ),
        "Those are the chosen experts; count how often each was chosen.": (
            lambda x, k: x.topk(k, dim=-1).indices
        ),
    },
    hints=(
        "Each token, a row of `logits`, chooses `k` experts. Then count, expert by expert, how "
        "often it was chosen.",
        "`topk` along the last axis gives the numbers of the chosen experts, `(N, k)`. The answer "
        "is `(E,)`, with a 0 for an expert that nobody chose.",
        "`logits.topk(k, dim=-1).indices.flatten()` lists the choices; "
        "`bincount(minlength=logits.shape[-1])` counts them.",
    ),
)


def _cut(images: Tensor, patch: int) -> Tensor:
    batch, channels, height, width = images.shape
    pieces = images.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return pieces.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def _cut_in_order(order: tuple[int, ...], images: Tensor, patch: int) -> Tensor:
    batch, channels, height, width = images.shape
    rows, columns = height // patch, width // patch
    pieces = images.reshape(batch, channels, rows, patch, columns, patch)
    return pieces.permute(*order).reshape(batch, rows * columns, -1)


CUT = Exercise(
    reference=_cut,
    inputs=[(*random_inputs((2, 3, 20, 24)), 4), (*random_inputs((4, 2, 6, 6)), 3)],
    mistakes={
        "A reshape alone: the first token holds the first pixels in reading order, which are rows "
        "of the picture. Bring the two axes of the grid to the front first.": (
            lambda x, p: x.reshape(len(x), -1, x.shape[1] * p * p)
        ),
        "Colours come last in your patches; a convolution's weights have them first.": (
            lambda x, p: _cut_in_order((0, 2, 4, 3, 5, 1), x, p)
        ),
        "The patches are read column by column; read them row by row.": (
            lambda x, p: _cut_in_order((0, 4, 2, 1, 3, 5), x, p)
        ),
        "Each patch is transposed: rows of pixels come before columns.": (
            lambda x, p: _cut_in_order((0, 2, 4, 1, 5, 3), x, p)
        ),
        "These tokens are every n-th pixel of the picture; a patch is neighbours.": (
            lambda x, p: _cut_in_order((0, 3, 5, 1, 2, 4), x, p)
        ),
        "Height and width have changed places: (B, C, height, width) is the order of the axes.": (
            lambda x, p: _cut(x.mT, p)
        ),
    },
    hints=(
        "Cut height and width into two axes each, grid and patch. Then put the axes in the order "
        "that the tokens need, and flatten.",
        "After the cut: `(B, C, rows, patch, columns, patch)`. A token is a row and a column of "
        "the grid, so these two come first; what is inside a token, C, patch, patch, comes last.",
        "`permute(0, 2, 4, 1, 3, 5)` puts the axes in order; `.flatten(3).flatten(1, 2)` makes "
        "`(B, T, C * patch * patch)`.",
    ),
)


def _tokens(height: int, width: int, patch: int) -> int:
    return (height // patch) * (width // patch) + 1


TOKENS = Exercise(
    reference=_tokens,
    inputs=[(224, 224, 16), (8, 8, 2), (32, 48, 4)],
    mistakes={
        "The class token is missing.": lambda h, w, p: _tokens(h, w, p) - 1,
        "Those are the pixels of a patch.": lambda h, w, p: p * p,
        "Height and width may differ.": lambda h, w, p: (h // p) ** 2 + 1,
        "A grid has rows times columns, not rows plus columns.": (
            lambda h, w, p: h // p + w // p + 1
        ),
        "Divide both sides by the patch size.": lambda h, w, p: h * w // p + 1,
        "There is one class token for the picture, not one for each row.": (
            lambda h, w, p: (h // p) * (w // p) + h // p
        ),
    },
    hints=(
        "How many patches fit into one row of the grid, and how many rows are there?",
        "`width // patch` in a row, `height // patch` rows, and the class token.",
        "`(height // patch) * (width // patch)`, and one more.",
    ),
)


def _set_vector(points: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    return (points @ inner).relu().mean(dim=-2) @ outer


SET_VECTOR = Exercise(
    reference=_set_vector,
    inputs=[random_inputs((2, 5, 3), (3, 4), (4, 6)), random_inputs((7, 2), (2, 6), (6, 3))],
    mistakes={
        "The points are averaged first: then all sets with the same centre are alike.": (
            lambda x, a, b: (x.mean(dim=-2) @ a).relu() @ b
        ),
        "A sum grows with the number of points; take the mean.": (
            lambda x, a, b: (x @ a).relu().sum(dim=-2) @ b
        ),
        "The mean is over the features; it must be over the points.": (
            lambda x, a, b: ((x @ a).relu() @ b).mean(dim=-1)
        ),
        "There is one vector for each point; one for each set is asked for.": (
            lambda x, a, b: (x @ a).relu() @ b
        ),
        "That is the first point's vector: it depends on the order.": (
            lambda x, a, b: (x @ a).relu()[..., 0, :] @ b
        ),
        "The ReLU is missing: a linear map of the mean cannot tell shapes apart.": (
            lambda x, a, b: (x @ a).mean(dim=-2) @ b
        ),
        "That is the largest over the points; take the mean.": (
            lambda x, a, b: (x @ a).relu().amax(dim=-2) @ b
        ),
        "There is a second ReLU at the end; the last layer has none.": (
            lambda x, a, b: _set_vector(x, a, b).relu()
        ),
    },
    hints=(
        "Three steps in this order: a layer with ReLU for each point, the mean over the points, "
        "one more layer.",
        "After the first layer there is `(..., N, hidden)`. The axis of the points is the last "
        "but one; the mean takes it away.",
        "`(points @ inner).relu()`, then `.mean(dim=-2)`, then `outer`.",
    ),
)
