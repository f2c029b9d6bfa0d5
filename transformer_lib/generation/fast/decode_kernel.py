"""Attention of one new token, in one Triton kernel for the GPU.

A decoding step turns the new token's query and key (RoPE), stores key and value, and lets the query
look at all keys so far. With PyTorch's own kernels these are a dozen launches and a mask over every
place of a static cache, in use or not. The kernel here does it in one, and reads only the places
that are in use: their number is on the device, so that a recorded step can count it up.

A program reads keys one after the other. Where there is room for many, and few rows and heads to
occupy the GPU, they are cut into parts: each is read by a program of its own, and a second kernel
joins what they found. :func:`~transformer_lib.layers.split_attention.split_attention` is the
readable version.
"""

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeGuard

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_lib.core.config import RopePairing
from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.layers.attention import AttentionPattern, MultiHeadAttention
from transformer_lib.layers.caches.kv_cache import AttentionCache
from transformer_lib.layers.caches.static_kv_cache import StaticLayerCache

if find_spec("triton") is not None:  # comes with PyTorch for CUDA
    import triton
    import triton.language as tl
else:
    triton = None

WIDEST = 256  # of the heads; wider ones have no room in the registers
WIDEST_JOINED = 1280  # of the models: with larger weights, one product saves next to nothing
TILE = 8_192  # bytes of keys that a program looks at together, on the smallest GPU
MOST_STAGES = 3  # of the kernel's pipeline: blocks of keys and values that are loaded at once
TILES_IN_MEMORY = 2 * MOST_STAGES + 1  # keys and values of each stage, and room for the rest
SHORT = 256  # places of a cache for which parts never pay: to join them takes as long as to read
PART = 64  # places for which one more part may pay, beyond that
MOST_PARTS = 64  # all of them have room in the registers of the program that joins them
PROGRAMS = 2  # that each processor of a GPU reads with at once: one waits while the other computes


