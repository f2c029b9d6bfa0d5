"""What does a norm cost on a GPU? LayerNorm and RMSNorm, written out, as a kernel, and compiled.

    python -m experiments.norm_costs

Alone, and as a share of the time of a whole pre-norm block, at two widths. Run it alone: it
measures times.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from experiments.hardware import seconds
from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    read_options,
    rounded,
    rows_where,
    write_results,
)
from transformer_lib import Block, LayerNorm, Parts, RMSNorm, TransformerConfig

CHAPTER = "09c_norms_in_practice"
D_HEAD = 128
ABOUT = {
    "Task": """`norms.csv`: one norm of 16,384 tokens. `blocks.csv`: a pre-norm block with two
        norms, causal attention with heads of 128 features and a GELU network of four times the
        width, for 8 texts of 2,048 tokens.""",
    "Choices": """Numbers have 16 bits (bfloat16), weights too; statistics are taken in float32.
        `written out` is the formula in PyTorch's single operations, `kernel` is
        `torch.nn.functional.layer_norm` or `rms_norm`, `compiled` the formula after
        `torch.compile`. Blocks are not compiled. A time is the median of five runs of many calls
        after some that do not count. `forward` is without gradients, `both` with the backward
        pass.""",
    "How to read the tables": """`gigabytes` is what must be read and written if each tensor is
        touched once, a second: of `forward` the input and the output. In `blocks.csv`, `share` is
        the part of the time that is saved by a block of the same `form` without norms
        (`none`).""",
    "Intended use": "Teaching: what a norm costs, and of which part of it a kernel gets rid.",
    "Limits": """One GPU, one version of PyTorch, one number of tokens. Small differences between
        blocks are within what a GPU's clock changes from run to run.""",
}


class WrittenLayerNorm(LayerNorm):
    """LayerNorm in single operations, with its statistics in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each vector of ``x``, ``(..., D)``."""
        wide = x.float()
        away = wide - wide.mean(dim=-1, keepdim=True)
        variance = away.square().mean(dim=-1, keepdim=True)
        normed = (away * torch.rsqrt(variance + self.eps)).type_as(x)
        assert self.bias is not None
        return normed * self.weight + self.bias


class WrittenRMSNorm(RMSNorm):
    """RMSNorm in single operations, with its mean square in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each vector of ``x``, ``(..., D)``."""
        wide = x.float()
        mean_square = wide.square().mean(dim=-1, keepdim=True)
        return (wide * torch.rsqrt(mean_square + self.eps)).type_as(x) * self.weight


WRITTEN: dict[str, Callable[[int], nn.Module]] = {"layer": WrittenLayerNorm, "rms": WrittenRMSNorm}
KERNELS: dict[str, Callable[[int], nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm}


def clock(module: nn.Module, x: Tensor, device: str, calls: int) -> dict[str, float]:
    """Measure the time of a module, ``forward`` and ``both``, in seconds."""
    upstream = torch.randn_like(x)

    def forward() -> None:
        with torch.no_grad():
            module(x)

    def both() -> None:
        x.grad = None
        module.zero_grad(set_to_none=True)
        module(x).backward(upstream)

    found = {"forward": seconds(forward, device, calls=calls)}
    x.requires_grad_()
    found["both"] = seconds(both, device, calls=calls)
    x.requires_grad_(False)
    return found


def norms(options: Options, width: int) -> list[Row]:
    """Time each norm alone, in three forms."""
    device, rows = options.device, []
    dtype = options.pick(torch.bfloat16, torch.float32)
    x = torch.randn(options.pick(16_384, 8), width, device=device, dtype=dtype)
    for name, written in WRITTEN.items():
        forms = {"written out": written, "kernel": KERNELS[name], "compiled": written}
        for form, make in forms.items():
            module = make(width).to(device, dtype)
            if form == "compiled" and not options.tiny:
                module.compile(dynamic=False)
            for direction, time_s in clock(module, x, device, options.pick(50, 1)).items():
                row: Row = {"width": width, "norm": name, "form": form, "pass": direction}
                moved = 2 * x.numel() * x.element_size()
                row |= {"microseconds": rounded(time_s * 1e6)}
                rows.append(row | {"gigabytes": rounded(moved / time_s / 1e9)})
    return rows


def no_norm(_: TransformerConfig) -> nn.Module:
    """Make a part that leaves the stream as it is."""
    return nn.Identity()


def wide_norm(make: Callable[[int], nn.Module], config: TransformerConfig) -> nn.Module:
    """Make a norm over all features."""
    return make(config.d_model)


class Causal(nn.Module):
    """A block that hides the future.

    Args:
        width: of the stream.
        d_head: of a head.
        make: makes its norms; none if left out.
    """

    def __init__(
        self, width: int, d_head: int, make: Callable[[int], nn.Module] | None = None
    ) -> None:
        super().__init__()
        config = TransformerConfig(
            d_model=width, n_heads=width // d_head, d_ff=4 * width, norm_position="pre",
            activation="gelu", dropout=0.0, bias=False,
        )  # fmt: skip
        norm = no_norm if make is None else partial(wide_norm, make)
        self.block = Block(config, parts=Parts(norm=norm))

    def forward(self, x: Tensor) -> Tensor:
        """Carry the stream ``(B, T, D)`` through the block."""
        out: Tensor = self.block(x, causal=True)
        return out


def blocks(options: Options, width: int) -> list[Row]:
    """Time a block without norms and with each kind of them."""
    device, rows = options.device, []
    dtype = options.pick(torch.bfloat16, torch.float32)
    shape = options.pick((8, 2_048), (1, 4))
    x = torch.randn(*shape, width, device=device, dtype=dtype)
    d_head = options.pick(D_HEAD, 4)
    for form, norm_makers in {"written out": WRITTEN, "kernel": KERNELS}.items():
        makers = {"none": None} | norm_makers
        base: dict[str, float] = {}
        for name, make in makers.items():
            module = Causal(width, d_head, make).to(device, dtype)
            for direction, time_s in clock(module, x, device, options.pick(20, 1)).items():
                base.setdefault(direction, time_s)
                row: Row = {"width": width, "norm": name, "form": form, "pass": direction}
                row |= {"milliseconds": rounded(time_s * 1e3)}
                rows.append(row | {"share": rounded(1 - base[direction] / time_s)})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write two tables."""
    options = read_options("norm_costs", __doc__, arguments)
    widths = options.pick((1_024, 4_096), (8,))
    found = {"norms": [row for width in widths for row in norms(options, width)]}
    found["blocks"] = [row for width in widths for row in blocks(options, width)]
    metrics = {
        f"{row['norm']}_{row['width']}_{row['form']}_us".replace(" ", "_"): row["microseconds"]
        for row in rows_where(found["norms"], **{"pass": "forward"})
    }
    write_results(
        options, "random numbers", ABOUT, metrics, constant_adam(1), tables=found,
        more={"widths": widths},
    )  # fmt: skip


if __name__ == "__main__":
    main()
