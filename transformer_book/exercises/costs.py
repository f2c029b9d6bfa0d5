"""Exercises of chapter 17, The quadratic cost and cheaper attention."""

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs
from transformer_book.exercises.grading.slips import mixing_slips, scale_slips


def _together(m1: Tensor, x1: Tensor, m2: Tensor, x2: Tensor) -> Tensor:
    """Add two sums that were made with different maxima."""
    top = torch.maximum(m1, m2)
    return (m1 - top).exp() * x1 + (m2 - top).exp() * x2


def _merge(m1: Tensor, l1: Tensor, o1: Tensor, m2: Tensor, l2: Tensor, o2: Tensor) -> Tensor:
    return _together(m1, o1, m2, o2) / _together(m1, l1, m2, l2)


def _halves(seed: int, *, shift: float = 0.0) -> tuple[Tensor, ...]:
    """Return what two halves of the keys leave: maximum, sum and output of each."""
    generator = torch.Generator().manual_seed(seed)
    scores = shift + 2 * torch.randn(3, 6, generator=generator, dtype=torch.float64)
    values = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    found: list[Tensor] = []
    for part in (slice(0, 2), slice(2, 6)):
        top = scores[:, part].amax(dim=1, keepdim=True)
        weights = (scores[:, part] - top).exp()
        found += [top, weights.sum(dim=1, keepdim=True), weights @ values[part]]
    return tuple(found)


