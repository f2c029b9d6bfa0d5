"""Exercises of chapter 13, The whole Transformer."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs


def _count(  # all biases and norms of the 2017 model, one table for everything
    d_model: int, d_ff: int, n_layers: int, vocab_size: int, *, attentions: int = 3, tables: int = 1
) -> int:
    attention = 4 * d_model * (d_model + 1)
    network = 2 * d_model * d_ff + d_ff + d_model
    norms = 5 * 2 * d_model  # two in an encoder layer, three in a decoder layer
    layer_pair = attentions * attention + 2 * network + norms
    return n_layers * layer_pair + tables * vocab_size * d_model


COUNT = Exercise(
    reference=_count,
    inputs=[(512, 2048, 6, 37_000), (1024, 4096, 6, 37_000), (8, 24, 2, 11)],
    mistakes={
        "The table is counted three times: encoder, decoder and output share one.": (
            lambda d, f, n, v: _count(d, f, n, v, tables=3)
        ),
        "The table is counted twice: encoder and decoder share one, and so does the output.": (
            lambda d, f, n, v: _count(d, f, n, v, tables=2)
        ),
        "Cross-attention is missing: a decoder layer has two attentions.": (
            lambda d, f, n, v: _count(d, f, n, v, attentions=2)
        ),
        "The biases of the linear maps are missing.": (
            lambda d, f, n, v: _count(d, f, n, v) - n * (3 * 4 * d + 2 * (f + d))
        ),
        "The norms are missing: each has a gain and a bias of D numbers, and a pair of layers "
        "has five.": lambda d, f, n, v: _count(d, f, n, v) - n * 10 * d,
        "A norm has a gain and a bias; one of them is missing.": (
            lambda d, f, n, v: _count(d, f, n, v) - n * 5 * d
        ),
        "That is one encoder layer and one decoder layer; there are n_layers of each.": (
            lambda d, f, n, v: _count(d, f, 1, v)
        ),
        "There is a norm too many at the end of each stack; the model of 2017 has none there.": (
            lambda d, f, n, v: _count(d, f, n, v) + 2 * 2 * d
        ),
        "The output layer is the table itself; it has no bias of its own.": (
            lambda d, f, n, v: _count(d, f, n, v) + v
        ),
        "A decoder layer has three norms, one for each sublayer: cross-attention has one, too.": (
            lambda d, f, n, v: _count(d, f, n, v) - n * 2 * d
        ),
        "An attention has four matrices; the one of the output is missing.": (
            lambda d, f, n, v: _count(d, f, n, v) - n * 3 * d * (d + 1)
        ),
        "The table is missing: vocab_size rows of D numbers.": (
            lambda d, f, n, v: _count(d, f, n, v, tables=0)
        ),
        "A network has two matrices, D times F and F times D.": (
            lambda d, f, n, v: _count(d, f, n, v) - n * 2 * d * f
        ),
    },
    hints=(
        "Count one attention, one network and one norm. Then ask how many of each a pair of layers "
        "has, one of the encoder and one of the decoder.",
        "An attention has four matrices D by D with biases; a network D·F + F and F·D + D; a norm "
        "2 D. A pair has three attentions, two networks and five norms.",
        "One attention has `4 * (d_model**2 + d_model)`. Multiply the pair by `n_layers`, and add "
        "the table once: `vocab_size * d_model`.",
    ),
)


def _table_start(d_model: int, output_factor: float) -> tuple[float, float]:
    std = 1 / (output_factor * math.sqrt(d_model))
    return std, 1 / std


TABLE_START = Exercise(
    reference=_table_start,
    returns=("standard deviation", "input factor"),
    inputs=[(512, 1.0), (512, 512**-0.5), (64, 0.5), (100, 0.02)],
    mistakes={
        "The output factor is forgotten: it multiplies every logit.": (
            lambda d, f: (1 / math.sqrt(d), math.sqrt(d))
        ),
        "A logit is a sum of D products: its standard deviation has a factor √D.": (
            lambda d, f: (1 / f, f)
        ),
        "That is the variance of the table; take its root.": (
            lambda d, f: (1 / (f * f * d), f * math.sqrt(d))
        ),
        "Larger logits need a smaller table: divide by the output factor.": (
            lambda d, f: (f / math.sqrt(d), math.sqrt(d) / f)
        ),
        "The input factor must undo the table's standard deviation, whatever that is; it is √D "
        "only without a factor at the output.": (
            lambda d, f: (1 / (f * math.sqrt(d)), math.sqrt(d))
        ),
        "The two numbers are swapped: first the standard deviation, then the input factor.": (
            lambda d, f: (f * math.sqrt(d), 1 / (f * math.sqrt(d)))
        ),
        "A sum of D independent products grows with √D, not with D.": (
            lambda d, f: (1 / (f * d), f * d)
        ),
    },
    hints=(
        "Take the output first. Of what size is a sum of D products of an entry of size 1 and an "
        "entry of the table?",
        "Its standard deviation is √D times the table's. Multiplied by the output factor, it must "
        "be 1. At the input the rows have the table's standard deviation; make it 1.",
        "The standard deviation is `1 / (output_factor * math.sqrt(d_model))`, and the input "
        "factor is 1 divided by it.",
    ),
)


def _logit_gradient(logits: Tensor, targets: Tensor, ignore: int) -> Tensor:
    counted = targets != ignore
    one_hot = torch.zeros_like(logits)
    one_hot[counted, targets[counted]] = 1.0
    return (logits.softmax(dim=-1) - one_hot) * counted[:, None] / counted.sum()


def _all_counted(logits: Tensor, targets: Tensor, ignore: int) -> Tensor:
    """Padding is left out of the sum, but the mean is over all positions."""
    counted = targets != ignore
    return _logit_gradient(logits, targets, ignore) * counted.sum() / len(targets)


def _pushes_padding(logits: Tensor, targets: Tensor, ignore: int) -> Tensor:
    counted = targets != ignore
    return torch.where(
        counted[:, None],
        _logit_gradient(logits, targets, ignore),
        logits.softmax(dim=-1) / counted.sum(),
    )


_LOGITS, _OTHERS = random_inputs((4, 5), (3, 6))
LOGIT_GRADIENT = Exercise(
    reference=_logit_gradient,
    inputs=[
        (_LOGITS, torch.tensor([1, 0, -100, 4], device="cpu"), -100),
        (_OTHERS, torch.tensor([5, 2, 2], device="cpu"), -100),
        (_OTHERS, torch.tensor([4, 1, 1], device="cpu"), 1),  # a real token's id marks padding
    ],
    mistakes={
        "The sign is wrong: it is the probabilities minus what they should be.": (
            lambda x, y, i: -_logit_gradient(x, y, i)
        ),
        "The loss is a mean: divide by the number of counted positions.": (
            lambda x, y, i: _logit_gradient(x, y, i) * (y != i).sum()
        ),
        "The mean counts padding: divide by the positions that have a target.": _all_counted,
        "A position without a target must get zeros: it is not part of the loss.": (
            _pushes_padding
        ),
        "Those are probabilities; take away 1 at the target.": (
            lambda x, y, i: x.softmax(dim=-1) * (y != i)[:, None] / (y != i).sum()
        ),
        "Positions without a target are marked by `ignore`, whatever number that is; a negative "
        "id is not the test.": lambda x, y, i: _logit_gradient(x, y, -100),
        "The logits themselves are compared with the target; first make probabilities of them.": (
            lambda x, y, i: (
                _logit_gradient(x, y, i)
                + (x - x.softmax(dim=-1)) * (y != i)[:, None] / (y != i).sum()
            )
        ),
        "Divide by the number of positions; this divides by the number of all logits.": (
            lambda x, y, i: _logit_gradient(x, y, i) / x.shape[1]
        ),
    },
    hints=(
        "For one position the gradient of the loss for its logits is short: what is said minus "
        "what should be said.",
        "Said is the softmax of the row, should be is 1 at the target and 0 elsewhere. Rows where "
        "`targets` is `ignore` become zeros, and all others are divided by their number.",
        "With `counted = targets != ignore` the last step is "
        "`(said - should) * counted[:, None] / counted.sum()`.",
    ),
)


def _adam(
    weight: float,
    gradients: list[float],
    rate: float,
    *,
    beta_2: float = 0.98,
    eps: float = 1e-9,
    first: int = 1,
    square: Callable[[float], float] = lambda g: g * g,
) -> float:
    """Follow Adam of the 2017 paper through a list of gradients."""
    mean = size = 0.0
    for step, gradient in enumerate(gradients, start=first):
        mean = 0.9 * mean + 0.1 * gradient
        size = beta_2 * size + (1 - beta_2) * square(gradient)
        corrected, root = mean / (1 - 0.9**step), math.sqrt(size / (1 - beta_2**step))
        weight -= rate * corrected / (root + eps)
    return weight


def _moments(gradients: list[float]) -> Iterator[tuple[int, float, float]]:
    """The number of each step and both means after it, without corrections."""
    mean = size = 0.0
    for step, gradient in enumerate(gradients, start=1):
        mean, size = 0.9 * mean + 0.1 * gradient, 0.98 * size + 0.02 * gradient**2
        yield step, mean, size


def _adam_uncorrected(weight: float, gradients: list[float], rate: float) -> float:
    steps = (m / (math.sqrt(v) + 1e-9) for _, m, v in _moments(gradients))
    return weight - rate * sum(steps)


def _adam_with_eps_inside(weight: float, gradients: list[float], rate: float) -> float:
    steps = (
        m / (1 - 0.9**t) / math.sqrt(v / (1 - 0.98**t) + 1e-9) for t, m, v in _moments(gradients)
    )
    return weight - rate * sum(steps)


def _adam_without_root(weight: float, gradients: list[float], rate: float) -> float:
    steps = (m / (1 - 0.9**t) / (v / (1 - 0.98**t) + 1e-9) for t, m, v in _moments(gradients))
    return weight - rate * sum(steps)


ADAM = Exercise(
    reference=_adam,
    inputs=[
        (1.0, [0.2], 0.1),
        (-0.5, [0.3, -0.1, 0.4], 0.1),
        (0.0, [1e-5, 2e-5], 0.1),
        (0.3, [2e-9, 5e-9], 0.1),  # hardly larger than epsilon
    ],
    mistakes={
        "The corrections are missing: divide by 1 - 0.9^t and 1 - 0.98^t.": (_adam_uncorrected),
        "It goes uphill: take the step away.": lambda w, g, r: 2 * w - _adam(w, g, r),
        "Steps are counted from 1, or the corrections are too small.": (
            lambda w, g, r: _adam(w, g, r, first=2)
        ),
        "Steps are counted from 1; at step 0 the corrections divide by 0.": (
            lambda w, g, r: _adam(w, g, r, first=0)
        ),
        "Epsilon is inside the root; Adam adds it to the root.": (_adam_with_eps_inside),
        "That is plain gradient descent.": lambda w, g, r: w - r * sum(g),
        "The second mean is one of squares, not of absolute values.": (
            lambda w, g, r: _adam(w, g, r, square=abs)
        ),
        "Epsilon is 1e-9 in the paper; this is another one.": (
            lambda w, g, r: _adam(w, g, r, eps=1e-8)
        ),
        "Epsilon is missing: it is added to the root.": (lambda w, g, r: _adam(w, g, r, eps=0.0)),
        "The paper's second number is 0.98; 0.999 is PyTorch's.": (
            lambda w, g, r: _adam(w, g, r, beta_2=0.999)
        ),
        "The root is missing: divide by the root of the second mean.": _adam_without_root,
        "The means are not kept from step to step: this uses each gradient alone.": (
            lambda w, g, r: w - r * sum(x / (abs(x) + 1e-9) for x in g)
        ),
        "Only the first gradient is used; go through the whole list.": (
            lambda w, g, r: _adam(w, g[:1], r)
        ),
    },
    hints=(
        "Two numbers are carried from step to step: a running mean of the gradients and one of "
        "their squares. Both start at 0.",
        "At step t, counted from 1: m = 0.9 m + 0.1 g and v = 0.98 v + 0.02 g². Divide m by "
        "1 - 0.9^t and v by 1 - 0.98^t, without changing m and v themselves.",
        "Loop over `enumerate(gradients, start=1)`; the step is "
        "`rate * m_hat / (math.sqrt(v_hat) + 1e-9)`, and it is taken away.",
    ),
)


def _tied_gradient(x: Tensor, logit_bar: Tensor, ids: Tensor, x_bar: Tensor) -> Tensor:
    """Sum what a table gets as the output layer and what it gets where it is looked up."""
    table_bar = logit_bar.mT @ x
    return table_bar.index_add(0, ids, math.sqrt(x.shape[-1]) * x_bar)


def _last_lookup_only(x: Tensor, logit_bar: Tensor, ids: Tensor, x_bar: Tensor) -> Tensor:
    looked_up = torch.zeros(logit_bar.shape[1], x.shape[1], dtype=x.dtype, device=x.device)
    for i, bar in zip(ids.tolist(), x_bar, strict=True):
        looked_up[i] = math.sqrt(x.shape[-1]) * bar  # overwritten where a token comes twice
    return logit_bar.mT @ x + looked_up


def _tied(ids: list[int], d_model: int, vocab_size: int) -> tuple[Tensor, ...]:
    """Vectors, gradients of their logits, ids, and gradients of the looked-up vectors."""
    n = len(ids)
    x, logit_bar, x_bar = random_inputs((n, d_model), (n, vocab_size), (n, d_model))
    return x, logit_bar, torch.tensor(ids, device="cpu"), x_bar


TIED_GRADIENT = Exercise(
    reference=_tied_gradient,
    inputs=[_tied([1, 3, 1, 4, 0], 6, 5), _tied([1, 3, 1], 4, 5), _tied([2, 0, 2, 2], 3, 7)],
    mistakes={
        "That is the output layer's part alone; add what the lookups get.": (
            lambda x, g, ids, b: g.mT @ x
        ),
        "That is the lookups' part alone; add what the output layer gets.": (
            lambda x, g, ids, b: _tied_gradient(x, g, ids, b) - g.mT @ x
        ),
        "The factor √D of the embedding is missing on the way back.": (
            lambda x, g, ids, b: _tied_gradient(x, g, ids, b / math.sqrt(x.shape[-1]))
        ),
        "A token that is read twice gets both gradients, added up.": _last_lookup_only,
        "The factor of the embedding is √D, not D.": (
            lambda x, g, ids, b: _tied_gradient(x, g, ids, b * math.sqrt(x.shape[-1]))
        ),
        "The lookups are divided by √D; the way back multiplies by it, as the way in did.": (
            lambda x, g, ids, b: _tied_gradient(x, g, ids, b / x.shape[-1])
        ),
        "The factor √D belongs to the lookups alone; the output layer has none.": (
            lambda x, g, ids, b: (
                math.sqrt(x.shape[-1]) * _tied_gradient(x, g, ids, b / math.sqrt(x.shape[-1]))
            )
        ),
        "The logits are x Eᵀ, so the table's part is logit_barᵀ x: transpose it.": (
            lambda x, g, ids, b: _tied_gradient(x, g.mT, ids, b)
        ),
    },
    hints=(
        "The table has two jobs, and each sends a gradient back. The gradient of the table is "
        "their sum.",
        "As the output layer, logits = x Eᵀ: its part is `(V, N) @ (N, D)`. As a lookup, row "
        "`ids[n]` gets √D times row n of `x_bar`, added up where a token comes twice.",
        "The first part is `logit_bar.T @ x`; `index_add(0, ids, ...)` adds the second.",
    ),
)
