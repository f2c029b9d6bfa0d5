"""Exercises of chapter 03, Attention."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Answer, Exercise, random_inputs
from transformer_book.exercises.grading.slips import attend, mixing_slips, scale_slips


def _token_scores() -> Tensor:
    queries = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
    keys = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    return queries @ keys.mT


def _three_tokens() -> Tensor:
    return (_token_scores() / math.sqrt(4)).softmax(dim=-1)


def _miscounted_tokens() -> Tensor:
    slips = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    return ((_token_scores() + slips) / 2).softmax(dim=-1)


THREE_TOKENS = Exercise(
    reference=_three_tokens,
    inputs=[()],
    mistakes={
        "The scores are not scaled: halve them before the softmax, since 2 is the square root of "
        "the width 4.": lambda: _token_scores().softmax(dim=-1),
        "The scores are divided by the width 4; divide by its square root.": (
            lambda: (_token_scores() / 4).softmax(dim=-1)
        ),
        "The scores are multiplied by 2; divide by it.": (
            lambda: (_token_scores() * 2).softmax(dim=-1)
        ),
        "The columns sum to 1; the weights of a query stand in a row, and it is the rows that must "
        "sum to 1.": lambda: (_token_scores() / 2).softmax(dim=0),
        "The nine weights sum to 1 together; each row must do so on its own.": (
            lambda: (_token_scores() / 2).flatten().softmax(dim=0).unflatten(0, (3, 3))
        ),
        "Those are the scores divided by their sum; the softmax takes e to their power first.": (
            lambda: _token_scores() / _token_scores().sum(dim=-1, keepdim=True)
        ),
        "Those are the scores; scale them, then turn each row into weights.": _token_scores,
        "Those are the scaled scores; the softmax of each row is missing.": (
            lambda: _token_scores() / 2
        ),
        "That is e to the power of the scaled scores; divide each row by its sum.": (
            lambda: (_token_scores() / 2).exp()
        ),
        "That is the last row alone; the other two queries have weights as well.": (
            lambda: _three_tokens()[-1]
        ),
        "The last row is not even: its query and its key share two places, so that score is 2.": (
            lambda: torch.full((3, 3), 1 / 3)
        ),
        # the engine would take rows of 0.333 for rows that are not divided by their sum
        "Right to three decimals; give four.": lambda: _three_tokens().round(decimals=3),
        "Three scores are off by one: count again how many places a query and a key share.": (
            _miscounted_tokens
        ),
    },
    hints=(
        "Begin with the nine scores. Where both vectors have a 1 in the same place, the dot "
        "product grows by 1.",
        "Eight of the scores are 1, one is 2. The width is 4, so divide them by 2. Then take e to "
        "the power of each, and divide a row by its sum.",
        "Type three rows of four decimals; the last begins with "
        "`math.exp(0.5) / (2 * math.exp(0.5) + math.exp(1))`.",
    ),
)


def _query_length(p: float) -> float:
    return math.sqrt(2) * math.log(3 * p / (2 * (1 - p)))


def _length_of(power: float) -> float:
    """The length from a wrong e^(s / root 2); NaN, as in torch, where that has no logarithm."""
    return math.sqrt(2) * math.log(power) if power > 0 else math.nan


QUERY_LENGTH = Exercise(
    reference=_query_length,
    # 0.2 and 0.4 first: the answer that gives each of the two keys the weight p needs p < 1/2
    inputs=[(0.2,), (0.4,), (0.9,), (0.5,), (0.75,)],
    mistakes={
        "The root is missing: the scaled score of a matching key is s / sqrt(2).": (
            lambda p: _query_length(p) / math.sqrt(2)
        ),
        "The root is on the wrong side: the scaled score is s / sqrt(2), so multiply by the root "
        "to get s.": lambda p: _query_length(p) / 2,
        "The scale is the square root of the width 2, not 2.": (
            lambda p: _query_length(p) * math.sqrt(2)
        ),
        "That is e^(s / sqrt(2)); take its logarithm.": lambda p: 3 * p / (2 * (1 - p)),
        "The logarithm is missing: take it of e^(s / sqrt(2)), then multiply by the root.": (
            lambda p: math.sqrt(2) * 3 * p / (2 * (1 - p))
        ),
        "Two keys match and share p; this gives p to each of them.": (
            lambda p: _length_of(3 * p / (1 - 2 * p) if p < 0.5 else 0.0)
        ),
        "Each matching key gets p / 2, but the three others share 1 - p, not 1 - p / 2.": (
            lambda p: _length_of(3 * p / (2 - p))
        ),
        "Two keys match; this counts one of them, beside the three others.": (
            lambda p: _length_of(3 * p / (1 - p))
        ),
        "Two keys match; this counts one of them, and four others.": (
            lambda p: _length_of(4 * p / (1 - p))
        ),
        "The other keys are three: each adds e^0 = 1 to the sum, and this counts one of them.": (
            lambda p: _length_of(p / (2 * (1 - p)))
        ),
        "That is for one matching key and one other; here two match and three do not.": (
            lambda p: _length_of(p / (1 - p))
        ),
        "Two and three are swapped: p = 2 e / (2 e + 3), where e is e^(s / sqrt(2)).": (
            lambda p: _length_of(2 * p / (3 * (1 - p)))
        ),
        "The matching keys belong to the sum, too: p = 2 e / (2 e + 3), where e is "
        "e^(s / sqrt(2)).": lambda p: _length_of(3 * p / 2),
        "Use the natural logarithm.": (lambda p: math.sqrt(2) * math.log10(3 * p / (2 * (1 - p)))),
        "Use the natural logarithm, not that of base 2.": (
            lambda p: math.sqrt(2) * math.log2(3 * p / (2 * (1 - p)))
        ),
        "The sign is turned round: a larger weight needs a longer query.": (
            lambda p: -_query_length(p)
        ),
        "That holds for p = 0.9 alone; find the formula for any p.": lambda p: _query_length(0.9),
    },
    hints=(
        "The dot product of the query with a matching key is s; with each of the others it is 0. "
        "Scale these five scores and write down their softmax: what stands below the line?",
        "Two keys add e^(s / sqrt(2)) each, three add e^0 = 1 each, and p is the share of the two: "
        "2 e / (2 e + 3), where e is e^(s / sqrt(2)). Solve it for e first.",
        "e^(s / sqrt(2)) = 3 p / (2 (1 - p)); undo the exponential with `math.log`, and multiply "
        "by `math.sqrt(2)`.",
    ),
)


def _projected(
    x: Tensor, memory: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return x @ w_query.mT, memory @ w_key.mT, memory @ w_value.mT


def _head(x: Tensor, memory: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    q, k, v = _projected(x, memory, w_query, w_key, w_value)
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v


def _head_weights(*given: Tensor) -> Tensor:
    q, k, _ = _projected(*given)
    return attend(q, k, torch.eye(len(k), dtype=k.dtype))


HEAD = Exercise(
    reference=_head,
    inputs=[  # square first: there the mistakes that need equal sizes can run, and are found
        random_inputs((4, 4), (4, 4), (4, 4), (4, 4), (4, 4)),
        random_inputs((3, 6), (7, 6), (2, 6), (2, 6), (5, 6)),
    ],
    mistakes={
        "That is self-attention: keys and values must come from `memory`.": (
            lambda x, m, q, k, v: _head(x, x, q, k, v)
        ),
        "That is self-attention of the memory: the queries must come from `x`.": (
            lambda x, m, q, k, v: _head(m, m, q, k, v)
        ),
        "x and memory are swapped: the queries come from `x`, keys and values from `memory`.": (
            lambda x, m, q, k, v: _head(m, x, q, k, v)
        ),
        "The values come from `x`; what a key is found by and what it hands over must be of the "
        "same token of `memory`.": lambda x, m, q, k, v: attend(x @ q.mT, m @ k.mT, x @ v.mT),
        "The keys come from `x`; the queries must be compared with the tokens of `memory`.": (
            lambda x, m, q, k, v: attend(x @ q.mT, x @ k.mT, m @ v.mT)
        ),
        "nn.Linear stores its weight as (out, in): multiply by the transpose, x @ W.T.": (
            lambda x, m, q, k, v: _head(x, m, q.mT, k.mT, v.mT)
        ),
        "W @ x.T makes a token a column, and q @ k.mT needs rows: x @ W.T.": (
            lambda x, m, q, k, v: attend(q @ x.mT, k @ m.mT, v @ m.mT)
        ),
        "The keys are not transposed: q @ k.mT compares each query with each key.": (
            lambda x, m, q, k, v: attend(x @ q.mT, k @ m.mT, m @ v.mT)
        ),
        "The queries are transposed as well: q @ k.mT, with the keys alone transposed.": (
            lambda *given: attend(_projected(*given)[0].mT, *_projected(*given)[1:])
        ),
        "The values are not projected: the memory itself went into the mean.": (
            lambda x, m, q, k, v: attend(x @ q.mT, m @ k.mT, m)
        ),
        "These are the weights; mix the values with them.": _head_weights,
        "The scale counts D, the width of x; it must be Dk, the width of a query.": (
            lambda x, *given: attend(*_projected(x, *given), scale=1 / math.sqrt(x.shape[-1]))
        ),
        "The scale counts the queries; the width of one of them is what matters.": (
            lambda x, *given: attend(*_projected(x, *given), scale=1 / math.sqrt(len(x)))
        ),
        **scale_slips(_projected),
        **mixing_slips(_projected),
    },
    hints=(
        "The head is attention between three projections. Which of them are made from `x`, which "
        "from `memory`, and which shape has each?",
        "Queries are (T, Dk), keys (S, Dk), values (S, Dv), so the scores are (T, S). A stored "
        "matrix is (Dk, D): it has to be transposed before `x` or `memory` is multiplied by it.",
        "The queries are `x @ w_query.T`, the keys `memory @ w_key.T`, the values likewise; the "
        "weights are `(q @ k.T / math.sqrt(w_query.shape[0])).softmax(dim=-1)`.",
    ),
)


def _squared_distances(query: Tensor, keys: Tensor) -> Tensor:
    return (keys - query).square().sum(dim=-1)


def _by_distance(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    exponents = -_squared_distances(query, keys) / (2 * math.sqrt(len(query)))
    return exponents.softmax(dim=0) @ values


def _divided_by(scale: Callable[[int], float]) -> Answer:
    """A mistake in what the squared distances are divided by, from the width Dk."""
    return lambda q, k, v: (-_squared_distances(q, k) / scale(len(q))).softmax(dim=0) @ v


def _from_exponents(change: Callable[[Tensor, Tensor], Tensor]) -> Answer:
    """A mistake that is made with the right exponents and the values."""
    return lambda q, k, v: change(-_squared_distances(q, k) / (2 * math.sqrt(len(q))), v)


BY_DISTANCE = Exercise(
    reference=_by_distance,
    inputs=[  # as many keys as features first: there a sum over the wrong axis can run
        random_inputs((3,), (3, 3), (3, 2)),
        random_inputs((2,), (6, 2), (6, 5)),
        random_inputs((5,), (4, 5), (4, 3)),
    ],
    mistakes={
        "This is the plain mean: the weights must depend on the query.": (
            lambda q, k, v: v.mean(dim=0)
        ),
        "This is the value of the nearest key alone; mix all values by their weights.": (
            lambda q, k, v: v[_squared_distances(q, k).argmin()]
        ),
        "These are dot products, so this is attention; here the distances decide.": (
            lambda q, k, v: attend(q[None], k, v)[0]
        ),
        "The weights do not sum to 1: divide them by their sum.": (
            _from_exponents(lambda exponents, v: exponents.exp() @ v)
        ),
        "The exponents went in as weights; take e to their power, and divide by the sum.": (
            _from_exponents(lambda exponents, v: exponents @ v)
        ),
        "The distances are divided by their sum: the farthest key gets the largest weight. Take e "
        "to the power of minus the distance first.": (
            _from_exponents(lambda exponents, v: exponents / exponents.sum() @ v)
        ),
        "The sign is turned round: the farthest key gets the largest weight.": (
            _from_exponents(lambda exponents, v: (-exponents).softmax(dim=0) @ v)
        ),
        "The distance is not squared: leave out the root.": lambda q, k, v: (
            (-_squared_distances(q, k).sqrt() / (2 * math.sqrt(len(q)))).softmax(dim=0) @ v
        ),
        "The differences are added up unsquared, so that they cancel: square them first.": (
            lambda q, k, v: (-(k - q).sum(dim=-1) / (2 * math.sqrt(len(q)))).softmax(dim=0) @ v
        ),
        "The squares are averaged over the width; a squared distance is their sum.": (
            _divided_by(lambda width: 2 * math.sqrt(width) * width)
        ),
        "The squares are added up over the keys; each key has a distance of its own (dim=-1).": (
            lambda q, k, v: (
                (-(k - q).square().sum(dim=0) / (2 * math.sqrt(len(q)))).softmax(dim=0) @ v
            )
        ),
        "The factor 2 is missing: divide by twice the square root of Dk.": _divided_by(math.sqrt),
        "The squared width of the kernel is the square root of Dk, not Dk: divide by 2 sqrt(Dk).": (
            _divided_by(lambda width: 2 * width)
        ),
        "The root of Dk is missing: divide by 2 sqrt(Dk), not by 2.": _divided_by(lambda width: 2),
        "The squared distances are not scaled: divide by 2 sqrt(Dk).": _divided_by(lambda width: 1),
        "These are the weights; mix the values with them.": (
            _from_exponents(lambda exponents, v: exponents.softmax(dim=0))
        ),
        "The keys are mixed; mix the values.": lambda q, k, v: _by_distance(q, k, k),
        "These are the weighted values one by one; add them up.": (
            _from_exponents(lambda exponents, v: exponents.softmax(dim=0)[:, None] * v)
        ),
    },
    hints=(
        "How far is the query from each key? There is one distance for each of the S keys, and a "
        "smaller one means more weight.",
        "`(keys - query).square().sum(dim=-1)` holds the S squared distances. Divide them by 2 "
        "sqrt(Dk), turn the sign round, take e to their power, and divide by the sum.",
        "A softmax does the last two: with `exponents = -squared / (2 * math.sqrt(len(query)))` "
        "the result is `exponents.softmax(dim=0) @ values`.",
    ),
)
