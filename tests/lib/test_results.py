"""What book/results holds is what its cards say: models, data and numbers belong together."""

import csv
import hashlib
import importlib
import json
from statistics import mean

import pytest
import torch
from omissions import differences, fail_on

from experiments import digits, memory, optimizers, surfaces
from experiments.numbers import mistakes
from experiments.shared.common import ROOT, accuracy, card_text, modern_config, predictions
from transformer_book import datasets
from transformer_book.datasets import LANGUAGES
from transformer_book.results import table
from transformer_lib.models.saving import load_model
from transformer_lib.text.tokenizers import Tokenizer
from transformer_lib.training.data import Batches, classification_batch

RESULTS = ROOT / "book" / "results"
CARDS = {path.parent.name: json.loads(path.read_text()) for path in RESULTS.glob("*/card.json")}
WITH_MODEL = sorted(name for name, card in CARDS.items() if "model" in card)


def read_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


WITHOUT_MODEL = {
    *("recall", "memory", "words", "scores", "leakage", "heads"),
    *("lengths", "activations", "warmup", "surfaces", "dropout", "decoders"),
    *("ablations", "families", "cache_costs", "attention_costs", "cheaper", "modern"),
    *("patches", "scaling", "hardware", "precision", "addition", "paragraphs"),
    *("word_head", "input_scale", "mask_costs", "probes", "stretching", "experts"),
    *("norm_costs", "norm_trials", "skips", "senses", "sublayers", "fingers"),
    "optimizers",
}
MODELS = {"numbers", "shakespeare", "languages", "digits", "drafts", "induction"}


def card_problems(cards):
    """Which results have no card, which cards nobody knows, and whose model is missing or new."""
    here = "tests/lib/test_results.py"
    problems = differences(
        cards,
        WITHOUT_MODEL | MODELS,
        lacks=lambda name: (
            f"book/results/{name}/card.json is not there: run "
            f"`.venv/bin/python -m experiments.{name}`, or take {name} out of {here}"
        ),
        extra=lambda name: (
            f"book/results/{name} has a card that {here} does not know: add "
            f"{name!r} to WITHOUT_MODEL, or to MODELS if it leaves a model"
        ),
    )
    for name in sorted(set(cards) & (WITHOUT_MODEL | MODELS)):
        if ("model" in cards[name]) != (name in MODELS):
            known = "MODELS" if name in MODELS else "WITHOUT_MODEL"
            has = "a" if "model" in cards[name] else "no"
            said = f"book/results/{name}/card.json tells of {has} model"
            problems.append(f"{said}, but {name} is in {known} of {here}")
    return problems


def test_every_experiment_has_its_card():
    fail_on(card_problems(CARDS))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"words": None}, "book/results/words/card.json is not there: run `.venv/bin/"),
        ({"new": {}}, "book/results/new has a card that tests/lib/test_results.py does not know"),
        ({"words": {"model": {}}}, "book/results/words/card.json tells of a model, but words"),
        ({"digits": {}}, "book/results/digits/card.json tells of no model, but digits is in M"),
    ],
)
def test_a_result_that_lacks_its_card_is_told_what_to_do(change, said):
    whole = {name: {} for name in WITHOUT_MODEL} | {name: {"model": {}} for name in MODELS}
    assert card_problems(whole) == []
    cards = {name: card for name, card in {**whole, **change}.items() if card is not None}
    (problem,) = card_problems(cards)
    assert problem.startswith(said)


@pytest.mark.parametrize("name", sorted(CARDS))
def test_a_card_is_that_of_a_full_run_and_reads_like_its_json(name):
    card = CARDS[name]
    again = f"run `.venv/bin/python -m experiments.{name}`"
    is_full = (card["experiment"], card["tiny"]) == (name, False)
    assert is_full, f"book/results/{name}/card.json is not that of a full run of {name}: {again}"
    module = importlib.import_module(f"experiments.{name}")
    assert hasattr(module, "ABOUT"), f"experiments/{name}.py: add ABOUT, the words of its card"
    path = RESULTS / name / "card.md"
    assert path.is_file(), f"book/results/{name}/card.md is not there: {again}"
    said = f"book/results/{name}/card.md: write it anew from card.json and experiments/{name}.py"
    is_current = path.read_text(encoding="utf-8") == card_text(card, module.ABOUT)
    assert is_current, f"{said}, with card_text(card, ABOUT)"


