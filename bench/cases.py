"""What is measured: a training step, generation, and an encoder, each done by several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

from bench.peers import TorchEncoder, TorchGPT, hugging_face, without_warning
from bench.races import Competitor, Run
from transformer_lib.attention import MultiHeadAttention
from transformer_lib.config import TransformerConfig
from transformer_lib.data import IGNORE
from transformer_lib.encoder_decoder import Encoder
from transformer_lib.generation import generate
from transformer_lib.losses import Objective
from transformer_lib.masks import padding_mask
from transformer_lib.models import CausalLM

Answers = Mapping[str, Any]  # the first answer of every competitor that gave one


@dataclass
class Case:
    """One kind of work and those who do it.

    Args:
        title: what is measured, in a few words.
        sizes: of the model and its input, for the record.
        amount: how many tokens one run processes.
        competitors: who does it.
        check: looks at the first answers; returns what goes into the record, with ``agree``.
        flops_per_token: if the share of the matrix product's speed shall be told.
        keeps_compiled: whether the next case goes on with what was compiled for this one.
    """

    title: str
    sizes: dict[str, Any]
    amount: int
    competitors: list[Competitor]
    check: Callable[[Answers], dict[str, Any]]
    flops_per_token: float | None = None
    keeps_compiled: bool = False


@dataclass(frozen=True)
class Training:
    """A training step of a GPT: forward, loss, backward, AdamW.

    Args:
        config: of the model.
        batch_size: B, the number of sequences.
        length: T, the tokens of each.
        device: where.
        n_words: tokens are drawn from so many; the vocabulary may be padded beyond them.
        precision: what autocast multiplies matrices in; float32 means no autocast.
        compiler: what makes a module fast.
    """

    config: TransformerConfig
    batch_size: int
    length: int
    device: str = "cpu"
    n_words: int = 1_024
    precision: torch.dtype = torch.float32
    compiler: Callable[[Any], Any] = torch.compile

    @property
    def n_tokens(self) -> int:
        """The tokens of one step."""
        return self.batch_size * self.length

    @property
    def flops_per_token(self) -> float:
        """The arithmetic of one step as nanoGPT counts it: 6 N + 12 L H K T.

        N counts all parameters but position embeddings, which are only looked up.
        """
        with torch.device("meta"):
            model = CausalLM(self.config)
        n = sum(p.numel() for p in model.parameters()) - self.config.max_len * self.config.d_model
        return 6 * n + 12 * self.config.n_layers * self.config.d_model * self.length

    def model(self, vocab_size: int | None = None) -> CausalLM:
        """Build our model; the weights are the same each time."""
        config = self.config
        config = config if vocab_size is None else replace(config, vocab_size=vocab_size)
        torch.manual_seed(0)
        with torch.device(self.device):
            return CausalLM(config).train()

    @cached_property
    def batch(self) -> dict[str, Tensor]:
        """Ids, and the next id of each as its target."""
        generator = torch.Generator().manual_seed(1)
        shape = (self.batch_size, self.length)
        ids = torch.randint(0, self.n_words, shape, generator=generator).to(self.device)
        return {"ids": ids, "targets": F.pad(ids[:, 1:], (0, 1), value=IGNORE)}

    def ours(
        self,
        *,
        compiled: bool = False,
        fused_attention: bool = True,
        fused_optimizer: bool = True,
        all_logits: bool = False,
        vocab_size: int | None = None,
    ) -> Run:
        """Build a step of our library; what is switched off shows what it is good for."""
        model = self.model(vocab_size)
        for part in model.modules():
            if isinstance(part, MultiHeadAttention):
                part.fused = fused_attention
        objective = AllLogits(model) if all_logits else Objective(model)
        compute = self.compiler(objective) if compiled else objective

        def loss() -> Tensor:
            total, count = compute(self.batch)
            mean: Tensor = total / count
            return mean

        return self._step(model, loss, fused=fused_optimizer)

    def torch_nn(self, *, compiled: bool = False) -> Run:
        """Build a step of `nn.TransformerEncoder`."""
        with torch.device(self.device):
            model = TorchGPT(self.model()).train()
        compute = self.compiler(model) if compiled else model
        return self._step(model, lambda: compute(self.batch["ids"], self.batch["targets"]))

    def transformers(self, *, compiled: bool = False) -> Run:
        """Build a step of `GPT2LMHeadModel`, which takes the next id as the target by itself."""
        model = hugging_face(self.model()).to(self.device).train()
        compute = self.compiler(model) if compiled else model
        ids = self.batch["ids"]
        return self._step(model, lambda: compute(ids, labels=ids, use_cache=False).loss)

    def _step(self, model: nn.Module, loss: Callable[[], Tensor], *, fused: bool = True) -> Run:
        groups = (
            {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        )
        optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=fused or None)

        def run() -> Tensor:
            with self._autocast():
                value = loss()
            value.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return value.detach()

        return run

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.device, self.precision)

    def case(self, title: str, competitors: Iterable[Competitor]) -> Case:
        """Put these competitors into a case."""
        tolerance = 1e-3 if self.precision == torch.float32 else 0.05
        sizes = sizes_of(self.config) | {"batch_size": self.batch_size, "length": self.length}
        sizes["precision"] = str(self.precision).removeprefix("torch.")

        def check(answers: Answers) -> dict[str, Any]:
            losses = {name: float(loss) for name, loss in answers.items()}
            spread = max(losses.values()) - min(losses.values()) if losses else 0.0
            return {"third_losses": losses, "agree": spread < tolerance}

        competitors = list(competitors)
        return Case(title, sizes, self.n_tokens, competitors, check, self.flops_per_token)


class AllLogits(nn.Module):
    """The loss in one line, which holds every logit in float32 at once.

    Args:
        model: ours.
    """

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the summed loss and the number of targets, as our own objective does."""
        logits, targets = self.model(batch["ids"]).flatten(0, 1), batch["targets"].flatten()
        total = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")
        return total, (targets != IGNORE).sum()


