"""training: every step is the one that PyTorch would make by hand, and the files say so."""

import copy
import csv
import json
import math
import signal
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tiny_models import tiny
from torch import nn
from torch.testing import assert_close

from transformer_book.datasets import image_batch
from transformer_book.recurrent import RecurrentClassifier, with_lengths
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.training import loop as training
from transformer_lib.training import run_checkpoints
from transformer_lib.training.data import (
    IGNORE,
    Batches,
    TextWindows,
    classification_batch,
    next_token_batch,
    translation_batch,
)
from transformer_lib.training.distributed import choose_device, own_rows
from transformer_lib.training.loop import bits_per_byte, evaluate, train
from transformer_lib.training.losses import Objective
from transformer_lib.training.recipes import Recipe, learning_rate, modern_recipe, recipe_2017
from transformer_lib.training.run_checkpoints import check_same_data, sum_up
from transformer_lib.training.run_log import COLUMNS

PLAIN = {"dropout": 0.0, "attention_dropout": 0.0}
# Adam divides a gradient by its size, which turns rounding errors of one that is 0 into steps; a
# large eps keeps a small gradient small, so that weights can be compared.
SMOOTH = {"eps": 1.0, "learning_rate": 1.0}
TEXT = torch.arange(200) % 7 + torch.arange(200) // 100  # ids from 0 to 7


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    """They take longer than all the rest."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.fixture
def pictures():
    """But this test wants them."""


def make_model(seed=0, **choices):
    torch.manual_seed(seed)
    return CausalLM(tiny(**choices))


def sentences(n=32, seed=0):
    """Sequences of very different lengths, so that padding matters."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 20, (n,), generator=generator).tolist()
    return [torch.randint(1, 11, (length,), generator=generator) for length in lengths]


def stream(batch_size=4, **options):
    return Batches(sentences(), next_token_batch, batch_size=batch_size, **options)


def text(seed=0):
    return TextWindows(TEXT, length=8, batch_size=4, seed=seed)


def quick(**changes):
    """A recipe that is short and says everything."""
    return Recipe(**{"steps": 5, "learning_rate": 1e-2, "log_every": 1} | changes)


def run(model, batches, recipe, **options):
    return train(model, batches, recipe, device="cpu", progress=False, **options)


def assert_same(a, b, **tolerance):
    for (name, x), (_, y) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        if tolerance:
            assert_close(x, y, **tolerance, msg=lambda text, name=name: f"{name}: {text}")
        else:
            assert torch.equal(x, y), name


# --- recipes ---


def test_the_schedules_are_those_of_the_formulas():
    recipe = Recipe(steps=110, learning_rate=2.0, warmup=10, final_fraction=0.1)
    rates = partial(map, lambda step, recipe: learning_rate(step, recipe))
    cosine = list(rates((1, 5, 10, 60, 110), [recipe] * 5))
    assert_close(cosine, [0.2, 1.0, 2.0, 0.2 + 1.8 / 2, 0.2])
    linear = list(rates((10, 35, 60, 110), [replace(recipe, schedule="linear")] * 4))
    assert_close(linear, [2.0, 0.2 + 1.8 * 0.75, 0.2 + 1.8 * 0.5, 0.2])
    constant = list(rates((1, 10, 110), [replace(recipe, schedule="constant")] * 3))
    assert_close(constant, [0.2, 2.0, 2.0])
    root = list(rates((1, 10, 40, 90), [replace(recipe, schedule="inverse_sqrt")] * 4))
    assert_close(root, [0.2, 2.0, 1.0, 2 / 3])
    without = replace(recipe, schedule="inverse_sqrt", warmup=0)
    assert_close(learning_rate(1, without), 2.0)
    assert_close(learning_rate(4, without), 1.0)


