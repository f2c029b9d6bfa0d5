"""Exercises of chapter 13, The whole Transformer."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


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
    },
)


def _token_rms(vocab_size: int, d_model: int) -> float:
    return math.sqrt(2 * d_model / (vocab_size + d_model))


TOKEN_RMS = Exercise(
    reference=_token_rms,
    inputs=[(32_000, 512), (1_000, 64), (100, 100)],
    mistakes={
        "The factor √D is missing: the table is looked up, and then multiplied.": (
            lambda v, d: math.sqrt(2 / (v + d))
        ),
        "That is the mean square; take its root.": lambda v, d: 2 * d / (v + d),
        "The 2 is missing: the variance is 2 / (rows + columns).": (
            lambda v, d: math.sqrt(d / (v + d))
        ),
        "That is the bound of the uniform distribution; its standard deviation is smaller by √3.": (
            lambda v, d: math.sqrt(6 * d / (v + d))
        ),
    },
)


def _greedy(scores: Tensor, start: int, end: int, limit: int) -> list[int]:
    """Follow the best token from a table whose row is the token before."""
    ids = [start]
    for _ in range(limit):
        ids.append(int(scores[ids[-1]].argmax()))
        if ids[-1] == end:
            break
    return ids[1:]


def _greedy_from_the_start(scores: Tensor, start: int, end: int, limit: int) -> list[int]:
    """Ask for the token after the start again and again."""
    del end
    return [int(scores[start].argmax())] * limit


def _greedy_without_end(scores: Tensor, start: int, end: int, limit: int) -> list[int]:
    del end
    ids = [start]
    for _ in range(limit):
        ids.append(int(scores[ids[-1]].argmax()))
    return ids[1:]


GREEDY_TABLE = torch.tensor(
    [
        [0.0, 1.0, 4.0, 2.0, 3.0],
        [5.0, 1.0, 2.0, 3.0, 4.0],
        [1.0, 2.0, 0.0, 6.0, 5.0],
        [2.0, 7.0, 1.0, 0.0, 3.0],
        [1.0, 0.0, 3.0, 2.0, 9.0],
    ],
    device="cpu",
)
GREEDY = Exercise(
    reference=_greedy,
    inputs=[(GREEDY_TABLE, 0, 1, 10), (GREEDY_TABLE, 4, 1, 3), (GREEDY_TABLE, 2, 0, 6)],
    mistakes={
        "The start token is not part of what was written: leave it out.": (
            lambda s, start, end, limit: [start, *_greedy(s, start, end, limit)]
        ),
        "It goes on after the end token.": _greedy_without_end,
        "The end token is written too: the answer stops right after it.": (
            lambda s, start, end, limit: [i for i in _greedy(s, start, end, limit) if i != end]
        ),
        "What was written is not read: each new token must become the input of the next step.": (
            _greedy_from_the_start
        ),
    },
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
    },
)


def _adam(
    weight: float,
    gradients: list[float],
    rate: float,
    *,
    corrected: bool = True,
    eps_inside: bool = False,
    square: Callable[[float], float] = lambda g: g * g,
    first: int = 1,
) -> float:
    """Follow Adam of the 2017 paper through a list of gradients."""
    mean = size = 0.0
    for step, gradient in enumerate(gradients, start=first):
        mean = 0.9 * mean + 0.1 * gradient
        size = 0.98 * size + 0.02 * square(gradient)
        m, v = (mean / (1 - 0.9**step), size / (1 - 0.98**step)) if corrected else (mean, size)
        root = math.sqrt(v + 1e-9) if eps_inside else math.sqrt(v) + 1e-9
        weight -= rate * m / root
    return weight


ADAM = Exercise(
    reference=_adam,
    inputs=[(1.0, [0.2], 0.1), (-0.5, [0.3, -0.1, 0.4], 0.1), (0.0, [1e-5, 2e-5], 0.1)],
    mistakes={
        "The corrections are missing: divide by 1 - 0.9^t and 1 - 0.98^t.": (
            lambda w, g, r: _adam(w, g, r, corrected=False)
        ),
        "It goes uphill: take the step away.": lambda w, g, r: 2 * w - _adam(w, g, r),
        "Steps are counted from 1, or the corrections are too small.": (
            lambda w, g, r: _adam(w, g, r, first=2)
        ),
        "Epsilon is inside the root; Adam adds it to the root.": (
            lambda w, g, r: _adam(w, g, r, eps_inside=True)
        ),
        "That is plain gradient descent.": lambda w, g, r: w - r * sum(g),
        "The second mean is one of squares, not of absolute values.": (
            lambda w, g, r: _adam(w, g, r, square=abs)
        ),
    },
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


TIED_GRADIENT = Exercise(
    reference=_tied_gradient,
    inputs=[
        (
            *random_inputs((3, 4), (3, 5)),
            torch.tensor([1, 3, 1], device="cpu"),
            random_inputs((2, 2), (3, 4))[1],
        )
    ],
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
    },
)
