"""Mistakes about a token's place."""

from typing import Any

import torch
from torch import Tensor

from transformer_book.mistakes.catalogue import Maybe, instead_of
from transformer_lib import (
    AddedPositions,
    AlibiBias,
    Decoder,
    MultiHeadAttention,
    hide_padding,
    rope_angles,
    rotate,
    t5_bucket,
)

# The right versions, kept from before any mistake is made.
_keys_values = MultiHeadAttention.project_keys_values
_decode = Decoder.forward
_alibi = AlibiBias.forward


@instead_of("layers.positions.AddedPositions.forward")
def _positions_not_added(self: AddedPositions, x: Tensor, positions: Tensor) -> Tensor:
    """Positions are computed, but never added to the embeddings.

    Symptom: "dog bites man" is "man bites dog"; the model is a good bag of words.
    Caught by: test_properties.py::test_with_positions_an_encoder_knows_the_order
    """
    return x


@instead_of("layers.positions.sinusoidal")
def _sinusoid_in_halves(positions: Tensor, d_model: int) -> Tensor:
    """All sines come first, then all cosines; the paper lets them take turns.

    Symptom: none if trained so (the authors' own code did it); wrong with weights made otherwise.
    Caught by: test_routes.py::test_embeddings_follow_the_formula_of_the_paper
    """
    angles = rope_angles(positions, d_model)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


@instead_of("layers.positions.rope_angles", "models.blocks.rope_angles")
def _wavelengths_not_doubled(
    positions: Tensor, d_head: int, theta: float = 10_000.0, **options: Any
) -> Tensor:
    """The exponent is i / D where the formula has 2i / D.

    Symptom: wavelengths end at 100 * 2π instead of 10000 * 2π; distant places look alike.
    Caught by: test_routes.py::test_embeddings_follow_the_formula_of_the_paper
    """
    frequencies = theta ** -(torch.arange(d_head // 2, device=positions.device) / d_head)
    return positions[..., None].float() * frequencies


@instead_of("models.blocks.next_positions", "models.encoder_decoder.next_positions")
def _cache_position_forgotten(x: Tensor, cache: object = None) -> Tensor:
    """With a cache, positions start again at 0 for every new token.

    Symptom: training is fine; generation takes every new token for the first of its text.
    Caught by: test_routes.py::test_decoding_with_a_cache_equals_decoding_without
    """
    return torch.arange(x.shape[1], device=x.device)[None]


@instead_of("models.encoder_decoder.Decoder.forward")
def _left_padding_counted(self: Decoder, ids: Tensor, *inputs: Maybe, **options: Any) -> Tensor:
    """Positions count the padding on the left: the first real token is not at place 0.

    Symptom: a prompt is continued differently in a batch and alone.
    Caught by: test_properties.py::test_a_sequence_says_the_same_alone_and_in_a_batch
    """
    return _decode(self, ids, *inputs, **options | {"positions": None})


@instead_of("models.encoder_decoder.real_positions")
def _real_tokens_not_counted(real: Tensor) -> Tensor:
    """Padding is hidden, but positions count it: whoever pads on the left must number them, too.

    Symptom: a model with learned positions is worse the more is padded; with RoPE nobody notices.
    Caught by: test_padding.py::test_a_row_says_the_same_alone_and_padded_on_either_side
    """
    return torch.arange(real.shape[1], device=real.device).expand(real.shape)


@instead_of("models.encoder_decoder.hide_padding", "models.language_models.hide_padding")
def _real_taken_for_padding(name: str, real: Maybe, mask: Maybe, keys: list[int]) -> Maybe:
    """True is taken to mean padding, as in PyTorch's key_padding_mask: real tokens are hidden.

    Symptom: nothing fails; what is said depends on the padding and on nothing else.
    Caught by: test_padding.py::test_a_row_says_the_same_alone_and_padded_on_either_side
    """
    return hide_padding(name, None if real is None else ~real, mask, keys)


@instead_of("layers.attention.rotate")
def _rope_pairing_mixed(x: Tensor, angles: Tensor, pairing: str) -> Tensor:
    """Weights made for one pairing of features are rotated with the other one.

    Symptom: a loaded checkpoint is right at place 0, where nothing turns, and wrong after it.
    Caught by: test_routes.py::test_rope_turns_neighbours_by_the_angle_of_the_formula
    """
    return rotate(x, angles, "split" if pairing == "interleaved" else "interleaved")


@instead_of("layers.attention.MultiHeadAttention.project_keys_values")
def _rope_on_queries_only(
    self: MultiHeadAttention, source: Tensor, angles: Maybe = None
) -> tuple[Tensor, Tensor]:
    """RoPE rotates the queries, but not the keys.

    Symptom: scores depend on where the query stands, not on how far away the key is.
    Caught by: test_properties.py::test_rope_scores_depend_on_the_distance_only
    """
    return _keys_values(self, source)


@instead_of("layers.attention.MultiHeadAttention.project_keys_values")
def _rope_on_values(
    self: MultiHeadAttention, source: Tensor, angles: Maybe = None
) -> tuple[Tensor, Tensor]:
    """RoPE rotates the values as well as queries and keys.

    Symptom: outputs depend on absolute places again; longer texts than in training break it.
    Caught by: test_properties.py::test_relative_positions_see_no_shift
    """
    k, v = _keys_values(self, source, angles)
    return k, v if angles is None else rotate(v, angles, self.pairing)


@instead_of("layers.positions.AlibiBias.forward")
def _alibi_sign_flipped(self: AlibiBias, distances: Tensor) -> Tensor:
    """ALiBi's bias grows with distance instead of falling.

    Symptom: the first tokens of a text get all the attention; the longer the text, the worse.
    Caught by: test_properties.py::test_alibi_prefers_what_is_near
    """
    return -_alibi(self, distances)


@instead_of("layers.positions.t5_bucket")
def _t5_bucket_sign_flipped(offset: Tensor, **options: Any) -> Tensor:
    """T5's buckets get query minus key instead of key minus query.

    Symptom: encoders take left for right; decoders put the whole past into one bucket.
    Caught by: test_properties.py::test_t5_tells_left_from_right_and_far_from_near
    """
    return t5_bucket(-offset, **options)
