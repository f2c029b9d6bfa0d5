"""One configuration for every model: free choices, checked."""

import math
import numbers
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from transformer_lib.core.checks import check_divides, check_fields, check_number, check_probability

Position = Literal["sinusoidal", "learned", "rope", "alibi", "t5", "none"]
RopePairing = Literal["interleaved", "split"]
Norm = Literal["layer", "rms"]
NormPosition = Literal["pre", "post", "update", "both"]
Activation = Literal["relu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh"]
Init = Literal["xavier", "gpt2"]
QueryKeyNorm = Literal["none", "head", "all"]
ScalingKind = Literal["linear", "ntk", "yarn", "llama3"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How RoPE's frequencies are stretched, so that a model reads more than it was trained on.

    Beyond ``trained_len`` the base of ``"ntk"`` follows the farthest position of the call, and so
    the answer depends on what is read together. Keys in a cache stay turned by the base of their
    own step, so that step by step the logits are not those of the whole text at once; and a short
    text has other logits beside a longer one in its batch. Both are so in ``transformers`` too,
    where it is called ``"dynamic"``. All other kinds turn a position by the same angles in any
    company.

    Args:
        kind: ``"linear"`` divides all positions by the factor; ``"ntk"`` enlarges the base, the
            more the longer the text is (see above); ``"yarn"`` slows down only the pairs that turn
            slowly, and sharpens attention; ``"llama3"`` does that without the sharpening, by
            wavelengths.
        factor: how many times as long texts may become.
        trained_len: how long they were in training, before the scaling; all but ``"linear"`` must
            know it.
        fast_turns: pairs that turn so often within ``trained_len`` stay as they are.
        slow_turns: pairs that turn at most so often are slowed down by the whole factor.
        sharpness: what YaRN multiplies queries and keys by; ``None``: ``1 + 0.1 * log(factor)``.
        whole_pairs: whether YaRN begins and ends its ramp at a whole pair.

    Raises:
        ValueError: if a value is out of range.

    Example:
        >>> RopeScaling(
        ...     kind="llama3", factor=8.0, trained_len=8192, fast_turns=4.0
        ... ).slow_turns
        1.0
    """

    kind: ScalingKind
    factor: float
    trained_len: int | None = None
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    sharpness: float | None = None
    whole_pairs: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.trained_len is None and self.kind != "linear":
            raise ValueError(f"trained_len=None; kind={self.kind!r} needs a number of tokens")
        check_number("factor", self.factor, lambda x: x >= 1, "at least 1")
        for name in ("fast_turns", "slow_turns", "sharpness"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, lambda x: x > 0, "greater than 0")
        if self.fast_turns <= self.slow_turns:
            raise ValueError(
                f"fast_turns={self.fast_turns} must be greater than slow_turns={self.slow_turns}"
            )

    @property
    def stretch(self) -> float:
        """YaRN's attention factor, which multiplies queries and keys; 1 for other kinds."""
        if self.kind != "yarn":
            return 1.0
        return 1 + 0.1 * math.log(self.factor) if self.sharpness is None else self.sharpness


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The sizes and choices that define a Transformer. The defaults follow the base model of 2017.

    Some fields may be ``None``, which means that they follow from others. What holds then, a
    property says:

    =================== =======================================================
    field               property
    =================== =======================================================
    ``head_width``      ``d_head``
    ``d_ff``            ``ffn_width``
    ``n_kv_heads``      ``kv_heads``
    ``attention_scale`` ``score_scale``, with YaRN's factor; it may be ``None``
    =================== =======================================================

    Args:
        vocab_size: V, the number of different tokens.
        max_len: the longest sequence the model accepts.
        d_model: D, the width of the residual stream.
        n_heads: H, the number of attention heads; must divide ``d_model``, unless ``head_width`` is
            given.
        n_kv_heads: heads that have keys and values of their own; must divide ``n_heads``.
            ``None`` means all of them (MHA), ``1`` is MQA, anything between is GQA.
        head_width: Dk, the width of a head; ``None`` means ``d_model / n_heads``.
        d_ff: F, the inner width of the feed-forward network; ``None`` means ``4 * d_model``.
        n_layers: the number of blocks in each stack.
        dropout: the probability with which a value is dropped in training: in the embeddings and
            in what each sublayer adds to the residual stream.
        attention_dropout: the same for attention weights; the 2017 paper does not mention it.
        position: how a token's place is told to the model.
        rope_theta: the base of RoPE's wavelengths.
        rope_pairing: which features RoPE rotates together: neighbours (``"interleaved"``, the
            paper) or the two halves of a head (``"split"``, Hugging Face).
        rope_scaling: how RoPE is stretched for longer texts; ``None``: not at all.
        rope_fraction: the share of each head that RoPE turns, from the start; the rest stays.
        rope_pattern: which layers have RoPE: ``R`` (with) or ``N`` (without, NoPE) for each, over
            and over; ``"RRRN"`` leaves every fourth layer without (SmolLM3).
        local_rope_theta: the base in layers with a window, without scaling; ``None``: the same.
        norm: which normalisation.
        norm_position: before each sublayer (``"pre"``), after the residual sum (``"post"``), after
            each sublayer and before the sum (``"update"``, OLMo 2), or before and after each
            sublayer (``"both"``, Gemma).
        norm_offset: what is added to the weight of RMSNorm (Gemma: 1).
        qk_norm: whether queries and keys are normalised: each head of its own (``"head"``), all
            heads together (``"all"``), or not.
        norm_eps: the small constant inside the norm's square root.
        activation: the non-linearity of the feed-forward network; ``swiglu`` and ``geglu`` are
            gated, ``_tanh`` is the approximation of GELU that GPT-2 uses.
        n_experts: the number of feed-forward networks to choose from in each block (a mixture of
            experts); ``None`` means one, and no choice.
        active_experts: how many of them each token is sent to.
        bias: whether the linear layers of the blocks and the layer norms add a learned constant.
        qkv_bias: the same for queries, keys and values alone; ``None``: as ``bias`` says.
        scale_embeddings: whether token embeddings are multiplied by ``sqrt(d_model)``.
        norm_embeddings: whether the embeddings are normalised before the first block (BERT).
        n_segments: the number of segment embeddings (BERT has 2); 0 means none.
        attention_scale: what scores are multiplied by; ``None`` means ``1/sqrt(d_head)``.
        score_cap: scores are bent so that none is larger (``cap * tanh(score / cap)``, Gemma 2).
        logit_cap: the same for the logits.
        tie_embeddings: whether the output layer reuses the token embedding's weights.
        logit_scale: what the last vectors are multiplied by before the output layer (T5).
        window: how many positions a token sees, itself included, to each side; ``None``: all.
        window_pattern: which layers have the window: ``L`` (local) or ``G`` (global) for each, over
            and over; ``"LLLLLG"`` leaves every sixth layer without.
        init: how weights are drawn before training.

    Raises:
        ValueError: if a value is out of range or two of them do not fit together.

    Example:
        >>> config = TransformerConfig(d_model=768, n_heads=12)
        >>> config.d_head, config.ffn_width
        (64, 3072)
        >>> TransformerConfig(d_model=100, n_heads=12)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: n_heads=12 must divide d_model=100: 100 / 12 leaves ...
    """

    vocab_size: int = 37_000
    max_len: int = 512
    d_model: int = 512
    n_heads: int = 8
    n_kv_heads: int | None = None
    head_width: int | None = None
    d_ff: int | None = None
    n_layers: int = 6
    dropout: float = 0.1
    attention_dropout: float = 0.0
    position: Position = "sinusoidal"
    rope_theta: float = 10_000.0
    rope_pairing: RopePairing = "interleaved"
    rope_scaling: RopeScaling | None = None
    rope_fraction: float = 1.0
    rope_pattern: str = "R"
    local_rope_theta: float | None = None
    norm: Norm = "layer"
    norm_position: NormPosition = "post"
    norm_eps: float = 1e-5
    norm_offset: float = 0.0
    qk_norm: QueryKeyNorm = "none"
    activation: Activation = "relu"
    n_experts: int | None = None
    active_experts: int = 2
    bias: bool = True
    qkv_bias: bool | None = None
    scale_embeddings: bool = True
    norm_embeddings: bool = False
    n_segments: int = 0
    attention_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    tie_embeddings: bool = True
    logit_scale: float = 1.0
    window: int | None = None
    window_pattern: str = "L"
    init: Init = "xavier"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, numbers.Integral) and not isinstance(value, bool):
                # NumPy's whole numbers become Python's, which can be written as JSON.
                object.__setattr__(self, field.name, operator.index(value))
        if isinstance(self.rope_scaling, Mapping):  # as it is read from JSON
            object.__setattr__(self, "rope_scaling", RopeScaling(**self.rope_scaling))
        check_fields(self, may_be_zero=("n_segments",))
        self._check_numbers()
        if self.head_width is None:
            check_divides("n_heads", self.n_heads, "d_model", self.d_model)
        check_divides("n_kv_heads", self.kv_heads, "n_heads", self.n_heads)
        if self.position == "rope":
            self._check_rope()
        if self.position == "sinusoidal" and self.d_model % 2:
            rule = f"d_model={self.d_model} must be even"
            raise ValueError(f"position='sinusoidal' pairs sines with cosines: {rule}")
        if self.n_experts is not None and self.active_experts > self.n_experts:
            raise ValueError(
                f"active_experts={self.active_experts} must be at most n_experts={self.n_experts}"
            )
        _check_pattern("window_pattern", self.window_pattern, "L", "G", "the window")
        _check_pattern("rope_pattern", self.rope_pattern, "R", "N", "RoPE")

    def _check_numbers(self) -> None:
        for name in ("dropout", "attention_dropout"):
            check_probability(name, getattr(self, name))
        for name in (
            "norm_eps", "rope_theta", "local_rope_theta", "logit_scale", "attention_scale",
            "score_cap", "logit_cap",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, lambda x: x > 0, "greater than 0")
        check_number("norm_offset", self.norm_offset, math.isfinite, "finite")
        if self.norm_offset and self.norm != "rms":
            raise ValueError(f"norm_offset={self.norm_offset} needs norm='rms', not {self.norm!r}")

    def _check_rope(self) -> None:
        check_number("rope_fraction", self.rope_fraction, lambda x: 0 < x <= 1, "above 0, up to 1")
        if self.rope_width % 2 or not self.rope_width:
            rule = f"{self.rope_fraction} of d_head={self.d_head} must be even"
            if self.rope_fraction == 1:
                rule = f"d_model / n_heads = {self.d_head} must be even"
            raise ValueError(f"position='rope' rotates pairs of features: {rule}")
        if self.rope_scaling and self.rope_scaling.stretch != 1 and self.rope_fraction < 1:
            raise ValueError(
                f"rope_scaling of kind 'yarn' multiplies whole heads; rope_fraction="
                f"{self.rope_fraction} must be 1"
            )

    @property
    def d_head(self) -> int:
        """Dk, the width of one head's queries and keys."""
        return self.d_model // self.n_heads if self.head_width is None else self.head_width

    @property
    def rope_width(self) -> int:
        """How many features of each head RoPE turns."""
        return int(self.d_head * self.rope_fraction)

    @property
    def score_scale(self) -> float | None:
        """What scores are multiplied by where RoPE is scaled; ``None`` means ``1/sqrt(d_head)``.

        It is so in self-attention, but not in layers whose :meth:`rope_of` is without scaling.
        """
        if self.position != "rope" or self.rope_scaling is None or self.rope_scaling.stretch == 1:
            return self.attention_scale
        scale = self.d_head**-0.5 if self.attention_scale is None else self.attention_scale
        return scale * self.rope_scaling.stretch**2  # of the queries, and of the keys

    def rope_of(self, *, local: bool) -> tuple[float, RopeScaling | None]:
        """Return RoPE's base and scaling in layers with the window (``local``) or without it."""
        if local and self.local_rope_theta is not None:
            return self.local_rope_theta, None
        return self.rope_theta, self.rope_scaling

    def is_local(self, layer: int) -> bool:
        """Say whether a layer has the window; the first is number 0."""
        pattern = self.window_pattern
        return self.window is not None and pattern[layer % len(pattern)] == "L"

    def has_rope(self, layer: int) -> bool:
        """Say whether RoPE turns queries and keys of a layer; the first is number 0."""
        pattern = self.rope_pattern
        return self.position == "rope" and pattern[layer % len(pattern)] == "R"

    @property
    def kv_heads(self) -> int:
        """The number of heads that have keys and values of their own."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def ffn_width(self) -> int:
        """F, the inner width of the feed-forward network."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff


def _check_pattern(name: str, pattern: str, with_it: str, without: str, what: str) -> None:
    if not pattern or set(pattern) - {with_it, without}:
        raise ValueError(
            f"{name}={pattern!r} must be made of {with_it!r} (with {what}) and {without!r} "
            "(without)"
        )
