"""What happens to a language model that can see the answer? One with a causal mask, two without.

    python -m experiments.leakage

All three learn to spell English numbers, letter by letter, from the same batches. One has its
causal mask, one a mask that is a position too generous, one none at all. Each is judged in three
ways: by its loss on numbers it never saw, as in training; by its loss on the same numbers if it is
given what came before and nothing else; and by what it writes.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from statistics import mean

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    mean_of,
    read_options,
    rows_where,
    small_config,
    write_results,
)
from transformer_book import datasets
from transformer_book.mistakes import mistake
from transformer_lib import (
    IGNORE,
    Batch,
    Batches,
    CausalLM,
    CharTokenizer,
    Metrics,
    Recipe,
    Sampling,
    Tokenizer,
    choose_token,
    evaluate,
    next_token_batch,
    token_mask,
    train,
)

CHAPTER = "05c_cheating"
PAD, BOS, EOS = 0, 1, 2
LIMIT = 10_000  # numbers below this are spelled
LENGTH = 48  # of the longest one, with its start and its end
MASKS = {  # the masks that are compared, and the mistake that makes them
    "causal": None,
    "one too many": "mask-sees-the-next-token",
    "none": "decoder-not-causal",
}
ABOUT = {
    "Task": f"""English numbers below {LIMIT:,} in words, letter by letter: predict the next letter.
        Tested on numbers that were not in the training part.""",
    "Choices": """One small decoder with three masks: causal; one position too generous; none.
        Padding is hidden in all three. The same first weights and batches for one seed. `loss` is
        computed as in training, all letters at once; `honest_loss` predicts each letter from the
        letters before it, with nothing after it in the input; `valid` is the part of samples that
        are a number below the limit, spelled right.""",
    "Intended use": "Teaching: what leakage looks like, and what shows it.",
    "Limits": "One task, one size, one recipe. How fast a model learns to cheat depends on all.",
}


def training_batch(sequences: Sequence[Sequence[int]]) -> Batch:
    """Make a batch of next letters, and the mask that hides its padding."""
    batch = next_token_batch(sequences, PAD)
    return batch | {"mask": token_mask(batch["ids"], PAD)}


def with_mask(kind: str) -> AbstractContextManager[object]:
    """Give the decoder one of the three masks until the end of a ``with`` block."""
    name = MASKS[kind]
    return nullcontext() if name is None else mistake(name)


@torch.no_grad()
def honest_loss(model: CausalLM, batch: Batch) -> float:
    """Return the mean loss of all letters, each predicted from those before it and nothing else."""
    losses = []
    for end in range(1, batch["ids"].shape[1] + 1):
        targets = batch["targets"][:, end - 1]
        there = targets != IGNORE  # the others have ended before
        logits = model(batch["ids"][there, :end])[:, -1]
        losses.append(F.cross_entropy(logits, targets[there], reduction="none"))
    return float(torch.cat(losses).mean())


@torch.no_grad()
def write(model: CausalLM, n: int, generator: torch.Generator) -> Tensor:
    """Let a model write ``n`` texts, one letter at a time, without a cache, ``(n, T)``."""
    ids = torch.full((n, 1), BOS, device=next(model.parameters()).device)
    while ids.shape[1] < LENGTH:
        logits = model(ids)[:, -1]
        # Drawn on the CPU: the same random numbers wherever the model is.
        new = choose_token(logits.cpu(), Sampling(temperature=1.0), generator=generator)
        ids = torch.cat([ids, new.to(ids)[:, None]], dim=1)
    return ids


def texts(ids: Tensor, tokenizer: Tokenizer) -> list[str]:
    """Turn what a model wrote into texts, each up to its end."""
    written = []
    for row in ids[:, 1:].tolist():
        end = row.index(EOS) if EOS in row else len(row)
        written.append(tokenizer.decode(row[:end]))
    return written


def run_one(kind: str, options: Options, recipe: Recipe) -> tuple[list[Row], list[str]]:
    """Train one model and judge it as it learns.

    Args:
        kind: which mask it has.
        options: the experiment's.
        recipe: how to train; its seed is also that of weights and batches.

    Returns:
        Rows of ``results.csv``, and some texts it wrote at the end.
    """
    data = datasets.numbers()
    train_part, test_part = (
        [n.english for n in part if n.number < LIMIT] for part in (data.train, data.test)
    )
    known = {number.english for part in data for number in part if number.number < LIMIT}
    tokenizer = CharTokenizer.train(train_part)
    encode = partial(tokenizer.encode, bos=True, eos=True)
    examples, batch_size = [encode(text) for text in train_part], options.pick(128, 4)
    batches = Batches(examples, training_batch, batch_size=batch_size, seed=recipe.seed)
    new = [encode(text) for text in test_part[: options.pick(None, 4)]]
    tests = Batches(new, training_batch, batch_size=256, shuffle=False)
    torch.manual_seed(recipe.seed)
    sizes = {"vocab_size": tokenizer.vocab_size, "max_len": LENGTH, "d_model": 64}
    model = CausalLM(small_config(**sizes, activation="relu")).to(options.device)
    whole = {name: t.to(options.device) for name, t in training_batch(new).items()}
    rows: list[Row] = []
    samples: list[str] = []

    def look(row: Metrics) -> None:
        samples[:] = texts(write(model, n_samples, torch.Generator().manual_seed(0)), tokenizer)
        rows.append(
            {
                "mask": kind,
                "seed": recipe.seed,
                "step": row["step"],
                "loss": evaluate(model, tests)["loss"],
                "honest_loss": honest_loss(model, whole),
                "valid": mean(text in known for text in samples),
            }
        )
        print(rows[-1], flush=True)

    n_samples = options.pick(200, 2)
    with with_mask(kind):
        train(model, batches, recipe, device=options.device, progress=False, on_step=look)
    return rows, samples[:8]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write one table."""
    options = read_options("leakage", __doc__, arguments)
    steps = options.n_steps(600)
    recipe = constant_adam(steps, log_every=options.pick(max(steps // 15, 1), steps))
    rows: list[Row] = []
    samples: dict[str, list[str]] = {}
    for seed in options.seeds(3):
        for kind in MASKS:
            found, samples[kind] = run_one(kind, options, replace(recipe, seed=seed))
            rows += found
    last = rows_where(rows, step=steps)
    metrics = {
        f"{name} ({kind})": mean_of(last, name, mask=kind)
        for name in ("valid", "loss", "honest_loss")
        for kind in MASKS
    }
    write_results(
        options, "numbers.tsv", ABOUT, metrics, recipe, tables={"results": rows},
        more={"samples": samples},
    )  # fmt: skip


if __name__ == "__main__":
    main()
