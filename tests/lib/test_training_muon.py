"""Muon: its directions, its sizes, its steps and who gets them, beside references of others."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import tiny
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.training.data import TextWindows
from transformer_lib.training.loop import train
from transformer_lib.training.muon import Muon, hidden_matrices, orthogonalise
from transformer_lib.training.recipes import Recipe, learning_rate
from transformer_lib.training.training_step import Learner

PUBLISHED = 0.68, 1.21  # where singular values end that are between 0.002 and 1
SHAPES = (24, 24), (40, 10), (10, 40), (5, 1)
TEXT = torch.arange(200) % 7 + torch.arange(200) // 100


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They take longer than all the rest."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def matrix_with(sizes, n_rows, n_columns, seed=0):
    """A matrix with these singular values, and its directions on both sides."""
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.normal(size=(n, len(sizes))))[0] for n in (n_rows, n_columns))
    return torch.from_numpy(u * np.array(sizes) @ v.T), u, v


def after_five_rounds(sizes):
    """What becomes of singular values, one by one: the published polynomial, in plain Python."""
    sizes = list(sizes)
    for _ in range(5):
        sizes = [3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5 for s in sizes]
    return sizes


def test_singular_values_come_near_1_whatever_they_were():
    for length in (1e-3, 1.0, 1e3):
        sizes = np.geomspace(0.004, 1, 10)
        matrix, *_ = matrix_with(length * sizes / np.linalg.norm(sizes), 40, 10)
        for found in (orthogonalise(matrix), orthogonalise(matrix.mT)):
            left = torch.linalg.svdvals(found)
            assert PUBLISHED[0] <= left.min() <= left.max() <= PUBLISHED[1]


@pytest.mark.parametrize(("n_rows", "n_columns"), SHAPES)
def test_the_directions_stay_and_the_sizes_are_those_of_the_polynomial(n_rows, n_columns):
    sizes = np.geomspace(1e-4, 3, min(n_rows, n_columns))
    matrix, u, v = matrix_with(sizes, n_rows, n_columns)
    wanted = u * np.array(after_five_rounds(sizes / np.linalg.norm(sizes))) @ v.T
    assert_close(orthogonalise(matrix), torch.from_numpy(wanted), rtol=0, atol=2e-5)


def test_what_it_gives_is_nearly_orthogonal():
    for seed in range(5):
        torch.manual_seed(seed)
        found = orthogonalise(torch.randn(12, 48))
        product = found @ found.mT
        assert_close(product, torch.eye(12), rtol=0, atol=0.55)  # squares of 0.68 to 1.21
        outside = product - product.diag().diag()
        assert outside.abs().max() < 0.3
        assert outside.norm() < 0.1 * (torch.cov(torch.randn(12, 48)) * 48).norm()


def test_in_bfloat16_it_is_a_little_off():
    torch.manual_seed(0)
    matrix = torch.randn(12, 48)
    exact, rounded = orthogonalise(matrix), orthogonalise(matrix, "bfloat16")
    assert rounded.dtype == torch.float32
    error = (rounded - exact).norm() / exact.norm()
    assert 1e-3 < error < 0.05
    assert orthogonalise(matrix.half(), "bfloat16").dtype == torch.float16


def test_zero_stays_zero_and_what_has_no_size_has_no_direction():
    assert orthogonalise(torch.zeros(3, 5)).equal(torch.zeros(3, 5))
    one_way = torch.ones(3, 1) @ torch.arange(5.0)[None]
    assert torch.linalg.matrix_rank(orthogonalise(one_way), rtol=1e-3) == 1


def test_a_tall_matrix_takes_the_work_of_a_wide_one():
    work = []
    for shape in ((64, 16), (16, 64)):
        with FlopCounterMode(display=False) as counter:
            orthogonalise(torch.ones(*shape))
        work.append(counter.get_total_flops())
    assert work[0] == work[1] == 5 * 2 * (2 * 16 * 16 * 64 + 16**3)


def test_the_numbers_of_a_step_are_as_large_as_adamws():
    """0.2 times the rate, in root mean square, for matrices of every shape."""
    for shape in ((16, 16), (64, 16), (16, 256)):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.zeros(shape))
        weight.grad = torch.randn(shape)
        Muon([weight], lr=0.5).step()
        assert 0.15 < weight.detach().square().mean().sqrt() / 0.5 < 0.25


def in_float32(monkeypatch):
    """Let PyTorch's Muon multiply in float32, so that the two can be compared closely."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.to(torch.float32, copy=True))


