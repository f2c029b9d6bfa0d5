"""What a recurrent network can keep: through one vector, and with a gradient that arrives.

    python -m experiments.memory

Three questions. How well does a GRU copy a word through one vector, and how well with Bahdanau's
attention? Which changes of the initial weights let a recurrent network learn to recall a symbol,
and how much of its gradient arrives at the symbol? Where does attention look when numbers are
translated? Recurrent networks take one step of Python for each position, which a GPU does not make
faster, so every run has a process and a CPU core of its own.
"""

import json
import operator
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from statistics import mean

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from experiments.recall import BATCH, ENOUGH, N_SYMBOLS, make_orthogonal, recurrent
from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    mean_of,
    read_options,
    side_by_side,
    write_results,
)
from transformer_book import datasets
from transformer_book.recurrent import (
    Kind,
    RecurrentClassifier,
    RecurrentSeq2Seq,
    open_forget_gate,
    with_lengths,
)
from transformer_book.tasks import FIRST_SYMBOL, Pair, copy_task, recall_task
from transformer_lib import Batch, Batches, Metrics, Recipe, train, translation_batch

CHAPTER = "01b_one_vector"
N_LETTERS = 10  # of the words that are copied
COPIERS = ((True, 48), (False, 48), (False, 51), (False, 96))  # attention, and the width
ALIGNER_WIDTH = 32
LENGTHS = (2, 5, 10, 15, 20, 25, 30, 40)
MAX_LENGTH = 30  # of the words to learn from
DISTANCE = 50
CHANGES: tuple[tuple[Kind, str], ...] = (  # network, and what is done to its initial weights
    ("rnn", "none"),
    ("rnn", "orthogonal"),
    ("gru", "none"),
    ("lstm", "forget 0"),
    ("lstm", "forget 1"),
    ("lstm", "forget 2"),
    ("lstm", "forget 3"),
    ("lstm", "forget 5"),
)
ABOUT = {
    "Task": f"""Copying: a word of 1 to {MAX_LENGTH} of {N_LETTERS} letters in, the same word out,
        letter by letter. Recall: one of {N_SYMBOLS} symbols, then {DISTANCE} random fillers in; the
        symbol out. Alignment: an English number below 100 in, the German word out.""",
    "Choices": f"""Copying: a GRU that reads in both directions and a GRU that writes, of width
        {COPIERS[0][1]}, with Bahdanau's attention or through one vector; through one vector also
        with a width of {COPIERS[2][1]}, which has as many parameters as the one with attention, and
        of {COPIERS[3][1]}. They are measured with the true letters before each letter. Recall: the
        networks of `recall` with two alphabets, with changed initial weights:
        `forget b` sets the bias of an LSTM's forget gate to b; `orthogonal` gives the RNN an
        orthogonal recurrent matrix, no bias and inputs of a tenth. Alignment: the same network
        with attention, of width {ALIGNER_WIDTH}; the numbers from 21 on that 7 divides are kept
        for the test. The recipe below is that of recall; copying has 800 updates and alignment
        400, both with a learning rate of 0.005.""",
    "Intended use": "Teaching: what a fixed state can hold, and what lets a gradient arrive.",
    "Limits": """Small networks, short training, one recipe for each question. That a network does
        not learn here is no proof that it cannot.""",
}


def translation(pairs: Sequence[Pair]) -> Batch:
    """Make a batch for a recurrent translator."""
    return with_lengths(translation_batch(pairs))


def copy_one(
    attention: bool, width: int, recipe: Recipe, lengths: Sequence[int], n_tests: int
) -> list[Row]:
    """Train one network to copy words, and measure it at each length.

    Args:
        attention: whether it may look back.
        width: of its states.
        recipe: how to train; its seed is that of weights, data and their order, too.
        lengths: of the words it is measured with.
        n_tests: how many new words of each length it is measured with.

    Returns:
        Rows of ``copying.csv``: which part of the letters, and of whole words, is right.
    """
    seed = recipe.seed
    torch.manual_seed(seed)
    model = RecurrentSeq2Seq(FIRST_SYMBOL + N_LETTERS, width, attention=attention)
    words = copy_task(BATCH * min(recipe.steps, 500), N_LETTERS, MAX_LENGTH, seed=2 * seed)
    batches = Batches(words, translation, batch_size=BATCH, seed=seed)
    train(model, batches, recipe, device="cpu", progress=False)
    rows = []
    for length in lengths:
        generator = torch.Generator().manual_seed(1_000 * seed + length)
        new = FIRST_SYMBOL + torch.randint(N_LETTERS, (n_tests, length), generator=generator)
        right = _copies(model, new)
        row: Row = {"attention": attention, "width": width, "seed": seed, "length": length}
        row |= {"letters": float(right.double().mean())}
        rows.append(row | {"words": float(right.all(dim=1).double().mean())})
    return rows


