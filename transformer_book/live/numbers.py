"""Random numbers that JavaScript draws too: the same for the same seed."""

import numpy as np
from numpy.typing import NDArray


def uniforms(seed: int, n: int) -> NDArray[np.float64]:
    """Draw numbers between 0 and 1 as ``Live.tensor.uniform`` does (mulberry32).

    Args:
        seed: a whole number; its lowest 32 bits count.
        n: how many numbers.

    Returns:
        The numbers, ``(n,)``.

    Example:
        >>> uniforms(seed=1, n=3).round(3).tolist()
        [0.627, 0.003, 0.527]
    """
    counts = np.arange(1, n + 1, dtype=np.uint64)
    state = (np.uint64(seed & 0xFFFFFFFF) + counts * np.uint64(0x6D2B79F5)).astype(np.uint32)
    mixed = (state ^ state >> np.uint32(15)) * (state | np.uint32(1))
    mixed ^= mixed + (mixed ^ mixed >> np.uint32(7)) * (mixed | np.uint32(61))
    between: NDArray[np.float64] = ((mixed ^ mixed >> np.uint32(14)) + 0.5) / 2**32
    return between  # neither 0 nor 1 is reached


def normals(seed: int, n: int) -> NDArray[np.float64]:
    """Draw from the standard normal distribution as ``Live.tensor.normals`` does.

    The Box-Muller transform makes two normal numbers of each two uniform ones.

    Args:
        seed: a whole number; its lowest 32 bits count.
        n: how many numbers.

    Returns:
        The numbers, ``(n,)``.

    Example:
        >>> normals(seed=1, n=3).round(3).tolist()
        [0.966, 0.017, 1.123]
    """
    between = uniforms(seed, 2 * ((n + 1) // 2))
    first, second = between.reshape(-1, 2).T
    radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    found: NDArray[np.float64] = pairs.reshape(-1)[:n]
    return found