@pytest.mark.parametrize("name", WITH_MODEL)
def test_the_data_and_the_model_are_those_of_the_card(name):
    card = CARDS[name]
    if name == "induction":  # drawn at random: its data are described
        assert set(card["data"]) == {"description"}
    else:
        content = (ROOT / card["data"]["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == card["data"]["sha256"]
    model = load_model(RESULTS / name)
    assert type(model).__name__ == card["model"]["class"]
    assert sum(parameter.numel() for parameter in model.parameters()) == card["parameters"]


@pytest.mark.parametrize("name", ["shakespeare", "drafts"])
def test_the_parts_of_today_are_those_of_the_shipped_models(name):
    config = CARDS[name]["model"]["arguments"]["config"]
    sizes = ("vocab_size", "max_len", "d_model", "n_heads", "n_layers", "d_ff", "dropout")
    assert (
        modern_config(**{size: config[size] for size in sizes}) == load_model(RESULTS / name).config
    )


def test_digits_gets_as_many_right_as_its_card_says():
    images = list(zip(*datasets.digits().test, strict=True))
    batches = Batches(images, digits.image_batch, batch_size=400)
    found = accuracy(load_model(RESULTS / "digits"), batches)
    card = CARDS["digits"]
    assert found == card["metrics"]["test_accuracy"]
    kept = card["seeds"][card["metrics"]["chosen_seed"] - card["seed"]]
    assert kept["test"] == found
    order = [(row["validation"], -row["validation_loss"]) for row in card["seeds"]]
    assert card["seeds"][order.index(max(order))] == kept  # chosen without the test part


def test_languages_makes_the_mistakes_of_its_confusion_matrix():
    folder = RESULTS / "languages"
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    rows = sorted(datasets.languages().test, key=lambda row: len(row.words))  # little padding
    examples = [(torch.tensor(tokenizer.encode(row.words)), row.label) for row in rows]
    batches = Batches(examples, classification_batch, batch_size=256, shuffle=False)
    answers = predictions(load_model(folder), batches).tolist()
    codes = list(LANGUAGES)
    counts = {(truth, answer): 0 for truth in codes for answer in codes}
    for row, answer in zip(rows, answers, strict=True):
        counts[row.language, codes[answer]] += 1
    stored = {
        (row["language"], code): int(row[code])
        for row in read_csv(folder / "confusion.csv")
        for code in codes
    }
    assert counts == stored
    metrics = CARDS["languages"]["metrics"]
    n_right = sum(counts[code, code] for code in codes)
    assert metrics["test_examples"] == len(rows)
    assert metrics["test_mistakes"] == len(rows) - n_right
    assert metrics["test_accuracy"] == n_right / len(rows)


def test_numbers_translates_the_first_hundred_of_its_test():
    folder = RESULTS / "numbers"
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    assert mistakes(load_model(folder), datasets.numbers().test[:100], tokenizer) == []
    metrics = CARDS["numbers"]["metrics"]  # all thousand would take ten times as long
    assert metrics["test_exact_match"] == 1 - metrics["test_mistakes"] / metrics["test_numbers"]


def test_shakespeare_keeps_the_step_with_the_lowest_validation_loss():
    rows = read_csv(RESULTS / "shakespeare" / "metrics.csv")
    losses = {int(r["step"]): float(r["validation_loss"]) for r in rows if r["validation_loss"]}
    metrics = CARDS["shakespeare"]["metrics"]
    best = min(losses, key=losses.get)
    assert best == metrics["best_step"]
    # The card's is computed in float32, that of the curve in bfloat16.
    assert losses[best] == pytest.approx(metrics["validation_loss"], abs=0.005)


def test_recall_means_are_those_of_its_rows():
    rows = read_csv(RESULTS / "recall" / "results.csv")
    for name, value in CARDS["recall"]["metrics"].items():
        found = [
            float(row["accuracy"])
            for row in rows
            if name == f"{row['form']} {row['model']} at {row['distance']}".replace(" ", "_")
        ]
        assert len(found) == CARDS["recall"]["n_seeds"]
        assert sum(found) / len(found) == pytest.approx(value)


def mean_where(name, file, column, **where):
    """The mean of a column over the rows that have certain values."""
    rows = read_csv(RESULTS / name / file)
    wanted = {key: str(value) for key, value in where.items()}
    return mean(float(row[column]) for row in rows if wanted.items() <= row.items())


SUMMARIES = [  # a number of a card, and the rows it sums up
    ("scores", "best_loss_4x64_root_unit", "loss",
     {"n_heads": 4, "d_head": 64, "scale": "root", "start": "unit", "rate": 0.001}),
    ("scores", "best_loss_1x256_none_small", "loss",
     {"n_heads": 1, "d_head": 256, "scale": "none", "start": "small", "rate": 0.0003}),
    ("heads", "both_right_1x32_linear", "both_right", {"heads": 1, "reader": "linear"}),
    ("heads", "both_right_32x1_linear", "both_right", {"heads": 32, "d_head": 1}),
    ("leakage", "honest_loss (none)", "honest_loss", {"mask": "none", "step": 600}),
    ("leakage", "valid (causal)", "valid", {"mask": "causal", "step": 600}),
    ("lengths", "loss_rope_1024", "loss", {"scheme": "rope", "length": 1024}),
    ("lengths", "loss_none_128", "loss", {"scheme": "none", "length": 128}),
    ("activations", "loss (swiglu)", "loss", {"kind": "swiglu", "learning_rate": 0.003}),
    ("activations", "loss (none)", "loss", {"kind": "none", "learning_rate": 0.003}),
    ("experts", "loss (bias)", "loss", {"kind": "bias", "learning_rate": 0.003}),
    ("warmup", "loss_post_18_warmup_80", "loss",
     {"kind": "post", "depth": 18, "rate": 0.001, "warmup": 80}),
    ("warmup", "loss_pre_18_warmup_0", "loss",
     {"kind": "pre", "depth": 18, "rate": 0.001, "warmup": 0}),
    ("decoders", "words (reverse, no feed-forward)", "words",
     {"task": "reverse", "kind": "no feed-forward"}),
    ("families", "words (decoder, 1000)", "words", {"family": "decoder", "examples": 1000}),
    ("cheaper", "loss_window_4", "loss", {"kind": "window 4"}),
    ("induction", "right (two layers)", "right", {"kind": "two layers", "step": 800}),
    ("addition", "6 digits, last digit first, none", "right",
     {"order": "last digit first", "position": "none", "digits": 6}),
    ("attention_costs", "fused_both_16384_ms", "milliseconds",
     {"device": "gpu", "kind": "fused", "length": 16384, "pass": "both"}),
    ("mask_costs", "window_function_ms", "milliseconds",
     {"task": "window", "kind": "function", "pass": "forward"}),
    ("hardware", "peak GiB (bfloat16, recomputed)", "peak_gib",
     {"form": "bfloat16, recomputed", "batch": 16}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "metric", "column", "where"), SUMMARIES)
def test_a_card_sums_up_its_rows(name, metric, column, where):
    found = mean_where(name, "results.csv", column, **where)
    assert CARDS[name]["metrics"][metric] == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize("optimizer", optimizers.OPTIMIZERS)
@pytest.mark.parametrize("schedule", [*optimizers.SCHEDULES, optimizers.AVERAGED])
def test_no_optimizer_is_judged_at_an_end_of_its_grid(optimizer, schedule):
    arm = {"optimizer": optimizer, "schedule": schedule}
    rate = optimizers.best_rate(table("optimizers"), **arm)
    assert optimizers.RATES[0] < rate < optimizers.RATES[-1]
    metrics = CARDS["optimizers"]["metrics"]
    assert metrics[f"best rate ({optimizer}, {schedule})"] == rate
    found = mean_where("optimizers", "results.csv", "loss", **arm, rate=rate)
    assert metrics[f"loss ({optimizer}, {schedule})"] == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7])