if triton is not None:

    def _compiled(function: Callable[..., None]) -> triton.JITFunction:
        """Compile a function as it is written, also where an import hook has wrapped it in checks.

        Inside such a wrapper Triton would not find the names of this file.
        """
        return triton.jit(inspect.unwrap(function))

    @_compiled
    def _load_turned(  # type: ignore[no-untyped-def]
        at,  # where the vectors begin
        feature,  # of each number
        inside,  # which numbers there are
        cos_ptr, sin_ptr,  # of this row's angles
        n_angles,  # pairs that turn; the other features stay
        pairing: tl.constexpr,  # of features: see rotate(); "" for none
    ):  # fmt: skip
        """Load vectors and turn them, in float32: a feature needs the other one of its pair."""
        x = tl.load(at + feature, inside, 0.0)
        if pairing == "":
            return x
        if pairing == "interleaved":
            angle, is_first = feature // 2, feature % 2 == 0
            other = tl.where(is_first, feature + 1, feature - 1)
        else:
            angle, is_first = feature % n_angles, feature < n_angles
            other = tl.where(is_first, feature + n_angles, feature - n_angles)
        turns = feature < 2 * n_angles
        cos, sin = tl.load(cos_ptr + angle, turns, 1.0), tl.load(sin_ptr + angle, turns, 0.0)
        across = tl.load(at + other, inside & turns, 0.0).to(tl.float32)
        turned = x.to(tl.float32) * cos + tl.where(is_first, -across, across) * sin
        return turned.to(x.dtype)

    # Matrix units take powers of two, at least 16: sizes called padded_*, and block.
    @_compiled
    def _append_and_attend(  # type: ignore[no-untyped-def]
        q_ptr, q_row, q_head,  # queries, with the strides of rows and heads
        k_ptr, k_row, k_head,  # the new keys
        v_ptr, v_row, v_head,  # the new values
        keys_ptr, values_ptr, cache_row, cache_head, cache_place,  # the cache: strides of both
        filled_ptr,  # how many places of the cache are in use
        bias_ptr, bias_row, bias_head,  # what is added to the scores
        cos_ptr, sin_ptr, angles_row, n_angles,  # by which pairs of features turn
        out_ptr,  # (B, 1, H, Dk), contiguous; with several parts (parts, B, 1, H, Dk), not divided
        best_ptr, total_ptr,  # with several parts: the best score and the sum, (parts, B, H)
        scale,  # of the scores
        n_kv_heads,  # heads with keys and values of their own
        queries_per_kv,  # query heads that share one of them
        d_head,  # features of a head
        padded_queries: tl.constexpr,  # queries_per_kv, padded
        padded_width: tl.constexpr,  # d_head, padded
        block: tl.constexpr,  # keys that are looked at together
        n_parts: tl.constexpr,  # into how many parts the keys are cut
        pairing: tl.constexpr,  # of features that turn together; "" if none turn
    ):  # fmt: skip
        """One program for each part of a row and key-value head, with the queries that share it."""
        row, kv_head = tl.program_id(0) // n_kv_heads, tl.program_id(0) % n_kv_heads
        part = tl.program_id(1)
        n = tl.load(filled_ptr)  # keys in the cache, and the place of the new one
        in_part = tl.cdiv(n, n_parts)
        begin, end = part * in_part, tl.minimum((part + 1) * in_part, n)
        feature, query = tl.arange(0, padded_width), tl.arange(0, padded_queries)
        is_feature, is_query = feature < d_head, query < queries_per_kv  # not padding
        head = kv_head * queries_per_kv + query
        inside = is_query[:, None] & is_feature[None, :]
        cos, sin = cos_ptr + row * angles_row, sin_ptr + row * angles_row
        q_at = q_ptr + row * q_row + head[:, None] * q_head
        k_at = k_ptr + row * k_row + kv_head * k_head
        q = _load_turned(q_at, feature[None, :], inside, cos, sin, n_angles, pairing)
        key = _load_turned(k_at, feature, is_feature, cos, sin, n_angles, pairing)
        value = tl.load(v_ptr + row * v_row + kv_head * v_head + feature, is_feature, 0.0)
        start = row.to(tl.int64) * cache_row + kv_head * cache_head
        is_first = part == 0  # the part that the new key belongs to
        tl.store(keys_ptr + start + n * cache_place + feature, key, is_feature & is_first)
        tl.store(values_ptr + start + n * cache_place + feature, value, is_feature & is_first)
        # Softmax in one pass, in float32: the best score so far, and sums relative to it. The new
        # key comes first; it is always allowed. All parts begin with its score, so that none is
        # relative to minus infinity, but only the first part counts it.
        bias_at = bias_ptr + row * bias_row + head * bias_head
        best = tl.sum(q.to(tl.float32) * key[None, :].to(tl.float32), 1) * scale
        best = (best + tl.load(bias_at + n, is_query, 0.0)).to(tl.float32)
        counted = tl.where(is_first, 1.0, 0.0)
        total = tl.zeros((padded_queries,), tl.float32) + counted
        mixed = tl.zeros((padded_queries, padded_width), tl.float32)
        mixed = mixed + counted * value[None, :].to(tl.float32)
        for first in range(begin, end, block):
            place = first + tl.arange(0, block)
            at = start + place[:, None] * cache_place + feature[None, :]
            used = (place < end)[:, None] & is_feature[None, :]
            keys, values = tl.load(keys_ptr + at, used, 0.0), tl.load(values_ptr + at, used, 0.0)
            scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
            allowed = is_query[:, None] & (place < end)[None, :]
            scores += tl.load(bias_at[:, None] + place[None, :], allowed, 0.0)
            scores = tl.where((place < end)[None, :], scores.to(tl.float32), float("-inf"))
            new_best = tl.maximum(best, tl.max(scores, 1))
            weights, shrink = tl.exp(scores - new_best[:, None]), tl.exp(best - new_best)
            found = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
            mixed = mixed * shrink[:, None] + found
            total = total * shrink + tl.sum(weights, 1)
            best = new_best
        n_rows = tl.num_programs(0) * queries_per_kv  # B * H
        out_row = part * n_rows + row * n_kv_heads * queries_per_kv + head
        if n_parts == 1:
            mixed = mixed / total[:, None]
        else:
            tl.store(best_ptr + out_row, best, is_query)
            tl.store(total_ptr + out_row, total, is_query)
        out_at = out_ptr + out_row[:, None] * d_head + feature[None, :]
        tl.store(out_at, mixed.to(out_ptr.dtype.element_ty), inside)

    @_compiled
    def _join_parts(  # type: ignore[no-untyped-def]
        best_ptr, total_ptr, mixed_ptr,  # of the parts: (parts, B, H), and (parts, B, 1, H, Dk)
        out_ptr,  # (B, 1, H, Dk), contiguous
        d_head,  # features of a head
        n_parts: tl.constexpr,
        padded_parts: tl.constexpr,  # n_parts, padded
        padded_width: tl.constexpr,  # d_head, padded
    ):  # fmt: skip
        """One program for each row and query head: parts are made relative to the best of all."""
        row, n_rows = tl.program_id(0), tl.num_programs(0)
        part, feature = tl.arange(0, padded_parts), tl.arange(0, padded_width)
        is_part, is_feature = part < n_parts, feature < d_head
        at = part * n_rows + row
        best = tl.load(best_ptr + at, is_part, float("-inf"))
        shrink = tl.exp(best - tl.max(best, 0))
        total = tl.sum(shrink * tl.load(total_ptr + at, is_part, 0.0), 0)
        inside = is_part[:, None] & is_feature[None, :]
        mixed = tl.load(mixed_ptr + at[:, None] * d_head + feature[None, :], inside, 0.0)
        found = tl.sum(shrink[:, None] * mixed, 0) / total
        tl.store(out_ptr + row * d_head + feature, found.to(out_ptr.dtype.element_ty), is_feature)


