"""Kernels for quantised layers: products that read codes, not the weights they stand for.

:class:`~transformer_lib.layers.quantized_linear.QuantizedLinear` makes its whole matrix for each
product, which takes longer than the product. The kernels here multiply code by code. For the few
rows of a decoding step the time is that of reading the weights, and codes are fewer bytes. Where
there are many rows (a prompt), to make the matrix once is faster, and the layer does so.

On a CPU they are PyTorch's own, which are fast in bfloat16 alone: in a float32 model what goes into
a layer and what comes out is rounded to it (each by up to 1 part in 512). With 8 bits, PyTorch's
kernel knows one scale for each row of weights: quantise with ``group=None`` for it. One row times
4096 x 4096 weights took 5.9 ms in float32, 4.3 in bfloat16, 2.6 with 8 bits and 1.5 with 4 (one
thread of an x86-64 with AVX-512, CPU time on a busy machine); by the formula 91 and 101 ms. On a
GPU it is PyTorch's for 4 bits and bfloat16, else a Triton kernel, for all groups and dtypes, that
sums in float32. A compiled step of a model of the size of Llama-3-8B, one row, took 4.4 ms in
bfloat16, 3.9 with 8 bits and 3.3 with 4 (H200): bytes are saved, but arithmetic limits it then.

They are for asking the model, not for gradients. Compiled steps call those for a GPU. They do
without them on a CPU, and where a row has one scale: the compiler then writes the product itself.
"""

import inspect
from collections.abc import Callable
from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_lib.core.shapes import expect_last
from transformer_lib.layers.quantized_linear import QuantizedLinear, unpack_nibbles

if find_spec("triton") is not None:  # comes with PyTorch for CUDA
    import triton
    import triton.language as tl
else:
    triton = None

MOST_ROWS = 32  # on a CPU: for more, it is faster to make the matrix (measured: from 32 to 64)
MOST_ROWS_ON_GPU = 8  # each row reads the codes anew; not measured
_GROUPS = (32, 64, 128, 256)  # of PyTorch's kernels for 4 bits
_OUTPUTS_ON_CPU = 16  # it makes so many outputs together
_TILES = 8  # of 16 inputs, which a program of PyTorch's kernel for a GPU reads together
_DTYPES_ON_CPU = (torch.float32, torch.bfloat16)
_DTYPES_ON_GPU = (torch.float32, torch.bfloat16, torch.float16)


