"""One configuration for every model: free choices, checked."""

import numbers
import operator
from dataclasses import dataclass, fields
from typing import Literal

from transformer_lib.checks import check_divides, check_fields, check_number, check_probability

Position = Literal["sinusoidal", "learned", "rope", "alibi", "t5", "none"]
RopePairing = Literal["interleaved", "split"]
Norm = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh"]
Init = Literal["xavier", "gpt2"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The sizes and choices that define a Transformer. The defaults follow the base model of 2017.

    Args:
        vocab_size: V, the number of different tokens.
        max_len: the longest sequence the model accepts.
        d_model: D, the width of the residual stream.
        n_heads: H, the number of attention heads; must divide ``d_model``.
        n_kv_heads: heads that have keys and values of their own; must divide ``n_heads``.
            ``None`` means all of them (MHA), ``1`` is MQA, anything between is GQA.
        d_ff: F, the inner width of the feed-forward network; ``None`` means ``4 * d_model``.
        n_layers: the number of blocks in each stack.
        dropout: the probability with which a value is dropped in training: in the embeddings and
            in what each sublayer adds to the residual stream.
        attention_dropout: the same for attention weights; the 2017 paper does not mention it.
        position: how a token's place is told to the model.
        rope_theta: the base of RoPE's wavelengths.
        rope_pairing: which features RoPE rotates together: neighbours (``"interleaved"``, the
            paper) or the two halves of a head (``"split"``, Hugging Face).
        norm: which normalisation.
        norm_position: before each sublayer (``"pre"``) or after the residual sum (``"post"``).
        norm_eps: the small constant inside the norm's square root.
        activation: the non-linearity of the feed-forward network; ``swiglu`` and ``geglu`` are
            gated, ``_tanh`` is the approximation of GELU that GPT-2 uses.
        n_experts: the number of feed-forward networks to choose from in each block (a mixture of
            experts); ``None`` means one, and no choice.
        active_experts: how many of them each token is sent to.
        bias: whether the linear layers of the blocks and the layer norms add a learned constant.
        scale_embeddings: whether token embeddings are multiplied by ``sqrt(d_model)``.
        norm_embeddings: whether the embeddings are normalised before the first block (BERT).
        n_segments: the number of segment embeddings (BERT has 2); 0 means none.
        attention_scale: what scores are multiplied by; ``None`` means ``1/sqrt(d_head)``.
        tie_embeddings: whether the output layer reuses the token embedding's weights.
        logit_scale: what the last vectors are multiplied by before the output layer (T5).
        window: how many positions a token sees, itself included, to each side; ``None``: all.
        init: how weights are drawn before training.

    Raises:
        ValueError: if a value is out of range or two of them do not fit together.

    Example:
        >>> config = TransformerConfig(d_model=768, n_heads=12)
        >>> config.d_head, config.ffn_width
        (64, 3072)
        >>> TransformerConfig(d_model=100, n_heads=12)
        Traceback (most recent call last):
        ValueError: n_heads=12 must divide d_model=100: 100 / 12 leaves a remainder of 4
    """

    vocab_size: int = 37_000
    max_len: int = 512
    d_model: int = 512
    n_heads: int = 8
    n_kv_heads: int | None = None
    d_ff: int | None = None
    n_layers: int = 6
    dropout: float = 0.1
    attention_dropout: float = 0.0
    position: Position = "sinusoidal"
    rope_theta: float = 10_000.0
    rope_pairing: RopePairing = "interleaved"
    norm: Norm = "layer"
    norm_position: NormPosition = "post"
    norm_eps: float = 1e-5
    activation: Activation = "relu"
    n_experts: int | None = None
    active_experts: int = 2
    bias: bool = True
    scale_embeddings: bool = True
    norm_embeddings: bool = False
    n_segments: int = 0
    attention_scale: float | None = None
    tie_embeddings: bool = True
    logit_scale: float = 1.0
    window: int | None = None
    init: Init = "xavier"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, numbers.Integral) and not isinstance(value, bool):
                # NumPy's whole numbers become Python's, which can be written as JSON.
                object.__setattr__(self, field.name, operator.index(value))
        check_fields(self, may_be_zero=("n_segments",))
        for name in ("dropout", "attention_dropout"):
            check_probability(name, getattr(self, name))
        for name in ("norm_eps", "rope_theta", "logit_scale", "attention_scale"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, lambda x: x > 0, "greater than 0")
        check_divides("n_heads", self.n_heads, "d_model", self.d_model)
        check_divides("n_kv_heads", self.kv_heads, "n_heads", self.n_heads)
        if self.position == "rope" and self.d_head % 2:
            rule = f"d_model / n_heads = {self.d_head} must be even"
            raise ValueError(f"position='rope' rotates pairs of features: {rule}")
        if self.position == "sinusoidal" and self.d_model % 2:
            rule = f"d_model={self.d_model} must be even"
            raise ValueError(f"position='sinusoidal' pairs sines with cosines: {rule}")
        if self.n_experts is not None and self.active_experts > self.n_experts:
            raise ValueError(
                f"active_experts={self.active_experts} must be at most n_experts={self.n_experts}"
            )

    @property
    def d_head(self) -> int:
        """K, the width of one head's queries and keys."""
        return self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """The number of heads that have keys and values of their own."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def ffn_width(self) -> int:
        """F, the inner width of the feed-forward network."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff
