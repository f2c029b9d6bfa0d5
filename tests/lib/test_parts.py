"""The parts, each against an independent way to compute the same thing."""

import copy
import gc
import math
import pickle
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from torch_weights import randomise, small_config
from transformers.models.t5.modeling_t5 import T5Attention

from transformer_lib.core.config import RopeScaling
from transformer_lib.layers.attention import MultiHeadAttention, attention
from transformer_lib.layers.caches.kv_cache import KeyValueCache, LayerCache
from transformer_lib.layers.embeddings import Embedding, PatchEmbedding
from transformer_lib.layers.feedforward import FeedForward, MixtureOfExperts, make_feed_forward
from transformer_lib.layers.fused_attention import fused_attention
from transformer_lib.layers.masks import (
    causal_mask,
    prefix_mask,
    query_key_distances,
    token_mask,
    window_mask,
)
from transformer_lib.layers.norms import LayerNorm, RMSNorm, layer_norm, make_norm, rms_norm
from transformer_lib.layers.positions import (
    AddedPositions,
    AlibiBias,
    T5Bias,
    alibi_slopes,
    change_pairing,
    rope_angles,
    rotate,
    sinusoidal,
    t5_bucket,
)
from transformer_lib.models.blocks import Block, Stack
from transformer_lib.models.initialisation import initialise
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM


class Mark:
    """Something that only the graph holds."""


class Marked(torch.autograd.Function):
    """Does nothing, and holds a mark as long as the graph that it is in lives."""

    @staticmethod
    def forward(ctx, x, mark):
        ctx.mark = mark
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        return slope, None


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class TestMasks:
    @pytest.mark.parametrize(("t", "s", "window"), [(5, 5, 1), (5, 5, 3), (2, 6, 2), (3, 3, 9)])
    def test_window_counts_the_position_itself(self, t, s, window):
        mask = window_mask(t, s, window=window)
        for i in range(t):
            for j in range(s):
                assert mask[i, j] == (abs(i + s - t - j) < window)

    def test_causal_window_shows_exactly_window_positions(self):
        seen = (window_mask(8, window=3) & causal_mask(8)).sum(dim=1)
        assert seen.tolist() == [1, 2, 3, 3, 3, 3, 3, 3]

    def test_prefix_is_seen_by_all_and_the_rest_is_causal(self):
        mask = prefix_mask(torch.tensor([0, 2, 4]), 4)
        assert torch.equal(mask[0, 0], causal_mask(4))
        assert mask[1, 0].int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1] * 4]
        assert mask[2].all()

    def test_prefix_with_a_cache_is_the_end_of_the_whole(self):
        lengths = torch.tensor([1, 3])
        assert torch.equal(prefix_mask(lengths, 2, 5), prefix_mask(lengths, 5)[:, :, -2:])

    def test_token_mask_hides_the_pad_wherever_it_stands(self):
        mask = token_mask(torch.tensor([[0, 3, 0, 4]]), pad_id=0)
        assert mask.shape == (1, 1, 1, 4)
        assert mask.flatten().tolist() == [False, True, False, True]

    def test_distances_are_counted_from_the_last_key(self):
        assert query_key_distances(2, 3).tolist() == [[1, 0, -1], [2, 1, 0]]


