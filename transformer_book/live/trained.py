"""The trained models of the live figures, with the weights that a reader's browser has."""

import math
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transformer_book.live.one_byte import RESULTS, pack, unpack
from transformer_lib import (
    Block,
    CausalLM,
    MultiHeadAttention,
    Tokenizer,
    attention_maps,
    load_model,
)


@cache
def browser_model(name: str) -> tuple[nn.Module, Tokenizer]:
    """Load a trained model with one byte a number, in float64.

    Args:
        name: its folder in the results.

    Returns:
        The model, in evaluation mode, and its tokenizer.

    Example:
        >>> model, tokenizer = browser_model("shakespeare")
        >>> next(model.parameters()).dtype, len(tokenizer.tokens)
        (torch.float64, 259)
    """
    folder = RESULTS / name
    model = load_model(folder)
    tensors = unpack(*pack(folder)).items()
    model.load_state_dict({key: torch.tensor(one) for key, one in tensors}, strict=False)
    return model.double().eval(), Tokenizer.load(folder / "tokenizer.json")


class Line(NamedTuple):
    """What the Shakespeare model makes of a line of T letters, with L blocks of width D.

    Args:
        stream: after the embedding and after each sublayer, ``(2L + 1, T, D)``.
        writes: what each sublayer adds, ``(2L, T, D)``.
        weights: of attention, ``(L, H, T, T)``.
        logits: the stream read as an answer, ``(2L + 1, T, V)``.
        heads: queries, keys and values of each block, ``(H, T, Dk)`` each.

    Example:
        >>> read_line((3, 4, 5)).logits.shape[:2]
        torch.Size([9, 3])
    """

    stream: Tensor
    writes: Tensor
    weights: Tensor
    logits: Tensor
    heads: list[tuple[Tensor, Tensor, Tensor]]


@lru_cache(maxsize=64)
@torch.no_grad()
def read_line(ids: tuple[int, ...]) -> Line:
    """Let the Shakespeare model read a line.

    Args:
        ids: the letters' numbers.

    Returns:
        The stream, the writes, the attention weights, and the answers on the way.

    Example:
        >>> line = read_line((3, 4, 5))
        >>> line.stream.shape, line.writes.shape
        (torch.Size([9, 3, 256]), torch.Size([8, 3, 256]))
    """
    model, _ = browser_model("shakespeare")
    assert isinstance(model, CausalLM)
    outputs: list[Tensor] = []

    def keep(_module: object, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output)[0])

    heads: list[tuple[Tensor, Tensor, Tensor]] = []

    def split(part: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        assert isinstance(part, MultiHeadAttention)
        q, k, v = part.project(inputs[0], inputs[0], named["angles"])
        heads.append((q[0], k[0], v[0]))

    stack = model.decoder.stack
    parts: list[nn.Module] = [model.decoder.embedding]
    hooks = []
    for block in stack.blocks:
        assert isinstance(block, Block)
        parts += [block.attention, block.feed_forward]
        hooks.append(block.attention.register_forward_pre_hook(split, with_kwargs=True))
    hooks += [part.register_forward_hook(keep) for part in parts]
    batch = torch.tensor([ids])
    answer = model(batch)[0]
    for hook in hooks:
        hook.remove()
    stream = torch.stack(outputs).cumsum(dim=0)
    assert stack.final_norm is not None
    logits = model.output(stack.final_norm(stream))
    torch.testing.assert_close(logits[-1], answer)  # the parts add up to what the library does
    weights = torch.stack([each[0] for each in attention_maps(model, batch).values()])
    return Line(stream, torch.stack(outputs[1:]), weights, logits, heads)


LEAST = 0.005  # weights that are shown as 0.00 are no links


def strongest(row: list[float]) -> list[list[float]]:
    """Find the three strongest weights; those that look alike come in the order of the text.

    Args:
        row: the weights of one query.

    Returns:
        Places, each with its weight.

    Example:
        >>> strongest([0.1, 0.6, 0.004, 0.296])
        [[1, 0.6], [3, 0.296], [0, 0.1]]
    """
    strong = [[at, weight] for at, weight in enumerate(row) if weight >= LEAST]
    return sorted(strong, key=lambda link: (-math.floor(100 * link[1] + 0.5), link[0]))[:3]
