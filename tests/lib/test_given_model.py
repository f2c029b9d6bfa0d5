"""What is trained and judged is the model that was given, with all that hangs on it.

The objective may skip a language model's logits (see losses.py), but only where nobody can tell.
"""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tiny_models import tiny
from torch import nn
from torch.nn.modules import module as all_modules
from torch.nn.utils import parametrizations, parametrize, prune

from transformer_book.mistakes import mistake
from transformer_lib.models.language_models import CausalLM, OutputLayer, Seq2SeqLM
from transformer_lib.training.data import IGNORE, Batches, next_token_batch
from transformer_lib.training.loop import evaluate, train
from transformer_lib.training.losses import Objective
from transformer_lib.training.recipes import Recipe

# Ids have no gradient: PyTorch warns that it calls backward hooks of a model all the same.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
TARGETS = torch.tensor([[2, 3, 4, 5], [6, 7, IGNORE, 9]])
CONFIG = tiny(dropout=0.0, attention_dropout=0.0)


class Softcapped(CausalLM):
    """Keeps logits between -1 and 1, as Gemma 2 does between -30 and 30."""

    def forward(self, *inputs, **options):
        return torch.tanh(super().forward(*inputs, **options))


class LowRank(nn.Module):
    """What LoRA puts in the place of a linear layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class Sharper(OutputLayer):
    """An output layer of one's own."""

    def forward(self, x):
        return 3 * super().forward(x)


class Double(nn.Module):
    """A parametrization that changes what is computed."""

    def forward(self, weight):
        return 2 * weight


def softcapped(model):
    model.__class__ = Softcapped


def with_bias(model):
    model.output.projection.bias = nn.Parameter(torch.linspace(-3, 3, 11))


def with_low_rank(model):
    model.output.projection = LowRank(model.output.projection)


def other_output(model):
    model.output.__class__ = Sharper


def forward_of_its_own(path):
    def change(model):
        part = model.get_submodule(path)
        plain = part.forward
        part.forward = lambda *inputs, **options: 3 * plain(*inputs, **options)

    return change


def forward_hook(path):
    def change(model):
        model.get_submodule(path).register_forward_hook(lambda _, __, output: 3 * output)

    return change


def forward_pre_hook(path):
    def change(model):
        part = model.get_submodule(path)
        if path:  # what goes in are vectors
            part.register_forward_pre_hook(lambda _, inputs: (3 * inputs[0],))
        else:
            part.register_forward_pre_hook(
                lambda _, inputs, options: (inputs, {"ids": 10 - options["ids"]}), with_kwargs=True
            )

    return change


def backward_hook(path):
    def change(model):
        part = model.get_submodule(path)
        part.register_full_backward_pre_hook(lambda _, grads: tuple(3 * g for g in grads))

    return change


def pruned(model):
    prune.l1_unstructured(model.output.projection, "weight", 0.5)


def parametrized(model):
    parametrize.register_parametrization(model.output.projection, "weight", Double())


def normalised(model):
    parametrizations.weight_norm(model.output.projection)
    with torch.no_grad():
        model.output.projection.parametrizations.weight.original0.mul_(3)


CHANGES = {
    "a subclass that caps its logits": softcapped,
    "a bias of the projection": with_bias,
    "LoRA in place of the projection": with_low_rank,
    "an output layer of one's own": other_output,
    "pruning of the projection": pruned,
    "a parametrization of the projection": parametrized,
    "weight norm of the projection": normalised,
}
for where, path in {
    "model": "",
    "output layer": "output",
    "projection": "output.projection",
}.items():
    CHANGES |= {
        f"another forward of the {where}": forward_of_its_own(path),
        f"a forward hook on the {where}": forward_hook(path),
        f"a forward pre-hook on the {where}": forward_pre_hook(path),
        f"a backward hook on the {where}": backward_hook(path),
    }


def make_model(change=None, config=CONFIG):
    torch.manual_seed(0)
    model = CausalLM(config)
    if change is not None:
        torch.manual_seed(1)
        change(model)
    return model


def own_loss(model, ids=IDS, targets=TARGETS):
    """The loss of what the model itself says."""
    logits = model(ids=ids).flatten(end_dim=-2)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum")


def gradients(loss, model):
    model.zero_grad()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def differ(a, b):
    return any(not torch.allclose(a[name], b[name], rtol=1e-3) for name in a.keys() & b.keys())


def stream():
    texts = [[(3 * i + j * (1 + i % 3)) % 10 + 1 for j in range(7)] for i in range(12)]
    return Batches(texts, next_token_batch, batch_size=4)


@pytest.mark.parametrize("name", CHANGES)
def test_loss_and_gradients_are_those_of_the_changed_model(name):
    model, plain = make_model(CHANGES[name]), make_model()
    wanted = own_loss(model)
    slopes = gradients(wanted, model)
    total, count = Objective(model)({"ids": IDS, "targets": TARGETS})
    torch.testing.assert_close(total, wanted)
    torch.testing.assert_close(gradients(total, model), slopes)
    assert int(count) == 7
    unchanged = own_loss(plain)
    before = gradients(unchanged, plain)
    assert differ({"": wanted}, {"": unchanged}) or differ(slopes, before), "this changes nothing"