class TestPositions:
    def test_sinusoids_equal_the_papers_formula(self):
        encoded = sinusoidal(torch.arange(20), 6)
        for position in range(20):
            for i in range(3):
                angle = position / 10_000 ** (2 * i / 6)
                assert math.isclose(encoded[position, 2 * i], math.sin(angle), abs_tol=1e-6)
                assert math.isclose(encoded[position, 2 * i + 1], math.cos(angle), abs_tol=1e-6)

    def test_rope_is_multiplication_by_a_complex_number(self):
        x = draw(2, 3, 5, 8, dtype=torch.float32)
        angles = rope_angles(torch.arange(5), 8)
        pairs = torch.view_as_complex(x.unflatten(-1, (4, 2)))
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
        assert_close(rotate(x, angles), turned.flatten(start_dim=-2))

    def test_rope_frequencies_follow_theta(self):
        expected = [[3 * 500_000.0 ** (-2 * i / 8) for i in range(4)]]
        assert_close(rope_angles(torch.tensor([3]), 8, 500_000.0), torch.tensor(expected))

    def test_split_pairing_is_interleaved_after_reordering(self):
        x, angles = draw(5, 8), rope_angles(torch.arange(5), 8)
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        assert_close(
            rotate(x[:, order], angles, "split"), rotate(x, angles, "interleaved")[:, order]
        )

    def test_pairing_can_be_changed_and_changed_back(self):
        weight = draw(12, 5)  # 3 heads of width 4
        there = change_pairing(weight, 3, "split")
        assert torch.equal(there[:4], weight[[0, 2, 1, 3]])
        assert torch.equal(change_pairing(there, 3, "interleaved"), weight)

    def test_positions_far_away_stay_apart_in_bfloat16(self):
        x = torch.ones(2, 4, dtype=torch.bfloat16)
        turned = rotate(x, rope_angles(torch.tensor([4000, 4001]), 4))
        assert turned.dtype == torch.bfloat16
        assert (turned[0] - turned[1]).abs().max() > 0.1

    @pytest.mark.parametrize(
        ("n_heads", "steps"),
        [(8, [1, 2, 3, 4, 5, 6, 7, 8]), (2, [4, 8]), (1, [8]), (6, [2, 4, 6, 8, 1, 3])],
    )
    def test_alibi_slopes_are_those_of_its_authors(self, n_heads, steps):
        assert_close(alibi_slopes(n_heads), torch.tensor([2.0**-step for step in steps]))

    @pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64])
    def test_the_default_dtype_changes_no_position(self, default):
        """G6: in bfloat16 YaRN's angles were off by 0.8 at position 16,000, and NTK's by 8."""

        def all_kinds():
            far = torch.arange(16_000, 16_020)
            found = [sinusoidal(far, 16), rope_angles(far, 16), t5_bucket(far - 16_010)]
            for kind in ("linear", "ntk", "yarn", "llama3"):
                scaling = RopeScaling(kind=kind, factor=4.0, trained_len=4096)
                found.append(rope_angles(far, 16, scaling=scaling))
            for n_heads in (6, 8):
                found += [alibi_slopes(n_heads), AlibiBias(n_heads)(query_key_distances(3, 1000))]
            return found

        expected = all_kinds()
        torch.set_default_dtype(default)
        try:
            actual = all_kinds()
        finally:
            torch.set_default_dtype(torch.float32)
        for ours, wanted in zip(actual, expected, strict=True):
            assert ours.dtype == wanted.dtype
            assert torch.equal(ours, wanted)

    def test_alibi_punishes_distance_to_both_sides(self):
        bias = AlibiBias(2)(query_key_distances(3, 3))
        assert_close(bias[0, 0], -torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]]) / 16)

    @pytest.mark.parametrize("bidirectional", [True, False])
    def test_t5_buckets_equal_transformers(self, bidirectional):
        offsets = torch.arange(-300, 301)
        theirs = T5Attention._relative_position_bucket(offsets, bidirectional)
        assert torch.equal(t5_bucket(offsets, bidirectional=bidirectional), theirs)

    def test_t5_bias_is_the_tables_row_of_the_bucket(self):
        bias = T5Bias(2, bidirectional=True, n_buckets=8, max_distance=6)
        buckets = t5_bucket(torch.arange(-9, 1), n_buckets=8, max_distance=6)
        assert_close(bias(query_key_distances(1, 10))[0, :, 0], bias.table.weight[buckets].T)

    def test_t5_bias_of_a_cached_step_is_the_last_row(self):
        bias = T5Bias(2, bidirectional=False)
        whole = bias(query_key_distances(6, 6))
        assert_close(bias(query_key_distances(1, 6)), whole[:, :, -1:])
        assert whole.requires_grad

    @pytest.mark.parametrize("scheme", ["rope", "alibi", "t5", "none"])
    def test_schemes_inside_attention_add_nothing_to_the_stream(self, scheme):
        add = AddedPositions(small_config(position=scheme))
        x = draw(1, 3, 8)
        assert torch.equal(add(x, torch.arange(3)[None]), x)
        assert not list(add.parameters())

    def test_learned_positions_are_rows_of_a_table(self):
        add = AddedPositions(small_config(position="learned"))
        added = add(torch.zeros(1, 2, 8), torch.tensor([[7, 3]]))
        assert torch.equal(added[0], add.table.weight[[7, 3]])


