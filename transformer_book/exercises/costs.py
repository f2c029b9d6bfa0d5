"""Exercises of chapter 17, The quadratic cost and cheaper attention."""

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs
from transformer_lib.masks import causal_mask


def _together(m1: Tensor, x1: Tensor, m2: Tensor, x2: Tensor) -> Tensor:
    """Add two sums that were made with different maxima."""
    top = torch.maximum(m1, m2)
    return (m1 - top).exp() * x1 + (m2 - top).exp() * x2


def _merge(m1: Tensor, l1: Tensor, o1: Tensor, m2: Tensor, l2: Tensor, o2: Tensor) -> Tensor:
    return _together(m1, o1, m2, o2) / _together(m1, l1, m2, l2)


def _halves(seed: int) -> tuple[Tensor, ...]:
    """Return what two halves of the keys leave: maximum, sum and output of each."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(3, 6, generator=generator)
    values = torch.randn(6, 4, generator=generator)
    found: list[Tensor] = []
    for part in (slice(0, 2), slice(2, 6)):
        top = scores[:, part].amax(dim=1, keepdim=True)
        weights = (scores[:, part] - top).exp()
        found += [top, weights.sum(dim=1, keepdim=True), weights @ values[part]]
    return tuple(found)


MERGE = Exercise(
    reference=_merge,
    inputs=[_halves(0), _halves(1)],
    mistakes={
        "The two sums were made with different maxima: shrink each by e^(its m - the larger m) "
        "before you add them.": lambda m1, l1, o1, m2, l2, o2: (o1 + o2) / (l1 + l2),
        "That is the mean of two outputs; the half with more weight must count more.": (
            lambda m1, l1, o1, m2, l2, o2: (o1 / l1 + o2 / l2) / 2
        ),
        "The output is not divided yet: the weights must sum to 1.": (
            lambda m1, l1, o1, m2, l2, o2: _together(m1, o1, m2, o2)
        ),
        "The outputs are rescaled and the sums are not.": (
            lambda m1, l1, o1, m2, l2, o2: _together(m1, o1, m2, o2) / (l1 + l2)
        ),
        "The exponent has the wrong sign: the half with the smaller maximum shrinks.": (
            lambda m1, l1, o1, m2, l2, o2: _merge(-m1, l1, o1, -m2, l2, o2)
        ),
    },
)


def _crossing(d_model: int, d_ff: int, n_matrices: int) -> float:
    return 2 * d_model + n_matrices * d_ff / 2


CROSSING = Exercise(
    reference=_crossing,
    inputs=[(512, 2048, 2), (4096, 11008, 3), (8, 20, 3)],
    mistakes={
        "6 D is right for two matrices and d_ff = 4 D only.": lambda d, f, n: 6 * d,
        "The projections of attention are missing: four matrices of D².": lambda d, f, n: n * f / 2,
        "The feed-forward network is missing.": lambda d, f, n: 2 * d,
        "Pairs cost two products, scores and weighted mean: 4 T² D operations.": (
            lambda d, f, n: 4 * d + n * f
        ),
        "The network has n_matrices matrices, 2 or 3.": lambda d, f, n: 2 * d + f,
    },
)


def _traffic(length: int, width: int, block: int) -> int:
    return 2 * length * width + 3 * length * width * (length // block)


TRAFFIC = Exercise(
    reference=_traffic,
    inputs=[(1024, 64, 128), (256, 16, 32)],
    mistakes={
        "That is the order of the page, with the queries outside; or you forgot to read the "
        "unfinished outputs again.": (lambda t, k, b: 2 * t * k + 2 * t * k * (t // b)),
        "Keys and values are read, too: once.": lambda t, k, b: 3 * t * k * (t // b),
        "Queries must be read again for each block of keys.": (
            lambda t, k, b: 3 * t * k + 2 * t * k * (t // b)
        ),
        "How many blocks of keys are there? T / b.": lambda t, k, b: 2 * t * k + 3 * t * k * b,
        "That is the plain way with its stored tables.": lambda t, k, b: 4 * t * t + 4 * t * k,
    },
)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    found: Tensor = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
    return found


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    group = q.shape[1] // k.shape[1]
    return _attend(q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1))


def _tiled_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    group = q.shape[1] // k.shape[1]
    return _attend(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1))


def _one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _attend(q, k[:, :1], v[:, :1])


def _mean_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _attend(q, k.mean(dim=1, keepdim=True), v.mean(dim=1, keepdim=True))


def _unscaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _grouped(q * q.shape[-1] ** 0.5, k, v)


def _still_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    grouped: Tensor = _grouped(q, k, v).unflatten(1, (k.shape[1], -1))
    return grouped


GROUPED = Exercise(
    reference=_grouped,
    inputs=[
        random_inputs((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
        random_inputs((1, 6, 4, 2), (1, 2, 4, 2), (1, 2, 4, 2)),
    ],
    mistakes={
        "Query heads ask the wrong keys: neighbours share a head, so heads 0 and 1 come before "
        "2 and 3 in groups of two.": _tiled_heads,
        "All queries ask the first head of keys and values.": _one_head,
        "The heads of keys and values are averaged; each group has one of its own.": _mean_head,
        "The scores are not scaled: divide them by the square root of K.": _unscaled,
        "The groups are still an axis of their own: the result is (B, H, T, K).": _still_grouped,
    },
)


def _linear_step(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (state + torch.outer(k, v)) / (q @ (total + k))


def _not_divided(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (state + torch.outer(k, v))


def _too_early(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ state / (q @ total)


def _turned(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (state + torch.outer(v, k)) / (q @ (total + k))


def _old_total(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (state + torch.outer(k, v)) / (q @ total)


def _positive(seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.rand(3, 4, generator=generator), torch.randn(3, 4, generator=generator)
    q, k = torch.rand(2, 4, generator=generator)
    return keys.mT @ values, keys.sum(dim=0), q, k, torch.randn(4, generator=generator)


LINEAR_STEP = Exercise(
    reference=_linear_step,
    inputs=[_positive(0), _positive(1)],
    mistakes={
        "The weights do not sum to 1: divide by q · total.": _not_divided,
        "The newest key and value are not in the state yet: a position sees itself.": _too_early,
        "The outer product is turned round: rows of the state belong to features of keys.": _turned,
        "The new key is in the state and not in the total.": _old_total,
    },
)


def _fixed(length: int, block: int) -> Tensor:
    i, j = torch.arange(length)[:, None], torch.arange(length)
    return causal_mask(length) & ((i // block == j // block) | (j % block == block - 1))


def _window(length: int, block: int) -> Tensor:
    i, j = torch.arange(length)[:, None], torch.arange(length)
    return causal_mask(length) & ((i - j < block) | (j % block == block - 1))


def _blocks_only(length: int, block: int) -> Tensor:
    i, j = torch.arange(length)[:, None], torch.arange(length)
    return causal_mask(length) & (i // block == j // block)


def _first_of_block(length: int, block: int) -> Tensor:
    i, j = torch.arange(length)[:, None], torch.arange(length)
    return causal_mask(length) & ((i // block == j // block) | (j % block == 0))


def _not_causal(length: int, block: int) -> Tensor:
    i, j = torch.arange(length)[:, None], torch.arange(length)
    return (i // block == j // block) | (j % block == block - 1)


FIXED = Exercise(
    reference=_fixed,
    inputs=[(12, 3), (16, 4)],
    mistakes={
        "A position may see the future: combine the pattern with a causal mask.": _not_causal,
        "That is a sliding window; here a position sees its own block, which does not slide.": (
            _window
        ),
        "The last positions of earlier blocks are missing.": _blocks_only,
        "The summary stands at the end of a block: j % block == block - 1.": _first_of_block,
    },
)
