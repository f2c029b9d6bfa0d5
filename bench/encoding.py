"""An encoder that reads padded batches, done by several."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bench.cases import Answers, Case, sizes_of
from bench.peers import TorchEncoder, hugging_face, without_warning
from bench.races import Competitor, Run
from transformer_lib import Encoder, TransformerConfig, padding_mask


@dataclass(frozen=True)
class Encoding:
    """The forward pass of an encoder over sequences of different lengths.

    Args:
        config: of the model.
        lengths: the number of real tokens of each sequence; the rest is padding.
        device: where.
        dtype: of all weights.
    """

    config: TransformerConfig
    lengths: tuple[int, ...]
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @cached_property
    def model(self) -> Encoder:
        """Our model."""
        torch.manual_seed(0)
        return Encoder(self.config).to(self.device, self.dtype).eval()

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

    def padded(self) -> Run:
        """Build the same one so that it keeps padding, as it must when somebody listens."""
        model = copy.deepcopy(self.model)
        model.stack.register_forward_hook(lambda *_: None)
        run: Run = torch.no_grad()(lambda: model(self.ids, self.mask))
        return run

    def torch_nn(self, *, nested: bool) -> Run:
        """Build `nn.TransformerEncoder` in evaluation mode, where it has a fast path."""
        model, is_padding = TorchEncoder(self.model, nested=nested), ~self.mask[:, 0, 0]
        model = model.to(self.device, self.dtype).eval()
        run: Run = torch.no_grad()(lambda: model(self.ids, is_padding))
        return without_warning(run)

    def transformers(self) -> Run:
        """Build `BertModel`."""
        model, mask = hugging_face(self.model), self.mask[:, 0, 0].long()
        model = model.to(self.device, self.dtype).eval()
        run: Run = torch.no_grad()(lambda: model(self.ids, attention_mask=mask).last_hidden_state)
        return run

    def case(self, title: str, competitors: Iterable[Competitor]) -> Case:
        """Put these competitors into a case."""
        precision = str(self.dtype).removeprefix("torch.")
        sizes = sizes_of(self.config) | {"lengths": list(self.lengths), "precision": precision}
        return Case(title, sizes, sum(self.lengths), list(competitors), self._check)

    def _check(self, answers: Answers) -> dict[str, Any]:
        """Compare the vectors of real tokens with ours; what stands at padding is nobody's."""
        if "ours" not in answers:
            return {"agree": False}
        real, ours = self.mask[:, 0, 0], answers["ours"]
        errors = {name: (x - ours)[real].float().abs() for name, x in answers.items()}
        # The vectors are normalised: a mean error of 0.02 is two percent of a usual feature.
        most, at_most = (1e-3, 1e-3) if self.dtype == torch.float32 else (0.02, 0.5)
        agree = all(e.mean() < most and e.max() < at_most for e in errors.values())
        return {
            "largest_error": {name: float(e.max()) for name, e in errors.items()},
            "mean_error": {name: float(e.mean()) for name, e in errors.items()},
            "agree": agree,
        }
