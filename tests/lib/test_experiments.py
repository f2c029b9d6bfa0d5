"""Every experiment runs in its tiny form, and leaves what the book expects of it."""

import csv
import dataclasses
import hashlib
import importlib
import itertools
import json
import math
import re
import subprocess

import pytest
import torch
from omissions import differences, fail_on, told
from safetensors.torch import load_file

from experiments import (
    ablations,
    activations,
    addition,
    attention_costs,
    cache_costs,
    cheaper,
    decoders,
    digits,
    drafts,
    dropout,
    experts,
    families,
    fingers,
    hardware,
    heads,
    induction,
    input_scale,
    languages,
    leakage,
    lengths,
    mask_costs,
    memory,
    modern,
    norm_costs,
    norm_trials,
    numbers,
    optimizers,
    paragraphs,
    patches,
    precision,
    probes,
    recall,
    run_all,
    scaling,
    scores,
    senses,
    shakespeare,
    skips,
    stretching,
    sublayers,
    surfaces,
    warmup,
    word_head,
    words,
)
from experiments.shared import cards, common, loops
from transformer_book import datasets, minilm, objectives
from transformer_book.datasets import image_batch
from transformer_book.recurrent import RecurrentClassifier, RecurrentSeq2Seq
from transformer_book.tasks import recall_task
from transformer_lib.core.config import TransformerConfig
from transformer_lib.core.eval_mode import evaluating
from transformer_lib.layers.attention import attention
from transformer_lib.layers.feedforward import MixtureOfExperts
from transformer_lib.layers.masks import token_mask, window_mask
from transformer_lib.layers.positions import rope_angles, sinusoidal
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.models.saving import load_model
from transformer_lib.text.tokenizers import CharTokenizer, Tokenizer
from transformer_lib.tracing.watch import influence
from transformer_lib.training.recipes import learning_rate, modern_recipe

