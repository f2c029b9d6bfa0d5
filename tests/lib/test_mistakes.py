"""Every wrong Transformer of the catalogue is caught by the test that it names."""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import pkgutil
from unittest import mock

import pytest
import torch
from hypothesis import Phase, settings
from omissions import fail_on
from tiny_models import make, random_ids, tiny

from transformer_book.mistakes import MISTAKES, mistake
from transformer_lib.layers import attention
from transformer_lib.models.language_models import CausalLM

REQUIRED = 50  # the catalogue may grow, not shrink
ALSO_CAUGHT = {  # tests that are not the best ones to name, but must be able to fail too
    "test_properties.py::test_a_translation_is_the_same_alone_and_in_a_batch": (
        "padding-ignored-in-encoder"
    ),
    "test_properties.py::test_a_prefix_is_seen_by_all_and_the_rest_causally": "mask-after-softmax",
    "test_properties.py::test_a_sequence_of_padding_alone_harms_no_model": (
        "minus-infinity-everywhere"
    ),
    "test_properties.py::test_without_positions_an_encoder_does_not_know_the_order": (
        "merge-without-transpose"
    ),
    "test_properties.py::test_an_encoder_with_alibi_cannot_tell_forwards_from_backwards": (
        "positions-not-added"
    ),
    "test_routes.py::test_a_cache_keeps_left_padding_apart": "left-padding-counted",
    "test_routes.py::test_a_cache_keeps_what_the_encoder_said": "cache-position-forgotten",
    "test_routes.py::test_both_pairings_of_rope_give_one_model": "rope-on-values",
    "test_routes.py::test_an_attention_layer_drops_weights_and_keeps_their_mean": (
        "attention-dropout-left-on"
    ),
    "test_routes.py::test_encoder_and_decoder_apart_equal_the_two_together": "dropout-left-on",
}


def find_test(node):
    """The test function of a name like ``file::function``; pytest has ``tests/lib`` on the path."""
    file, _, function = node.partition("::")
    said = f"a mistake is caught by {node}, but there is no"
    remedy = "write it, or name another test in transformer_book/mistakes"
    if importlib.util.find_spec(file.removesuffix(".py")) is None:
        fail_on([f"{said} tests/lib/{file}: {remedy}"])
    module = importlib.import_module(file.removesuffix(".py"))
    if not hasattr(module, function):
        fail_on([f"{said} {function} in tests/lib/{file}: {remedy}"])
    return getattr(module, function)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("test_nothing.py::test_a", "there is no tests/lib/test_nothing.py: write it, or name"),
        ("test_mistakes.py::test_a", "there is no test_a in tests/lib/test_mistakes.py: write it"),
    ],
)
def test_a_mistake_whose_test_is_forgotten_is_told(node, said):
    with pytest.raises(pytest.fail.Exception, match=said):
        find_test(node)


def without_shrinking(test):
    """Let hypothesis stop at the first counterexample; that there is one is all that is asked."""
    own = "_hypothesis_internal_use_settings"
    if not hasattr(test, own):
        return contextlib.nullcontext()
    phases = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
    return mock.patch.object(test, own, settings(getattr(test, own), phases=phases))


def fails(test):
    """Whether a test notices by an assertion; mistakes are silent, so no crash gives them away."""
    try:
        with without_shrinking(test):
            test()
    except AssertionError:
        return True
    except BaseExceptionGroup as failures:  # hypothesis may report several examples at once
        return failures.split(AssertionError)[1] is None
    return False


@functools.cache
def passes_on_the_readable_path(test):
    """Whether a test passes with everything as during a mistake, except for the mistake itself."""
    with mock.patch.object(attention.MultiHeadAttention, "fused", False):
        test()
    return True


@pytest.mark.usefixtures("unchecked_shapes")  # twice as fast; wrong versions are not checked anyway
@pytest.mark.parametrize("name", MISTAKES)
def test_the_test_named_catches_the_mistake(name):
    test = find_test(MISTAKES[name].caught_by)
    assert passes_on_the_readable_path(test)
    with mistake(name):
        assert fails(test)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("node", ALSO_CAUGHT)
