"""Mistakes in scores, weights and heads."""

import math
from typing import Any

import torch
from torch import Tensor

from transformer_book.mistakes.catalogue import Maybe, instead_of
from transformer_lib import (
    LatentAttention,
    MultiHeadAttention,
    PartOfKeys,
    attention,
    query_key_distances,
    repeat_heads,
    rotate,
)

# The right versions, kept from before any mistake is made.
_attend = MultiHeadAttention.forward


@instead_of("layers.attention.attention")
def _no_scale(q: Tensor, k: Tensor, v: Tensor, mask: Maybe = None, **options: Any) -> Any:
    """Scores are not divided by sqrt(d_head).

    Symptom: weights are nearly one-hot from the start, and hardly any gradient passes the softmax.
    Caught by: test_routes.py::test_weights_follow_the_formula_of_the_paper
    """
    return attention(q, k, v, mask, **options | {"scale": 1.0})


@instead_of("layers.attention.attention")
def _scale_by_d_model(q: Tensor, k: Tensor, v: Tensor, mask: Maybe = None, **options: Any) -> Any:
    """Scores are divided by sqrt(d_model) instead of sqrt(d_head).

    Symptom: weights are too even, the more so the more heads there are; it trains, only worse.
    Caught by: test_routes.py::test_weights_follow_the_formula_of_the_paper
    """
    d_model = q.shape[-3] * q.shape[-1]  # (B, H, T, Dk): H heads of width Dk
    return attention(q, k, v, mask, **options | {"scale": 1 / math.sqrt(d_model)})


@instead_of("layers.attention.attention")
def _bias_scaled_too(
    q: Tensor, k: Tensor, v: Tensor, mask: Maybe = None, *, bias: Maybe = None, **options: Any
) -> Any:
    """A bias for positions is added before the scores are scaled, and is scaled with them.

    Symptom: ALiBi looks sqrt(d_head) times further back than it should.
    Caught by: test_routes.py::test_a_bias_is_added_to_scores_that_are_scaled_already
    """
    bias = None if bias is None else bias / math.sqrt(q.shape[-1])
    return attention(q, k, v, mask, bias=bias, **options)