def steps_of_both(rounds, **changes):
    """The weights after each step of ours and of PyTorch's Muon, by the same gradients."""
    torch.manual_seed(0)
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in SHAPES] for _ in range(2))
    settings = {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.2}
    first = Muon(ours, **settings | changes)
    second = torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(rounds):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        first.step()
        second.step()
        yield from zip(ours, theirs, strict=True)


def test_steps_are_those_of_pytorchs_muon():
    with pytest.MonkeyPatch.context() as patch:
        in_float32(patch)
        for ours, theirs in steps_of_both(5):
            assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_steps_in_bfloat16_are_those_of_pytorchs_muon_up_to_rounding():
    for ours, theirs in steps_of_both(1, precision="bfloat16"):
        assert (ours - theirs).norm() < 0.05 * (theirs - 1).norm()


def test_what_is_no_matrix_gets_the_steps_of_adamw():
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.ones(3, 3))
    ours, theirs = ([nn.Parameter(torch.randn(n, 2)) for n in (5, 3)] for _ in range(2))
    for a, b in zip(ours, theirs, strict=True):
        b.data.copy_(a.data)
    settings = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3}
    first = Muon([matrix], [{"params": ours[:1]}, {"params": ours[1:], "lr": 0.2}], **settings)
    second = torch.optim.AdamW([{"params": theirs[:1]}, {"params": theirs[1:], "lr": 0.2}],
                               **settings)  # fmt: skip
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        first.step()
        second.step()
    assert_close(ours, theirs)
    assert matrix.equal(torch.ones(3, 3)), "without a gradient there is no step and no decay"


def test_a_closure_is_called_with_gradients():
    weight, seen = nn.Parameter(torch.eye(3)), []

    def closure():
        loss = weight.square().sum()
        loss.backward()
        seen.append(loss.requires_grad)
        return loss.item()

    assert Muon([weight], lr=0.1).step(closure) == 3.0
    assert seen == [True]
    assert not weight.equal(torch.eye(3))


# --- a recipe's choice ---


def make_model(seed=0, **choices):
    torch.manual_seed(seed)
    return CausalLM(tiny(**choices))


def recipe(**changes):
    return Recipe(
        **{"steps": 6, "learning_rate": 0.05, "warmup": 1, "log_every": 1, "optimizer": "muon"}
        | changes
    )


def run(model, how, **options):
    text = TextWindows(TEXT, length=8, batch_size=4)
    return train(model, text, how, device="cpu", progress=False, **options)


def names_by_muon(model):
    learner = Learner(model, recipe(), torch.device("cpu"))
    by_muon = {id(p) for p in learner.optimizer.param_groups[0]["params"]}
    return {name for name, p in model.named_parameters() if id(p) in by_muon}


KINDS = {
    "tied": lambda: make_model(tie_embeddings=True),
    "experts": lambda: make_model(n_experts=3, norm="rms"),
    "learned positions": lambda: make_model(position="learned", activation="swiglu"),
    "translator": lambda: Seq2SeqLM(tiny()),
    "masked": lambda: MaskedLM(tiny()),
    "classifier": lambda: SequenceClassifier(tiny(), n_classes=3),
    "pictures": lambda: VisionTransformer(
        tiny(max_len=5), image_size=8, patch_size=4, n_channels=1, n_classes=3
    ),
}


