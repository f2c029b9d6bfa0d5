"""RoPE scaling (linear, NTK, YaRN, LLaMA 3), for texts longer than in training.

Pair ``i`` of a head turns by ``theta ** (-2i / Dk)`` from one position to the next. The first pairs
turn many times within a text and tell neighbours apart; the last ones have not turned once when it
ends. Behind the end of the longest text of training come angles that no layer has ever seen. All
ways to scale RoPE bring them back among the known ones; they differ in which pairs they slow down.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_lib.core.config import RopeScaling


def scale_frequencies(
    frequencies: Float[Tensor, " half"],
    theta: float,
    scaling: RopeScaling,
    positions: Int[Tensor, "*batch T"],
) -> Float[Tensor, " half"]:
    """Slow the turning of pairs down.

    Args:
        frequencies: by how much each pair turns at a step, ``(Dk/2,)``, as ``theta`` says.
        theta: the base of the wavelengths.
        scaling: how, and by how much.
        positions: of the tokens at hand; ``"ntk"`` looks how far they go.

    Returns:
        The new frequencies, ``(Dk/2,)``.

    Example:
        >>> scaling = RopeScaling(kind="linear", factor=4.0)
        >>> scale_frequencies(
        ...     torch.tensor([1.0, 0.01]), 10_000.0, scaling, torch.arange(3)
        ... )
        tensor([0.2500, 0.0025])
    """
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    assert scaling.trained_len is not None, "as the configuration has checked"
    if scaling.kind == "ntk":
        return frequencies * _larger_base(frequencies, scaling, positions)
    if scaling.kind == "llama3":
        turns = scaling.trained_len * frequencies / (2 * math.pi)  # within a text of training
        kept = (turns - scaling.slow_turns) / (scaling.fast_turns - scaling.slow_turns)
    else:
        kept = 1 - _ramp(frequencies, theta, scaling)
    kept = kept.clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def _larger_base(
    frequencies: Float[Tensor, " half"], scaling: RopeScaling, positions: Int[Tensor, "*batch T"]
) -> Float[Tensor, " half"]:
    """What frequencies are multiplied by if the base grows with the text, but for short ones.

    The slowest pair is slowed down as much as all would be by ``"linear"``, the fastest not at all.
    """
    assert scaling.trained_len is not None, "as the configuration has checked"
    width = 2 * len(frequencies)
    # In float32, whatever the default is: bfloat16 could not tell neighbouring bases apart.
    length = (positions.max() + 1).clamp(min=scaling.trained_len).float()
    growth = scaling.factor * length / scaling.trained_len - (scaling.factor - 1)
    share = torch.arange(0, width, 2, device=frequencies.device).float() / max(width - 2, 1)
    return growth**-share


def _ramp(
    frequencies: Float[Tensor, " half"], theta: float, scaling: RopeScaling
) -> Float[Tensor, " half"]:
    """How far each pair is on the way from fast to slow, counted in pairs (YaRN)."""
    assert scaling.trained_len is not None, "as the configuration has checked"
    n_pairs, trained_len = len(frequencies), scaling.trained_len

    def pair_that_turns(times: float) -> float:
        return n_pairs * math.log(trained_len / (times * 2 * math.pi)) / math.log(theta)

    first, last = pair_that_turns(scaling.fast_turns), pair_that_turns(scaling.slow_turns)
    if scaling.whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * n_pairs - 1)
    last += 0.001 if first == last else 0  # a step is a very steep ramp
    return (torch.arange(n_pairs, device=frequencies.device).float() - first) / (last - first)
