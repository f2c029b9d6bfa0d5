"""Train in child processes that are killed until one gets through; used by test_resume.py.

``killed_run.py FOLDER`` trains in folders of their own: ``time`` with SIGKILL sent at random
moments after some steps, ``write`` with children that kill themselves while they write, half a file
included, ``never_time`` and ``never_write`` the same in one go. ``write`` has Muon, a stable rate
that decays, and averaged weights. The library knows nothing of all this: its calls to the system
are replaced here. How often a child was killed is printed. Nothing depends on how fast the machine
is: a child that is to be killed waits for it.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from transformer_lib.core.config import TransformerConfig
from transformer_lib.models.language_models import CausalLM
from transformer_lib.training import run_checkpoints
from transformer_lib.training.data import Batches, next_token_batch
from transformer_lib.training.loop import train
from transformer_lib.training.recipes import Recipe

TODAY = {"optimizer": "muon", "schedule": "wsd", "average": 0.9}
CHOICES = {"time": {}, "write": TODAY}


def train_to_the_end(folder, mode, stops=()):
    """Train; after each of the steps in ``stops`` sleep until somebody wakes or kills us."""

    def look(row):
        if row["step"] in stops:
            os.kill(os.getpid(), signal.SIGSTOP)

    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=11, max_len=16, d_model=16, n_heads=2, n_layers=2, dropout=0.2
    )
    model = CausalLM(config)
    rng = random.Random(0)
    texts = [[rng.randrange(1, 11) for _ in range(rng.randrange(3, 16))] for _ in range(30)]
    batches = Batches(texts, next_token_batch, batch_size=4)
    validation = Batches(texts[:6], next_token_batch, batch_size=4)
    recipe = Recipe(
        steps=24, learning_rate=0.05, warmup=5, accumulate=2, log_every=1, validate_every=5,
        checkpoint_every=3, patience=100, **CHOICES[mode],
    )  # fmt: skip
    train(
        model, batches, recipe, validation=validation, folder=folder, progress=False, on_step=look
    )  # fmt: skip
    save_file({n: p.detach().clone() for n, p in model.named_parameters()}, folder / "end")


def kill_while_writing(moment):
    """Let this process die in its ``moment``-th call that changes a file, before or half done."""
    calls = 0

    def dying(real, half=None):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == moment:
                if half is not None:
                    half(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        return call

    def write_half(path, content):
        path.with_name(f".{path.name}.part").write_bytes(content[: len(content) // 2])

    os.fsync = dying(os.fsync)
    os.replace = dying(os.replace)
    run_checkpoints.write_file = dying(run_checkpoints.write_file, write_half)
    Path.unlink = dying(Path.unlink)


def some_steps(folder, rng):
    """Choose between which steps to kill a child: a few after the last checkpoint."""
    steps = [int(path.name[5:13]) for path in folder.glob("checkpoints/step-*")]
    first = max(steps, default=0) + rng.randrange(2, 8)
    return first, first + 3


def train_in_children(folder, mode):
    """Let one child after the other train until one gets through; return how many did not."""
    rng = random.Random(mode)
    for kills in range(100):
        moment = rng.randrange(3, 18)
        stops = some_steps(folder, rng) if mode == "time" else ()
        child = os.fork()
        if child == 0:
            if mode == "write":
                kill_while_writing(moment)
            train_to_the_end(folder, mode, stops)
            os._exit(0)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):  # after the first of its stops; it will not pass the second
            os.kill(child, signal.SIGCONT)
            time.sleep(rng.uniform(0, 0.02))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return kills
        assert os.WTERMSIG(status) == signal.SIGKILL
    raise AssertionError("it never came to an end")


if __name__ == "__main__":
    sys.modules["matplotlib.figure"] = None  # no pictures: they take longer than all the rest
    top = Path(sys.argv[1])
    for mode in CHOICES:  # here, so that every child finds all of PyTorch imported
        (top / f"never_{mode}").mkdir()
        train_to_the_end(top / f"never_{mode}", mode)
    for mode in CHOICES:
        (top / mode).mkdir()
        print(mode, train_in_children(top / mode, mode))
