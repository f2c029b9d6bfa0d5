"""Padding-free batches (varlen, unpadding): sequences laid end to end.

Padding makes sequences of different lengths fit into one tensor, and nobody reads what a model says
about it. :class:`Rows` takes the padding out before the layers and puts it back behind them.
"""

from collections.abc import Collection

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.core.precision import autocast_dtype
from transformer_lib.layers.attention import AttentionPattern
from transformer_lib.layers.feedforward import ACTIVATIONS
from transformer_lib.layers.fused_attention import fused_attention

# What it costs to leave padding out of one layer, in multiplications of the same time: on a CPU so
# many for each sequence, which attends in a call of its own; on a GPU so many for all of them, as
# the CPU has to wait until it knows the lengths.
COST_OF_A_SEQUENCE = 2_000_000
COST_ON_A_GPU = 5_000_000_000

_SHORT = (torch.float16, torch.bfloat16)
_ACTIVATIONS = {None, *(function for function, _ in ACTIVATIONS.values())}


class Rows(AttentionPattern):
    """The real tokens of a batch in one long row, ``(1, N, ...)``, sequence after sequence.

    What works on each token alone works on it as it is. Attention takes this object in the place of
    a mask, and lets each sequence attend alone.

    Args:
        owners: to which sequence each token belongs, ``(B, T)``: numbers that never fall, with
            -1 for padding, wherever it stands.

    Attributes:
        lengths: the number of real tokens of each sequence that has any.
        starts: where each of them begins in the long row, and behind them where the row ends.
        has_holes: whether there is padding, or another row, inside a sequence.

    Example:
        >>> rows = Rows(torch.tensor([[0, 0, -1], [1, -1, -1]]))
        >>> rows.lengths
        [2, 1]
        >>> row = rows.drop(torch.tensor([[5, 6, 0], [7, 0, 0]]))
        >>> row
        tensor([[5, 6, 7]])
        >>> rows.put_back(row)
        tensor([[5, 6, 0],
                [7, 0, 0]])
    """

    def __init__(self, owners: Int[Tensor, "B T"]) -> None:
        self.shape = tuple(owners.shape)
        real = (owners >= 0).flatten()
        self.index = real.nonzero().squeeze(1)  # (N,)
        own = owners.flatten()[self.index]
        counts = own.unique_consecutive(return_counts=True)[1]
        self.lengths: list[int] = counts.tolist()
        self.starts = F.pad(counts.cumsum(0), (1, 0)).int()
        self.has_holes = bool(((self.index.diff() > 1) & (own.diff() == 0)).any())

    def drop(self, x: Shaped[Tensor, "b T *rest"]) -> Shaped[Tensor, "1 N *rest"]:
        """Leave the padding of a batch out: ``(B, T, ...)``, or ``(1, T, ...)`` for all rows."""
        whole = x.expand(self.shape[0], *x.shape[1:])
        return whole.flatten(end_dim=1).index_select(0, self.index)[None]

    def attend(
        self,
        q: Float[Tensor, "1 H N Dk"],
        k: Float[Tensor, "1 G N Dk"],
        v: Float[Tensor, "1 G N Dk"],
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> Float[Tensor, "1 H N Dk"]:
        """Let each sequence attend alone: :func:`attend_by_row`."""
        return attend_by_row(q, k, v, self, bias, causal=causal, scale=scale)

    def put_back(self, x: Shaped[Tensor, "1 N *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """Make the batch again, ``(B, T, ...)``, with zeros for padding."""
        size, length = self.shape
        whole = x.new_zeros(size * length, *x.shape[2:]).index_copy_(0, self.index, x[0])
        return whole.view(size, length, *x.shape[2:])


def attend_by_row(
    q: Float[Tensor, "1 H N Dk"],
    k: Float[Tensor, "1 G N Dk"],
    v: Float[Tensor, "1 G N Dk"],
    rows: Rows,
    bias: Float[Tensor, "#B #H T T"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "1 H N Dk"]:
    """Let each sequence attend to itself alone. There is nothing to hide, so there is no mask.

    Args:
        q: queries of all sequences, ``(1, H, N, Dk)``.
        k: their keys, ``(1, G, N, Dk)``.
        v: their values, ``(1, G, N, Dk)``.
        rows: which tokens belong together.
        bias: by distance alone, for the longest sequence at least; there may be no holes then.
        causal: whether to hide the future.
        scale: what the scores are multiplied by; ``1/sqrt(Dk)`` if left out.

    Returns:
        What each token found, ``(1, H, N, Dk)``.

    Example:
        >>> # all keys are equal: the mean of the own values
        >>> q = torch.zeros(1, 1, 3, 2)
        >>> v = (
        ...     torch.tensor([1.0, 3.0, 9.0])
        ...     .view(1, 1, 3, 1)
        ...     .expand(1, 1, 3, 2)
        ... )
        >>> attend_by_row(
        ...     q, q, v, Rows(torch.tensor([[0, 0, -1], [1, -1, -1]]))
        ... )[0, 0, :, 0]
        tensor([2., 2., 9.])
    """
    if _has_kernel(q) and bias is None:
        return _attend_at_once(q, k, v, rows, causal, scale)
    found = []
    pieces = (x.split(rows.lengths, dim=2) for x in (q, k, v))
    for n, (own_q, own_k, own_v) in zip(rows.lengths, zip(*pieces, strict=True), strict=True):
        own_bias = None if bias is None else bias[..., :n, :n]
        heads = fused_attention(
            own_q, own_k, own_v, bias=own_bias, causal=causal, scale=scale,
            enable_gqa=k.shape[1] < q.shape[1],
        )  # fmt: skip
        found.append(heads.transpose(1, 2))  # as the kernel has stored it, and as it is read next
    return torch.cat(found, dim=1).transpose(1, 2)


def _has_kernel(q: Float[Tensor, "1 H N Dk"]) -> bool:
    """Whether there is a kernel for many sequences in one row."""
    return q.device.type == "cuda" and q.dtype in _SHORT and q.shape[-1] in range(8, 257, 8)


def _attend_at_once(
    q: Tensor, k: Tensor, v: Tensor, rows: Rows, causal: bool, scale: float | None
) -> Tensor:
    """All sequences by one kernel, which is told where each begins."""
    tokens = [x[0].transpose(0, 1) for x in (q, k, v)]  # (N, H, Dk), (N, G, Dk), (N, G, Dk)
    places = (rows.starts, rows.starts, max(rows.lengths), max(rows.lengths))
    # What scaled_dot_product_attention calls, which itself knows no lengths. It has a backward.
    kernel = torch.ops.aten._flash_attention_forward
    found: Tensor = kernel(*tokens, *places, 0.0, causal, False, scale=scale)[0]
    return found.transpose(0, 1)[None]


def rows_without_padding(
    stack: nn.Module,
    known: Collection[type[nn.Module]],
    x: Float[Tensor, "B T D"],
    mask: Bool[Tensor, "..."] | None,
    bias: Float[Tensor, "..."] | None = None,
) -> Rows | None:
    """Find the padding in a mask, if leaving it out is faster and nobody can tell.

    Padding is hidden from all tokens. Where each token has a mask of its own, it sees nothing
    either; the others must fall into sequences that see themselves, as ``pack`` lays them out.

    Args:
        stack: what shall read the batch.
        known: the classes that work on each token alone.
        x: the batch, ``(B, T, D)``.
        mask: which token may attend to which, ``(B, 1, 1, T)`` or ``(B, 1, T, T)``.
        bias: added to the scores; depends on distances alone.

    Returns:
        Where the real tokens are, or ``None`` if padding has to stay: a mask of another kind, a
        part that is not known, hooked or changed, dropout (it would draw other numbers), a model
        that is being compiled or recorded, long numbers or a bias on a GPU, or nothing to gain.

    Example:
        >>> from transformer_lib import padding_mask
        >>> x, mask = (
        ...     torch.zeros(2, 500, 64),
        ...     padding_mask(torch.tensor([500, 20]), 500),
        ... )
        >>> linear = nn.Linear(64, 64)
        >>> rows_without_padding(linear, {nn.Linear}, x, mask).lengths
        [500, 20]
        >>> rows_without_padding(linear, {nn.Embedding}, x, mask) is None
        True
    """
    if mask is None or not _can_be_read(x, mask):
        return None
    if x.device.type == "cuda" and not (bias is None and _may_pay_on_a_gpu(x)):
        return None
    if not _leave_tokens_alone(list(stack.modules()), known):
        return None
    owners = _owners(mask, *x.shape[:2])
    if owners is None:
        return None
    if (owners[owners >= 0].diff() < 0).any():
        return None  # sequences that do not follow each other
    rows = Rows(owners)
    if bias is not None and rows.has_holes:
        return None  # distances would be others
    return rows if _pays(rows, x) else None


def _leave_tokens_alone(parts: list[nn.Module], known: Collection[type[nn.Module]]) -> bool:
    """Whether modules would do the same for tokens in another layout, and draw no numbers."""
    for part in parts:
        kind, attributes = type(part), vars(part)
        if kind not in known or attributes.get("activation") not in _ACTIVATIONS:
            return False
        if part.training and (attributes.get("p") or attributes.get("dropout")):
            return False
        if hasattr(kind, "fused") and not part.fused:
            return False  # the readable attention shows its mask
    return Fingerprint(parts).is_plain


def _can_be_read(x: Tensor, mask: Tensor) -> bool:
    """Whether the numbers in a mask are there, and may decide what is done."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    if any(type(tensor) is not Tensor or wrapped(tensor) for tensor in (x, mask)):
        return False
    if x.device != mask.device or x.device.type not in ("cpu", "cuda"):
        return False
    return mask.dtype == torch.bool and mask.shape[0] in (1, x.shape[0])


def _may_pay_on_a_gpu(x: Float[Tensor, "B T D"]) -> bool:
    """Whether a batch is large enough to wait until its lengths are known, and has a kernel."""
    dtype = autocast_dtype(x.device) or x.dtype
    if dtype not in _SHORT or 12 * x.numel() * x.shape[-1] <= 4 * COST_ON_A_GPU:
        return False
    flash = torch.backends.cuda
    return (
        flash.is_flash_attention_available()
        and flash.flash_sdp_enabled()  # a user may want another kernel
        and torch.cuda.get_device_capability(x.device) >= (8, 0)
        and not torch.cuda.is_current_stream_capturing()
    )


def _owners(
    mask: Bool[Tensor, "b _ _ T"], size: int, length: int
) -> Int[Tensor, "{size} {length}"] | None:
    """To which sequence each token belongs, -1 for padding; all -1 if a mask is of another kind."""
    first_of_row = torch.arange(0, size * length, length, device=mask.device)[:, None]
    if mask.shape[1:] == (1, 1, length):
        return torch.where(mask[:, 0, 0], first_of_row, -1)
    if mask.shape[1:] != (1, length, length):
        return None
    sees = mask[:, 0]
    real, start = sees.any(dim=-1), sees.byte().argmax(dim=-1)  # the first that a token sees
    together = (start[:, :, None] == start[:, None, :]) & (real[:, :, None] & real[:, None, :])
    return torch.where(real & (together == sees).all(), first_of_row + start, -1)


def _pays(rows: Rows, x: Float[Tensor, "B T D"]) -> bool:
    """Whether the multiplications saved in a layer are worth the trouble."""
    size, length, width = x.shape
    tokens = size * length - sum(rows.lengths)
    pairs = size * length**2 - sum(n**2 for n in rows.lengths)
    on_cpu = x.device.type == "cpu"
    cost = COST_OF_A_SEQUENCE * len(rows.lengths) if on_cpu else COST_ON_A_GPU
    # A block has about 12 D^2 weights, and a score costs 2 D.
    return sum(rows.lengths) > 0 and 12 * width**2 * tokens + 2 * width * pairs > cost
