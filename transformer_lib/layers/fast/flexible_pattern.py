"""Flexible patterns (FlexAttention): windows, prefixes and documents without a stored mask.

A boolean mask has an entry for each pair of tokens. :class:`FlexPattern` has a rule in its place:
a few comparisons, which PyTorch compiles into a kernel for the GPU.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import (
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
    or_masks,
)

from transformer_lib.core.checks import check_whole
from transformer_lib.core.shapes import expect_shape
from transformer_lib.layers.attention import AttentionPattern
from transformer_lib.layers.fused_attention import fused_attention

# May a query attend to a key? Asked with the numbers of row, head, query and key.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_LETTERS = {"prefix": "B", "documents": "B T"}


class FlexPattern(AttentionPattern):
    """Which tokens attend to which, by a rule: it goes where a mask goes, for whole sequences.

    A token attends to what window, prefix and documents all allow. Layers that hide the future, or
    what is outside a window of their own, hide it here too: without an argument, they alone do.

    On a GPU with Triton the rule becomes part of a kernel, which leaves out blocks of 128 x 128
    scores that it does not need, and no mask is stored. Elsewhere, for float64 and for heads
    narrower than 16, there is no such kernel with a backward pass. Then a boolean mask is made of
    the rule: the same answer, without the gain.

    Args:
        window: how many positions are seen to one side, the query's own included.
        prefix: how many tokens at the start of each row may be seen by those before them, too,
            ``(B,)``. The rest is seen causally, in an encoder too.
        documents: for each token the number of its own document, ``(B, T)``: no other is
            seen. Padding is a document of its own.

    Raises:
        TypeError: if lengths or documents are not whole numbers.
        ValueError: if a shape or a number is wrong.

    Example:
        >>> documents = torch.tensor([[0, 0, 0, 0, 1]])
        >>> pattern = FlexPattern(window=3, documents=documents)
        >>> pattern.as_mask(5, causal=True, device="cpu")[0, 0].int()
        tensor([[1, 0, 0, 0, 0],
                [1, 1, 0, 0, 0],
                [1, 1, 1, 0, 0],
                [0, 1, 1, 1, 0],
                [0, 0, 0, 0, 1]], dtype=torch.int32)

    Packed rows have a document wherever positions start anew:

        >>> from transformer_lib import CausalLM, TransformerConfig, pack
        >>> model = CausalLM(
        ...     TransformerConfig(vocab_size=10, d_model=8, n_heads=2)
        ... )
        >>> batch = pack([[5, 6, 7], [8, 9]], length=4)
        >>> positions = batch["positions"]
        >>> pattern = FlexPattern(documents=(positions == 0).cumsum(1))
        >>> model(batch["ids"], pattern, positions=positions).shape
        torch.Size([1, 4, 10])
    """

    def __init__(
        self,
        *,
        window: int | None = None,
        prefix: Int[Tensor, " B"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
    ) -> None:
        if window is not None:
            check_whole("window", window)
        given = {"prefix": prefix, "documents": documents}
        self.window = window
        self.numbers = {name: each for name, each in given.items() if each is not None}
        sizes: dict[str, int] = {}
        for name, each in self.numbers.items():
            if each.is_floating_point() or each.dtype == torch.bool:
                raise TypeError(f"{name} has dtype {each.dtype}; expected whole numbers")
            expect_shape(name, each, _LETTERS[name], sizes)
        shortest, longest = (0, 0) if prefix is None else (int(x) for x in prefix.aminmax())
        if shortest < 0:
            raise ValueError(f"prefix has {shortest}; expected lengths of at least 0")
        self._n_rows = sizes.get("B", 1)  # one stands for all if they do not differ
        self._longest = longest
        self._narrower: dict[int, FlexPattern] = {}
        self._made: dict[tuple[object, ...], BlockMask | Tensor] = {}

    def within(self, window: int | None) -> "FlexPattern":
        """Hide also what is outside the window of a layer; ``None`` hides nothing."""
        if window is None or (self.window is not None and self.window <= window):
            return self
        if window not in self._narrower:
            self._narrower[window] = FlexPattern(window=window, **self.numbers)
        return self._narrower[window]

    def attend(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B G T Dk"],
        v: Float[Tensor, "B G T Dk"],
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> Float[Tensor, "B H T Dk"]:
        """Let tokens attend by the rule.

        Args:
            q: queries, ``(B, H, T, Dk)``.
            k: keys of as many tokens, ``(B, G, T, Dk)``.
            v: values, ``(B, G, T, Dk)``.
            bias: refused.
            causal: whether to hide the future, except for the prefix.
            scale: what the scores are multiplied by; ``1/sqrt(Dk)`` if left out.

        Returns:
            What each token found, ``(B, H, T, Dk)``.

        Raises:
            ValueError: if there is a bias, or the pattern is one of another batch.
        """
        self._check(q, k, bias)
        has_kernel = _has_kernel(q)
        key = (has_kernel, q.shape[2], causal, q.device)
        if key not in self._made:  # the first layer makes it for all
            make = self._blocks if has_kernel else self.as_mask
            self._made[key] = make(q.shape[2], causal=causal, device=q.device)
        made, shared = self._made[key], k.shape[1] < q.shape[1]
        if isinstance(made, Tensor):
            return fused_attention(q, k, v, made, scale=scale, enable_gqa=shared)
        return _kernel()(q, k, v, block_mask=made, scale=scale, enable_gqa=shared)

    def as_mask(
        self, length: int, *, causal: bool, device: torch.device | str
    ) -> Bool[Tensor, "b 1 T T"]:
        """Write the rule out as a boolean mask, ``(B, 1, T, T)``; B is 1 if rows do not differ."""
        rows, places = (torch.arange(n, device=device) for n in (self._n_rows, length))
        row = rows[:, None, None, None]
        seen = self._rule(causal)(row, torch.zeros_like(row), places[:, None], places)
        return seen.expand(self._n_rows, 1, length, length)

    def _blocks(self, length: int, *, causal: bool, device: torch.device) -> BlockMask:
        """Find the blocks that the kernel may leave out; compiled, no table of pairs is stored."""
        find, rule = _finder(), self._rule(causal)
        return find(rule, self._n_rows, None, length, length, device=device)

    def _rule(self, causal: bool) -> Rule:
        rules: list[Rule] = []
        if "prefix" in self.numbers:
            rules.append(or_masks(_not_later(), _in_prefix(self.numbers["prefix"])))
        elif causal:
            rules.append(_not_later())
        if self.window is not None:
            rules.append(_nearer_than(self.window))
        if "documents" in self.numbers:
            rules.append(_in_one_document(self.numbers["documents"]))
        joined: Rule = and_masks(*rules)
        return joined

    def _check(self, q: Tensor, k: Tensor, bias: Tensor | None) -> None:
        if bias is not None:
            raise ValueError("a FlexPattern adds no bias to scores (ALiBi, T5); give a mask")
        batch, _, length, _ = q.shape
        if k.shape[2] != length:
            found = f"{length} queries and {k.shape[2]} keys"
            raise ValueError(f"a FlexPattern is for whole sequences; got {found}")
        for name, each in self.numbers.items():
            expect_shape(name, each, _LETTERS[name], {"B": batch, "T": length})
            if each.device != q.device:
                raise ValueError(
                    f"{name} is on {each.device}; expected the device of q, {q.device}"
                )
        if self._longest > length:
            raise ValueError(f"prefix has {self._longest}; expected at most T={length}")


def _not_later() -> Rule:
    return lambda row, head, query, key: key <= query


def _nearer_than(window: int) -> Rule:
    return lambda row, head, query, key: (query - key).abs() < window


def _in_prefix(lengths: Tensor) -> Rule:
    return lambda row, head, query, key: key < lengths[row]


def _in_one_document(documents: Tensor) -> Rule:
    return lambda row, head, query, key: documents[row, query] == documents[row, key]


def _has_kernel(q: Tensor) -> bool:
    """Whether PyTorch compiles a rule for such queries, with a backward pass."""
    fits = q.element_size() <= 4 and q.shape[-1] >= 16
    return q.device.type == "cuda" and fits and find_spec("triton") is not None


# Compiled once, for all patterns; whoever has no GPU never waits for the compiler.


@cache
def _kernel() -> Callable[..., Tensor]:
    return torch.compile(flex_attention)


@cache
def _finder() -> Callable[..., BlockMask]:
    return torch.compile(create_block_mask)
