"""What does attention cost? Time and memory of six ways to compute it, against the length.

    python -m experiments.attention_costs

One sequence, eight heads of 64 features. Plain attention keeps a table of all pairs; a fused kernel
and our own loop over tiles do not; a window and linear attention compute something else. Beside
them the linear layers of a block, and a recurrent layer of the same width. Then one step of
generation that reads a cache, with many heads for keys and values and with few. Run it alone:
it measures times.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    read_options,
    rounded,
    rows_where,
    wait,
    write_results,
)
from transformer_lib import attention, causal_mask, fused_attention

CHAPTER = "17_cost"
N_HEADS, D_HEAD = 8, 64
D_MODEL = N_HEADS * D_HEAD
WINDOW, CHUNK = 256, 128  # of the window, and of linear attention
BACKENDS = {
    "fused, math": SDPBackend.MATH,
    "fused, efficient": SDPBackend.EFFICIENT_ATTENTION,
    "fused, flash": SDPBackend.FLASH_ATTENTION,
}
# The longest sequence each is measured with: beyond it time or memory would run out.
LONGEST = {
    "plain": 32_768,
    "tiled": 16_384,
    "fused": 131_072,
    "fused, math": 16_384,
    "fused, efficient": 32_768,
    "fused, flash": 32_768,
    "window": 131_072,
    "linear": 131_072,
    "linear layers": 131_072,
    "recurrent": 16_384,
}
Compute = Callable[..., Tensor]
ABOUT = {
    "Task": f"""Causal attention of one sequence, {N_HEADS} heads of {D_HEAD} features, so width
        {D_MODEL}. `plain` keeps scores and weights; `fused` is PyTorch's kernel as the library
        calls it, the three kinds after a comma are kernels that were demanded by name; `tiled` is a
        loop of Python over tiles with the running softmax; `window` sees {WINDOW} keys, `linear`
        replaces the softmax by a product of features (elu + 1), in chunks of {CHUNK}; `linear
        layers` are the four projections and the feed-forward network of a block; `recurrent` is one
        layer of PyTorch's RNN.""",
    "Choices": """On the GPU numbers have 16 bits (bfloat16; the recurrent layer 32), on the CPU 32
        bits and one thread. A time is the median of several runs after two that do not count; they
        include what Python takes to start the kernels. Memory is the most that was allocated above
        what inputs and weights take. `forward` is without, `both` with gradients and the backward
        pass.""",
    "How to read the tables": """`results.csv`: an empty time means that memory ran out.
        `decode.csv`: one new token for each of `batch` texts, 32 query heads of 128 features, and a
        cache of `length` keys and values for each of `kv_heads` heads, 16 bits.""",
    "Intended use": "Teaching: what grows with the square of the length, and what costs.",
    "Limits": """One GPU, one CPU, one version of PyTorch, one sequence at a time: with short
        sequences a GPU mostly waits for Python.""",
}


def tiled(q: Tensor, k: Tensor, v: Tensor, block: int = 1_024) -> Tensor:
    """Causal attention tile by tile: a running maximum, a running sum, a running output."""
    q = q * q.shape[-1] ** -0.5
    done = []
    for start in range(0, q.shape[-2], block):
        rows = q[..., start : start + block, :]
        end = start + rows.shape[-2]
        top = torch.full_like(rows[..., :1], -torch.inf, dtype=torch.float32)
        total = torch.zeros_like(top)
        found = torch.zeros_like(rows, dtype=torch.float32)
        for first in range(0, end, block):
            keys, values = k[..., first : first + block, :], v[..., first : first + block, :]
            scores = (rows @ keys.mT).float()
            if first == start:  # the only tile that the diagonal crosses
                allowed = causal_mask(rows.shape[-2], device=q.device)
                scores = scores.masked_fill(~allowed, -torch.inf)
            new_top = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            weights = (scores - new_top).exp()
            shrink = (top - new_top).exp()
            total = total * shrink + weights.sum(dim=-1, keepdim=True)
            found = found * shrink + (weights.to(v.dtype) @ values).float()
            top = new_top
        done.append((found / total).to(q.dtype))
    return torch.cat(done, dim=-2)