def test_other_tests_can_fail_too(node):
    with mistake(ALSO_CAUGHT[node]):
        assert fails(find_test(node))


def test_every_property_is_known_to_be_able_to_fail():
    named = {entry.caught_by for entry in MISTAKES.values()} | set(ALSO_CAUGHT)
    properties = importlib.import_module("test_properties")
    tests = {f"test_properties.py::{name}" for name in vars(properties) if name.startswith("test_")}
    remedy = "name it as caught_by in transformer_book/mistakes, or in ALSO_CAUGHT of this file"
    fail_on(
        f"no mistake is known to make {node} fail: {remedy}, with the mistake that it catches"
        for node in sorted(tests - named)
    )


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_mistake_on_one_path_only_shows_between_the_two():
    test = find_test("test_routes.py::test_fused_and_readable_attention_agree_in_whole_models")
    with mock.patch.object(attention, "attention", MISTAKES["no-scale"].function):
        assert fails(test)


def originals():
    """Everything that any mistake replaces, as it is now."""
    targets = {target for entry in MISTAKES.values() for target in entry.targets}
    targets.add("layers.attention.MultiHeadAttention.fused")
    return {target: pkgutil.resolve_name(f"transformer_lib.{target}") for target in sorted(targets)}


def test_every_mistake_replaces_something_that_exists_and_takes_it_back():
    before = originals()  # raises if the library has renamed one
    for name, entry in MISTAKES.items():
        with mistake(name) as made:
            assert made is entry
            during = originals()
        changed = {target for target in before if during[target] is not before[target]}
        assert changed == {*entry.targets, "layers.attention.MultiHeadAttention.fused"}
        assert all(during[target] is entry.function for target in entry.targets)
        assert originals() == before


def test_a_mistake_is_taken_back_after_an_error_too():
    before = originals()
    with pytest.raises(KeyError), mistake("no-scale"):
        raise KeyError
    assert originals() == before


def test_a_stack_has_all_its_parts_after_a_mistake():
    model, ids = make(CausalLM, tiny(norm_position="pre")), random_ids(2, 5)
    parts, expected = list(model.state_dict()), model(ids)
    for name in ("no-final-norm", "one-block-repeated"):
        with mistake(name):
            assert not torch.allclose(model(ids), expected)
            with pytest.raises(ValueError, match="ids has 99"):
                model(torch.tensor([[99]]))
        assert list(model.state_dict()) == parts
        assert model(ids).equal(expected)


def test_no_two_mistakes_are_the_same():
    patches = {}
    for name, entry in MISTAKES.items():
        code = inspect.unwrap(entry.function).__code__
        patch = entry.targets, code.co_code, code.co_consts[1:], code.co_names
        assert patch not in patches, f"{name} is {patches[patch]}"
        patches[patch] = name
    assert len(patches) >= REQUIRED


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_described_in_one_line_each(name):
    entry = MISTAKES[name]
    assert entry.name == name
    for text in (entry.wrong, entry.symptom):
        assert text.endswith(".")
        assert len(text.splitlines()) == 1
    assert entry.source.startswith("def _")
    assert '"""' not in entry.source
    compile(entry.source, name, "exec")


def test_an_unknown_mistake_is_refused_before_anything_is_patched():
    before = originals()
    with pytest.raises(ValueError, match=r"name='no-skale' must be one of 'no-scale', "):
        mistake("no-skale")
    assert originals() == before


def test_wrong_versions_call_the_right_ones_while_they_are_replaced():
    with mistake("no-scale"):
        x = torch.randn(1, 2, 3, 4)
        output, weights = attention.attention(x, x, x)
        torch.testing.assert_close(weights, (x @ x.mT).softmax(dim=-1))
        torch.testing.assert_close(output, weights @ x)
