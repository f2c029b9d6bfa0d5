"""Mistakes in norms, residuals, dropout, feed-forward networks, embeddings and heads."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from transformer_book.mistakes.catalogue import Maybe, instead_of, with_part
from transformer_lib import (
    Block,
    Embedding,
    FeedForward,
    LayerNorm,
    MixtureOfExperts,
    OutputLayer,
    PatchEmbedding,
    Stack,
)
from transformer_lib.layers.feedforward import _gelu_tanh

Sublayer = Callable[[Tensor], Tensor]

# The right versions, kept from before any mistake is made.
_block = Block.forward
_stack = Stack.forward
_feed_forward = FeedForward.forward
_mixture = MixtureOfExperts.forward


def _gain_and_bias(norm: LayerNorm, x: Tensor) -> Tensor:
    return norm.weight * x if norm.bias is None else norm.weight * x + norm.bias


@instead_of("layers.norms.LayerNorm.forward")
def _norm_over_the_sequence(self: LayerNorm, x: Tensor) -> Tensor:
    """Mean and variance are taken over positions instead of features.

    Symptom: tokens leak into each other past every mask; a cache gives other results.
    Caught by: test_properties.py::test_the_future_changes_nothing_before_it
    """
    mean, variance = x.mean(dim=-2, keepdim=True), x.var(dim=-2, correction=0, keepdim=True)
    return _gain_and_bias(self, (x - mean) / torch.sqrt(variance + self.eps))


@instead_of("layers.norms.LayerNorm.forward")
def _variance_with_d_minus_1(self: LayerNorm, x: Tensor) -> Tensor:
    """The variance is divided by D - 1, as `x.var()` does unless told otherwise.

    Symptom: vectors are shorter than in every other library by one part in 2D.
    Caught by: test_routes.py::test_norms_equal_the_formulas_written_out
    """
    mean, variance = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True)
    return _gain_and_bias(self, (x - mean) / torch.sqrt(variance + self.eps))


@instead_of("layers.norms.LayerNorm.forward")
def _epsilon_outside_the_root(self: LayerNorm, x: Tensor) -> Tensor:
    """Epsilon is added to the standard deviation instead of the variance.

    Symptom: none for large vectors; small ones come out far too long.
    Caught by: test_routes.py::test_norms_equal_the_formulas_written_out
    """
    mean, deviation = x.mean(dim=-1, keepdim=True), x.std(dim=-1, correction=0, keepdim=True)
    return _gain_and_bias(self, (x - mean) / (deviation + self.eps))


def _sublayers(
    block: Block,
    mask: Maybe = None,
    memory: Maybe = None,
    memory_mask: Maybe = None,
    *,
    cache: Any = None,
    memory_cache: Any = None,
    **options: Any,
) -> Iterator[tuple[nn.Module, Sublayer]]:
    """Each norm of a block, and the sublayer that it belongs to."""
    yield block.attention_norm, partial(block.attention, mask=mask, cache=cache, **options)
    if block.cross_attention is not None and block.cross_attention_norm is not None:
        given = {"memory": memory, "mask": memory_mask, "cache": memory_cache}
        yield block.cross_attention_norm, partial(block.cross_attention, **given)
    yield block.feed_forward_norm, block.feed_forward


@instead_of("models.blocks.Block.forward")
def _residual_forgotten(self: Block, x: Tensor, *inputs: Maybe, **options: Any) -> Tensor:
    """What a sublayer says replaces the stream instead of being added to it.

    Symptom: two layers still learn something, twenty do not: gradients must pass every sublayer.
    Caught by: test_routes.py::test_a_block_follows_the_formulas_of_its_paper
    """
    for norm, sublayer in _sublayers(self, *inputs, **options):
        x = sublayer(norm(x)) if self.norm_position == "pre" else norm(sublayer(x))
    return x


@instead_of("models.blocks.Block.forward")
def _post_norm_on_the_branch(self: Block, x: Tensor, *inputs: Maybe, **options: Any) -> Tensor:
    """Post-norm normalises what the sublayer says and not the sum: the residual goes around it.

    Symptom: the stream grows from layer to layer and leaves the stack without a norm.
    Caught by: test_properties.py::test_the_stream_leaves_every_stack_normalised
    """
    if self.norm_position == "pre":
        return _block(self, x, *inputs, **options)
    for norm, sublayer in _sublayers(self, *inputs, **options):
        x = x + norm(sublayer(x))
    return x


@instead_of("models.blocks.Block.forward")
def _pre_norm_residual_normalised(self: Block, x: Tensor, *inputs: Maybe, **options: Any) -> Tensor:
    """Pre-norm adds to the normalised vector instead of the stream itself.

    Symptom: no clean path leads through the layers, which is what pre-norm is for.
    Caught by: test_routes.py::test_a_block_follows_the_formulas_of_its_paper
    """
    if self.norm_position == "post":
        return _block(self, x, *inputs, **options)
    for norm, sublayer in _sublayers(self, *inputs, **options):
        x = norm(x)
        x = x + sublayer(x)
    return x


@instead_of("models.blocks.Block.forward")
def _dropout_left_on(self: Block, x: Tensor, *inputs: Maybe, **options: Any) -> Tensor:
    """`F.dropout` is called without `training=self.training`; it drops unless told otherwise.

    Symptom: the same input gives another answer each time, and a worse one than it could.
    Caught by: test_routes.py::test_dropout_is_on_in_training_and_off_in_evaluation
    """
    for norm, sublayer in _sublayers(self, *inputs, **options):
        if self.norm_position == "pre":
            x = x + F.dropout(sublayer(norm(x)), self.dropout.p)
        else:
            x = norm(x + F.dropout(sublayer(x), self.dropout.p))
    return x


@instead_of("models.blocks.Stack.forward")
def _no_final_norm(self: Stack, x: Tensor, *inputs: Maybe, **options: Any) -> Tensor:
    """A pre-norm stack ends without a norm.

    Symptom: the output layer sees vectors that grow with depth; logits are too large to train.
    Caught by: test_properties.py::test_the_stream_leaves_every_stack_normalised
    """
    with with_part(self, "final_norm", None):
        return _stack(self, x, *inputs, **options)


@instead_of("models.blocks.Stack.forward")
def _one_block_repeated(self: Stack, x: Tensor, *inputs: Maybe, **options: Any) -> Tensor:
    """`[Block(config)] * n_layers`: all layers are one and the same block.

    Symptom: it trains, but has the parameters of a single layer.
    Caught by: test_properties.py::test_every_parameter_moves_the_result
    """
    with with_part(self, "blocks", nn.ModuleList([self.blocks[0]] * len(self.blocks))):
        return _stack(self, x, *inputs, **options)


# Feed-forward networks, embeddings and heads


@instead_of("layers.feedforward.FeedForward.forward")
def _gate_and_value_swapped(self: FeedForward, x: Tensor) -> Any:
    """The activation is applied to the value instead of the gate.

    Symptom: none if trained so; a loaded LLaMA checkpoint speaks nonsense.
    Caught by: test_routes.py::test_each_activation_follows_its_formula
    """
    if self.gate is None:
        return _feed_forward(self, x)
    return self.down(self.activation(self.up(x)) * self.gate(x))


@instead_of("layers.feedforward.FeedForward.forward")
def _gelu_exact_instead_of_tanh(self: FeedForward, x: Tensor) -> Any:
    """GPT-2's weights are run with the exact GELU instead of its tanh approximation.

    Symptom: hidden values are off by up to 0.0005: near enough to look right, and not equal.
    Caught by: test_routes.py::test_each_activation_follows_its_formula
    """
    if self.activation is not _gelu_tanh:
        return _feed_forward(self, x)
    active = F.gelu(self.up(x) if self.gate is None else self.gate(x))
    return self.down(active if self.gate is None else active * self.up(x))


@instead_of("layers.feedforward.MixtureOfExperts.forward")
def _experts_not_renormalised(self: MixtureOfExperts, x: Tensor) -> Any:
    """The probabilities of the experts picked do not sum to 1.

    Symptom: the layer says the less the more experts there are to choose from.
    Caught by: test_routes.py::test_a_mixture_equals_its_experts_asked_one_token_at_a_time
    """
    picked = self.router(x).softmax(dim=-1).topk(self.active_experts, dim=-1).values
    return picked.sum(dim=-1, keepdim=True) * _mixture(self, x)  # undoes the division by the sum


@instead_of("layers.embeddings.Embedding.forward")
def _embedding_unscaled(
    self: Embedding, ids: Tensor, positions: Tensor, segments: Maybe = None
) -> Any:
    """Token vectors are not multiplied by sqrt(D) before positions are added.

    Symptom: vectors of length 1 drown in positions of length sqrt(D / 2); learning starts slowly.
    Caught by: test_routes.py::test_embeddings_follow_the_formula_of_the_paper
    """
    return self.dropout(self.positions(self.tokens(ids), positions))


@instead_of("models.language_models.OutputLayer.forward")
def _logits_unscaled(self: OutputLayer, x: Tensor) -> Any:
    """T5's vectors go to the tied output layer without the factor 1/sqrt(D).

    Symptom: the best token stays the best, but probabilities are far too sure and losses too high.
    Caught by: test_routes.py::test_logits_follow_the_formula_of_t5
    """
    return self.projection(x)


@instead_of("models.language_models.mean_over_tokens")
def _mean_counts_pads(x: Tensor, mask: Maybe = None) -> Tensor:
    """The mean over a sequence counts its padding.

    Symptom: the same sentence has another vector in another batch; short ones all look alike.
    Caught by: test_properties.py::test_a_mean_over_tokens_ignores_padding
    """
    return x.mean(dim=1)


@instead_of("layers.embeddings.PatchEmbedding.forward")
def _patches_with_channels_last(self: PatchEmbedding, images: Tensor) -> Any:
    """Pixels of a patch are laid out colour by colour within a pixel, not plane by plane.

    Symptom: none if trained so; a loaded ViT checkpoint sees noise.
    Caught by: test_routes.py::test_patches_equal_a_convolution
    """
    p = self.patch_size
    rows = images.unfold(2, p, p).unfold(3, p, p)  # (B, C, rows, columns, p, p)
    patches = rows.permute(0, 2, 3, 4, 5, 1).flatten(start_dim=3).flatten(1, 2)
    return self.projection(patches)
