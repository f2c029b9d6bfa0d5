"""Mistakes about weights in few bits."""

import torch
from torch import Tensor

from transformer_book.mistakes.catalogue import instead_of
from transformer_lib import Codes, dequantize, quantize_weight, unpack_nibbles
from transformer_lib.layers.quantized_linear import STEPS

# The right versions, kept from before any mistake is made.
_quantize, _dequantize, _unpack = quantize_weight, dequantize, unpack_nibbles


@instead_of("layers.quantized_linear.dequantize")
def _group_off_by_one(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Each group begins one weight late, so its first weight gets the scale of the group before.

    Symptom: neighbouring groups are of similar size, so the loss hardly tells; the error does.
    Caught by: test_quantization.py::test_a_code_times_the_scale_of_its_group_is_the_weight
    """
    return _dequantize(codes.roll(-1, dims=1), scale, dtype).roll(1, dims=1)


@instead_of("layers.quantized_linear.unpack_nibbles")
def _nibbles_swapped(packed: Tensor) -> Tensor:
    """The first of two codes is taken from the high half of its byte.

    Symptom: neighbours change places; the model writes nonsense.
    Caught by: test_quantization.py::test_known_bytes_stand_for_known_codes
    """
    return _unpack(packed >> 4 | packed << 4)


@instead_of("layers.quantized_linear.unpack_nibbles")
def _highest_bit_of_a_nibble_read_as_its_sign(packed: Tensor) -> Tensor:
    """Codes that are stored with 8 on top are read as if their highest bit were a sign.

    Symptom: each weight is off by 8 steps, up or down; the model repeats one character.
    Caught by: test_quantization.py::test_known_bytes_stand_for_known_codes
    """
    nibbles = _unpack(packed) + 8
    return torch.where(nibbles < 8, nibbles, nibbles - 16)


@instead_of("layers.quantized_linear.unpack_nibbles")
def _zero_point_forgotten(packed: Tensor) -> Tensor:
    """Codes are stored with 8 on top, which nobody takes off again.

    Symptom: nearly all weights are positive; the model repeats one character.
    Caught by: test_quantization.py::test_all_codes_come_back_from_their_bytes
    """
    return _unpack(packed) + 8


@instead_of("layers.quantized_linear.quantize_weight")
def _scale_of_the_wrong_axis(weight: Tensor, bits: int, group: int) -> Codes:
    """The largest weight is looked for in the rows of all outputs, which share the scale then.

    Symptom: weights are off twice as far, most of all small ones; the loss does not tell.
    Caught by: test_quantization.py::test_codes_and_scales_are_those_of_the_reference
    """
    largest = weight.abs().amax(dim=0, keepdim=True).expand_as(weight)
    scale = _quantize(largest, bits, group).scale
    steps = weight.unflatten(1, (-1, group)) / scale[..., None].float()
    return Codes(steps.round().flatten(start_dim=1).to(torch.int8), scale)


@instead_of("layers.quantized_linear.quantize_weight")
def _codes_cut_off_instead_of_rounded(weight: Tensor, bits: int, group: int) -> Codes:
    """A weight becomes a whole number by a conversion, which drops what is behind the point.

    Symptom: all weights shrink, and are off twice as far; the loss does not tell.
    Caught by: test_quantization.py::test_no_weight_is_off_by_more_than_half_a_step
    """
    scale = _quantize(weight, bits, group).scale
    steps = weight.unflatten(1, (-1, group)) / scale[..., None].float()
    return Codes(steps.flatten(start_dim=1).to(torch.int8), scale)


@instead_of("layers.quantized_linear.quantize_weight")
def _largest_code_out_of_range(weight: Tensor, bits: int, group: int) -> Codes:
    """The largest weight is 128 steps (8 with 4 bits) away from zero, one more than there are.

    Symptom: the largest weight of a group changes its sign, if it was positive: nonsense.
    Caught by: test_quantization.py::test_no_weight_is_off_by_more_than_half_a_step
    """
    n_codes = STEPS[bits] + 1
    right = _quantize(weight, bits, group).scale
    scale = (right.float() * STEPS[bits] / n_codes).bfloat16()
    steps = (weight.unflatten(1, (-1, group)) / scale[..., None].float()).round()
    wrapped = (steps + n_codes) % (2 * n_codes) - n_codes
    return Codes(wrapped.flatten(start_dim=1).to(torch.int8), scale)
