"""The loss equals PyTorch's, in parts and whole, for every kind of model."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_lib.core.config import TransformerConfig
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.training import losses
from transformer_lib.training.data import IGNORE, TextWindows
from transformer_lib.training.loop import train
from transformer_lib.training.losses import Objective, linear_cross_entropy
from transformer_lib.training.recipes import Recipe

CONFIG = TransformerConfig(
    vocab_size=11, max_len=8, d_model=8, n_heads=2, n_layers=1, dropout=0.0, logit_scale=0.5
)
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
TARGETS = torch.tensor([[2, 3, 4, 5], [6, 7, IGNORE, IGNORE]])


def reference(x, weight, targets, smoothing):
    logits = F.linear(x, weight).flatten(end_dim=-2)
    return F.cross_entropy(
        logits, targets.flatten(), reduction="sum", label_smoothing=smoothing, ignore_index=IGNORE
    )


@pytest.fixture(params=[losses.LOGITS_AT_ONCE, 50], ids=["whole", "in parts"])
def _parts(request, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", request.param)


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loss_and_gradients_equal_pytorchs(smoothing, dtype):
    torch.manual_seed(0)
    x = torch.randn(3, 7, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(13, 8, dtype=dtype, requires_grad=True)
    targets = torch.randint(13, (3, 7))
    targets[0, 2:] = IGNORE
    ours = linear_cross_entropy(x, weight, targets, smoothing)
    theirs = reference(x, weight, targets, smoothing)
    torch.testing.assert_close(ours, theirs)
    assert ours.dtype == dtype
    for mine, wanted in zip(
        torch.autograd.grad(3 * ours, (x, weight)),
        torch.autograd.grad(3 * theirs, (x, weight)),
        strict=True,
    ):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.usefixtures("_parts")
def test_gradients_equal_finite_differences():
    torch.manual_seed(0)
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(13, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 12, IGNORE, 3, 3])
    assert torch.autograd.gradcheck(
        lambda x, weight: linear_cross_entropy(x, weight, targets, 0.2), (x, weight)
    )


def test_nothing_is_computed_for_gradients_that_nobody_wants(monkeypatch):
    x, weight = torch.randn(4, 8), nn.Parameter(torch.randn(13, 8))
    with torch.no_grad():
        loss = linear_cross_entropy(x, weight, torch.arange(4))
    assert not loss.requires_grad
    torch.testing.assert_close(loss, reference(x, weight, torch.arange(4), 0.0).detach())


def test_a_sure_and_right_answer_keeps_its_small_gradient_in_bfloat16():
    # Rounded first, p = 0.9999 would be 1, and nothing would be left of p - 1.
    x = torch.tensor([[9.0]], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16, requires_grad=True)
    linear_cross_entropy(x, weight, torch.tensor([0])).backward()
    expected = 9 * (torch.sigmoid(torch.tensor(9.0)) - 1)  # about -0.0011
    torch.testing.assert_close(weight.grad[0, 0].float(), expected, rtol=0.01, atol=0)


def test_all_targets_ignored_gives_zero_and_zero_gradients():
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(13, 8, requires_grad=True)
    loss = linear_cross_entropy(x, weight, torch.full((4,), IGNORE))
    loss.backward()
    assert float(loss.detach()) == 0
    assert not x.grad.any()
    assert not weight.grad.any()


def test_under_autocast_the_logits_are_bfloat16_and_the_loss_is_float32():
    torch.manual_seed(0)
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(13, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(x, weight, torch.arange(4))
    loss.backward()
    exact = reference(x, weight, torch.arange(4), 0.0)
    assert loss.dtype == x.grad.dtype == weight.grad.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.02, atol=0)
    assert float((loss - exact).detach().abs()) > 0, "nothing was rounded"


def language_model_batches():
    with_source = {"source": IDS, "target": IDS, "targets": TARGETS}
    return {
        CausalLM: {"ids": IDS, "targets": TARGETS},
        MaskedLM: {"ids": IDS, "targets": TARGETS},
        Seq2SeqLM: with_source,
    }


@pytest.mark.parametrize("kind", [CausalLM, MaskedLM, Seq2SeqLM])
def test_every_language_model_has_the_loss_of_its_logits(kind):
    torch.manual_seed(0)
    model, batch = kind(CONFIG), language_model_batches()[kind]
    total, count = Objective(model, label_smoothing=0.1)(batch)
    inputs = {name: tensor for name, tensor in batch.items() if name != "targets"}
    logits = model(**inputs).flatten(end_dim=-2)
    wanted = F.cross_entropy(logits, TARGETS.flatten(), reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(total, wanted)
    assert int(count) == 6
    ours = torch.autograd.grad(total, list(model.parameters()), retain_graph=True)
    theirs = torch.autograd.grad(wanted, list(model.parameters()))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_classifiers_have_one_target_for_each_row():
    classes = torch.tensor([2, 0])
    total, count = Objective(SequenceClassifier(CONFIG, 3))({"ids": IDS, "targets": classes})
    assert int(count) == 2
    assert total.ndim == 0
    config = TransformerConfig(d_model=8, n_heads=2, n_layers=1, max_len=5)
    images = VisionTransformer(config, 8, 4, n_channels=1, n_classes=3)
    total, count = Objective(images)({"images": torch.zeros(2, 1, 8, 8), "targets": classes})
    assert int(count) == 2


def test_the_batch_is_left_as_it_was():
    batch = {"ids": IDS, "targets": TARGETS}
    Objective(CausalLM(CONFIG))(batch)
    assert batch.keys() == {"ids", "targets"}


def test_label_smoothing_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"label_smoothing=1\.5"):
        Objective(nn.Identity(), label_smoothing=1.5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by PyTorch
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_in_one_graph_it_is_the_same():
    torch.manual_seed(0)
    x, weight = torch.randn(2, 5, 8, requires_grad=True), torch.randn(13, 8, requires_grad=True)
    targets = torch.randint(13, (2, 5))
    compiled = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    results = []
    for function in (compiled, linear_cross_entropy):
        loss = function(x, weight, targets)
        results.append((loss, *torch.autograd.grad(loss, (x, weight))))
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("kind", [CausalLM, MaskedLM])
def test_targets_of_another_shape_are_refused(kind):
    with pytest.raises(ValueError, match=r"targets has shape \(4, 2\); wanted \(2, 4\)"):
        Objective(kind(CONFIG))({"ids": IDS, "targets": TARGETS.T})


class CountProducts(TorchDispatchMode):
    """Counts the matrix products that reach PyTorch's dispatcher."""

    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.n += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*arguments, **options or {})


