"""Mistakes about what today's families of decoders have and LLaMA 2 has not."""

from typing import Any

import torch
from torch import Tensor, nn

from transformer_book.mistakes.catalogue import Maybe, instead_of
from transformer_lib import (
    Block,
    BoundedAttention,
    Family,
    Layout,
    MixtureOfExperts,
    OutputLayer,
    RMSNorm,
    RopeScaling,
    Stack,
    TransformerConfig,
    rms_norm,
    rotate,
    scale_frequencies,
)

# The right versions, kept from before any mistake is made.
_visibility = Stack._visibility
_angles = Stack._angles
_place = Family.place
_add = Block._add
_has_rope = TransformerConfig.has_rope


@instead_of("hugging_face.weight_layouts.change_pairing")
def _rope_rows_not_permuted(weight: Tensor, n_heads: int, to: str) -> Tensor:
    """Weights made for neighbouring pairs are stored for split halves in their old order.

    Symptom: files load without a word, and the model speaks, but knows little of order.
    Caught by: test_families.py::test_files_of_all_families_are_read_by_transformers
    """
    return weight


@instead_of("hugging_face.family.Family.place")
def _keys_and_values_exchanged(
    self: Family, name: str, *, gated: bool = False
) -> tuple[str, Layout] | None:
    """Keys and values are read in the wrong order; they have the same shapes.

    Symptom: nothing fails; tokens are found by what they say and say how they are found.
    Caught by: test_families.py::test_all_families_say_what_transformers_says
    """
    exchanged = {"key": "value", "value": "key"}
    *path, part, end = name.split(".")
    return _place(self, ".".join((*path, exchanged.get(part, part), end)), gated=gated)


@instead_of("hugging_face.family.Family.place")
def _gate_and_up_exchanged(
    self: Family, name: str, *, gated: bool = False
) -> tuple[str, Layout] | None:
    """Mixtral's w1, w2, w3 are taken for up, down and gate; w1 is the gate.

    Symptom: nothing fails, since all shapes fit; every expert lets through what it should weigh.
    Caught by: test_families.py::test_families_that_turn_or_ask_a_part_say_what_transformers_says
    """
    exchanged = {"gate": "up", "up": "gate"} if ".experts." in name else {}
    *path, part, end = name.split(".")
    return _place(self, ".".join((*path, exchanged.get(part, part), end)), gated=gated)


@instead_of("hugging_face.family.Family.place")
def _experts_in_another_order(
    self: Family, name: str, *, gated: bool = False
) -> tuple[str, Layout] | None:
    """Experts are read in another order than the router numbers them.

    Symptom: nothing fails; tokens go to experts that were trained for others.
    Caught by: test_families.py::test_families_that_turn_or_ask_a_part_say_what_transformers_says
    """
    for one, other in (("0", "1"), ("1", "0")):
        if f".experts.{one}." in name:
            name = name.replace(f".experts.{one}.", f".experts.{other}.")
            break
    return _place(self, name, gated=gated)


@instead_of("layers.feedforward.MixtureOfExperts.forward")
def _experts_weighed_alike(self: MixtureOfExperts, x: Tensor) -> Tensor:
    """The router picks the experts, but its probabilities do not weigh what they say.

    Symptom: text that is nearly right; the second expert speaks as loudly as the first.
    Caught by: test_families.py::test_families_that_turn_or_ask_a_part_say_what_transformers_says
    """
    chosen = self.router(x).topk(self.active_experts, dim=-1).indices  # (B, T, k)
    said = torch.stack([expert(x) for expert in self.experts], dim=-2)  # (B, T, E, D)
    return said.take_along_dim(chosen[..., None], dim=-2).mean(dim=-2)


@instead_of("core.config.TransformerConfig.has_rope")
def _layers_without_rope_turned_round(self: TransformerConfig, layer: int) -> bool:
    """SmolLM3's no_rope_layers is taken at its word; its ones mean layers that have RoPE.

    Symptom: files load without a word; three layers of four have lost the order of the tokens.
    Caught by: test_families.py::test_families_that_turn_or_ask_a_part_say_what_transformers_says
    """
    mixed = {"R", "N"} <= set(self.rope_pattern)
    return _has_rope(self, layer) != mixed