class TestFeedForward:
    def test_plain_network_is_the_formula(self):
        net = randomise(FeedForward(3, 5)).double()
        x = draw(2, 4, 3)
        wide = (x @ net.up.weight.T + net.up.bias).clamp(min=0)
        assert_close(net(x), wide @ net.down.weight.T + net.down.bias)

    def test_gate_is_activated_and_multiplies_the_rest(self):
        net = randomise(FeedForward(3, 5, "swiglu", bias=False)).double()
        x = draw(2, 4, 3)
        gate = x @ net.gate.weight.T
        wide = gate / (1 + (-gate).exp()) * (x @ net.up.weight.T)
        assert_close(net(x), wide @ net.down.weight.T)

    def test_exact_and_tanh_gelu_differ(self):
        x = draw(4, 3)
        exact, tanh = FeedForward(3, 5, "gelu").double(), FeedForward(3, 5, "gelu_tanh").double()
        tanh.load_state_dict(exact.state_dict())
        assert 1e-8 < (exact(x) - tanh(x)).abs().max() < 1e-2


class TestExperts:
    def experts(self, **changes):
        config = small_config(n_experts=4, active_experts=2, **changes)
        return randomise(MixtureOfExperts(config)).double()

    def test_equals_one_token_at_a_time(self):
        moe = self.experts()
        x = draw(2, 3, 8)
        output = moe(x)
        for b in range(2):
            for t in range(3):
                scores = (x[b, t] @ moe.router.weight.T).softmax(dim=0)
                best = scores.argsort(descending=True)[:2]
                total = scores[best].sum()
                expected = sum(scores[i] / total * moe.experts[i](x[b, t]) for i in best.tolist())
                assert_close(output[b, t], expected)

    def test_one_expert_for_every_token_is_a_plain_network(self):
        moe = randomise(MixtureOfExperts(small_config(n_experts=1, active_experts=1))).double()
        x = draw(2, 3, 8)
        assert_close(moe(x), moe.experts[0](x))
        assert_close(moe.balance_loss, torch.tensor(1.0, dtype=torch.float64))

    def test_a_single_expert_is_weighed_with_its_probability(self):
        moe = randomise(MixtureOfExperts(small_config(n_experts=4, active_experts=1))).double()
        x = draw(2, 3, 8)
        scores = (x @ moe.router.weight.T).softmax(dim=-1)
        output = moe(x)
        for b in range(2):
            for t in range(3):
                best = int(scores[b, t].argmax())
                assert_close(output[b, t], scores[b, t, best] * moe.experts[best](x[b, t]))

    @pytest.mark.parametrize("active", [1, 2, 4])
    def test_the_router_learns_from_the_task_however_many_experts_are_active(self, active):
        moe = MixtureOfExperts(small_config(n_experts=4, active_experts=active)).double()
        moe(draw(2, 3, 8)).square().mean().backward()
        assert moe.router.weight.grad.abs().max() > 1e-6

    def test_an_expert_without_tokens_has_a_gradient_of_zeros(self):
        moe = MixtureOfExperts(small_config(n_experts=4, active_experts=1))
        with torch.no_grad():
            moe.router.weight.zero_()
            moe.router.weight[0] = 50  # all tokens go to the first
        moe(torch.ones(2, 3, 8)).sum().backward()
        assert moe.experts[0].up.weight.grad.any()
        for expert in moe.experts[1:]:
            assert all(not p.grad.any() for p in expert.parameters())  # zeros, not None

    def test_balance_loss_is_one_if_even_and_n_if_all_go_to_one(self):
        moe = MixtureOfExperts(small_config(n_experts=4, active_experts=1))
        nn.init.zeros_(moe.router.weight)
        with torch.no_grad():
            moe.router.weight[:, :4] = 50 * torch.eye(4)
        moe(torch.eye(8)[:4])  # one token for each expert
        assert_close(moe.balance_loss.detach(), torch.tensor(1.0))
        moe(torch.eye(8)[:1].expand(4, 8))  # all for the first
        assert_close(moe.balance_loss.detach(), torch.tensor(4.0))

    def test_router_learns_from_the_task_and_from_the_balance(self):
        moe = self.experts()
        task = moe(draw(2, 3, 8)).sum()
        task.backward(retain_graph=True)
        from_task = moe.router.weight.grad.clone()
        moe.balance_loss.backward()
        assert from_task.abs().max() > 0
        assert not torch.equal(from_task, moe.router.weight.grad)

    def test_a_model_can_be_copied_between_forward_and_backward(self):
        moe, x = self.experts(), draw(2, 3, 8)
        output = moe(x)
        twin = copy.deepcopy(moe)
        (output.sum() + moe.balance_loss).backward()  # the original keeps its graph
        assert_close(twin(x), output)
        assert not pickle.loads(pickle.dumps(moe)).balance_loss.requires_grad

    @pytest.mark.parametrize("training", [True, False])
    def test_a_pass_that_is_thrown_away_leaves_no_graph_in_memory(self, training):
        moe, mark = self.experts().train(training), Mark()
        below = weakref.ref(mark)
        output = moe(Marked.apply(draw(2, 3, 8).requires_grad_(), mark))
        del mark
        value = float(moe.balance_loss.detach())
        assert below() is not None
        assert moe.balance_loss.requires_grad, "as long as somebody holds the output"
        del output
        gc.collect()
        assert below() is None
        assert float(moe.balance_loss) == value
        assert not moe.balance_loss.requires_grad

    def test_the_loss_of_a_model_holds_the_balance_of_its_experts(self):
        model = CausalLM(small_config(n_experts=3, active_experts=1))
        total = model(torch.tensor([[1, 2, 3]])).square().sum()
        balances = [block.feed_forward.balance_loss for block in model.decoder.stack.blocks]
        assert all(balance.requires_grad for balance in balances)
        (0 * total + sum(balances)).backward()
        for block in model.decoder.stack.blocks:
            assert block.feed_forward.router.weight.grad.abs().max() > 0

    def test_configuration_decides(self):
        assert isinstance(make_feed_forward(small_config()), FeedForward)
        stack = Stack(small_config(n_experts=3, active_experts=2), causal=True)
        assert all(isinstance(block.feed_forward, MixtureOfExperts) for block in stack.blocks)
        assert stack(torch.zeros(1, 2, 8)).shape == (1, 2, 8)


