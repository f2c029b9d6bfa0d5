"""What happens beyond the trained length? Six ways to tell positions.

    python -m experiments.lengths

Small decoders learn from short sequences and are tested on longer ones: to copy the symbol three
places back, and to guess the next letter of Shakespeare. Everything but the positions is the same.
Each run has a process of its own. Models with RoPE are stretched in ``stretching``.
"""

import operator
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import get_args

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    mean_of,
    merge_tables,
    read_options,
    rounded,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from experiments.shared.loops import minimise, rise_and_fall
from transformer_lib import (
    IGNORE,
    CausalLM,
    Position,
    Recipe,
    TextWindows,
    modern_recipe,
    train,
)

CHAPTER = "07b_length"
SCHEMES: tuple[Position, ...] = get_args(Position)
BACK, N_SYMBOLS = 3, 16  # of the copy task
MEASURED = 64  # how many letters at the end of a text are guessed and counted
ABOUT = {
    "Task": f"""`copy.csv`: at each place, say which of {N_SYMBOLS} symbols stood {BACK} places
        before. The other tables: the text so far in, the probabilities of its next character out.
        Models learn from sequences of one length (32 symbols, 128 characters) and are tested on
        longer ones (128 symbols, 1,024 characters).""",
    "Choices": f"""Decoders with pre-norm blocks that differ in their positions only: copying with 2
        layers of width 64, text with 3 layers of width 128, four heads in both. Learned tables have
        a row for every place of the longest test; the rows beyond the trained length keep the
        random numbers they started with, since nothing decays in this training. `loss` is that of
        the last {MEASURED} characters of a text, the same characters for every length, so only what
        stands before them differs. `windowed_loss` lets every place see no more keys than the
        trained length has.""",
    "How to read the tables": """`results.csv`: losses by length. `positions.csv`: mean losses at
        the places from `first` up to, but without, `last` in the longest texts. `copy.csv`: which
        part is right at such places.""",
    "Intended use": "Teaching: what each way of telling positions does where it was not trained.",
    "Limits": """One size, one text, one learning rate, a short training, three or four seeds.
        Larger models trained on longer texts may behave otherwise.""",
}


def build(
    position: Position, vocab: int, longest: int, d_model: int, n_layers: int, seed: int
) -> CausalLM:
    """Make a decoder with new weights.

    Args:
        position: how it is told where a token stands.
        vocab: how many different tokens there are.
        longest: the longest sequence it will be tested with.
        d_model: its width.
        n_layers: how many blocks it has.
        seed: of the weights.

    Returns:
        The model.
    """
    torch.manual_seed(seed)
    sizes = {"vocab_size": vocab, "max_len": longest, "d_model": d_model, "n_layers": n_layers}
    return CausalLM(small_config(**sizes, position=position))


# Copying