@pytest.mark.parametrize(
    ("x_learns", "weight_learns", "products"),
    [(False, False, 1), (True, False, 2), (False, True, 2), (True, True, 3)],
)
def test_only_products_that_somebody_needs_are_made(x_learns, weight_learns, products):
    torch.manual_seed(0)
    x = torch.randn(4, 8, requires_grad=x_learns)
    weight = torch.randn(13, 8, requires_grad=weight_learns)
    with CountProducts() as counted:
        loss = linear_cross_entropy(x, weight, torch.arange(4))
        if x_learns or weight_learns:
            loss.backward()
    assert counted.n == products
    wanted = reference(x, weight, torch.arange(4), 0.0)
    assert loss.requires_grad == wanted.requires_grad
    torch.testing.assert_close(loss, wanted)
    if x_learns or weight_learns:
        learning = [tensor for tensor in (x, weight) if tensor.requires_grad]
        for tensor, slope in zip(learning, torch.autograd.grad(wanted, learning), strict=True):
            torch.testing.assert_close(tensor.grad, slope)
    with CountProducts() as counted, torch.no_grad():
        linear_cross_entropy(x, weight, torch.arange(4))
    assert counted.n == 1


def test_a_second_derivative_is_refused_and_not_wrong():
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(13, 8, requires_grad=True)
    loss = linear_cross_entropy(x, weight, torch.arange(4))
    with pytest.raises(
        RuntimeError, match=r"^linear_cross_entropy can be differentiated once, but"
    ):
        torch.autograd.grad(loss, x, create_graph=True)