class TestNorms:
    def test_layer_norm_leaves_mean_zero_and_variance_one(self):
        x = layer_norm(5 + 3 * draw(4, 16), torch.ones(16, dtype=torch.float64))
        assert_close(x.mean(dim=-1), torch.zeros(4, dtype=torch.float64))
        assert_close(
            x.square().mean(dim=-1), torch.ones(4, dtype=torch.float64), rtol=1e-4, atol=1e-4
        )

    def test_an_offset_is_added_in_float32(self):
        """As Gemma's published weights are meant; in bfloat16, 1.003 is 1."""
        norm, x = RMSNorm(4, offset=1.0).bfloat16(), torch.tensor([3.0, -1.0, 2.0, 0.5])
        norm.weight.data.fill_(0.003)
        wanted = rms_norm(x, torch.full((4,), 1 + norm.weight.float()[0].item()))
        assert torch.equal(norm(x.bfloat16()), wanted.bfloat16())

    def test_rms_norm_keeps_the_mean_and_scales_the_root_mean_square(self):
        x = 5 + draw(4, 16)
        normed = rms_norm(x, torch.ones(16, dtype=torch.float64))
        assert_close(normed / x, (normed / x)[:, :1].expand(4, 16))
        assert_close(normed.square().mean(dim=-1).sqrt(), torch.ones(4, dtype=torch.float64),
                     rtol=1e-5, atol=1e-5)  # fmt: skip

    def test_epsilon_stands_inside_the_root(self):
        x = torch.tensor([3.0, -3.0])
        assert_close(layer_norm(x, torch.ones(2), eps=7.0), x / 4)
        assert_close(rms_norm(x, torch.ones(2), eps=7.0), x / 4)

    def test_configuration_decides(self):
        rms = make_norm(small_config(norm="rms", norm_eps=0.25))
        assert isinstance(rms, RMSNorm)
        assert rms.eps == 0.25
        norm = make_norm(small_config(bias=False, norm_eps=0.25))
        assert isinstance(norm, LayerNorm)
        assert norm.bias is None
        assert norm.eps == 0.25


