"""attention: equal to PyTorch, to a loop, and to itself along the fused path."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from transformer_lib.layers.attention import AttentionHead, MultiHeadAttention, attention
from transformer_lib.layers.caches.kv_cache import LayerCache
from transformer_lib.layers.fused_attention import fused_attention
from transformer_lib.layers.masks import causal_mask, padding_mask, query_key_distances
from transformer_lib.layers.positions import AlibiBias, rope_angles, rotate

SHAPES = {  # q batch, T, S, Dk, Dv
    "one matrix": ((), 3, 5, 4, 4),
    "batch": ((2,), 3, 5, 4, 6),
    "batch and heads": ((2, 4), 7, 5, 8, 3),
    "one query": ((2, 4), 1, 9, 8, 8),
    "one key": ((1,), 4, 1, 2, 2),
}


def random_inputs(batch, t, s, k, dv, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*batch, *shape, generator=generator, dtype=dtype)

    return draw(t, k), draw(s, k), draw(s, dv)


def attention_by_loop(q, k, v, mask=None):
    """The formula, one query and one key at a time, with Python numbers."""
    rows = []
    for i, query in enumerate(q.tolist()):
        allowed = [j for j in range(len(k)) if mask is None or mask[i, j]]
        scores = [
            sum(a * b for a, b in zip(query, k[j].tolist(), strict=True)) / math.sqrt(len(query))
            for j in allowed
        ]
        total = sum(math.exp(score) for score in scores)
        rows.append(
            [
                sum(
                    math.exp(s) / total * v[j, c].item()
                    for s, j in zip(scores, allowed, strict=True)
                )
                for c in range(v.shape[1])
            ]
        )
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("function", [lambda *a: attention(*a)[0], fused_attention])
def test_equals_torch(name, function):
    q, k, v = random_inputs(*SHAPES[name])
    expected = F.scaled_dot_product_attention(q, k, v)
    assert_close(function(q, k, v), expected)


def test_equals_torch_in_float32_within_the_stated_tolerance():
    q, k, v = random_inputs((2, 4), 7, 9, 16, 16, dtype=torch.float32)
    output, _ = attention(q, k, v)
    assert_close(output, F.scaled_dot_product_attention(q, k, v), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_formula_written_as_a_loop(masked):
    q, k, v = random_inputs((), 4, 4, 3, 2)
    mask = causal_mask(4) if masked else None
    output, _ = attention(q, k, v, mask)
    assert_close(output, attention_by_loop(q, k, v, mask))


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_equal_torch(masked):
    mask = causal_mask(5, 6) if masked else None
    ours = [t.requires_grad_() for t in random_inputs((2, 3), 5, 6, 4, 7)]
    theirs = [t.detach().clone().requires_grad_() for t in ours]
    target = torch.randn(
        2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    (attention(*ours, mask)[0] * target).sum().backward()
    (F.scaled_dot_product_attention(*theirs, attn_mask=mask) * target).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.grad, b.grad)


def test_gradcheck_by_finite_differences():
    inputs = [t.requires_grad_() for t in random_inputs((2,), 3, 4, 2, 3)]
    mask = padding_mask(torch.tensor([4, 2]), 4)[:, 0]
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, mask), inputs)


@given(
    t=st.integers(1, 6), s=st.integers(1, 6), width=st.integers(1, 5), seed=st.integers(0, 10_000)
)
@settings(max_examples=40, deadline=None)
def test_rows_are_probabilities_and_outputs_stay_inside_the_values(t, s, width, seed):
    q, k, v = random_inputs((2,), t, s, width, width, seed=seed)
    output, weights = attention(q, k, v)
    assert_close(weights.sum(dim=-1), torch.ones(2, t, dtype=torch.float64))
    assert (weights > 0).all()
    assert (output <= v.amax(dim=-2, keepdim=True) + 1e-12).all()
    assert (output >= v.amin(dim=-2, keepdim=True) - 1e-12).all()


def test_keys_and_values_may_be_reordered_together():
    q, k, v = random_inputs((2,), 4, 6, 3, 5)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert_close(attention(q, k[:, order], v[:, order])[0], attention(q, k, v)[0])


def test_zero_scores_give_the_plain_mean():
    _, k, v = random_inputs((), 1, 5, 4, 3)
    output, weights = attention(torch.zeros(1, 4, dtype=torch.float64), k, v)
    assert_close(weights, torch.full((1, 5), 0.2, dtype=torch.float64))
    assert_close(output[0], v.mean(dim=0))


def test_scale_can_be_set():
    q, k, v = random_inputs((), 2, 3, 4, 4)
    expected = F.scaled_dot_product_attention(q, k, v, scale=0.3)
    assert_close(attention(q, k, v, scale=0.3)[0], expected)
    assert_close(fused_attention(q, k, v, scale=0.3), expected)


def test_masked_keys_have_exactly_no_weight_and_no_influence():
    q, k, v = random_inputs((2, 2), 5, 5, 4, 4)
    mask = causal_mask(5) & padding_mask(torch.tensor([5, 3]), 5)
    output, weights = attention(q, k, v, mask)
    assert (weights[~mask.expand_as(weights)] == 0).all()
    changed = v.clone()
    changed[1, :, 3:] = 1e6  # the padding of the second sequence
    assert_close(attention(q, k, changed, mask)[0][1], output[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_query_without_any_key_gives_zeros_and_clean_gradients_in_both_paths(dtype):
    q, k, v = (t.to(dtype).requires_grad_() for t in random_inputs((1,), 3, 3, 4, 4))
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    output, weights = attention(q, k, v, mask)
    assert (weights[0, 1] == 0).all()
    for result in (output, fused_attention(q, k, v, mask)):
        assert (result[0, 1] == 0).all()
        gradients = torch.autograd.grad(result.sum(), (q, k, v), retain_graph=True)
        assert all(gradient.isfinite().all() for gradient in gradients)
    assert_close(
        output,
        fused_attention(q, k, v, mask),
        rtol=2e-2 if dtype == torch.bfloat16 else 1e-5,
        atol=1e-2 if dtype == torch.bfloat16 else 1e-6,
    )


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_no_nan_arises_on_the_way_through_a_query_without_any_key():
    q, k, v = (t.requires_grad_() for t in random_inputs((1,), 2, 3, 4, 4))
    mask = torch.tensor([[True, False, True], [False, False, False]])
    with torch.autograd.detect_anomaly():  # raises at the first NaN of the backward pass
        output, weights = attention(q, k, v, mask)
        (output.sum() + weights.square().sum()).backward()


@pytest.mark.parametrize("bias", [None, torch.ones(2, 3, dtype=torch.float64)])
def test_no_kernel_is_ever_given_a_query_without_any_key(monkeypatch, bias):
    """What a kernel makes of such a row differs between versions and devices."""
    given = []
    kernel = F.scaled_dot_product_attention

    def spy(*args, attn_mask=None, **kwargs):
        given.append(attn_mask)
        return kernel(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    fused_attention(*random_inputs((1,), 2, 3, 4, 4), mask, bias=bias)
    allowed = given[0] if bias is None else given[0] > -math.inf
    assert allowed.any(dim=-1).all()


def test_a_forbidden_key_takes_no_weight_however_low_the_allowed_scores_are():
    q, k = torch.full((1, 1), 1e3), torch.tensor([[-1e3], [-1e3], [1e3]])
    _, weights = attention(q, k, torch.ones(3, 1), torch.tensor([[True, True, False]]))
    assert_close(weights, torch.tensor([[0.5, 0.5, 0.0]]))


def test_large_scores_do_not_overflow():
    q = torch.full((1, 4), 1e4)
    k = torch.stack([torch.full((4,), 1e4), torch.full((4,), -1e4)])
    output, weights = attention(q, k, torch.eye(2))
    assert_close(weights, torch.tensor([[1.0, 0.0]]))
    assert output.isfinite().all()


@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 6), (2, 6), (6, 6)])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_causal_flag_is_the_causal_mask_in_both_paths(t, s, padded, biased):
    q, k, v = random_inputs((2, 1), t, s, 4, 4)
    mask = padding_mask(torch.tensor([s, max(1, s - 2)]), s) if padded else None
    bias = random_inputs((), t, s, s, s)[0] if biased else None
    explicit = causal_mask(t, s) if mask is None else mask & causal_mask(t, s)
    expected, _ = attention(q, k, v, explicit, bias=bias)
    assert_close(attention(q, k, v, mask, bias=bias, causal=True)[0], expected)
    assert_close(fused_attention(q, k, v, mask, bias=bias, causal=True), expected)


def test_a_bias_is_added_to_the_scaled_scores():
    q, k, v = random_inputs((2, 3), 4, 5, 6, 6)
    bias = random_inputs((), 4, 1, 5, 5)[0]
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    assert_close(attention(q, k, v, bias=bias)[0], expected)
    assert_close(fused_attention(q, k, v, bias=bias), expected)


def test_a_query_without_any_key_gives_zeros_with_a_bias_too():
    q, k, v = (t.requires_grad_() for t in random_inputs((1,), 2, 3, 4, 4))
    mask = torch.tensor([[True, False, True], [False, False, False]])
    bias = torch.ones(2, 3, dtype=torch.float64)
    for output in (
        attention(q, k, v, mask, bias=bias)[0],
        fused_attention(q, k, v, mask, bias=bias),
    ):
        assert (output[0, 1] == 0).all()
        gradients = torch.autograd.grad(output.sum(), (q, k, v), retain_graph=True)
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("scale", [None, 1.0])
def test_the_weights_of_a_module_are_those_it_used(scale):
    torch.manual_seed(0)
    attend = MultiHeadAttention(8, 2, scale=scale, pairing="split").double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    options = {"angles": rope_angles(torch.arange(5), 4), "bias": torch.randn(2, 5, 5).double()}
    output, weights = attend.with_weights(x, causal=True, **options)
    assert_close(output, attend(x, causal=True, **options))
    values = attend.value(x).unflatten(-1, (2, 4)).transpose(1, 2)
    assert_close(output, attend.output((weights @ values).transpose(1, 2).flatten(2)))


class TestGroups:
    """Query heads that share keys and values get the answer of copies, without the copies."""

    @staticmethod
    def inputs(t, s, masked, biased, per_head):
        q = random_inputs((2, 6), t, s, 4, 4)[0]
        _, k, v = random_inputs((2, 3), t, s, 4, 4, seed=1)
        mask = bias = None
        if masked:
            mask = torch.rand(2, 6 if per_head else 1, t, s, generator=torch.manual_seed(0)) > 0.3
            mask[0, :, 0] = False  # a query without any key
        if biased:
            bias = random_inputs((1, 6 if per_head else 1), t, s, s, s, seed=2)[0]
        tensors = [q, k, v] if bias is None else [q, k, v, bias]
        return [tensor.requires_grad_() for tensor in tensors], mask

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("per_head", [False, True])
    @pytest.mark.parametrize(("masked", "biased"), [(0, 0), (1, 0), (0, 1), (1, 1)])
    @pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 7), (3, 7), (7, 7)])
    def test_answers_and_gradients_are_those_of_copies(
        self, t, s, masked, biased, per_head, causal
    ):
        tensors, mask = self.inputs(t, s, masked, biased, per_head)
        q, k, v, bias = (*tensors, None)[:4]
        copies = (x.repeat_interleave(2, dim=1) for x in (k, v))
        wanted, _ = attention(q, *copies, mask, bias=bias, causal=causal)
        found = fused_attention(q, k, v, mask, bias=bias, causal=causal, enable_gqa=True)
        assert_close(found, wanted)
        weights = torch.randn(wanted.shape, generator=torch.manual_seed(1), dtype=wanted.dtype)
        pairs = zip(
            torch.autograd.grad((found * weights).sum(), tensors),
            torch.autograd.grad((wanted * weights).sum(), tensors),
            strict=True,
        )
        for ours, theirs in pairs:
            assert_close(ours, theirs)

    @pytest.mark.parametrize("n_queries", [1, 3])
    def test_keys_and_values_are_not_copied(self, n_queries):
        """What is set aside is less than one copy of the keys for every query head."""
        torch.manual_seed(0)
        attend, cache = MultiHeadAttention(64, 16, n_kv_heads=2).eval(), LayerCache(512)
        keys = 2 * 512 * 4 * 4  # bytes: heads, positions, width, float32
        with torch.no_grad():
            attend(torch.randn(1, 512 - n_queries, 64), causal=True, cache=cache)
            with torch.profiler.profile(profile_memory=True) as profile:
                attend(torch.randn(1, n_queries, 64), causal=True, cache=cache)
        largest = max(event.self_cpu_memory_usage for event in profile.events())
        assert largest < 8 * keys


@pytest.mark.parametrize("pairing", ["interleaved", "split"])
def test_rope_turns_in_float32_whatever_the_precision_of_queries_and_keys(pairing):
    """Scores at a distance of 5, at place 8,000: the rounding of q and k is what is left."""
    torch.manual_seed(0)
    x = torch.randn(2, 2000, 1, 64).bfloat16()  # queries and keys
    angles = rope_angles(torch.tensor([[8000], [7995]]), 64)  # (2, 1, Dk/2)

    def scores(turn):
        turned = (turn(*of).double() for of in zip(x, angles, strict=True))
        return torch.linalg.vecdot(*turned) / 8

    def exactly(part, angle):
        return rotate(part.double(), angle, pairing)

    def in_bfloat16(part, angle):
        size, axis = ((-1, 2), -1) if pairing == "interleaved" else ((2, -1), -2)
        cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
        first, second = part.unflatten(-1, size).unbind(axis)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)

    def error(turn):
        return (scores(turn) - scores(exactly)).abs().mean().item()

    ours = error(lambda part, angle: rotate(part, angle, pairing))
    assert ours == pytest.approx(error(lambda *of: exactly(*of).bfloat16()), rel=0.01)
    assert ours < 0.7 * error(in_bfloat16)
    assert rotate(x[0], angles[0], pairing).dtype == torch.bfloat16


def test_a_bias_in_bfloat16_is_as_exact_as_fused_attention_says():
    bias = AlibiBias(8)(query_key_distances(1, 2001))[0, :, 0]  # (H, S)
    rounded = bias.bfloat16().float()
    assert ((rounded - bias).abs() <= bias.abs() / 256).all()
    assert len(rounded[0].unique()) < 700 < len(bias[0].unique())
    q, k, v = (x.bfloat16() for x in random_inputs((1, 8), 1, 2001, 16, 16))
    for output in (
        fused_attention(q, k, v, bias=bias[None, :, None]),
        attention(q, k, v, bias=bias[None, :, None])[0],
    ):
        exact = attention(*(x.double() for x in (q, k, v)), bias=rounded[None, :, None].double())[0]
        assert (output.double() - exact).abs().max() < 0.02


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("function", [attention, fused_attention])
class TestErrors:
    def test_widths_of_query_and_key_differ(self, function):
        with pytest.raises(ValueError, match=r"k has shape \(3, 5\).*Dk=4, got Dk=5"):
            function(torch.ones(2, 4), torch.ones(3, 5), torch.ones(3, 4))

    def test_number_of_keys_and_values_differ(self, function):
        with pytest.raises(ValueError, match=r"v has shape \(2, 4\).*S=3, got S=2"):
            function(torch.ones(2, 4), torch.ones(3, 4), torch.ones(2, 4))

    def test_too_few_dimensions(self, function):
        with pytest.raises(ValueError, match=r"q has shape \(4,\); expected \(..., T, Dk\)"):
            function(torch.ones(4), torch.ones(3, 4), torch.ones(3, 4))

    def test_empty_sequence(self, function):
        with pytest.raises(ValueError, match=r"k has shape \(0, 4\); S .* may not be 0"):
            function(torch.ones(2, 4), torch.ones(0, 4), torch.ones(0, 4))

    def test_batches_that_do_not_broadcast(self, function):
        with pytest.raises(ValueError, match=r"leading dimensions .* q \(2, 2, 4\), k \(3, 3, 4\)"):
            function(torch.ones(2, 2, 4), torch.ones(3, 3, 4), torch.ones(3, 3, 4))

    def test_mask_of_numbers(self, function):
        with pytest.raises(TypeError, match=r"mask has dtype torch.float32; expected torch.bool"):
            function(torch.ones(2, 4), torch.ones(3, 4), torch.ones(3, 4), torch.ones(2, 3))

    def test_mask_that_does_not_broadcast(self, function):
        mask = torch.ones(3, 2, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"mask has shape \(3, 2\).*\(2, 3\)"):
            function(torch.ones(2, 4), torch.ones(3, 4), torch.ones(3, 4), mask)

    def test_mask_with_more_dimensions_than_the_scores(self, function):
        mask = torch.ones(2, 1, 1, 3, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"mask has shape \(2, 1, 1, 3\)"):
            function(torch.ones(2, 3, 4), torch.ones(2, 3, 4), torch.ones(2, 3, 4), mask)


class TestHead:
    def test_projects_then_attends(self):
        torch.manual_seed(0)
        head = AttentionHead(d_model=6, d_head=4, d_value=3, bias=True)
        x = torch.randn(2, 5, 6)
        output, weights = head(x)
        expected = F.scaled_dot_product_attention(head.query(x), head.key(x), head.value(x))
        assert_close(output, expected, rtol=1e-5, atol=1e-6)
        assert output.shape == (2, 5, 3)
        assert weights.shape == (2, 5, 5)

    def test_reads_from_a_memory_of_another_length(self):
        head = AttentionHead(d_model=6, d_head=4)
        output, weights = head(torch.randn(2, 5, 6), memory=torch.randn(2, 9, 6))
        assert output.shape == (2, 5, 4)
        assert weights.shape == (2, 5, 9)

    def test_equals_torch_multihead_attention_with_one_head(self):
        torch.manual_seed(0)
        theirs = torch.nn.MultiheadAttention(8, num_heads=1, bias=False, batch_first=True)
        ours = AttentionHead(d_model=8, d_head=8)
        with torch.no_grad():
            for mine, part in zip(
                (ours.query, ours.key, ours.value), theirs.in_proj_weight.chunk(3), strict=True
            ):
                mine.weight.copy_(part)
        x = torch.randn(2, 5, 8)
        output, weights = ours(x)
        expected, expected_weights = theirs(x, x, x)
        assert_close(theirs.out_proj(output), expected, rtol=1e-5, atol=1e-6)
        assert_close(weights, expected_weights, rtol=1e-5, atol=1e-6)

    def test_only_the_projections_are_learned(self):
        head = AttentionHead(d_model=6, d_head=4)
        assert {name for name, _ in head.named_parameters()} == {
            "query.weight",
            "key.weight",
            "value.weight",
        }

    @pytest.mark.parametrize("name", ["d_model", "d_head", "d_value"])
    def test_widths_must_be_positive(self, name):
        sizes = {"d_model": 4, "d_head": 4, "d_value": 4, name: 0}
        with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
            AttentionHead(**sizes)


def test_a_projection_may_be_any_module():
    """One without weight and bias of its own, as a lab or an adapter puts in its place."""

    class Shifted(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x) + 1

    attend, x = MultiHeadAttention(8, 2), torch.randn(2, 3, 8)
    attend.value = Shifted(attend.value)
    with_gradients = attend(x)
    with torch.no_grad():
        assert_close(attend(x), with_gradients)
