"""One step of an attention layer whose query heads share keys and values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from bench.cases import Answers, Case
from bench.races import Competitor, Run
from transformer_lib import LayerCache, MultiHeadAttention, repeat_heads


class PytorchGroups(MultiHeadAttention):
    """Leaves the groups to PyTorch, which is told that heads are shared."""

    repeats = False

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Any = None,
        bias: Tensor | None = None,
        *,
        causal: bool = False,
    ) -> Tensor:
        """Attend; there is one query, which sees all keys."""
        if self.repeats:
            k, v = repeat_heads(k, self.n_heads), repeat_heads(v, self.n_heads)
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=not self.repeats)


class RepeatedHeads(PytorchGroups):
    """Gives each query head a copy of its keys and values, as is often done: GQA in one line."""

    repeats = True


@dataclass(frozen=True)
class GroupedQueries:
    """A layer of grouped-query attention that reads one new token.

    Args:
        n_heads: H, the number of query heads.
        n_kv_heads: G, the number of heads with keys and values of their own.
        d_head: Dk, the width of a head.
        n_keys: S, how many keys there are with that of the new token.
    """

    n_heads: int
    n_kv_heads: int
    d_head: int
    n_keys: int

    def layer(self, kind: type[MultiHeadAttention]) -> MultiHeadAttention:
        """Build a layer of this class; the weights are the same each time."""
        torch.manual_seed(0)
        return kind(self.n_heads * self.d_head, self.n_heads, self.n_kv_heads).eval()

    @cached_property
    def earlier(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens but the new one, ``(1, G, S - 1, Dk)`` each."""
        generator = torch.Generator().manual_seed(4)
        shape = (2, 1, self.n_kv_heads, self.n_keys - 1, self.d_head)
        k, v = torch.randn(shape, generator=generator)
        return k, v

    @cached_property
    def token(self) -> Tensor:
        """The vector of the new token, ``(1, 1, D)``."""
        generator = torch.Generator().manual_seed(5)
        return torch.randn(1, 1, self.n_heads * self.d_head, generator=generator)

    def step(self, kind: type[MultiHeadAttention]) -> Run:
        """Build a step, which writes the new token to the same place each time."""
        layer, cache = self.layer(kind), LayerCache(self.n_keys)
        cache.append(*self.earlier)

        @torch.no_grad()
        def run() -> Tensor:
            cache.length = self.n_keys - 1
            found: Tensor = layer(self.token, causal=True, cache=cache)
            return found

        return run

    def look_up(self, kind: type[MultiHeadAttention]) -> Run:
        """Build the part in which the heads attend, without the four projections around it."""
        layer, cache = self.layer(kind), LayerCache(self.n_keys)
        with torch.no_grad():
            cache.append(*self.earlier)
            k, v = cache.append(*layer.project_keys_values(self.token))
            q = layer.project_queries(self.token)

        @torch.no_grad()
        def run() -> Tensor:
            return layer.attend(q, k, v, causal=True)

        return run

    def case(self, *, whole_layer: bool) -> Case:
        """Let it run beside the same with repeated keys and values."""
        sizes: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        sizes |= {"batch_size": 1, "precision": "float32"}
        build = self.step if whole_layer else self.look_up
        competitors = [
            Competitor("ours", lambda: build(MultiHeadAttention)),
            Competitor("repeated keys", lambda: build(RepeatedHeads)),
            Competitor("enable_gqa", lambda: build(PytorchGroups)),
        ]
        what = "a whole layer" if whole_layer else "attention alone"
        title = f"Grouped-query attention, one token, {self.n_keys:,} keys: {what}"
        return Case(title, sizes, 1, competitors, _check)


def _check(answers: Answers) -> dict[str, Any]:
    """Compare the outputs with ours."""
    if "ours" not in answers:
        return {"agree": False}
    errors = {name: float((x - answers["ours"]).abs().max()) for name, x in answers.items()}
    return {"largest_error": errors, "agree": all(error < 1e-4 for error in errors.values())}
