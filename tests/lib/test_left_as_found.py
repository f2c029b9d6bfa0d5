"""Training and judging leave everything but the weights as they found it, also when they fail."""

import atexit
import json
import math
import sys
import types
from functools import partial

import pytest
import torch
import torch.distributed as dist
from tiny_models import tiny
from torch import nn

from experiments.shared import common
from transformer_lib.core.eval_mode import modes_kept
from transformer_lib.models.language_models import CausalLM, SequenceClassifier
from transformer_lib.training.data import Batches, TextWindows, classification_batch
from transformer_lib.training.loop import evaluate, train
from transformer_lib.training.recipes import Recipe

PLAIN = {"dropout": 0.0, "attention_dropout": 0.0}


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They take longer than all the rest."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def make_model(**choices):
    torch.manual_seed(0)
    return CausalLM(tiny(**choices))


def text():
    return TextWindows(torch.arange(200) % 7, length=8, batch_size=4)


def quick(**changes):
    return Recipe(**{"steps": 3, "learning_rate": 1e-2, "log_every": 1} | changes)


run = partial(train, device="cpu", progress=False)


def modes(model):
    return [part.training for part in model.modules()]


def partly_frozen(model):
    """As somebody leaves a model who trains one part of it: the other one without dropout."""
    model.train()
    model.decoder.embedding.eval()
    assert len(set(modes(model))) == 2
    return model


# --- modes ---


def test_every_part_goes_back_to_its_own_mode():
    model = partly_frozen(make_model())
    before = modes(model)
    with pytest.raises(ZeroDivisionError), modes_kept(model):
        float(model.eval().training) / 0
    assert modes(model) == before


def test_to_judge_a_model_leaves_every_part_in_its_mode():
    model = partly_frozen(make_model())
    before = modes(model)
    assert evaluate(model, text()) == evaluate(model, text())
    assert modes(model) == before


def test_to_judge_without_success_leaves_every_part_in_its_mode():
    model = partly_frozen(make_model())
    before = modes(model)
    model.output.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate(model, text())
    assert modes(model) == before


def test_a_validation_on_the_way_leaves_every_part_in_its_mode():
    model, seen = make_model(), []

    def freeze(row):
        seen.append(modes(model))
        model.decoder.embedding.eval()

    run(model, text(), quick(validate_every=1), validation=text(), on_step=freeze)
    assert all(seen[0])
    assert seen[1] == seen[2] == modes(partly_frozen(model))


def test_predictions_of_experiments_leave_every_part_in_its_mode():
    torch.manual_seed(0)
    model = SequenceClassifier(tiny(), 3)
    model.encoder.embedding.eval()
    before = modes(model)
    examples = [([1, 2, 3], 0), ([4, 5], 1)]
    assert (
        len(common.predictions(model, Batches(examples, classification_batch, batch_size=1))) == 2
    )
    assert modes(model) == before


def test_a_card_is_json_that_other_programs_can_read(tmp_path):
    """JSON has no word for NaN and infinity: metrics say so in words, elsewhere it is an error."""
    options = common.read_options("dropout", "a test", ["--tiny", "--out", str(tmp_path)])

    def write(value, **more):
        metrics = {"loss": value}
        common.write_results(options, "none", {}, metrics, quick(), **more)
        text = (tmp_path / "card.json").read_text()
        return json.loads(text, parse_constant=pytest.fail)["metrics"]["loss"]

    assert write(0.5) == 0.5
    assert write(None) is None
    for value in (math.nan, math.inf):
        assert write(value) == "not a number"
        with pytest.raises(ValueError, match="not JSON compliant"):
            write(0.5, more={"least": value})


def interrupt(row):
    raise KeyboardInterrupt


@pytest.mark.parametrize("sparing", [False, True])
@pytest.mark.parametrize("accident", [interrupt, lambda row: 1 / 0])
def test_a_training_that_fails_leaves_modes_and_blocks_as_they_were(accident, sparing):
    model = partly_frozen(make_model())
    before = modes(model)
    with pytest.raises((KeyboardInterrupt, ZeroDivisionError)):
        run(model, text(), quick(checkpoint_activations=sparing), on_step=accident)
    assert modes(model) == before
    assert not model.decoder.stack.checkpoint_activations
    assert not any("forward" in vars(block) for block in model.decoder.stack.blocks)


