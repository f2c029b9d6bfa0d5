"""Attention over keys that were cut into parts equals attention over all of them."""

import pytest
import torch
from torch.testing import assert_close

from transformer_lib.generation.fast.decode_kernel import MOST_PARTS, count_parts
from transformer_lib.layers import split_attention as split
from transformer_lib.layers.attention import attention
from transformer_lib.layers.masks import causal_mask

S = 11


def random_inputs(seed=0, dtype=torch.float64, t=3):
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, 4, t, 8), (2, 4, S, 8), (2, 4, S, 5)
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]


def test_parts_of_the_keys_give_what_all_keys_give():
    q, k, v = random_inputs()
    bias = random_inputs(seed=1)[0][..., :1] * torch.arange(S)
    for mask in (None, causal_mask(3, S)):
        wanted = attention(q, k, v, mask, bias=bias, scale=0.3)[0]
        for n_parts in range(1, S + 1):
            found = split.split_attention(q, k, v, mask, n_parts=n_parts, bias=bias, scale=0.3)
            assert_close(found, wanted)


def test_a_part_without_an_allowed_key_adds_nothing():
    q, k, v = random_inputs()
    mask = (
        torch.arange(S)[None] >= 7
    )  # the first of three parts, and most of the second, are hidden
    assert_close(split.split_attention(q, k, v, mask, n_parts=3), attention(q, k, v, mask)[0])
    nothing = torch.zeros(1, S, dtype=torch.bool)
    assert not split.split_attention(q, k, v, nothing, n_parts=3).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_scores_far_apart_do_not_overflow(dtype):
    q, k, v = random_inputs(dtype=dtype)
    wanted = attention(50 * q.double(), k.double(), v.double())[0]
    found = split.split_attention(50 * q, k, v, n_parts=4)
    assert found.isfinite().all()
    if dtype == torch.float32:
        assert_close(found.double(), wanted, rtol=1e-3, atol=1e-3)


def test_the_order_of_parts_does_not_matter():
    q, k, v = random_inputs(dtype=torch.float64)
    scores = (q @ k.mT).tensor_split(4, dim=-1)
    cuts = zip(scores, v.tensor_split(4, dim=-2), strict=True)
    parts = [split._attend_to_part(*cut) for cut in cuts]
    assert_close(split.join_parts(parts[::-1]), split.join_parts(parts))


@pytest.mark.parametrize(
    ("max_len", "n_programs", "n_processors", "n_parts"),
    [
        (192, 8, 132, 1),  # little room: to join would take longer
        (320, 8, 132, 5),
        (16_640, 8, 132, 33),  # two programs for each processor
        (16_640, 128, 132, 2),
        (16_640, 768, 132, 1),  # programs enough without parts
        (16_640, 1, 132, MOST_PARTS),
        (16_640, 8, 1, 1),  # a GPU about which nothing is known
    ],
)
def test_parts_are_as_many_as_processors_have_nothing_to_do(
    max_len, n_programs, n_processors, n_parts
):
    assert count_parts(max_len, n_programs, n_processors) == n_parts