@pytest.mark.parametrize(
    ("schedule", "theirs"),
    [
        ("cosine", partial(transformers.get_cosine_schedule_with_warmup, num_training_steps=50)),
        ("linear", partial(transformers.get_linear_schedule_with_warmup, num_training_steps=50)),
        ("constant", transformers.get_constant_schedule_with_warmup),
        ("inverse_sqrt", transformers.get_inverse_sqrt_schedule),
        (
            "wsd",
            partial(
                transformers.get_wsd_schedule,
                num_decay_steps=10,
                num_training_steps=50,
                decay_type="1-sqrt",
            ),
        ),
    ],
)
def test_the_schedules_are_those_of_transformers_one_step_earlier(schedule, theirs):
    """There the first update has rate 0 and changes nothing; here it is the second of theirs."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = theirs(optimizer, num_warmup_steps=8)
    recipe = Recipe(steps=50, learning_rate=0.3, schedule=schedule, warmup=8, final_fraction=0.0)
    for step in range(1, 51):
        optimizer.step()
        scheduler.step()
        assert_close(learning_rate(step, recipe), scheduler.get_last_lr()[0])


def test_the_rate_is_stable_until_the_decay():
    recipe = Recipe(steps=20, learning_rate=2.0, schedule="wsd", warmup=4, decay_share=0.25)
    rates = [learning_rate(step, recipe) for step in range(1, 21)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[3:15] == [2.0] * 12
    assert_close(rates[15:], [0.2 + 1.8 * (1 - math.sqrt(n / 5)) for n in range(1, 6)])
    longer = replace(recipe, steps=40)  # before its decay, it does not know how long it is
    assert [learning_rate(step, longer) for step in range(1, 16)] == rates[:15]


@pytest.mark.parametrize(("steps", "share"), [(1, 0.2), (3, 0.01), (10, 1.0), (7, 0.5)])
def test_a_decay_takes_one_step_at_least_and_ends_with_the_last(steps, share):
    recipe = Recipe(steps=steps, learning_rate=1.0, schedule="wsd", decay_share=share)
    rates = [learning_rate(step, recipe) for step in range(1, steps + 1)]
    assert rates[-1] == pytest.approx(0.1)
    assert sum(rate < 1 for rate in rates) == max(1, round(steps * share))


def test_the_recipe_of_2017_is_the_formula_of_the_paper():
    recipe = recipe_2017(512)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert_close(learning_rate(step, recipe), paper)
    assert (recipe.optimizer, recipe.betas, recipe.eps) == ("adam", (0.9, 0.98), 1e-9)
    assert (recipe.label_smoothing, recipe.clip, recipe.weight_decay) == (0.1, None, 0.0)
    assert recipe_2017(512, label_smoothing=0.0, steps=5000).label_smoothing == 0
    with pytest.raises(ValueError, match=r"^warmup=0 must be"):
        recipe_2017(512, warmup=0)


def test_the_modern_recipe():
    recipe = modern_recipe(2000, clip=0.5)
    assert (recipe.optimizer, recipe.betas, recipe.weight_decay) == ("adamw", (0.9, 0.95), 0.1)
    assert (recipe.schedule, recipe.final_fraction, recipe.warmup) == ("cosine", 0.1, 20)
    assert recipe.clip == 0.5


def test_a_recipe_can_be_written_as_json():
    assert json.loads(json.dumps(asdict(quick())))["betas"] == [0.9, 0.95]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0 must be a whole number of at least 1"),
        ({"warmup": -1}, "warmup=-1 must be a whole number of at least 0"),
        ({"warmup": 6}, "warmup=6 must be at most steps=5"),
        ({"patience": 0}, "patience=0 must be a whole number of at least 1"),
        ({"keep": 0}, "keep=0 must be a whole number of at least 1"),
        ({"schedule": "step"}, "schedule='step' must be one of 'inverse_sqrt', 'cosine'"),
        ({"precision": "fp8"}, "precision='fp8' must be one of 'float32'"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0 must be a number of at least 0"),
        ({"weight_decay": math.nan}, "weight_decay=nan must be a number of at least 0"),
        ({"clip": 0.0}, "clip=0.0 must be a number greater than 0"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0 must be at least 0 and less than 1"),
        ({"final_fraction": 1.5}, "final_fraction=1.5 must be at least 0 and less than 1"),
        ({"betas": (0.9, 1.0)}, "betas=1.0 must be at least 0 and less than 1"),
        ({"balance": -0.01}, "balance=-0.01 must be a number of at least 0"),
        ({"balance": math.nan}, "balance=nan must be a number of at least 0"),
    ],
)
def test_a_recipe_checks_itself(changes, message, unchecked_shapes):
    with pytest.raises(ValueError, match=message):
        quick(**changes)


# --- one step ---


def by_hand(model, batches, optimizer, steps, *, rate=None, smoothing=0.0, clip=None):
    """The loop as everybody writes it."""
    objective = Objective(model, smoothing).train()
    scheduler = rate and torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for _ in range(steps):
        total, count = objective(next(batches))
        (total / count).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler:
            scheduler.step()


def test_the_recipe_of_2017_makes_the_steps_of_adam_with_a_scheduler():
    ours, theirs = make_model(**PLAIN), make_model(**PLAIN)
    run(ours, stream(), recipe_2017(16, steps=20, warmup=5))
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)

    def rate(k):
        return 16**-0.5 * min((k + 1) ** -0.5, (k + 1) * 5**-1.5)

    by_hand(theirs, stream(), optimizer, 20, rate=rate, smoothing=0.1)
    assert_same(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_modern_recipe_makes_the_steps_of_adamw_with_clipping():
    ours, theirs = make_model(**PLAIN), make_model(**PLAIN)
    recipe = quick(steps=10, schedule="constant", weight_decay=0.3, clip=0.2)
    rows = run(ours, stream(), recipe)
    matrices = [p for p in theirs.parameters() if p.ndim >= 2]
    others = [p for p in theirs.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    by_hand(theirs, stream(), torch.optim.AdamW(groups, 1e-2, (0.9, 0.95)), 10, clip=0.2)
    assert_same(ours, theirs)
    assert all(row["grad_norm"] > 0.2 for row in rows)  # as it was before it was clipped


def test_only_matrices_decay():
    decayed, plain, before = (make_model(**PLAIN) for _ in range(3))
    for model, decay in ((decayed, 0.5), (plain, 0.0)):
        run(model, stream(), quick(steps=1, schedule="constant", weight_decay=decay))
    for (name, new), old, start in zip(
        decayed.named_parameters(), plain.parameters(), before.parameters(), strict=True
    ):
        is_matrix = name.endswith("weight") and "norm" not in name
        shrunk = 1e-2 * 0.5 if is_matrix else 0.0  # not biases, not weights of norms
        assert_close(new, old - shrunk * start, msg=name)


def test_four_parts_of_unequal_padding_make_the_step_of_one_whole_batch():
    whole, parts = make_model(**PLAIN), make_model(**PLAIN)
    in_order = {"shuffle": False}
    recipe = quick(clip=None, steps=4, **SMOOTH)
    rows = run(whole, stream(16, **in_order), recipe)
    split = run(parts, stream(4, **in_order), replace(recipe, accumulate=4))
    for a, b in zip(rows, split, strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert_same(whole, parts, rtol=1e-5, atol=1e-6)
    counts = [int((next(b)["targets"] != IGNORE).sum()) for b in [stream(4, **in_order)] * 4]
    assert len(set(counts)) == 4, "a mean of means would pass too"


def test_dropout_follows_from_the_seed_and_nothing_else():
    first, second, third = make_model(), make_model(), make_model()
    torch.manual_seed(1)
    run(first, text(), quick())
    torch.manual_seed(2)
    run(second, text(), quick(log_every=5))
    assert_same(first, second)
    run(third, text(), quick(seed=1))
    assert not torch.equal(first.output.projection.weight, third.output.projection.weight)


def test_activations_can_be_computed_again_without_any_difference():
    plain, sparing = make_model(), make_model()
    run(plain, text(), quick())
    calls = []
    block = sparing.decoder.stack.blocks[0]
    block.attention.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    run(sparing, text(), quick(checkpoint_activations=True))
    assert_same(plain, sparing)
    assert len(calls) == 2 * 5, "every block runs twice a step"
    assert "forward" not in vars(block), "and once afterwards"


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # an old CPU: slower, no different
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_learns_and_keeps_its_weights_whole(precision, tmp_path):
    model, whole = make_model(**PLAIN), make_model(**PLAIN)
    recipe = quick(steps=20, checkpoint_every=10, precision=precision)
    rows = run(model, text(), recipe, folder=tmp_path)
    exact = run(whole, text(), quick(steps=20))
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    losses = [torch.tensor([row["loss"] for row in some]) for some in (rows, exact)]
    assert not torch.equal(*losses)
    assert_close(*losses, rtol=0.05, atol=0.05)
    again = make_model(seed=1, **PLAIN)
    assert run(again, text(), recipe, folder=tmp_path) == rows
    assert_same(model, again)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch compiles with old means of its own
@pytest.mark.usefixtures("fresh_compiler")
def test_the_compiled_step_is_the_same_step(monkeypatch):
    # Both passes in one graph, but no C++ for it: that would take half a minute here.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    eager, compiled = make_model(n_layers=1, **PLAIN), make_model(n_layers=1, **PLAIN)
    recipe = quick(steps=3, **SMOOTH)
    rows = run(eager, text(), recipe)
    fast = run(compiled, text(), replace(recipe, compile=True))
    for a, b in zip(rows, fast, strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert_same(eager, compiled, rtol=1e-5, atol=1e-6)


def stream_dtypes(precision):
    """Of what the blocks are given, and what they hand on."""
    model, seen = make_model(**PLAIN), set()
    for block in model.decoder.stack.blocks:
        block.register_forward_hook(lambda _, x, y: seen.update((x[0].dtype, y.dtype)))
    run(model, text(), quick(steps=1, precision=precision))
    return seen


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_the_default_dtype_does_not_round_the_loss():
    """G6: the sum over the parts of a step was kept in bfloat16, if that was the default."""
    model, other = make_model(**PLAIN), make_model(**PLAIN)
    expected = run(model, text(), quick(accumulate=2))
    torch.set_default_dtype(torch.bfloat16)
    try:
        rows = run(other, text(), quick(accumulate=2))
    finally:
        torch.set_default_dtype(torch.float32)
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]
    assert_same(model, other)


def test_bfloat16_rounds_the_residual_stream_too_and_float16_does_not():
    assert stream_dtypes("float32") == {torch.float32}
    assert stream_dtypes("float16") == {torch.float32}
    assert stream_dtypes("bfloat16") == {torch.bfloat16}


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_a_step_of_very_many_tokens_is_the_same_in_float16():
    # Only the output layer's gradient is large: a sum over 131,072 tokens of one kind.
    class Letters(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(8, 4)

        def forward(self, ids, mask=None, positions=None, cache=None):
            return self.table(ids)

    def go(precision):
        torch.manual_seed(0)
        model = CausalLM(tiny(d_model=4, vocab_size=8, **PLAIN))
        model.decoder = Letters()
        nn.init.constant_(model.decoder.table.weight, 2.0)
        ones = TextWindows(torch.ones(2**13, dtype=torch.long), length=2**12, batch_size=32)
        rows = run(model, ones, quick(steps=2, precision=precision))
        return [row["loss"] for row in rows], model.output.projection.weight

    (exact, weights), (rounded, others) = go("float32"), go("float16")
    assert_close(torch.tensor(rounded), torch.tensor(exact), rtol=1e-2, atol=1e-2)
    assert_close(others, weights, rtol=1e-2, atol=1e-3)


# --- mixtures of experts ---


def mixtures(model):
    return [block.feed_forward for block in model.decoder.stack.blocks]


def balanced_by_hand(model, batches, recipe):
    """The loop as everybody writes it; returns what it makes small, step by step."""
    optimizer = torch.optim.Adam(model.parameters(), 1.0, (0.9, 0.95), eps=1.0)
    losses = []
    for _ in range(recipe.steps):
        parts = [next(batches) for _ in range(recipe.accumulate)]
        count = sum(int((part["targets"] != IGNORE).sum()) for part in parts)
        for part in parts:
            logits, targets = model(part["ids"]).flatten(end_dim=-2), part["targets"].flatten()
            loss = nn.functional.cross_entropy(logits, targets, reduction="sum")
            uneven = sum(mixture.balance_loss for mixture in mixtures(model))
            share = int((targets != IGNORE).sum()) / count
            (loss / count + recipe.balance * share * uneven).backward()
            losses.append((loss / count + recipe.balance * share * uneven).item())
        optimizer.step()
        optimizer.zero_grad()
    return [
        sum(losses[i : i + recipe.accumulate]) for i in range(0, len(losses), recipe.accumulate)
    ]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("sparing", [False, True])
def test_the_balance_loss_is_added_with_its_weight(accumulate, sparing):
    ours, theirs = (make_model(n_experts=4, **PLAIN) for _ in range(2))
    recipe = quick(
        steps=3, balance=0.5, accumulate=accumulate, schedule="constant", optimizer="adam",
        weight_decay=0.0, clip=None, checkpoint_activations=sparing, **SMOOTH,
    )  # fmt: skip
    rows = run(ours, stream(), recipe)
    losses = balanced_by_hand(theirs, stream(), recipe)
    assert_close([row["loss"] for row in rows], losses, rtol=1e-5, atol=1e-6)
    assert_same(ours, theirs, rtol=1e-4, atol=1e-6)
    without = make_model(n_experts=4, **PLAIN)
    run(without, stream(), replace(recipe, balance=0.0))
    assert not torch.allclose(mixtures(ours)[0].router.weight, mixtures(without)[0].router.weight)


def test_validation_knows_nothing_of_the_balance():
    model = make_model(n_experts=4)
    recipe = quick(balance=5.0, label_smoothing=0.2, validate_every=5)
    rows = run(model, text(), recipe, validation=stream())
    assert_close(rows[-1]["validation_loss"], evaluate(model, stream())["loss"])
    assert rows[-1]["loss"] > 5


def test_a_balance_evens_out_the_experts():
    def unevenness(balance):
        model = make_model(n_experts=4, active_experts=1, n_layers=1, **PLAIN)
        with torch.no_grad():  # nearly all tokens go to the first expert
            mixtures(model)[0].router.weight[0] += mixtures(model)[0].router.weight[1:].sum(0) * 3
        run(model, text(), quick(steps=60, balance=balance, log_every=60))
        model(next(text())["ids"])
        return mixtures(model)[0].balance_loss.item()

    assert unevenness(1.0) < 1.1 < unevenness(0.0)


def test_a_mixture_that_was_not_run_is_not_balanced():
    model = make_model(n_experts=4, **PLAIN)
    first, second = model.decoder.stack.blocks
    batch = next(text())
    _, count = Objective(model)(batch)
    second.forward = lambda x, *_, **__: x  # skipped; what it knew of an earlier pass is old
    alone, _ = Objective(model)(batch)
    balanced, _ = Objective(model, balance=0.5)(batch)
    balanced.backward()
    assert_close(balanced - alone, 0.5 * count * first.feed_forward.balance_loss)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")
@pytest.mark.usefixtures("fresh_compiler")
def test_the_compiled_step_is_balanced_too(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    eager, compiled = (make_model(n_layers=1, n_experts=2, **PLAIN) for _ in range(2))
    recipe = quick(steps=2, balance=0.5, **SMOOTH)
    rows = run(eager, text(), recipe)
    fast = run(compiled, text(), replace(recipe, compile=True))
    for a, b in zip(rows, fast, strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert_same(eager, compiled, rtol=1e-5, atol=1e-6)


def test_without_experts_there_is_nothing_to_balance():
    with pytest.raises(ValueError, match=r"^balance=0\.01 needs a model with a MixtureOfExperts"):
        run(make_model(), text(), quick(balance=0.01))


def classes(n=8):
    return [(sequence, i % 3) for i, sequence in enumerate(sentences(n))]


IMAGES = [(torch.full((1, 8, 8), i / 8), i % 3) for i in range(8)]
PAIRS = [(sequence, sequence.flip(0)) for sequence in sentences(8)]
KINDS = {
    "causal": (lambda: CausalLM(tiny()), sentences(8), next_token_batch),
    "experts": (lambda: CausalLM(tiny(n_experts=3)), sentences(8), next_token_batch),
    "seq2seq": (
        lambda: Seq2SeqLM(tiny(tie_embeddings=True)),
        PAIRS,
        partial(translation_batch, bos_id=1, eos_id=2),
    ),
    "masked": (lambda: MaskedLM(tiny(tie_embeddings=True)), sentences(8), next_token_batch),
    "classifier": (lambda: SequenceClassifier(tiny(), 3), classes(), classification_batch),
    "vision": (lambda: VisionTransformer(tiny(max_len=5), 8, 4, 1, 3), IMAGES, image_batch),
    "recurrent": (
        lambda: RecurrentClassifier("gru", 11, 8, 3),
        classes(),
        lambda examples: with_lengths(classification_batch(examples)),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_can_be_trained_and_goes_on_exactly(kind, tmp_path):
    build, examples, collate = KINDS[kind]

    def go(folder, steps=None):
        torch.manual_seed(0)
        model, batches = build(), Batches(examples, collate, batch_size=3)
        recipe = quick(steps=6, checkpoint_every=3, schedule="constant")

        def stop(row):
            if row["step"] == steps:
                raise KeyboardInterrupt

        try:
            rows = run(model, batches, recipe, folder=folder, validation=batches, on_step=stop)
        except KeyboardInterrupt:
            return go(folder)
        return model, rows

    straight, rows = go(tmp_path / "straight")
    resumed, rows_again = go(tmp_path / "resumed", steps=5)
    assert rows == rows_again
    assert_same(straight, resumed)
    assert not straight.training
    assert rows[-1]["loss"] < rows[0]["loss"]


# --- Ctrl-C ---


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in a terminal: a process that shares the tests with another ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupted(TextWindows):
    """A text that sends Ctrl-C to this process when it is asked for certain batches."""

    def __init__(self, *at):
        super().__init__(TEXT, length=8, batch_size=4)
        self.at, self.asked = at, 0

    def __next__(self):
        self.asked += 1
        for _ in range(self.at.count(self.asked)):
            signal.raise_signal(signal.SIGINT)
        return super().__next__()


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_a_run_after_a_step_and_loses_nothing(tmp_path):
    recipe = quick(steps=30, log_every=10, checkpoint_every=10)
    straight, stopped = make_model(dropout=0.2), make_model(dropout=0.2)
    rows = run(straight, text(), recipe, folder=tmp_path / "straight")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(stopped, Interrupted(14), recipe, folder=tmp_path / "stopped")
    assert signal.getsignal(signal.SIGINT) is before
    steps = sorted(path.name[:13] for path in (tmp_path / "stopped" / "checkpoints").iterdir())
    assert steps == ["step-00000010", "step-00000015"]  # the next step, which is written down
    resumed = make_model(dropout=0.2)
    found = run(resumed, text(), recipe, folder=tmp_path / "stopped")
    assert [row["step"] for row in found] == [10, 15, 20, 30]
    assert [row for row in found if row["step"] != 15] == rows
    assert_same(straight, resumed)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_in_the_last_step_reaches_the_caller_too(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(make_model(), Interrupted(5), quick(), folder=tmp_path)
    assert len(run(make_model(), text(), quick(), folder=tmp_path)) == 5  # all is there


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(make_model(), Interrupted(2, 2), quick(), folder=tmp_path)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.usefixtures("ctrl_c")
def test_without_a_folder_the_first_ctrl_c_ends_at_once():
    batches = Interrupted(2)
    with pytest.raises(KeyboardInterrupt):
        run(make_model(), batches, quick())
    assert batches.asked == 2


def test_somebody_elses_ctrl_c_is_left_alone(tmp_path):
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append("theirs"))
    try:
        assert len(run(make_model(), Interrupted(2), quick(), folder=tmp_path)) == 5
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == ["theirs"]


def test_threads_train_too(tmp_path):
    """Only the main thread may say what happens at a signal."""
    with ThreadPoolExecutor() as pool:
        rows = pool.submit(run, make_model(), text(), quick(), folder=tmp_path).result()
    assert len(rows) == 5


# --- judging ---


def test_validation_is_the_plain_mean_over_all_targets():
    model = make_model()
    rows = run(model, stream(), quick(label_smoothing=0.3, validate_every=5), validation=stream())
    assert [row["validation_loss"] is None for row in rows] == [True] * 4 + [False]
    found = evaluate(model, stream(3))
    assert_close(found["loss"], rows[-1]["validation_loss"])
    assert_close(rows[-1]["perplexity"], math.exp(rows[-1]["validation_loss"]))
    total = count = 0
    with torch.no_grad():
        for sequence in sentences():
            logits = model(sequence[None, :-1])
            total += float(nn.functional.cross_entropy(logits[0], sequence[1:], reduction="sum"))
            count += len(sequence) - 1
    assert_close(found, {"loss": total / count, "perplexity": math.exp(total / count),
                         "tokens": count})  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
def test_to_judge_a_model_leaves_it_in_its_mode(training):
    model = make_model().train(training)
    assert evaluate(model, stream()) == evaluate(model, stream())
    assert model.training == training


def test_bits_per_byte():
    assert_close(bits_per_byte(math.log(2) * 3, n_tokens=100, n_bytes=200), 1.5)
    for arguments in ({"n_tokens": 0, "n_bytes": 1}, {"n_tokens": 1, "n_bytes": 0}):
        with pytest.raises(ValueError, match="=0 must be a whole number of at least 1"):
            bits_per_byte(1.0, **arguments)


def test_training_stops_when_validation_gets_no_better_and_hands_back_the_best(tmp_path):
    other = TextWindows(TEXT.flip(0), length=8, batch_size=4)  # what is learned does not hold here
    recipe = quick(steps=200, validate_every=2, checkpoint_every=3, patience=3, log_every=2)
    model, again = make_model(), make_model(seed=1)
    rows = run(model, text(), recipe, validation=other, folder=tmp_path)
    losses = [row["validation_loss"] for row in rows if row["validation_loss"] is not None]
    assert rows[-1]["step"] < 200
    assert min(losses[-3:]) > min(losses)
    assert min(losses) == losses[-4]
    assert_close(evaluate(model, other)["loss"], min(losses))
    run(again, text(), recipe, validation=other, folder=tmp_path)  # nothing is left to do
    assert_same(model, again)


def test_what_cannot_be_judged_is_an_error():
    with pytest.raises(ValueError, match="patience=2 needs a validation"):
        run(make_model(), text(), quick(patience=2))
    nothing = Batches([[1, 2]], lambda _: {"ids": torch.ones(1, 1).long(),
                                          "targets": torch.full((1, 1), IGNORE)},
                      batch_size=1)  # fmt: skip
    with pytest.raises(ValueError, match="validation has no targets"):
        evaluate(make_model(), nothing)


def test_a_loss_that_is_no_number_stops_the_run():
    with pytest.raises(FloatingPointError, match="loss=nan and grad_norm=nan at step"):
        run(make_model(), text(), quick(learning_rate=1e30, clip=None, steps=20))


def test_a_gradient_that_is_no_number_is_never_saved(tmp_path):
    model = make_model(**PLAIN)
    model.decoder.stack.blocks[0].attention.register_full_backward_hook(
        lambda _, gradients, __: tuple(g if g is None else g * math.nan for g in gradients)
    )
    with pytest.raises(FloatingPointError, match=r"loss=2\.\d+ and grad_norm=nan at step 1"):
        run(model, text(), quick(checkpoint_every=1), folder=tmp_path)
    assert not (tmp_path / "checkpoints").exists()


# --- what is written ---


def test_rows_stand_in_the_file_as_they_were_computed(tmp_path, pictures):
    seen = []
    recipe = quick(steps=12, log_every=5, validate_every=4, checkpoint_every=6)
    batches = stream()
    rows = run(make_model(), batches, recipe, validation=text(), folder=tmp_path,
               on_step=seen.append)  # fmt: skip
    assert [row["step"] for row in rows] == [4, 5, 6, 8, 10, 12]
    assert seen == rows
    with (tmp_path / "metrics.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == COLUMNS
    assert [
        {name: None if cell == "" else float(cell) for name, cell in line.items()} for line in lines
    ] == rows
    tokens = stream()
    expected = sum(int((next(tokens)["targets"] != IGNORE).sum()) for _ in range(12))
    assert rows[-1]["tokens"] == expected
    assert rows[0]["learning_rate"] == learning_rate(4, recipe)
    assert (tmp_path / "curve.svg").read_text().count("validation_loss") > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoints", "curve.svg", "metrics.csv",
    ]  # fmt: skip


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(run(make_model(), text(), quick())) == 5
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_there_is_no_picture(tmp_path):
    run(make_model(), text(), quick(), folder=tmp_path)
    assert not (tmp_path / "curve.svg").exists()
    assert (tmp_path / "metrics.csv").exists()


def test_tensorboard_gets_the_same_numbers_where_it_is_installed(tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, *what):
            written.append(what)

        def flush(self):
            written.append(("flushed", 0))

        def close(self):
            pass

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    rows = run(make_model(), text(), quick(), validation=text(), folder=tmp_path)
    assert written[0] == (tmp_path / "tensorboard", 1)
    assert ("loss", rows[2]["loss"], 3) in written
    assert ("validation_loss", rows[-1]["validation_loss"], 5) in written
    assert all(value is not None for _, value, *_ in written)
    assert written[-1] == ("flushed", 0)
    run(make_model(), text(), quick(), validation=text(), folder=tmp_path)
    assert written[-1] == (tmp_path / "tensorboard", 6)


def test_the_progress_bar_shows_loss_and_speed(capsys):
    train(make_model(), text(), quick(), device="cpu")
    shown = capsys.readouterr().err
    assert "5/5" in shown
    assert "loss " in shown
    assert "tokens/s" in shown
    run(make_model(), text(), quick())
    assert capsys.readouterr().err == ""


def test_between_rows_nothing_waits_for_a_number(monkeypatch):
    asked = []
    real = torch.Tensor.__float__
    monkeypatch.setattr(torch.Tensor, "__float__", lambda x: asked.append(1) or real(x))
    rows = run(make_model(), text(), quick(steps=20, log_every=20))
    assert len(rows) == 1
    assert len(asked) == 2  # the loss and the gradient's length of one row


# --- going on ---


def test_a_folder_goes_on_only_with_the_same_run(tmp_path):
    recipe = quick(checkpoint_every=5)
    run(make_model(), text(), recipe, folder=tmp_path)

    def again(model=None, batches=None, resume=True, **changes):
        model, batches = model or make_model(), batches or text()
        return run(model, batches, replace(recipe, **changes), folder=tmp_path, resume=resume)

    for changes, message in (
        ({"learning_rate": 0.5}, "learning_rate=0.5, but .* holds a run with 0.01; take another"),
        ({"steps": 4}, "steps=4, but .* holds a run of 5 steps already; take more, or another"),
        ({"model": make_model(dropout=0.2)}, "dropout=0.2, but .* holds a run with 0.3"),
        ({"model": MaskedLM(tiny())}, "class='MaskedLM', but .* holds a run with 'CausalLM'"),
        ({"batches": text(seed=1)}, "seed=1 here, but 0 in the state"),
        (
            {"batches": TextWindows(TEXT.flip(0), length=8, batch_size=4)},
            "text=.* here, but .* in the state",
        ),
        ({"resume": False}, "resume=False, but .* holds a run; take another folder"),
    ):
        with pytest.raises(ValueError, match=message):
            again(**changes)
    assert len(again(log_every=3, keep=1, checkpoint_activations=True)) == 5


def test_a_foreign_model_with_other_tensors_is_refused(tmp_path):
    class Own(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.table = nn.Embedding(11, width)
            self.out = nn.Linear(width, 11)

        def forward(self, ids):
            return self.out(self.table(ids))

    run(Own(4), text(), quick(), folder=tmp_path)
    model = Own(4)
    run(model, text(), quick(), folder=tmp_path)
    with pytest.raises(ValueError, match=r"tensor out.weight has shape \(11, 4\); expected"):
        run(Own(5), text(), quick(), folder=tmp_path)


@pytest.mark.parametrize(
    ("there", "chosen"), [((False, False), "cpu"), ((True, True), "cuda"), ((False, True), "mps")]
)
def test_without_a_wish_the_fastest_device_is_taken(there, chosen, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there[0])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: there[1])
    assert choose_device(None).type == chosen
    assert choose_device("cpu").type == "cpu"


# --- several processes (the real ones are in test_distributed.py) ---


@pytest.mark.parametrize(("n_rows", "world"), [(5, 2), (4, 2), (1, 3), (7, 3)])
def test_processes_share_the_rows_of_a_batch_and_count_each_once(n_rows, world):
    targets = torch.arange(n_rows * 2).view(n_rows, 2)
    batch = {"ids": targets + 100, "positions": torch.arange(2)[None], "targets": targets}
    shares = [own_rows(batch, rank, world, torch.device("cpu")) for rank in range(world)]
    assert len({len(share["targets"]) for share in shares}) == 1
    counted = torch.cat([share["targets"][share["targets"] != IGNORE] for share in shares])
    assert sorted(counted.tolist()) == targets.flatten().tolist()
    for share in shares:
        real = share["targets"] != IGNORE
        assert torch.equal(share["ids"][real] - 100, share["targets"][real])
        if n_rows > 1:
            assert share["positions"].shape == (1, 2)
    assert torch.equal(batch["targets"], torch.arange(n_rows * 2).view(n_rows, 2))


def test_a_step_without_targets_is_refused():
    def nothing(examples):
        batch = next_token_batch(examples)
        return batch | {"targets": torch.full_like(batch["targets"], IGNORE)}

    batches = Batches([[1, 2, 3]] * 4, nothing, batch_size=2)
    recipe = Recipe(steps=2, learning_rate=0.01)
    with pytest.raises(ValueError, match="batches gave no target at step 1"):
        train(make_model(), batches, recipe, progress=False, device="cpu")


def test_other_examples_are_noticed_when_a_run_goes_on(tmp_path):
    recipe = Recipe(steps=2, learning_rate=0.01)
    options = {"folder": tmp_path, "progress": False, "device": "cpu"}
    train(make_model(), Batches([[1, 2, 3]] * 4, next_token_batch, batch_size=4), recipe, **options)
    others = Batches([[3, 2, 1]] * 4, next_token_batch, batch_size=4)
    with pytest.raises(ValueError, match="batches gives other data than the run in"):
        train(make_model(), others, recipe, **options)


def test_a_run_goes_on_with_the_same_validation_only(tmp_path):
    """Losses on another text would be compared with the old ones by ``patience``."""
    recipe = quick(steps=4, validate_every=2, checkpoint_every=2, patience=9)
    other = TextWindows(TEXT.flip(0), length=8, batch_size=4)

    def stop(row):
        if row["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make_model(), text(), recipe, validation=text(), folder=tmp_path, on_step=stop)
    with pytest.raises(
        ValueError,
        match=r"validation differs from that of the run in .*; give the same one, or take another",
    ):
        run(make_model(), text(), recipe, validation=other, folder=tmp_path)
    assert len(run(make_model(), text(), recipe, validation=text(), folder=tmp_path)) == 4


@pytest.mark.parametrize("first", [True, False])
def test_a_run_goes_on_without_a_validation_only_if_it_had_none(first, tmp_path):
    with_one, without = {"validation": text()}, {}
    then, now = (with_one, without) if first else (without, with_one)
    run(make_model(), text(), quick(), folder=tmp_path, **then)
    with pytest.raises(ValueError, match="validation differs from that of the run in"):
        run(make_model(), text(), quick(), folder=tmp_path, **now)
    run(make_model(), text(), quick(), folder=tmp_path, **then)


def test_checkpoints_of_earlier_versions_go_on(tmp_path, monkeypatch):
    """They know neither of ``balance`` nor of a checksum of the validation."""
    write = run_checkpoints.write_checkpoint

    def as_before(folder, step, tensors, state, keep):
        del state["validation"], state["optimizer"], state["groups"], state["data"]
        del state["recipe"]["balance"], state["recipe"]["half_weights"]
        write(folder, step, tensors, state, keep)

    monkeypatch.setattr(run_checkpoints, "write_checkpoint", as_before)
    rows = run(make_model(), text(), quick(), validation=text(), folder=tmp_path)
    assert run(make_model(1), text(), quick(), validation=text(), folder=tmp_path) == rows


# --- data that changed ---


def pairs(n=60, wrong=()):
    """Examples, some of them with another target."""
    return [([1 + i % 7, 2, 3], [4, 5 + (i in wrong), 1 + i % 3]) for i in range(n)]


def pair_batches(examples, **options):
    return Batches(examples, translation_batch, **{"batch_size": 4} | options)


def start(folder, examples, **options):
    torch.manual_seed(0)
    model = Seq2SeqLM(tiny())
    return run(model, pair_batches(examples), quick(steps=2), folder=folder, **options)


def not_in_last_batch(steps=2):
    """The number of an example that the last batch of a run does not have."""
    last = pair_batches(range(60)).plan(0)[steps - 1]
    return next(i for i in range(20, 60) if i not in last)


def test_one_changed_target_is_noticed_wherever_it_is(tmp_path):
    changed = not_in_last_batch()
    start(tmp_path, pairs())
    place = f"of its 60 examples, counted from 0, number {changed} is the first to differ"
    message = f"^batches gives other data than the run in .*: {place}; give the same data, or take"
    with pytest.raises(ValueError, match=message):
        start(tmp_path, pairs(wrong=[changed, 59]))
    start(tmp_path, pairs())


def test_the_same_numbers_in_tensors_are_the_same_data(tmp_path):
    start(tmp_path, pairs())
    start(tmp_path, [tuple(map(torch.tensor, pair)) for pair in pairs()])
    short = [tuple(np.array(side, dtype=np.uint16) for side in pair) for pair in pairs()]
    assert sum_up(short) == sum_up(pairs())


DIFFERENT = [
    [1, 23], [12, 3], [[1, 2], [3]], [[1], [2, 3]], [1.5], ["a", "b"], ["ab"], [None], [True], [1],
    {"a": [1]}, {"a": [2]}, {"b": [1]}, torch.tensor([0.0]), torch.tensor([-0.0]),
    torch.zeros(2, 2), torch.zeros(4), torch.zeros(4).bfloat16(), torch.tensor(1.0), [b"a"],
    np.array([[1, 2], [3, 5]]), [torch.zeros(1), torch.ones(1)], [torch.ones(1), torch.zeros(1)],
]  # fmt: skip


def test_different_examples_have_different_checksums():
    found = [sum_up([example])["pieces"][0] for example in DIFFERENT]
    assert len(set(found)) == len(DIFFERENT)
    assert found == [sum_up([copy.deepcopy(example)])["pieces"][0] for example in DIFFERENT]


def test_the_order_of_examples_is_a_part_of_the_data():
    assert sum_up(list(range(200))) != sum_up([*range(199), 0]) != sum_up([1, 0, *range(2, 200)])


def test_examples_that_nobody_can_read_are_checked_as_before(tmp_path):
    """Something of one's own may look different in every process, and be the same."""

    class Own:
        pass

    assert sum_up([[1, 2], Own()]) is None
    assert sum_up([np.array([Own()])]) is None

    def of_own(examples):
        return next_token_batch([[1, 2, 3] for _ in examples])

    for _ in range(2):
        batches = Batches([Own() for _ in range(8)], of_own, batch_size=2)
        run(make_model(), batches, quick(), folder=tmp_path)