def test_a_forward_pass_that_fails_leaves_modes_and_blocks_as_they_were():
    model = make_model().eval()
    model.decoder.stack.blocks[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(model, text(), quick(checkpoint_activations=True))
    assert not any(modes(model))
    assert not model.decoder.stack.checkpoint_activations
    assert not any("forward" in vars(block) for block in model.decoder.stack.blocks)


# --- blocks that compute their activations again ---


@pytest.mark.parametrize("before", [False, True])
def test_a_stack_gets_its_own_setting_back_after_the_run(before):
    """The run asks for it by the stack's own switch; no block is changed."""
    model, seen = make_model(), []
    stack = model.decoder.stack
    stack.checkpoint_activations = before

    def look(row):
        blocks_changed = any("forward" in vars(block) for block in stack.blocks)
        seen.append((stack.checkpoint_activations, blocks_changed))

    run(model, text(), quick(checkpoint_activations=True), on_step=look)
    assert seen == [(True, False)] * 3
    assert stack.checkpoint_activations is before


def test_a_forward_of_ones_own_stays_and_is_computed_again():
    model, calls = make_model(**PLAIN), []
    block = model.decoder.stack.blocks[0]
    plain = block.forward

    def own(*inputs, **options):
        calls.append(1)
        return 2 * plain(*inputs, **options)

    block.forward = own
    other = make_model(**PLAIN)
    doubled = other.decoder.stack.blocks[0].forward
    other.decoder.stack.blocks[0].forward = lambda *inputs, **options: (
        2 * doubled(*inputs, **options)
    )
    run(model, text(), quick(checkpoint_activations=True))
    run(other, text(), quick())
    assert block.forward is own
    assert len(calls) == 2 * 3, "every block runs twice a step"
    torch.testing.assert_close(model.state_dict(), other.state_dict())


# --- gradients ---


def test_gradients_that_were_there_before_are_not_part_of_the_first_step():
    used, fresh = make_model(**PLAIN), make_model(**PLAIN)
    used.output.projection.weight.requires_grad_(False)
    fresh.output.projection.weight.requires_grad_(False)
    for parameter in used.parameters():
        parameter.grad = torch.full_like(parameter, 10.0)
    rows = run(used, text(), quick())
    assert rows == run(fresh, text(), quick())
    torch.testing.assert_close(used.state_dict(), fresh.state_dict(), rtol=0, atol=0)


# --- what was opened is closed ---


@pytest.fixture
def board(monkeypatch):
    """TensorBoard's writer; says what was done with it."""
    done = []

    class SummaryWriter:
        def __init__(self, *_, **__):
            done.append("opened")

        def add_scalar(self, *_):
            pass

        def flush(self):
            pass

        def close(self):
            done.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return done


def test_tensorboard_is_closed_at_the_end(board, tmp_path):
    run(make_model(), text(), quick(), folder=tmp_path)
    assert board == ["opened", "closed"]


def test_tensorboard_is_closed_after_an_accident(board, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(make_model(), text(), quick(), folder=tmp_path, on_step=interrupt)
    assert board == ["opened", "closed"]


@pytest.fixture
def at_exit(monkeypatch):
    """As if torchrun had started this process, alone; what it will do when it ends."""
    store = dist.TCPStore("localhost", 0, is_master=True)
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": store.port, "RANK": 0, "WORLD_SIZE": 1}
    for name, value in (where | {"LOCAL_RANK": 0, "TORCHELASTIC_USE_AGENT_STORE": True}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    calls = []
    monkeypatch.setattr(atexit, "register", calls.append)
    yield calls
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, about devices
def test_the_processes_that_training_joined_are_left_when_python_ends(at_exit):
    """Not before: evaluate, and another run, want to share their work, too."""
    for _ in range(2):
        run(make_model(), text(), quick())
        assert dist.is_initialized()
    (leave,) = at_exit
    leave()
    assert not dist.is_initialized()
    leave()  # somebody was quicker


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_processes_that_somebody_else_joined_are_not_left(at_exit):
    dist.init_process_group("gloo")
    run(make_model(), text(), quick())
    assert dist.is_initialized()
    assert not at_exit


def test_a_model_of_ones_own_is_left_in_evaluation_mode_after_success():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(11, 11)

        def forward(self, ids):
            return self.table(ids)

    model = Own().train()
    run(model, text(), quick())
    assert not any(modes(model))


# --- random numbers ---


def quick_run(**options):
    return lambda: run(make_model(), text(), quick(), **options)


def failing_run():
    model = make_model()
    with pytest.raises(ZeroDivisionError):
        run(model, text(), quick(), on_step=lambda row: 1 / 0)


def refused_run():
    model = make_model()
    with pytest.raises(ValueError, match="patience"):
        run(model, text(), quick(patience=2))


@pytest.mark.parametrize(
    "act",
    [
        quick_run(),
        quick_run(validation=text()),
        failing_run,
        refused_run,
        lambda: evaluate(make_model(), text()),
    ],
    ids=["train", "train and judge", "fail", "be refused", "evaluate"],
)
def test_random_numbers_go_on_as_if_nothing_had_been_trained(act, monkeypatch):
    """Else every model that is built after a run would start with the same weights."""
    monkeypatch.setattr(sys.modules[__name__], "make_model", lambda: CausalLM(tiny()))
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        CausalLM(tiny())  # the model that is trained draws its weights, as it always did
        wanted = torch.rand(4)
        torch.manual_seed(seed)
        act()
        assert torch.equal(torch.rand(4), wanted)
        states.append(torch.get_rng_state())
    assert not torch.equal(*states), "models of two seeds would start alike"


def test_training_twice_in_a_row_gives_what_each_gives_alone():
    """What a step draws follows from its number, whatever was drawn before."""
    alone = make_model()
    run(alone, text(), quick())
    torch.manual_seed(5)
    torch.rand(3)
    again = make_model()
    run(make_model(), text(), quick(steps=2))
    run(again, text(), quick())
    torch.testing.assert_close(alone.state_dict(), again.state_dict(), rtol=0, atol=0)


def test_a_run_on_a_cpu_seeds_no_gpu(monkeypatch):
    """Not even one that nobody has used yet: its first numbers would be those of the last step."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    model, batches = make_model(), text()
    seeded.clear()
    run(model, batches, quick())
    assert not seeded
