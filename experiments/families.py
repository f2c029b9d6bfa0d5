"""Encoder, decoder, or both? Three families at the same tasks, and three ways to prepare them.

    python -m experiments.families

First, small models of one size learn to translate numbers: an encoder-decoder, decoders that read
the source as a part of their own sequence, and an encoder that guesses all letters at once. Then
encoders and decoders learn to tell languages, each with the vector of the first token, of the last,
or the mean. At last, bodies are prepared with texts that have no labels, by three objectives, and
learn the same from a handful of labels.
"""

import operator
import random
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from experiments.shared.common import (
    Options,
    Row,
    accuracy,
    constant_adam,
    mean_of,
    merge_tables,
    n_parameters,
    read_options,
    rows_where,
    side_by_side,
    small_config,
    write_results,
)
from transformer_book import datasets
from transformer_book.datasets import LANGUAGES, NumberWords
from transformer_book.objectives import corrupt_spans, draw_spans, mask_tokens
from transformer_book.tasks import answer_batch
from transformer_lib import (
    IGNORE,
    Batch,
    Batches,
    CausalLM,
    Decoder,
    Encoder,
    Metrics,
    OutputLayer,
    Recipe,
    Seq2SeqLM,
    TransformerConfig,
    classification_batch,
    evaluate,
    mean_over_tokens,
    modes_kept,
    next_token_batch,
    pad,
    prefix_mask,
    token_mask,
    train,
    translation_batch,
)

CHAPTER = "15_families"
PAD, BOS, EOS, SEP, MASK = range(5)  # SEP: the source ends; MASK: here is a letter to guess
SENTINELS = tuple(range(5, 15))
FIRST_LETTER = 15
LIMIT = 10_000  # numbers below this are translated

FAMILIES = {  # and the number of blocks; the encoder-decoder has as many in each half
    "encoder-decoder": 3,
    "decoder": 7,
    "decoder, loss on all": 7,
    "decoder, prefix open": 7,
    "decoder, 4 blocks": 4,
    "encoder, all at once": 7,
}
POOLINGS = ("first", "mean", "last")
OBJECTIVES = {  # what a body is prepared with, and what reads it afterwards
    "none, encoder": ("encoder", "mean"),
    "none, decoder": ("decoder", "last"),
    "causal": ("decoder", "last"),
    "masked": ("encoder", "mean"),
    "masked, always [MASK]": ("encoder", "mean"),
    "masked, 40 %": ("encoder", "mean"),
    "spans": ("encoder", "mean"),
}
ABOUT = {
    "Task": f"""Translation: an English number below {LIMIT:,} in, the German word out, letter by
        letter. Languages: the words of a number below 1,000 in, one of {len(LANGUAGES)} languages
        out.""",
    "Choices": """D = 64, four heads, sinusoidal positions, pre-norm, ReLU, one table of letters for
        input and output. Three blocks of encoder and three of decoder have as many matrices as
        seven blocks without cross-attention. All families see the same pairs in the same order, and
        are judged by the letters of the target alone; `loss on all` also learns to predict the
        source. `prefix open`: the source's letters see each other both ways. `all at once`: an
        encoder reads the source and as many mask tokens as the longest answer has letters, and
        fills all of them at the same time. Readers of languages have two blocks; bodies are
        prepared with the words of the training part without their labels, then trained further with
        a few labels, with two learning rates, of which the validation part chooses.""",
    "How to read the tables": """`results.csv`: at the end, `letters` is the share of right letters,
        the end included, with the true letters before each; `words` the share of answers that are
        right from first letter to end. These are also the words that greedy decoding gets right: it
        makes its first mistake where the taught model does. `examples` is how many numbers it
        learned from. `curves.csv`: the same on the way. `pooling.csv`: accuracy on the test part
        by family and by the vector that is classified, after learning from `labels` words.
        `tuned.csv`: the same after each objective; `chosen` marks the better learning rate by the
        validation part. `prepared.csv`: each objective's own loss on new words, which are not
        comparable, and how many tokens of a batch are asked for.""",
    "Intended use": "Teaching: what the three families and the three objectives are good for.",
    "Limits": """Small models, short trainings, tasks with one right answer. All learned with the
        same recipe, tuned for none of them. What large models gain from their objectives is not
        measured here.""",
}


# ------------------------------------------------------------------------------- translation