@torch.no_grad()
def _copies(model: nn.Module, words: Tensor) -> Tensor:
    """Say of each letter whether the network copies it, given the true ones before it."""
    batch = translation_batch([(word, word) for word in words])
    logits = model(batch["source"], batch["target"]).logits
    right: Tensor = logits[:, :-1].argmax(dim=-1) == words
    return right


def change_weights(model: RecurrentClassifier, change: str) -> None:
    """Change a network's initial weights as ``CHANGES`` says."""
    if change == "orthogonal":
        make_orthogonal(model)
    elif change.startswith("forget"):
        open_forget_gate(model.recurrent, float(change.split()[1]))


def class_batch(pairs: Sequence[Pair]) -> Batch:
    """Make a batch of equally long sequences with one class each, for a recurrent network."""
    ids, classes = (torch.tensor(side) for side in zip(*pairs, strict=True))
    return {"ids": ids, "targets": classes[:, 0]}


@torch.no_grad()
def accuracy(model: nn.Module, pairs: Sequence[Pair]) -> float:
    """Return which part of the symbols a network remembers."""
    batch = class_batch(pairs)
    return float((model(batch["ids"]).argmax(dim=-1) == batch["targets"]).double().mean())


def arriving(model: RecurrentClassifier, pairs: Sequence[Pair]) -> Tensor:
    """Return how strongly each position can move the right answer's score.

    Args:
        model: the network.
        pairs: sequences of one length, and their classes.

    Returns:
        The mean length of the score's gradient by each input vector, ``(T,)``, first position
        first. Computed in float64: what arrives may be very little.
    """
    batch, network = class_batch(pairs), deepcopy(model).double()
    x = network.embedding(batch["ids"]).detach().requires_grad_()
    scores = network.head(network.recurrent(x)[1].hidden)
    scores.gather(1, batch["targets"][:, None]).sum().backward()
    assert x.grad is not None
    norms: Tensor = x.grad.norm(dim=-1)
    return norms.mean(dim=0)


def recall_one(
    kind: Kind, change: str, recipe: Recipe, distance: int, n_tests: int
) -> tuple[Row, list[Row]]:
    """Train one network to recall, after a change of its initial weights.

    Args:
        kind: which network.
        change: what is done to its weights.
        recipe: how to train; its seed is that of weights, data and their order, too.
        distance: how many fillers follow the symbol.
        n_tests: how many new sequences it is measured with at the end.

    Returns:
        A row of ``recall.csv``, and rows of ``gradients.csv``, before and after training.
    """
    torch.manual_seed(recipe.seed)
    model = recurrent(kind)
    change_weights(model, change)
    n = BATCH * min(recipe.steps, 500)
    pairs = recall_task(n, N_SYMBOLS, distance, seed=2 * recipe.seed)
    new = recall_task(n_tests, N_SYMBOLS, distance, seed=2 * recipe.seed + 1)
    found, arrived = {"before": arriving(model, new[:100])}, []

    def look(row: Metrics) -> None:
        if accuracy(model, new[:200]) >= ENOUGH:
            arrived.append(row["step"])

    batches = Batches(pairs, class_batch, batch_size=BATCH, seed=recipe.seed)
    train(model, batches, recipe, device="cpu", progress=False, on_step=look)
    found["after"] = arriving(model, new[:100])
    who = {"model": kind, "change": change, "seed": recipe.seed}
    gradients = [
        who | {"moment": moment, "distance": distance - t, "gradient": float(norms[t])}
        for moment, norms in found.items()
        for t in reversed(range(len(norms)))
        if (distance - t) % 5 == 0
    ]
    row = who | {"accuracy": accuracy(model, new), "steps_to_99": arrived[0] if arrived else ""}
    return row, gradients