@instead_of("layers.attention.rotate")
def _last_features_turned(x: Tensor, angles: Tensor, pairing: Any) -> Tensor:
    """Where a part of each head turns, it is the end instead of the start.

    Symptom: as if no token stood anywhere in particular, but only with these files.
    Caught by: test_families.py::test_families_that_turn_or_ask_a_part_say_what_transformers_says
    """
    rest = x.shape[-1] - 2 * angles.shape[-1]
    return torch.cat((x[..., :rest], rotate(x[..., rest:], angles, pairing)), dim=-1)


@instead_of("layers.qk_norm_softcap.BoundedAttention._split_normed")
def _query_norm_over_all_heads(self: BoundedAttention, x: Tensor, norm: nn.Module | None) -> Tensor:
    """Queries and keys are normalised over all heads together where each head has its own norm.

    Symptom: a loud head makes the others quiet; the loss is a little worse than it could be.
    Caught by: test_families.py::test_all_families_say_what_transformers_says
    """
    if not isinstance(norm, RMSNorm) or not self.norms_heads:
        return self._split(x if norm is None else norm(x))
    even = rms_norm(x, torch.ones_like(x[0, 0]), norm.eps)
    return self._split(even) * (norm.weight + norm.offset)


@instead_of("layers.qk_norm_softcap.BoundedAttention.project_queries")
def _query_norm_after_rotation(self: BoundedAttention, x: Tensor, angles: Maybe = None) -> Tensor:
    """Queries are rotated first and normalised then: the learned gains meet other features.

    Symptom: with gains of 1 there is no difference; the more is learned, the larger it grows.
    Caught by: test_families.py::test_all_families_say_what_transformers_says
    """
    q = self._split(self.query(x))
    q = q if angles is None else rotate(q, angles, self.pairing)
    if self.query_norm is None:
        return q
    normed: Tensor = (
        self.query_norm(q)
        if self.norms_heads
        else self._split(self.query_norm(q.transpose(1, 2).flatten(2)))
    )
    return normed


@instead_of("layers.norms.RMSNorm.forward")
def _one_plus_weight_forgotten(self: RMSNorm, x: Tensor) -> Tensor:
    """The norm multiplies by the weight where the file means 1 + weight.

    Symptom: gains near 0 instead of 1: every layer whispers, and the text is noise.
    Caught by: test_families.py::test_all_families_say_what_transformers_says
    """
    return rms_norm(x, self.weight, self.eps)


@instead_of("models.blocks.Stack._visibility")
def _local_and_global_exchanged(
    self: Stack, x: Tensor, mask: Maybe, cache: Any, local: bool
) -> tuple[Any, ...]:
    """The window is on the wrong layers: local and global ones have changed places.

    Symptom: short texts are the same; in long ones most layers have lost what is far away.
    Caught by: test_families.py::test_all_families_say_what_transformers_says
    """
    mixed = {"L", "G"} <= set(self.config.window_pattern)
    return _visibility(self, x, mask, cache, local != mixed)


@instead_of("models.blocks.Stack._angles")
def _one_base_for_all_layers(self: Stack, positions: Tensor, local: bool = False) -> Maybe:
    """Layers with a window turn by the base of those without.

    Symptom: no error and fluent text; order among neighbours is blurred.
    Caught by: test_families.py::test_all_families_say_what_transformers_says
    """
    return _angles(self, positions, local=False)


@instead_of("layers.positions.scale_frequencies")
def _scaled_twice(
    frequencies: Tensor, theta: float, scaling: RopeScaling, positions: Tensor
) -> Tensor:
    """RoPE's frequencies are scaled when they are made, and once more when they are used.

    Symptom: the text is as if all tokens stood nearer to each other than they do.
    Caught by: test_families.py::test_all_families_say_what_transformers_says
    """
    once = scale_frequencies(frequencies, theta, scaling, positions)
    return scale_frequencies(once, theta, scaling, positions)


@instead_of("models.blocks.Block._add")
def _update_not_normalised(
    self: Block, x: Tensor, update: Tensor, norm: nn.Module, update_norm: nn.Module | None
) -> Tensor:
    """The second norm of a sublayer, behind it, is left out.

    Symptom: some layers write far more into the stream than others; the rest drowns.
    Caught by: test_families.py::test_all_families_say_what_transformers_says
    """
    return _add(self, x, update, norm, None)


@instead_of("models.language_models.OutputLayer.forward")
def _logits_not_capped(self: OutputLayer, x: Tensor) -> Tensor:
    """The cap on the logits is forgotten.

    Symptom: greedy text is the same; what is drawn at random is less varied than it should be.
    Caught by: test_families.py::test_all_families_say_what_transformers_says
    """
    logits: Tensor = self.projection(x * self.scale)
    return logits