if triton is not None:

    def _compiled(function: Callable[..., None]) -> triton.JITFunction:
        """Compile a function as it is written, also where an import hook has wrapped it in checks.

        Inside such a wrapper Triton would not find the names of this file.
        """
        return triton.jit(inspect.unwrap(function))

    @_compiled
    def _multiply(  # type: ignore[no-untyped-def]
        x_ptr,  # the rows, (rows, n), contiguous
        codes_ptr, scale_ptr,  # (m, n) or (m, n / 2), and (m, n / group), contiguous
        out_ptr,  # (rows, m), contiguous
        n, m,  # the widths of input and output
        group,  # inputs that share a scale
        bits: tl.constexpr,  # 8 or 4
        outputs: tl.constexpr,  # how many a program makes: a power of two
        chunk: tl.constexpr,  # bytes of a row that share a scale: a power of two
        chunks: tl.constexpr,  # that are looked at together: the same
    ):  # fmt: skip
        """One program for some outputs of one row; sums are in float32."""
        output = tl.program_id(0) * outputs + tl.arange(0, outputs)
        row = tl.program_id(1)
        in_byte: tl.constexpr = 8 // bits  # codes
        n_bytes, n_groups = n // in_byte, n // group
        inside = tl.arange(0, chunk)
        total = tl.zeros((outputs, chunks), tl.float32)
        for first in range(0, n_bytes // chunk, chunks):
            number = first + tl.arange(0, chunks)
            byte = number[:, None] * chunk + inside[None, :]
            is_input = byte < n_bytes
            is_inside = (output < m)[:, None, None] & is_input[None, :, :]
            at = output[:, None, None].to(tl.int64) * n_bytes + byte[None, :, :]
            code = tl.load(codes_ptr + at, is_inside, 0)
            x_at = x_ptr + row * n + byte * in_byte
            x = tl.load(x_at, is_input, 0.0).to(tl.float32)[None, :, :]
            if bits == 8:
                product = code.to(tl.float32) * x
            else:
                second = tl.load(x_at + 1, is_input, 0.0).to(tl.float32)[None, :, :]
                low, high = (code & 15).to(tl.float32) - 8.0, (code >> 4).to(tl.float32) - 8.0
                product = low * x + high * second
            scale_at = output[:, None] * n_groups + (number * chunk * in_byte // group)[None, :]
            is_scale = (output < m)[:, None] & (number * chunk < n_bytes)[None, :]
            scale = tl.load(scale_ptr + scale_at, is_scale, 0.0).to(tl.float32)
            total += tl.sum(product, 2) * scale  # a chunk belongs to one group
        out_at = out_ptr + row * m + output
        found = tl.sum(total, 1)
        tl.store(out_at, found.to(out_ptr.dtype.element_ty), output < m)


def multiply_on_gpu(x: Float[Tensor, "*batch n"], layer: QuantizedLinear) -> Float[Tensor, "..."]:
    """Multiply a few rows by the weights of a layer, each made of its code in a register.

    Args:
        x: the rows, ``(..., in_features)``.
        layer: with a ``group`` of even size, if it has 4 bits.

    Returns:
        The products without the bias, ``(..., out_features)``.

    Example:
        >>> layer = QuantizedLinear(128, 3, bits=8).cuda()  # doctest: +SKIP
        >>> x = torch.ones(1, 128, device="cuda")  # doctest: +SKIP
        >>> multiply_on_gpu(x, layer).shape  # doctest: +SKIP
        torch.Size([1, 3])
    """
    rows = x.reshape(-1, layer.in_features).contiguous()
    out = rows.new_empty(len(rows), layer.out_features)
    # Measured on an H200: 0.4 to 0.7 of its bandwidth with 8 bits, half of that with 4.
    outputs, block = (4, 2_048) if layer.bits == 8 else (8, 256)
    chunk = min(_power_of_2_in(layer.group * layer.bits // 8), 64)
    _multiply[(triton.cdiv(layer.out_features, outputs), len(rows))](
        x_ptr=rows, codes_ptr=layer.codes.contiguous(), scale_ptr=layer.scale.contiguous(),
        out_ptr=out, n=layer.in_features, m=layer.out_features, group=layer.group,
        bits=layer.bits, outputs=outputs, chunk=chunk, chunks=block // chunk,
    )  # fmt: skip
    return out.view(*x.shape[:-1], layer.out_features)


def _power_of_2_in(n: int) -> int:
    """The largest power of two that divides n."""
    return n & -n


class _KernelLinear(QuantizedLinear):
    """A quantised layer that multiplies few rows by a kernel.

    It has the codes, the scales and the settings of the layer in whose place it stands, and is
    saved as that would be.
    """

    def __init__(self, layer: QuantizedLinear) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(layer))
        # For PyTorch's kernels for 4 bits: the codes and, of each group, scale and zero.
        self.laid_out: tuple[Tensor, Tensor] | None = None
        self.lay_out()
        self.register_load_state_dict_post_hook(_lay_out_again)  # type: ignore[no-untyped-call]

    def lay_out(self) -> None:
        """Lay codes of 4 bits out as PyTorch's kernels read them, beside those that are there."""
        self.laid_out = None
        if self.bits == 8:
            return
        if self.codes.device.type == "cpu" and _has_kernel_on_cpu(self):
            codes = (unpack_nibbles(self.codes) + 8).int()  # it counts from 0 to 15 and takes 8 off
            packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        elif self.codes.is_cuda and _fits_kernel_for_4_bits(self):
            swapped = self.codes << 4 | self.codes >> 4  # the first code in the high half
            packed = torch.ops.aten._convert_weight_to_int4pack(swapped, _TILES)
        else:
            return
        pairs = torch.stack((self.scale, torch.zeros_like(self.scale)), dim=2)
        self.laid_out = packed, pairs.transpose(0, 1).contiguous()

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        """Multiply ``x``, ``(..., in_features)``, by a kernel, if there is one for it."""
        expect_last("x", x, "n", {"n": self.in_features})
        kernel = self._kernel_for(x)
        if kernel is None:
            return super().forward(x)
        product = kernel(x)
        return product if self.bias is None else product + self.bias

    def _kernel_for(self, x: Tensor) -> Callable[[Tensor], Tensor] | None:
        """What multiplies these rows, or nothing if the matrix has to be made."""
        if torch.compiler.is_compiling() and (not x.is_cuda or self.has_row_scales):
            return None
        if torch.is_autocast_enabled(x.device.type):
            return None
        if x.device != self.codes.device or (torch.is_grad_enabled() and x.requires_grad):
            return None
        n_rows = x.numel() // self.in_features
        if x.device.type == "cpu" and x.dtype in _DTYPES_ON_CPU and 0 < n_rows <= MOST_ROWS:
            is_ready = self.bits == 8 or self.laid_out is not None
            return self._multiply_on_cpu if is_ready and _has_kernel_on_cpu(self) else None
        if x.device.type == "cuda" and x.dtype in _DTYPES_ON_GPU:
            return self._multiply_on_gpu if _has_kernel_on_gpu(self, n_rows) else None
        return None

    def _multiply_on_cpu(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).bfloat16().contiguous()
        if self.bits == 8:
            product = torch.ops.aten._weight_int8pack_mm(rows, self.codes, self.scale[:, 0])
        else:
            assert self.laid_out is not None, "_kernel_for says no"
            codes, pairs = self.laid_out
            kernel = torch.ops.aten._weight_int4pack_mm_for_cpu
            product = kernel(rows, codes, self.group, pairs)
        found: Tensor = product.to(x.dtype).view(*x.shape[:-1], self.out_features)
        return found

    def _multiply_on_gpu(self, x: Tensor) -> Tensor:
        if self.laid_out is None or x.dtype != torch.bfloat16:
            return multiply_on_gpu(x, self)
        rows = x.reshape(-1, self.in_features)
        product: Tensor = torch.ops.aten._weight_int4pack_mm(
            rows, self.laid_out[0], self.group, self.laid_out[1]
        )
        return product.view(*x.shape[:-1], self.out_features)


def use_int_kernels(model: nn.Module) -> int:
    """Let the quantised layers of a model multiply by kernels; the model is changed in place.

    For PyTorch's kernels, codes of 4 bits are laid out once more, so that a weight takes a byte
    instead of half of one. What is saved is the same as before.

    Args:
        model: a quantised model, on the device where it will be used.

    Returns:
        For how many of its layers there is a kernel; the others multiply as before.

    Raises:
        ValueError: if the model has no quantised layers, or only such as have kernels already.

    Example:
        >>> model = nn.Sequential(
        ...     QuantizedLinear(128, 64), QuantizedLinear(128, 3)
        ... )
        >>> use_int_kernels(model)  # for 3 outputs there is none
        1
    """
    found = {
        name: part for name, part in model.named_modules(remove_duplicate=False)
        if type(part) is QuantizedLinear
    }  # fmt: skip
    if not found:
        raise ValueError("model has no quantised layers without kernels; call quantize first")
    fast: dict[QuantizedLinear, _KernelLinear] = {}
    for name, layer in found.items():
        has = _has_kernel_on_gpu(layer) if layer.codes.is_cuda else _has_kernel_on_cpu(layer)
        if has:
            fast[layer] = fast.get(layer) or _KernelLinear(layer)
            model.set_submodule(name, fast[layer])
    return len(fast)


def _has_kernel_on_cpu(layer: QuantizedLinear) -> bool:
    """Whether PyTorch has a kernel for the settings of a layer."""
    if layer.bits == 8:
        return layer.group == layer.in_features
    if not hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu"):
        return False  # before PyTorch 2.6
    return layer.group in _GROUPS and layer.out_features % _OUTPUTS_ON_CPU == 0


def _has_kernel_on_gpu(layer: QuantizedLinear, n_rows: int = 1) -> bool:
    if triton is None or not 0 < n_rows <= MOST_ROWS_ON_GPU:
        return False
    return layer.bits == 8 or layer.group % 2 == 0


def _fits_kernel_for_4_bits(layer: QuantizedLinear) -> bool:
    """Whether PyTorch's kernel for a GPU knows these sizes, and this GPU."""
    fits = layer.in_features % (16 * _TILES) == 0 and layer.out_features % 8 == 0
    return (
        fits
        and layer.group in _GROUPS
        and torch.version.hip is None
        and torch.cuda.get_device_capability(layer.codes.device) >= (8, 0)
    )


def _lay_out_again(layer: _KernelLinear, loaded: object) -> None:
    """Follow a state dict that was loaded."""
    layer.lay_out()
