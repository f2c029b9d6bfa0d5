"""Generation, done by several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from bench.cases import Answers, Case, sizes_of
from bench.peers import PlainGPT, hugging_face
from bench.races import Competitor, Run
from transformer_lib import CausalLM, CompiledDecoder, KeyValueCache, TransformerConfig, generate

NO_CACHE = "ours, no cache"


@dataclass(frozen=True)
class Generation:
    """Greedy generation, from one prompt to a fixed number of new tokens.

    Args:
        config: of the model.
        batch_size: B, the number of prompts.
        prompt_length: the tokens of each.
        new_tokens: how many are generated after them.
        device: where.
        dtype: of all weights.
    """

    config: TransformerConfig
    batch_size: int
    prompt_length: int
    new_tokens: int
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @cached_property
    def prompt(self) -> Tensor:
        """Random ids, ``(B, T)``."""
        generator = torch.Generator().manual_seed(2)
        shape = (self.batch_size, self.prompt_length)
        return torch.randint(0, self.config.vocab_size, shape, generator=generator).to(self.device)

    @cached_property
    def model(self) -> CausalLM:
        """Our model."""
        return varied_model(self.config, self.device, self.dtype)

    @cached_property
    def peer(self) -> Any:
        """The same model in `transformers`."""
        return hugging_face(self.model).to(self.device, self.dtype).eval()

    @cached_property
    def plain_peer(self) -> PlainGPT:
        """The same model without options."""
        return PlainGPT(self.model).to(self.device, self.dtype).eval()

    def ours(self, *, use_cache: bool = True) -> Run:
        """Build our `generate`, which on a GPU records its step."""
        model = self.model
        options: dict[str, Any] = {} if use_cache else {"use_cache": False}
        return lambda: generate(model, self.prompt, max_new_tokens=self.new_tokens, **options)

    def not_recorded(self) -> Run:
        """Build our `generate` with a cache of the caller's, which is used plainly everywhere."""
        model, n_layers = self.model, self.config.n_layers
        room = self.prompt_length + self.new_tokens

        def run() -> Tensor:
            cache = KeyValueCache(n_layers, room)
            return generate(model, self.prompt, max_new_tokens=self.new_tokens, cache=cache)

        return run

    def compiled(self) -> Run:
        """Build our `generate` with a static cache and a compiled step."""
        model, room = self.model, self.prompt_length + self.new_tokens
        decoder = lru_cache(lambda: CompiledDecoder(model, max_len=room))  # made in the first call
        return lambda: generate(decoder(), self.prompt, max_new_tokens=self.new_tokens)

    def plain(self, *, use_cache: bool) -> Run:
        """Build the loop of a plain GPT."""
        model = self.plain_peer
        return lambda: model.generate(self.prompt, self.new_tokens, use_cache=use_cache)

    def transformers(self, **options: Any) -> Run:
        """Build the `generate` of `transformers`."""
        model, mask = self.peer, torch.ones_like(self.prompt)
        options |= {"attention_mask": mask, "do_sample": False, "max_new_tokens": self.new_tokens}
        return lambda: model.generate(self.prompt, **options)

    def case(self, title: str, competitors: Iterable[Competitor]) -> Case:
        """Put these competitors into a case."""
        sizes = sizes_of(self.config) | {
            "batch_size": self.batch_size,
            "prompt_length": self.prompt_length,
            "new_tokens": self.new_tokens,
            "precision": str(self.dtype).removeprefix("torch."),
        }
        amount = self.batch_size * self.new_tokens
        return Case(title, sizes, amount, list(competitors), self._check)

    def _check(self, answers: Answers) -> dict[str, Any]:
        """Compare the tokens with those of our plainest way.

        In float32 they must be equal. In shorter numbers two tokens are often almost equally good,
        and from there on the texts differ, so that nothing can be said: ``compared`` is false.
        """
        reference = answers.get(NO_CACHE, answers.get("ours"))
        if reference is None:
            return {"agree": False}
        start = self.prompt_length
        compared = self.dtype == torch.float32
        checks: dict[str, Any] = {
            "different_tokens": len(set(reference[:, start:].flatten().tolist()))
        }
        for name, ids in answers.items():
            if compared and not torch.equal(ids, reference):
                checks[f"gap of {name}"] = self._gap(ids, reference)
        return checks | same_tokens(answers, reference, start, compared=compared)

    @torch.no_grad()
    def _gap(self, ids: Tensor, reference: Tensor) -> float:
        """How far apart the scores of two tokens are where two texts first part."""
        row, place = (ids != reference).nonzero().tolist()[0]
        scores = self.model(reference[row : row + 1, :place])[0, -1].float()
        return float((scores[reference[row, place]] - scores[ids[row, place]]).abs())


def varied_model(config: TransformerConfig, device: str, dtype: torch.dtype) -> CausalLM:
    """Build a model whose texts vary: its matrices are four times as large as a fresh one's.

    A fresh one repeats a token for ever, and it would not be noticed if it forgot the others.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = CausalLM(config)
    with torch.no_grad():
        for parameter in model.decoder.stack.blocks.parameters():
            parameter.mul_(4 if parameter.ndim == 2 else 1)
    return model.to(dtype).eval()


def same_tokens(
    answers: Answers, reference: Tensor, start: int, *, compared: bool
) -> dict[str, Any]:
    """Say which share of all tokens from a place on is that of a reference.

    Args:
        answers: ids, ``(B, L)``.
        reference: the same.
        start: where the new tokens begin.
        compared: whether they have to be equal.

    Returns:
        The shares, by name, and whether the answers ``agree``.
    """
    shares = {
        name: float((ids == reference)[:, start:].float().mean()) for name, ids in answers.items()
    }
    agree = not compared or all(share == 1 for share in shares.values())
    return {"same_tokens": shares, "compared": compared, "agree": agree}
