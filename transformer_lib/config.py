"""One configuration for every model: independent choices, checked."""

from dataclasses import dataclass
from typing import Literal, get_args

Position = Literal["sinusoidal", "learned", "rope", "alibi", "none"]
Norm = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "swiglu"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The sizes and choices that define a Transformer. The defaults follow the base model of 2017.

    Args:
        vocab_size: V, the number of different tokens.
        max_len: the longest sequence the model accepts.
        d_model: D, the width of the residual stream.
        n_heads: H, the number of attention heads; must divide ``d_model``.
        n_kv_heads: heads that have keys and values of their own; must divide ``n_heads``.
            ``None`` means all of them.
        d_ff: F, the inner width of the feed-forward network; ``None`` means ``4 * d_model``.
        n_layers: the number of blocks in each stack.
        dropout: the probability with which a value is dropped in training.
        position: how a token's place is told to the model.
        norm: which normalisation.
        norm_position: before each sublayer (``"pre"``) or after the residual sum (``"post"``).
        norm_eps: the small constant inside the norm's square root.
        activation: the non-linearity of the feed-forward network.
        bias: whether linear layers add a learned constant.
        tie_embeddings: whether the output layer reuses the token embedding's weights.
        window: how many positions back a token may look; ``None`` means all of them.

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
    position: Position = "sinusoidal"
    norm: Norm = "layer"
    norm_position: NormPosition = "post"
    norm_eps: float = 1e-5
    activation: Activation = "relu"
    bias: bool = True
    tie_embeddings: bool = True
    window: int | None = None

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_choices()
        _check_divides("n_heads", self.n_heads, "d_model", self.d_model)
        _check_divides("n_kv_heads", self.kv_heads, "n_heads", self.n_heads)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and less than 1")
        if self.norm_eps <= 0:
            raise ValueError(f"norm_eps={self.norm_eps} must be greater than 0")

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

    def _check_sizes(self) -> None:
        for name in ("vocab_size", "max_len", "d_model", "n_heads", "n_layers"):
            _check_positive(name, getattr(self, name))
        for name in ("n_kv_heads", "d_ff", "window"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))

    def _check_choices(self) -> None:
        choices = {
            "position": Position,
            "norm": Norm,
            "norm_position": NormPosition,
            "activation": Activation,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in get_args(allowed):
                options = ", ".join(repr(option) for option in get_args(allowed))
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {options}")


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1")


def _check_divides(small_name: str, small: int, large_name: str, large: int) -> None:
    if large % small:
        raise ValueError(
            f"{small_name}={small} must divide {large_name}={large}: "
            f"{large} / {small} leaves a remainder of {large % small}"
        )
