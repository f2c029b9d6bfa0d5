"""Exercises of chapter 12, The decoder and cross-attention."""

import math

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs
from transformer_book.exercises.grading.slips import attend, mixing_slips, scale_slips
from transformer_lib import IGNORE


def _cross(x: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    q, k, v = x @ w_q, memory @ w_k, memory @ w_v
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v


def _projected(
    x: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor
) -> tuple[Tensor, ...]:
    return x @ w_q, memory @ w_k, memory @ w_v


CROSS = Exercise(
    reference=_cross,
    inputs=[  # square first: there the mistakes that need equal sizes can run, and are found
        random_inputs((2, 4, 4), (2, 4, 4), (4, 4), (4, 4), (4, 4)),
        random_inputs((2, 3, 5), (2, 7, 5), (5, 6), (5, 6), (5, 4)),
    ],
    mistakes={
        "That is self-attention: keys and values must come from the memory.": (
            lambda x, m, q, k, v: _cross(x, x, q, k, v)
        ),
        "Queries and memory are the wrong way round: each target position asks, the source "
        "answers, and there is one row for each target position.": (
            lambda x, m, q, k, v: _cross(m, x, q, k, v)
        ),
        "The values come from the target. What is found must come from the memory, like the "
        "keys.": lambda x, m, q, k, v: attend(x @ q, m @ k, x @ v),
        "The keys come from the target. Where it is found must come from the memory, like the "
        "values.": lambda x, m, q, k, v: attend(x @ q, x @ k, m @ v),
        "The queries come from the memory, too: then no target position can ask for anything.": (
            lambda x, m, q, k, v: _cross(m, m, q, k, v)
        ),
        "The values are not projected: the memory itself went into the mean.": (
            lambda x, m, q, k, v: attend(x @ q, m @ k, m)
        ),
        "The matrices are used as x @ w, without a transpose.": (
            lambda x, m, q, k, v: _cross(x, m, q.mT, k.mT, v.mT)
        ),
        "The scale counts D, the width of x; it must be Dk, the width of a query.": (
            lambda x, m, q, k, v: attend(x @ q, m @ k, m @ v, scale=1 / math.sqrt(x.shape[-1]))
        ),
        **scale_slips(_projected),
        **mixing_slips(_projected),
    },
    hints=(
        "Who asks, and who answers? The target has the queries; where to look and what is found "
        "are both of the source.",
        "The queries are (B, T, Dk), made from `x`. Keys and values come from `memory` and have S "
        "rows, so the scores are (B, T, S).",
        "`q, k, v = x @ w_q, memory @ w_k, memory @ w_v`; the rest is attention as always, with "
        "`.softmax(dim=-1)` over the source.",
    ),
)


def _block_parameters(d_model: int, d_ff: int) -> int:
    attention = 4 * (d_model * d_model + d_model)
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    return 2 * attention + feed_forward + 3 * 2 * d_model


BLOCK_PARAMETERS = Exercise(
    reference=_block_parameters,
    inputs=[(512, 2048), (8, 20), (6, 6)],
    mistakes={
        "That is an encoder block: the second attention, and its norm, are missing.": (
            lambda d, f: _block_parameters(d, f) - 4 * (d * d + d) - 2 * d
        ),
        "The third norm is missing: each of the three sublayers has one.": (
            lambda d, f: _block_parameters(d, f) - 2 * d
        ),
        "The norms are missing: each has a gain and a bias of width D.": (
            lambda d, f: _block_parameters(d, f) - 6 * d
        ),
        "The biases are missing: eight of width D in the attentions, F and D in the network, and "
        "one in each norm.": (lambda d, f: 8 * d * d + 2 * d * f + 3 * d),
        "The biases of the linear layers are missing.": (
            lambda d, f: 8 * d * d + 2 * d * f + 6 * d
        ),
        "The output projections are missing: each attention has four matrices.": (
            lambda d, f: _block_parameters(d, f) - 2 * (d * d + d)
        ),
        "Cross-attention has one matrix for its keys and one for its values, both for the "
        "memory: four matrices like self-attention, not six.": (
            lambda d, f: _block_parameters(d, f) + 2 * (d * d + d)
        ),
        "Those are the matrices alone; biases and norms are missing.": (
            lambda d, f: 8 * d * d + 2 * d * f
        ),
        "The second attention is missing: there is self-attention, and there is cross-attention.": (
            lambda d, f: _block_parameters(d, f) - 4 * (d * d + d)
        ),
        "The network's inner width is d_ff, which need not be 4 d_model.": (
            lambda d, f: _block_parameters(d, 4 * d)
        ),
        "The first bias of the network has the inner width: d_ff and d_model, not twice d_model.": (
            lambda d, f: _block_parameters(d, f) - f + d
        ),
    },
    hints=(
        "List the parts: two attentions, one network, and a norm for each of these sublayers.",
        "An attention has four square matrices, each with a bias. The network has two matrices, "
        "with biases of width d_ff and d_model. A norm has a gain and a bias.",
        "An attention has `4 * (d_model * d_model + d_model)` parameters, the three norms "
        "`3 * 2 * d_model`.",
    ),
)


def _shift(target: Tensor, bos_id: int, eos_id: int) -> Tensor:
    reads, answers = F.pad(target, (1, 0), value=bos_id), F.pad(target, (0, 1), value=eos_id)
    return torch.stack([reads, answers])


def _ids(*ids: int) -> Tensor:
    return torch.tensor(ids, device="cpu")


SHIFT = Exercise(
    reference=_shift,
    inputs=[(_ids(7, 8, 9), 1, 2), (_ids(5, 6), 3, 4)],
    mistakes={
        "Nothing is shifted: the decoder reads the very letter it should answer.": (
            lambda t, b, e: torch.stack([F.pad(t, (0, 1), value=e)] * 2)
        ),
        "The rows are swapped: the first one is read, the second one is answered.": (
            lambda t, b, e: _shift(t, b, e).flip(0)
        ),
        "The end is read and never asked for: the model would not learn to stop.": (
            lambda t, b, e: torch.stack([F.pad(t, (1, 0), value=b), F.pad(t, (1, 0), value=e)])
        ),
        "The end token is missing from the answers: the model would not learn to stop.": (
            lambda t, b, e: torch.stack([F.pad(t[:-1], (1, 0), value=b), t])
        ),
        "The start token is missing: nothing comes before the first letter, so something must "
        "stand there.": (lambda t, b, e: torch.stack([t[:-1], t[1:]])),
        "Start and end are mixed up.": lambda t, b, e: _shift(t, e, b),
        "Those are two tensors; stack them as the rows of one.": (
            lambda t, b, e: tuple(_shift(t, b, e))
        ),
        "Both rows have start and end, so the places do not differ: the decoder would read the "
        "very letter it should answer.": (
            lambda t, b, e: torch.stack([F.pad(F.pad(t, (1, 0), value=b), (0, 1), value=e)] * 2)
        ),
    },
    hints=(
        "At each place the decoder has read what came before and answers the next letter. What has "
        "it read when it answers the first one? What should it answer after the last?",
        "The first row begins with `bos_id` and the second ends with `eos_id`. Both are one longer "
        "than `target`.",
        "`F.pad(target, (1, 0), value=bos_id)` puts one entry in front; the other row needs one "
        "behind. Join them with `torch.stack`.",
    ),
)


def _exact_match(answers: Tensor, targets: Tensor) -> Tensor:
    return ((answers == targets) | (targets == IGNORE)).all(dim=1).double().mean()


_TARGETS = torch.tensor(
    [[7, 8, 2, IGNORE], [9, 6, 5, 2], [4, 2, IGNORE, IGNORE], [6, 2, IGNORE, IGNORE]], device="cpu"
)
_ANSWERS = torch.tensor([[7, 8, 2, 2], [9, 6, 6, 2], [4, 2, 4, 4], [5, 2, 5, 5]], device="cpu")

EXACT_MATCH = Exercise(
    reference=_exact_match,
    inputs=[
        (_ANSWERS, _TARGETS),
        (_ANSWERS[:3], _TARGETS[:3]),
        (torch.cat([_ANSWERS, _TARGETS[1:2]]), torch.cat([_TARGETS, _TARGETS[1:2]])),
    ],
    mistakes={
        "Padding counts as wrong: where the target says ignore, every answer is fine.": (
            lambda a, t: (a == t).all(dim=1).double().mean()
        ),
        "That is the share of right letters; a word is right if all of its letters are.": (
            lambda a, t: ((a == t) & (t != IGNORE)).sum().double() / (t != IGNORE).sum()
        ),
        "That is how many words are right; divide by the number of words.": (
            lambda a, t: ((a == t) | (t == IGNORE)).all(dim=1).sum().double()
        ),
        "That is the share of words with at least one right letter.": (
            lambda a, t: ((a == t) & (t != IGNORE)).any(dim=1).double().mean()
        ),
        "That is the share of words with a mistake in them.": (lambda a, t: 1 - _exact_match(a, t)),
        "A word is a row: look along dim=1, not dim=0.": (
            lambda a, t: ((a == t) | (t == IGNORE)).all(dim=0).double().mean()
        ),
        "One wrong letter anywhere makes everything wrong: ask word by word, all(dim=1).": (
            lambda a, t: ((a == t) | (t == IGNORE)).all().double()
        ),
        "Padding counts as wrong, and letters are counted instead of words.": (
            lambda a, t: (a == t).double().mean()
        ),
        "Padding counts as a right letter, and letters are counted instead of words.": (
            lambda a, t: ((a == t) | (t == IGNORE)).double().mean()
        ),
    },
    hints=(
        "Up to its first mistake a model reads the same, taught or by itself. So its own answer is "
        "perfect exactly where the taught one has no mistake at all.",
        "A place is fine if the answer is the target, or if the target is `IGNORE`. A word is "
        "perfect if all of its places are fine.",
        "Of the boolean tensor of fine places take `.all(dim=1)`, then the mean over the words.",
    ),
)
