"""Exercises of chapter 19c, Precision, memory, many machines."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs


def _intensity(m: int, k: int, n: int, n_bytes: int) -> float:
    return 2 * m * k * n / (n_bytes * (m * k + k * n + m * n))


INTENSITY = Exercise(
    reference=_intensity,
    inputs=[(4, 8, 16, 2), (1, 4096, 4096, 2), (3, 5, 7, 4)],
    mistakes={
        "A product of numbers is followed by a sum: that is two operations, not one.": (
            lambda m, k, n, b: _intensity(m, k, n, b) / 2
        ),
        "These are operations for each number that moves; each number has several bytes.": (
            lambda m, k, n, b: _intensity(m, k, n, 1)
        ),
        "The result is missing: m times n numbers are written, too.": (
            lambda m, k, n, b: 2 * m * k * n / (b * (m * k + k * n))
        ),
        "That is bytes for each operation; turn it round.": (
            lambda m, k, n, b: 1 / _intensity(m, k, n, b)
        ),
        "Only the right factor is counted: the left one is read and the result written, too.": (
            lambda m, k, n, b: 2 * m * k * n / (b * k * n)
        ),
        "Those are the operations; divide by the bytes that move.": (
            lambda m, k, n, b: 2 * m * k * n
        ),
    },
    hints=(
        "Intensity is operations divided by bytes. Count both for one product of matrices.",
        "Each of the m · n results takes k products and k sums. Two factors are read and one "
        "result is written: how many numbers is that?",
        "`2 * m * k * n` operations; `m * k + k * n + m * n` numbers of `n_bytes` each.",
    ),
)


def _loss_scale(gradients: Tensor) -> float:
    largest = float(gradients.abs().max())
    return 2.0 ** math.floor(math.log2(65504 / largest))


LOSS_SCALE = Exercise(
    reference=_loss_scale,
    inputs=[
        (torch.tensor([3e-8, -2e-5, 1e-9]),),
        (torch.tensor([0.5, -7.0, 1e-7]),),
        (torch.tensor([-1e-3, 2e-4]),),
        (torch.tensor([2.0, -63.96875]),),  # times 1024 it is 65,504
        (torch.tensor([63.9697265625, 2.0]),),  # times 1024 it is 65,505
        (torch.tensor([1e6, -3.0]),),
    ],
    mistakes={
        "The largest gradient overflows: round the power of two down, not up.": (
            lambda g: 2 * _loss_scale(g)
        ),
        "A negative gradient can be the largest: take absolute values.": (
            lambda g: 2.0 ** math.floor(math.log2(65504 / float(g.max())))
        ),
        "That is a scale, but no power of two; any other factor rounds every gradient anew.": (
            lambda g: 65504 / float(g.abs().max())
        ),
        "Nothing overflows, but twice as much would fit too.": lambda g: _loss_scale(g) / 2,
        "This is the exponent; return the power of two itself.": (
            lambda g: math.log2(_loss_scale(g))
        ),
        "float16 does not go up to 65,536: its largest number is 65,504.": (
            lambda g: 2.0 ** math.floor(math.log2(65536 / float(g.abs().max())))
        ),
        "A gradient may become 65,504 exactly: it must not exceed it.": (
            lambda g: 2.0 ** (math.ceil(math.log2(65504 / float(g.abs().max()))) - 1)
        ),
        "int() cuts towards 0; an exponent below 0 must be rounded down (math.floor).": (
            lambda g: 2.0 ** int(math.log2(65504 / float(g.abs().max())))
        ),
        "Gradients that are too large must shrink: the power of two may be less than 1.": (
            lambda g: max(1.0, _loss_scale(g))
        ),
        "The smallest gradient decides here; the largest is the one that overflows.": (
            lambda g: 2.0 ** math.floor(math.log2(65504 / float(g.abs().min())))
        ),
    },
    hints=(
        "One gradient decides: the one with the largest absolute value.",
        "How often does it go into 65,504? The base-2 logarithm of that, rounded, is the exponent. "
        "Rounded up or down?",
        "`2.0 ** math.floor(math.log2(65504 / largest))`, with the largest of `gradients.abs()`.",
    ),
)


def _average(sums: Tensor, counts: Tensor) -> Tensor:
    return sums.sum(dim=0) / counts.sum()


AVERAGE = Exercise(
    reference=_average,
    inputs=[
        (*random_inputs((2, 3)), torch.tensor([7.0, 2.0])),
        (*random_inputs((4, 5)), torch.tensor([1.0, 9.0, 3.0, 3.0])),
    ],
    mistakes={
        "This is the mean of means: a token in a short batch counts more. Add up the sums, then "
        "divide by all tokens.": lambda sums, counts: (sums / counts[:, None]).mean(dim=0),
        "The sums are averaged over processes, not over tokens.": (
            lambda sums, counts: sums.mean(dim=0)
        ),
        "Not divided yet: the gradient would grow with the number of processes.": (
            lambda sums, counts: sums.sum(dim=0)
        ),
        "Each process keeps its own gradient here; after the exchange all have the same one.": (
            lambda sums, counts: sums / counts[:, None]
        ),
        "The sums are weighted by the counts once more: they are sums already, not means.": (
            lambda sums, counts: (sums * counts[:, None]).sum(dim=0) / counts.sum()
        ),
        "The sum runs over the entries of a gradient; it must run over the processes, dim=0.": (
            lambda sums, counts: sums.sum(dim=1) / counts.sum()
        ),
    },
    hints=(
        "Think of one process that has all the tokens: which sum would it have, and by what would "
        "it divide?",
        "Add up the gradients of all processes, `(N, n)` to `(n,)`, and divide by the number of "
        "all tokens.",
        "`sums.sum(dim=0)` is the one, `counts.sum()` the other.",
    ),
)


def _shard(x: Tensor, w1: Tensor, w2: Tensor, rank: int, world: int) -> Tensor:
    return torch.relu(x @ w1.chunk(world, dim=1)[rank]) @ w2.chunk(world, dim=0)[rank]


SHARD = Exercise(
    reference=_shard,
    inputs=[
        (*random_inputs((3, 4), (4, 10), (10, 7)), 0, 2),
        (*random_inputs((3, 4), (4, 10), (10, 7)), 1, 2),
        (*random_inputs((2, 8), (8, 12), (12, 5)), 2, 4),
    ],
    mistakes={
        "That is the whole network: this process has only its part of the units.": (
            lambda x, w1, w2, rank, world: torch.relu(x @ w1) @ w2
        ),
        "Divided by the number of processes: parts are added up, not averaged.": (
            lambda x, w1, w2, rank, world: _shard(x, w1, w2, rank, world) / world
        ),
        "The ReLU is missing: it can be applied to each part, since a unit lives in one process.": (
            lambda x, w1, w2, rank, world: (
                x @ w1.chunk(world, dim=1)[rank] @ w2.chunk(world, dim=0)[rank]
            )
        ),
        "This is the part of another process: count from 0.": (
            lambda x, w1, w2, rank, world: _shard(x, w1, w2, (rank + 1) % world, world)
        ),
        "These parts add up as well, but here each machine has neighbouring units, as chunk cuts "
        "them, not every n-th one.": (
            lambda x, w1, w2, rank, world: torch.relu(x @ w1[:, rank::world]) @ w2[rank::world]
        ),
        "The first matrix is cut by rows: the ReLU then sees parts of a sum. Cut it by columns, so "
        "that each hidden unit is whole.": (
            lambda x, w1, w2, rank, world: (
                torch.relu(x.chunk(world, dim=1)[rank] @ w1.chunk(world, dim=0)[rank]) @ w2
            )
        ),
        "The ReLU comes after the second matrix; it belongs between the two.": (
            lambda x, w1, w2, rank, world: torch.relu(
                x @ w1.chunk(world, dim=1)[rank] @ w2.chunk(world, dim=0)[rank]
            )
        ),
        "The second matrix is cut by columns: the parts lie side by side, but they must add up.": (
            lambda x, w1, w2, rank, world: torch.relu(x @ w1) @ w2.chunk(world, dim=1)[rank]
        ),
    },
    hints=(
        "Give each machine some of the hidden units. A unit needs nothing from the others until "
        "the very end.",
        "A hidden unit is a *column* of `w1`, which makes it, and a *row* of `w2`, which reads "
        "it. Machine `rank` has the `rank`-th of `world` equal pieces of both.",
        "`w1.chunk(world, dim=1)[rank]` and `w2.chunk(world, dim=0)[rank]`, in place of the whole "
        "matrices.",
    ),
)
