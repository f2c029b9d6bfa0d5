"""Gated linear attention (GLA, Yang et al., 2024): a state of fixed size, which forgets by gates.

Without a softmax the past can be summed up: the state of a head is a sum of products of keys and
values, and a query reads it. Before a token is added, each row of the state is multiplied by a gate
between 0 and 1, which that token sets. Many tokens are taken in chunks: within one, each reads the
others by pairs, and the state carries what came before. That gives the numbers of the recurrence.
"""

from typing import NoReturn

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib.core.checks import check_whole
from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.attention import AttentionPattern, MultiHeadAttention
from transformer_lib.layers.caches.kv_cache import AttentionCache, KeyValueCache, LayerCache
from transformer_lib.layers.masks import causal_mask
from transformer_lib.layers.norms import RMSNorm

SLOW = 16  # gates are 16th roots of sigmoids: near 1 at first, so that little is forgotten


class GatedLinearAttention(MultiHeadAttention):
    """Causal attention without a softmax, whose cache does not grow with the text.

    A part of a model: ``Parts(attention=GatedLinearAttention)``. Gates tell near from far, so it
    needs no positions. RoPE is refused: the features that it turns together have gates of their
    own, so distances alone would not count. What a mask hides among the keys (padding) leaves the
    state as it is; other masks are refused. The paper's gate on outputs is left out.

    Letters of shapes: KG, the widths of a key and its gates together.

    Args:
        config: sizes of heads, biases and ``norm_eps`` are read.
        d_gate: the width from which gates are made.
        chunk: how many tokens are taken at once.

    Raises:
        ValueError: if the configuration asks for positions in attention, a window, shared keys, or
            what only a softmax has, or a size is not a whole number of at least 1.

    Example:
        >>> from transformer_lib import CausalLM, Parts, generate
        >>> sizes = {"vocab_size": 100, "d_model": 8, "n_heads": 2}
        >>> config = TransformerConfig(**sizes, position="none")
        >>> parts = Parts(attention=GatedLinearAttention)
        >>> cache = StateCache(config.n_layers, config.max_len)
        >>> ids = generate(
        ...     CausalLM(config, parts=parts),
        ...     torch.tensor([[5, 7]]),
        ...     max_new_tokens=9,
        ...     cache=cache,
        ... )
        >>> ids.shape, cache.n_bytes  # 6 layers, 2 heads, 4 * 4 numbers
        (torch.Size([1, 11]), 768)
    """

    def __init__(self, config: TransformerConfig, *, d_gate: int = 16, chunk: int = 16) -> None:
        if config.position in ("rope", "alibi", "t5"):
            why = "gates tell near from far; expected 'none', or one that is added to embeddings"
            raise ValueError(f"position={config.position!r}: {why}")
        for name in ("window", "n_kv_heads", "score_cap"):
            if getattr(config, name) is not None:
                raise ValueError(f"{name}={getattr(config, name)}: a state has none; leave it out")
        if config.qk_norm != "none" or config.attention_dropout:
            which = f"qk_norm={config.qk_norm!r}, attention_dropout={config.attention_dropout}"
            raise ValueError(f"{which}: there is no softmax; leave them out")
        check_whole("d_gate", d_gate)
        check_whole("chunk", chunk)
        super().__init__(
            config.d_model, config.n_heads, d_head=config.d_head, bias=config.bias,
            qkv_bias=config.qkv_bias,
        )  # fmt: skip
        self.chunk = chunk
        self.gate_down = nn.Linear(config.d_model, d_gate, bias=False)
        self.gate_up = nn.Linear(d_gate, config.n_heads * config.d_head)
        self.head_norm = RMSNorm(config.d_head, eps=config.norm_eps)

    def project(
        self,
        x: Float[Tensor, "B T D"],
        source: Float[Tensor, "B S D"],
        angles: Float[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B H T Dk"], Float[Tensor, "B H S KG"], Float[Tensor, "B H S Dk"]]:
        """Make the queries of ``x``, and keys with gates, and values, of ``source``."""
        return self.project_queries(x, angles), *self.project_keys_values(source, angles)

    def project_keys_values(
        self, source: Float[Tensor, "B S D"], angles: Float[Tensor, "..."] | None = None
    ) -> tuple[Float[Tensor, "B H S KG"], Float[Tensor, "B H S Dk"]]:
        """Make keys, each with the logarithms of its gates behind it, and values."""
        k, v = super().project_keys_values(source, angles)
        log_gates = F.logsigmoid(self.gate_up(self.gate_down(source))) / SLOW
        return torch.cat((k, self._split(log_gates)), dim=-1), v

    def attend_and_keep(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B H T KG"],
        v: Float[Tensor, "B H T Dk"],
        mask: Bool[Tensor, "B 1 1 S"] | AttentionPattern | None = None,
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        cache: AttentionCache | None = None,
    ) -> Float[Tensor, "B H T Dk"]:
        """Go on from the state in the cache, and keep the new one; in at least float32."""
        assert isinstance(cache, _LayerState | None), "checked before"
        dtype = torch.promote_types(v.dtype, torch.float32)
        keys, log_gates = self._seen(k.to(dtype), mask, bias, causal=causal)
        state = None if cache is None else cache.state
        if state is None:
            state = keys.new_zeros(len(q), self.n_heads, self.d_head, self.d_head)
        heads, state = _in_chunks(q.to(dtype), keys, v.to(dtype), log_gates, state, self.chunk)
        if cache is not None:
            cache.keep(state, q.shape[2])
        return heads.to(v.dtype)

    def look_up(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B H T KG"],
        v: Float[Tensor, "B H T Dk"],
        mask: Bool[Tensor, "B 1 1 T"] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> tuple[Float[Tensor, "B H T Dk"], Float[Tensor, "B H T T"]]:
        """Read all values by pairs, and return the weights, too."""
        weights = _pair_weights(q, *self._seen(k, mask, bias, causal=causal))
        return weights @ v, weights

    def merge(self, heads: Float[Tensor, "B H T Dk"]) -> Float[Tensor, "B T D"]:
        """Norm what each head found, since weights do not sum to 1, and mix the heads."""
        return super().merge(self.head_norm(heads))

    def _check(
        self, x: Tensor, memory: Tensor | None, angles: Tensor | None, cache: AttentionCache | None
    ) -> None:
        super()._check(x, memory, angles, cache)
        if memory is not None:
            raise ValueError("memory: a state is read from left to right; expected none")
        if angles is not None:
            raise ValueError("angles: neighbours in a key have gates of their own; expected none")
        if not isinstance(cache, _LayerState | None):
            raise ValueError(f"cache is a {type(cache).__name__}; expected part of a StateCache")

    def _seen(
        self,
        k: Tensor,
        mask: Tensor | AttentionPattern | None,
        bias: Tensor | None,
        *,
        causal: bool,
    ) -> tuple[Float[Tensor, "B H T Dk"], Float[Tensor, "B H T Dk"]]:
        """Keys and gates apart; hidden tokens add nothing to the state, and forget nothing."""
        if not causal or bias is not None:
            has = f"{causal=}" if bias is None else "a bias on scores"
            raise ValueError(f"{has}: a state is read from left to right, and has no scores")
        if mask is not None:
            if isinstance(mask, AttentionPattern) or mask.ndim != 4 or mask.shape[1:3] != (1, 1):
                has = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else "no shape"
                raise ValueError(f"mask has {has}; expected (B, 1, 1, S), which hides keys")
            k = k * mask[:, :, 0, -k.shape[2] :, None]
        keys, log_gates = k.chunk(2, dim=-1)
        return keys, log_gates


class StateCache(KeyValueCache):
    """A cache whose layers keep one state instead of all keys and values.

    Args:
        n_layers: the number of blocks of the decoder.
        max_len: the longest target sequence.

    Example:
        >>> StateCache(n_layers=6, max_len=512).length
        0
    """

    def __init__(self, n_layers: int, max_len: int) -> None:
        super().__init__(n_layers, max_len)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.layers = [_LayerState(self.max_len) for _ in self.layers]

    def rewind(self, length: int) -> None:
        """Refuse to forget the newest tokens.

        Args:
            length: how many tokens to keep.

        Raises:
            ValueError: unless it is the number of tokens that there are.
        """
        if length != self.length:
            why = "a state cannot forget its newest tokens"
            raise ValueError(f"{length=} must be that of the cache, {self.length}: {why}")


class _LayerState(LayerCache):
    """The state of one layer; ``None`` before the first token."""

    state: Float[Tensor, "B H Dk Dv"] | None = None

    def keep(self, state: Float[Tensor, "B H Dk Dv"], n_new: int) -> None:
        self.state, self.length = state, self.length + n_new

    def append(self, k: Tensor, v: Tensor) -> NoReturn:
        raise ValueError("cache is a StateCache, for layers with a state; expected a KeyValueCache")

    def select(self, rows: Int[Tensor, " B"]) -> None:
        self.state = None if self.state is None else self.state[rows]

    @property
    def n_bytes(self) -> int:
        return 0 if self.state is None else self.state.numel() * self.state.element_size()


def _in_chunks(
    q: Tensor, k: Tensor, v: Tensor, log_gates: Tensor, state: Tensor, chunk: int
) -> tuple[Float[Tensor, "B H T Dv"], Float[Tensor, "B H Dk Dv"]]:
    """What queries find, and the last state; a chunk of one token is a step of the recurrence."""
    found = []
    parts = (x.split(chunk, dim=2) for x in (q, k, v, log_gates))
    for queries, keys, values, gates in zip(*parts, strict=True):
        since = gates.cumsum(dim=2)  # (B, H, T, Dk): what is left of the state, as a logarithm
        end = since[:, :, -1:]
        found.append((queries * since.exp()) @ state + _pair_weights(queries, keys, gates) @ values)
        state = end.mT.exp() * state + (keys * (end - since).exp()).mT @ values
    return torch.cat(found, dim=2), state


def _pair_weights(q: Tensor, k: Tensor, log_gates: Tensor) -> Float[Tensor, "B H T T"]:
    """Products of queries with what is left of keys, which is never more than the whole."""
    since = log_gates.cumsum(dim=2)
    left = since[:, :, :, None] - since[:, :, None]  # (B, H, T, T, Dk), as logarithms
    past = causal_mask(q.shape[2], device=q.device)[..., None]
    return torch.einsum("bhtd,bhsd,bhtsd->bhts", q, k, left.where(past, -torch.inf).exp())
