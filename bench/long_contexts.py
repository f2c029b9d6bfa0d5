"""Long contexts: a step behind a long text, the least that it could take, and a long prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from bench.cases import Answers, Case, sizes_of
from bench.generation import same_tokens, varied_model
from bench.peers import hugging_face
from bench.races import Competitor, Difference, Run
from transformer_lib import CausalLM, CompiledDecoder, TransformerConfig, generate, quantize
from transformer_lib.layers.fast.quantized_kernels import use_int_kernels
from transformer_lib.models.quantization import choose_layers, make_room

GROUP = 64  # weights that share a scale, where they have 8 or 4 bits


@dataclass(frozen=True)
class Models:
    """A language model, ours and in `transformers`. Several cases may share it.

    Args:
        config: of the model.
        device: where.
        dtype: of weights and cache.
        bits: of the weights in blocks, if they are quantised.
    """

    config: TransformerConfig
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    bits: int | None = None

    @cached_property
    def ours(self) -> CausalLM:
        """Our model."""
        return self.make()

    @cached_property
    def peer(self) -> Any:
        """The same model in `transformers`."""
        return self.as_peer(self.ours)

    def make(self) -> CausalLM:
        """Build our model; its weights are the same each time."""
        model = varied_model(self.config, self.device, self.dtype)
        if self.bits is not None:
            quantize(model, self.bits, GROUP)
            use_int_kernels(model)
        return model

    @cached_property
    def bytes_read(self) -> int:
        """What a step must read of the weights, as they are stored."""
        model = varied_model(self.config, "meta", self.dtype)
        if self.bits is not None:
            make_room(model, choose_layers(model, self.bits, GROUP))
        return sum(tensor.nbytes for tensor in self._read_by_step(model))

    @cached_property
    def weights_read(self) -> int:
        """How many weights a step must read."""
        model = varied_model(self.config, "meta", self.dtype)
        return sum(tensor.numel() for tensor in self._read_by_step(model))

    def _read_by_step(self, model: CausalLM) -> list[Tensor]:
        """All tensors but the table of embeddings: a step reads one row of it.

        If the output layer has the same weights, it reads all of them.
        """
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())  # tied ones once
        if not self.config.tie_embeddings:
            del tensors["decoder.embedding.tokens.weight"]
        return list(tensors.values())

    def as_peer(self, model: CausalLM) -> Any:
        """Build such a model in `transformers`."""
        return hugging_face(model).to(self.device, self.dtype).eval()

    def prompt(self, batch_size: int, length: int) -> Tensor:
        """Random ids, ``(B, T)``."""
        generator = torch.Generator().manual_seed(2)
        shape = (batch_size, length)
        return torch.randint(0, self.config.vocab_size, shape, generator=generator).to(self.device)

    def check(self, answers: Answers, start: int) -> dict[str, Any]:
        """Compare new tokens with those of `generate`, where numbers are exact enough for it."""
        if "ours" not in answers:
            return {"agree": False}
        compared = self.dtype == torch.float32 and self.bits is None
        return same_tokens(answers, answers["ours"], start, compared=compared)

    def sizes(self) -> dict[str, Any]:
        """Sizes and kinds of numbers, for the record."""
        config = self.config
        sizes = sizes_of(config) | {"n_kv_heads": config.kv_heads, "d_head": config.d_head}
        sizes["precision"] = str(self.dtype).removeprefix("torch.")
        return sizes if self.bits is None else sizes | {"bits": self.bits, "group": GROUP}


@dataclass(frozen=True)
class Steps:
    """Steps of one token behind a text.

    The prompt is not timed: what counts is how much longer a run with more new tokens takes.

    Args:
        models: who takes the steps.
        context: T, the tokens of the prompt.
        batch_size: B, how many texts there are side by side.
        fewer: new tokens of the shorter run.
        more: new tokens of the longer one.
    """

    models: Models
    context: int
    batch_size: int = 1
    fewer: int = 32
    more: int = 96

    @cached_property
    def prompt(self) -> Tensor:
        """What is read before the steps."""
        return self.models.prompt(self.batch_size, self.context)

    @property
    def n_steps(self) -> int:
        """How many steps a run stands for."""
        return self.more - self.fewer

    @property
    def tokens_before(self) -> int:
        """How many tokens stand before that of a step, on average."""
        return self.context + (self.fewer + self.more) // 2

    @property
    def bytes_per_step(self) -> int:
        """What a step must read: weights, and keys and values of all tokens before it."""
        config = self.models.config
        keys = config.n_layers * config.kv_heads * config.d_head * self.models.dtype.itemsize
        return self.models.bytes_read + 2 * keys * self.batch_size * self.tokens_before

    @property
    def flops_per_token(self) -> float:
        """Two operations for each weight, and four for each feature of a head and token before."""
        config = self.models.config
        features = config.n_layers * config.n_heads * config.d_head
        return 2.0 * self.models.weights_read + 4.0 * features * self.tokens_before

    def ours(self) -> Run:
        """Build our `generate`, which on a GPU records its step."""
        return self._steps(partial(generate, self.models.ours, self.prompt))

    def compiled(self) -> Run:
        """Build our `generate` with a static cache and a compiled step."""
        decoder = CompiledDecoder(self.models.ours, max_len=self.context + self.more)
        return self._steps(partial(generate, decoder, self.prompt))

    def transformers(self) -> Run:
        """Build the `generate` of `transformers`."""
        mask = torch.ones_like(self.prompt)
        write = partial(self.models.peer.generate, attention_mask=mask, do_sample=False)
        return self._steps(partial(write, self.prompt))

    def limit(self) -> Run:
        """Build a copy: half of the bytes of a step are read, and as many are written."""
        half = torch.ones(self.bytes_per_step // 2, dtype=torch.uint8, device=self.models.device)
        other = torch.ones_like(half)

        def run() -> None:
            for _ in range(self.n_steps):
                other.copy_(half)

        return run

    def case(self, title: str, competitors: Iterable[Competitor]) -> Case:
        """Put these competitors into a case."""
        sizes = self.models.sizes() | {
            "batch_size": self.batch_size,
            "context": self.context,
            "new_tokens": [self.fewer, self.more],
            "bytes_per_step": self.bytes_per_step,
        }
        return Case(
            title,
            sizes,
            self.batch_size * self.n_steps,
            list(competitors),
            partial(self.models.check, start=self.context),
            flops_per_token=self.flops_per_token,
            bytes_per_run=self.n_steps * self.bytes_per_step,
        )

    def _steps(self, write: Callable[..., Tensor]) -> Difference:
        longer, shorter = (partial(write, max_new_tokens=n) for n in (self.more, self.fewer))
        return Difference(longer, shorter)


@dataclass(frozen=True)
class LongPrompt:
    """A long prompt, and the first token behind it.

    Everybody has weights of their own, so that they count where memory is told.

    Args:
        models: who reads it.
        length: T, the tokens of the prompt.
    """

    models: Models
    length: int

    @cached_property
    def prompt(self) -> Tensor:
        """The prompt."""
        return self.models.prompt(1, self.length)

    def ours(self, chunk: int | None = None) -> Run:
        """Build our `generate`, which reads all tokens at once or so many."""
        model = self.models.make()
        return lambda: generate(model, self.prompt, max_new_tokens=1, prefill_chunk=chunk)

    def transformers(self) -> Run:
        """Build the `generate` of `transformers`."""
        model, mask = self.models.as_peer(self.models.make()), torch.ones_like(self.prompt)
        options: dict[str, Any] = {"attention_mask": mask, "do_sample": False}
        return lambda: model.generate(self.prompt, max_new_tokens=1, **options)

    def case(self, title: str, competitors: Iterable[Competitor]) -> Case:
        """Put these competitors into a case."""
        sizes = self.models.sizes() | {"batch_size": 1, "prompt_length": self.length}
        check = partial(self.models.check, start=self.length)
        return Case(title, sizes, self.length, list(competitors), check)
