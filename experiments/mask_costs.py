"""What does a mask cost? A stored table, a flag, a function, and nothing to hide.

    python -m experiments.mask_costs

One long row of tokens under three rules (causal, a window, texts that must not see each other), and
a batch of speeches of very different lengths. The same attention is computed from a stored table,
with PyTorch's flag, by FlexAttention with the rule as a function, and text by text without a mask.
Run it alone: it measures times.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from experiments.attention_costs import Compute, measure
from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    read_options,
    rows_where,
    write_results,
)
from transformer_book import datasets
from transformer_lib import padding_mask
from transformer_lib.layers.fast.padding_free import PaddingFreeBatch, attend_by_row

CHAPTER = "05d_without_a_mask"
N_HEADS, D_HEAD, WINDOW = 16, 64, 256
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ABOUT = {
    "Task": f"""Attention with {N_HEADS} heads of {D_HEAD} features. `causal`, `window` (the last
        {WINDOW} keys) and `packing` (causal, speeches end to end that must not see each other):
        one row of `length` tokens. `padding`: a batch of 64 speeches, a token a letter, not
        causal; `length` is that of the longest.""",
    "Choices": """`stored` gives a boolean table to PyTorch's fused attention, `flag` is its
        `is_causal`, `none` attention to all keys without a mask: on this GPU a profiler shows
        cuDNN's kernel for all three. `function` is FlexAttention, compiled, with a block mask
        that was made before; `end to end` gives all texts in one long row to a variable-length
        kernel, without a mask. Numbers have 16 bits (bfloat16). A time is the median of five
        runs after two that do not count. Memory is the most that was allocated above what
        inputs and masks take. `forward` is without, `both` with gradients and the backward
        pass.""",
    "How to read the table": """Compare the kinds within a task. Tables and block masks are made
        before the clock starts.""",
    "Intended use": "Teaching: which way to say a rule lets a kernel skip work.",
    "Limits": """One GPU, one version of PyTorch, one size. Short rows are dominated by what it
        takes to start a kernel.""",
}


def stored(mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with a table of the pairs that may see each other."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def flag(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with the causal flag."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_row(batch: PaddingFreeBatch, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend text by text, all in one long row."""
    return attend_by_row(q, k, v, batch, causal=causal)


def rules(owner: Tensor) -> dict[str, Rule]:
    """Return the three rules as functions of text, head, query and key."""
    return {
        "causal": lambda b, h, i, j: j <= i,
        "window": lambda b, h, i, j: (j <= i) & (i - j < WINDOW),
        "packing": lambda b, h, i, j: (j <= i) & (owner[i] == owner[j]),
    }


def ways(task: str, rule: Rule, owner: Tensor, device: str) -> dict[str, Compute]:
    """Return the functions that compute one task of a long row, by name."""
    length = len(owner)
    places = torch.arange(length, device=device)
    table = rule(places, places, places[:, None], places)
    blocks = create_block_mask(rule, None, None, length, length, device=device)
    flex = torch.compile(flex_attention) if device.startswith("cuda") else flex_attention
    found: dict[str, Compute] = {"stored": partial(stored, table)}
    if task == "causal":
        found |= {"none": F.scaled_dot_product_attention, "flag": flag}
    found["function"] = partial(flex, block_mask=blocks)
    if task == "packing":
        found["end to end"] = partial(by_row, PaddingFreeBatch(owner[None]), True)
    return found


def owners_of(lengths: Sequence[int], length: int, device: str) -> Tensor:
    """Say to which text each token of a long row belongs; the last text may be cut off."""
    counts = torch.tensor(lengths, device=device)
    return torch.arange(len(counts), device=device).repeat_interleave(counts)[:length]


def inputs_of(batch: int, length: int, device: str) -> list[Tensor]:
    """Draw queries, keys and values."""
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    shape = (batch, N_HEADS, length, D_HEAD)
    return [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]


def padding(lengths: Sequence[int], device: str) -> dict[str, tuple[Compute, list[Tensor]]]:
    """Return two ways to read a batch of texts, with what each is given."""
    counts = torch.tensor(lengths, device=device)
    real = padding_mask(counts, max(lengths))  # (B, 1, 1, T)
    owners = torch.arange(len(counts), device=device)[:, None].where(real[:, 0, 0], -1)
    return {
        "stored": (partial(stored, real), inputs_of(len(lengths), max(lengths), device)),
        "end to end": (
            partial(by_row, PaddingFreeBatch(owners), False),
            inputs_of(1, sum(lengths), device),
        ),
    }


def run(options: Options) -> list[Row]:
    """Measure all tasks."""
    device = options.device
    speeches = datasets.shakespeare().train.split("\n\n")
    lengths = [len(speech) for speech in speeches[: options.pick(400, 40)]]
    owner = owners_of(lengths, options.pick(16_384, 256), device)
    how = (device, options.pick(5, 1), 2 if device.startswith("cuda") else 1)
    rows: list[Row] = []
    for task, rule in rules(owner).items():
        inputs = inputs_of(1, len(owner), device)
        for kind, compute in ways(task, rule, owner, device).items():
            rows += [{"task": task} | row for row in measure(kind, compute, inputs, *how)]
    batch = padding(lengths[: options.pick(64, 4)], device)
    for kind, (compute, inputs) in batch.items():
        found = measure(kind, compute, inputs, *how)
        longest = batch["stored"][1][0].shape[-2]
        rows += [{"task": "padding"} | row | {"length": longest} for row in found]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write a table."""
    options = read_options("mask_costs", __doc__, arguments)
    rows = run(options)
    metrics = {
        f"{row['task']}_{row['kind']}_ms".replace(" ", "_"): row["milliseconds"]
        for row in rows_where(rows, **{"pass": "forward"})
    }
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, constant_adam(1), tables={"results": rows}
    )


if __name__ == "__main__":
    main()