def test_the_card_of_dropout_takes_each_run_at_its_best_moment(rate):
    """One part of the held-back play chooses the moment, the other one judges it."""
    wanted = ("as in 2017", 20_000, rate)
    rows = [r for r in table("dropout") if (r["place"], r["letters"], r["dropout"]) == wanted]
    by_seed = {row["seed"]: [r for r in rows if r["seed"] == row["seed"]] for row in rows}
    best = [min(run, key=lambda row: row["loss"])["test_loss"] for run in by_seed.values()]
    metric = f"best test loss (as in 2017, 20,000 letters, dropout {rate})"
    assert CARDS["dropout"]["metrics"][metric] == pytest.approx(sum(best) / len(best), abs=1e-4)


@pytest.mark.parametrize(("attention", "width"), memory.COPIERS)
def test_the_card_of_memory_sums_up_its_copies(attention, width):
    where = {"attention": attention, "width": width, "length": 30}
    found = mean_where("memory", "copying.csv", "letters", **where)
    name = "with" if attention else "without"
    metric = CARDS["memory"]["metrics"][f"letters_copied_at_30_{name}_attention_{width}"]
    assert metric == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize(("shape", "norm", "start"), surfaces.DRAWN)
def test_the_card_of_surfaces_tells_of_the_deepest_networks_at_their_best_rate(shape, norm, start):
    rows = [row for row in table("surfaces") if (row["norm"], row["depth"]) == (norm, 32)]
    rate = surfaces.best_rate(rows, shape, start)
    where = {"shape": shape, "norm": norm, "start": start, "depth": 32, "rate": rate}
    metric = CARDS["surfaces"]["metrics"][
        f"accuracy ({shape}, norm {norm}, start {start}, deepest)"
    ]
    assert metric == pytest.approx(
        mean_where("surfaces", "results.csv", "accuracy", **where), abs=1e-4
    )