class TestEmbeddings:
    def test_lookup_is_a_one_hot_product_then_scale_then_position(self):
        embed = Embedding(small_config())
        ids, places = torch.tensor([[3, 1, 3]]), torch.arange(3)[None]
        one_hot = nn.functional.one_hot(ids, 11).float()
        expected = one_hot @ embed.tokens.weight * math.sqrt(8) + sinusoidal(places, 8)
        assert_close(embed(ids, places), expected)

    def test_bert_adds_segments_and_normalises(self):
        config = small_config(
            position="learned", scale_embeddings=False, n_segments=2, norm_embeddings=True
        )
        embed = randomise(Embedding(config))
        ids, places = torch.tensor([[3, 1]]), torch.arange(2)[None]
        segments = torch.tensor([[0, 1]])
        total = (
            embed.tokens.weight[ids]
            + embed.positions.table.weight[:2]
            + embed.segments.weight[segments]
        )
        expected = nn.functional.layer_norm(total, (8,), embed.norm.weight, embed.norm.bias)
        assert_close(embed(ids, places, segments), expected)
        assert_close(embed(ids, places), embed(ids, places, torch.zeros_like(ids)))

    def test_patches_equal_a_convolution(self):
        patches = PatchEmbedding(6, 2, 3, d_model=5)
        convolution = nn.Conv2d(3, 5, kernel_size=2, stride=2)
        with torch.no_grad():
            convolution.weight.copy_(patches.projection.weight.unflatten(1, (3, 2, 2)))
            convolution.bias.copy_(patches.projection.bias)
        images = draw(2, 3, 6, 6, dtype=torch.float32)
        expected = convolution(images).flatten(start_dim=2).mT
        assert_close(patches(images), expected, rtol=1e-5, atol=1e-6)


class TestCache:
    def test_keeps_what_was_appended_in_order(self):
        store = LayerCache(max_len=6)
        k, v = draw(2, 3, 5, 4), draw(2, 3, 5, 4, seed=1)
        for piece in (slice(0, 2), slice(2, 3), slice(3, 5)):
            all_k, all_v = store.append(k[:, :, piece], v[:, :, piece])
        assert torch.equal(all_k, k)
        assert torch.equal(all_v, v)
        assert torch.equal(store.read()[0], k)

    def test_bytes_are_those_of_the_memory_set_aside(self):
        cache = KeyValueCache(n_layers=3, max_len=10)
        assert cache.n_bytes == 0
        for store in cache.layers:
            store.append(torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8))
        assert cache.n_bytes == 2 * 3 * 2 * 4 * 10 * 8 * 4
        assert cache.length == 1


class TestDropout:
    """Where the paper puts it: on the embeddings and on what each sublayer adds."""

    def test_attention_drops_weights_and_makes_up_for_it(self):
        torch.manual_seed(0)
        q, k, v = torch.zeros(1, 1, 4), torch.zeros(1, 2000, 4), torch.ones(1, 2000, 1)
        for function in (lambda *a, **o: attention(*a, **o)[0], fused_attention):
            assert_close(function(q, k, v, dropout=0.5), torch.ones(1, 1, 1), rtol=0.1, atol=0.1)
            assert (function(q, k, v, dropout=0.5) - 1).abs() > 1e-3
            assert_close(function(q, k, v), torch.ones(1, 1, 1))

    def test_module_drops_weights_only_in_training(self):
        torch.manual_seed(0)
        attend = MultiHeadAttention(8, 2, dropout=0.5)
        x = draw(1, 6, 8, dtype=torch.float32)
        assert not torch.equal(attend(x), attend(x))
        attend.eval()
        assert torch.equal(attend(x), attend(x))

    def test_block_drops_what_is_added_and_never_the_stream(self):
        torch.manual_seed(0)
        block = randomise(Block(small_config(norm_position="pre", dropout=0.999999)))
        x = draw(1, 6, 8, dtype=torch.float32)
        assert_close(block(x), x)

    def test_embeddings_are_dropped(self):
        torch.manual_seed(0)
        embed = Embedding(small_config(dropout=0.5))
        x = embed(torch.zeros(1, 16, dtype=torch.long), torch.arange(16)[None])
        assert 0.3 < (x == 0).float().mean() < 0.7