def windowed(q: Tensor, k: Tensor, v: Tensor, window: int = WINDOW) -> Tensor:
    """Attention to the last ``window`` keys, blocks of queries against two blocks of keys."""
    length = q.shape[-2]
    window = min(window, length)
    # The fused kernels want four dimensions: blocks take the place of heads, (BH, n, window, Dk).
    blocks = [x.flatten(0, 1).unflatten(-2, (-1, window)) for x in (q, k, v)]
    both = [torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[..., :-1, :, :], x], -2) for x in blocks[1:]]
    rows = torch.arange(window, device=q.device)[:, None] + window
    columns = torch.arange(2 * window, device=q.device)
    near = (columns <= rows) & (columns > rows - window)
    n = torch.arange(blocks[0].shape[-3], device=q.device)[:, None, None]
    mask = near & ((n > 0) | (columns >= window))  # nothing stands before the first block
    keys, values = both
    found = F.scaled_dot_product_attention(blocks[0], keys, values, attn_mask=mask)
    whole: Tensor = found.flatten(-3, -2).unflatten(0, q.shape[:2])
    return whole


def linear(q: Tensor, k: Tensor, v: Tensor, chunk: int = CHUNK) -> Tensor:
    """Causal linear attention: inside a chunk by pairs, across chunks by a running sum."""
    chunk = min(chunk, q.shape[-2])
    q, k, v = ((F.elu(q) + 1), (F.elu(k) + 1), v)
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # one more column: the sum of weights
    q, k, v = (x.unflatten(-2, (-1, chunk)) for x in (q, k, v))  # (B, H, n, chunk, .)
    state = (k.mT @ v).float().cumsum(dim=-3)  # (B, H, n, Dk, Dk + 1): up to each chunk's end
    before = F.pad(state, (0, 0, 0, 0, 1, 0))[..., :-1, :, :].to(v.dtype)
    found = q @ before + (q @ k.mT).tril() @ v
    return (found[..., :-1] / found[..., -1:]).flatten(-3, -2)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention with a table of all pairs, as the library's readable path has it."""
    return attention(q, k, v, causal=True)[0]