def test_a_batch_without_rows_has_no_loss_and_no_gradient():
    for dtype in (torch.float32, torch.float16):
        x = torch.zeros(0, 8, dtype=dtype, requires_grad=True)
        weight = torch.randn(13, 8, dtype=dtype, requires_grad=True)
        loss = linear_cross_entropy(x, weight, torch.zeros(0, dtype=torch.long))
        loss.backward()
        assert float(loss.detach()) == 0
        assert x.grad.shape == (0, 8)
        assert not weight.grad.any()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # an old CPU: slower, no different
@pytest.mark.parametrize("size", [2.0, 300.0])
def test_gradients_of_many_tokens_do_not_overflow_in_float16(size):
    """Their sum is beyond 65,504; only their mean, which training wants, is an ordinary number."""
    torch.manual_seed(0)
    n = 2**17
    x = (size * torch.rand(n, 2)).requires_grad_()
    weight = (torch.randn(5, 2) / size).requires_grad_()
    targets = torch.zeros(n, dtype=torch.long)
    with torch.autocast("cpu", torch.float16):
        loss = linear_cross_entropy(x, weight, targets) / n
    wanted = reference(x, weight, targets, 0.0) / n
    torch.testing.assert_close(loss, wanted, rtol=1e-2, atol=0)
    scale = 2.0**16  # as of PyTorch's scaler at the start
    ours = torch.autograd.grad(scale * loss, (x, weight))
    theirs = torch.autograd.grad(scale * wanted, (x, weight))
    assert theirs[1].abs().max() * n / scale > 65_504, "too easy"
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-2, atol=1e-3 * other.abs().max().item())


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_a_model_all_in_float16_gets_the_gradient_of_the_mean():
    torch.manual_seed(0)
    n = 2**17
    x = (4 * torch.rand(n, 2, dtype=torch.float16)).requires_grad_()
    weight = torch.randn(5, 2, dtype=torch.float16, requires_grad=True)
    (linear_cross_entropy(x, weight, torch.zeros(n, dtype=torch.long)) / n).backward()
    exact = weight.detach().float().requires_grad_()
    (reference(x.detach().float(), exact, torch.zeros(n, dtype=torch.long), 0.0) / n).backward()
    assert weight.grad.dtype == torch.float16
    torch.testing.assert_close(weight.grad.float(), exact.grad, rtol=1e-2, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by PyTorch
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("frozen", ["nothing", "x", "weight"])
def test_compiled_with_a_frozen_side_it_is_the_same(frozen):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8, requires_grad=frozen != "x")
    weight = torch.randn(13, 8, requires_grad=frozen != "weight")
    targets = torch.randint(13, (2, 5))
    learning = [tensor for tensor in (x, weight) if tensor.requires_grad]
    compiled = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, weight, targets), reference(x, weight, targets, 0.0))
    for ours, plain in zip(
        torch.autograd.grad(compiled(x, weight, targets), learning),
        torch.autograd.grad(reference(x, weight, targets, 0.0), learning),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain)


# --- what is not counted ---


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_what_stands_at_an_ignored_row_has_no_influence(rubbish, smoothing):
    """Zero times NaN is NaN: such rows must be left out, not multiplied."""
    torch.manual_seed(0)
    clean, weight = torch.randn(6, 8), torch.randn(13, 8, requires_grad=True)
    targets = torch.tensor([3, IGNORE, 0, 12, IGNORE, 5])
    ignored = targets == IGNORE
    x = clean.masked_fill(ignored[:, None], rubbish).requires_grad_()
    loss = linear_cross_entropy(x, weight, targets, smoothing)
    wanted = reference(clean.requires_grad_(), weight, targets, smoothing)
    torch.testing.assert_close(loss, wanted)
    with torch.no_grad():
        torch.testing.assert_close(linear_cross_entropy(x, weight, targets, smoothing), wanted)
    ours = torch.autograd.grad(loss, (x, weight))
    theirs = torch.autograd.grad(wanted, (clean, weight))
    torch.testing.assert_close(ours, theirs)
    assert not ours[0][ignored].any()


