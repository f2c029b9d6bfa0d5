"""What must hold for every Transformer, whatever its weights: tried on many small ones.

`mistakes.py` shows that these tests can fail: each of its wrong versions breaks one of them or one
of the tests that it names elsewhere.
"""

from dataclasses import replace
from functools import partial

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import (
    LLAMA,
    VOCAB,
    attentions,
    make,
    positions_of,
    random_ids,
    random_like,
    real_tokens,
    tiny,
    tiny_configs,
)
from torch.testing import assert_close

from transformer_lib.layers.attention import MultiHeadAttention, attention
from transformer_lib.layers.embeddings import Embedding
from transformer_lib.layers.fused_attention import fused_attention
from transformer_lib.layers.masks import causal_mask, prefix_mask, query_key_distances
from transformer_lib.layers.positions import rope_angles, rotate
from transformer_lib.models.blocks import Stack
from transformer_lib.models.encoder_decoder import Decoder, Encoder, EncoderDecoder
from transformer_lib.models.language_models import CausalLM, MaskedLM, Seq2SeqLM, SequenceClassifier
from transformer_lib.tracing.watch import influence

N = 6  # the padded length of a batch
few = settings(max_examples=5, deadline=None)
seeds = st.integers(0, 1000)
sides = st.sampled_from(("left", "right"))
lengths_of_two = st.tuples(st.integers(1, N), st.integers(1, N))
same = partial(assert_close, rtol=0, atol=1e-10)


def run_with_gradients(model, *inputs, read, **options):
    """Run forwards, then backwards from the outputs at ``read``.

    Returns:
        The outputs, the gradient of each parameter, and the gradient of each embedded sequence.
    """
    streams = []

    def keep(module, inputs, stream):
        stream.retain_grad()
        streams.append(stream)

    embeddings = [module for module in model.modules() if isinstance(module, Embedding)]
    hooks = [module.register_forward_hook(keep) for module in embeddings]
    output = model(*inputs, **options)
    model.zero_grad()
    (output * random_like(output))[read].sum().backward()
    for hook in hooks:
        hook.remove()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return output.detach(), gradients, [stream.grad for stream in streams]


def padded(lengths, side, *, seed=0):
    """Two batches that differ only in what stands where the padding is, and where that is."""
    real = real_tokens(lengths, N, side)
    ids = random_ids(len(lengths), N, seed=seed)
    other = torch.where(real, ids, random_ids(len(lengths), N, seed=seed + 1))
    return ids.where(real, 0), other, real


def assert_pads_do_not_matter(model, batches, read, pads, **masks):
    """Compare two runs that differ only in their pads: results, and all gradients."""
    (output, gradients, streams), (output2, gradients2, _) = (
        run_with_gradients(model, *batch, read=read, **masks) for batch in batches
    )
    same(output2[read], output[read])
    for name in gradients:
        same(gradients2[name], gradients[name])
    assert len(streams) == len(pads)
    for gradient, pad in zip(streams, pads, strict=True):
        assert (gradient[pad] == 0).all()
        assert (gradient[~pad] != 0).any()


# Padding: what stands there never matters, forwards or backwards.


@few
@given(config=tiny_configs(), lengths=lengths_of_two, side=sides, seed=seeds)
@example(config=tiny(), lengths=(6, 3), side="right", seed=0)
def test_padding_never_matters_in_an_encoder(config, lengths, side, seed):
    ids, other, real = padded(lengths, side, seed=seed)
    model = make(Encoder, config, seed=seed)
    assert_pads_do_not_matter(model, ((ids,), (other,)), real, [~real], mask=real[:, None, None, :])


@few
@given(config=tiny_configs(), lengths=lengths_of_two, side=sides, seed=seeds)
@example(config=tiny(), lengths=(6, 3), side="left", seed=0)
def test_padding_never_matters_in_a_decoder(config, lengths, side, seed):
    ids, other, real = padded(lengths, side, seed=seed)
    model = make(CausalLM, config, seed=seed)
    mask, positions = real[:, None, None, :], positions_of(real)
    assert_pads_do_not_matter(
        model, ((ids,), (other,)), real, [~real], mask=mask, positions=positions
    )


@few
@given(
    config=tiny_configs(),
    source=st.tuples(lengths_of_two, sides),
    target=st.tuples(lengths_of_two, sides),
    seed=seeds,
)
@example(config=tiny(), source=((6, 3), "right"), target=((6, 6), "right"), seed=0)
def test_padding_never_matters_in_an_encoder_decoder(config, source, target, seed):
    sources, targets = padded(*source, seed=seed), padded(*target, seed=seed + 2)
    model = make(EncoderDecoder, config, seed=seed)
    assert_pads_do_not_matter(
        model,
        tuple(zip(sources[:2], targets[:2], strict=True)),
        targets[2],
        [~sources[2], ~targets[2]],
        source_mask=sources[2][:, None, None, :],
        target_mask=targets[2][:, None, None, :],
    )


