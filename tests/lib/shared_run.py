"""Train with several processes, by every strategy; started by torchrun in test_distributed.py.

Each is interrupted once, and goes on from its checkpoint with a new model.
"""

import os
import random
import sys
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import save_file

from transformer_lib.core.config import TransformerConfig
from transformer_lib.models.language_models import CausalLM
from transformer_lib.training.data import Batches, next_token_batch
from transformer_lib.training.loop import evaluate, train
from transformer_lib.training.losses import Objective
from transformer_lib.training.recipes import Recipe


class Stopping(Batches):
    """A stream that ends like a user at the keyboard does."""

    stop_at = None

    def __next__(self):
        if self.stop_at == (self.epoch, self.batch):
            raise KeyboardInterrupt
        return super().__next__()


def data():
    rng = random.Random(0)
    texts = [[rng.randrange(1, 11) for _ in range(rng.randrange(3, 16))] for _ in range(31)]
    # Batches of five: two processes have to make up a row, and the last one of an epoch is alone.
    stream = Stopping(texts, next_token_batch, batch_size=5)
    return stream, Batches(texts[:7], next_token_batch, batch_size=3)


class Doubled(torch.nn.Module):
    """An objective of one's own."""

    def __init__(self, model):
        super().__init__()
        self.objective = Objective(model)

    def forward(self, batch):
        total, count = self.objective(batch)
        return 2 * total, count


def momentum(model):
    """An optimizer of one's own, with two rates."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "lr": 0.2}, {"params": others}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def even(model):
    """A further loss: of what the forward pass has left behind."""
    return 0.5 * sum(block.feed_forward.balance_loss for block in model.decoder.stack.blocks)


OWN = {"objective": Doubled, "optimizer": momentum, "schedule": lambda step, _: 1 / (4 + step)}


# Muon would lift what differs by rounding alone: a rate that is small enough to compare weights.
TODAY = {
    "optimizer": "muon", "schedule": "wsd", "decay_share": 0.5, "average": 0.5, "momentum": 0.8,
    "learning_rate": 0.02,
}  # fmt: skip


def go(folder, strategy="ddp", stop_at=None, balance=0.0, own=None, recipe=None, **choices):
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "max_len": 16, "d_model": 16, "n_heads": 2, "n_layers": 2}
    model = CausalLM(TransformerConfig(**sizes | {"dropout": 0.0} | choices))
    stream, validation = data()
    stream.stop_at = stop_at
    usual = {
        "steps": 8, "learning_rate": 1.0, "eps": 1.0, "accumulate": 2, "log_every": 1,
        "validate_every": 4, "checkpoint_every": 3, "clip": 0.5, "patience": 9,
    }  # fmt: skip
    recipe = Recipe(**usual | (recipe or {}), strategy=strategy, balance=balance)
    options = {"validation": validation, "progress": False, "device": "cpu"} | (own or {})
    train(model, stream, recipe, folder=folder, **options)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / f"end-{os.environ.get('RANK', 0)}")
    return evaluate(model, validation)


if __name__ == "__main__":
    sys.modules["matplotlib.figure"] = None  # no pictures: they take longer than all the rest
    top = Path(sys.argv[1])
    for strategy in ("ddp", "fsdp"):
        with suppress(KeyboardInterrupt):
            go(top / strategy, strategy, stop_at=(1, 3))  # after step 4: there is a checkpoint
        assert not (top / strategy / "end-0").exists()
        go(top / strategy, strategy)
    go(top / "experts", n_experts=4)
    # The mean probabilities of a batch are not those of its halves: only close to them.
    for strategy in ("ddp", "fsdp"):
        go(top / f"balanced-{strategy}", strategy, n_experts=4, balance=0.5)
        go(top / f"even-{strategy}", strategy, n_experts=4, own={"extra_losses": [even]})
        with suppress(KeyboardInterrupt):
            go(top / f"own-{strategy}", strategy, stop_at=(1, 3), own=OWN)
        assert not (top / f"own-{strategy}" / "end-0").exists()
        go(top / f"own-{strategy}", strategy, own=OWN)
        with suppress(KeyboardInterrupt):
            go(top / f"today-{strategy}", strategy, stop_at=(1, 3), recipe=TODAY)
        assert not (top / f"today-{strategy}" / "end-0").exists()
        go(top / f"today-{strategy}", strategy, recipe=TODAY)
