"""Exercises of chapter 19c, Precision, memory, many machines."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


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
    },
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
    },
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
    },
)


def _shard(x: Tensor, w1: Tensor, w2: Tensor, rank: int, world: int) -> Tensor:
    return torch.relu(x @ w1.chunk(world, dim=1)[rank]) @ w2.chunk(world, dim=0)[rank]


SHARD = Exercise(
    reference=_shard,
    inputs=[
        (*random_inputs((3, 4), (4, 8), (8, 4)), 0, 2),
        (*random_inputs((3, 4), (4, 8), (8, 4)), 1, 2),
        (*random_inputs((2, 6), (6, 12), (12, 6)), 2, 4),
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
    },
)