MODELS = {  # what each experiment trains, and the name of its result
    numbers: ("Seq2SeqLM", "test_exact_match", "numbers.tsv"),
    shakespeare: ("CausalLM", "validation_loss", "shakespeare.txt"),
    languages: ("SequenceClassifier", "test_accuracy", "languages.tsv"),
    digits: ("VisionTransformer", "test_accuracy", "digits.csv"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run an experiment at most once, and return its folder and what it printed."""
    done = {}

    def run(experiment):
        if experiment not in done:
            name = experiment.__name__.split(".")[-1]
            folder = tmp_path_factory.mktemp(name)
            experiment.main(["--tiny", "--out", str(folder), "--device", "cpu"])
            done[experiment] = folder
        return done[experiment]

    return run


def read_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("experiment", MODELS, ids=lambda module: module.__name__)
def test_an_experiment_leaves_a_model_its_curve_and_its_card(results, experiment):
    folder = results(experiment)
    kind, result, data = MODELS[experiment]
    model, card = load_model(folder), json.loads((folder / "card.json").read_text())
    assert type(model).__name__ == card["model"]["class"] == kind
    assert card["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert next(iter(card["metrics"])) == result
    assert card["data"]["file"] == f"book/data/{data}"
    content = (common.ROOT / card["data"]["file"]).read_bytes()
    assert card["data"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert card["environment"]["torch"] == torch.__version__
    assert (card["tiny"], card["seed"], card["recipe"]["steps"]) == (True, 0, 4)
    assert "--tiny" in card["arguments"]
    assert "--out" not in card["arguments"]  # where the files went is no part of the run
    rows = read_csv(folder / "metrics.csv")
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert all(float(row["loss"]) > 0 for row in rows)
    text = (folder / "card.md").read_text()
    assert text == cards.card_text(card, experiment.ABOUT)
    assert f"`python -m {experiment.__name__} --tiny" in text
    for heading in ("Task", "Intended use", "Limits", "Results", "Data", "Model", "Recipe", "Run"):
        assert f"\n## {heading}\n" in text
    assert (folder / "tokenizer.json").exists() == (experiment is not digits)


def test_the_translator_in_the_folder_is_the_one_that_was_measured(results):
    folder = results(numbers)
    model, tokenizer = load_model(folder), Tokenizer.load(folder / "tokenizer.json")
    card = json.loads((folder / "card.json").read_text())
    test = datasets.numbers().test[: card["metrics"]["test_numbers"]]
    assert numbers.mistakes(model, test, tokenizer) == card["mistakes"]


def test_mistakes_are_the_answers_that_differ(monkeypatch):
    some = datasets.numbers().train[40:43]
    answers = [some[0].german, "zweiundvierzig", some[2].german]
    monkeypatch.setattr(numbers, "translate", lambda *_: answers)
    wrong = numbers.mistakes(None, some, None)
    assert wrong == [{"english": "forty-one", "german": "einundvierzig", "answer": answers[1]}]


def test_translations_do_not_depend_on_what_else_is_in_the_batch():
    torch.manual_seed(0)
    tokenizer = CharTokenizer.train(["ü"])
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size, max_len=80, d_model=8, n_heads=2, n_layers=1
    )
    model, texts = Seq2SeqLM(config).eval(), ["one", "forty-one"]
    alone = [numbers.translate(model, [text], tokenizer)[0] for text in texts]
    assert numbers.translate(model, texts, tokenizer) == alone


def test_sliding_windows_ask_for_every_character_once_with_enough_before_it():
    ids = torch.arange(103)
    asked = []
    for batch in shakespeare.sliding_windows(ids, length=16, batch_size=4).one_pass():
        assert batch["ids"].shape[1] <= 16
        for row, targets in zip(batch["ids"], batch["targets"], strict=True):
            places = (targets >= 0).nonzero()[:, 0]
            assert torch.equal(targets[places], row[places] + 1)
            assert places[0] >= 12 or row[0] == 0
            asked += targets[places].tolist()
    assert asked == list(range(1, 103))


def test_the_sample_goes_on_beyond_a_window_and_can_be_repeated(results):
    folder = results(shakespeare)
    model, tokenizer = load_model(folder), Tokenizer.load(folder / "tokenizer.json")
    assert isinstance(model, CausalLM)
    sample = shakespeare.write_text(model, tokenizer, "\n", n=50, seed=0)
    assert sample == json.loads((folder / "card.json").read_text())["sample"]
    assert (folder / "sample.txt").read_bytes() == (sample + "\n").encode()
    assert model.config.max_len < 50
    assert sample != shakespeare.write_text(model, tokenizer, "\n", n=50, seed=1)


def test_bits_per_byte_count_every_character_but_the_first(results):
    metrics = json.loads((results(shakespeare) / "card.json").read_text())["metrics"]
    assert metrics["characters_predicted"] == 998
    ln2 = float(torch.tensor(2.0).double().log())
    assert metrics["bits_per_byte"] == pytest.approx(metrics["validation_loss"] / ln2)


def test_the_confusion_matrix_counts_all_tests(results):
    folder = results(languages)
    metrics = json.loads((folder / "card.json").read_text())["metrics"]
    rows = read_csv(folder / "confusion.csv")
    assert [row.pop("language") for row in rows] == list(datasets.LANGUAGES)
    counts = torch.tensor([[int(n) for n in row.values()] for row in rows])
    assert counts.sum() == metrics["test_examples"]
    assert counts.trace() / counts.sum() == pytest.approx(metrics["test_accuracy"])


def test_the_digits_model_is_the_best_seed_by_validation(results):
    folder = results(digits)
    rows = read_csv(folder / "seeds.csv")
    best = max(rows, key=lambda row: (float(row["validation"]), -float(row["validation_loss"])))
    metrics = json.loads((folder / "card.json").read_text())["metrics"]
    assert metrics["chosen_seed"] == int(best["seed"])
    assert metrics["test_accuracy"] == float(best["test"])
    part = datasets.digits().test
    images = image_batch(list(zip(*part, strict=True)))["images"]
    found = load_model(folder)(images).argmax(dim=-1)
    assert (found == part.labels).double().mean() == pytest.approx(float(best["test"]))


def test_distortion_of_nothing_changes_nothing():
    images = datasets.digits().train.images[:5]
    still = digits.distort(images, turn=0.0, stretch=0.0, shift=0.0)
    assert torch.allclose(still, images, atol=1e-6)


def test_distortions_differ_and_keep_most_of_the_ink():
    torch.manual_seed(0)
    images = datasets.digits().train.images[:1].expand(50, -1, -1, -1)
    moved = digits.distort(images, turn=15.0, stretch=0.1, shift=1.0)
    assert moved.flatten(1).unique(dim=0).shape[0] == 50
    ink = moved.sum(dim=(1, 2, 3)) / images.sum(dim=(1, 2, 3))
    assert 0.5 < ink.min() < ink.max() < 1.5


def test_recall_compares_networks_of_one_size_in_two_forms_at_their_best_rates(results):
    folder = results(recall)
    rows, grid = read_csv(folder / "results.csv"), read_csv(folder / "grid.csv")
    assert [(row["form"], row["model"]) for row in rows] == [
        (form, model) for form in recall.FORMS for model in recall.NETWORKS
    ]
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    sizes = [int(row["parameters"]) for row in rows if row["model"] not in ("bag", "window")]
    assert max(sizes) / min(sizes) < 1.1
    for row in rows:
        which = [g for g in grid if (g["form"], g["model"]) == (row["form"], row["model"])]
        assert len(which) == len(recall.RATES)
        assert [g["rate"] for g in which if g["chosen"] == "True"] == [row["rate"]]
        assert float(row["validation"]) >= max(float(g["validation"]) for g in which) - 0.01
    card = json.loads((folder / "card.json").read_text())
    assert "8 symbols" in card["data"]["description"]
    assert "model" not in card
    assert not (folder / "model.safetensors").exists()


def test_words_leaves_two_tables_and_the_words_of_their_rows(results):
    folder = results(words)
    tables, rows = load_file(folder / "embeddings.safetensors"), read_csv(folder / "vocabulary.csv")
    assert set(tables) == set(words.KEPT)
    assert all(table.dtype == torch.float16 for table in tables.values())
    assert {len(table) for table in tables.values()} == {len(rows)} == {201}
    assert rows[0]["word"] == words.UNKNOWN
    part = datasets.shakespeare().train[:9_999]
    assert int(rows[3]["count"]) == words.words(part).count(rows[3]["word"])
    card = json.loads((folder / "card.json").read_text())
    assert next(iter(card["metrics"])) == "tied_validation_loss"
    assert "model" not in card


def test_words_are_small_and_the_rest_is_unknown():
    text = "O Romeo, Romeo! I'll be gone."
    assert words.words(text) == ["o", "romeo", ",", "romeo", "!", "i'll", "be", "gone", "."]
    assert words.vocabulary(text, 2) == ["<unk>", "romeo", "!"]
    assert words.encode(text, ["<unk>", "romeo", "!"]).tolist() == [0, 1, 0, 1, 2, 0, 0, 0, 0]


def test_tables_share_all_neighbours_with_themselves_turned_and_few_with_others():
    torch.manual_seed(0)
    table, other = torch.randn(2, 60, 8)
    turned = table @ torch.linalg.qr(other[:8]).Q
    assert words.shared_neighbours(table, 3 * turned) == pytest.approx(1.0)
    assert words.shared_neighbours(table, other) < 0.5


def test_frequency_alone_is_a_loss_that_can_be_computed_by_hand():
    loss = words.guess_by_frequency(torch.tensor([0, 0, 1]), torch.tensor([0, 1]), n=2)
    assert loss == pytest.approx(-(math.log(3 / 5) + math.log(2 / 5)) / 2)


def test_scores_compares_scales_that_start_with_the_same_weights(results):
    folder = results(scores)
    rows = read_csv(folder / "results.csv")
    assert [(row["n_heads"], row["d_head"], row["scale"]) for row in rows] == [
        ("2", "16", "root"), ("2", "16", "none"), ("1", "4", "root"),
    ]  # fmt: skip
    with_root, without, _ = rows
    factor = float(without["spread_start"]) / float(with_root["spread_start"])
    assert factor == pytest.approx(4, rel=0.02)
    assert float(without["entropy_start"]) < float(with_root["entropy_start"]) <= 1
    card = json.loads((folder / "card.json").read_text())
    assert "model" not in card
    assert card["metrics"]["best_loss_1x4_root_unit"] == float(rows[2]["loss"])


def test_each_arm_is_judged_at_its_own_best_rate_and_no_arm_is_trained_twice():
    arm = (1, 16, "root", "unit")
    names = {"n_heads": 1, "d_head": 16, "scale": "root", "start": "unit"}
    losses = {0.1: (1.0, math.nan), 0.01: (3.0, 2.0), 0.001: (4.0, 4.0)}
    rows = [names | {"rate": rate, "loss": loss} for rate, pair in losses.items() for loss in pair]
    assert scores.best([*rows, names | {"scale": "none", "rate": 0.1, "loss": 0.0}], arm) == 2.5
    arms = scores.all_arms()
    assert len(set(arms)) == len(arms)


def test_a_folded_scale_starts_with_the_function_of_the_root():
    models = {}
    for scale in scores.SCALES:
        torch.manual_seed(0)
        arm = (3, 16, scale, "unit")  # heads need not share the width
        models[scale] = scores.build(arm, d_model=32, length=8, vocab=20).eval()
    ids = torch.arange(16).view(2, 8)
    answers = {scale: model(ids) for scale, model in models.items()}
    torch.testing.assert_close(answers["folded"], answers["root"])
    torch.testing.assert_close(answers["steps"], answers["root"])
    torch.testing.assert_close(answers["start"], answers["none"])
    assert not torch.allclose(answers["none"], answers["root"], atol=1e-4)
    (spread, entropy), (more, less) = (
        scores.spread_and_entropy(models[scale], ids) for scale in ("root", "none")
    )
    assert more == pytest.approx(4 * spread, rel=0.02)  # the second block reads the first
    assert less < entropy < 1


def test_start_moves_scores_as_the_root_does_and_steps_as_far_as_none_does():
    sizes = {"d_model": 32, "length": 8, "vocab": 20}
    x, step = torch.randn(5, 32), 1e-3
    moves = {}
    for scale in scores.SCALES:
        torch.manual_seed(0)
        part = scores.attentions(scores.build((1, 16, scale, "unit"), **sizes))[0]
        q, k = part.query(x), part.key(x)
        of_queries = part.scale * torch.full_like(q, step) @ k.T  # every entry moves by one step
        of_keys = part.scale * q @ torch.full_like(k, step).T
        moves[scale] = of_queries.norm().item(), of_keys.norm().item()
    assert moves["start"] == pytest.approx(moves["root"], rel=1e-4)
    assert moves["steps"] == pytest.approx(moves["none"], rel=1e-4)
    assert moves["folded"] == pytest.approx((moves["none"][0], moves["root"][1]), rel=1e-4)


def test_runs_that_are_there_are_not_made_again(results, monkeypatch):
    folder = results(scores)
    before = (folder / "results.csv").read_text()
    monkeypatch.setattr(scores, "run_one", None)  # calling it would fail
    scores.main(["--tiny", "--out", str(folder), "--device", "cpu"])
    assert (folder / "results.csv").read_text() == before


def test_fillers_are_others_with_two_alphabets_and_the_same_with_one():
    two, one = recall.sequences(200, 9, torch.Generator().manual_seed(0))
    assert torch.equal(two[:, 0], one[:, 0])
    assert set(two[:, 0].tolist()) == set(one.flatten().tolist()) == set(range(3, 11))
    assert set(two[:, 1:].flatten().tolist()) == set(range(11, 19))


def test_without_order_two_alphabets_are_easy_and_one_is_not(monkeypatch):
    monkeypatch.setattr(recall, "RATES", (1e-2,))
    runs = recall.Runs("bag", distance=4, seeds=[0], n_tests=400, device="cpu")
    steps = runs.train(common.constant_adam(200))
    two, one = runs.accuracy(runs.test).tolist()
    assert two == 1
    assert steps[0] in range(25, 201, 25)
    assert 0.25 < one < 0.5  # the most frequent symbol is a fair guess
    assert steps[1] == ""
    backwards = runs.logits(runs.test.flip(2))
    torch.testing.assert_close(backwards, runs.logits(runs.test), rtol=1e-3, atol=1e-3)


def test_of_equal_rates_the_quickest_is_chosen():
    row = {"form": "one alphabet", "model": "gru", "distance": 5, "seed": 0, "validation": 1.0}
    rows = [row | {"rate": rate, "steps_to_99": ""} for rate in recall.RATES]
    rows[2]["steps_to_99"] = 50
    rows[4]["validation"] = 0.9
    ((chosen, grid),) = recall.choose_rates(rows, n_steps=100)
    assert chosen == [rows[2]]
    assert [g["chosen"] for g in grid] == [rate == recall.RATES[2] for rate in recall.RATES]


def test_probes_read_what_is_in_a_state_and_nothing_that_is_not(results):
    rows = read_csv(results(probes) / "results.csv")
    cases = {(row["model"], row["distance"], row["kind"], row["reader"]) for row in rows}
    kinds = itertools.product(probes.NETWORKS, ("1", "3"), probes.KINDS, probes.READERS)
    assert cases == set(kinds)
    assert len(rows) == len(cases)  # one seed, each once
    torch.manual_seed(0)
    first = torch.randint(8, (4_000,))
    straight, bent = (torch.randn(8, 6).double()[first] for _ in range(2))
    sign = torch.randint(2, (4_000, 1)) * 2 - 1  # a product of two features: not linear
    bent = torch.cat([bent * sign, 3.0 * sign], dim=1)
    recipe = common.constant_adam(300, 1e-2, schedule="linear", final_fraction=0.0)

    def right(reader, states, *more):
        answers = reader(states[:3_000], first[:3_000], states[3_000:], *more)
        return float((answers == first[3_000:]).double().mean())

    assert right(probes.read_linearly, straight) == 1.0
    assert right(probes.read_with_network, straight, recipe) == 1.0
    assert right(probes.read_linearly, bent) < 0.5
    assert right(probes.read_with_network, bent, recipe) > 0.95
    nothing = torch.randn(4_000, 6).double()
    assert right(probes.read_linearly, nothing) < 0.2
    assert right(probes.read_with_network, nothing, recipe) < 0.2


def test_probes_read_the_last_states_of_the_same_networks():
    one, first = probes.last_states("lstm", 3, seed=0, n=50, device="cpu", one_filler=True)
    assert one.shape == (50, 2 * probes.WIDTH)  # of an LSTM both
    assert len(one.unique(dim=0)) == len(first.unique())  # nothing but the symbol differs
    many, _ = probes.last_states("lstm", 3, seed=0, n=50, device="cpu")
    assert len(many.unique(dim=0)) > 8
    opened = probes.open_lstm().cell.bias_ih.view(4, -1)
    assert opened[1].eq(probes.OPEN).all()
    assert not opened[0].eq(probes.OPEN).any()


def test_input_scale_starts_the_four_models_with_the_same_random_numbers(results):
    folder = results(input_scale)
    rows = read_csv(folder / "results.csv")
    cases = [(row["start"], row["factor"]) for row in rows]
    assert cases == [("small", "1"), ("small", "0"), ("unit", "1"), ("unit", "0")]
    first = dict(zip(cases, (float(row["first"]) for row in rows), strict=True))
    assert first["unit", "0"] > first["small", "0"]  # logits as large as the root of D
    tables, inputs = {}, {}
    for start, factor in itertools.product(input_scale.STARTS, (True, False)):
        torch.manual_seed(0)
        model = input_scale.build(start, factor, d_model=16, length=8, vocab=20).eval()
        embed = model.decoder.embedding
        tables[start] = embed.tokens.weight
        places = torch.arange(1)[None]
        zero, one = embed(torch.tensor([[0], [1]]), places)
        inputs[start, factor] = zero - one  # without the position
    torch.testing.assert_close(tables["unit"], 4 * tables["small"])
    torch.testing.assert_close(inputs["small", True], inputs["unit", False])
    torch.testing.assert_close(inputs["unit", True], 16 * inputs["small", False])


def test_memory_leaves_three_tables_and_a_translator(results):
    folder = results(memory)
    rows = read_csv(folder / "copying.csv")
    kinds = [(row["attention"] == "True", int(row["width"])) for row in rows]
    assert kinds == [kind for kind in memory.COPIERS for _ in range(2)]
    assert all(0 <= float(row["words"]) <= float(row["letters"]) <= 1 for row in rows)
    rows = read_csv(folder / "recall.csv")
    assert tuple((row["model"], row["change"]) for row in rows) == memory.CHANGES
    rows = read_csv(folder / "gradients.csv")
    assert {row["moment"] for row in rows} == {"before", "after"}
    assert all(float(row["gradient"]) > 0 for row in rows)
    about = json.loads((folder / "aligner.json").read_text(encoding="utf-8"))
    model = RecurrentSeq2Seq(3 + len(about["letters"]), about["d_model"])
    model.load_state_dict(load_file(folder / "aligner.safetensors"))
    (row,) = read_csv(folder / "translations.csv")
    assert (row["english"], row["german"]) == ("twenty-one", "einundzwanzig")


def test_initial_weights_decide_how_much_of_the_gradient_arrives():
    def first_over_last(kind, change):
        torch.manual_seed(0)
        model = RecurrentClassifier(kind, recall.VOCABULARY, 16, n_classes=recall.VOCABULARY)
        memory.change_weights(model, change)
        norms = memory.arriving(model, recall_task(20, recall.N_SYMBOLS, distance=30))
        assert norms.shape == (31,)
        assert next(model.parameters()).dtype == torch.float32
        return float(norms[0] / norms[-1])

    assert first_over_last("lstm", "forget 0") < 1e-5
    assert first_over_last("lstm", "forget 5") > 0.1
    assert first_over_last("rnn", "none") < 1e-4
    assert first_over_last("rnn", "orthogonal") > 0.1


def test_leakage_judges_three_masks_in_three_ways(results):
    folder = results(leakage)
    rows = {row["mask"]: row for row in read_csv(folder / "results.csv")}
    assert list(rows) == list(leakage.MASKS) == ["causal", "one too many", "none"]
    losses = {kind: [float(row[n]) for n in ("loss", "honest_loss")] for kind, row in rows.items()}
    assert losses["causal"][0] == pytest.approx(losses["causal"][1], abs=1e-5)
    assert losses["one too many"][0] != pytest.approx(losses["one too many"][1], abs=1e-3)
    assert losses["none"][0] != pytest.approx(losses["none"][1], abs=1e-3)
    card = json.loads((folder / "card.json").read_text())
    assert card["data"]["file"] == "book/data/numbers.tsv"
    assert list(card["samples"]) == list(leakage.MASKS)


def test_heads_asks_twice_and_takes_heads_out(results):
    folder = results(heads)
    rows = read_csv(folder / "results.csv")
    found = [(int(row["heads"]), int(row["d_head"]), row["reader"]) for row in rows]
    assert found == heads.PLAN
    for row in rows:
        ordered, any_order = float(row["both_right"]), float(row["both_right_in_some_order"])
        assert 0 <= ordered <= min(any_order, float(row["each_right"])) <= 1
        assert (float(row["distance"]) > 0) == (row["heads"] != "1")
    for name, size in {"single": 5, "greedy": 3}.items():  # all heads, and two, in both ways
        rows = read_csv(folder / f"{name}.csv")
        assert {row["model"] for row in rows} == {"shakespeare", "numbers", "languages"}
        for model in ("shakespeare", "numbers", "languages"):
            losses = [row["loss"] for row in rows if row["model"] == model]
            assert len(set(losses)) == len(losses) == size
    for row in read_csv(folder / "single.csv"):
        for name in ("rise", "fall"):
            low, middle, high = (float(row[name + end]) for end in ("_low", "", "_high"))
            assert low <= middle <= high
    rows = read_csv(folder / "spans.csv")
    assert [row["space"] for row in rows] == 16 * ["all", "span", "weighted"]
    assert all(0 < float(row[name]) < 1.001 for row in rows for name in ("heads", "random"))


def test_heads_that_are_all_shut_say_nothing():
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=9, max_len=8, d_model=8, n_heads=2, n_layers=1)
    model, ids = CausalLM(config).eval(), torch.arange(6)[None]
    layer = model.decoder.stack.blocks[0].attention
    gates = heads.Gates(heads.Subject("", model, [], [], whole_rows=False))
    whole = layer(torch.ones(1, 3, 8))
    for gate in gates.open.values():
        gate[1] = 0
    kept = layer.output.weight.clone()
    kept[:, 4:] = 0  # what the second head would write
    one_left = layer(torch.ones(1, 3, 8))
    layer.output.weight.data, weight = kept, layer.output.weight.data
    gates.open["decoder.stack.blocks.0.attention"][1] = 1
    torch.testing.assert_close(layer(torch.ones(1, 3, 8)), one_left)
    assert not torch.allclose(whole, one_left)
    layer.output.weight.data = weight
    for gate in gates.open.values():
        gate.zero_()
    expected = layer.output.bias.expand(1, 3, 8)
    torch.testing.assert_close(layer(torch.ones(1, 3, 8)), expected)
    assert model(ids).shape == (1, 6, 9)


def test_a_shut_head_can_say_its_mean():
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=9, max_len=8, d_model=8, n_heads=2, n_layers=1)
    model = CausalLM(config).eval()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    targets = torch.tensor([[2, 3, -100], [5, 6, 7]])  # the third place of the first is padding
    subject = heads.Subject("", model, [{"ids": ids, "targets": targets}], [], whole_rows=False)
    seen = []
    layer = model.decoder.stack.blocks[0].attention
    hook = layer.output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    (mean,) = heads.mean_outputs(subject).values()
    hook.remove()
    found = torch.cat([seen[0][0, :2], seen[0][1]]).view(5, 2, 4)
    torch.testing.assert_close(mean, found.mean(dim=0))
    gates = heads.Gates(subject)
    path = "decoder.stack.blocks.0.attention"
    gates.instead[path], gates.open[path] = mean, torch.tensor([[1.0], [0.0]])
    layer.output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(ids)
    torch.testing.assert_close(seen[-1][..., :4], seen[0][..., :4])
    torch.testing.assert_close(seen[-1][..., 4:], mean[1].expand(2, 3, 4))


def test_an_interval_keeps_pairs_together():
    of = torch.rand(50, generator=torch.Generator().manual_seed(0)).double() + 0.5
    middle, low, high = heads.interval(0.1 * of, of)
    assert [middle, low, high] == pytest.approx([0.1, 0.1, 0.1])  # the same share in every text
    changes = torch.arange(50).double()
    middle, low, high = heads.interval(changes, torch.ones(50).double())
    error = changes.std() / math.sqrt(50)
    assert middle == 24.5
    assert low == pytest.approx(24.5 - 1.96 * error, abs=0.5)
    assert high == pytest.approx(24.5 + 1.96 * error, abs=0.5)


def test_overlap_of_heads_by_hand():
    eye = torch.eye(4).double()
    first, second = eye[:, :2], eye[:, 2:]
    assert heads.overlap(torch.stack([first, second])) == 0
    assert heads.overlap(torch.stack([first, first.flip(1)])) == pytest.approx(1)
    assert heads.overlap(torch.stack([first, eye[:, 1:3]])) == pytest.approx(0.5)
    assert heads.overlap(torch.stack([first, first @ torch.diag(eye[0, :2])])) < 0.8


def test_random_heads_overlap_as_the_span_lets_them():
    generator = torch.Generator().manual_seed(1)
    random = torch.randn(8, 12, 3, generator=generator).double()  # Dk = 3 of D = 12
    varies = torch.diag(torch.tensor([1.0] * 6 + [0.0] * 6)).double()  # six dimensions only
    rows = heads.compare(random, varies, reads=True, n_random=20)
    found = {row["space"]: row for row in rows}
    assert {row["dimensions"] for row in rows} == {6}
    assert found["all"]["random"] == pytest.approx(3 / 12, abs=0.01)
    assert found["span"]["random"] == pytest.approx(3 / 6, abs=0.01)
    for row in rows:
        assert row["heads"] == pytest.approx(row["random"], abs=0.07)


def test_heads_apart_by_hand():
    weights = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]])  # (B, H, S)
    assert heads.distance_of_heads(weights) == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_warmup_leaves_five_tables(results):
    folder = results(warmup)
    rows = read_csv(folder / "results.csv")
    assert {row["kind"] for row in rows} == set(warmup.KINDS)
    assert {row["warmup"] for row in rows} == {"0", "2"}
    assert all(float(row["loss"]) > 0 for row in rows)
    first = {row["kind"]: [] for row in rows}
    for row in read_csv(folder / "streams.csv"):
        if row["step"] == "0" and row["warmup"] == "0":
            first[row["kind"]].append(float(row["rms"]))
            assert 0 < float(row["apart"]) <= 1
    for kind, sizes in first.items():
        assert len(sizes) == 4  # the embedding, two blocks, what the output layer reads
        normed = {"post", "post, small writes", "pre", "pre, rms", "pre, small writes"}
        assert (sizes[-1] == pytest.approx(1, abs=1e-3)) == (kind in normed), kind
    assert {row["block"] for row in read_csv(folder / "gradients.csv")} == {"1", "2"}
    layer, batch = read_csv(folder / "batchnorm.csv")
    assert (layer["norm"], batch["norm"]) == ("layer", "batch")
    assert float(layer["loss"]) == pytest.approx(float(layer["loss_batch"]), rel=1e-3)
    assert float(batch["loss"]) != pytest.approx(float(batch["loss_batch"]), rel=1e-3)


@pytest.mark.parametrize("kind", warmup.KINDS)
def test_runs_that_are_slices_equal_runs_of_their_own(kind, tmp_path):
    options = common.read_options("warmup", "", ["--tiny", "--out", str(tmp_path)])
    plan, (depth,) = warmup.make_plan(options)
    known, _, letters = common.texts(plan.n_characters)
    vocab = len(letters)
    config = dataclasses.replace(plan.config, vocab_size=vocab, n_layers=depth)
    plan = dataclasses.replace(plan, config=config, seeds=(0, 1))
    many, starts = warmup.Many(kind, plan, "cpu"), warmup.batches(plan, known, "cpu")
    rates = [1e-3, 2e-3, 3e-3, 4e-3]  # of the four runs
    torch.manual_seed(1)
    alone = warmup.Subject(kind, config)
    adam = torch.optim.Adam(alone.parameters(), rates[3], betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, plan.steps + 1):
        ids, targets = warmup.windows(known, starts[step - 1], config.max_len)
        losses, _ = many(ids, targets)
        losses.sum().backward()
        many.step(step, torch.tensor(rates), (0.9, 0.98), 1e-9)
        adam.zero_grad()
        loss, _ = alone(ids[3], targets[3])
        loss.backward()
        adam.step()
        # Weights are not compared: a bias of the keys changes nothing, and Adam makes steps of
        # the rounding errors that are its gradient.
        torch.testing.assert_close(losses[3], loss, rtol=1e-4, atol=1e-4)


def test_activations_compares_networks_of_one_size(results):
    folder = results(activations)
    rows = {(row["group"], row["kind"]): row for row in read_csv(folder / "results.csv")}
    assert {group for group, _ in rows} == {"kind", "without", "share", "width"}
    sizes = [int(row["parameters"]) for (group, _), row in rows.items() if group == "kind"]
    sizes += [int(rows["without", "none, deeper"]["parameters"])]
    assert max(sizes) / min(sizes) < 1.03
    assert all(float(row["loss"]) > 0 for row in rows.values())


def test_skips_looks_at_transformers_before_and_after_training(results):
    folder = results(skips)
    rows = {row["kind"]: row for row in read_csv(folder / "results.csv")}
    assert set(rows) == set(skips.KINDS)
    assert len({row["loss_before"] for row in rows.values()}) == len(rows)
    assert float(rows["zero"]["directions_before"]) == pytest.approx(16, abs=1e-3)  # the identity
    spectra = read_csv(folder / "spectra.csv")
    assert {row["stage"] for row in spectra} == {"before", "after"}
    for row in spectra:
        shares = [float(row[f"s{i}"]) for i in range(1, 17)]
        assert shares[0] == 1
        assert shares == sorted(shares, reverse=True)
    for row in read_csv(folder / "lines.csv"):
        assert row["x0"] != row["x1"] != row["x2"]


def test_the_trial_of_starts_crosses_writes_and_embeddings_and_can_be_taken_up(tmp_path):
    arguments = ["--tiny", "--starts", "--device", "cpu", "--out", str(tmp_path)]
    skips.main(arguments)
    before = (tmp_path / "starts.csv").read_text()
    rows = read_csv(tmp_path / "starts.csv")
    assert [(row["kind"], row["large"]) for row in rows] == [
        ("residual", "0"), ("small", "0"), ("residual", "1"), ("small", "1"),
    ]  # fmt: skip
    assert float(rows[2]["enters"]) > 2 * float(rows[0]["enters"])
    skips.main(arguments)
    assert (tmp_path / "starts.csv").read_text() == before


def test_the_jacobian_of_a_stack_is_that_of_autograd():
    torch.manual_seed(0)
    model = skips.build("residual", 2, 11, 8)
    ids = torch.randint(11, (2, 4))
    places = torch.arange(4)[None]
    double = model.double()
    enters = double.decoder.embedding(ids, places).detach()

    def last(h):
        for block in skips.blocks(double):
            h = block(h, causal=True)
        return h[0, -1]

    for text, found in zip(enters, skips.stretches(model, ids), strict=True):
        jacobian = torch.autograd.functional.jacobian(last, text[None])  # (D, 1, T, D)
        torch.testing.assert_close(found, torch.linalg.svdvals(jacobian.flatten(1)))


def test_experts_compares_models_of_equal_active_size(results):
    folder = results(experts)
    rows = {row["kind"]: row for row in read_csv(folder / "results.csv")}
    assert set(rows) == {kind.name for kind in experts.KINDS}
    large = rows.pop("one network, F = 16D")
    sizes = [int(row["active"]) for row in rows.values()]
    assert max(sizes) / min(sizes) < 1.12  # the router of many experts counts, in a tiny model
    assert int(large["active"]) == int(large["parameters"]) > 2 * max(sizes)
    loads = [row for row in read_csv(folder / "loads.csv") if row["kind"] == "bias"]
    assert sum(float(row["share"]) for row in loads) == pytest.approx(experts.LAYERS, 1e-3)
    for row in loads:
        classes = sum(float(row[name]) for name in experts.CLASSES)
        assert classes == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("active", [2, 3])
def test_experts_in_full_are_those_of_the_library(active):
    torch.manual_seed(0)
    config = TransformerConfig(
        d_model=8, n_heads=2, d_ff=6, n_experts=8, active_experts=active, bias=False,
        activation="gelu",
    )  # fmt: skip
    mixture, x = MixtureOfExperts(config), torch.randn(3, 5, 8)
    in_full = experts.Experts(config, experts.Kind("ours", 6 / 8, 8, active))
    weights = [(expert.up.weight, expert.down.weight) for expert in mixture.experts]
    with torch.no_grad():
        in_full.router.weight.copy_(mixture.router.weight)
        in_full.up.copy_(torch.stack([up for up, _ in weights]))
        in_full.down.copy_(torch.stack([down for _, down in weights]))
    torch.testing.assert_close(in_full(x), mixture(x))
    torch.testing.assert_close(in_full.balance_loss, mixture.balance_loss)


def test_a_bias_moves_towards_even_loads_and_changes_no_weight():
    torch.manual_seed(0)
    config = TransformerConfig(d_model=8, n_heads=2)
    mixture = experts.Experts(config, experts.Kind("ours", 1, 4, 1, "bias"))
    x = torch.randn(200, 8) + 1.0
    with torch.no_grad():
        mixture(x)
        before = mixture.share.max()
        for _ in range(200):
            mixture.push()
            mixture(x)
    assert mixture.share.max() < min(0.3, before)


def test_lengths_compares_six_kinds_of_positions(results):
    folder = results(lengths)
    rows = read_csv(folder / "results.csv")
    assert {row["scheme"] for row in rows} == set(lengths.SCHEMES)
    assert len(rows) == 6 * 4
    inside = [row for row in rows if int(row["length"]) <= 16]
    assert all(row["loss"] == row["windowed_loss"] for row in inside)  # all of it is seen anyway
    assert any(row["loss"] != row["windowed_loss"] for row in rows)
    places = read_csv(folder / "positions.csv")
    assert [int(row["last"]) for row in places[:32]] == list(range(4, 129, 4))
    copied = read_csv(folder / "copy.csv")
    assert {row["scheme"] for row in copied} == set(lengths.SCHEMES)
    assert all(0 <= float(row["accuracy"]) <= 1 for row in copied)


def test_letters_are_the_same_whatever_stands_before_them():
    torch.manual_seed(0)
    model = lengths.build("rope", vocab=20, longest=16, d_model=8, n_layers=1, seed=0)
    text = torch.randint(20, (60,))
    losses = {n: lengths.letter_losses(model, text, n, longest=16) for n in (1, 8, 16)}
    assert [len(each) for each in losses.values()] == [1, 8, 16]
    ends = range(16, 60, 8)
    logits = torch.stack([model(text[None, end - 8 : end])[0, -1] for end in ends])
    wanted = torch.nn.functional.cross_entropy(logits, text[list(ends)])
    assert losses[8][-1] == pytest.approx(wanted.item(), rel=1e-5)


def test_stretching_measures_all_kinds_and_rules(results):
    folder = results(stretching)
    places = read_csv(folder / "positions.csv")
    assert {row["kind"] for row in places} == set(stretching.KINDS)
    assert [int(row["last"]) for row in places[:16]] == list(range(4, 65, 4))
    rules = read_csv(folder / "rules.csv")
    assert {row["kind"] for row in rules} == set(stretching.STRETCHED)
    borders = {f"turns {n:g}" for n in stretching.TURNS}
    assert {row["rule"] for row in rules} == {*stretching.RULES, "base"} | borders
    assert {(row["factor"], row["length"]) for row in rules} == {
        ("2", "16"), ("2", "32"), ("4", "16"), ("4", "64"),
    }  # fmt: skip
    tuned = read_csv(folder / "tuned.csv")
    assert {row["rule"] for row in tuned} == {*stretching.RULES, "short"}
    assert {row["steps"] for row in tuned} == {"0", "2"}


def test_the_kinds_differ_in_what_their_names_say():
    small = stretching.KINDS["small"]
    for name, changes in (
        ("brief", {"steps": 0.25}), ("patient", {"steps": 3.0}), ("longer", {"trained": 256}),
        ("larger", {"large": True}), ("both", {"trained": 256, "large": True}),
    ):  # fmt: skip
        assert stretching.KINDS[name] == dataclasses.replace(small, **changes)
    both, modern, book = (stretching.KINDS[name] for name in ("both", "modern", "book"))
    assert modern == dataclasses.replace(both, modern=True)
    assert book == dataclasses.replace(modern, regular=True)


def stretched_speeds(rule, length=1):
    scaling = stretching.scaling_of(rule, 4, trained=1_000)
    positions = torch.tensor([length - 1])
    angles = rope_angles(positions, 8, scaling=scaling) / (length - 1)
    return angles[0] / rope_angles(positions, 8)[0] * (length - 1)


def test_angles_are_stretched_by_the_rules():
    # The pairs turn 159, 16, 1.6 and 0.16 times in 1,000 positions.
    ones = torch.ones(4)
    for rule, wanted in (
        ("plain", ones), ("short", ones), ("linear", ones / 4),
        ("turns 1", torch.tensor([1, 1, 1, 0.25])), ("turns 8", torch.tensor([1, 1, 0.25, 0.25])),
    ):  # fmt: skip
        torch.testing.assert_close(stretched_speeds(rule, 4_000), wanted)
    for rule in ("yarn", "llama3"):
        speeds = stretched_speeds(rule, 4_000)
        assert (speeds[0], speeds[-1]) == (1, 0.25)
        assert 0.25 < speeds[2] < 1
    inside, beyond = stretched_speeds("ntk", 1_000), stretched_speeds("ntk", 4_000)
    torch.testing.assert_close(inside, ones)
    assert beyond[0] == 1
    assert beyond[-1] < 0.25


def test_a_stretched_copy_reads_twice_as_long_a_text_as_if_it_were_short():
    torch.manual_seed(0)
    options = common.read_options("stretching", "", ["--tiny", "--device", "cpu"])
    model = stretching.build(stretching.KINDS["small"], 20, 32, options).eval()
    ids = torch.arange(8)[None]
    before = model(ids)
    torch.testing.assert_close(stretching.stretched(model, "plain", 2, 16)(ids), before)
    halved = stretching.stretched(model, "linear", 2, 16)
    torch.testing.assert_close(halved(ids, positions=2 * torch.arange(8)[None]), before)
    assert not torch.allclose(halved(ids), before)


def test_ablations_changes_one_thing_at_a_time(results):
    folder = results(ablations)
    rows = read_csv(folder / "results.csv")
    found = [(row["task"], row["change"]) for row in rows]
    assert found == [(task, name) for task, names in ablations.TINY.items() for name in names]
    assert [(row["updates"], row["batch"]) for row in rows[2:4]] == [("4", "2"), ("4", "8")]
    assert (rows[-1]["updates"], rows[-1]["batch"]) == ("1", "32")  # as many tokens
    for row in rows:
        assert float(row["loss"]) > 0
        assert 0 <= float(row["accuracy"]) <= 1
        assert (row["words"] == "") == (row["task"] == "text")
    curves = read_csv(folder / "curves.csv")
    assert len(curves) == sum(int(row["updates"]) for row in rows)
    rates = [float(row["rate"]) for row in read_csv(folder / "range.csv")]
    assert (rates[0], rates[-1]) == (ablations.SLOWEST, ablations.FASTEST)


def test_a_run_that_ends_in_nothing_has_an_empty_row(monkeypatch):
    def fail(*_, **__):
        raise FloatingPointError

    monkeypatch.setattr(ablations, "train", fail)
    recipe = ablations.recipe_of("text", ablations.Change(), 4, None, 0)
    row, curve = ablations.run_one("text", ablations.BASE, recipe, (16, 8, 8), "cpu")
    assert (row["loss"], row["accuracy"], curve) == ("", "", [])


def test_the_metrics_of_runs_that_ended_in_nothing_are_written_in_words(tmp_path):
    def written(metrics):
        options = common.read_options("words", "", ["--out", str(tmp_path), "--device", "cpu"])
        recipe = common.constant_adam(1)
        common.write_results(options, data="none", about={}, metrics=metrics, recipe=recipe)
        return json.loads((tmp_path / "card.json").read_text())["metrics"]

    run = {"task": "text", "change": "base", "rate": ablations.MIDDLE}
    lost = [run | {"loss": 2.0}, run | {"loss": ""}]
    assert written(ablations.summary(lost)) == {"loss (text, base)": "not a number"}
    assert written(ablations.summary(lost[:1])) == {"loss (text, base)": 2.0}
    assert written({"a": -math.inf, "b": 1, "c": None}) == {"a": "not a number", "b": 1, "c": None}
    rows = [
        {"kind": kind, "depth": 2, "rate": 0.1, "warmup": 0, "loss": loss}
        for kind, loss in zip(warmup.KINDS, (math.nan, *map(float, range(2, 9))), strict=True)
    ]
    found = written(warmup.summary(rows, depth=2, rate=0.1, warmups=(0,)))
    assert next(iter(found.values())) == "not a number"
    assert {type(value) for value in list(found.values())[1:]} == {float}
    grid = [{"parameters": 1, "tokens": 1, "loss": loss} for loss in (math.nan, 3.0, 2.0, 4.0)]
    found = scaling.summary(grid, [])
    assert found == {"lowest_loss": 2.0, "runs": 4, "models": 1, "deviation_between_seeds": 1.0}


def test_a_change_leaves_the_rest_of_the_recipe_as_it_was():
    base = {
        task: ablations.recipe_of(task, changes[ablations.BASE], 100, None, 0)
        for task, changes in ablations.CHANGES.items()
    }
    for task, changes in ablations.CHANGES.items():
        for change in changes.values():
            recipe = ablations.recipe_of(task, change, 100, None, 0)
            different = {
                field.name
                for field in dataclasses.fields(recipe)
                if getattr(recipe, field.name) != getattr(base[task], field.name)
            }
            by_steps = {"steps", "warmup", "log_every", "validate_every", "checkpoint_every"}
            assert different <= set(change.recipe) | (by_steps if change.same_tokens else set())


@pytest.mark.parametrize("steps", [1, 4, 250, 999, 4_000, 123_457])
def test_no_table_of_metrics_is_long(steps):
    recipe = common.Recipe(steps=steps, learning_rate=1.0, **common.intervals(steps))
    logged = {*range(0, steps, recipe.log_every), *range(0, steps, recipe.validate_every), steps}
    assert len(logged) <= common.MOST_ROWS


def test_a_training_without_gradients_is_stopped():
    common.watch({"step": 3, "grad_norm": 0.1})
    with pytest.raises(RuntimeError, match="no gradient reaches the weights at step 4"):
        common.watch({"step": 4, "grad_norm": 0.0})


def test_a_tiny_run_leaves_the_book_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(common, "ROOT", tmp_path)
    assert "book" not in common.read_options("digits", "", ["--tiny"]).folder.parts
    assert common.read_options("digits", "", []).folder == tmp_path / "book" / "results" / "digits"


def test_a_card_tells_the_arguments_that_are_not_the_default(tmp_path):
    place = ["--out", str(tmp_path)]
    assert common.read_options("digits", "", [*place, "--seed", "0"]).arguments == []
    given = [*place, "--eager", "--steps", "7", "--device", "meta"]
    found = common.read_options("digits", "", given).arguments
    assert found == ["--device", "meta", "--steps", "7", "--eager"]


def test_accuracy_counts_right_answers_and_keeps_the_mode():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).train()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0] * 4, [-1.0] * 4]))
        model[1].bias.zero_()

    class Ones:
        def one_pass(self):
            yield {"input": torch.ones(4, 1, 2, 2), "targets": torch.tensor([0, 0, 0, 1])}

    assert common.accuracy(model, Ones()) == 0.75
    assert model.training


def test_a_mean_counts_the_rows_that_are_asked_for():
    rows = [{"kind": k, "pass": p, "loss": n} for n, (k, p) in enumerate(["ab", "ac", "bb", "ab"])]
    assert common.rows_where(rows, kind="a", **{"pass": "b"}) == [rows[0], rows[3]]
    assert common.mean_of(rows, "loss", kind="a") == pytest.approx(4 / 3)
    assert common.mean_of(rows, "loss") == 1.5
    for missing in (None, "", math.nan):
        assert math.isnan(common.mean_of([*rows, {"loss": missing}], "loss"))
    with pytest.raises(ValueError, match="at least one"):
        common.mean_of(rows, "loss", kind="c")


def test_tables_hold_five_digits_and_rows_of_all_runs():
    assert common.rounded(12.34567) == 12.346
    assert math.isinf(common.rounded(math.inf))
    assert common.rounded_row({"a": 1 / 3, "b": 123_456, "c": ""}, 2) == {
        "a": 0.33, "b": 123_456, "c": "",
    }  # fmt: skip
    parts = [{"results": [{"a": 1}]}, {"results": [{"a": 2}], "curves": []}]
    assert common.merge_tables(parts) == {"results": [{"a": 1}, {"a": 2}], "curves": []}
    assert parts[0] == {"results": [{"a": 1}]}  # what was given stays as it is


def test_seeds_begin_with_that_of_the_command_line(tmp_path):
    given = ["--out", str(tmp_path), "--seed", "7"]
    assert list(common.read_options("digits", "", given).seeds(3)) == [7, 8, 9]
    assert list(common.read_options("digits", "", [*given, "--tiny"]).seeds(3, 2)) == [7, 8]


def test_processes_side_by_side_multiply_as_the_main_one(tmp_path):
    options = common.read_options("recall", "", ["--out", str(tmp_path)])
    for precision_name in ("highest", "high"):
        torch.set_float32_matmul_precision(precision_name)
        (found,) = common.side_by_side(torch.get_float32_matmul_precision, [()], options)
        assert found == precision_name


def test_minimise_makes_the_steps_of_a_recipe():
    weight = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(weight.weight)
    seen = []

    def loss_at(step):
        seen.append(step)
        return 10 * weight.weight.sum()

    recipe = common.constant_adam(4, 0.5, warmup=2)
    descent = torch.optim.SGD(weight.parameters(), lr=99.0)
    rates = [loops.rise_and_fall(step, recipe) for step in range(1, 5)]
    assert rates == [0.25, 0.375, 0.25, 0.125]
    losses = loops.minimise(weight, descent, recipe, loss_at, rate=loops.rise_and_fall, clip=1.0)
    assert seen == [1, 2, 3, 4]
    assert losses == pytest.approx([10, 7.5, 3.75, 1.25], rel=1e-4)  # the gradient is cut to 1
    losses = loops.minimise(weight, descent, recipe, loss_at)
    assert losses[:2] == pytest.approx([0, -25], abs=1e-3)


NO_EXPERIMENTS = {"__init__", "run_all"}  # what only serves them is in experiments/shared/
PAGE_TO_COME = {"optimizers"}  # the page of these does not show their results yet


def experiment_problems(modules, found):
    """Which modules of the folder do not say what they are, and which are none."""
    where = "tests/lib/test_experiments.py"
    return differences(
        found,
        modules,
        lacks=lambda name: (
            f'experiments/{name}.py names no page: add CHAPTER = "PAGE", the one '
            f"that reads its results; what is no experiment belongs into experiments/shared/"
        ),
        extra=lambda name: (
            f"experiments/{name}.py has a CHAPTER, but is in NO_EXPERIMENTS in {where}"
        ),
    )


def page_problems(name, chapter, book):
    """What the page of an experiment, or its card, lacks."""
    page = book / f"{chapter}.ipynb"
    if not page.exists():
        return [f"experiments/{name}.py: CHAPTER = {chapter!r}, but there is no book/{page.name}"]
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    code = "".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    problems = []
    shown = re.search(rf'((table|results|rows_of)\(|"results", |load, \()"{name}"', code)
    if shown and name in PAGE_TO_COME:
        where = "tests/lib/test_experiments.py"
        problems.append(
            f"book/{chapter}.ipynb reads {name}: take it out of PAGE_TO_COME in {where}"
        )
    if not shown and name not in PAGE_TO_COME:
        remedy = f'read them there with `table("{name}")`, or name another page in CHAPTER'
        problems.append(f"book/{chapter}.ipynb does not read the results of {name}: {remedy}")
    if not (book / "results" / name / "card.json").exists():
        remedy = f"run `.venv/bin/python -m experiments.{name}`"
        problems.append(f"book/results/{name}/card.json is not there: {remedy}")
    return problems


def test_every_experiment_names_the_page_that_shows_its_results():
    modules = {path.stem for path in (common.ROOT / "experiments").glob("*.py")}
    problems = experiment_problems(modules - NO_EXPERIMENTS, run_all.EXPERIMENTS)
    problems += [
        f"experiments/run_all.py: {name} of ALONE is no experiment: take it out"
        for name in sorted(run_all.ALONE - set(run_all.EXPERIMENTS))
    ]
    for name in run_all.EXPERIMENTS:
        chapter = importlib.import_module(f"experiments.{name}").CHAPTER
        problems += page_problems(name, chapter, common.ROOT / "book")
    fail_on(problems)


def test_an_experiment_without_a_page_is_told_what_to_write():
    without_a_page, shared = told(experiment_problems)
    assert without_a_page.startswith("experiments/b.py names no page: add ")
    assert shared.startswith("experiments/c.py has a CHAPTER, but is in NO_EXPERIMENTS in tests")


def test_an_experiment_whose_page_or_card_is_forgotten_is_told(tmp_path):
    (missing,) = page_problems("new", "99_none", tmp_path)
    assert missing == "experiments/new.py: CHAPTER = '99_none', but there is no book/99_none.ipynb"
    (tmp_path / "01_a.ipynb").write_text(json.dumps({"cells": []}))
    (no_card,) = page_problems("optimizers", "01_a", tmp_path)
    assert no_card.startswith("book/results/optimizers/card.json is not there")
    (tmp_path / "01_b.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": ['table("optimizers")']}]})
    )
    late, _ = page_problems("optimizers", "01_b", tmp_path)
    assert late.startswith("book/01_b.ipynb reads optimizers: take it out of PAGE_TO_COME in test")
    unread, no_card = page_problems("new", "01_a", tmp_path)
    assert unread.startswith("book/01_a.ipynb does not read the results of new: read them")
    assert no_card.startswith("book/results/new/card.json is not there: run `.venv/bin/python")


def test_run_all_tells_who_failed(tmp_path, capsys, monkeypatch):
    class Process:  # the second fails, the third never ends
        def __init__(self, command, stdout, **_):
            self.name = command[2].removeprefix("experiments.")
            stdout.write(f"starting\n{self.name}: what it says last\n".encode())
            self.returncode = None

        def wait(self, seconds=None):
            if self.name == "digits" and self.returncode is None:
                raise subprocess.TimeoutExpired("digits", seconds)
            self.returncode = self.returncode or {"languages": 3}.get(self.name, 0)

        def kill(self):
            self.returncode = -9

    monkeypatch.setattr(subprocess, "Popen", Process)
    chosen = ["--only", "numbers", "languages", "digits"]
    assert run_all.main(["--out", str(tmp_path), "--logs", str(tmp_path), *chosen]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "numbers: what it says last",
        f"languages FAILED (3): languages: what it says last; see {tmp_path}/languages.log",
        f"digits FAILED (-9): digits: what it says last; see {tmp_path}/digits.log",
    ]


@pytest.mark.parametrize(
    ("tiny", "place"), [(["--tiny"], "_build/experiments"), ([], "book/results")]
)
def test_run_all_tiny_leaves_the_book_alone(tiny, place, tmp_path, monkeypatch):
    class Process:
        returncode = 0

        def __init__(self, command, **_):
            commands.append(command[2:])

        def wait(self, seconds):
            pass

    commands = []
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "Popen", Process)
    assert run_all.main(["--only", "digits", *tiny, "--seed", "3"]) == 0
    folder = str(tmp_path / place / "digits")
    assert commands == [["experiments.digits", "--out", folder, "--seed", "3", *tiny]]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [tmp_path / "_build" / "experiments" / "logs" / "digits.log"]


def test_run_all_lets_experiments_that_measure_times_run_alone(tmp_path, monkeypatch):
    class Process:
        returncode = 0

        def __init__(self, command, env, **_):
            self.name = command[2].removeprefix("experiments.")
            events.append(("start", self.name, env.get("OMP_NUM_THREADS")))

        def wait(self, seconds):
            events.append(("end", self.name))

    events = []
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    chosen = ["--only", "digits", "hardware", "languages", "cache_costs"]
    assert run_all.main(["--out", str(tmp_path), "--logs", str(tmp_path), *chosen]) == 0
    assert events == [
        *(("start", "hardware", None), ("end", "hardware")),
        *(("start", "cache_costs", None), ("end", "cache_costs")),
        *(("start", "digits", "1"), ("start", "languages", "1")),
        *(("end", "digits"), ("end", "languages")),
    ]


def test_run_all_runs_an_experiment(tmp_path, capsys):
    places = ["--out", str(tmp_path), "--logs", str(tmp_path / "logs")]
    assert run_all.main([*places, "--only", "digits", "--tiny", "--device", "cpu"]) == 0
    assert "digits: test_accuracy" in capsys.readouterr().out
    assert (tmp_path / "digits" / "model.safetensors").exists()
    assert "seed" in (tmp_path / "logs" / "digits.log").read_text()


def test_surfaces_trains_networks_side_by_side_as_one_would_alone(results):
    folder = results(surfaces)
    rows, drawn = (read_csv(folder / f"{name}.csv") for name in ("results", "surfaces"))
    kinds = {(row["shape"], row["norm"], row["start"]) for row in rows}
    assert ("plain", "layer", "zero") not in kinds  # no gradient would reach its first matrices
    assert len(kinds) == 10
    assert set(surfaces.DRAWN) <= kinds
    centre = drawn[1]  # of three rows
    found = next(row for row in rows if all(row[key] == centre[key] for key in list(centre)[:6]))
    assert float(centre["x1"]) == pytest.approx(float(found["loss"]), rel=1e-3)
    nothing = [row for row in rows if row["start"] == "zero"]
    assert {row["arrives"] for row in nothing} == {row["grows"] for row in nothing} == {"1.0"}


def test_networks_of_surfaces_equal_plain_pytorch():
    weights = surfaces.first_weights(3, ["he", "torch"], [0, 1])
    x = torch.randn(5, 64)
    scores, _, _ = surfaces.forward(weights, x[None], torch.tensor([[[1.0]], [[0.0]]]), norm=True)
    for run, skip in enumerate((1, 0)):
        own = [weight[run] for weight in weights]
        h = x @ own[0] + own[1]
        for i in range(2, 14, 4):
            read = torch.nn.functional.layer_norm(h, (surfaces.WIDTH,))
            h = skip * h + (read @ own[i] + own[i + 1]).relu() @ own[i + 2] + own[i + 3]
        expected = torch.nn.functional.layer_norm(h, (surfaces.WIDTH,)) @ own[-2] + own[-1]
        torch.testing.assert_close(scores[run], expected)


def test_directions_of_surfaces_are_as_long_as_the_weights_filter_by_filter():
    weights = surfaces.first_weights(1, ["he"], [0])
    found = surfaces.direction(weights, torch.Generator().manual_seed(0))
    for weight, moved in zip(weights[::2], found[::2], strict=True):
        torch.testing.assert_close(weight.norm(dim=-2), moved.norm(dim=-2))
    assert all(not bias.any() for bias in found[1::2])


def test_adam_of_surfaces_equals_pytorchs():
    weights = [w.requires_grad_() for w in surfaces.first_weights(2, ["he"], [0])]
    own = [w.detach().clone().requires_grad_() for w in weights]
    x, y, skip = torch.randn(40, 64), torch.arange(40) % 10, torch.ones(1, 1, 1)
    recipe = common.constant_adam(5, 3e-3, warmup=0, betas=(0.9, 0.999))
    surfaces.train(weights, x, y, skip, True, torch.full((1, 1, 1), 3e-3), recipe)
    adam, generator = torch.optim.Adam(own, 3e-3), torch.Generator().manual_seed(0)
    for _ in range(5):
        some = torch.randint(40, (128,), generator=generator)
        adam.zero_grad()
        scores, _, _ = surfaces.forward(own, x[some][None], skip, norm=True)
        torch.nn.functional.cross_entropy(scores[0], y[some]).backward()
        adam.step()
    for ours, theirs in zip(weights, own, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_dropout_judges_each_rate_and_place_on_the_way(results):
    folder = results(dropout)
    rows, places = (read_csv(folder / f"{name}.csv") for name in ("results", "places"))
    assert {row["dropout"] for row in rows} == {"0.0", "0.3"}
    assert {row["place"] for row in places} == set(dropout.PLACES)
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"] * 2
    assert float(rows[3]["passes"]) == pytest.approx(4 * 64 * 64 / 2_000, rel=1e-3)
    for row in rows + places:
        for column in ("train_loss", "loss", "test_loss"):
            assert 0 < float(row[column]) < 6


@pytest.mark.parametrize("place", dropout.PLACES)
def test_dropout_acts_in_one_place_and_in_training_only(place):
    model = CausalLM(common.small_config(vocab_size=9, max_len=8, d_model=16))
    ids = torch.arange(8)[None]
    dropout.drop_at(model, place, 0.5)
    assert not torch.equal(model.train()(ids), model(ids))
    assert torch.equal(model.eval()(ids), model(ids))


def test_dropout_stops_each_run_at_its_own_best_moment():
    rows = [
        {"seed": seed, "loss": loss, "test_loss": test}
        for seed, loss, test in ((0, 2.0, 5.0), (0, 1.0, 3.0), (1, 1.5, 7.0), (1, 1.6, 1.0))
    ]
    assert dropout.best(rows) == 5


def test_decoders_judges_six_kinds_with_a_teacher_and_alone(results):
    folder = results(decoders)
    rows = [row for row in read_csv(folder / "results.csv") if row["task"] == "reverse"]
    assert [row["kind"] for row in rows] == list(decoders.KINDS)
    for row in rows:
        assert 0 <= float(row["words"]) <= float(row["letters_own"]) <= 1
        assert float(row["words"]) <= float(row["same_letters"])
        if row["kind"] != "no causal mask":  # up to the first mistake there is no difference
            assert row["words"] == row["words_taught"]
    for row in read_csv(folder / "recovery.csv"):
        assert 1 <= int(row["distance"]) <= max(decoders.DISTANCES)
        assert 0 <= float(row["after_wrong"]) <= 1
    rows = read_csv(folder / "letters.csv")
    assert [row["letter"] for row in rows] == ["any", "impossible", "possible"]
    assert rows[1]["still_a_number"] == "0"
    rows = read_csv(folder / "alignment.csv")
    assert len(rows) == len(decoders.ALIGNED) * 4 * (decoders.SHOWN + 1) * decoders.SHOWN
    assert sum(float(row["weight"]) for row in rows[: decoders.SHOWN]) == pytest.approx(1, abs=1e-3)


def test_decoders_lack_what_their_kind_says():
    ids = torch.tensor([[5, 6, 7]])
    for kind, missing in decoders.KINDS.items():
        torch.manual_seed(0)
        model = decoders.build(kind, vocab=13, max_len=8, d_model=8).eval()
        (block,) = model.body.decoder.stack.blocks
        silent = [name for name, part in block.named_children() if type(part) is decoders.Silent]
        assert silent == ([missing] if missing else [])
        first = model(ids, torch.tensor([[1, 5, 6]]))[0, 0]
        other = model(ids, torch.tensor([[1, 5, 9]]))[0, 0]
        assert torch.equal(first, other) == (kind != "no causal mask")
        elsewhere = model(ids.flip(1), torch.tensor([[1, 5, 6]]))[0, 0]
        assert torch.equal(first, elsewhere) == (kind == "no cross-attention")


def test_number_words_are_told_from_others():
    data = datasets.numbers()
    assert all(re.fullmatch(decoders.NUMBER_WORD, n.german) for part in data for n in part)
    for word in ("dweiundvierzig", "einhundertein", "einshundert", "zweiundzehn", "hundertt"):
        assert not re.fullmatch(decoders.NUMBER_WORD, word)


def test_a_letter_that_is_given_is_read_and_not_written():
    batch = decoders.translation_batch([([5, 6, 7], [7, 6, 5]), ([8, 9], [9, 8])])

    class NextLetter(torch.nn.Module):  # writes the id after the one it reads
        def forward(self, source, target, mask):
            return torch.nn.functional.one_hot(target + 1, 20).float()

    own = decoders.write(NextLetter(), batch)
    assert own[0].tolist() == [2, 3, 4, 5]
    given = torch.tensor([[True, True, False, False]] * 2)
    assert decoders.write(NextLetter(), batch, given)[0].tolist() == [2, 8, 7, 8]
    ((word, other), *_) = decoders.shuffle_task(3, seed=0)
    assert sorted(word) == sorted(other)
    found = decoders.judge(NextLetter(), batch)
    assert (found["words"], found["words_taught"], found["n_later"]) == (0, 0, 5)
    noisy = decoders.noisy(13, seed=0)([([5, 6], list(range(3, 13)))] * 50)
    changed = noisy["target"] != decoders.translation_batch([([5], list(range(3, 13)))])["target"]
    assert not changed[:, 0].any()
    assert 0.05 < changed[:, 1:].double().mean() < 0.15


def test_fingers_counts_the_ways_to_go_on(results):
    rows = read_csv(results(fingers) / "results.csv")
    assert {row["kind"] for row in rows} == {"shipped", *fingers.KINDS}
    assert {row["letter"] for row in rows} == {"elsewhere", "nowhere"}
    for row in rows:
        assert sum(float(row[way]) for way in fingers.WAYS) <= 1 + 1e-3
    for row in read_csv(results(fingers) / "examples.csv"):
        *given, wrong = row["given"]
        assert row["answer"].startswith("".join(given))
        assert (wrong in row["answer"]) == (row["letter"] == "elsewhere")
        assert row["kind"] == "shipped" or row["answer"] == row["source"][::-1]


def test_a_model_that_keeps_a_finger_on_the_line_is_found():
    word = [3, 4, 5, 6, 7, 8, 9, 10]

    class Finger(torch.nn.Module):  # goes on after the letter it reads, wherever that stands
        def forward(self, source, target, mask):
            return torch.nn.functional.one_hot((target + 1) % 20, 20).float()

    rows = counted(Finger(), word)
    assert {row["from_there"] for row in rows if row["letter"] == "elsewhere"} == {1}
    assert {row["from_there"] for row in rows if row["letter"] == "nowhere"} == {0}
    found = fingers.cases(word, [*word, 11], {})
    usual = dict.fromkeys(word, (4, 5, 6))  # cannot be told from these letters in their place
    assert 0 < len(fingers.cases(word, [*word, 11], usual)) < len(found)
    assert fingers.spelling([word, [3, 9, 9, 9], word])[3] == (4, 5, 6)
    assert all(fingers.ways(word, place, letter)[2] for place, letter, _ in found)
    assert fingers.ways(word, 1, 6) == [{(5, 6, 7)}, {(4, 5, 6)}, {(7, 8, 9)}, {(4, 5, 7)}]
    assert not fingers.ways(word, 1, 7)[3]  # it comes after the letters that are compared
    assert not fingers.ways(word, 3, 4)[3]  # it is written


def counted(model, word):
    pairs = [(word, word)] * 40
    rows, examples = fingers.count(
        model, pairs, range(3, 13), fingers.SPECIAL, "cpu", fingers.in_letters
    )
    assert {row["answer"] for row in examples} == {"abcdefgh"}
    return rows


def test_a_model_that_crosses_off_what_is_written_is_found():
    word = [3, 4, 5, 6, 7, 8, 9, 10]

    class Crosses(torch.nn.Module):  # writes the first letter of the source that is not there yet
        def forward(self, source, target, mask):
            logits = torch.zeros(*target.shape, 20)
            for b, t in itertools.product(range(len(target)), range(target.shape[1])):
                written = target[b, : t + 1].tolist()
                logits[b, t, next((i for i in source[b].tolist() if i not in written), 2)] = 1
            return logits

    rows = counted(Crosses(), word)
    assert {(row["letter"], row["soon"]) for row in rows} == set(
        itertools.product(("elsewhere", "nowhere"), ("no", "yes"))
    )
    for row in rows:
        crossed = (row["letter"], row["soon"]) == ("elsewhere", "yes")
        assert (row["crossed_off"], row["letter_due"]) == ((1, 0) if crossed else (0, 1))


def test_runs_in_processes_come_back_in_the_order_of_the_plan(tmp_path):
    options = common.read_options("recall", "", ["--out", str(tmp_path)])
    assert not options.tiny  # a tiny experiment makes its runs in this process
    assert common.side_by_side(pow, [(2, 3), (3, 2), (5, 1)], options) == [8, 9, 5]


def test_drafts_measures_texts_and_guesses(results):
    folder = results(drafts)
    rows = read_csv(folder / "results.csv")
    assert [row["strategy"] for row in rows] == ["true text", "greedy", "temperature 1"]
    shares = ("real_words", "distinct", "repeated", "copied")
    assert all(0 <= float(row[name]) <= 1 for row in rows for name in shares)
    greedy, two = rows[1], read_csv(folder / "beams.csv")[0]
    assert two["strategy"] == "beam 2"
    assert float(two["log_p"]) >= float(greedy["log_p"])  # not always so, but on these texts
    for row in read_csv(folder / "rounds.csv"):
        assert 1 <= float(row["tokens_per_pass"]) <= 1 + int(row["guesses"])
        kept = 1 + float(row["kept"]) * int(row["guesses"])  # and one that the judge writes
        assert float(row["tokens_per_pass"]) == pytest.approx(kept, abs=1e-3)
    assert all(0 < float(row["acceptance"]) <= 1 for row in read_csv(folder / "acceptance.csv"))
    assert isinstance(load_model(folder), CausalLM)


def test_a_text_is_measured_by_its_words():
    known = drafts.Known("To be, or not to be, that is the question: whether 'tis nobler")
    found = drafts.statistics("x to be or to be or to blorb x", known)
    assert found["real_words"] == pytest.approx(7 / 8)
    assert found["distinct"] == pytest.approx(4 / 8)
    assert found["repeated"] == pytest.approx(1 - 4 / 6)
    assert found["copied"] == 0
    assert drafts.statistics("or not to be, that is the", known)["copied"] == 1


def test_guessed_texts_have_the_distribution_of_the_judge():
    p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.2, 0.6]])
    generator = torch.Generator().manual_seed(0)
    counts, kept, n = torch.zeros(3), 0, 4_000
    for _ in range(n):
        ids, one = drafts.one_round(
            torch.zeros(1, 1, dtype=torch.long),
            lambda ids: p.log().expand(ids.shape[1], -1), lambda ids: q.log(),
            n_guesses=1, temperature=1.0, generator=generator,
        )  # fmt: skip
        counts[ids[0, 1]] += 1
        kept += one
    assert torch.allclose(counts / n, p[0], atol=0.03)
    assert kept / n == pytest.approx(0.2 + 0.2 + 0.2, abs=0.03)


def test_a_reader_that_forgets_reads_as_if_for_the_first_time():
    torch.manual_seed(0)
    model = drafts.build(vocab_size=9, length=16, d_model=16, n_layers=2)
    ids = torch.arange(8)[None]
    with drafts.ready(model):
        reader = drafts.Reader(model, 16)
        reader(torch.tensor([[0, 1, 2, 8, 8, 8]]))
        reader.forget(3)
        torch.testing.assert_close(reader(ids), model(ids)[0, 3:])


def test_cache_costs_times_both_ways_and_gives_the_same_scores(results):
    folder = results(cache_costs)
    rows = read_csv(folder / "results.csv")
    assert {(row["device"], row["shape"]) for row in rows} == {("CPU", "draft"), ("CPU", "plays")}
    assert all(0 < float(row["low"]) <= float(row["ms"]) <= float(row["high"]) for row in rows)
    kept = {row["cache_bytes"] for row in rows if (row["shape"], row["length"]) == ("plays", "8")}
    assert kept == {str(2 * 4 * 256 * 9 * 4), "0"}  # keys and values, blocks, width, places, bytes
    assert {row["n_new"] for row in read_csv(folder / "passes.csv")} == {"1", "2"}
    assert {row["batch"] for row in read_csv(folder / "batches.csv")} == {"1", "2"}
    assert {row["shape"] for row in read_csv(folder / "whole.csv")} == {"plays"}
    torch.manual_seed(0)
    model, text = cache_costs.build("draft", 16), torch.arange(9)[None]
    with torch.no_grad(), evaluating(model):
        step = cache_costs.Step(model, text[:, :6], text[:, 6:])
        step()
        torch.testing.assert_close(step(), model(text)[:, 6:])


def test_hardware_leaves_three_tables(results):
    folder = results(hardware)
    rows = read_csv(folder / "results.csv")
    assert [row["form"] for row in rows] == list(hardware.FORMS)
    assert all(float(row["seconds"]) > 0 for row in rows)
    rows = read_csv(folder / "operations.csv")
    assert {row["kind"] for row in rows} == {"product", "layer", "elementwise"}
    for row in rows:
        speeds = float(row["tflops"]) * 1e12 / (float(row["gigabytes"]) * 1e9)
        assert speeds == pytest.approx(float(row["intensity"]))
    forms = {row["form"] for row in read_csv(folder / "batches.csv")}
    assert forms == {"bfloat16", "bfloat16, recomputed", "float32"}


def test_all_forms_of_a_step_have_the_same_loss(tmp_path):
    options = common.read_options(
        "hardware", "", ["--tiny", "--device", "cpu", "--out", f"{tmp_path}"]
    )
    forms = {dataclasses.replace(form, precision="float32") for form in hardware.FORMS.values()}
    losses = []
    for form in forms:
        trainer = hardware.Trainer(form, 2, options)
        total, count = trainer.compute(trainer.batch)
        losses.append((total / count).item())
    assert losses == pytest.approx([losses[0]] * len(losses))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16
def test_precision_compares_six_kinds_of_arithmetic(results):
    rows = read_csv(results(precision) / "results.csv")
    assert list(dict.fromkeys(row["kind"] for row in rows)) == list(precision.KINDS)
    last = {row["kind"]: row for row in rows}
    for kind in ("bfloat16", "float16, scaled"):
        assert float(last[kind]["loss"]) == pytest.approx(float(last["float32"]["loss"]), abs=0.05)
    assert last["float16, weights too"]["loss"] == ""  # Adam's small number is zero there
    assert float(last["float16, not scaled"]["zeros"]) > 0.02
    assert float(last["float16, scaled"]["zeros"]) < 0.01


def test_modern_compares_models_of_one_size(results):
    folder = results(modern)
    rows = read_csv(folder / "results.csv")
    assert len(rows) == (8 + 7 + 7) * 2  # path, alone and without, with two learning rates
    sizes = [int(row["parameters"]) for row in rows]
    assert max(sizes) - min(sizes) <= 0.01 * sizes[-1]
    assert {row["step"] for row in read_csv(folder / "curves.csv")} == {"1", "2", "3", "4"}
    one = {(r["switch"], r["learning_rate"]): r["loss"] for r in rows if r["group"] == "alone"}
    path = {(r["switch"], r["learning_rate"]): r["loss"] for r in rows if r["group"] == "path"}
    assert one["pre-norm", "0.001"] == path["pre-norm", "0.001"]  # the same model, trained once


def test_models_that_train_together_learn_as_they_would_alone():
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "max_len": 6, "d_model": 16, "n_layers": 2}
    config = modern.configuration(tuple(modern.SWITCHES), **sizes)
    alone, rates = [CausalLM(config).double() for _ in range(2)], (1e-3, 1e-2)
    same = [CausalLM(config, parts=modern.PARTS).double() for _ in alone]
    for model, copy in zip(alone, same, strict=True):
        copy.load_state_dict(model.state_dict())
    together = modern.Ensemble(same, rates, "cpu")
    ids, targets = torch.randint(11, (2, 2, 3, 6))
    torch.testing.assert_close(together(ids)[1], alone[1](ids[1]))
    recipe = modern_recipe(4, 1e-2, warmup=2)
    modern.learn(together, lambda step: (ids, targets), modern.losses_of, recipe)
    for i, model in enumerate(alone):
        matrices = [weight for weight in model.parameters() if weight.ndim > 1]
        others = [weight for weight in model.parameters() if weight.ndim < 2]
        groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        adam = torch.optim.AdamW(groups, betas=recipe.betas, weight_decay=0.1)
        for step in range(4):
            for group in adam.param_groups:
                group["lr"] = rates[i] * learning_rate(step + 1, recipe) / 1e-2
            adam.zero_grad()
            torch.nn.functional.cross_entropy(model(ids[i]).mT, targets[i]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
        flat = torch.cat([weight.detach().flatten() for weight in model.parameters()])
        torch.testing.assert_close(together.flat[i].detach(), flat, atol=1e-6, rtol=0)


def test_patches_leaves_three_tables(results):
    folder = results(patches)
    digits_rows, domains = read_csv(folder / "digits.csv"), read_csv(folder / "domains.csv")
    assert {row["group"] for row in digits_rows} == {"order", "data", "distorted"}
    assert {row["model"] for row in domains} == {"words", "points", "graph"}
    assert len(read_csv(folder / "results.csv")) == 6
    for row in digits_rows:
        assert all(0 <= float(row[name]) <= 1 for name in patches.ARRANGEMENTS)


def test_models_of_digits_are_of_one_size():
    sizes = [sum(w.numel() for w in make().parameters()) for make in patches.MODELS.values()]
    assert max(sizes) < 1.08 * min(sizes)


@pytest.mark.parametrize("arrangement", patches.ARRANGEMENTS)
def test_pictures_that_are_moved_about_keep_their_pixels(arrangement):
    images = datasets.digits().train.images[:5]
    moved = patches.move(images, arrangement, seed=3)
    assert torch.equal(moved.flatten(1).sort()[0], images.flatten(1).sort()[0])
    assert torch.equal(moved, images) == (arrangement == "as they are")
    if arrangement == "patches moved":  # which a model without positions does not notice
        torch.manual_seed(0)
        model = patches.vision("none")
        torch.testing.assert_close(model(moved), model(images))


def test_nodes_within_two_steps_by_hand():
    mark, near, within = patches.graph_task(20, seed=1)
    for i in range(20):
        start = {int(mark[i].argmax())}
        for _ in range(2):
            start |= {b for a in start for b in range(12) if near[i, 0, a, b]}
        assert set(within[i].nonzero()[:, 0].tolist()) == start


def test_families_leaves_five_tables(results):
    folder = results(families)
    rows = read_csv(folder / "results.csv")
    assert [row["family"] for row in rows] == list(families.FAMILIES)
    assert all(0 <= float(row["words"]) <= float(row["letters"]) <= 1 for row in rows)
    assert len(read_csv(folder / "curves.csv")) == len(rows)
    found = [(row["family"], row["pooling"]) for row in read_csv(folder / "pooling.csv")]
    assert found == [(f, p) for f in ("encoder", "decoder") for p in families.POOLINGS]
    prepared = [row["objective"] for row in read_csv(folder / "prepared.csv")]
    tuned = read_csv(folder / "tuned.csv")
    assert [row["objective"] for row in tuned] == list(families.OBJECTIVES)
    assert prepared == [name for name in families.OBJECTIVES if not name.startswith("none")]
    assert [row["chosen"] for row in tuned] == ["1"] * len(tuned)


def test_families_of_one_size_have_as_many_matrices():
    sizes = {}
    for family in families.FAMILIES:
        model = families.build(family, 64, 100)
        sizes[family] = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    small = sizes.pop("decoder, 4 blocks")
    assert len(set(sizes.values())) == 1
    assert small < sizes["decoder"]


def test_what_every_family_is_asked_are_the_letters_of_the_target():
    pairs = [([20, 21, 22], [30, 31]), ([23], [32])]
    for family in families.FAMILIES:
        batch = families.make_batch(family, pairs, n_slots=5, judged=True)
        asked = [row[row != families.IGNORE].tolist() for row in batch["targets"]]
        assert asked == [[30, 31, families.EOS], [32, families.EOS]], family


@pytest.mark.parametrize("family", families.FAMILIES)
def test_families_that_are_right_when_taught_write_the_same_by_themselves(family):
    torch.manual_seed(0)
    model = families.build(family, 16, 40).eval()
    source, target = [20, 21, 22], [30, 31, 32]
    batch = families.make_batch(family, [(source, target)], n_slots=4, judged=True)
    inputs = {name: tensor for name, tensor in batch.items() if name != "targets"}
    place = int((batch["targets"][0] != families.IGNORE).nonzero()[0])
    last = "target" if family == "encoder-decoder" else "ids"
    changed = {**inputs, last: inputs[last].clone()}
    changed[last][0, -1] = 40  # a later letter of the answer
    same = torch.allclose(model(**inputs)[0, place], model(**changed)[0, place], atol=1e-6)
    assert same == (family != "encoder, all at once")  # which never reads the answer


def test_spans_are_apart_and_cut_what_was_asked_for():
    for seed in range(200):
        spans = objectives.draw_spans(20, rate=0.3, mean_length=2, seed=seed)
        assert len(spans) == 3
        assert sum(end - start for start, end in spans) == 6
        assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))
        source, target = objectives.corrupt_spans(range(100, 120), spans, range(5))
        back, answers = [], iter(target)
        for token in source:
            back += [token] if token >= 100 else []
        assert sorted(back + [t for t in answers if t >= 100]) == list(range(100, 120))
    starts = {objectives.draw_spans(9, rate=0.3, mean_length=3, seed=s)[0] for s in range(99)}
    assert starts == {(start, start + 3) for start in range(7)}


def test_masked_tokens_are_chosen_and_hidden_as_asked():
    ids = torch.randint(3, 50, (40, 500))
    ids[:, -100:] = 0
    generator = torch.Generator().manual_seed(0)
    inputs, targets, chosen = objectives.mask_tokens(ids, 2, range(3, 50), generator=generator)
    assert not chosen[:, -100:].any()
    assert torch.equal(targets, ids.masked_fill(~chosen, -100))
    assert torch.equal(inputs[~chosen], ids[~chosen])
    n = int(chosen.sum())
    assert n / ids[:, :-100].numel() == pytest.approx(0.15, abs=0.01)
    assert (inputs[chosen] == 2).sum() / n == pytest.approx(0.8, abs=0.03)
    kept = (inputs[chosen] == ids[chosen]).sum() / n
    assert kept == pytest.approx(0.1 + 0.1 / 47, abs=0.02)
    with pytest.raises(ValueError, match="rate=2"):
        objectives.mask_tokens(ids, 2, range(3, 50), rate=2)
    with pytest.raises(ValueError, match="2 spans need 3 sentinels"):
        objectives.corrupt_spans([1, 2, 3], [(0, 1), (2, 3)], [9, 8])
    with pytest.raises(ValueError, match="must be in order"):
        objectives.corrupt_spans([1, 2, 3], [(2, 4)], [9, 8])


def test_induction_leaves_curves_heads_and_a_model(results):
    folder = results(induction)
    rows, heads = (read_csv(folder / name) for name in ("results.csv", "heads.csv"))
    assert {row["kind"] for row in rows} == set(induction.KINDS)
    assert [row["step"] for row in rows if row["kind"] == induction.SHIPPED] == ["0", "4"]
    n_layers = sum(kind.n_layers for kind in induction.KINDS.values())
    assert len(heads) == n_layers * induction.N_HEADS
    model = load_model(folder)
    assert all(not p.any() for n, p in model.named_parameters() if "feed_forward." in n)


def test_pieces_go_on_and_the_scores_see_heads_made_by_hand():
    ids, over, goes_on = induction.draw(4, torch.Generator().manual_seed(0))
    for row, done, known in zip(ids.tolist(), over.tolist(), goes_on.tolist(), strict=True):
        size = done.index(True)
        assert len(set(row[:size])) == size
        assert set(row[size:]) <= set(row[:size])
        for t in range(size, len(known)):
            place = row.index(row[t])
            assert known[t] == (place + 1 < size and row[t + 1] == row[place + 1])
    n = induction.LENGTH
    looks_back = torch.eye(n).roll(-1, dims=1).expand(4, 1, n, n)  # at the place before
    after = induction.after_copies(ids).double()
    finds = after / after.sum(dim=-1, keepdim=True).clamp(min=1)
    weights = torch.cat([looks_back.double(), finds[:, None]], dim=1)
    previous, found = induction.scores(weights, ids, over)
    assert previous[0] == pytest.approx(1.0)
    assert previous[1] < 0.1
    assert found[1] == pytest.approx(1.0)
    assert found[0] < 0.1


def test_shifted_keys_are_those_of_the_place_before():
    layer = torch.nn.Linear(4, 4)
    x = torch.randn(2, 3, 4)
    shifted = induction.Shifted(layer)(x)
    assert torch.equal(shifted[:, 1:], layer(x)[:, :-1])
    assert not shifted[:, 0].any()


def test_addition_leaves_two_tables(results):
    folder = results(addition)
    rows, carries = (read_csv(folder / name) for name in ("results.csv", "carries.csv"))
    assert [int(row["digits"]) for row in rows] == 2 * list(range(1, addition.LONGEST + 1))
    assert [int(row["carry"]) for row in carries] == 2 * list(range(addition.TRAINED + 1))
    assert {row["order"] for row in rows} == set(addition.ORDERS)


def test_sums_are_written_and_judged_digit_by_digit(monkeypatch):
    a, b = torch.tensor([95, 12]), torch.tensor([10, 34])
    tokens, in_answer = addition.examples(a, b, "last digit first")
    plus, equals, end, pad = addition.PLUS, addition.EQUALS, addition.END, addition.PAD
    assert tokens[0].tolist() == [9, 5, plus, 1, 0, equals, 5, 0, 1, end]
    assert tokens[1].tolist() == [1, 2, plus, 3, 4, equals, 6, 4, end, pad]
    assert in_answer.sum(dim=1).tolist() == [4, 3]
    tokens, _ = addition.examples(a, b, "first digit first")
    assert tokens[0].tolist() == [9, 5, plus, 1, 0, equals, 1, 0, 5, end]
    said = torch.full((2, addition.LONGEST + 2), end)
    said[:, :3] = torch.tensor([[1, 0, 5], [4, 7, end]])
    monkeypatch.setattr(addition, "answer", lambda *_: said)
    found = addition.judge(None, a, b, "first digit first")
    assert found == {"right": 0.5, "digits_right": 0.8, "length_right": 1.0}


def test_carries_are_as_long_as_asked_for():
    a, b = torch.tensor([999, 5, 55]), torch.tensor([1, 4, 55])
    assert addition.longest_carry(a, b, 3).tolist() == [3, 0, 1]
    for carry in range(addition.TRAINED + 1):
        a, b = addition.with_carry(20, carry, torch.Generator().manual_seed(carry))
        assert set(addition.longest_carry(a, b, addition.TRAINED).tolist()) == {carry}


def test_attention_costs_measures_every_way(results):
    folder = results(attention_costs)
    rows = read_csv(folder / "results.csv")
    kinds = {row["kind"] for row in rows}
    assert kinds == {*attention_costs.ways("cpu"), "linear layers", "recurrent"}
    assert all(float(row["milliseconds"]) > 0 for row in rows)
    steps = read_csv(folder / "decode.csv")
    sizes = {row["kv_heads"]: float(row["mebibytes"]) for row in steps if row["length"] == "32"}
    assert sizes["32"] == 4 * sizes["8"] == 32 * sizes["1"] > 0


def test_ways_that_should_be_equal_are():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 64, 8)
    plain = attention_costs.plain(q, k, v)
    torch.testing.assert_close(attention_costs.tiled(q, k, v, block=16), plain)
    torch.testing.assert_close(attention_costs.ways("cpu")["fused"](q, k, v), plain)
    near = window_mask(64, window=16)
    windowed = attention(q, k, v, near, causal=True)[0]
    torch.testing.assert_close(attention_costs.windowed(q, k, v, window=16), windowed)
    weights = ((torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT).tril()
    expected = weights / weights.sum(dim=-1, keepdim=True) @ v
    torch.testing.assert_close(attention_costs.linear(q, k, v, chunk=16), expected)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_mask_costs_measures_every_way(results):
    rows = read_csv(results(mask_costs) / "results.csv")
    kinds: dict[str, set[str]] = {}
    for row in rows:
        kinds.setdefault(row["task"], set()).add(row["kind"])
    assert kinds == {
        "causal": {"stored", "none", "flag", "function"},
        "window": {"stored", "function"},
        "packing": {"stored", "function", "end to end"},
        "padding": {"stored", "end to end"},
    }
    assert all(float(row["milliseconds"]) > 0 for row in rows)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("task", ["causal", "window", "packing"])
def test_ways_to_say_a_mask_agree(task):
    torch.manual_seed(0)
    owner = mask_costs.owners_of([100, 30, 300], 384, "cpu")
    rule = mask_costs.rules(owner)[task]
    inputs = mask_costs.inputs_of(1, 384, "cpu")
    ways = mask_costs.ways(task, rule, owner, "cpu")
    expected, *others = (way(*inputs) for name, way in ways.items() if name != "none")
    assert others
    for found in others:
        torch.testing.assert_close(found, expected)


def test_padding_and_its_absence_agree():
    torch.manual_seed(0)
    found = mask_costs.padding([3, 7, 1], "cpu")
    padded, inputs = found["stored"]
    real = torch.tensor([[i < n for i in range(7)] for n in (3, 7, 1)])
    row = [x.transpose(1, 2)[real].transpose(0, 1)[None] for x in inputs]
    alone = found["end to end"][0](*row)
    expected = padded(*inputs).transpose(1, 2)[real].transpose(0, 1)[None]
    torch.testing.assert_close(alone, expected)


def test_norm_costs_measures_every_form(results):
    folder = results(norm_costs)
    rows = read_csv(folder / "norms.csv")
    assert {(row["norm"], row["form"]) for row in rows} == {
        (norm, form) for norm in ("layer", "rms") for form in ("written out", "kernel", "compiled")
    }
    assert all(float(row["microseconds"]) > 0 for row in rows)
    blocks = read_csv(folder / "blocks.csv")
    assert {row["norm"] for row in blocks} == {"none", "layer", "rms"}
    assert {float(row["share"]) for row in blocks if row["norm"] == "none"} == {0.0}


@pytest.mark.parametrize("name", ["layer", "rms"])
def test_norms_that_are_timed_compute_the_same(name):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 8)
    written, kernel = norm_costs.WRITTEN[name](8), norm_costs.KERNELS[name](8)
    for weight in written.parameters():
        torch.nn.init.normal_(weight)
    kernel.load_state_dict(written.state_dict())
    torch.testing.assert_close(written(x), kernel(x))


def test_norm_trials_leaves_three_tables(results):
    folder = results(norm_trials)
    shift = read_csv(folder / "shift.csv")
    assert {row["kind"] for row in shift} == set(norm_trials.NOISE)
    first = {
        row["kind"]: float(row["moved"])
        for row in shift
        if (row["since"], row["step"], row["warmup"]) == ("0", "1", "0")
    }
    assert first["pre, noise 1"] > first["pre, noise 0.5"] > 2 * first["pre"] > 0
    places = read_csv(folder / "places.csv")
    assert {row["kind"] for row in places} == set(norm_trials.PLACES)
    assert all(float(row["loss"]) > 0 for row in places)


def test_a_disturbed_norm_gives_back_what_it_read_once_the_noise_is_off():
    norm = norm_trials.Watched(torch.nn.Identity(), 4)
    x, generator = torch.randn(3, 4), torch.Generator().manual_seed(0)
    norm.disturb(1.0, generator)
    assert not torch.allclose(norm(x), x)
    norm.disturb(0.0, generator)
    torch.testing.assert_close(norm(x), x)


def test_cheaper_compares_kinds_of_attention(results):
    folder = results(cheaper)
    rows = read_csv(folder / "results.csv")
    sizes = [int(row["parameters"]) for row in rows]
    assert max(sizes) < 1.01 * min(sizes)
    assert {row["kind"]: row["pairs"] for row in rows}["full"] == "1.0"
    converted = read_csv(folder / "conversion.csv")
    kept = [row for row in converted if (row["kv_heads"], row["steps"]) == ("8", "0")]
    assert [row["loss"] for row in kept] == [row["loss"] for row in rows if row["kind"] == "full"]
    for row in read_csv(folder / "recall.csv"):
        assert 0 <= float(row["accuracy"]) <= 1


@pytest.mark.parametrize("kind", cheaper.KINDS)
def test_cheaper_attention_sees_its_pattern_and_no_future(kind):
    torch.manual_seed(0)
    model = cheaper.build(kind, vocab=11, length=32, sizes=(16, 8, 1)).double()
    allowed = cheaper.pattern(kind, 32)
    allowed = torch.ones(32, 32).tril() if allowed is None else allowed
    stack = model.decoder.stack
    found = influence(stack, torch.randn(1, 32, 16, dtype=torch.float64)) > 0
    assert torch.equal(found, allowed.bool())


def test_pooled_heads_are_means_of_their_group():
    torch.manual_seed(0)
    model = cheaper.build("full", vocab=11, length=32, sizes=(16, 8, 1))
    (block,) = cheaper.pooled(model, 2, "mean").decoder.stack.blocks
    old = model.decoder.stack.blocks[0].attention.key.weight
    torch.testing.assert_close(
        block.attention.key.weight[:2], (old[0:2] + old[2:4] + old[4:6] + old[6:8]) / 4
    )
    same = cheaper.pooled(model, 8, "mean")
    ids = torch.arange(8)[None]
    torch.testing.assert_close(same(ids), model(ids))


def test_answers_of_lists_are_the_values_of_their_items():
    names, values, answers, distances = cheaper.lists(5, 8, torch.Generator().manual_seed(0))
    for b in range(5):
        for t in range(cheaper.N_QUESTIONS):
            place = 8 + t - distances[b, t]
            assert names[b, place] == names[b, 8 + t]
            assert values[b, place] == answers[b, t]
    assert (values[:, 8:] == cheaper.N_VALUES).all()


def test_word_head_measures_every_head(results):
    rows = read_csv(results(word_head) / "results.csv")
    assert [len(rows), len(rows[0])] == [72, 10]


def test_senses_measures_each_layer_beside_its_controls(results):
    rows = read_csv(results(senses) / "results.csv")
    kinds = {(row["word"], row["kind"]) for row in rows}
    words = {(word, kind) for word in senses.SENTENCES for kind in ("trained", "untrained")}
    assert kinds == words | {(word, "inputs") for word in senses.SENTENCES} | {("the", "trained")}
    assert {row["layer"] for row in rows if row["kind"] == "trained"} == set("0123456")
    assert all(0 <= float(row[name]) <= 1 for row in rows for name in ("share", "right"))


def test_senses_measures_by_hand():
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 9.0], [7.0, 9.0]]).double()
    second = torch.tensor([False, False, True, True])
    assert senses.share(x[:, :1], second) == pytest.approx(0.8)
    assert senses.told(x, second) == 1


def test_senses_compares_a_word_with_itself_and_with_others(results):
    rows = read_csv(results(senses) / "pairs.csv")
    assert [(row["kind"], row["layer"]) for row in rows] == [
        (kind, layer) for kind in ("trained", "untrained") for layer in "0123456"
    ]
    texts = read_csv(results(senses) / "sentences.csv")
    assert [row["sentence"] for row in texts] == [s for w in senses.SENTENCES.values() for s in w]
    assert [row["meaning"] for row in texts if row["word"] == "bat"] == ["1"] * 5 + ["2"] * 5


def test_senses_mean_cosines_by_hand():
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 1.0]]).double()
    second = torch.tensor([False, False, True, True])
    others = torch.tensor([[5.0, 0.0], [0.0, 5.0]]).double()  # words of the first, of the last
    found = senses.mean_cosines(x, second, others, torch.tensor([0, 3]))
    assert found["same_meaning"] == 1
    assert found["other_meaning"] == 0
    # Six pairs come from different sentences, and two of them are parallel.
    assert found["other_word"] == pytest.approx(1 / 3, abs=1e-4)


def test_sublayers_trains_every_stack(results):
    rows = read_csv(results(sublayers) / "results.csv")
    assert [row["stack"] for row in rows] == [*sublayers.STACKS]
    assert all(0 <= float(row["right"]) <= 1 for row in rows)
    assert json.loads((results(sublayers) / "card.json").read_text())["recipe"]["clip"] == 1


def test_sublayers_side_by_side_has_the_parts_of_four_blocks_and_reads_once():
    deep, flat = (sublayers.Reader(sublayers.STACKS[n], 5, 8) for n in ("4 blocks", "side by side"))
    sizes = [sorted(tuple(p.shape) for p in model.sublayers.parameters()) for model in (deep, flat)]
    assert sizes[0] == sizes[1]
    assert [len(group) for group in flat.sublayers] == [4, 4]
    ids = torch.tensor([[1, 2, 3, 0]])
    x = flat.embedding(ids) + sinusoidal(torch.arange(4), 8)
    mask = token_mask(ids, 0)
    for norm, parts in zip(flat.norms, flat.sublayers, strict=False):
        read = norm(x)
        x = x + sum(p(read, mask=mask) if parts is flat.sublayers[0] else p(read) for p in parts)
    torch.testing.assert_close(flat(ids), flat.output(flat.norms[-1](x)))


def test_sublayers_counts_the_commonest_letter_of_each_place():
    learn = torch.tensor([[1, 2, 0], [1, 3, 0], [2, 3, 0], [1, 1, 0]])
    assert sublayers.commonest(learn, 4).tolist() == [1, 3, 1, 1]
    assert sublayers.commonest(learn, 1).tolist() == [1]


def test_sublayers_hides_letters_and_no_padding():
    ids = torch.tensor([[1, 2, 3, 0, 0]]).expand(400, 5)
    seen, hidden = sublayers.hide(ids, 9, torch.Generator().manual_seed(0))
    assert not hidden[:, 3:].any()
    assert hidden[:, :3].double().mean().item() == pytest.approx(sublayers.HIDDEN, abs=0.05)
    assert (seen[hidden] == 9).all()
    assert (seen[~hidden] == ids[~hidden]).all()


def test_optimizers_trains_every_arm_and_judges_the_average_of_the_same_run(results):
    folder = results(optimizers)
    rows = read_csv(folder / "results.csv")
    assert {(row["optimizer"], row["schedule"]) for row in rows} == set(
        itertools.product(optimizers.OPTIMIZERS, (*optimizers.SCHEDULES, optimizers.AVERAGED))
    )
    assert len(rows) == 8
    assert all(0 < float(row["loss"]) < 5.6 for row in rows)
    losses = {(row["optimizer"], row["schedule"]): float(row["loss"]) for row in rows}
    # In four steps of warm-up, when all get better, an average lags behind.
    assert losses["muon", optimizers.AVERAGED] > losses["muon", "constant"]
    curves = read_csv(folder / "curves.csv")
    assert [row["step"] for row in curves[:4]] == ["1", "2", "3", "4"]
    first = {row["loss"] for row in curves if row["step"] == "1"}
    assert len(first) == 1, "all arms of a seed start with the same weights and windows"


def test_the_best_rate_has_the_lowest_mean():
    rows = [
        {"kind": "a", "rate": rate, "loss": loss}
        for rate, loss in ((1.0, 3.0), (1.0, 1.0), (2.0, 1.9), (2.0, 1.9), (4.0, 0.9), (4.0, 9.0))
    ]
    rows.append({"kind": "b", "rate": 4.0, "loss": 0.0})
    assert optimizers.best_rate(rows, kind="a") == 2.0


def test_paragraphs_keeps_texts_and_their_vectors(results):
    folder = results(paragraphs)
    rows = read_csv(folder / "paragraphs.csv")
    kept = load_file(folder / "vectors.safetensors")["vectors"]
    assert kept.shape == (len(rows), 384)
    assert kept.dtype == torch.float16
    again = minilm.embed(minilm.load(), [row["text"] for row in rows])
    torch.testing.assert_close(kept.float(), again, rtol=0, atol=1e-3)
    found = {row["method"]: row for row in read_csv(folder / "results.csv")}
    assert list(found)[:7] == [f"layer {n}" for n in range(7)]
    assert all(0 <= float(row["low"]) <= float(row["high"]) <= 1 for row in found.values())
    queries = read_csv(folder / "queries.csv")
    first = sum(row["minilm"] == "1" for row in queries) / len(queries)
    assert first == pytest.approx(float(found["layer 6"]["at_1"]))


def test_paragraphs_are_plain_text():
    prose = "See [chapter 3](03_x.ipynb) and **`x`** of $x_1$."
    text = f"## A *title*\n\n{prose}\n\n```\ncode\n```\n- a\n- b"
    found = [(is_heading, paragraphs.plain(part)) for is_heading, part in paragraphs.split(text)]
    expected = [
        (True, "A title"),
        (False, "See chapter 3 and x of x_1."),
        (False, "a"),
        (False, "b"),
    ]
    assert found == expected


def test_search_counts_by_hand():
    texts = ["a cat and a dog", "a bird", "the cat"]
    scores = paragraphs.bm25(["Cat!", "the bird"], texts)
    assert scores.argmax(dim=1).tolist() == [2, 1]  # the shorter text with the word
    right = torch.tensor([[True, False, False], [False, True, False]])
    assert paragraphs.ranks(scores, right) == [2, 1]


def test_scaling_fills_a_grid_and_fits_laws_to_it(results):
    folder = results(scaling)
    rows = read_csv(folder / "results.csv")
    cells = {(int(row["parameters"]), int(row["tokens"])) for row in rows}
    assert len(cells) == len(rows) == 3 * len(scaling.FEW)
    for row in rows:
        assert int(row["steps"]) * int(row["batch"]) * 16 == int(row["tokens"])
        assert int(row["flops"]) > 6 * int(row["parameters"]) * int(row["tokens"])
    watched = read_csv(folder / "unfinished.csv")
    assert {row["planned"] for row in watched} == {str(max(scaling.FEW))}
    fits = read_csv(folder / "fits.csv")
    assert [row["name"] for row in fits[:5]] == ["E", "A", "B", "alpha", "beta"]
    card = json.loads((folder / "card.json").read_text())
    assert card["text"]["train_bytes"] > max(scaling.FEW)
    assert "/" not in "".join(card["text"]["packages"].values())


def test_the_text_of_scaling_is_seen_once_and_validation_files_are_others():
    job = scaling.Job(16, 1, tokens=640, batch=4, rate=1.0, seed=3)
    starts = scaling.starts_of(job, n_bytes=1000, length=16)
    assert starts.shape == (10, 4)
    assert len(starts.unique()) == 40
    assert (starts % 16 == 0).all()
    assert int(starts.max()) + 16 < 1000
    with pytest.raises(ValueError, match="only 100 bytes"):
        scaling.starts_of(job, n_bytes=100, length=16)
    rates = scaling.rates_of(job, 100)
    assert float(rates.max()) == pytest.approx(1.0)
    assert float(rates[0]) == pytest.approx(0.2)
    assert float(rates[-1]) == pytest.approx(0.1, abs=1e-3)
    known, new, _ = scaling.read_text(few=True)
    assert len(known) > len(new) > 0
    assert new[:2000] not in known


def test_the_best_rate_of_a_sweep_lies_between_those_that_were_tried():
    rows = [
        {"parameters": 1, "tokens": 1, "rate": rate, "loss": (math.log(rate) + 3) ** 2}
        for rate in (0.02, 0.04, 0.08, 0.16)
    ]
    (best,) = scaling.best_rates(rows)
    assert best["rate"] == pytest.approx(math.exp(-3))
    assert best["inside"] == 1
    (edge,) = scaling.best_rates(rows[:1])
    assert edge["rate"] == pytest.approx(0.02)
    found = [
        {"parameters": n, "tokens": d, "rate": 2 * n**-0.5 * d**0.25}
        for n in (10, 100)
        for d in (50, 5000)
    ]
    assert scaling.rate_rule(found) == pytest.approx((math.log(2), -0.5, 0.25))