def test_a_model_whose_padding_is_nan_has_the_loss_of_the_rest():
    torch.manual_seed(0)
    model = CausalLM(CONFIG)
    batch = {"ids": IDS, "targets": TARGETS}
    wanted = Objective(model)(batch)[0]
    spoil = (TARGETS == IGNORE)[..., None]
    model.decoder.register_forward_hook(lambda *given: given[-1].masked_fill(spoil, float("nan")))
    torch.testing.assert_close(Objective(model)(batch)[0], wanted)


@pytest.mark.parametrize("kind", [CausalLM, MaskedLM, Seq2SeqLM])
def test_a_model_in_float64_gets_a_loss_in_float64(kind):
    torch.manual_seed(0)
    model, batch = kind(CONFIG).double(), language_model_batches()[kind]
    total, _ = Objective(model)(batch)
    inputs = {name: tensor for name, tensor in batch.items() if name != "targets"}
    logits = model(**inputs).flatten(end_dim=-2)
    wanted = F.cross_entropy(logits, TARGETS.flatten(), reduction="sum")
    assert total.dtype == torch.float64
    torch.testing.assert_close(total, wanted, rtol=1e-14, atol=0)


def test_a_row_of_training_in_float64_has_all_its_digits():
    """What is logged is the sum of the parts: it must not be rounded on the way."""
    torch.manual_seed(0)
    model = CausalLM(CONFIG).double()
    batches = TextWindows(torch.arange(50) % 11, length=4, batch_size=2)
    with torch.no_grad():
        total, count = Objective(model)(next(batches))
    batches = TextWindows(torch.arange(50) % 11, length=4, batch_size=2)
    recipe = Recipe(steps=1, learning_rate=0.0, log_every=1)
    (row,) = train(model, batches, recipe, device="cpu", progress=False)
    assert row["loss"] == pytest.approx((total / count).item(), rel=1e-13)


# --- torch.func ---


def by_name(model):
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def loss_of(model):
    """The loss as a function of the weights, as ``torch.func`` wants it."""
    objective = Objective(model)

    def compute(weights, ids, targets):
        named = {f"model.{name}": weight for name, weight in weights.items()}
        total, _ = torch.func.functional_call(objective, named, ({"ids": ids, "targets": targets},))
        return total

    return compute


@pytest.mark.usefixtures("unchecked_shapes")
def test_torch_func_gives_the_gradients_of_an_objective():
    torch.manual_seed(0)
    model = CausalLM(CONFIG)
    found = torch.func.grad(loss_of(model))(by_name(model), IDS, TARGETS)
    Objective(model)({"ids": IDS, "targets": TARGETS})[0].backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=name)


@pytest.mark.usefixtures("unchecked_shapes")
def test_torch_func_gives_the_gradient_of_every_example():
    """A gradient for each row, as differential privacy and influence functions want them."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, 8), torch.randn(13, 8)
    targets = torch.randint(13, (3, 5))
    targets[0, 2:] = IGNORE
    gradients = torch.func.grad(linear_cross_entropy, argnums=(0, 1))
    found = torch.func.vmap(gradients, in_dims=(0, None, 0))(x, weight, targets)
    for i in range(3):
        one, table = x[i].clone().requires_grad_(), weight.clone().requires_grad_()
        wanted = torch.autograd.grad(reference(one, table, targets[i], 0.0), (one, table))
        torch.testing.assert_close((found[0][i], found[1][i]), wanted)
    together = torch.func.grad(
        lambda x: torch.func.vmap(linear_cross_entropy, (0, None, 0))(x, weight, targets).sum()
    )
    torch.testing.assert_close(together(x), found[0])


@pytest.mark.usefixtures("unchecked_shapes")
def test_torch_func_gives_second_derivatives_that_are_right():
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3).double(), torch.randn(4, 3).double()
    targets = torch.tensor([1, 3])
    twice = lambda loss: torch.func.jacrev(torch.func.grad(loss))  # noqa: E731
    ours = twice(linear_cross_entropy)(x, weight, targets)
    theirs = twice(reference)(x, weight, targets, 0.0)
    torch.testing.assert_close(ours, theirs)
    assert ours.any()
