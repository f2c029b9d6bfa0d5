"""A training step, done by several."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

from bench.cases import Answers, Case, sizes_of
from bench.peers import PlainGPT, TorchGPT, hugging_face
from bench.races import Competitor, Run
from transformer_lib import IGNORE, CausalLM, MultiHeadAttention, Objective, TransformerConfig


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
        """The arithmetic of one step as nanoGPT counts it: 6 N + 12 L H Dk T.

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

    def plain(self, *, compiled: bool = False) -> Run:
        """Build a step of a plain GPT."""
        with torch.device(self.device):
            model = PlainGPT(self.model()).train()
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
