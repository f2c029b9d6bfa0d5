"""Attention of one new token, in one Triton kernel for the GPU.

A decoding step stores the new token's key and value and lets its query look at all keys so far.
With PyTorch's own kernels these are three launches and a mask over every place of a static cache,
in use or not. The kernel here does it in one, and reads only the places that are in use: their
number is on the device, so that a recorded step can count it up.
"""

import inspect
from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.layers.attention import AttentionPattern, MultiHeadAttention
from transformer_lib.layers.kv_cache import AttentionCache
from transformer_lib.layers.positions import rotate
from transformer_lib.layers.static_kv_cache import StaticLayerCache

if find_spec("triton") is not None:  # comes with PyTorch for CUDA
    import triton
    import triton.language as tl
else:
    triton = None

WIDEST = 256  # of the heads; wider ones have no room in the registers
WIDEST_JOINED = 1280  # of the models: with larger weights, one product saves next to nothing


if triton is not None:

    def _compiled(function: Callable[..., None]) -> triton.JITFunction:
        """Compile a function as it is written, also where an import hook has wrapped it in checks.

        Inside such a wrapper Triton would not find the names of this file.
        """
        return triton.jit(inspect.unwrap(function))

    @_compiled
    def _append_and_attend(  # type: ignore[no-untyped-def]
        q_ptr, k_ptr, v_ptr, keys_ptr, values_ptr, filled_ptr, bias_ptr, out_ptr, scale,
        q_row, q_head, k_row, k_head, v_row, v_head, cache_row, cache_head, cache_place,
        bias_row, bias_head, n_shared, group, d_head,
        width: tl.constexpr, block: tl.constexpr, queries: tl.constexpr,
    ):  # fmt: skip
        """One program for each row and key-value head, with the queries that share it."""
        row, shared = tl.program_id(0) // n_shared, tl.program_id(0) % n_shared
        n = tl.load(filled_ptr)  # keys in the cache, and the place of the new one
        feature, query = tl.arange(0, width), tl.arange(0, queries)
        exists, asks = feature < d_head, query < group  # matrix units want 16 of each at least
        head = shared * group + query
        inside = asks[:, None] & exists[None, :]
        q = tl.load(q_ptr + row * q_row + head[:, None] * q_head + feature[None, :], inside, 0.0)
        key = tl.load(k_ptr + row * k_row + shared * k_head + feature, exists, 0.0)
        value = tl.load(v_ptr + row * v_row + shared * v_head + feature, exists, 0.0)
        start = row.to(tl.int64) * cache_row + shared * cache_head
        tl.store(keys_ptr + start + n * cache_place + feature, key, exists)
        tl.store(values_ptr + start + n * cache_place + feature, value, exists)
        # Softmax in one pass, in float32: the best score so far, and sums relative to it. The new
        # key comes first; it is always allowed.
        bias_at = bias_ptr + row * bias_row + head * bias_head
        best = tl.sum(q.to(tl.float32) * key[None, :].to(tl.float32), 1) * scale
        best = (best + tl.load(bias_at + n, asks, 0.0)).to(tl.float32)
        total = tl.full((queries,), 1.0, tl.float32)
        mixed = tl.zeros((queries, width), tl.float32) + value[None, :].to(tl.float32)
        for first in range(0, n, block):
            place = first + tl.arange(0, block)
            at = start + place[:, None] * cache_place + feature[None, :]
            used = (place < n)[:, None] & exists[None, :]
            keys, values = tl.load(keys_ptr + at, used, 0.0), tl.load(values_ptr + at, used, 0.0)
            scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
            allowed = asks[:, None] & (place < n)[None, :]
            scores += tl.load(bias_at[:, None] + place[None, :], allowed, 0.0)
            scores = tl.where((place < n)[None, :], scores.to(tl.float32), float("-inf"))
            new_best = tl.maximum(best, tl.max(scores, 1))
            weights, shrink = tl.exp(scores - new_best[:, None]), tl.exp(best - new_best)
            found = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
            mixed = mixed * shrink[:, None] + found
            total = total * shrink + tl.sum(weights, 1)
            best = new_best
        out_at = out_ptr + (row * n_shared * group + head[:, None]) * d_head + feature[None, :]
        tl.store(out_at, (mixed / total[:, None]).to(out_ptr.dtype.element_ty), inside)


