"""One answer to "has anybody touched this module?", with a test for each thing that it sees."""

import functools

import pytest
import torch
from recording_changes import PROMPT, lively_model
from torch import nn
from torch.nn.utils import parametrize, prune

from transformer_lib.core import fingerprint
from transformer_lib.core.fingerprint import SEEN, Fingerprint, Modules
from transformer_lib.generation.decoding_step import DecodingStep
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.generate import generate, stream
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.feedforward import FeedForward
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM


def block_of(model):
    return model.decoder.stack.blocks[0]


def another_class(model, _):
    class Loud(FeedForward):
        pass

    block_of(model).feed_forward.__class__ = Loud


def another_forward_of_all(_, patch):
    patch.setattr(MultiHeadAttention, "forward", lambda self, x, *_, **__: x)


def another_method_of_all(_, patch):
    patch.setattr(MultiHeadAttention, "merge", lambda self, heads: heads)


def another_call_of_all(_, patch):
    patch.setattr(nn.Module, "__call__", lambda self, *args, **own: self.forward(*args, **own))


def its_own_forward(model, _):
    block_of(model).forward = lambda x, *_, **__: x


def a_forward_for_a_setting(model, _):
    block = block_of(model)
    del block.norm_position  # so that there are as many attributes as before
    block.forward = lambda x, *_, **__: x


def its_own_method(model, _):
    block_of(model).attention.attend = lambda q, *_, **__: q


def a_hook(register):
    return lambda model, _: getattr(block_of(model), register)(lambda *_: None)


def a_hook_for_all(model, patch):
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    patch.setattr(handle, "remove", handle.remove)  # undone below
    model.handle_of_the_test = handle


def compiled(model, _):
    block_of(model).compile(backend="eager")


def parametrised(model, _):
    parametrize.register_parametrization(block_of(model).attention.query, "weight", nn.Identity())


def pruned(model, _):
    prune.l1_unstructured(block_of(model).attention.query, "weight", 0.5)


def another_part(model, _):
    block_of(model).feed_forward.down = nn.Linear(128, 32)


def one_weight_more(model, _):
    block_of(model).feed_forward.register_buffer("more", torch.ones(2))


def another_weight(model, _):
    layer = block_of(model).feed_forward.down
    layer.weight = nn.Parameter(layer.weight.detach().clone())


def a_weight_elsewhere(model, _):
    weight = block_of(model).feed_forward.down.weight
    weight.data = weight.data.clone()


def other_numbers(model, _):
    model.double()


def another_setting(model, _):
    block_of(model).attention.scale = 5.0


def a_setting_of_all(_, patch):
    patch.setattr(MultiHeadAttention, "fused", False)


def another_function(model, _):
    block_of(model).feed_forward.activation = torch.tanh


def one_setting_more(model, _):
    block_of(model).a_new_one = 1


def one_setting_less(model, _):
    del block_of(model).attention.scale


CHANGES = {
    "class": [another_class],
    "functions": [
        another_forward_of_all, another_method_of_all, another_call_of_all, a_setting_of_all,
    ],
    "own": [
        its_own_forward, a_forward_for_a_setting, its_own_method, compiled, one_setting_more,
        one_setting_less,
    ],
    "hooks": [
        *map(a_hook, ("register_forward_hook", "register_forward_pre_hook")),
        *map(a_hook, ("register_full_backward_hook", "register_full_backward_pre_hook")),
        a_hook_for_all, pruned,
    ],
    "parts": [another_part, parametrised],
    "weights": [one_weight_more, another_weight, a_weight_elsewhere, other_numbers],
    "callables": [another_function],
    "settings": [another_setting],
}  # fmt: skip
CASES = [(kind, change) for kind, changes in CHANGES.items() for change in changes]
# These change what is done, and are no reason to look away from a module.
STAYS_PLAIN = {
    a_setting_of_all, one_setting_more, one_setting_less, another_part, one_weight_more,
    another_weight, a_weight_elsewhere, other_numbers, another_function, another_setting,
}  # fmt: skip


@pytest.fixture
def patch():
    with pytest.MonkeyPatch.context() as context:
        yield context
    nn.modules.module._global_forward_hooks.clear()


def test_every_thing_that_it_sees_is_tried():
    assert {*CHANGES, "context"} == SEEN.keys()


@pytest.mark.parametrize(("kind", "change"), CASES)
def test_it_sees(kind, change, patch):
    model = lively_model()
    before = Fingerprint(model.modules(), to_compare=True)
    probe = SEEN[kind](Modules(model.modules()))
    assert before.is_plain
    assert before.holds()
    change(model, patch)
    assert not probe.holds(), "the probe that is there for it must see it without the others"
    assert not before.holds(settings=True)
    if kind != "settings":
        assert not before.holds()
    assert Fingerprint(model.modules()).is_plain == (change in STAYS_PLAIN)


@pytest.mark.parametrize("context", [torch.inference_mode, lambda: torch.autocast("cpu")])
def test_it_sees_a_context(context):
    before = Fingerprint(lively_model().modules(), to_compare=True)
    with context():
        assert not before.holds()
    assert before.holds()


def test_why_a_slow_path_is_taken_can_be_read_in_the_log(caplog):
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *_: None)
    layer.forward = lambda x: x
    with caplog.at_level("DEBUG", logger="transformer_lib"):
        assert Fingerprint([layer]).touched == ["own", "hooks"]
    assert [record.getMessage() for record in caplog.records] == [
        "a slow path is taken: own, hooks touched"
    ]


def test_values_and_modes_are_not_its_business():
    model = lively_model()
    before = Fingerprint(model.modules(), to_compare=True)
    with torch.no_grad():
        block_of(model).feed_forward.down.weight.mul_(2)
    model.load_state_dict(model.state_dict())
    model.eval()
    assert before.holds()