@cache
def languages() -> datasets.Parts[list[NumberWords]]:
    """Read the words of a dozen languages, once."""
    return datasets.languages()


@cache
def letters() -> dict[str, int]:
    """Number the letters of English and German numbers and of all languages."""
    used = {c for n in datasets.numbers().train for c in n.english + n.german}
    used |= {c for row in languages().train for c in row.words}
    return {letter: i for i, letter in enumerate(sorted(used), FIRST_LETTER)}


def encode(text: str) -> list[int]:
    """Write a text as ids of its letters; those of no training text are left out."""
    ids = letters()
    return [ids[letter] for letter in text if letter in ids]


@cache
def pairs_of(part: Literal["train", "test"]) -> list[tuple[list[int], list[int]]]:
    """Return the numbers of one part as pairs of ids."""
    some = [n for n in getattr(datasets.numbers(), part) if n.number < LIMIT]
    return [(encode(n.english), encode(n.german)) for n in some]


def build(family: str, d_model: int, max_len: int) -> CausalLM | Seq2SeqLM:
    """Make a translator with new weights.

    Args:
        family: one of ``FAMILIES``.
        d_model: the width.
        max_len: of the longest sequence.

    Returns:
        The model.
    """
    sizes = {"vocab_size": FIRST_LETTER + len(letters()), "max_len": max_len, "d_model": d_model}
    config = small_config(**sizes, n_layers=FAMILIES[family], activation="relu")
    if family == "encoder-decoder":
        return Seq2SeqLM(config)
    model = CausalLM(config)
    # The last two say with their masks what may be seen.
    model.decoder.stack.causal = family not in ("decoder, prefix open", "encoder, all at once")
    return model