def append_and_attend(
    q: Float[Tensor, "B H 1 Dk"],
    k: Float[Tensor, "B G 1 Dk"],
    v: Float[Tensor, "B G 1 Dk"],
    cache: StaticLayerCache,
    bias: Float[Tensor, "..."],
    scale: float | None = None,
    *,
    tile: int = 8_192,
) -> Float[Tensor, "B H 1 Dk"]:
    """Store the key and value of one new token, and attend from its query to all so far.

    Equal to ``fused_attention(q, *cache.append(k, v), bias=bias)`` up to rounding. It runs on a
    GPU, under ``torch.no_grad``.

    Args:
        q: the query of each head.
        k: the new key of each key-value head.
        v: the new value of each key-value head.
        cache: where keys and values are; something is stored there already.
        bias: added to the scores, broadcastable to ``(B, H, 1, S)`` with all S places of the
            cache; what hides the future may be in it, but need not.
        scale: what the scores are multiplied by; ``1/sqrt(Dk)`` if left out.
        tile: how many bytes of keys a program looks at together, at most.

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
    n_shared, group = k.shape[1], n_heads // k.shape[1]
    bias = (bias if bias.stride(-1) == 1 else bias.contiguous()).expand(batch, n_heads, 1, -1)
    out = q.new_empty(batch, 1, n_heads, d_head)  # as merge() wants it
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    width = max(16, triton.next_power_of_2(d_head))
    # Measured on an H200: few programs want long blocks of keys and many threads; many do not.
    block, warps, stages = (128, 8, 2) if batch * n_shared <= 256 else (32, 2, 3)
    at_most = triton.next_power_of_2(tile // (width * q.element_size()) + 1) // 2
    block = max(16, min(block, at_most))
    scale = d_head**-0.5 if scale is None else float(scale)  # an int would be compiled in
    _append_and_attend[(batch * n_shared,)](
        q, k, v, keys, values, cache.filled, bias, out, scale,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        *keys.stride()[:3], bias.stride(0), bias.stride(1), n_shared, group, d_head,
        width=width, queries=max(16, triton.next_power_of_2(group)), block=block,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out.transpose(1, 2)


class _StepAttention(MultiHeadAttention):
    """Multi-head attention of a copied model that only decodes, one token at a time."""

    joined: tuple[Tensor, Tensor | None] | None = None  # weights and biases of one product
    tile = 8_192  # bytes of keys at once

    def project(
        self,
        x: Float[Tensor, "B T D"],
        source: Float[Tensor, "B S D"],
        angles: Float[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B H T Dk"], Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dk"]]:
        """Do so by one product if weights are laid together for it."""
        if self.joined is None or source is not x:
            return super().project(x, source, angles)
        sizes = [layer.out_features for layer in (self.query, self.key, self.value)]
        q, k, v = map(self._split, F.linear(x, *self.joined).split(sizes, dim=-1))
        if angles is not None:
            q, k = rotate(q, angles, self.pairing), rotate(k, angles, self.pairing)
        return q, k, v

    def attend_and_keep(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B G S Dk"],
        v: Float[Tensor, "B G S Dk"],
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        cache: AttentionCache | None = None,
    ) -> Float[Tensor, "B H T Dk"]:
        """Attend by the kernel if one token is added to a static cache, else as always."""
        if not isinstance(cache, StaticLayerCache) or q.shape[2] != 1 or bias is None:
            return super().attend_and_keep(q, k, v, mask, bias, causal=causal, cache=cache)
        return append_and_attend(q, k, v, cache, bias, self.scale, tile=self.tile)

    def join(self) -> list[tuple[Tensor, Tensor]]:
        """Prepare for one product; return where weights are to be copied to, and from where."""
        layers = (self.query, self.key, self.value)
        weights = [layer.weight.detach() for layer in layers]
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        if any(type(layer) is not nn.Linear for layer in layers) or len(biases) not in (0, 3):
            return []
        if not Fingerprint(layers).is_plain:
            return []
        if self.query.in_features > WIDEST_JOINED:
            return []
        weight, bias = torch.cat(tuple(weights)), torch.cat(tuple(biases)) if biases else None
        vars(self)["joined"] = weight, bias
        sizes = [len(x) for x in weights]
        copies = list(zip(weight.split(sizes), weights, strict=True))
        if bias is not None:
            copies += zip(bias.split(sizes), biases, strict=True)
        return copies


def use_step_kernel(model: nn.Module, device: torch.device | None = None) -> None:
    """Let a copy of a model attend by the kernel wherever it attends as this library does.

    Args:
        model: changed in place: its parts get another class.
        device: the GPU, which has more or less memory for each program; a small one if left out.

    Example:
        >>> use_step_kernel(
        ...     model := nn.Sequential(
        ...         MultiHeadAttention(d_model=8, n_heads=2)
        ...     )
        ... )
        >>> type(model[0]).__name__
        '_StepAttention'
    """
    tile = _StepAttention.tile
    if device is not None and device.type == "cuda":
        # Keys and values, three of each on their way, and something for the rest.
        found = torch.cuda.get_device_properties(device)
        tile = getattr(found, "shared_memory_per_block_optin", 7 * tile) // 7
    for part in model.modules():
        if type(part) is MultiHeadAttention and part.fused and part.d_head <= WIDEST:
            part.__class__ = _StepAttention
            vars(part)["tile"] = tile


def join_projections(model: nn.Module) -> Callable[[], None]:
    """Let one product make queries, keys and values wherever the kernel is used.

    That is faster than three as long as they are so small that their launches count. All weights of
    a model are laid together by one copy.

    Args:
        model: a copy, changed in place.

    Returns:
        A function that lays the weights together anew, for whenever they may have changed.

    Example:
        >>> use_step_kernel(
        ...     model := nn.Sequential(
        ...         MultiHeadAttention(d_model=8, n_heads=2)
        ...     )
        ... )
        >>> lay_together = join_projections(model)
        >>> model[0].joined[0].shape
        torch.Size([24, 8])
    """
    copies = [
        pair for part in model.modules() if isinstance(part, _StepAttention) for pair in part.join()
    ]

    def lay_together() -> None:
        if copies:
            torch._foreach_copy_([to for to, _ in copies], [weight for _, weight in copies])

    return lay_together


def has_step_kernel(dtype: torch.dtype) -> bool:
    """Say whether the kernel can be used on a GPU: there is a compiler, and it knows the numbers.

    Args:
        dtype: of keys and values.

    Returns:
        ``False`` without Triton, and for float64.

    Example:
        >>> has_step_kernel(torch.float64)
        False
    """
    return triton is not None and dtype.itemsize <= 4