def check_groups(model):
    chosen = names_by_muon(model)
    assert chosen == {
        name
        for name, p in model.named_parameters()
        if ".blocks." in name and name.endswith(".weight") and p.ndim == 2
    }
    assert not any(word in name for name in chosen for word in ("embed", "norm", "classifier"))
    groups = Learner(model, recipe(), torch.device("cpu")).optimizer.param_groups
    everything = [id(p) for group in groups for p in group["params"]]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.0]
    assert all(p.ndim < 2 for p in groups[2]["params"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_shared_out(kind):
    check_groups(KINDS[kind]())


def test_embeddings_outputs_norms_and_biases_are_left_to_adamw():
    check_groups(make_model())


def test_frozen_matrices_are_left_alone():
    model = make_model()
    model.decoder.stack.blocks[0].requires_grad_(requires_grad=False)
    assert {name.split(".")[3] for name in names_by_muon(model)} == {"1"}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    run(model, recipe())
    for name, p in model.named_parameters():
        assert p.equal(before[name]) == (".blocks.0." in name), name


def test_a_run_makes_the_steps_of_pytorchs_two_optimizers(monkeypatch):
    """Muon for the blocks and AdamW for the rest, side by side, in a loop by hand."""
    in_float32(monkeypatch)
    plain = {"dropout": 0.0, "attention_dropout": 0.0}
    ours, theirs, how = make_model(**plain), make_model(**plain), recipe(eps=1e-2, clip=None)
    run(ours, how)
    hidden = {id(p) for p in hidden_matrices(theirs)}
    rest = [p for p in theirs.parameters() if id(p) not in hidden]
    matrices, vectors = ([p for p in rest if (p.ndim > 1) == is_matrix] for is_matrix in (1, 0))
    both = (
        torch.optim.Muon(hidden_matrices(theirs), adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
            betas=how.betas, eps=how.eps,
        ),
    )  # fmt: skip
    text = TextWindows(TEXT, length=8, batch_size=4)
    for step in range(1, 7):
        batch = next(text)
        scores = theirs(batch["ids"])
        nn.functional.cross_entropy(scores.flatten(0, 1), batch["targets"].flatten()).backward()
        for optimizer in both:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, how)
            optimizer.step()
            optimizer.zero_grad()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert_close(a, b, rtol=1e-3, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


def test_it_learns():
    rows = run(make_model(), recipe(steps=30, learning_rate=0.02))
    assert rows[-1]["loss"] < 1.5 < math.log(8) < rows[0]["loss"]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # an old CPU: slower, no different
def test_in_16_bits_it_multiplies_in_bfloat16(precision):
    how = recipe(precision=precision, steps=2)
    learner = Learner(make_model(), how, torch.device("cpu"))
    assert {group["precision"] for group in learner.optimizer.param_groups} == {"bfloat16"}
    rows = run(make_model(), how)
    assert all(math.isfinite(row["loss"]) for row in rows)


class PulledPlugError(Exception):
    pass


@pytest.mark.parametrize("changes", [{}, {"average": 0.8, "schedule": "wsd"}])
def test_a_run_with_muon_goes_on_to_the_last_bit(changes, tmp_path):
    how = recipe(checkpoint_every=2, validate_every=3, **changes)
    validation = TextWindows(TEXT[:50], length=8, batch_size=4)
    straight, again = make_model(), make_model()
    rows = run(straight, how, validation=validation)

    def pull_the_plug(row):
        if row["step"] == 5:
            raise PulledPlugError

    with pytest.raises(PulledPlugError):
        run(make_model(), how, validation=validation, folder=tmp_path, on_step=pull_the_plug)
    assert run(again, how, validation=validation, folder=tmp_path) == rows
    for (name, a), b in zip(straight.named_parameters(), again.parameters(), strict=True):
        assert a.equal(b), name


def test_a_run_does_not_go_on_with_another_optimizer(tmp_path):
    run(make_model(), recipe(), folder=tmp_path)
    for changes, said in (
        ({"optimizer": "adamw"}, "optimizer='adamw'"),
        ({"momentum": 0.5}, "mom"),
    ):
        with pytest.raises(ValueError, match=said):
            run(make_model(), replace(recipe(steps=8), **changes), folder=tmp_path)
