"""The average of the weights on the way: what it is, what is judged, kept and saved."""

import sys

import pytest
import torch
from tiny_models import tiny
from torch import nn
from torch.testing import assert_close

from transformer_lib.models.language_models import CausalLM
from transformer_lib.training import run_checkpoints
from transformer_lib.training.data import TextWindows
from transformer_lib.training.loop import evaluate, train
from transformer_lib.training.recipes import Recipe
from transformer_lib.training.weight_average import WeightAverage

BETA = 0.7
TEXT = torch.arange(200) % 7 + torch.arange(200) // 100


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They take longer than all the rest."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def make_model(**choices):
    torch.manual_seed(0)
    return CausalLM(tiny(n_layers=1, **choices))


def windows(n=200):
    return TextWindows(TEXT[:n], length=8, batch_size=4)


def recipe(**changes):
    usual = {"steps": 6, "learning_rate": 0.05, "log_every": 1, "average": BETA}
    return Recipe(**usual | changes)


def run(model, how, **options):
    return train(model, windows(), how, device="cpu", progress=False, **options)


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def weighted_mean(all_weights, beta=BETA):
    """Each step's weights count ``beta`` times as much as those of the next; together 1."""
    counts = [beta**k for k in reversed(range(len(all_weights)))]
    return {
        name: sum(n * w[name] for n, w in zip(counts, all_weights, strict=True)) / sum(counts)
        for name in all_weights[0]
    }


def learned_on_the_way(how):
    """The weights that learn, after each step; and the model that is handed back."""
    model, found = make_model(), []
    run(model, how, on_step=lambda _: found.append(weights_of(model)))
    return model, found


def test_the_average_is_the_weighted_mean_of_all_steps():
    """Those before the first step do not count."""
    layer = nn.Linear(2, 2)
    average, seen = WeightAverage(layer, BETA), []
    for step in range(1, 6):
        with torch.no_grad():
            layer.weight.copy_(torch.full((2, 2), float(step**2)))
        average.add()
        seen.append(weights_of(layer))
        with average.in_model():
            assert_close(weights_of(layer), weighted_mean(seen))
        assert layer.weight.equal(seen[-1]["weight"])


def test_before_the_first_step_the_average_is_what_the_model_has():
    layer = nn.Linear(2, 2)
    before = weights_of(layer)
    with WeightAverage(layer, BETA).in_model():
        assert_close(weights_of(layer), before, rtol=0, atol=0)


def test_the_first_average_is_the_first_weights_to_the_last_bit():
    model, (only,) = learned_on_the_way(recipe(steps=1, average=0.999))
    for name, p in model.named_parameters():
        assert p.equal(only[name])


def test_a_beta_of_0_keeps_the_last_weights():
    averaged, plain = make_model(), make_model()
    run(averaged, recipe(average=0.0))
    run(plain, recipe(average=None))
    assert all(a.equal(b) for a, b in zip(averaged.parameters(), plain.parameters(), strict=True))


def test_what_is_handed_back_is_what_was_judged():
    model, found = learned_on_the_way(recipe())
    assert_close(weights_of(model), weighted_mean(found))
    assert any(not p.equal(found[-1][name]) for name, p in model.named_parameters())
    again = make_model()
    rows = run(again, recipe(validate_every=4), validation=windows(60))
    assert evaluate(again, windows(60))["loss"] == rows[-1]["validation_loss"]
    expected = make_model()
    expected.load_state_dict(weighted_mean(found[:4]), strict=False)
    judged = evaluate(expected, windows(60))["loss"]
    assert judged == pytest.approx(rows[3]["validation_loss"], abs=1e-5)


def test_judging_it_does_not_change_what_is_learned():
    rows = {}
    for every in (1, 100):
        rows[every] = run(make_model(), recipe(validate_every=every), validation=windows(60))
    for often, seldom in zip(rows[1], rows[100], strict=True):
        assert (often["loss"], often["grad_norm"]) == (seldom["loss"], seldom["grad_norm"])


def test_the_best_average_is_put_back():
    """With a rate that is far too high in the end, the best one is not the last."""

    def worse_and_worse(step, _):
        return 0.02 if step < 4 else 0.5

    model, how = make_model(), recipe(steps=9, validate_every=1, patience=3)
    rows = run(model, how, validation=windows(60), schedule=worse_and_worse)
    losses = [row["validation_loss"] for row in rows]
    assert losses.index(min(losses)) < len(losses) - 1
    assert evaluate(model, windows(60))["loss"] == min(losses)


def test_tied_and_frozen_weights_stay_what_they_are():
    model = make_model(tie_embeddings=True)
    model.decoder.stack.blocks[0].requires_grad_(requires_grad=False)
    frozen = weights_of(model.decoder.stack.blocks[0])
    run(model, recipe())
    assert_close(weights_of(model.decoder.stack.blocks[0]), frozen, rtol=0, atol=0)
    table = model.decoder.embedding.tokens.weight
    assert sum(p is table for _, p in model.named_parameters(remove_duplicate=False)) == 2


def test_of_16_bit_weights_the_average_is_kept_in_32():
    layer = nn.Linear(4, 4).bfloat16()
    average = WeightAverage(layer, beta=0.999)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        average.add()
        for _ in range(1000):
            layer.weight.fill_(1.0625)
            average.add()
    # Each step is a thousandth of the way or less: far less than the next number of bfloat16.
    assert average.average["weight"].dtype == torch.float32
    assert average.average["weight"][0, 0].item() == pytest.approx(1.0624, abs=5e-4)
    assert layer.weight.dtype == torch.bfloat16


class PulledPlugError(Exception):
    pass


@pytest.mark.parametrize("changes", [{"patience": 9}, {"accumulate": 2, "clip": None}])
def test_a_run_with_an_average_goes_on_to_the_last_bit(changes, tmp_path):
    how = recipe(checkpoint_every=2, validate_every=3, **changes)
    straight, again = make_model(), make_model()
    rows = run(straight, how, validation=windows(60))

    def pull_the_plug(row):
        if row["step"] == 5:
            raise PulledPlugError

    with pytest.raises(PulledPlugError):
        run(make_model(), how, validation=windows(60), folder=tmp_path, on_step=pull_the_plug)
    assert run(again, how, validation=windows(60), folder=tmp_path) == rows
    for (name, a), b in zip(straight.named_parameters(), again.parameters(), strict=True):
        assert a.equal(b), name
    finished = make_model()  # once more, with nothing left to do
    assert run(finished, how, validation=windows(60), folder=tmp_path) == rows
    assert all(a.equal(b) for a, b in zip(again.parameters(), finished.parameters(), strict=True))


def test_a_checkpoint_has_the_weights_that_learn_and_their_average(tmp_path):
    model = make_model()
    run(model, recipe(), folder=tmp_path)
    tensors, _ = run_checkpoints.read_checkpoint(tmp_path / "checkpoints")
    kinds = run_checkpoints.split_by_kind(tensors, model.state_dict())
    _, found = learned_on_the_way(recipe())
    for name, p in model.named_parameters():
        assert kinds["weight_average"][name].equal(p)
        assert kinds["model"][name].equal(found[-1][name])


def test_a_run_goes_on_with_the_same_average_only(tmp_path):
    run(make_model(), recipe(), folder=tmp_path)
    for other in (None, 0.8):
        with pytest.raises(ValueError, match=f"^average={other}, but .* holds a run with {BETA}"):
            run(make_model(), recipe(steps=8, average=other), folder=tmp_path)
