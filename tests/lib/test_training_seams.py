"""train with an objective, losses, an optimizer and a schedule of one's own; and more steps."""

import sys
from dataclasses import dataclass, fields, replace
from functools import partial

import pytest
import torch
from tiny_models import tiny
from torch import nn
from torch.testing import assert_close

from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.build_parts import Parts
from transformer_lib.layers.norms import RMSNorm
from transformer_lib.models.language_models import CausalLM
from transformer_lib.training import run_checkpoints
from transformer_lib.training.data import IGNORE, Batches, TextWindows, next_token_batch
from transformer_lib.training.loop import evaluate, train
from transformer_lib.training.losses import Objective
from transformer_lib.training.recipes import Recipe, RecipeChoices, learning_rate

PLAIN = {"dropout": 0.0, "attention_dropout": 0.0}
TEXT = torch.arange(200) % 7 + torch.arange(200) // 100


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They take longer than all the rest."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def make_model(seed=0, **choices):
    torch.manual_seed(seed)
    return CausalLM(tiny(n_layers=1, **choices))


def text():
    return TextWindows(TEXT, length=8, batch_size=4)


def unequal():
    """Batches with different numbers of targets."""
    texts = [[(i * j) % 10 + 1 for j in range(2 + i)] for i in range(8)]
    return Batches(texts, next_token_batch, batch_size=2)


def quick(**changes):
    return Recipe(**{"steps": 6, "learning_rate": 0.1, "log_every": 1} | changes)


run = partial(train, device="cpu", progress=False)


def assert_same(a, b):
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def stopped(model, batches, recipe, *, at, **options):
    """Train until a step, then be interrupted."""

    def stop(row):
        if row["step"] == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, batches, recipe, on_step=stop, **options)


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9} | options)


def by_hand(model, batches, optimizer, steps, loss, accumulate=1):
    """The loop as everybody writes it; ``loss`` is the mean of a step's batches."""
    losses = []
    model.train()
    for _ in range(steps):
        value = loss(model, [next(batches) for _ in range(accumulate)])
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses


def mean_cross_entropy(model, parts):
    totals, counts = zip(*(Objective(model)(part) for part in parts), strict=True)
    return sum(totals) / sum(counts)


# --- what is trained ---


class Distance(nn.Module):
    """Not the cross-entropy: how far the probability of each target is from 1, squared."""

    def __init__(self, model):
        super().__init__()
        self.model, self.modes = model, []

    def forward(self, batch):
        self.modes.append(self.training)
        targets = batch["targets"]
        counted = targets != IGNORE
        p = self.model(batch["ids"]).softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        return ((1 - p) ** 2 * counted).sum(), counted.sum()


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_objective_of_ones_own_is_made_small_and_judged_by(accumulate):
    ours, theirs, made = make_model(**PLAIN), make_model(**PLAIN), []

    def build(model):
        made.append(Distance(model))
        return made[-1]

    recipe = quick(accumulate=accumulate, clip=None, schedule="constant", validate_every=3)
    rows = run(ours, unequal(), recipe, validation=unequal(), objective=build, optimizer=sgd)

    def loss(model, parts):
        totals, counts = zip(*(Distance(model)(part) for part in parts), strict=True)
        return sum(totals) / sum(counts)

    losses = by_hand(theirs, unequal(), sgd(theirs), 6, loss, accumulate)
    assert_close([row["loss"] for row in rows], losses)
    assert_close(ours.state_dict(), theirs.state_dict())
    (objective,) = made
    assert set(objective.modes) == {True, False}
    assert objective.model is ours
    found = evaluate(theirs, unequal(), objective=Distance)
    assert_close(found["loss"], rows[-1]["validation_loss"])
    assert found["loss"] < 1 < evaluate(theirs, unequal())["loss"]


def test_an_objective_that_counts_otherwise_is_refused():
    class Rows(Distance):
        def forward(self, batch):
            total, _ = super().forward(batch)
            return total, torch.tensor(len(batch["targets"]))

    with pytest.raises(ValueError, match=r"^objective counted 4 targets of a batch; expected 32"):
        run(make_model(), text(), quick(), objective=Rows)


def test_smoothing_and_balance_act_in_training_only():
    model = make_model(n_experts=3, **PLAIN)
    batch = next(text())
    plain, smooth = Objective(model), Objective(model, label_smoothing=0.3, balance=2.0)
    assert smooth(batch)[0] > plain(batch)[0] + 1
    assert torch.equal(smooth.eval()(batch)[0], plain.eval()(batch)[0])


