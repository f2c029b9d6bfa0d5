"""Positions: added, rotated in, or as a bias on the scores.

Three ways in. *Added* to the embedding: :func:`sinusoidal` and learned tables
(both in :class:`AddedPositions`). *Rotated* into queries and keys: RoPE (:func:`rope_angles`,
:func:`rotate`). A *bias* on the scores: :class:`AlibiBias` and :class:`T5Bias`.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer_lib.core.checks import check_choice, check_whole
from transformer_lib.core.config import RopePairing, RopeScaling, TransformerConfig
from transformer_lib.layers.rope_scaling import scale_frequencies

PAIRINGS = ("interleaved", "split")


def sinusoidal(positions: Int[Tensor, "*batch T"], d_model: int) -> Float[Tensor, "*batch T D"]:
    """Encode each position as sines (even features) and cosines (odd features).

    Args:
        positions: whole numbers, ``(..., T)``.
        d_model: D, the width of the encoding; must be even.

    Returns:
        The encodings, ``(..., T, D)``; their wavelengths run from 2π to almost 10000·2π.

    Raises:
        ValueError: if ``d_model`` is odd.

    Example:
        >>> sinusoidal(torch.arange(2), d_model=4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    angles = rope_angles(positions, d_model, name="d_model")  # (..., T, D/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(start_dim=-2)


class AddedPositions(nn.Module):
    """Add a vector for each position to the stream, if the configuration's scheme adds one.

    ``"sinusoidal"`` computes it, ``"learned"`` looks it up in a table; the other schemes act
    inside attention and leave the stream as it is.

    Args:
        config: ``position``, ``max_len`` and ``d_model`` are read.

    Example:
        >>> add = AddedPositions(TransformerConfig(d_model=4, n_heads=2))
        >>> add(torch.zeros(1, 2, 4), torch.arange(2)[None])
        tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
                 [0.8415, 0.5403, 0.0100, 0.9999]]])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.scheme = config.position
        learned = config.position == "learned"
        self.table = nn.Embedding(config.max_len, config.d_model) if learned else None

    def forward(
        self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]
    ) -> Float[Tensor, "B T D"]:
        """Add the vectors of ``positions``, ``(1, T)`` or ``(B, T)``, to ``x``, ``(B, T, D)``."""
        if self.table is not None:
            x = x + self.table(positions)
        elif self.scheme == "sinusoidal":
            x = x + sinusoidal(positions, x.shape[-1]).to(x.dtype)
        return x


def rope_angles(
    positions: Int[Tensor, "*batch T"],
    d_head: int,
    theta: float = 10_000.0,
    *,
    scaling: RopeScaling | None = None,
    name: str = "d_head",
) -> Float[Tensor, "*batch T half"]:
    """Return the angle by which each pair of features turns at each position.

    Args:
        positions: whole numbers, ``(..., T)``.
        d_head: Dk, the width of a head, or of the part of it that turns; must be even.
        theta: the base of the wavelengths; pair ``i`` turns by ``theta ** (-2i / Dk)`` a step.
        scaling: how that is stretched for longer texts.
        name: what the caller calls the width, for the error message.

    Returns:
        Angles in radians, ``(..., T, Dk/2)``, in float32.

    Raises:
        ValueError: if the width is odd.

    Example:
        >>> rope_angles(torch.arange(3), d_head=4)
        tensor([[0.0000, 0.0000],
                [1.0000, 0.0100],
                [2.0000, 0.0200]])
    """
    check_whole(name, d_head)
    if d_head % 2:
        raise ValueError(f"{name}={d_head} must be even: features are taken in pairs")
    pairs = torch.arange(0, d_head, 2, device=positions.device)
    frequencies = theta ** -(pairs.float() / d_head)  # (Dk/2,)
    if scaling is not None:
        frequencies = scale_frequencies(frequencies, theta, scaling, positions)
    return positions[..., None].float() * frequencies


def rotate(
    x: Float[Tensor, "*batch T Dk"],
    angles: Float[Tensor, "*angles T half"],
    pairing: RopePairing = "interleaved",
) -> Float[Tensor, "*batch T Dk"]:
    """Turn each pair of features of a query or key by its angle (RoPE).

    Args:
        x: queries or keys, ``(..., T, Dk)``.
        angles: from :func:`rope_angles`, broadcastable to ``(..., T, Dk/2)``; if there are fewer,
            only the first features turn, two for each angle.
        pairing: features that turn together: ``"interleaved"`` (0 with 1, 2 with 3, ...) or
            ``"split"`` (0 with Dk/2, 1 with Dk/2 + 1, ...).

    Returns:
        The rotated vectors, ``(..., T, Dk)``; their lengths are unchanged.

    Raises:
        ValueError: if the pairing is unknown or the widths do not fit.

    Example:
        >>> quarter_turn = torch.tensor([[torch.pi / 2]])
        >>> rotate(torch.tensor([[1.0, 0.0]]), quarter_turn).round().abs()
        tensor([[0., 1.]])
    """
    check_choice("pairing", pairing, PAIRINGS)
    turning = 2 * angles.shape[-1]
    if turning > x.shape[-1]:
        raise ValueError(
            f"angles has {angles.shape[-1]} pairs; expected at most half the width of x, "
            f"{x.shape[-1]} / 2"
        )
    # All in float32 at least: at position 4000, bfloat16 could not tell neighbours apart, and a
    # rounded sine would turn a query by another angle than a key.
    cos, sin = angles.cos(), angles.sin()
    if turning == x.shape[-1]:
        return turn_pairs(x, cos, sin, pairing)
    turned = turn_pairs(x[..., :turning], cos, sin, pairing)
    return torch.cat((turned, x[..., turning:]), dim=-1)


def turn_pairs(
    x: Float[Tensor, "*batch T Dk"],
    cos: Float[Tensor, "..."],
    sin: Float[Tensor, "..."],
    pairing: RopePairing,
) -> Float[Tensor, "*batch T Dk"]:
    """Do what :func:`rotate` does, for angles whose cosines and sines are known.

    Args:
        x: queries or keys, ``(..., T, Dk)``.
        cos: cosines of the angles, broadcastable to ``(..., T, Dk/2)``, in float32.
        sin: their sines.
        pairing: which features turn together.

    Returns:
        The rotated vectors, ``(..., T, Dk)``.

    Example:
        >>> turn_pairs(
        ...     torch.tensor([[1.0, 0.0]]),
        ...     torch.zeros(1, 1),
        ...     torch.ones(1, 1),
        ...     "split",
        ... )
        tensor([[0., 1.]])
    """
    precise = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.to(precise), sin.to(precise)
    pairs = (-1, 2) if pairing == "interleaved" else (2, -1)
    axis = -1 if pairing == "interleaved" else -2
    first, second = x.to(precise).unflatten(-1, pairs).unbind(dim=axis)  # (..., T, Dk/2) each
    turned = (first * cos - second * sin, first * sin + second * cos)
    return torch.stack(turned, dim=axis).flatten(start_dim=-2).to(x.dtype)  # (..., T, Dk)


def change_pairing(
    weight: Float[Tensor, "rows *columns"], n_heads: int, to: RopePairing
) -> Float[Tensor, "rows *columns"]:
    """Reorder the rows of a query or key projection for the other RoPE pairing.

    With both projections reordered, a model gives the same scores under the other pairing.

    Args:
        weight: a weight ``(H * Dk, D)`` or bias ``(H * Dk,)`` made for the other pairing.
        n_heads: H, the number of heads in its rows.
        to: the pairing it shall be used with.

    Returns:
        The same rows in another order within each head.

    Raises:
        ValueError: if the pairing is unknown or the rows cannot be cut into heads of even width.

    Example:
        >>> change_pairing(torch.arange(4.0), n_heads=1, to="split")
        tensor([0., 2., 1., 3.])
    """
    check_choice("to", to, PAIRINGS)
    rows = weight.shape[0]
    if rows % (2 * n_heads):
        raise ValueError(f"weight has {rows} rows; expected {n_heads} heads of even width")
    half = rows // n_heads // 2
    pairs = (n_heads, half, 2) if to == "split" else (n_heads, 2, half)
    heads: Tensor = weight.unflatten(0, pairs)
    return heads.transpose(1, 2).flatten(end_dim=2)


def alibi_slopes(n_heads: int, device: torch.device | None = None) -> Float[Tensor, " H"]:
    """Return how steeply each head's scores fall with distance.

    Args:
        n_heads: H, the number of heads.
        device: where to compute them.

    Returns:
        A geometric sequence ``2^(-8/H), 2^(-16/H), ...``, in float32. If H is not a power of two,
        the missing slopes are taken from between those of the next power, as the ALiBi authors do.

    Raises:
        ValueError: if ``n_heads`` is not positive.

    Example:
        >>> alibi_slopes(4)
        tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    check_whole("n_heads", n_heads)
    power = 2 ** int(math.log2(n_heads))
    steps = torch.arange(power, device=device).float() + 1
    between = torch.arange(n_heads - power, device=device).float() + 0.5
    return torch.exp2(-8 / power * torch.cat((steps, between)))


class AlibiBias(nn.Module):
    """A penalty on the scores that grows with distance, at another rate for each head (ALiBi).

    Args:
        n_heads: H, the number of heads.

    Example:
        >>> from transformer_lib import query_key_distances
        >>> AlibiBias(n_heads=8)(query_key_distances(1, 3))[0, 0]
        tensor([[-1.0000, -0.5000, -0.0000]])
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        check_whole("n_heads", n_heads)
        self.n_heads = n_heads

    def forward(self, distances: Int[Tensor, "T S"]) -> Float[Tensor, "1 H T S"]:
        """Return the bias ``(1, H, T, S)`` of keys that stand so far before the queries."""
        slopes = alibi_slopes(self.n_heads, distances.device)
        return -slopes[None, :, None, None] * distances.abs()


def t5_bucket(
    offset: Int[Tensor, "*shape"],
    *,
    n_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Int[Tensor, "*shape"]:
    """Sort offsets into buckets: near ones exactly, far ones in ranges that grow.

    Args:
        offset: key position minus query position.
        n_buckets: the number of buckets; half of them are for keys to the right if
            ``bidirectional``.
        max_distance: everything at least this far shares the last bucket.
        bidirectional: whether keys to the right have buckets of their own; if not, they share the
            bucket of the query's own place (a causal mask hides them).

    Returns:
        Bucket numbers from 0 to ``n_buckets - 1``.

    Raises:
        ValueError: if ``max_distance`` leaves no range for the far buckets.

    Example:
        >>> t5_bucket(torch.tensor([0, -1, -9, -500, 1]))
        tensor([ 0,  1,  8, 15, 17])
    """
    if bidirectional:
        n_buckets //= 2
        side, distance = n_buckets * (offset > 0), offset.abs()
    else:
        side, distance = torch.zeros_like(offset), (-offset).clamp(min=0)
    exact = n_buckets // 2
    if max_distance <= exact:
        near = f"{exact}, up to which every distance has its own bucket"
        raise ValueError(f"{max_distance=} must be more than {near}")
    log_ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = exact + (log_ratio * (n_buckets - exact)).long()
    return side + torch.where(distance < exact, distance, far.clamp(max=n_buckets - 1))


class T5Bias(nn.Module):
    """A learned bias for each bucket of distances and each head (T5).

    Args:
        n_heads: H, the number of heads.
        bidirectional: whether keys to the right have buckets of their own (encoders).
        n_buckets: the number of buckets.
        max_distance: everything at least this far shares the last bucket.

    Example:
        >>> from transformer_lib import query_key_distances
        >>> T5Bias(n_heads=8, bidirectional=True)(
        ...     query_key_distances(2, 5)
        ... ).shape
        torch.Size([1, 8, 2, 5])
    """

    def __init__(
        self, n_heads: int, *, bidirectional: bool, n_buckets: int = 32, max_distance: int = 128
    ) -> None:
        super().__init__()
        check_whole("n_heads", n_heads)
        check_whole("n_buckets", n_buckets, least=4)
        self.bidirectional = bidirectional
        self.max_distance = max_distance
        self.table = nn.Embedding(n_buckets, n_heads)

    def forward(self, distances: Int[Tensor, "T S"]) -> Float[Tensor, "1 H T S"]:
        """Return the bias ``(1, H, T, S)`` of keys that stand so far before the queries."""
        sizes = {"n_buckets": self.table.num_embeddings, "max_distance": self.max_distance}
        buckets = t5_bucket(-distances, bidirectional=self.bidirectional, **sizes)
        bias: Tensor = self.table(buckets)  # (T, S, H)
        return bias.permute(2, 0, 1)[None]