@dataclass(frozen=True)
class Generation:
    """Greedy generation with a cache, from one prompt to a fixed number of new tokens.

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
        """Our model. Its matrices are four times as large as a fresh model's.

        A fresh one repeats a token for ever, and it would not be noticed if it forgot the others.
        """
        torch.manual_seed(0)
        model = CausalLM(self.config)
        with torch.no_grad():
            for parameter in model.decoder.stack.blocks.parameters():
                parameter.mul_(4 if parameter.ndim == 2 else 1)
        return model.to(self.device, self.dtype).eval()

    @cached_property
    def peer(self) -> Any:
        """The same model in `transformers`."""
        return hugging_face(self.model).to(self.device, self.dtype).eval()

    def ours(self, *, use_cache: bool = True) -> Run:
        """Build our `generate`."""
        model = self.model
        options: dict[str, Any] = {} if use_cache else {"use_cache": False}
        return lambda: generate(model, self.prompt, max_new_tokens=self.new_tokens, **options)

    def compiled(self) -> Run:
        """Build our `generate` with a static cache and a compiled step."""
        from transformer_lib.compiled import CompiledDecoder  # noqa: PLC0415

        fast = CompiledDecoder(self.model, max_len=self.prompt_length + self.new_tokens)
        return lambda: generate(fast, self.prompt, max_new_tokens=self.new_tokens)

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
        """Compare the tokens with those of our eager `generate`; only float32 has to be equal."""
        reference = answers.get("ours")
        if reference is None:
            return {"agree": False}
        start = self.prompt_length
        checks: dict[str, Any] = {
            "different_tokens": len(set(reference[:, start:].flatten().tolist()))
        }
        shares = {}
        for name, ids in answers.items():
            shares[name] = float((ids == reference)[:, start:].float().mean())
            if self.dtype == torch.float32 and shares[name] < 1:
                checks[f"gap of {name}"] = self._gap(ids, reference)
        exact = self.dtype != torch.float32 or all(share == 1 for share in shares.values())
        return checks | {"same_tokens": shares, "agree": exact}

    @torch.no_grad()
    def _gap(self, ids: Tensor, reference: Tensor) -> float:
        """How far apart the scores of two tokens are where two texts first part."""
        row, place = (ids != reference).nonzero().tolist()[0]
        scores = self.model(reference[row : row + 1, :place])[0, -1].float()
        return float((scores[reference[row, place]] - scores[ids[row, place]]).abs())


@dataclass(frozen=True)
class Encoding:
    """The forward pass of an encoder over sequences of different lengths.

    Args:
        config: of the model.
        lengths: the number of real tokens of each sequence; the rest is padding.
        device: where.
    """

    config: TransformerConfig
    lengths: tuple[int, ...]
    device: str = "cpu"

    @cached_property
    def model(self) -> Encoder:
        """Our model."""
        torch.manual_seed(0)
        return Encoder(self.config).to(self.device).eval()

    @cached_property
    def ids(self) -> Tensor:
        """Random ids, ``(B, T)``."""
        generator = torch.Generator().manual_seed(3)
        shape = (len(self.lengths), max(self.lengths))
        return torch.randint(0, self.config.vocab_size, shape, generator=generator).to(self.device)

    @cached_property
    def mask(self) -> Tensor:
        """Where there are real tokens, ``(B, 1, 1, T)``."""
        return padding_mask(torch.tensor(self.lengths), max(self.lengths)).to(self.device)

    def ours(self) -> Run:
        """Build our `Encoder`."""
        run: Run = torch.no_grad()(lambda: self.model(self.ids, self.mask))
        return run

    def torch_nn(self, *, nested: bool) -> Run:
        """Build `nn.TransformerEncoder` in evaluation mode, where it has a fast path."""
        model, is_padding = TorchEncoder(self.model, nested=nested), ~self.mask[:, 0, 0]
        model = model.to(self.device).eval()
        run: Run = torch.no_grad()(lambda: model(self.ids, is_padding))
        return without_warning(run)

    def transformers(self) -> Run:
        """Build `BertModel`."""
        model, mask = hugging_face(self.model).to(self.device).eval(), self.mask[:, 0, 0].long()
        run: Run = torch.no_grad()(lambda: model(self.ids, attention_mask=mask).last_hidden_state)
        return run

    def case(self, title: str, competitors: Iterable[Competitor]) -> Case:
        """Put these competitors into a case."""
        sizes = sizes_of(self.config) | {"lengths": list(self.lengths), "precision": "float32"}
        return Case(title, sizes, sum(self.lengths), list(competitors), self._check)

    def _check(self, answers: Answers) -> dict[str, Any]:
        """Compare the vectors of real tokens with ours; what stands at padding is nobody's."""
        real = self.mask[:, 0, 0]
        errors = {
            name: float((x - answers["ours"])[real].abs().max())
            for name, x in answers.items()
            if "ours" in answers
        }
        return {"largest_error": errors, "agree": all(e < 1e-3 for e in errors.values())}


def sizes_of(config: TransformerConfig) -> dict[str, Any]:
    """The sizes of a model that decide how long it takes."""
    names = ("vocab_size", "d_model", "n_heads", "n_layers", "ffn_width")
    return {name: getattr(config, name) for name in names}