# --- losses that are added ---


def decay(model):
    return 0.3 * sum(parameter.pow(2).sum() for parameter in model.parameters())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_extra_losses_are_added_to_the_mean_in_training_only(accumulate):
    ours, theirs = make_model(**PLAIN), make_model(**PLAIN)
    recipe = quick(accumulate=accumulate, clip=None, schedule="constant", learning_rate=0.01)
    optimizer = partial(sgd, lr=0.01)
    tenth = lambda model: decay(model) / 10  # noqa: E731
    rows = run(ours, unequal(), recipe, validation=unequal(), optimizer=optimizer,
               extra_losses=[decay, tenth])  # fmt: skip

    def loss(model, parts):
        return mean_cross_entropy(model, parts) + decay(model) * 1.1

    losses = by_hand(theirs, unequal(), optimizer(theirs), 6, loss, accumulate)
    assert_close([row["loss"] for row in rows], losses)
    assert_close(ours.state_dict(), theirs.state_dict())
    assert_close(rows[-1]["validation_loss"], evaluate(ours, unequal())["loss"])
    without = run(make_model(**PLAIN), unequal(), recipe, optimizer=optimizer)
    assert rows[0]["loss"] > without[0]["loss"]


def test_an_extra_loss_sees_what_the_forward_pass_left_behind():
    """So a balance of experts needs no loop of its own."""
    ours, theirs = (make_model(n_experts=3, **PLAIN) for _ in range(2))

    def balance(model):
        return 0.5 * model.decoder.stack.blocks[0].feed_forward.balance_loss

    rows = run(ours, text(), quick(), extra_losses=[balance])
    assert_close([row["loss"] for row in rows], [row["loss"] for row in run(theirs, text(), quick(
        balance=0.5))])  # fmt: skip
    assert_close(ours.state_dict(), theirs.state_dict())


# --- optimizers ---


def test_the_optimizer_of_ones_own_makes_its_steps():
    ours, theirs = make_model(**PLAIN), make_model(**PLAIN)
    recipe = quick(clip=None, schedule="constant")
    run(ours, text(), recipe, optimizer=sgd)
    by_hand(theirs, text(), sgd(theirs), 6, mean_cross_entropy)
    assert_same(ours, theirs)


def test_groups_keep_the_proportion_of_their_rates():
    rates = []

    def build(model):
        matrices = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim < 2]
        optimizer = torch.optim.SGD([{"params": matrices, "lr": 0.3}, {"params": others}], lr=0.1)
        optimizer.register_step_pre_hook(
            lambda *_: rates.append([group["lr"] for group in optimizer.param_groups])
        )
        return optimizer

    recipe = quick(warmup=2, final_fraction=0.0)
    run(make_model(), text(), recipe, optimizer=build)
    wanted = [learning_rate(step, recipe) for step in range(1, 7)]
    assert_close(rates, [[3 * rate, rate] for rate in wanted])
    assert [row[1] for row in rates] == wanted, "the rate itself is kept to the last bit"