def append_and_attend(
    q: Float[Tensor, "B H 1 Dk"],
    k: Float[Tensor, "B G 1 Dk"],
    v: Float[Tensor, "B G 1 Dk"],
    cache: StaticLayerCache,
    bias: Float[Tensor, "..."],
    scale: float | None = None,
    *,
    angles: Float[Tensor, "..."] | None = None,
    pairing: RopePairing = "interleaved",
    tile: int = TILE,
    n_parts: int = 1,
) -> Float[Tensor, "B H 1 Dk"]:
    """Store the key and value of one new token, and attend from its query to all so far.

    Equal to ``fused_attention(q, *cache.append(k, v), bias=bias)`` up to rounding, with ``q`` and
    ``k`` turned before if there are angles, and if the bias hides the places that are not in use:
    these are not read. It runs on a GPU, under ``torch.no_grad``.

    Args:
        q: the query of each head.
        k: the new key of each key-value head.
        v: the new value of each key-value head.
        cache: where keys and values are; something is stored there already.
        bias: added to the scores, broadcastable to ``(B, H, 1, S)`` with all S places of the
            cache; what hides the future may be in it, but need not.
        scale: what the scores are multiplied by; ``1/sqrt(Dk)`` if left out.
        angles: RoPE's for the new token, ``(..., 1, Dk/2)`` or fewer, the same for all heads.
        pairing: which features turn together; see :func:`~transformer_lib.layers.positions.rotate`.
        tile: how many bytes of keys a program looks at together, at most.
        n_parts: into how many parts the keys are cut, each read by a program of its own; see
            :func:`count_parts`.

    Returns:
        What each head found.

    Example:
        >>> layer = StaticLayerCache(
        ...     8, filled=torch.tensor(2, device="cuda")
        ... )  # doctest: +SKIP
        >>> append_and_attend(q, k, v, layer, bias).shape  # doctest: +SKIP
        torch.Size([1, 12, 1, 64])
    """
    keys, values = cache.all_places(k, v)
    batch, n_heads, _, d_head = q.shape
    n_kv_heads = k.shape[1]
    queries_per_kv = n_heads // n_kv_heads
    bias = (bias if bias.stride(-1) == 1 else bias.contiguous()).expand(batch, n_heads, 1, -1)
    out = q.new_empty(batch, 1, n_heads, d_head)  # as merge() wants it
    found, best, total = out, out, out  # with a single part the last two are not written
    if n_parts > 1:
        found = out.new_empty((n_parts, *out.shape), dtype=torch.float32)
        best, total = found.new_empty(2, n_parts, batch, n_heads)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    padded_width = _padded(d_head)
    # Measured on an H200: few programs want long blocks of keys and many threads; many do not.
    is_few = batch * n_kv_heads <= 256
    block = min(padded_width, 128) if is_few else 32
    block = max(16, min(block, _power_of_2_up_to(tile // (padded_width * q.element_size()))))
    warps, stages = (max(2, block // 16), 2) if is_few else (2, MOST_STAGES)
    if angles is None:
        cos = sin = q.new_empty(batch, 0)  # not read
    else:  # in the kernel, cosines would take longer than all the rest of it
        cos, sin = _rows_of(angles.cos(), batch), _rows_of(angles.sin(), batch)
    _append_and_attend[(batch * n_kv_heads, n_parts)](
        q_ptr=q, q_row=q.stride(0), q_head=q.stride(1),
        k_ptr=k, k_row=k.stride(0), k_head=k.stride(1),
        v_ptr=v, v_row=v.stride(0), v_head=v.stride(1),
        keys_ptr=keys, values_ptr=values,
        cache_row=keys.stride(0), cache_head=keys.stride(1), cache_place=keys.stride(2),
        filled_ptr=cache.filled,
        bias_ptr=bias, bias_row=bias.stride(0), bias_head=bias.stride(1),
        cos_ptr=cos, sin_ptr=sin, angles_row=cos.stride(0), n_angles=cos.shape[1],
        out_ptr=found, best_ptr=best, total_ptr=total,
        scale=d_head**-0.5 if scale is None else float(scale),  # an int would be compiled in
        n_kv_heads=n_kv_heads, queries_per_kv=queries_per_kv, d_head=d_head,
        padded_queries=_padded(queries_per_kv), padded_width=padded_width, block=block,
        n_parts=n_parts, pairing="" if angles is None else pairing,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if n_parts > 1:
        _join_parts[(batch * n_heads,)](
            best_ptr=best, total_ptr=total, mixed_ptr=found, out_ptr=out, d_head=d_head,
            n_parts=n_parts, padded_parts=int(triton.next_power_of_2(n_parts)),
            padded_width=padded_width,
        )  # fmt: skip
    return out.transpose(1, 2)


def _rows_of(x: Float[Tensor, "..."], batch: int) -> Float[Tensor, "B pairs"]:
    """What each row has for its one new token."""
    return x.float().reshape(-1, x.shape[-1]).expand(batch, -1)


def count_parts(max_len: int, n_programs: int, n_processors: int) -> int:
    """Say into how many parts keys are cut, so that all of a GPU's processors read.

    It depends on the room of the cache, not on how much is in use: a recording has one answer.

    Args:
        max_len: how many keys the cache has room for.
        n_programs: rows times key-value heads, which have a program each without parts.
        n_processors: of the GPU.

    Returns:
        1 if there are programs enough, or little room; up to ``MOST_PARTS`` else.

    Example:
        >>> count_parts(16_640, n_programs=8, n_processors=132)
        33
        >>> count_parts(192, n_programs=8, n_processors=132)
        1
    """
    if max_len < SHORT:
        return 1
    return max(1, min(PROGRAMS * n_processors // n_programs, max_len // PART, MOST_PARTS))


def _padded(n: int) -> int:
    """The next power of two, at least 16: sizes that a matrix unit takes."""
    return max(16, int(triton.next_power_of_2(n)))


def _power_of_2_up_to(n: int) -> int:
    """The largest power of two that is not above n; 0 for 0."""
    return int(triton.next_power_of_2(n + 1)) // 2


class _StepAttention(MultiHeadAttention):
    """Multi-head attention of a copied model that only decodes, one token at a time.

    It has the layers and settings of the attention in whose place it stands.
    """

    def __init__(self, attention: MultiHeadAttention, tile: int, n_processors: int) -> None:
        nn.Module.__init__(self)  # that of MultiHeadAttention would draw new weights
        vars(self).update(vars(attention))
        self.tile, self.n_processors = tile, n_processors  # bytes of keys at once; of the GPU
        self.joined: tuple[Tensor, Tensor | None] | None = None  # weight and bias of one product

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"] | None = None,
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        *,
        bias: Float[Tensor, "..."] | None = None,
        angles: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        cache: AttentionCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend by the kernel if one token is added to a static cache, else as the base class."""
        if not isinstance(cache, StaticLayerCache) or x.shape[1] != 1 or bias is None:
            return super().forward(
                x, memory, mask, bias=bias, angles=angles, causal=causal, cache=cache
            )
        # With a static cache the bias hides what mask and causality hide: see Stack._visibility.
        n_parts = count_parts(cache.max_len, len(x) * self.n_kv_heads, self.n_processors)
        heads = append_and_attend(
            *self.project(x, x), cache, bias, self.scale,
            angles=angles, pairing=self.pairing, tile=self.tile, n_parts=n_parts,
        )  # fmt: skip
        return self.merge(heads)

    def project(
        self,
        x: Float[Tensor, "B T D"],
        source: Float[Tensor, "B S D"],
        angles: Float[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B H T Dk"], Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dk"]]:
        """Project by one product if the weights were joined for it."""
        if self.joined is None or source is not x or angles is not None:
            return super().project(x, source, angles)
        sizes = [layer.out_features for layer in (self.query, self.key, self.value)]
        q, k, v = map(self._split, F.linear(x, *self.joined).split(sizes, dim=-1))
        return q, k, v

    def join(self) -> list[tuple[Tensor, Tensor]]:
        """Prepare for one product; return where weights are to be copied to, and from where."""
        layers = (self.query, self.key, self.value)
        if any(type(layer) is not nn.Linear for layer in layers):
            return []
        weights = [layer.weight.detach() for layer in layers]
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        if len(biases) not in (0, 3):
            return []
        if not Fingerprint(layers).is_plain:
            return []
        if self.query.in_features > WIDEST_JOINED:
            return []
        weight, bias = torch.cat(tuple(weights)), torch.cat(tuple(biases)) if biases else None
        self.joined = weight, bias
        sizes = [len(x) for x in weights]
        copies = list(zip(weight.split(sizes), weights, strict=True))
        if bias is not None:
            copies += zip(bias.split(sizes), biases, strict=True)
        return copies


def use_step_kernel(model: nn.Module, device: torch.device | None = None) -> None:
    """Let a copy of a model attend by the kernel wherever it attends as this library does.

    Args:
        model: changed in place: other modules come to stand in the place of its attentions.
        device: the GPU, which has more or less memory for each program, and more or fewer
            processors; a small one if left out.

    Example:
        >>> use_step_kernel(
        ...     model := nn.Sequential(
        ...         MultiHeadAttention(d_model=8, n_heads=2)
        ...     )
        ... )
        >>> type(model[0]).__name__
        '_StepAttention'
    """
    tile, n_processors = TILE, 1
    if device is not None and device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        memory = getattr(found, "shared_memory_per_block_optin", TILES_IN_MEMORY * tile)
        tile, n_processors = memory // TILES_IN_MEMORY, found.multi_processor_count
    for part in list(model.modules()):
        for name, child in part.named_children():
            if _can_replace(child):
                setattr(part, name, _StepAttention(child, tile, n_processors))


def _can_replace(part: nn.Module) -> TypeGuard[MultiHeadAttention]:
    """Whether the kernel does what a module does; other classes attend in another way."""
    if type(part) is not MultiHeadAttention:
        return False
    return part.kernel_may_attend and part.d_head <= WIDEST


def join_projections(model: nn.Module) -> Callable[[], None]:
    """Let one product make queries, keys and values wherever the kernel is used.

    That is faster than three as long as they are so small that their launches count. All weights of
    a model are joined by one copy.

    Args:
        model: a copy, changed in place.

    Returns:
        A function that joins the weights again, for whenever they may have changed.

    Example:
        >>> use_step_kernel(
        ...     model := nn.Sequential(
        ...         MultiHeadAttention(d_model=8, n_heads=2)
        ...     )
        ... )
        >>> join_again = join_projections(model)
        >>> model[0].joined[0].shape
        torch.Size([24, 8])
    """
    copies = [
        pair for part in model.modules() if isinstance(part, _StepAttention) for pair in part.join()
    ]

    def join_again() -> None:
        if copies:
            torch._foreach_copy_([to for to, _ in copies], [weight for _, weight in copies])

    return join_again


def has_step_kernel(dtype: torch.dtype) -> bool:
    """Say whether the kernel can be used on a GPU: Triton is there, and knows the dtype.

    Args:
        dtype: of keys and values.

    Returns:
        ``False`` without Triton, and for float64.

    Example:
        >>> has_step_kernel(torch.float64)
        False
    """
    return triton is not None and dtype.itemsize <= 4