@instead_of("layers.attention.attention")
def _softmax_over_queries(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Maybe = None,
    *,
    bias: Maybe = None,
    causal: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The softmax runs over the queries: the columns sum to 1, not the rows.

    Symptom: outputs are no means of values; each token depends on all queries, future ones too.
    Caught by: test_properties.py::test_weights_are_probabilities_over_exactly_the_keys_allowed
    """
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias
    if causal:
        scores = scores.masked_fill(query_key_distances(*scores.shape[-2:]) < 0, -1e9)
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = scores.softmax(dim=-2)
    return weights @ v, weights


@instead_of("layers.attention.MultiHeadAttention.attend")
def _attention_dropout_left_on(
    self: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, *masks: Maybe, causal: bool = False
) -> Tensor:
    """Attention weights are dropped in evaluation too: a kernel's `dropout_p` knows no eval mode.

    Symptom: the same input gives another answer each time, and a worse one than it could.
    Caught by: test_routes.py::test_dropout_is_on_in_training_and_off_in_evaluation
    """
    k, v = repeat_heads(k, self.n_heads), repeat_heads(v, self.n_heads)
    mask, bias = masks
    options: Any = {"bias": bias, "causal": causal, "scale": self.scale}
    return attention(q, k, v, mask, dropout=self.dropout, **options)[0]


# Heads


@instead_of("layers.attention.MultiHeadAttention._split")
def _split_without_transpose(self: MultiHeadAttention, x: Tensor) -> Tensor:
    """Features are cut into heads by a reshape alone, without a transpose.

    Symptom: each head gets a mixture of positions; a causal model sees the future and looks great.
    Caught by: test_routes.py::test_heads_at_once_equal_heads_one_by_one
    """
    return x.reshape(x.shape[0], -1, x.shape[1], self.d_head)  # (B, H, T, Dk), wrongly filled


@instead_of("layers.attention.MultiHeadAttention.merge")
def _merge_without_transpose(self: MultiHeadAttention, heads: Tensor) -> Any:
    """Heads are laid side by side by a reshape alone, without the transpose.

    Symptom: positions get parts of each other; a causal model sees the future and looks great.
    Caught by: test_routes.py::test_heads_at_once_equal_heads_one_by_one
    """
    return self.output(heads.reshape(heads.shape[0], heads.shape[2], -1))


@instead_of("layers.attention.MultiHeadAttention.merge")
def _output_projection_missing(self: MultiHeadAttention, heads: Tensor) -> Tensor:
    """Heads are laid side by side, but not mixed by the output projection.

    Symptom: each head can write to its own slice of the stream only; one matrix is never trained.
    Caught by: test_properties.py::test_every_parameter_moves_the_result
    """
    return heads.transpose(1, 2).flatten(start_dim=2)


@instead_of("layers.attention.repeat_heads")
def _gqa_heads_tiled(x: Tensor, n_heads: int) -> Tensor:
    """Shared keys and values are tiled (0 1 0 1) instead of repeated (0 0 1 1).

    Symptom: query heads ask the wrong keys; a loaded GQA checkpoint speaks nonsense.
    Caught by: test_routes.py::test_shared_keys_and_values_equal_repeated_weights
    """
    return x.repeat(1, n_heads // x.shape[1], 1, 1)


@instead_of("layers.attention.MultiHeadAttention.forward")
def _cross_attention_to_itself(
    self: MultiHeadAttention, x: Tensor, memory: Maybe = None, mask: Maybe = None, **options: Any
) -> Tensor:
    """Cross-attention takes its keys and values from the decoder, not from the memory.

    Symptom: the answer is the same whatever the source.
    Caught by: test_properties.py::test_the_memory_reaches_every_target_position
    """
    return _attend(self, x, None, mask, **options) if memory is None else _attend(self, x)


@instead_of("layers.split_attention.join_parts")
def _parts_joined_without_their_best(parts: list[PartOfKeys]) -> Tensor:
    """Parts of the keys are joined although each part's sums are relative to its own best score.

    Symptom: short contexts are right; with several parts, far keys weigh as much as the best one.
    Caught by: test_split_attention.py::test_parts_of_the_keys_give_what_all_keys_give
    """
    _, total, mixed = (torch.stack(each).sum(dim=0) for each in zip(*parts, strict=True))
    return mixed / total[..., None]


@instead_of("layers.latent_attention.LatentAttention._turned")
def _rope_turns_the_latent_vector(
    self: LatentAttention, x: Tensor, n_plain: int, angles: Maybe
) -> Tensor:
    """In latent attention, RoPE turns the first features, which are those of the latent vector.

    Symptom: it trains; but scores depend on where a text begins, and no checkpoint fits.
    Caught by: test_latent_attention.py::test_attention_is_that_of_the_formulas
    """
    return x if angles is None else rotate(x, angles, self.pairing)


@instead_of("layers.latent_attention.LatentAttention._score_scale")
def _latent_scores_scaled_by_their_own_width(self: LatentAttention, q: Tensor) -> float:
    """Queries for latent vectors are divided by the root of their own width, not of a head's.

    Symptom: prompts are read rightly; tokens after them attend too evenly, and no error tells.
    Caught by: test_latent_attention.py::test_latent_vectors_are_read_as_keys_and_values_are
    """
    return float(q.shape[-1] ** -0.5 if self.scale is None else self.scale)


@instead_of("layers.latent_attention.LatentAttention.project_keys_values")
def _latent_vector_cached_twice(
    self: LatentAttention, source: Tensor, angles: Maybe = None
) -> tuple[Tensor, Tensor]:
    """The latent vector is cached as a value, too, although values are made from what is there.

    Symptom: all answers are right; the cache takes nearly twice the memory that was promised.
    Caught by: test_latent_attention.py::test_a_cache_holds_one_latent_vector_of_each_token
    """
    made = self.latent(source)[:, None]
    latent = self.latent_norm(made[..., : self.d_latent])
    kept = torch.cat((latent, made[..., self.d_latent :]), dim=-1)
    return self._turned(kept, self.d_latent, angles), latent


@instead_of("layers.linear_attention._pair_weights")
def _nothing_forgotten_within_a_chunk(q: Tensor, k: Tensor, log_gates: Tensor) -> Tensor:
    """Gates of linear attention act from chunk to chunk, but not between tokens of one chunk.

    Symptom: it trains, and its loss is plausible; token by token, texts are another model's.
    Caught by: test_linear_attention.py::test_each_output_is_a_sum_over_the_past
    """
    return (q @ k.mT).tril()