@few
@given(config=tiny_configs(), lengths=lengths_of_two, seed=seeds)
@example(config=tiny(), lengths=(6, 3), seed=0)
def test_a_mean_over_tokens_ignores_padding(config, lengths, seed):
    ids, other, real = padded(lengths, "right", seed=seed)
    model = make(SequenceClassifier, config, n_classes=3, pooling="mean", seed=seed)
    mask = real[:, None, None, :]
    everything = torch.ones(2, dtype=torch.bool)
    assert_pads_do_not_matter(model, ((ids,), (other,)), everything, [~real], mask=mask)
    for i, length in enumerate(lengths):
        same(model(ids, mask)[i], model(ids[i : i + 1, :length])[0])


# A batch is only several sequences at once.


@few
@given(config=tiny_configs(), lengths=lengths_of_two, side=sides, seed=seeds)
@example(config=tiny(position="learned"), lengths=(6, 3), side="left", seed=0)
def test_a_sequence_says_the_same_alone_and_in_a_batch(config, lengths, side, seed):
    ids, _, real = padded(lengths, side, seed=seed)
    for model in (make(MaskedLM, config, seed=seed).encoder, make(CausalLM, config, seed=seed)):
        together = model(ids, real[:, None, None, :], positions=positions_of(real))
        for i in range(2):
            alone = model(ids[i : i + 1, real[i]])
            same(together[i, real[i]], alone[0])


@few
@given(config=tiny_configs(), source=lengths_of_two, target=lengths_of_two, seed=seeds)
@example(config=tiny(), source=(6, 3), target=(4, 6), seed=0)
def test_a_translation_is_the_same_alone_and_in_a_batch(config, source, target, seed):
    sources, _, real = padded(source, "right", seed=seed)
    targets, _, real_target = padded(target, "right", seed=seed + 2)
    model = make(Seq2SeqLM, config, seed=seed)
    together = model(sources, targets, real[:, None, None], real_target[:, None, None])
    for i in range(2):
        alone = model(sources[i : i + 1, : source[i]], targets[i : i + 1, : target[i]])
        same(together[i, : target[i]], alone[0])


# The future changes nothing before it; the past and the present do.


@few
@given(config=tiny_configs(), change=st.integers(1, N - 1), seed=seeds)
@example(config=tiny(), change=3, seed=0)
@example(config=tiny(norm_position="pre"), change=3, seed=0)
def test_the_future_changes_nothing_before_it(config, change, seed):
    ids = random_ids(2, N, seed=seed)
    other = ids.clone()
    other[:, change:] = (ids[:, change:] + 1) % VOCAB
    model = make(CausalLM, config, seed=seed)
    assert_close(model(other)[:, :change], model(ids)[:, :change], rtol=0, atol=1e-12)
    source, reader = random_ids(2, 4, seed=seed + 1), make(Seq2SeqLM, config, seed=seed)
    before, after = reader(source, ids), reader(source, other)
    assert_close(after[:, :change], before[:, :change], rtol=0, atol=1e-12)
    assert (after[:, change:] - before[:, change:]).abs().amax(dim=-1).gt(1e-9).all()


def test_each_position_hears_exactly_itself_and_the_past():
    layer = make(MultiHeadAttention, 16, 4)
    x = random_like(torch.empty(1, N, 16, dtype=torch.float64))
    for layer.fused in (True, False):
        heard = influence(lambda x: layer(x, causal=True), x) > 1e-9
        assert heard.equal(torch.ones(N, N).tril().bool())


def test_an_encoder_hears_everything():
    stack = make(Stack, tiny(n_layers=1), causal=False)
    x = random_like(torch.empty(1, N, 16, dtype=torch.float64))
    assert (influence(stack, x) > 1e-9).all()


@few
@given(prefix=st.integers(0, N), seed=seeds)
@example(prefix=2, seed=0)
def test_a_prefix_is_seen_by_all_and_the_rest_causally(prefix, seed):
    layer = make(MultiHeadAttention, 16, 4, seed=seed)
    mask = prefix_mask(torch.tensor([prefix]), N)
    x = random_like(torch.empty(1, N, 16, dtype=torch.float64), seed)
    heard = influence(lambda x: layer(x, mask=mask), x) > 1e-9
    query, key = torch.arange(N)[:, None], torch.arange(N)
    assert heard.equal((key <= query) | (key < prefix))