class Counting(torch.optim.SGD):
    """Knows things that are no tensors: of each parameter, and of its groups."""

    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.1)
        for group in self.param_groups:
            group["n_steps"] = 0

    def step(self, closure=None):
        for group in self.param_groups:
            group["n_steps"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state["seen"] = state.get("seen", 0) + 1
                state["kind"] = "odd" if state["seen"] % 2 else None
                parameter.grad *= 1 / (state["seen"] + group["n_steps"])
        return super().step(closure)


OPTIMIZERS = {
    "momentum": sgd,
    "momentum that begins late": partial(sgd, dampening=0.5, nesterov=False),
    "nothing to remember": partial(sgd, momentum=0.0),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.1),
    "values that are no tensors": Counting,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_to_the_last_bit(name, tmp_path):
    straight, again = make_model(), make_model()
    recipe = quick(checkpoint_every=2)
    options = {"optimizer": OPTIMIZERS[name]}
    rows = run(straight, text(), recipe, **options)
    stopped(make_model(), text(), recipe, at=5, folder=tmp_path, **options)
    assert run(again, text(), recipe, folder=tmp_path, **options) == rows
    assert_same(straight, again)


def test_what_had_no_gradient_yet_goes_on_to_the_last_bit(tmp_path):
    """Its first step comes after the checkpoint, and must be counted as the first one."""

    class Late(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.objective = model, Objective(model)

        def forward(self, batch):
            total, count = self.objective(batch)
            late = self.model.late.pow(2).sum() if self.model.steps > 3 else 0.0
            self.model.steps += self.training
            return total + late * count, count

    def build():
        model = make_model()
        model.late = nn.Parameter(torch.ones(2))
        model.register_buffer("steps", torch.tensor(0))
        return model

    straight, again, recipe = build(), build(), quick(checkpoint_every=2)
    rows = run(straight, text(), recipe, objective=Late)
    stopped(build(), text(), recipe, at=3, folder=tmp_path, objective=Late)
    assert run(again, text(), recipe, folder=tmp_path, objective=Late) == rows
    assert_same(straight, again)
    assert not torch.equal(straight.late, torch.ones(2))


def test_an_optimizer_of_other_parameters_is_refused():
    stranger = nn.Linear(2, 3)
    with pytest.raises(
        ValueError, match=r"^optimizer changes parameters of shape \(3, 2\), \(3,\) that are not"
    ):
        run(make_model(), text(), quick(), optimizer=lambda _: sgd(stranger))


# --- schedules ---


def test_the_schedule_gives_the_rate_of_every_step():
    def steps_down(step, recipe):
        return recipe.learning_rate / 2 ** (step // 3)

    rows = run(make_model(), text(), quick(), schedule=steps_down)
    assert [row["learning_rate"] for row in rows] == [0.1, 0.1, 0.05, 0.05, 0.05, 0.025]
    same = make_model()
    run(same, text(), quick(schedule="constant"))
    other = make_model()
    run(other, text(), quick(), schedule=lambda *_: 0.1)
    assert_same(same, other)


# --- more steps in the same folder ---


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt"])
def test_more_steps_end_like_a_run_that_had_them_from_the_start(schedule, tmp_path):
    recipe = quick(schedule=schedule, warmup=2, log_every=4, checkpoint_every=4)
    longer = replace(recipe, steps=11)
    straight, later = make_model(), make_model()
    rows = run(straight, text(), longer)
    run(make_model(), text(), recipe, folder=tmp_path)
    more = run(later, text(), longer, folder=tmp_path)
    assert_same(straight, later)
    assert [row for row in more if row in rows] == rows
    assert [row["step"] for row in more if row not in rows] == [6], "the old last one"
    assert run(make_model(), text(), longer, folder=tmp_path) == more


def test_more_steps_with_a_schedule_that_knows_its_end_follow_the_new_one(tmp_path):
    recipe = quick(schedule="linear", final_fraction=0.0)
    longer = replace(recipe, steps=9)
    run(make_model(), text(), recipe, folder=tmp_path)
    rows = run(make_model(), text(), longer, folder=tmp_path)
    then, now = ([learning_rate(step, each) for step in range(1, 10)] for each in (recipe, longer))
    assert [row["learning_rate"] for row in rows] == then[:6] + now[6:]


def test_more_steps_before_the_decay_end_like_a_run_that_had_them_from_the_start(tmp_path):
    """One trunk of warm-up and stable rate, and a decay wherever one wants to stop."""
    recipe = quick(steps=10, schedule="wsd", warmup=2, decay_share=0.4, checkpoint_every=6)
    longer = replace(recipe, steps=14, decay_share=0.25)
    straight, later = make_model(), make_model()
    rows = run(straight, text(), longer)
    stopped(make_model(), text(), recipe, at=7, folder=tmp_path)
    assert run(later, text(), longer, folder=tmp_path) == rows
    assert_same(straight, later)
    with pytest.raises(ValueError, match=r"^decay_share=0.5, but .* holds a run with 0.25;"):
        run(make_model(), text(), replace(longer, decay_share=0.5), folder=tmp_path)


def test_more_steps_may_have_another_warm_up(tmp_path):
    """A trial of five steps has none; to go on with fifty, nobody should have to know that."""
    short = quick(steps=5, warmup=0)
    longer = quick(steps=20, warmup=10)
    run(make_model(), text(), short, folder=tmp_path)
    rows = run(make_model(), text(), longer, folder=tmp_path)
    then, now = ([learning_rate(n, each) for n in range(1, 21)] for each in (short, longer))
    assert [row["learning_rate"] for row in rows] == then[:5] + now[5:]
    with pytest.raises(
        ValueError,
        match=r"^warmup=3, but .* holds a run with 10; take another folder, or give warmup=10 to",
    ):
        run(make_model(), text(), replace(longer, warmup=3), folder=tmp_path)


def test_steps_may_be_fewer_than_planned_but_not_than_made(tmp_path):
    recipe = quick(steps=20, schedule="constant", checkpoint_every=5)
    stopped(make_model(), text(), recipe, at=7, folder=tmp_path)
    with pytest.raises(
        ValueError, match=r"^steps=4, but .* holds a run of 5 steps already; take more, or another"
    ):
        run(make_model(), text(), replace(recipe, steps=4), folder=tmp_path)
    ended = make_model()
    run(ended, text(), replace(recipe, steps=8), folder=tmp_path)
    straight = make_model()
    run(straight, text(), replace(recipe, steps=8))
    assert_same(straight, ended)


# --- names of tensors ---

OLD_NAMES = {".up.": ".expand.", ".down.": ".contract.", "norm.weight": "norm.gain"}


def test_checkpoints_with_the_old_names_of_tensors_go_on(tmp_path, monkeypatch):
    write = run_checkpoints.write_checkpoint
    written = []

    def with_old_names(folder, step, tensors, state, keep):
        old = {}
        for name, tensor in tensors.items():
            for now, then in OLD_NAMES.items():
                name = name.replace(now, then)
            old[name] = tensor
        written.extend(old)
        write(folder, step, old, state, keep)

    recipe = quick(checkpoint_every=2, patience=9, validate_every=1)
    options = {"validation": text()}
    straight, again = make_model(), make_model()
    rows = run(straight, text(), recipe, **options)
    with monkeypatch.context() as patch:
        patch.setattr(run_checkpoints, "write_checkpoint", with_old_names)
        stopped(make_model(), text(), recipe, at=5, folder=tmp_path, **options)
    for start in ("model", "best", "exp_avg_sq"):
        assert any(name.startswith(f"{start}/") and name.endswith("norm.gain") for name in written)
    assert run(again, text(), recipe, folder=tmp_path, **options) == rows
    assert_same(straight, again)


class OwnNorm(nn.Module):
    """Has a tensor with an old name, and means it."""

    def __init__(self, config):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(config.d_model))

    def forward(self, x):
        return self.gain * x / (1e-3 + x.std(dim=-1, keepdim=True))


def test_a_model_with_parts_of_its_own_goes_on_and_only_with_them(tmp_path):
    def build(norm):
        torch.manual_seed(0)
        return CausalLM(tiny(n_layers=1), parts=Parts(norm=norm))

    recipe = quick(checkpoint_every=2)
    straight, again = build(OwnNorm), build(OwnNorm)
    rows = run(straight, text(), recipe)
    stopped(build(OwnNorm), text(), recipe, at=5, folder=tmp_path)
    for other, named in ((make_model(), "{}"), (build(lambda config: RMSNorm(config.d_model)),
                                               "{'norm': '.*<lambda>'}")):  # fmt: skip
        message = rf"^parts={named}, but .* holds a run with {{'norm': '.*\.OwnNorm'}}; take"
        with pytest.raises(ValueError, match=message):
            run(other, text(), recipe, folder=tmp_path)
    assert run(again, text(), recipe, folder=tmp_path) == rows
    assert_same(straight, again)


@dataclass(frozen=True, kw_only=True)
class OtherConfig(TransformerConfig):
    """A configuration with a field that is called like one of the recipe."""

    keep: int = 1


def test_what_may_differ_in_a_recipe_may_not_in_a_model(tmp_path):
    def build(keep):
        return CausalLM(OtherConfig(vocab_size=8, d_model=8, n_heads=2, n_layers=1, keep=keep))

    run(build(keep=1), text(), quick(steps=2, keep=1), folder=tmp_path)
    with pytest.raises(ValueError, match=r"keep=2, but .* holds a run with 1"):
        run(build(keep=2), text(), quick(steps=3), folder=tmp_path)
    run(build(keep=1), text(), quick(steps=3, keep=3), folder=tmp_path)


# --- types ---


def test_what_may_differ_when_a_run_goes_on_are_fields_of_a_recipe():
    assert {field.name for field in fields(Recipe)} > run_checkpoints._MAY_DIFFER > set()


def test_choices_of_a_recipe_are_its_fields():
    kinds = {field.name: field.type for field in fields(Recipe)}
    for own in ("steps", "learning_rate", "warmup"):
        del kinds[own]
    assert RecipeChoices.__annotations__ == kinds
    assert RecipeChoices.__total__ is False