def make_batch(
    family: str, pairs: Sequence[tuple[list[int], list[int]]], n_slots: int, *, judged: bool = False
) -> Batch:
    """Write pairs down as a family reads them.

    Args:
        family: one of ``FAMILIES``.
        pairs: ids of source and target.
        n_slots: how many letters the encoder guesses at once.
        judged: whether only the target's letters count, whatever the family learns from.

    Returns:
        The model's inputs, and ``targets``.
    """
    if family == "encoder-decoder":
        return translation_batch(pairs, PAD, BOS, EOS)
    prompts = [([*source, SEP], [*target, EOS]) for source, target in pairs]
    if family == "encoder, all at once":
        ids, mask = pad([prompt + [MASK] * n_slots for prompt, _ in prompts], PAD)
        targets = torch.full_like(ids, IGNORE)
        for row, (prompt, answer) in zip(targets, prompts, strict=True):
            row[len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        return {"ids": ids, "mask": mask, "targets": targets}
    if family == "decoder, loss on all" and not judged:
        return next_token_batch([prompt + answer for prompt, answer in prompts], PAD)
    batch = answer_batch(prompts, PAD)
    if family == "decoder, prefix open":
        lengths = torch.tensor([len(prompt) for prompt, _ in prompts])
        open_prefix = prefix_mask(lengths, batch["ids"].shape[1])
        batch["mask"] = open_prefix & token_mask(batch["ids"], PAD)
    return batch


@torch.no_grad()
def judge(model: nn.Module, batch: Batch) -> Row:
    """Return which part of the letters, and of the answers, is right with true letters before."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "targets"}
    counts = batch["targets"] != IGNORE
    right = (model(**inputs).argmax(dim=-1) == batch["targets"]) & counts
    return {
        "letters": round(float(right.sum() / counts.sum()), 5),
        "words": round(float((right | ~counts).all(dim=1).double().mean()), 5),
    }


def run_translation(
    family: str, examples: int, recipe: Recipe, sizes: tuple[int, int, int], device: str
) -> dict[str, list[Row]]:
    """Train one translator and judge it on the way.

    Args:
        family: one of ``FAMILIES``.
        examples: how many numbers to learn from.
        recipe: how to train; its seed is also that of weights and batches.
        sizes: the width, the batch and how many tests there are.
        device: where to train.

    Returns:
        Rows of ``curves.csv``, the last of which goes to ``results.csv``.
    """
    d_model, batch_size, n_tests = sizes
    rng = random.Random(recipe.seed)
    known = rng.sample(pairs_of("train"), examples)
    new = pairs_of("test")[:n_tests]
    n_slots = 1 + max(len(target) for _, target in [*known, *new])
    longest = max(len(source) for source, _ in [*known, *new]) + 1 + n_slots
    torch.manual_seed(recipe.seed)
    model = build(family, d_model, longest).to(device)
    # The same pairs in the same order for all families of one seed.
    batches = Batches(
        known,
        lambda pairs: make_batch(family, pairs, n_slots),
        batch_size=batch_size,
        seed=recipe.seed,
    )
    test = make_batch(family, new, n_slots, judged=True)
    test = {name: tensor.to(device) for name, tensor in test.items()}
    run = {"family": family, "examples": examples, "seed": recipe.seed}
    run |= {"parameters": n_parameters(model)}
    rows: list[Row] = []

    def look(row: Metrics) -> None:
        point = run | {"step": row["step"], "loss": round(row["loss"], 4)}
        with modes_kept(model):
            rows.append(point | judge(model.eval(), test))

    train(model, batches, recipe, device=device, progress=False, on_step=look)
    return {"results": rows[-1:], "curves": rows}


# -------------------------------------------------------------------------------- languages


class Reader(nn.Module):
    """An encoder or a decoder that says to which class a text belongs.

    Args:
        config: the model's configuration.
        family: ``"encoder"`` or ``"decoder"``.
        pooling: whose vector is classified: that of the first token, of the last, or the mean.
        n_classes: how many classes there are.
    """

    def __init__(
        self, config: TransformerConfig, family: str, pooling: str, n_classes: int
    ) -> None:
        super().__init__()
        self.body = Encoder(config)
        self.body.stack.causal = family == "decoder"
        self.pooling = pooling
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, n_classes)

    def forward(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B 1 1 T"]
    ) -> Float[Tensor, "B n_classes"]:
        """Score the classes."""
        x = self.body(ids, mask)
        if self.pooling == "mean":
            pooled = mean_over_tokens(x, mask)
        else:
            last = mask.sum(dim=(1, 2, 3)) - 1
            place = torch.zeros_like(last) if self.pooling == "first" else last
            pooled = x[torch.arange(len(x), device=x.device), place]  # (B, D)
        scores: Tensor = self.classifier(self.dropout(pooled))
        return scores


class Guesser(nn.Module):
    """A body that learns from texts without labels: it guesses tokens.

    Args:
        config: the body's configuration.
        objective: one of ``OBJECTIVES``; for spans there is one block of decoder more, which is
            thrown away afterwards.
    """

    def __init__(self, config: TransformerConfig, objective: str) -> None:
        super().__init__()
        self.body = Encoder(config)
        self.body.stack.causal = objective == "causal"
        self.writer: Decoder | None = None
        if objective == "spans":
            self.writer = Decoder(config, cross_attention=True)
            del self.writer.stack.blocks[1:]
            self.writer.embedding.tokens = self.body.embedding.tokens
        self.output = OutputLayer(config, self.body.embedding.tokens)

    def forward(
        self,
        ids: Int[Tensor, "B S"],
        mask: Bool[Tensor, "B 1 1 S"] | None = None,
        answer: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B _ V"]:
        """Score every token at each place, of the text or of the answer."""
        x = self.body(ids, mask)
        if self.writer is not None:
            x = self.writer(answer, x, None, mask)
        logits: Tensor = self.output(x)
        return logits


def with_ends(row: NumberWords) -> list[int]:
    """Write words as a reader gets them: a start token, the letters, an end token."""
    return [BOS, *encode(row.words), EOS]


def labelled(rows: Sequence[NumberWords], batch_size: int, seed: int = 0) -> Batches:
    """Make batches of texts and their languages."""
    examples = [(torch.tensor(with_ends(row)), row.label) for row in rows]
    return Batches(examples, classification_batch, batch_size=batch_size, seed=seed)


def guessing(objective: str, rows: Sequence[NumberWords], batch_size: int, seed: int) -> Batches:
    """Make batches of texts without labels, as an objective wants them.

    Args:
        objective: one of ``OBJECTIVES``.
        rows: the texts; their languages are not looked at.
        batch_size: how many texts a batch has.
        seed: of the order, and of what is hidden.
    """
    texts = [with_ends(row) for row in rows]
    if objective == "causal":
        return Batches(texts, next_token_batch, batch_size=batch_size, seed=seed)
    if objective == "spans":
        pairs = []
        for number, (ids, _) in enumerate(product(texts, range(5))):  # each text in five ways
            inside = ids[1:-1]
            if len(inside) > 1:
                place = seed * 10**6 + number
                spans = draw_spans(len(inside), rate=0.15, mean_length=3, seed=place)
                source, target = corrupt_spans(inside, spans, SENTINELS)
                pairs.append(([BOS, *source, EOS], target))

        def read_and_write(some: Sequence[tuple[list[int], list[int]]]) -> Batch:
            batch = translation_batch(some, PAD, BOS, EOS)
            names = {"source": "ids", "source_mask": "mask", "target": "answer"}
            return {names.get(name, name): tensor for name, tensor in batch.items()}

        return Batches(pairs, read_and_write, batch_size=batch_size, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    rate = 0.4 if objective == "masked, 40 %" else 0.15
    shares = (1.0, 0.0) if objective == "masked, always [MASK]" else (0.8, 0.1)
    symbols = list(letters().values())

    def hide(some: Sequence[list[int]]) -> Batch:
        ids, mask = pad(some, PAD)
        options: Any = {"rate": rate, "shares": shares, "generator": generator}
        inputs, targets, _ = mask_tokens(ids, MASK, symbols, **options)
        return {"ids": inputs, "mask": mask, "targets": targets}

    return Batches(texts, hide, batch_size=batch_size, seed=seed)


def some_labels(labels: int, seed: int) -> list[NumberWords]:
    """Return words of the training part: those of the same random numbers in every language."""
    rows = languages().train
    numbers = sorted({row.number for row in rows})
    kept = set(random.Random(seed).sample(numbers, min(labels, len(numbers))))
    return [row for row in rows if row.number in kept]


def reader_config(d_model: int, dropout: float) -> TransformerConfig:
    """Return the sizes of a body that reads languages."""
    sizes = {"vocab_size": FIRST_LETTER + len(letters()), "max_len": 64, "d_model": d_model}
    return small_config(**sizes, activation="relu", dropout=dropout)


def run_pooling(
    family: str, pooling: str, labels: int, recipe: Recipe, sizes: tuple[int, int], device: str
) -> dict[str, list[Row]]:
    """Train one reader from the start, and test it.

    Args:
        family: ``"encoder"`` or ``"decoder"``.
        pooling: one of ``POOLINGS``.
        labels: how many numbers it learns from, each in all languages.
        recipe: how to train.
        sizes: the width, and how many tests there are.
        device: where to train.

    Returns:
        A row of ``pooling.csv``.
    """
    d_model, n_tests = sizes
    torch.manual_seed(recipe.seed)
    model = Reader(reader_config(d_model, 0.1), family, pooling, len(LANGUAGES))
    known = some_labels(labels, recipe.seed)
    train(model, labelled(known, 64, recipe.seed), recipe, device=device, progress=False)
    row = {"family": family, "pooling": pooling, "labels": len(known), "seed": recipe.seed}
    test = labelled(spread(languages().test, n_tests), 1024)
    return {"pooling": [row | {"accuracy": round(accuracy(model, test), 5)}]}


def spread(rows: Sequence[NumberWords], n: int) -> list[NumberWords]:
    """Return at most ``n`` rows from anywhere in a list, always the same ones."""
    return random.Random(0).sample(rows, min(n, len(rows)))


def run_objective(
    objective: str,
    recipes: tuple[Recipe, Recipe],
    choices: tuple[tuple[int, ...], tuple[float, ...]],
    sizes: tuple[int, int],
    device: str,
) -> dict[str, list[Row]]:
    """Prepare one body, then train it further with a few labels, and test it.

    Args:
        objective: one of ``OBJECTIVES``.
        recipes: how to prepare it, and how to train it further.
        choices: for how many labelled numbers, and with which learning rates.
        sizes: the width, and how many tests there are.
        device: where to train.

    Returns:
        Rows of ``prepared.csv`` and of ``tuned.csv``.
    """
    (family, pooling), (first, second), (d_model, n_tests) = OBJECTIVES[objective], recipes, sizes
    seed, data, config = first.seed, languages(), reader_config(d_model, 0.1)
    torch.manual_seed(seed)
    guesser = Guesser(config, objective)
    prepared: list[Row] = []
    if not objective.startswith("none"):
        batches = guessing(objective, data.train[: n_tests * 5], 128, seed)
        train(guesser, batches, first, device=device, progress=False)
        new = guessing(objective, data.validation[: max(n_tests, 8)], 256, seed=10**3)
        tokens = evaluate(guesser, new)
        texts = sum(len(batch["targets"]) for batch in new.one_pass())
        prepared.append(
            {
                "objective": objective,
                "seed": seed,
                "loss": round(tokens["loss"], 4),
                "asked": round(tokens["tokens"] / texts, 3),
            }
        )
    body = {name: tensor.cpu().clone() for name, tensor in guesser.body.state_dict().items()}
    validation = labelled(spread(data.validation, n_tests), 1024)
    test = labelled(spread(data.test, n_tests), 1024)
    tuned: list[Row] = []
    for labels in choices[0]:
        known, rows = some_labels(labels, seed), []
        for rate in choices[1]:
            torch.manual_seed(seed)
            reader = Reader(config, family, pooling, len(LANGUAGES))
            reader.body.load_state_dict(body)
            recipe = Recipe(**vars(second) | {"learning_rate": rate, "seed": seed})
            train(reader, labelled(known, 64, seed), recipe, device=device, progress=False)
            row: Row = {"objective": objective, "labels": len(known), "seed": seed, "rate": rate}
            row["validation"] = round(accuracy(reader, validation), 5)
            rows.append(row | {"accuracy": round(accuracy(reader, test), 5)})
        best = max(row["validation"] for row in rows)
        first_best = next(row for row in rows if row["validation"] == best)
        tuned += [row | {"chosen": int(row is first_best)} for row in rows]
    return {"prepared": prepared, "tuned": tuned}


# ------------------------------------------------------------------------------------ plan


def plan_of(options: Options) -> list[tuple[Any, ...]]:
    """List all runs, the longest ones first."""
    seeds, device = options.seeds(3), options.device

    def recipe(steps: int, rate: float, seed: int, n_looks: int = 1) -> Recipe:
        return constant_adam(
            steps, rate, seed=seed, schedule="linear", final_fraction=0.02,
            log_every=max(steps // n_looks, 1), clip=1.0,
        )  # fmt: skip

    steps = options.n_steps(500)
    plan: list[tuple[Any, ...]] = []
    sizes = options.pick((64, 128, 757), (8, 4, 4))
    for family, examples, seed in product(FAMILIES, options.pick((8_841, 1_000), (50,)), seeds):
        made = recipe(steps, 2e-3, seed, options.pick(10, 1))
        plan.append((run_translation, family, examples, made, sizes, device))
    few = options.pick((64, 2_000), (8, 8))
    for objective, seed in product(OBJECTIVES, seeds):
        made_twice = (
            recipe(options.n_steps(600), 2e-3, seed),
            recipe(options.n_steps(100), 1e-3, seed),
        )
        choices = (options.pick((1, 5, 25), (1,)), options.pick((3e-4, 2e-3), (1e-3,)))
        plan.append((run_objective, objective, made_twice, choices, few, device))
    for family, pooling in product(("encoder", "decoder"), POOLINGS):
        for labels, seed in product(options.pick((200, 25), (1,)), seeds):
            made = recipe(options.n_steps(300), 2e-3, seed)
            plan.append((run_pooling, family, pooling, labels, made, few, device))
    return plan


def summary(tables: dict[str, list[Row]]) -> dict[str, float]:
    """Return the means that the card shows."""
    found: dict[str, float] = {}
    groups = (
        ("results", "words", ("family", "examples")),
        ("pooling", "accuracy", ("family", "pooling", "labels")),
        ("tuned", "accuracy", ("objective", "labels")),
    )
    for table, value, keys in groups:
        rows = tables[table] if table != "tuned" else rows_where(tables[table], chosen=1)
        for group in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
            if table != "pooling" or group[2] > 1_000 or len(rows) < 7:
                name = f"{value} ({', '.join(map(str, group))})"
                found[name] = mean_of(rows, value, **dict(zip(keys, group, strict=True)))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write their tables."""
    options = read_options("families", __doc__, arguments)
    plan = plan_of(options)
    tables = merge_tables(side_by_side(operator.call, plan, options))
    write_results(
        options, "book/data/numbers.tsv and book/data/languages.tsv", ABOUT, summary(tables),
        plan[0][3], tables=tables, more={"blocks": FAMILIES, "n_seeds": options.pick(3, 1)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
