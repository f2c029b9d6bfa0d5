"""The plain values: masks, shape checks, configuration, and the influence measurement."""

import dataclasses
import json
import os

import numpy as np
import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from shape_checks import checked as with_checks
from torch import Tensor
from torch.testing import assert_close

from transformer_lib.core import shapes
from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.attention import AttentionHead, attention
from transformer_lib.layers.masks import causal_mask, padding_mask
from transformer_lib.tracing.watch import influence

# The quick check, and tests on a GPU, run without the checks of shapes; `make test` with them.
checked = pytest.mark.skipif("JAXTYPING_DISABLE" in os.environ, reason="shapes are not checked")


@pytest.mark.parametrize(("t", "s"), [(1, 1), (4, 4), (1, 6), (3, 5)])
def test_causal_mask_lets_query_i_see_up_to_its_own_place(t, s):
    mask = causal_mask(t, s)
    for i in range(t):
        for j in range(s):
            assert mask[i, j] == (j <= i + s - t)


def test_causal_mask_of_the_last_query_equals_the_last_row_of_the_whole():
    assert torch.equal(causal_mask(2, 7), causal_mask(7)[-2:])


@pytest.mark.parametrize(("t", "s", "message"), [(0, 3, "n_queries=0"), (4, 3, "larger than")])
def test_causal_mask_refuses_lengths_that_make_no_sense(t, s, message):
    with pytest.raises(ValueError, match=message):
        causal_mask(t, s)


def test_padding_mask_hides_what_is_past_each_length():
    mask = padding_mask(torch.tensor([2, 0, 3]), 3)
    assert mask.shape == (3, 1, 1, 3)
    assert mask[:, 0, 0].tolist() == [[True, True, False], [False] * 3, [True] * 3]


@pytest.mark.parametrize("lengths", [[4, 1], [-1, 2]])
def test_padding_mask_names_the_length_that_does_not_fit(lengths):
    with pytest.raises(ValueError, match=r"lengths has \[(4|-1)\]; .* n_keys=3"):
        padding_mask(torch.tensor(lengths), 3)


def test_masks_combine_with_and():
    both = causal_mask(3) & padding_mask(torch.tensor([3, 2]), 3)
    assert both.shape == (2, 1, 3, 3)
    assert both[1, 0].tolist() == [[True, False, False], [True, True, False], [True, True, False]]


def test_describe_names_each_dimension():
    assert shapes.describe(torch.zeros(2, 1, 6), "B 1 T") == "B=2 1 T=6"
    with pytest.raises(ValueError, match="letters names 2 dimensions"):
        shapes.describe(torch.zeros(2, 3, 4), "B T")


@checked
def test_wrong_shapes_are_caught_by_the_annotations_in_the_test_run():
    with pytest.raises(TypeCheckError):
        attention(torch.ones(2, 4), torch.ones(3, 5), torch.ones(3, 4))


def turned(x: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    return x.mT


def paired(x: Float[Tensor, "B T"], y: Float[Tensor, "B S"]) -> Float[Tensor, "T S"]:
    return x.mT @ y


def spread(x: Float[Tensor, " B"], n: int) -> Float[Tensor, "B {n}"]:
    return x[:, None].expand(-1, n + 1)


def named(x: str) -> int:
    return x  # type: ignore[return-value]


@checked
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (turned, [torch.ones(2)]),
        (turned, [torch.ones(2, 3, dtype=torch.long)]),
        (turned, [torch.ones(2, 3)]),  # the result is of another shape
        (paired, [torch.ones(2, 3), torch.ones(4, 3)]),
        (spread, [torch.ones(2), 3]),
        (named, [3]),
        (named, ["3"]),
    ],
)
def test_arguments_and_results_are_checked_in_the_test_run(function, arguments):
    found = with_checks(function, typechecker=beartype)
    with pytest.raises(TypeCheckError):
        found(*arguments)


@checked
def test_what_is_right_passes_the_checks_of_the_test_run():
    assert with_checks(turned, typechecker=beartype)(torch.ones(2, 2)).shape == (2, 2)
    found = with_checks(paired, typechecker=beartype)
    assert found(torch.ones(2, 3), torch.ones(2, 5)).shape == (3, 5)
    assert found(torch.ones(3, 2), torch.ones(3, 4)).shape == (2, 4)  # B of each call is its own


def test_defaults_are_the_base_model_of_2017():
    config = TransformerConfig()
    assert (config.d_model, config.n_heads, config.d_head, config.ffn_width) == (512, 8, 64, 2048)
    assert (config.n_layers, config.norm_position, config.position) == (6, "post", "sinusoidal")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_model": 100, "n_heads": 12}, "n_heads=12 must divide d_model=100"),
        ({"n_heads": 8, "n_kv_heads": 3}, "n_kv_heads=3 must divide n_heads=8"),
        ({"d_model": 0}, "d_model=0 must be a whole number"),
        ({"d_model": 512.0}, "d_model=512.0 must be a whole number"),
        ({"n_layers": True}, "n_layers=True must be a whole number"),
        ({"d_ff": -1}, "d_ff=-1 must be a whole number"),
        ({"window": 0}, "window=0 must be a whole number"),
        ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and less than 1"),
        ({"dropout": -0.1}, "dropout=-0.1"),
        ({"norm_eps": 0.0}, "norm_eps=0.0 must be a number greater than 0"),
        ({"position": "rotary"}, "position='rotary' must be one of 'sinusoidal', 'learned'"),
        ({"norm": "batch"}, "norm='batch' must be one of"),
        ({"norm_position": "middle"}, "norm_position='middle' must be one of"),
        ({"activation": "tanh"}, "activation='tanh' must be one of"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_config_names_what_does_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**change)


@pytest.mark.usefixtures("unchecked_shapes")
def test_whole_numbers_of_numpy_become_those_of_python():
    config = TransformerConfig(d_model=np.int64(64), n_heads=np.int16(4), n_kv_heads=np.uint8(2))
    assert config == TransformerConfig(d_model=64, n_heads=4, n_kv_heads=2)
    assert all(type(n) is int for n in (config.d_model, config.n_heads, config.n_kv_heads))
    assert json.loads(json.dumps(dataclasses.asdict(config)))["d_model"] == 64


def test_config_cannot_be_changed_afterwards():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig().d_model = 3


def test_influence_tells_mixing_from_working_alone():
    torch.manual_seed(0)
    x = torch.randn(1, 5, 8)
    per_token = influence(torch.nn.Linear(8, 3), x)
    assert_close(per_token, per_token.diagonal().diag())
    assert (influence(torch.nn.LayerNorm(8), x).diagonal() > 0.01).all()
    head = AttentionHead(8, 8)
    assert (influence(lambda y: head(y)[0], x) > 0).all()
    causal = influence(lambda y: head(y, mask=causal_mask(5))[0], x)
    assert (causal.triu(diagonal=1) == 0).all()
    assert (causal.tril() > 0)[causal_mask(5)].all()
    assert (influence(lambda y: y + y.mean(dim=(1, 2), keepdim=True), x) > 0.01).all()


@checked
def test_influence_wants_one_sequence():
    with pytest.raises(TypeCheckError):
        influence(torch.tanh, torch.zeros(2, 3, 4))


@pytest.mark.usefixtures("unchecked_shapes")
def test_influence_says_what_it_wants():
    with pytest.raises(ValueError, match=r"x has shape \(2, 3, 4\); expected one sequence"):
        influence(torch.tanh, torch.zeros(2, 3, 4))