@pytest.mark.parametrize("name", CHANGES)
def test_what_hangs_on_a_model_acts_in_training_and_validation(name):
    """Two steps of ``train`` are two steps by hand, with the loss of the model's own logits."""
    ours, theirs = make_model(CHANGES[name]), make_model(CHANGES[name])
    recipe = Recipe(
        steps=2, learning_rate=0.1, eps=1.0, schedule="constant", clip=None, log_every=1,
        validate_every=1, optimizer="adam", weight_decay=0.0,
    )  # fmt: skip
    rows = train(ours, stream(), recipe, validation=stream(), device="cpu", progress=False)
    trained = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    optimizer, batches = torch.optim.Adam(trained, lr=0.1, betas=(0.9, 0.95), eps=1.0), stream()
    for row in rows:
        batch = next(batches)
        loss = own_loss(theirs, **batch) / batch["targets"].numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert math.isclose(row["loss"], loss.item(), rel_tol=1e-5)
        with torch.no_grad():
            judged = [own_loss(theirs, **batch).item() for batch in stream().one_pass()]
        assert math.isclose(row["validation_loss"], sum(judged) / 72, rel_tol=1e-5)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert math.isclose(evaluate(ours, stream())["loss"], sum(judged) / 72, rel_tol=1e-5)


def test_low_rank_matrices_on_the_output_layer_learn():
    model = make_model(with_low_rank)
    before = model.output.projection.up.weight.detach().clone()
    recipe = Recipe(steps=1, learning_rate=0.1)
    train(model, stream(), recipe, device="cpu", progress=False)
    assert not torch.equal(model.output.projection.up.weight, before)


GLOBAL_HOOKS = {
    "forward": (
        all_modules.register_module_forward_hook,
        lambda part, _, out: 3 * out if isinstance(part, OutputLayer) else None,
    ),
    "forward pre": (
        all_modules.register_module_forward_pre_hook,
        lambda part, inputs: (3 * inputs[0],) if isinstance(part, OutputLayer) else None,
    ),
    "backward pre": (
        all_modules.register_module_full_backward_pre_hook,
        lambda part, grads: tuple(3 * g for g in grads) if isinstance(part, OutputLayer) else None,
    ),
}


@pytest.mark.parametrize("kind", GLOBAL_HOOKS)
def test_a_hook_for_all_modules_acts(kind):
    model = make_model()
    unchanged = own_loss(model)
    before = gradients(unchanged, model)
    register, hook = GLOBAL_HOOKS[kind]
    handle = register(hook)
    try:
        wanted = own_loss(model)
        slopes = gradients(wanted, model)
        total, _ = Objective(model)({"ids": IDS, "targets": TARGETS})
        torch.testing.assert_close(total, wanted)
        torch.testing.assert_close(gradients(total, model), slopes)
    finally:
        handle.remove()
    assert differ({"": wanted}, {"": unchanged}) or differ(slopes, before)


def test_a_class_whose_forward_was_replaced_for_all_models_acts():
    torch.manual_seed(0)
    model = CausalLM(tiny(dropout=0.0, attention_dropout=0.0, logit_scale=0.1))
    batch = {"ids": IDS, "targets": TARGETS}
    right, _ = Objective(model)(batch)
    with mistake("logits-unscaled"):
        wrong, _ = Objective(model)(batch)
        torch.testing.assert_close(wrong, own_loss(model))
    assert not torch.isclose(right, wrong)


def test_an_encoder_decoder_is_trained_as_it_is_given():
    torch.manual_seed(0)
    model = Seq2SeqLM(CONFIG)
    batch = {"source": IDS, "target": IDS, "targets": TARGETS}
    plain, _ = Objective(model)(batch)
    model.output.register_forward_hook(lambda _, __, output: 3 * output)
    logits = model(IDS, IDS).flatten(end_dim=-2)
    wanted = F.cross_entropy(logits, TARGETS.flatten(), ignore_index=IGNORE, reduction="sum")
    total, _ = Objective(model)(batch)
    torch.testing.assert_close(total, wanted)
    assert not torch.isclose(total, plain)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_that_its_owner_compiled_is_run_compiled(in_place):
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    model = make_model(config=replace(CONFIG, n_layers=1))
    given = model
    if in_place:
        model.compile(backend=backend)
    else:
        given = torch.compile(model, backend=backend)
    total, _ = Objective(given)({"ids": IDS, "targets": TARGETS})
    assert compiled
    torch.testing.assert_close(total, own_loss(make_model(config=replace(CONFIG, n_layers=1))))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("change", [None, with_bias, forward_hook("output"), with_low_rank])
def test_the_compiled_objective_has_the_loss_of_the_model(change):
    """In one graph: a compiled training step has no break in it."""
    model = make_model(change, replace(CONFIG, n_layers=1))
    objective = torch.compile(Objective(model), backend="aot_eager", fullgraph=True)
    total, _ = objective({"ids": IDS, "targets": TARGETS})
    slopes = gradients(total, model)
    wanted = own_loss(model)
    torch.testing.assert_close(total, wanted)
    torch.testing.assert_close(slopes, gradients(wanted, model))


def test_an_ordinary_language_model_makes_no_logits_for_all_tokens(monkeypatch):
    """The point of it all: only what is certain to be the same is left out."""
    calls = []
    monkeypatch.setattr(F, "cross_entropy", lambda *_, **__: calls.append(1))
    Objective(make_model())({"ids": IDS, "targets": TARGETS})
    assert not calls