def test_of_many_data_few_checksums_are_kept():
    numbers = list(range(1000))
    before = sum_up(numbers)
    assert len(json.dumps(before)) < 1000
    for changed in (0, 500, 999):
        other = list(numbers)
        other[changed] = -1
        with pytest.raises(ValueError, match="is the first to differ") as raised:
            check_same_data(Path("a"), before, sum_up(other))
        n, first, last = (int(word) for word in str(raised.value).split() if word.isdigit())
        assert n == 1000
        assert first <= changed <= last < first + 20


def test_data_of_a_checkpoint_without_checksums_are_checked_as_before(tmp_path, monkeypatch):
    write = run_checkpoints.write_checkpoint

    def as_before(folder, step, tensors, state, keep):
        del state["data"]
        write(folder, step, tensors, state, keep)

    with monkeypatch.context() as patch:
        patch.setattr(run_checkpoints, "write_checkpoint", as_before)
        start(tmp_path, pairs())
    start(tmp_path, pairs(wrong=[not_in_last_batch()]))  # nobody can tell
    with pytest.raises(ValueError, match="batches gives other data than the run in"):
        start(tmp_path, pairs(wrong=range(60)))


def test_a_text_is_not_read_twice_for_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "sum_up", lambda _: pytest.fail("it has one already"))
    run(make_model(), text(), quick(), folder=tmp_path)
    run(make_model(), text(), quick(), folder=tmp_path)