def _with_backend(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def ways(device: str) -> dict[str, Compute]:
    """Return the functions to be measured by name; they take queries, keys and values."""
    found: dict[str, Compute] = {
        "plain": plain,
        "tiled": tiled,
        "fused": partial(fused_attention, causal=True),
        "window": windowed,
        "linear": linear,
    }
    if device.startswith("cuda"):
        found |= {name: partial(_with_backend, backend) for name, backend in BACKENDS.items()}
    return found


class LinearLayers(nn.Module):
    """What a block computes besides attention: four projections and the feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList([nn.Linear(D_MODEL, D_MODEL) for _ in range(4)])
        self.up, self.down = nn.Linear(D_MODEL, 4 * D_MODEL), nn.Linear(4 * D_MODEL, D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        """Return something of the shape of ``x``."""
        x = sum((layer(x) for layer in self.projections), x)
        mixed: Tensor = x + self.down(F.gelu(self.up(x)))
        return mixed


class FirstOutput(nn.RNN):
    """A recurrent layer that returns its outputs only."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return the outputs for all places."""
        outputs: Tensor = super().forward(x)[0]
        return outputs


def clock(work: Callable[[], Any], device: str, repeats: int) -> float | str:
    """Return the median time of some work in milliseconds; nothing if memory runs out."""
    times = []
    try:
        for _ in range(2 + repeats):
            wait(device)
            started = time.perf_counter()
            work()
            wait(device)
            times.append(1_000 * (time.perf_counter() - started))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return ""
    return rounded(median(times[2:]), 4)


def most_memory(work: Callable[[], Any], device: str) -> float | str:
    """Return how many MiB some work allocates at most; nothing if unknown or more than there is."""
    if not device.startswith("cuda"):
        return ""
    wait(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        work()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return ""
    return rounded((torch.cuda.max_memory_allocated() - before) / 2**20)


def measure(
    name: str, compute: Compute, inputs: Sequence[Tensor], device: str, repeats: int, passes: int
) -> list[Row]:
    """Measure one way at one length.

    Args:
        name: of the way.
        compute: the way.
        inputs: what it is given; the length is their last dimension but one.
        device: where they are.
        repeats: how often it is timed.
        passes: 1 for the forward pass, 2 for the backward pass too.

    Returns:
        One row for each pass.
    """

    def forward() -> None:
        with torch.no_grad():
            compute(*inputs)

    def both() -> None:
        for tensor in inputs:
            tensor.grad = None
            tensor.requires_grad_()
        compute(*inputs).sum().backward()

    rows = []
    for direction, work in [("forward", forward), ("both", both)][:passes]:
        row: Row = {"device": "gpu" if device.startswith("cuda") else "cpu", "kind": name}
        row |= {"length": inputs[0].shape[-2], "pass": direction}
        row["milliseconds"] = clock(work, device, repeats)
        row["mebibytes"] = most_memory(work, device) if row["milliseconds"] != "" else ""
        rows.append(row)
        for tensor in inputs:
            tensor.grad = None
    return rows


def compare(device: str, lengths: Sequence[int], repeats: int, passes: int) -> list[Row]:
    """Measure all ways at all lengths on one device."""
    on_gpu = device.startswith("cuda")
    dtype = torch.bfloat16 if on_gpu else torch.float32
    layers = LinearLayers().to(device, dtype)
    recurrent = FirstOutput(D_MODEL, D_MODEL, batch_first=True).to(device)
    rows = []
    for length in lengths:
        shape = (1, N_HEADS, length, D_HEAD)
        inputs = [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]
        for name, compute in ways(device).items():
            if length <= LONGEST[name]:
                rows += measure(name, compute, inputs, device, repeats, passes)
        stream = torch.randn(1, length, D_MODEL, device=device)
        for name, layer, x in (
            ("linear layers", layers, stream.to(dtype)),
            ("recurrent", recurrent, stream),
        ):
            if length <= LONGEST[name]:
                rows += measure(name, layer, [x], device, repeats, passes)
    return rows


def decode(
    device: str, batch: int, lengths: Sequence[int], kv_heads: Sequence[int], repeats: int
) -> list[Row]:
    """Measure one step of generation: one query for each head, a cache of many keys."""
    n_heads, d_head = 32, 128
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    rows = []
    for length in lengths:
        for n in kv_heads:
            # The query heads of a group are rows that look at the same keys.
            q = torch.randn(batch, n, n_heads // n, d_head, device=device, dtype=dtype)
            k, v = torch.randn(2, batch, n, length, d_head, device=device, dtype=dtype)
            work = partial(F.scaled_dot_product_attention, q, k, v)
            rows.append(
                {
                    "kv_heads": n,
                    "batch": batch,
                    "length": length,
                    "milliseconds": clock(work, device, repeats),
                    "mebibytes": (k.nbytes + v.nbytes) / 2**20,
                }
            )
    return rows


def run(options: Options) -> tuple[list[Row], list[Row]]:
    """Measure on the device, on one core of the CPU, and with a cache."""
    torch.set_num_threads(1)
    repeats = options.pick(5, 1)
    on_cpu = options.pick([128, 256, 512, 1_024, 2_048], [128, 256])
    rows = compare("cpu", on_cpu, min(repeats, 3), passes=1)
    if options.device.startswith("cuda"):
        lengths = options.pick([2**n for n in range(8, 18)], [256, 512])
        rows = compare(options.device, lengths, repeats, passes=2) + rows
    lengths = options.pick([1_024, 4_096, 16_384], [16, 32])
    heads = options.pick([32, 16, 8, 4, 2, 1], [32, 8, 1])
    if options.tiny or options.device.startswith("cuda"):
        return rows, decode(options.device, options.pick(16, 2), lengths, heads, 4 * repeats)
    return rows, decode("cpu", 1, [1_024], heads, repeats)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write two tables."""
    options = read_options("attention_costs", __doc__, arguments)
    rows, steps = run(options)
    longest = max(row["length"] for row in rows if row["kind"] == "tiled")
    metrics = {
        f"{kind}_{direction}_{longest}_ms": rows_where(
            rows, kind=kind, length=longest, **{"pass": direction}
        )[0]["milliseconds"]
        for direction in dict.fromkeys(row["pass"] for row in rows)
        for kind in ("plain", "tiled", "fused", "window", "linear")
    }
    write_results(
        options, "random numbers", ABOUT, metrics, constant_adam(1),
        tables={"results": rows, "decode": steps},
        more={"n_heads": N_HEADS, "d_head": D_HEAD, "window": WINDOW, "chunk": CHUNK},
    )  # fmt: skip


if __name__ == "__main__":
    main()