def test_a_window_limits_the_reach_of_each_layer():
    x = random_like(torch.empty(1, 9, 16, dtype=torch.float64))
    distance = torch.arange(9)[:, None] - torch.arange(9)
    for n_layers, window, causal in ((1, 1, False), (1, 3, False), (1, 3, True), (2, 2, True)):
        stack = make(Stack, tiny(n_layers=n_layers, window=window), causal=causal)
        reach = n_layers * (window - 1)
        expected = (distance <= reach) & (distance >= (0 if causal else -reach))
        assert (influence(stack, x) > 1e-9).equal(expected)


# Weights are probabilities over the keys that may be seen.


@few
@given(causal=st.booleans(), n_kv_heads=st.sampled_from((4, 2, 1)), seed=seeds)
@example(causal=True, n_kv_heads=4, seed=0)
def test_weights_are_probabilities_over_exactly_the_keys_allowed(causal, n_kv_heads, seed):
    layer = make(MultiHeadAttention, 16, 4, n_kv_heads, seed=seed)
    x = random_like(torch.empty(2, N, 16, dtype=torch.float64), seed)
    real = real_tokens((N, 3), N, "left")[:, None, None, :]
    allowed = (real & causal_mask(N) if causal else real).expand(2, 4, N, N)
    output, weights = layer.with_weights(x, mask=real, causal=causal)
    same(weights.sum(dim=-1), allowed.any(dim=-1).double())
    assert ((weights > 0) == allowed).all()
    same(output, layer(x, mask=real, causal=causal))


@few
@given(seed=seeds)
@example(seed=0)
def test_a_query_without_any_key_says_nothing(seed):
    mask = torch.rand(N, N, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[2] = False
    layer = make(MultiHeadAttention, 16, 4, seed=seed)
    x = random_like(torch.empty(2, N, 16, dtype=torch.float64), seed).requires_grad_()
    for function in (lambda *inputs: attention(*inputs)[0], fused_attention):
        result = function(x, x, x, mask)
        assert (result[:, 2] == 0).all()
        assert torch.autograd.grad(result.sum(), x)[0].isfinite().all()
    for layer.fused in (True, False):
        result = layer(x, mask=mask)
        assert (result[:, 2] == layer.output.bias).all()  # nothing was found: only the bias is left
        inputs = [x, *layer.parameters()]
        gradients = torch.autograd.grad(result.square().sum(), inputs)
        assert all(gradient.isfinite().all() for gradient in gradients)


@few
@given(config=tiny_configs(), fused=st.booleans(), seed=seeds)
@example(config=tiny(), fused=True, seed=0)
def test_a_sequence_of_padding_alone_harms_no_model(config, fused, seed):
    """One sequence of the batch is empty: nothing becomes NaN, forwards or backwards."""
    ids, _, real = padded((N, 0), "right", seed=seed)
    mask = real[:, None, None, :]
    runs = {
        MaskedLM: ((ids,), {"mask": mask}),
        CausalLM: ((ids,), {"mask": mask}),
        Seq2SeqLM: ((ids, ids), {"source_mask": mask, "target_mask": mask}),
    }
    for build, (inputs, masks) in runs.items():
        model = make(build, config, seed=seed)
        for layer in attentions(model):
            layer.fused = fused
        output, gradients, _ = run_with_gradients(model, *inputs, read=slice(None), **masks)
        assert output.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in gradients.values())


# Places: without them order is lost; relative ones know distances only.


@few
@given(config=tiny_configs(position="none", window=None), seed=seeds)
@example(config=tiny(position="none"), seed=0)
def test_without_positions_an_encoder_does_not_know_the_order(config, seed):
    ids = random_ids(2, N, seed=seed)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    model = make(Encoder, config, seed=seed)
    same(model(ids[:, order]), model(ids)[:, order])


def test_with_positions_an_encoder_knows_the_order():
    ids, order = torch.tensor([[1, 2, 3, 4]]), torch.tensor([2, 0, 1, 3])
    for position in ("sinusoidal", "learned", "rope", "alibi", "t5"):
        model = make(Encoder, tiny(position=position, n_layers=1))
        apart = (model(ids[:, order]) - model(ids)[:, order]).abs().amax()
        assert apart > 1e-3, position


def test_an_encoder_with_alibi_cannot_tell_forwards_from_backwards():
    """Its bias depends on the distance without its sign; the other schemes know the direction."""
    ids = torch.tensor([[1, 2, 3, 4]])
    for position in ("sinusoidal", "learned", "rope", "alibi", "t5"):
        model = make(Encoder, tiny(position=position))
        apart = (model(ids.flip(1)) - model(ids).flip(1)).abs().amax()
        assert (apart < 1e-9) == (position == "alibi"), position