def test_what_was_undone_holds_again(patch):
    before = Fingerprint(lively_model().modules(), to_compare=True)
    with pytest.MonkeyPatch.context() as inner:
        another_forward_of_all(None, inner)
        assert not before.holds()
    assert before.holds()


def test_a_function_that_was_replaced_before_anybody_looked_is_seen(patch):
    """Its name tells: there is nothing yet to compare it with."""
    patch.setattr(fingerprint, "_FUNCTIONS", type(fingerprint._FUNCTIONS)())
    another_forward_of_all(None, patch)
    assert not Fingerprint(lively_model().modules()).is_untouched


def test_a_class_of_others_is_not_plain_but_can_be_watched():
    class Mine(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer = Mine(2, 2)
    found = Fingerprint([layer], to_compare=True)
    assert not found.is_plain
    assert found.is_untouched
    assert found.holds()
    layer.weight = nn.Linear(2, 2).weight
    assert not found.holds()


# --- who asks it: G4 and G7 of the second review --------------------------------------------------


def answers(model, **more):
    return generate(model, PROMPT, max_new_tokens=8, **more)


def by_the_book(model):
    """Token by token from whole forward passes."""
    ids = PROMPT
    with torch.no_grad():
        for _ in range(8):
            ids = torch.cat((ids, model(ids)[:, -1].argmax(-1, keepdim=True)), 1)
    return ids


@pytest.fixture
def uncompiled(fresh_compiler, monkeypatch):
    """Trace what is compiled, and run it as it was traced: no C++ compiler is needed."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


@pytest.mark.usefixtures("uncompiled")
def test_a_compiled_decoder_sees_another_function():
    model = lively_model().eval()
    fast = CompiledDecoder(model, max_len=20)
    first = answers(fast)
    for block in model.decoder.stack.blocks:
        block.feed_forward.activation = torch.cos
    assert torch.equal(answers(fast), by_the_book(model))
    assert not torch.equal(first, by_the_book(model))


@pytest.mark.usefixtures("uncompiled")
def test_a_compiled_decoder_sees_autocast():
    model = lively_model().eval()
    fast = CompiledDecoder(model, max_len=20)
    answers(fast)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(answers(fast), answers(CompiledDecoder(model, max_len=20)))
    assert torch.equal(answers(fast), by_the_book(model))


@pytest.mark.usefixtures("uncompiled")
def test_a_compiled_decoder_goes_on_outside_of_inference_mode():
    model = lively_model().eval()
    fast = CompiledDecoder(model, max_len=20)
    with torch.inference_mode():
        inside = answers(fast)
    assert torch.equal(answers(fast), inside)


@pytest.mark.parametrize("part", [lambda model: model, lambda model: model.body])
def test_hooks_on_a_seq2seq_model_are_called(part):
    model = lively_model(Seq2SeqLM).eval()
    expected, heard = answers(model, source=PROMPT), []
    part(model).register_forward_hook(lambda _module, _inputs, out: heard.append(out.shape))
    assert torch.equal(answers(model, source=PROMPT), expected)
    assert len(heard) == 8


def test_what_a_hook_on_a_seq2seq_model_returns_counts():
    model = lively_model(Seq2SeqLM).eval()
    model.register_forward_hook(lambda _module, _inputs, out: -out)
    ids = PROMPT
    with torch.no_grad():
        for _ in range(8):
            ids = torch.cat((ids, model(PROMPT, ids)[:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(answers(model, source=PROMPT), ids)


def test_a_seq2seq_model_with_a_hook_takes_no_cache_of_the_caller():
    model = lively_model(Seq2SeqLM).eval()
    model.register_forward_hook(lambda *_: None)
    mask = torch.ones_like(PROMPT, dtype=torch.bool)
    with pytest.raises(TypeError, match="it has hooks or a forward of its own, and takes neither"):
        answers(model, source=PROMPT, prompt_mask=mask)


def test_a_forward_put_into_the_class_counts(patch):
    model, forward = lively_model().eval(), CausalLM.forward
    first = answers(model)
    patch.setattr(CausalLM, "forward", lambda self, *args, **own: -forward(self, *args, **own))
    assert torch.equal(answers(model), by_the_book(model))
    assert not torch.equal(answers(model), first)


def test_a_hook_on_the_output_sees_what_it_sees_in_a_forward_pass():
    model, heard = lively_model().eval(), []
    model.output.register_forward_hook(lambda _module, _inputs, out: heard.append(out.shape))
    generate(model, PROMPT, max_new_tokens=1)
    with torch.no_grad():
        model(PROMPT)
    assert heard == [(2, 3, 50), (2, 3, 50)]


@pytest.mark.parametrize("name", ["output", "decoder"])
def test_a_part_exchanged_between_two_tokens_counts(name):
    model, other = lively_model().eval(), lively_model(n_layers=2).eval()
    with torch.no_grad():
        for parameter in getattr(other, name).parameters():
            parameter.mul_(-1.5)
    tokens = stream(model, PROMPT, max_new_tokens=8, use_cache=False)
    ids = torch.cat((PROMPT, next(tokens)[:, None]), 1)
    setattr(model, name, getattr(other, name))
    with torch.no_grad():
        expected = model(ids)[:, -1].argmax(-1)
    assert torch.equal(next(tokens), expected)


def test_whoever_listens_to_all_modules_is_heard_by_a_step():
    model, heard = lively_model().eval(), []
    handle = nn.modules.module.register_module_forward_hook(
        functools.partial(lambda heard, module, _inputs, _out: heard.append(type(module)), heard)
    )
    try:
        with torch.no_grad():
            DecodingStep(model, PROMPT, 2)(PROMPT)
    finally:
        handle.remove()
    assert CausalLM in heard