def test_without_a_folder_no_checksum_is_computed(monkeypatch):
    monkeypatch.setattr(training, "sum_up", lambda _: pytest.fail("nobody asked for it"))
    run(make_model(), stream(), quick())


# --- weights that are not in float32 ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_that_round_small_steps_away_are_not_trained(dtype, precision):
    model = make_model(**PLAIN).to(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    message = (
        rf"^model has decoder\.embedding\.tokens\.weight in {dtype}, which rounds small steps "
    )
    with pytest.raises(ValueError, match=message):
        run(model, text(), quick(precision=precision))
    assert_close(model.state_dict(), before, rtol=0, atol=0)


def share_changed(model, **options):
    before = [parameter.detach().clone() for parameter in model.parameters()]
    run(model, text(), quick(steps=20, learning_rate=2e-5, **options))
    pairs = zip(before, model.parameters(), strict=True)
    changed = [(old != new).flatten() for old, new in pairs]
    return torch.cat(changed).double().mean().item()


def test_whoever_asks_for_it_trains_half_weights_and_this_is_why_one_must_ask():
    assert share_changed(make_model(**PLAIN)) > 0.95
    assert share_changed(make_model(**PLAIN).bfloat16(), half_weights=True) < 0.5


def test_frozen_weights_may_be_in_any_precision():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Embedding(11, 4, dtype=torch.bfloat16), nn.Linear(4, 11)
            self.body.requires_grad_(False)

        def forward(self, ids):
            return self.head(self.body(ids).float())

    rows = run(Head(), text(), quick())
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_a_run_goes_on_only_in_the_precision_of_its_weights(tmp_path):
    """Else its numbers would be read as others, and it would end elsewhere."""
    run(make_model().double(), text(), quick(), folder=tmp_path)
    message = r"^model has decoder\.\S+ in torch.float32, but .* holds a run with torch.float64; "
    with pytest.raises(ValueError, match=message):
        run(make_model(), text(), quick(steps=9), folder=tmp_path)
    run(make_model().double(), text(), quick(steps=9), folder=tmp_path)