class TestInitialisation:
    def test_xavier_has_the_variance_of_its_formula_and_zero_biases(self):
        torch.manual_seed(0)
        net = FeedForward(64, 256)
        initialise(net, small_config(init="xavier"))
        assert_close(net.up.weight.var(), torch.tensor(2 / 320), rtol=0.05, atol=0)
        assert net.up.bias.abs().max() == 0

    def test_scaled_embeddings_start_with_variance_one(self):
        torch.manual_seed(0)
        model = CausalLM(small_config(d_model=64, vocab_size=500))
        scaled = model.decoder.embedding.tokens.weight * 8
        assert_close(scaled.var(), torch.tensor(1.0), rtol=0.05, atol=0)

    @pytest.mark.parametrize(("model", "writes"), [(CausalLM, 2), (Seq2SeqLM, 3)])
    def test_gpt2_shrinks_what_writes_to_the_stream(self, model, writes):
        torch.manual_seed(0)
        config = small_config(d_model=64, d_ff=256, n_layers=4, init="gpt2")
        built = model(config)
        decoder = built.decoder if model is CausalLM else built.body.decoder
        block = decoder.stack.blocks[0]
        std = torch.tensor(0.02)
        assert_close(block.attention.query.weight.std(), std, rtol=0.1, atol=0)
        assert_close(block.feed_forward.up.weight.std(), std, rtol=0.1, atol=0)
        assert_close(decoder.embedding.tokens.weight.std(), std, rtol=0.1, atol=0)
        for weight in (block.attention.output.weight, block.feed_forward.down.weight):
            assert_close(weight.std(), std / math.sqrt(writes * 4), rtol=0.1, atol=0)

    def test_queries_make_up_for_a_scale_that_attention_does_not_have(self):
        stds = []
        for scale in (None, 1.0):
            torch.manual_seed(0)
            block = CausalLM(small_config(attention_scale=scale)).decoder.stack.blocks[0]
            stds.append(block.attention.query.weight.std() * (scale or 1 / math.sqrt(4)))
        assert_close(stds[0], stds[1])

    def test_norms_are_left_alone(self):
        block = Block(small_config())
        initialise(block, small_config())
        assert (block.attention_norm.weight == 1).all()
        assert (block.attention_norm.bias == 0).all()


@given(
    n_kv=st.sampled_from([1, 2, 4]), pairing=st.sampled_from(["interleaved", "split"]),
    seed=st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=10, deadline=None)
def test_grouped_heads_equal_full_heads_with_repeated_weights(n_kv, pairing, seed):
    grouped = randomise(MultiHeadAttention(8, 4, n_kv, pairing=pairing), seed).double()
    full = MultiHeadAttention(8, 4, pairing=pairing).double()
    for name in ("query", "output"):
        getattr(full, name).load_state_dict(getattr(grouped, name).state_dict())
    with torch.no_grad():
        for name in ("key", "value"):
            small, large = getattr(grouped, name), getattr(full, name)
            for head in range(4):
                own, shared = slice(2 * head, 2 * head + 2), head // (4 // n_kv)
                large.weight[own] = small.weight[2 * shared : 2 * shared + 2]
                large.bias[own] = small.bias[2 * shared : 2 * shared + 2]
    x, angles = draw(2, 5, 8, seed=seed), rope_angles(torch.arange(5), 2)
    assert_close(grouped(x, angles=angles, causal=True), full(x, angles=angles, causal=True))
