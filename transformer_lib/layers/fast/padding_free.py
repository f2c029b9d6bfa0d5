"""Padding-free batches (varlen, unpadding): sequences laid end to end.

Padding makes sequences of different lengths fit into one tensor; the outputs there are not used.
:class:`PaddingFreeBatch` takes it out before the layers, and puts zeros in its places behind them.
"""

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.core.precision import autocast_dtype
from transformer_lib.layers.attention import AttentionPattern, MultiHeadAttention
from transformer_lib.layers.feedforward import ACTIVATIONS, FeedForward
from transformer_lib.layers.fused_attention import fused_attention

# What it costs to leave padding out of one layer, in multiplications that take as long: on a CPU
# for each sequence, which attends in a call of its own; on a GPU for the whole batch, because
# Python waits for the GPU to learn the lengths.
COST_OF_A_SEQUENCE = 2_000_000
COST_ON_A_GPU = 5_000_000_000
# How much padding a GPU batch is expected to have. If so much would not pay, Python does not wait.
EXPECTED_PADDING = 1 / 4

_HALF_PRECISION = (torch.float16, torch.bfloat16)
_ACTIVATIONS = {function for function, _ in ACTIVATIONS.values()}


class PaddingFreeBatch(AttentionPattern):
    """Where the real tokens of a batch are: laid end to end, they are one row, ``(1, N, ...)``.

    Layers that work on each token alone take the row as it is. Attention takes this object in the
    place of a mask, and lets each sequence attend alone.

    Args:
        owners: to which sequence each token belongs, ``(B, T)``: numbers that never fall, with
            -1 for padding, wherever it stands.

    Attributes:
        lengths: the number of real tokens of each sequence that has any.
        starts: where each of them begins in the long row, and behind them where the row ends.
        has_holes: whether there is padding, or another row, inside a sequence.

    Example:
        >>> batch = PaddingFreeBatch(torch.tensor([[0, 0, -1], [1, -1, -1]]))
        >>> batch.lengths
        [2, 1]
        >>> row = batch.drop(torch.tensor([[5, 6, 0], [7, 0, 0]]))
        >>> row
        tensor([[5, 6, 7]])
        >>> batch.put_back(row)
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
    batch: PaddingFreeBatch,
    bias: Float[Tensor, "#B #H T T"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "1 H N Dk"]:
    """Let each sequence attend to itself alone, without a mask: no padding is left to hide.

    Args:
        q: queries of all sequences, ``(1, H, N, Dk)``.
        k: their keys, ``(1, G, N, Dk)``.
        v: their values, ``(1, G, N, Dk)``.
        batch: which tokens belong together.
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
        ...     q,
        ...     q,
        ...     v,
        ...     PaddingFreeBatch(torch.tensor([[0, 0, -1], [1, -1, -1]])),
        ... )[0, 0, :, 0]
        tensor([2., 2., 9.])
    """
    if _has_kernel(q) and bias is None:
        return _attend_at_once(q, k, v, batch, causal, scale)
    found = []
    pieces = (x.split(batch.lengths, dim=2) for x in (q, k, v))
    for n, (own_q, own_k, own_v) in zip(batch.lengths, zip(*pieces, strict=True), strict=True):
        own_bias = None if bias is None else bias[..., :n, :n]
        heads = fused_attention(
            own_q, own_k, own_v, bias=own_bias, causal=causal, scale=scale,
            enable_gqa=k.shape[1] < q.shape[1],
        )  # fmt: skip
        found.append(heads.transpose(1, 2))  # the layout in which heads are merged next
    return torch.cat(found, dim=1).transpose(1, 2)


def _has_kernel(q: Float[Tensor, "1 H N Dk"]) -> bool:
    """Whether there is a kernel for many sequences in one row (FlashAttention, varlen)."""
    is_half = q.dtype in _HALF_PRECISION
    return q.device.type == "cuda" and is_half and q.shape[-1] in range(8, 257, 8)


def _attend_at_once(
    q: Tensor, k: Tensor, v: Tensor, batch: PaddingFreeBatch, causal: bool, scale: float | None
) -> Tensor:
    """All sequences by one kernel, which is told where each begins."""
    tokens = [x[0].transpose(0, 1) for x in (q, k, v)]  # (N, H, Dk), (N, G, Dk), (N, G, Dk)
    longest = max(batch.lengths)
    # What scaled_dot_product_attention calls, which itself takes no lengths. It has a backward. The
    # name is private to PyTorch: checked with 2.11 and 2.13.
    found: Tensor = torch.ops.aten._flash_attention_forward(
        *tokens, cum_seq_q=batch.starts, cum_seq_k=batch.starts, max_q=longest, max_k=longest,
        dropout_p=0.0, is_causal=causal, return_debug_mask=False, scale=scale,
    )[0]  # fmt: skip
    return found.transpose(0, 1)[None]


def padding_free_batch(
    stack: nn.Module,
    known: Collection[type[nn.Module]],
    x: Float[Tensor, "B T D"],
    masks: Sequence[Bool[Tensor, "..."] | None],
    bias: Float[Tensor, "..."] | None = None,
) -> PaddingFreeBatch | None:
    """Find the padding in masks, if leaving it out is faster and real tokens get the same.

    Padding is what no token may see. If a mask differs from token to token, padding may see
    nothing either, and the other tokens must form sequences, each of which sees all of itself and
    nothing else, as ``pack`` lays them out. Layers with a window and those without have a mask
    each, and all must agree.

    Args:
        stack: what shall read the batch.
        known: the classes that work on each token alone.
        x: the batch, ``(B, T, D)``.
        masks: which token may attend to which, each ``(B, 1, 1, T)`` or ``(B, 1, T, T)``.
        bias: added to the scores; depends on distances alone.

    Returns:
        Where the real tokens are, or ``None`` if padding has to stay: a mask of another kind, a
        part that is not known, hooked or changed, dropout (it would draw other numbers), a model
        that is being compiled or recorded, float32 and wider or a bias on a GPU, or no gain.

    Example:
        >>> from transformer_lib import padding_mask
        >>> x, mask = (
        ...     torch.zeros(2, 500, 64),
        ...     padding_mask(torch.tensor([500, 20]), 500),
        ... )
        >>> linear = nn.Linear(64, 64)
        >>> padding_free_batch(linear, {nn.Linear}, x, [mask]).lengths
        [500, 20]
        >>> padding_free_batch(linear, {nn.Embedding}, x, [mask]) is None
        True
    """
    if not all(mask is not None and _can_be_read(x, mask) for mask in masks):
        return None
    if x.device.type == "cuda" and not (bias is None and _may_pay_on_a_gpu(x)):
        return None
    if not _leave_tokens_alone(list(stack.modules()), known):
        return None
    owners = _common_owners(masks, *x.shape[:2])
    if owners is None:
        return None
    batch = PaddingFreeBatch(owners)
    if bias is not None and batch.has_holes:
        return None  # without the holes, distances would change
    return batch if _pays(batch, x) else None


def _leave_tokens_alone(parts: list[nn.Module], known: Collection[type[nn.Module]]) -> bool:
    """Whether modules do the same for tokens in another layout, and draw no random numbers."""
    return all(_leaves_tokens_alone(part, known) for part in parts) and Fingerprint(parts).is_plain


def _leaves_tokens_alone(part: nn.Module, known: Collection[type[nn.Module]]) -> bool:
    if type(part) not in known:
        return False
    if isinstance(part, FeedForward):
        return part.activation in _ACTIVATIONS
    if isinstance(part, nn.Dropout):
        return not (part.training and part.p)
    if isinstance(part, MultiHeadAttention):  # the readable one returns weights in the mask's shape
        return part.kernel_may_attend
    return True


def _can_be_read(x: Tensor, mask: Tensor) -> bool:
    """Whether Python may read the values of a mask, and decide by them what is computed."""
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
    expected_gain = EXPECTED_PADDING * 12 * x.numel() * x.shape[-1]  # as _pays counts, less scores
    if dtype not in _HALF_PRECISION or expected_gain <= COST_ON_A_GPU:
        return False
    flash = torch.backends.cuda
    return (
        flash.is_flash_attention_available()
        and flash.flash_sdp_enabled()  # a user may want another kernel
        and torch.cuda.get_device_capability(x.device) >= (8, 0)
        and not torch.cuda.is_current_stream_capturing()
    )


def _common_owners(masks: Sequence[Tensor | None], size: int, length: int) -> Tensor | None:
    """To which sequence each token belongs, if all masks say the same."""
    found = [None if mask is None else _owners(mask, size, length) for mask in masks]
    first, *others = found
    if first is None or not all(x is not None and torch.equal(x, first) for x in others):
        return None
    return first


def _owners(
    mask: Bool[Tensor, "b _ _ T"], size: int, length: int
) -> Int[Tensor, "{size} {length}"] | None:
    """To which sequence each token belongs, -1 for padding; ``None`` for masks of another kind."""
    first_of_row = torch.arange(0, size * length, length, device=mask.device)[:, None]
    if mask.shape[1:] == (1, 1, length):
        return torch.where(mask[:, 0, 0], first_of_row, -1)
    if mask.shape[1:] != (1, length, length):
        return None
    sees = mask[:, 0]
    real, start = sees.any(dim=-1), sees.byte().argmax(dim=-1)  # the first that a token sees
    together = (start[:, :, None] == start[:, None, :]) & (real[:, :, None] & real[:, None, :])
    owners = torch.where(real, first_of_row + start, -1)
    latest = owners.flatten().cummax(0).values.view_as(owners)
    in_order = (owners == latest) | ~real  # no sequence goes on behind the start of another
    fits = (together == sees).all() & in_order.all()  # one answer: Python waits for a GPU once
    return owners if fits else None


def _pays(batch: PaddingFreeBatch, x: Float[Tensor, "B T D"]) -> bool:
    """Whether the multiplications saved in a layer are more than the cost; not without a token."""
    size, length, width = x.shape
    tokens = size * length - sum(batch.lengths)
    pairs = size * length**2 - sum(n**2 for n in batch.lengths)
    on_cpu = x.device.type == "cpu"
    cost = COST_OF_A_SEQUENCE * len(batch.lengths) if on_cpu else COST_ON_A_GPU
    # A block has about 12 D^2 weights, and a score costs 2 D.
    return sum(batch.lengths) > 0 and 12 * width**2 * tokens + 2 * width * pairs > cost