MERGE = Exercise(
    reference=_merge,
    inputs=[_halves(0), _halves(1), _halves(2, shift=1000.0)],
    mistakes={
        "The two sums were made with different maxima: shrink each by e^(its m - the larger m) "
        "before you add them.": lambda m1, l1, o1, m2, l2, o2: (o1 + o2) / (l1 + l2),
        "That is the mean of two outputs; the half with more weight must count more.": (
            lambda m1, l1, o1, m2, l2, o2: (o1 / l1 + o2 / l2) / 2
        ),
        "Each half is divided by its own sum; both share one, or the weights sum to 2.": (
            lambda m1, l1, o1, m2, l2, o2: o1 / l1 + o2 / l2
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
        "The sums are rescaled and the outputs are not.": (
            lambda m1, l1, o1, m2, l2, o2: (o1 + o2) / _together(m1, l1, m2, l2)
        ),
        "o1 and o2 are not divided yet: do not multiply them by l1 and l2 again.": (
            lambda m1, l1, o1, m2, l2, o2: _merge(m1, l1, l1 * o1, m2, l2, l2 * o2)
        ),
        "Right on paper, but e^m overflows if scores are large, as in the last test: subtract the "
        "larger of the two maxima first.": (
            lambda m1, l1, o1, m2, l2, o2: (
                (m1.exp() * o1 + m2.exp() * o2) / (m1.exp() * l1 + m2.exp() * l2)
            )
        ),
    },
    hints=(
        "Each half took e to the power of (score - its own maximum). By which factor would its "
        "sums be smaller if it had known the maximum of both halves?",
        "With m the larger maximum, the first half shrinks by e^(m1 - m) and the second by "
        "e^(m2 - m): the outputs and the sums. Then add, and divide once.",
        "`m = torch.maximum(m1, m2)` and `a = (m1 - m).exp()`, `b` likewise; the output is "
        "`a * o1 + b * o2`, divided by the same with `l1` and `l2`.",
    ),
)


def _crossing(d_model: int, d_ff: int, n_matrices: int) -> float:
    return 2 * d_model + n_matrices * d_ff / 2


CROSSING = Exercise(
    reference=_crossing,
    inputs=[(512, 2048, 2), (4096, 11008, 3), (8, 20, 3), (6, 5, 3)],
    mistakes={
        "6 D is right for two matrices and d_ff = 4 D only.": lambda d, f, n: 6 * d,
        "The projections of attention are missing: four matrices of D².": lambda d, f, n: n * f / 2,
        "The feed-forward network is missing.": lambda d, f, n: 2 * d,
        "Pairs cost two products, scores and weighted mean: 4 T² D operations.": (
            lambda d, f, n: 4 * d + n * f
        ),
        "The network has n_matrices matrices, 2 or 3.": lambda d, f, n: 2 * d + f,
        "Attention has four projections: W_O is one of them.": (
            lambda d, f, n: 3 * d / 2 + n * f / 2
        ),
        "A multiplication and an addition are two operations, in the matrices as in the pairs.": (
            lambda d, f, n: d + n * f / 4
        ),
        "Do not round: // cuts off what is left of a token.": (lambda d, f, n: 2 * d + n * f // 2),
    },
    hints=(
        "Write the operations of both sides for a text of T tokens, two for each multiplication "
        "with its addition. Pairs cost T² times something, matrices T times something.",
        "Pairs: scores and weighted mean, 2 T² D each. Matrices: 2 T D² for each of four "
        "projections, 2 T D F for each matrix of the network.",
        "Solve 4 T² D = 8 T D² + 2 n T D F for T: it begins with `2 * d_model`.",
    ),
)


def _traffic(length: int, width: int, block: int) -> int:
    return 2 * length * width + 3 * length * width * (length // block)


TRAFFIC = Exercise(
    reference=_traffic,
    inputs=[(1024, 64, 128), (256, 16, 32), (96, 5, 8)],
    mistakes={
        "That is the order of the page, with the queries outside; or you forgot to read the "
        "unfinished outputs again.": (lambda t, k, b: 2 * t * k + 2 * t * k * (t // b)),
        "Keys and values are read, too: once.": lambda t, k, b: 3 * t * k * (t // b),
        "Queries must be read again for each block of keys.": (
            lambda t, k, b: 3 * t * k + 2 * t * k * (t // b)
        ),
        "How many blocks of keys are there? T / b.": lambda t, k, b: 2 * t * k + 3 * t * k * b,
        "That is the plain way with its stored tables.": lambda t, k, b: 4 * t * t + 4 * t * k,
        "The outputs are written back after each block of keys, not once at the end.": (
            lambda t, k, b: 3 * t * k + t * k * (t // b)
        ),
        "Those are rows; each of them has `width` numbers.": (
            lambda t, k, b: 2 * t + 3 * t * (t // b)
        ),
        "Those are bytes; count numbers.": lambda t, k, b: 4 * _traffic(t, k, b),
    },
    hints=(
        "Which tables move once in all, and which once for each block of keys?",
        "Keys and values are read once: two tables of T × Dk numbers. There are T / b blocks; for "
        "each of them queries are read, outputs read, outputs written.",
        "That is `2 * length * width` and, `length // block` times, three more such tables.",
    ),
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


def _repeated(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    group = q.shape[1] // k.shape[1]
    return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)


def _still_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    grouped: Tensor = _grouped(q, k, v).unflatten(1, (k.shape[1], -1))
    return grouped


GROUPED = Exercise(
    reference=_grouped,
    inputs=[  # square first: there the mistakes that need equal sizes can run, and are found
        random_inputs((2, 4, 4, 4), (2, 2, 4, 4), (2, 2, 4, 4)),
        random_inputs((2, 12, 5, 6), (2, 4, 7, 6), (2, 4, 7, 6)),
    ],
    mistakes={
        "Query heads ask the wrong keys: neighbours share a head, so heads 0 and 1 come before "
        "2 and 3 in groups of two.": _tiled_heads,
        "All queries ask the first head of keys and values.": _one_head,
        "The heads of keys and values are averaged; each group has one of its own.": _mean_head,
        "The groups are still an axis of their own: the result is (B, H, T, Dk).": _still_grouped,
        **scale_slips(_repeated, equal_widths=True),
        **mixing_slips(_repeated),
    },
    hints=(
        "Heads 0 to H/G - 1 of the queries share the first head of keys and values, and so on. "
        "How often must each of the G heads stand there so that every query head has one?",
        "Repeat each head of `k` and `v` H/G times, next to itself, along axis 1. What is left is "
        "attention as in chapter 3.",
        "`k.repeat_interleave(group, dim=1)` with `group = q.shape[1] // k.shape[1]`, `v` "
        "likewise; `repeat` would put the copies in another order.",
    ),
)


def _linear_step(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (state + torch.outer(k, v)) / (q @ (total + k))


def _not_divided(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (state + torch.outer(k, v))


def _too_early(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ state / (q @ total)


def _turned(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (state + torch.outer(v, k)) / (q @ (total + k))


def _asked_from_the_right(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (state + torch.outer(k, v)) @ q / (q @ (total + k))


def _no_outer_product(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (state + k * v) / (q @ (total + k))


def _old_state(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ state / (q @ (total + k))


def _each_by_its_own(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (state + torch.outer(k, v)) / (total + k)


def _old_total(state: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (state + torch.outer(k, v)) / (q @ total)


def _positive(seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.rand(3, 4, generator=generator), torch.randn(3, 4, generator=generator)
    qk = torch.rand(2, 4, generator=generator)
    return keys.mT @ values, keys.sum(dim=0), qk[0], qk[1], torch.randn(4, generator=generator)


LINEAR_STEP = Exercise(
    reference=_linear_step,
    inputs=[_positive(0), _positive(1)],
    mistakes={
        "The weights do not sum to 1: divide by q · total.": _not_divided,
        "The newest key and value are not in the state yet: a position sees itself.": _too_early,
        "The outer product is turned round: rows of the state belong to features of keys.": _turned,
        "The new key is in the state and not in the total.": _old_total,
        "The new key is in the total and not in the state.": _old_state,
        "Rows of the state belong to features of keys, so the query stands on the left: "
        "q @ state.": _asked_from_the_right,
        "k * v multiplies number by number; every feature of the key meets every one of the value: "
        "torch.outer(k, v).": _no_outer_product,
        "Divide by one number, the query's product with the total.": _each_by_its_own,
    },
    hints=(
        "First bring the past up to date with the new token, since a position sees itself. Then "
        "let the query read.",
        "The state gets the outer product of `k` and `v`, the total gets `k`. The query reads "
        "both; what it reads from the total is the sum of its weights.",
        "The state becomes `state + torch.outer(k, v)`; the output is `q @ state / (q @ total)`, "
        "both with the new token in them.",
    ),
)


def _places(length: int) -> tuple[Tensor, Tensor]:
    return torch.arange(length)[:, None], torch.arange(length)


def _fixed(length: int, block: int) -> Tensor:
    i, j = _places(length)
    return (j <= i) & ((i // block == j // block) | (j % block == block - 1))


def _window(length: int, block: int) -> Tensor:
    i, j = _places(length)
    return (j <= i) & ((i - j < block) | (j % block == block - 1))


def _strided(length: int, block: int) -> Tensor:
    i, j = _places(length)
    return (j <= i) & ((i - j < block) | ((i - j) % block == 0))


def _blocks_only(length: int, block: int) -> Tensor:
    i, j = _places(length)
    return (j <= i) & (i // block == j // block)


def _first_of_block(length: int, block: int) -> Tensor:
    i, j = _places(length)
    return (j <= i) & ((i // block == j // block) | (j % block == 0))


def _block_before(length: int, block: int) -> Tensor:
    i, j = _places(length)
    return (j <= i) & ((i // block == j // block) | (j == i // block * block - 1))


def _not_causal(length: int, block: int) -> Tensor:
    i, j = _places(length)
    return (i // block == j // block) | (j % block == block - 1)


def _without_itself(length: int, block: int) -> Tensor:
    i, j = _places(length)
    return _fixed(length, block) & (i != j)


FIXED = Exercise(
    reference=_fixed,
    inputs=[(12, 3), (16, 4), (11, 4)],
    mistakes={
        "A position may see the future: combine the pattern with a causal mask.": _not_causal,
        "That is a sliding window; here a position sees its own block, which does not slide.": (
            _window
        ),
        "The last positions of earlier blocks are missing.": _blocks_only,
        "The summary stands at the end of a block: j % block == block - 1.": _first_of_block,
        "The last positions of all earlier blocks can be seen, not only of the one before.": (
            _block_before
        ),
        "That is the strided pattern; here the blocks stand still, and so do their summaries.": (
            _strided
        ),
        "A position sees itself, too.": _without_itself,
    },
    hints=(
        "Make the places of queries a column `i` and those of keys a row `j`. Then every rule is a "
        "comparison of the two.",
        "The same block: `i // block` equals `j // block`. The last one of a block: the remainder "
        "of `j` is `block - 1`. One of the two, and no future.",
        "Combine `i // block == j // block` and `j % block == block - 1` with `|`, then with `&` "
        "and `j <= i`.",
    ),
)