def align(recipe: Recipe, n_tests: int) -> tuple[nn.Module, str, list[Row]]:
    """Train a translator of numbers below 100 whose attention can be looked at.

    Args:
        recipe: how to train; its seed is that of weights and order, too.
        n_tests: how many of the numbers that it has not seen it translates.

    Returns:
        The network, its letters in the order of their ids, and its translations of the numbers
        that it has not seen.
    """
    small = [number for number in datasets.numbers().train if number.number < 100]
    letters = "".join(sorted({c for number in small for c in number.english + number.german}))

    def ids(word: str) -> list[int]:
        return [FIRST_SYMBOL + letters.index(letter) for letter in word]

    kept = [number for number in small if number.number > 20 and number.number % 7 == 0]
    pairs = [(ids(n.english), ids(n.german)) for n in small if n not in kept]
    torch.manual_seed(recipe.seed)
    model = RecurrentSeq2Seq(FIRST_SYMBOL + len(letters), ALIGNER_WIDTH)
    batches = Batches(pairs, translation, batch_size=BATCH, seed=recipe.seed)
    train(model, batches, recipe, device="cpu", progress=False)
    rows = [
        {"english": n.english, "german": n.german, "answer": _write(model, ids(n.english), letters)}
        for n in kept[:n_tests]
    ]
    return model, letters, rows


@torch.no_grad()
def _write(model: nn.Module, source: list[int], letters: str) -> str:
    """Translate letter by letter, the likeliest one each time."""
    written = [1]
    while len(written) < 20:
        logits = model(torch.tensor([source]), torch.tensor([written])).logits
        written.append(int(logits[0, -1].argmax()))
        if written[-1] < FIRST_SYMBOL:
            break
    return "".join(letters[i - FIRST_SYMBOL] for i in written[1:] if i >= FIRST_SYMBOL)


def run_all(options: Options) -> tuple[dict[str, list[Row]], nn.Module, str]:
    """Make all runs side by side, each with one thread; the longest ones start first.

    Args:
        options: the experiment's.

    Returns:
        The tables, the translator, and its letters.
    """
    seeds = options.seeds(3)
    lengths, distance = options.pick(LENGTHS, (2, MAX_LENGTH)), options.pick(DISTANCE, 5)
    n_copies, n_recalls = options.pick(500, 2), options.pick(1_000, 8)
    copying, recalling = options.n_steps(800), options.n_steps(500)
    copies = [
        (copy_one, *kind, constant_adam(copying, 5e-3, seed=seed), lengths, n_copies)
        for kind, seed in product(COPIERS, seeds)
    ]
    recalls = [
        (recall_one, *each, constant_adam(recalling, 3e-3, seed=seed), distance, n_recalls)
        for each, seed in product(CHANGES, seeds)
    ]
    recipe = constant_adam(options.n_steps(400), 5e-3, seed=options.seed)
    plan = [*copies, *recalls, (align, recipe, options.pick(100, 1))]
    *made, (model, letters, translations) = side_by_side(operator.call, plan, options)
    recalled = made[len(copies) :]
    tables = {
        "copying": [row for rows in made[: len(copies)] for row in rows],
        "recall": [row for row, _ in recalled],
        "gradients": [row for _, rows in recalled for row in rows],
        "translations": translations,
    }
    return tables, model, letters


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write their tables, and the translator."""
    options = read_options("memory", __doc__, arguments)
    tables, model, letters = run_all(options)
    save_file(model.state_dict(), options.folder / "aligner.safetensors")
    content = json.dumps({"letters": letters, "d_model": ALIGNER_WIDTH}, ensure_ascii=False)
    (options.folder / "aligner.json").write_text(content + "\n", encoding="utf-8")
    metrics = {
        f"letters_copied_at_{MAX_LENGTH}_{'with' if attention else 'without'}_attention_{width}": (
            mean_of(
                tables["copying"], "letters", attention=attention, width=width, length=MAX_LENGTH
            )
        )
        for attention, width in COPIERS
    }
    metrics |= {
        f"recalled_by_{kind}_{change}".replace(" ", "_"): mean_of(
            tables["recall"], "accuracy", model=kind, change=change
        )
        for kind, change in CHANGES
    }
    metrics["translated"] = mean(row["german"] == row["answer"] for row in tables["translations"])
    write_results(
        replace(options, device="cpu"),
        "transformer_book.tasks.copy_task and recall_task; book/data/numbers.tsv below 100", ABOUT,
        metrics, constant_adam(options.n_steps(500), 3e-3, seed=options.seed), tables=tables,
        more={"n_seeds": len(options.seeds(3))},
    )  # fmt: skip


if __name__ == "__main__":
    main()
