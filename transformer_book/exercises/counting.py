"""Exercises of chapter 19, Counting and scaling."""

import math

from transformer_book.exercises.grading.checking import Exercise


def _block(d_model: int, d_ff: int, n_heads: int, n_kv_heads: int) -> int:
    d_kv = d_model // n_heads * n_kv_heads
    return 2 * d_model * (d_model + d_kv) + 3 * d_model * d_ff + 2 * d_model


BLOCK = Exercise(
    reference=_block,
    inputs=[(64, 160, 8, 2), (4096, 14_336, 32, 8), (60, 100, 12, 3)],
    mistakes={
        "A gated network has three matrices: two go up, one comes down.": (
            lambda d, f, h, kv: _block(d, f, h, kv) - d * f
        ),
        "Keys and values are narrower: n_kv_heads heads, not n_heads.": (
            lambda d, f, h, kv: _block(d, f, h, h)
        ),
        "There are keys and values: two narrow matrices.": (
            lambda d, f, h, kv: _block(d, f, h, kv) - d * (d // h) * kv
        ),
        "The output projection is missing: queries and output are both square.": (
            lambda d, f, h, kv: _block(d, f, h, kv) - d * d
        ),
        "The norms are missing: two gains of width d_model.": (
            lambda d, f, h, kv: _block(d, f, h, kv) - 2 * d
        ),
        "That counts one norm; a block has two.": lambda d, f, h, kv: _block(d, f, h, kv) - d,
        "RMSNorm has a gain and no bias: 2 d_model for both, not 4.": (
            lambda d, f, h, kv: _block(d, f, h, kv) + 2 * d
        ),
        "A head of keys is d_model / n_heads wide: multiply n_kv_heads by it.": (
            lambda d, f, h, kv: 2 * d * (d + kv) + 3 * d * f + 2 * d
        ),
        "The inner width is d_ff, which need not be 4 d_model.": (
            lambda d, f, h, kv: _block(d, 4 * d, h, kv)
        ),
        "This block has no biases.": (
            lambda d, f, h, kv: _block(d, f, h, kv) + 3 * d + 2 * (d // h * kv) + 2 * f
        ),
    },
    hints=(
        "List the matrices: four of attention, three of a gated network. Which of them are "
        "narrower than d_model × d_model?",
        "Queries and output are square. Keys and values are as wide as `n_kv_heads` heads of "
        "d_model / n_heads each. Each of the two norms has one gain.",
        "With `d_kv = d_model // n_heads * n_kv_heads`, attention has "
        "`2 * d_model**2 + 2 * d_model * d_kv`; add the network and the norms.",
    ),
)


def _flops(d_model: int, n_layers: int, vocab_size: int, length: int) -> int:
    matrices = 12 * n_layers * d_model**2 + vocab_size * d_model
    return 6 * matrices + 12 * n_layers * length * d_model


FLOPS_PER_TOKEN = Exercise(
    reference=_flops,
    inputs=[(64, 2, 100, 16), (768, 12, 50_257, 1024)],
    mistakes={
        "That is the forward pass of the matrices; add the products inside attention, and the "
        "backward pass, which costs twice as much again.": (
            lambda d, n, v, t: _flops(d, n, v, 0) // 3
        ),
        "That is the forward pass alone; the backward pass costs twice as much again.": (
            lambda d, n, v, t: _flops(d, n, v, t) // 3
        ),
        "That is the backward pass alone; add the forward pass.": (
            lambda d, n, v, t: 2 * _flops(d, n, v, t) // 3
        ),
        "A multiplication and an addition are two operations.": (
            lambda d, n, v, t: _flops(d, n, v, t) // 2
        ),
        "The products inside attention are missing: they have no parameters.": (
            lambda d, n, v, t: _flops(d, n, v, 0)
        ),
        "Attention has two products without parameters, scores and the weighted sum, and all pairs "
        "count, also those that a mask hides.": (
            lambda d, n, v, t: _flops(d, n, v, t) - 6 * n * t * d
        ),
        "The output matrix is missing.": lambda d, n, v, t: _flops(d, n, 0, t),
        "Looking up a row in a table is no multiplication: count the vocabulary once.": (
            lambda d, n, v, t: _flops(d, n, 2 * v, t)
        ),
        "That is the whole text; one token was asked for.": (
            lambda d, n, v, t: t * _flops(d, n, v, t)
        ),
        "A token meets `length` keys: the pairs of one token, not of the whole text.": (
            lambda d, n, v, t: _flops(d, n, v, t * t)
        ),
        "The products inside attention are made on the way back, too: three times in all.": (
            lambda d, n, v, t: _flops(d, n, v, t) - 8 * n * t * d
        ),
        "The feed-forward network is missing: 8 d_model² parameters in each block.": (
            lambda d, n, v, t: _flops(d, n, v, t) - 48 * n * d**2
        ),
        "That is one block; there are n_layers.": lambda d, n, v, t: _flops(d, 1, v, t),
    },
    hints=(
        "Two kinds of products: those with parameters, and those inside attention. A step of "
        "training costs three forward passes: one forwards, and twice as much backwards.",
        "Each parameter of a matrix costs 2 FLOPs forwards, so 6 in all. A block has 12 d_model² "
        "of them. Scores and weighted sum cost 2 · length · d_model each, forwards.",
        "The matrices have `12 * n_layers * d_model**2 + vocab_size * d_model` parameters; the "
        "pairs add `3 * 4 * n_layers * length * d_model`.",
    ),
)


def _bytes(
    n_parameters: int, n_layers: int, d_model: int, n_heads: int, batch: int, length: int
) -> int:
    kept = 16 * d_model + n_heads * length
    return 16 * n_parameters + 4 * n_layers * batch * length * kept


TRAINING_BYTES = Exercise(
    reference=_bytes,
    inputs=[
        (10_000, 2, 16, 2, 3, 8),
        (124_439_808, 12, 768, 12, 8, 1024),
        (1_000, 3, 20, 4, 5, 7),
    ],
    mistakes={
        "The activations are numbers so far; each takes four bytes.": (
            lambda p, n, d, h, b, t: 16 * p + n * b * t * (16 * d + h * t)
        ),
        "The activations are missing.": lambda p, n, d, h, b, t: 16 * p,
        "The attention weights are missing: n_heads × length for each token.": (
            lambda p, n, d, h, b, t: _bytes(p, n, d, 0, b, t)
        ),
        "Weights and gradients are there; Adam's two running means are missing.": (
            lambda p, n, d, h, b, t: _bytes(p, n, d, h, b, t) - 8 * p
        ),
        "Weights and Adam's means are there; the gradients are missing.": (
            lambda p, n, d, h, b, t: _bytes(p, n, d, h, b, t) - 4 * p
        ),
        "That is one layer's activations; there are n_layers.": (
            lambda p, n, d, h, b, t: _bytes(p, 1, d, h, b, t)
        ),
        "That is one text; there are `batch` of them.": (
            lambda p, n, d, h, b, t: _bytes(p, n, d, h, 1, t)
        ),
        "Beside the weights there are gradients and Adam's two running means.": (
            lambda p, n, d, h, b, t: _bytes(p, n, d, h, b, t) - 12 * p
        ),
        "Each head keeps a table of its own: n_heads of them.": (
            lambda p, n, d, h, b, t: _bytes(p, n, d, 1, b, t)
        ),
    },
    hints=(
        "Two sums: what is kept for each parameter, and what is kept for each token in each block "
        "until the backward pass.",
        "For each parameter: weight, gradient and two running means of Adam, four bytes each. For "
        "each token and block add up the comments of `block`: multiples of d, and H T.",
        "A token keeps `16 * d_model + n_heads * length` numbers in each block; multiply by "
        "tokens, blocks and four bytes, and add `16 * n_parameters`.",
    ),
)


def _exponent(sizes: list[float], losses: list[float], floor: float) -> float:
    fall = math.log((losses[0] - floor) / (losses[-1] - floor))
    return fall / math.log(sizes[-1] / sizes[0])


EXPONENT = Exercise(
    reference=_exponent,
    inputs=[
        ([1e4, 1e6], [3.0, 1.5], 1.0),
        ([1e3, 1e5], [2.0, 1.1], 0.0),
        ([2e3, 5e4, 8e5], [4.0, 2.5, 1.7], 0.9),
    ],
    mistakes={
        "Take the floor off the losses first.": lambda n, loss, e: _exponent(n, loss, 0.0),
        "The sign: a loss that falls has a positive exponent in L = E + A / N^alpha.": (
            lambda n, loss, e: -_exponent(n, loss, e)
        ),
        "That is the fall for each doubling, not the exponent: do not divide by log 2.": (
            lambda n, loss, e: _exponent(n, loss, e) * math.log(2)
        ),
        "Both axes are logarithmic: take the logarithm of the losses, too.": (
            lambda n, loss, e: (loss[0] - loss[-1]) / math.log(n[-1] / n[0])
        ),
        "That is one over the slope: the rise of the loss over the run of the size.": (
            lambda n, loss, e: 1 / _exponent(n, loss, e)
        ),
        "That is the slope between the first two sizes; take the first and the last.": (
            lambda n, loss, e: _exponent(n[:2], loss[:2], e)
        ),
        "Both axes are logarithmic: take the logarithm of the sizes, too.": (
            lambda n, loss, e: math.log((loss[0] - e) / (loss[-1] - e)) / (n[-1] - n[0])
        ),
        "Take the same logarithm of losses and sizes.": (
            lambda n, loss, e: _exponent(n, loss, e) * math.log(10)
        ),
    },
    hints=(
        "Above its floor the loss is A / N^alpha. What does the logarithm make of that?",
        "log(L - E) falls in a straight line with log N, and alpha is how steeply. Two points give "
        "the slope: fall of one logarithm over rise of the other.",
        "The fall is `math.log((losses[0] - floor) / (losses[-1] - floor))`; divide it by the "
        "logarithm of the last size over the first.",
    ),
)


def _best_size(flops: float, a: float, b: float, alpha: float, beta: float) -> float:
    both = alpha + beta
    return float((alpha * a / (beta * b)) ** (1 / both) * (flops / 6) ** (beta / both))


BEST_SIZE = Exercise(
    reference=_best_size,
    inputs=[(6e8, 100.0, 400.0, 0.5, 0.5), (6e12, 40.0, 900.0, 0.3, 0.6)],
    mistakes={
        "The exponents are the wrong way round: N grows as C^(beta / (alpha + beta)).": (
            lambda c, a, b, x, y: float(
                (x * a / (y * b)) ** (1 / (x + y)) * (c / 6) ** (x / (x + y))
            )
        ),
        "C = 6 N D: divide the budget by six.": (
            lambda c, a, b, x, y: _best_size(6 * c, a, b, x, y)
        ),
        "That makes both terms equal; the derivatives must be: alpha A / N^alpha = "
        "beta B / D^beta.": lambda c, a, b, x, y: _best_size(c, a / x, b / y, x, y),
        "That is D, the number of tokens; N was asked for.": (
            lambda c, a, b, x, y: c / 6 / _best_size(c, a, b, x, y)
        ),
        "The factor in front is missing: (alpha A / (beta B)) to the power 1 / (alpha + beta).": (
            lambda c, a, b, x, y: float((c / 6) ** (y / (x + y)))
        ),
        "The ratio is upside down: alpha A stands above beta B.": (
            lambda c, a, b, x, y: float(
                (y * b / (x * a)) ** (1 / (x + y)) * (c / 6) ** (y / (x + y))
            )
        ),
        "The ratio, too, is raised to a power: 1 / (alpha + beta).": (
            lambda c, a, b, x, y: float(x * a / (y * b) * (c / 6) ** (y / (x + y)))
        ),
        "N grows with the root of the budget only if alpha equals beta.": (
            lambda c, a, b, x, y: float((x * a / (y * b)) ** (1 / (x + y)) * (c / 6) ** 0.5)
        ),
    },
    hints=(
        "With a given budget, a larger N means a smaller D: D = C / (6 N). At the best N a little "
        "more of one gains what a little less of the other loses.",
        "That is the case where alpha A / N^alpha = beta B / D^beta. Put C / (6 N) in place of D "
        "and bring N to one side: it stands there to the power alpha + beta.",
        "N to that power is alpha A / (beta B) times (C / 6)^beta; the root is "
        "`** (1 / (alpha + beta))`.",
    ),
)