@few
@given(
    pairing=st.sampled_from(("interleaved", "split")),
    places=st.lists(st.integers(0, 50), min_size=2, max_size=4),
    shift=st.integers(0, 100),
    seed=seeds,
)
@example(pairing="interleaved", places=[3, 0, 7], shift=5, seed=0)
def test_rope_scores_depend_on_the_distance_only(pairing, places, shift, seed):
    layer = make(MultiHeadAttention, 16, 4, pairing=pairing, seed=seed)
    x = random_like(torch.empty(1, len(places), 16, dtype=torch.float64), seed)
    here, there = (rope_angles(torch.tensor(places) + by, 4) for by in (0, shift))
    _, weights = layer.with_weights(x, angles=here)
    _, weights_there = layer.with_weights(x, angles=there)
    assert_close(weights_there, weights, rtol=0, atol=1e-4)
    turned = rotate(x[..., :4], here, pairing)
    assert_close(turned.norm(dim=-1), x[..., :4].norm(dim=-1), rtol=0, atol=1e-5)


@few
@given(
    position=st.sampled_from(("rope", "alibi", "t5", "none")),
    config=tiny_configs(),
    shift=st.integers(1, 9),
    seed=seeds,
)
@example(position="rope", config=tiny(**LLAMA), shift=5, seed=0)
def test_relative_positions_see_no_shift(position, config, shift, seed):
    """Moved to the right, behind padding, a sequence says the same."""
    config = replace(config, position=position)
    ids = random_ids(1, N, seed=seed)
    moved = torch.cat((torch.zeros(1, shift, dtype=torch.long), ids), dim=1)
    mask = (moved != 0)[:, None, None, :]
    for build in (Encoder, Decoder):
        model = make(build, config, seed=seed)
        assert_close(model(moved, mask=mask)[:, shift:], model(ids), rtol=0, atol=1e-4)
    if position == "rope":
        there = model(ids, positions=torch.arange(shift, shift + N)[None])
        assert_close(there, model(ids), rtol=0, atol=1e-4)


def test_alibi_prefers_what_is_near():
    layer = make(MultiHeadAttention, 16, 4)
    stack = make(Stack, tiny(position="alibi", n_layers=1), causal=True)
    x = torch.ones(1, N, 16, dtype=torch.float64)  # all scores are equal but for the bias
    _, weights = layer.with_weights(x, bias=stack.bias(query_key_distances(N)), causal=True)
    assert (weights[0, :, -1].diff() > 0).all()


def test_t5_tells_left_from_right_and_far_from_near():
    for causal in (True, False):
        stack = make(Stack, tiny(position="t5"), causal=causal)
        table = stack.bias.table.weight  # (buckets, H)
        bias = stack.bias(query_key_distances(3))[0].movedim(0, -1)  # (T, S, H)
        for query, key in ((0, 0), (2, 2), (1, 0), (2, 1), (2, 0)):
            same(bias[query, key], table[query - key])
        for query, key in ((0, 1), (0, 2)):  # a decoder never sees these
            same(bias[query, key], table[0 if causal else 16 + key - query])


# Every part takes part.


def test_every_parameter_moves_the_result():
    config = tiny(position="t5", bias=False, norm_position="pre", activation="swiglu")
    ids = random_ids(2, N)
    runs = {MaskedLM: (ids,), CausalLM: (ids,), Seq2SeqLM: (ids, ids)}
    for build, inputs in runs.items():
        _, gradients, _ = run_with_gradients(make(build, config), *inputs, read=slice(None))
        for name, gradient in gradients.items():
            assert gradient is not None, name
            assert gradient.abs().max() > 1e-9, name


def test_the_memory_reaches_every_target_position():
    source, target = random_ids(1, 4), random_ids(1, 5, seed=1)
    model = make(Seq2SeqLM, tiny(n_layers=1))
    before = model(source, target)
    for place in range(4):
        changed = source.clone()
        changed[:, place] = (source[:, place] + 1) % VOCAB
        assert ((model(changed, target) - before).abs().amax(dim=-1) > 1e-9).all()


def test_the_stream_leaves_every_stack_normalised():
    """With gains of 1 and biases of 0, as at the start, every vector has mean 0 and variance 1."""
    for norm_position in ("pre", "post"):
        stack = Stack(tiny(norm_position=norm_position), causal=True).double().eval()
        x = stack(5 * random_like(torch.empty(2, N, 16, dtype=torch.float64)))
        zeros, ones = torch.zeros(2, N, dtype=x.dtype), torch.ones(2, N, dtype=x.dtype)
        assert_close(x.mean(dim=-1), zeros, rtol=0, atol=1e-9)
        assert_close(x.var(dim=-1, correction=0), ones, rtol=0, atol=1e-4)