def copies(n: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw symbols ``(n, length)``, and what stood ``BACK`` places before each."""
    ids = torch.randint(N_SYMBOLS, (n, length), generator=generator)
    targets = torch.full_like(ids, IGNORE)
    targets[:, BACK:] = ids[:, :-BACK]
    return ids, targets


def run_copy(
    scheme: Position, seed: int, recipe: Recipe, lengths: tuple[int, int], device: str
) -> dict[str, list[Row]]:
    """Train one model to copy, and test it at every place of longer sequences.

    Args:
        scheme: how positions are told.
        seed: of weights and data.
        recipe: how long and how fast it learns.
        lengths: of the sequences to learn from, and to be tested with.
        device: where to train.

    Returns:
        The rows of ``copy.csv``.
    """
    trained, longest = lengths
    model = build(scheme, N_SYMBOLS, longest, d_model=64, n_layers=2, seed=seed).to(device)
    optimizer = torch.optim.Adam(model.parameters(), recipe.learning_rate, recipe.betas)
    drawn = torch.Generator().manual_seed(seed)

    def loss_at(_: int) -> Tensor:
        ids, targets = (tensor.to(device) for tensor in copies(64, trained, drawn))
        return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=IGNORE)

    minimise(model, optimizer, recipe, loss_at, rate=rise_and_fall)
    with torch.no_grad():
        ids, targets = copies(256, longest, torch.Generator().manual_seed(10_000 + seed))
        right = (model(ids.to(device)).argmax(dim=-1).cpu() == targets).double().mean(dim=0)
    # A symbol of the first places has none so far before it.
    places = [(max(first, BACK), last) for first, last in stretches(trained, longest)]
    rows: list[Row] = [
        {"scheme": scheme, "seed": seed, "first": first, "last": last}
        | {"accuracy": rounded(float(right[first:last].mean()))}
        for first, last in places
    ]
    return {"copy": rows}


def stretches(trained: int, longest: int) -> list[tuple[int, int]]:
    """Cut places up to the longest into stretches of a quarter of the trained length."""
    width = trained // 4
    return [(first, first + width) for first in range(0, longest, width)]


# Guessing letters


@torch.no_grad()
def letter_losses(model: CausalLM, text: Tensor, length: int, longest: int) -> Tensor:
    """Return the loss at each place of texts that end at the same letters for every length.

    Args:
        model: a language model.
        text: new text, ``(N,)``, on the model's device.
        length: how many letters it may read.
        longest: the largest such number; it decides where the texts end.

    Returns:
        Mean losses ``(length,)`` on the CPU.
    """
    windows = text.unfold(0, longest + 1, longest // 2)[:, -length - 1 :]  # (n, length + 1)
    sums = torch.zeros(length, dtype=torch.float64)
    for part in windows.split(16):
        logits = model(part[:, :-1]).transpose(1, 2).float()
        sums += F.cross_entropy(logits, part[:, 1:], reduction="none").double().sum(dim=0).cpu()
    return sums / len(windows)


def last_loss(model: CausalLM, text: Tensor, length: int, longest: int) -> float:
    """Return the mean loss of the last letters of texts."""
    return rounded(float(letter_losses(model, text, length, longest)[-MEASURED:].mean()))


def set_window(model: CausalLM, window: int | None) -> None:
    """Let every place see only so many keys, itself included; all if ``None``."""
    model.decoder.stack.config = replace(model.decoder.stack.config, window=window)


def run_text(
    scheme: Position, seed: int, recipe: Recipe, lengths: tuple[int, ...], options: Options
) -> dict[str, list[Row]]:
    """Train one language model and test it on longer texts.

    Args:
        scheme: how positions are told.
        seed: of weights and batches.
        recipe: how it learns; its seed is replaced.
        lengths: the trained length, and longer ones to be tested.
        options: the experiment's.

    Returns:
        The rows of ``results.csv`` and of ``positions.csv``.
    """
    known, unknown, letters = texts(options.pick(None, 3_000))
    unknown = unknown.to(options.device)
    trained, longest = lengths[0], lengths[-1]
    sizes = options.pick((128, 3), (16, 1))
    model = build(scheme, len(letters), longest, *sizes, seed=seed)
    windows = TextWindows(known, trained, batch_size=32, seed=seed)
    train(model, windows, replace(recipe, seed=seed), device=options.device, progress=False)
    run: Row = {"scheme": scheme, "seed": seed}
    rows = []
    for length in (trained // 2, *lengths):
        row = run | {"length": length, "loss": last_loss(model, unknown, length, longest)}
        set_window(model, trained)
        rows.append(row | {"windowed_loss": last_loss(model, unknown, length, longest)})
        set_window(model, None)
    by_place = letter_losses(model, unknown, longest, longest)
    places = [
        run | {"first": first, "last": last, "loss": rounded(float(by_place[first:last].mean()))}
        for first, last in stretches(trained, longest)
    ]
    return {"results": rows, "positions": places}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write three tables."""
    options = read_options("lengths", __doc__, arguments)
    recipe = modern_recipe(options.n_steps(2_000), 2e-3, weight_decay=0.0, checkpoint_every=10**6)
    copying = constant_adam(recipe.steps)
    lengths = options.pick((128, 192, 256, 512, 1_024), (16, 64, 128))
    sizes = options.pick((32, 128), (16, 32))
    plan: list[tuple[object, ...]] = [
        *((run_text, *run, recipe, lengths, options) for run in product(SCHEMES, options.seeds(3))),
        *(
            (run_copy, *run, copying, sizes, options.device)
            for run in product(SCHEMES, options.seeds(4))
        ),
    ]
    tables = merge_tables(side_by_side(operator.call, plan, options))
    metrics = {
        f"loss_{scheme}_{length}": mean_of(tables["results"], "loss", scheme=scheme, length=length)
        for scheme in SCHEMES
        for length in (lengths[0], lengths[-1])
    }
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe, tables=tables,
        more={"lengths": lengths, "copy_lengths": sizes, "copy_recipe": asdict(copying)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
