"""Multi-head latent attention (MLA, DeepSeek V2 and V3): one small vector is kept of each token.

The keys and values of all heads are made from a latent vector, which is narrower than they are
together. The cache keeps the latent vector, and a key of a few features that RoPE turns: it is the
same for all heads. What RoPE turns cannot come from the latent vector, because a rotation would
stand between the two products that follow each other, and they could not be joined.

Joined, they let a new token attend to the latent vectors themselves: a query that is multiplied by
the weights which make keys has the same scores with latent vectors as it has with keys.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_lib.core.checks import check_whole
from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.attention import AttentionPattern, MultiHeadAttention
from transformer_lib.layers.caches.kv_cache import AttentionCache
from transformer_lib.layers.fused_attention import fused_attention
from transformer_lib.layers.norms import RMSNorm
from transformer_lib.layers.positions import rotate


class LatentAttention(MultiHeadAttention):
    """Multi-head attention whose keys and values are made from one latent vector for each token.

    A part of a model: ``Parts(attention=partial(LatentAttention, d_latent=512))``. The last
    ``rope_fraction`` of each head is turned by RoPE, and that much of the key is shared by all
    heads; without RoPE, nothing is.

    Letters of shapes: R, the width of the latent vector; W = R + the width that RoPE turns, what
    the cache keeps; Dv, the width of a value.

    Args:
        config: sizes of heads, RoPE, scale, dropout, biases and ``norm_eps`` are read.
        d_latent: R.
        d_query_latent: the width of a latent vector for queries; ``None``: they are made directly.
        d_value: Dv; ``None``: the width of that part of a head which RoPE does not turn.

    Attributes:
        d_kept: W, how many numbers the cache keeps of each token.

    Raises:
        ValueError: if heads are to share keys in another way or have bounded scores, RoPE turns
            whole heads, or a width is not a whole number of at least 1.

    Example:
        >>> config = TransformerConfig(
        ...     d_model=64,
        ...     n_heads=4,
        ...     position="rope",
        ...     rope_fraction=0.5,
        ... )
        >>> attend = LatentAttention(config, d_latent=12)
        >>> attend(torch.zeros(2, 5, 64), causal=True).shape
        torch.Size([2, 5, 64])
        >>> attend.d_kept  # instead of 2 * 64
        20
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        d_latent: int,
        d_query_latent: int | None = None,
        d_value: int | None = None,
    ) -> None:
        nn.Module.__init__(self)  # other projections than those of the base class
        _check(config)
        turned = config.rope_width if config.position == "rope" else 0
        d_value = config.d_head - turned if d_value is None else d_value
        for name, width in {"d_latent": d_latent, "d_value": d_value}.items():
            check_whole(name, width)
        self.d_model, self.n_heads, self.n_kv_heads = config.d_model, config.n_heads, config.n_heads
        self.d_head, self.d_latent, self.d_value = config.d_head, d_latent, d_value
        self.d_plain, self.d_kept = config.d_head - turned, d_latent + turned
        self.scale, self.dropout = config.score_scale, config.attention_dropout
        self.pairing = config.rope_pairing
        bias = config.bias if config.qkv_bias is None else config.qkv_bias
        self.query_latent: nn.Module | None = None
        d_source = config.d_model
        if d_query_latent is not None:
            check_whole("d_query_latent", d_query_latent)
            d_source = d_query_latent
            self.query_latent = nn.Linear(config.d_model, d_source, bias=bias)
            self.query_latent_norm = RMSNorm(d_source, eps=config.norm_eps)
        self.query = nn.Linear(d_source, config.n_heads * config.d_head, bias=False)
        self.latent = nn.Linear(config.d_model, self.d_kept, bias=bias)
        self.latent_norm = RMSNorm(d_latent, eps=config.norm_eps)
        d_made = config.n_heads * (self.d_plain + d_value)
        self.key_value = nn.Linear(d_latent, d_made, bias=False)
        self.output = nn.Linear(config.n_heads * d_value, config.d_model, bias=config.bias)

    def project(
        self,
        x: Float[Tensor, "B T D"],
        source: Float[Tensor, "B S D"],
        angles: Float[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B H T Dk"], Float[Tensor, "B 1 S W"], Float[Tensor, "B 1 S 0"]]:
        """Make the queries of ``x``, and what is kept of ``source``: latent vectors, no values."""
        return self.project_queries(x, angles), *self.project_keys_values(source, angles)

    def project_queries(
        self, x: Float[Tensor, "B T D"], angles: Float[Tensor, "..."] | None = None
    ) -> Float[Tensor, "B H T Dk"]:
        """Make the queries of all heads; the end of each is rotated if there are angles."""
        if self.query_latent is not None:
            x = self.query_latent_norm(self.query_latent(x))
        return self._turned(self._split(self.query(x)), self.d_plain, angles)

    def project_keys_values(
        self, source: Float[Tensor, "B S D"], angles: Float[Tensor, "..."] | None = None
    ) -> tuple[Float[Tensor, "B 1 S W"], Float[Tensor, "B 1 S 0"]]:
        """Make what is kept of each token: a latent vector, then the rotated key of all heads."""
        made = self.latent(source)[:, None]  # (B, 1, S, W)
        latent, shared = made.split([self.d_latent, self.d_kept - self.d_latent], dim=-1)
        kept = torch.cat((self.latent_norm(latent), shared), dim=-1)
        return self._turned(kept, self.d_latent, angles), kept[..., :0]

    def _turned(self, x: Tensor, n_plain: int, angles: Tensor | None) -> Tensor:
        """Turn what comes after the first features."""
        if angles is None or n_plain == x.shape[-1]:
            return x
        return torch.cat((x[..., :n_plain], rotate(x[..., n_plain:], angles, self.pairing)), dim=-1)

    def attend_and_keep(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B 1 S W"],
        v: Float[Tensor, "B 1 S 0"],
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        cache: AttentionCache | None = None,
    ) -> Float[Tensor, "B H T Dv"]:
        """Append what is kept to the cache, if there is one, and attend to all it holds."""
        if cache is not None:
            k, v = cache.append(k, v)
        if isinstance(mask, AttentionPattern):
            raise ValueError(f"a {type(mask).__name__} knows no latent vectors; give a mask")
        return self.attend(q, k, v, mask, bias, causal=causal)

    def attend(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B 1 S W"],
        v: Float[Tensor, "B 1 S 0"],
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
    ) -> Float[Tensor, "B H T Dv"]:
        """Let every head look its queries up, in keys and values or in the latent vectors."""
        dropout = self.dropout if self.training else 0.0
        if not self.fused:
            return self.look_up(q, k, v, mask, bias, causal=causal, dropout=dropout)[0]
        if self.reads_latents(q.shape[2], k.shape[2]):
            to_key, to_value = self.key_value.weight.unflatten(0, (self.n_heads, -1)).split(
                [self.d_plain, self.d_value], dim=1
            )  # (H, d_plain, R) and (H, Dv, R)
            plain, turned = q[..., : self.d_plain], q[..., self.d_plain :]
            q = torch.cat((plain @ to_key, turned), dim=-1)  # (B, H, T, W)
            found = fused_attention(
                q, k, k[..., : self.d_latent], mask, bias=bias, causal=causal,
                scale=self._score_scale(q), dropout=dropout, enable_gqa=True,
            )  # fmt: skip
            heads: Tensor = found @ to_value.transpose(1, 2)  # (B, H, T, R) to (B, H, T, Dv)
            return heads
        keys, values = self.keys_and_values(k)
        return fused_attention(
            q,
            keys,
            values,
            mask,
            bias=bias,
            causal=causal,
            scale=self._score_scale(q),
            dropout=dropout,
        )

    def look_up(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B 1 S W"],
        v: Float[Tensor, "B 1 S 0"],
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> tuple[Float[Tensor, "B H T Dv"], Float[Tensor, "B H T S"]]:
        """Make keys and values, and look queries up by the readable formula."""
        keys, values = self.keys_and_values(k)
        return super().look_up(q, keys, values, mask, bias, causal=causal, dropout=dropout)

    def keys_and_values(
        self, kept: Float[Tensor, "B 1 S W"]
    ) -> tuple[Float[Tensor, "B H S Dk"], Float[Tensor, "B H S Dv"]]:
        """Make the keys and values of all heads from what is kept of each token.

        Args:
            kept: latent vectors and rotated keys, ``(B, 1, S, W)``.

        Returns:
            Keys ``(B, H, S, Dk)``, whose ends are the same for all heads, and values.
        """
        made = self.key_value(kept[:, 0, :, : self.d_latent])  # (B, S, H * (d_plain + Dv))
        heads = made.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, S, d_plain + Dv)
        plain, values = heads.split([self.d_plain, self.d_value], dim=-1)
        shared = kept[..., self.d_latent :].expand(-1, self.n_heads, -1, -1)
        return torch.cat((plain, shared), dim=-1), values

    def reads_latents(self, n_queries: int, n_keys: int) -> bool:
        """Say whether to attend to latent vectors takes fewer products than to make the keys.

        With one new token it does. In training, keys are made once for many queries.

        Args:
            n_queries: T.
            n_keys: S.

        Returns:
            ``False`` too if the weights cannot be read past the layer: it has hooks, or another
            layer stands in its place.
        """
        layer = self.key_value
        if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
            return False
        per_token = self.d_latent * (self.d_plain + self.d_value)  # of each head, either way
        by_keys = n_keys * per_token + n_queries * n_keys * (self.d_head + self.d_value)
        by_latents = n_queries * per_token + n_queries * n_keys * (self.d_kept + self.d_latent)
        return by_latents < by_keys

    def _score_scale(self, q: Float[Tensor, "B H T W"]) -> float:
        """What scores are multiplied by: that of a head, even where ``q`` is for latent vectors."""
        return self.d_head**-0.5 if self.scale is None else self.scale


def _check(config: TransformerConfig) -> None:
    """Refuse what latent attention does not know."""
    if config.kv_heads != config.n_heads:
        why = "all heads share a latent vector already; leave it out"
        raise ValueError(f"n_kv_heads={config.n_kv_heads}: {why}")
    if config.qk_norm != "none" or config.score_cap is not None:
        which = f"qk_norm={config.qk_norm!r}, score_cap={config.score_cap}"
        raise ValueError(f"{which}: latent attention has neither a norm nor a cap of scores")
    if config.position == "rope" and config.rope_width >= config.d_head:
        why = "a part of each head must come from the latent vector"
        raise ValueError(f"rope_fraction={config.rope_fraction} must be less than 1: {why}")
