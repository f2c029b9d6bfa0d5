"""Attention with bounded scores: QK norm, or a soft cap on the logits.

In a long training run queries and keys may grow until the softmax picks one key, and its gradient
vanishes. Two remedies: to normalise queries and keys, or to squash large scores by a tanh.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.norms import make_norm
from transformer_lib.layers.positions import rotate


class BoundedAttention(MultiHeadAttention):
    """Multi-head attention with norms on queries and keys, or a cap on the scores, or both.

    With a cap the readable formula is always used: PyTorch's fused kernel has none.

    Args:
        config: ``qk_norm``, ``score_cap`` and what a norm is made of are read.
        sizes: what :class:`~transformer_lib.layers.attention.MultiHeadAttention` takes.

    Example:
        >>> import torch
        >>> config = TransformerConfig(
        ...     d_model=8, n_heads=2, norm="rms", qk_norm="head"
        ... )
        >>> attend = BoundedAttention(config, d_model=8, n_heads=2)
        >>> attend(torch.zeros(2, 5, 8), causal=True).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, config: TransformerConfig, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.cap = config.score_cap
        self.norms_heads = config.qk_norm == "head"
        self.query_norm: nn.Module | None = None
        self.key_norm: nn.Module | None = None
        if config.qk_norm != "none":
            widths = (self.query.out_features, self.key.out_features)
            if self.norms_heads:  # each head is a vector of its own, and all share the weight
                widths = (self.d_head, self.d_head)
            self.query_norm, self.key_norm = (make_norm(config, width) for width in widths)

    def project_queries(
        self, x: Float[Tensor, "B T D"], angles: Float[Tensor, "..."] | None = None
    ) -> Float[Tensor, "B H T Dk"]:
        """Make the queries of all heads, normalised, and then rotated if there are angles."""
        q = self._split_normed(self.query(x), self.query_norm)
        return q if angles is None else rotate(q, angles, self.pairing)

    def project_keys_values(
        self, source: Float[Tensor, "B S D"], angles: Float[Tensor, "..."] | None = None
    ) -> tuple[Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dk"]]:
        """Make the keys, normalised and then rotated, and the values, which stay as they are."""
        k = self._split_normed(self.key(source), self.key_norm)
        k = k if angles is None else rotate(k, angles, self.pairing)
        return k, self._split(self.value(source))

    def _split_normed(
        self, x: Float[Tensor, "B T HDk"], norm: nn.Module | None
    ) -> Float[Tensor, "B H T Dk"]:
        """Split into heads and normalise each; or normalise all features, and split then."""
        if norm is None:
            return self._split(x)
        heads: Tensor = norm(self._split(x)) if self.norms_heads else self._split(norm(x))
        return heads
