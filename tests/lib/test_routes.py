"""One answer by every route: plain or fused, cached or not, compiled or not, formula or module."""

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import (
    CHOICES,
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
from torch import nn
from torch.testing import assert_close

from transformer_lib.layers.attention import AttentionHead, MultiHeadAttention
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.embeddings import Embedding, PatchEmbedding
from transformer_lib.layers.feedforward import FeedForward, MixtureOfExperts
from transformer_lib.layers.masks import causal_mask
from transformer_lib.layers.norms import LayerNorm, RMSNorm, layer_norm, rms_norm
from transformer_lib.layers.positions import change_pairing
from transformer_lib.models.blocks import Block, Stack
from transformer_lib.models.encoder_decoder import Decoder, EncoderDecoder
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)

N = 7
few = settings(max_examples=5, deadline=None)
seeds = st.integers(0, 1000)
same = partial(assert_close, rtol=0, atol=1e-10)


def runs(real):
    """The inputs of one model of each architecture, with padding in all of them."""
    ids, mask = random_ids(*real.shape).where(real, 0), real[:, None, None, :]
    return {
        MaskedLM: (ids, mask),
        CausalLM: (ids, mask),
        Seq2SeqLM: (ids, ids[:, :-2], mask, mask[..., :-2]),
    }


def random_vectors(*shape, seed=0):
    return random_like(torch.empty(shape, dtype=torch.float64), seed)


# Attention: fused or readable, heads at once or one by one, shared or repeated.


@few
@given(config=tiny_configs(), seed=seeds)
@example(config=tiny(position="t5"), seed=0)
def test_fused_and_readable_attention_agree_in_whole_models(config, seed):
    for build, inputs in runs(real_tokens((N, 4), N, "right")).items():
        model = make(build, config, seed=seed)
        fused = model(*inputs)
        for layer in attentions(model):
            layer.fused = False
        same(model(*inputs), fused)


def head_by_head(layer, x, memory, mask):
    """Run each head of a layer as an AttentionHead of its own and add up what they write."""
    width, group = layer.d_head, layer.n_heads // layer.n_kv_heads
    total = layer.output.bias
    for i in range(layer.n_heads):
        head = AttentionHead(layer.d_model, width, bias=True).double()
        rows = {"query": i, "key": i // group, "value": i // group}
        for name, index in rows.items():
            whole, part = getattr(layer, name), getattr(head, name)
            cut = slice(index * width, (index + 1) * width)
            part.load_state_dict({"weight": whole.weight[cut], "bias": whole.bias[cut]})
        found, _ = head(x, memory, mask)
        total = total + found @ layer.output.weight[:, i * width : (i + 1) * width].mT
    return total


def test_weights_follow_the_formula_of_the_paper():
    layer, x = make(MultiHeadAttention, 16, 4), random_vectors(2, 5, 16)
    _, weights = layer.with_weights(x)
    for i, (q, k) in enumerate(
        zip(layer.query(x).split(4, dim=-1), layer.key(x).split(4, dim=-1), strict=True)
    ):
        same(weights[:, i], (q @ k.mT / math.sqrt(4)).softmax(dim=-1))


def test_heads_at_once_equal_heads_one_by_one():
    x, memory = random_vectors(2, 5, 16), random_vectors(2, 6, 16, seed=1)
    for n_kv_heads in (4, 2, 1):
        layer = make(MultiHeadAttention, 16, 4, n_kv_heads)
        same(layer(x), head_by_head(layer, x, None, None))
        same(layer(x, memory), head_by_head(layer, x, memory, None))
        same(layer(x, causal=True), head_by_head(layer, x, None, causal_mask(5)))


def test_shared_keys_and_values_equal_repeated_weights():
    """A GQA model is an MHA model in which neighbouring heads have the same keys and values."""
    ids = random_ids(2, N)
    for n_kv_heads in (2, 1):
        config = tiny(n_kv_heads=n_kv_heads, position="rope")
        shared = make(CausalLM, config)
        weights = shared.state_dict()
        for name, weight in weights.items():
            if "attention.key" in name or "attention.value" in name:
                heads = weight.unflatten(0, (n_kv_heads, config.d_head))
                repeated = heads.repeat_interleave(4 // n_kv_heads, dim=0)
                weights[name] = repeated.flatten(end_dim=1)
        repeating = CausalLM(replace(config, n_kv_heads=None)).double().eval()
        repeating.load_state_dict(weights)
        same(repeating(ids), shared(ids))


# Positions.


def test_both_pairings_of_rope_give_one_model():
    ids = random_ids(2, N)
    for n_kv_heads in (4, 2):
        config = tiny(position="rope", n_kv_heads=n_kv_heads, rope_pairing="interleaved")
        interleaved = make(CausalLM, config)
        split = CausalLM(replace(config, rope_pairing="split")).double().eval()
        weights = interleaved.state_dict()
        for name, weight in weights.items():
            if "attention.query" in name:
                weights[name] = change_pairing(weight, 4, to="split")
            elif "attention.key" in name:
                weights[name] = change_pairing(weight, n_kv_heads, to="split")
        split.load_state_dict(weights)
        same(split(ids), interleaved(ids))
        for name, weight in weights.items():  # and back
            if "attention.query" in name:
                back = change_pairing(weight, 4, to="interleaved")
                assert back.equal(interleaved.state_dict()[name])


def test_rope_turns_neighbours_by_the_angle_of_the_formula():
    layer = make(MultiHeadAttention, 4, 1, pairing="interleaved")
    stack = make(Stack, tiny(d_model=4, n_heads=1, position="rope"), causal=True)
    x = random_vectors(1, 3, 4)
    _, weights = layer.with_weights(x, angles=stack._angles(torch.arange(3)[None]))
    q, k = layer.query(x)[0].tolist(), layer.key(x)[0].tolist()

    def turned(vector, place):
        pairs = [complex(*vector[:2]), complex(*vector[2:])]
        angles = (place * 10_000**0, place * 10_000**-0.5)
        return [z * complex(math.cos(a), math.sin(a)) for z, a in zip(pairs, angles, strict=True)]

    for i in range(3):
        dots = [
            sum(
                (a * b.conjugate()).real
                for a, b in zip(turned(q[i], i), turned(k[j], j), strict=True)
            )
            for j in range(3)
        ]
        expected = torch.tensor(dots, dtype=torch.float64).div(2).softmax(dim=0)
        assert_close(weights[0, 0, i], expected, rtol=0, atol=1e-6)


def test_embeddings_follow_the_formula_of_the_paper():
    config = tiny(position="sinusoidal")
    embed = make(Embedding, config)
    width = config.d_model
    expected = [
        [
            embed.tokens.weight[token, i].item() * math.sqrt(width)
            + (math.cos if i % 2 else math.sin)(place / 10_000 ** ((i - i % 2) / width))
            for i in range(width)
        ]
        for place, token in enumerate((5, 7, 5))
    ]
    found = embed(torch.tensor([[5, 7, 5]]), torch.arange(3)[None])[0]
    assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def test_a_bias_is_added_to_scores_that_are_scaled_already():
    layer = make(MultiHeadAttention, 16, 4)
    bias = random_vectors(4, 5, 5)
    x = torch.ones(1, 5, 16, dtype=torch.float64)  # all scores of a query are equal
    _, weights = layer.with_weights(x, bias=bias)
    same(weights[0], bias.softmax(dim=-1))


# Blocks, networks and norms against their formulas, written out.


def test_a_block_follows_the_formulas_of_its_paper():
    x, memory = random_vectors(2, 5, 16), random_vectors(2, 6, 16, seed=1)
    real, real_memory = (
        real_tokens((n, 3), n, "right")[:, None, None, :] for n in (5, 6)
    )  # (B, 1, 1, T) and (B, 1, 1, S)
    for norm_position in ("pre", "post"):
        block = make(Block, tiny(norm_position=norm_position), cross_attention=True)
        expected = x
        sublayers = {
            block.attention_norm: lambda h, b=block: b.attention(h, mask=real, causal=True),
            block.cross_attention_norm: lambda h, b=block: b.cross_attention(
                h, memory, real_memory
            ),
            block.feed_forward_norm: block.feed_forward,
        }
        for norm, sublayer in sublayers.items():
            if norm_position == "pre":
                expected = expected + sublayer(norm(expected))
            else:
                expected = norm(expected + sublayer(expected))
        same(block(x, real, memory, real_memory, causal=True), expected)


def test_each_activation_follows_its_formula():
    def gelu(x):
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2

    def gelu_tanh(x):
        return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    formulas = {
        "relu": lambda x: x.clamp(min=0),
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "swiglu": lambda x: x / (1 + torch.exp(-x)),
        "geglu": gelu,
        "geglu_tanh": gelu_tanh,
    }
    x = random_vectors(3, 8)
    for activation, formula in formulas.items():
        network = make(FeedForward, 8, 12, activation)
        if network.gate is None:
            inner = formula(network.up(x))
        else:
            inner = formula(network.gate(x)) * network.up(x)
        same(network(x), network.down(inner), msg=lambda text, a=activation: f"{a}: {text}")


def test_a_mixture_equals_its_experts_asked_one_token_at_a_time():
    layer = make(MixtureOfExperts, tiny(n_experts=4, active_experts=2))
    x = random_vectors(2, 5, 16)
    for said, token in zip(layer(x).flatten(end_dim=1), x.flatten(end_dim=1), strict=True):
        scores = layer.router.weight @ token
        best = sorted(range(4), key=lambda i: -scores[i].item())[:2]
        shares = scores[best].softmax(dim=0)  # as if there were no others
        expected = sum(w * layer.experts[i](token) for w, i in zip(shares, best, strict=True))
        same(said, expected)


def test_norms_equal_the_formulas_written_out():
    for size in (1.0, 1e-3):  # small vectors tell where epsilon stands
        x = size * random_vectors(2, 5, 16)
        layer, rms = make(LayerNorm, 16), make(RMSNorm, 16)
        same(layer(x), layer_norm(x, layer.weight, layer.bias))
        same(rms(x), rms_norm(x, rms.weight))


def test_logits_follow_the_formula_of_t5():
    config = tiny(logit_scale=16**-0.5, tie_embeddings=True)
    model, ids = make(CausalLM, config), random_ids(2, N)
    vectors = model.decoder(ids)
    same(model(ids), vectors @ model.decoder.embedding.tokens.weight.mT / math.sqrt(16))


def test_patches_equal_a_convolution():
    layer, images = make(PatchEmbedding, 8, 4, n_channels=3, d_model=6), random_vectors(2, 3, 8, 8)
    kernel = layer.projection.weight.view(6, 3, 4, 4)
    expected = F.conv2d(images, kernel, layer.projection.bias, stride=4)  # (B, D, rows, columns)
    same(layer(images), expected.flatten(start_dim=2).mT)


# With a cache or without.


def in_steps(decoder, ids, sizes, *, mask=None, positions=None, **memory):
    """Decode some tokens at a time with a cache, and lay the results side by side."""
    cache = KeyValueCache(decoder.config.n_layers, max_len=N)
    results, start = [], 0
    for size in sizes:
        now = slice(start, start + size)
        results.append(
            decoder(
                ids[:, now],
                mask=None if mask is None else mask[..., : now.stop],
                positions=None if positions is None else positions[:, now],
                cache=cache,
                **memory,
            )
        )
        start += size
    assert cache.length == N
    return torch.cat(results, dim=1)


steps = st.sampled_from(((4, 1, 1, 1), (1,) * N, (2, 3, 2), (N,)))


@settings(max_examples=8, deadline=None)
@given(config=tiny_configs(), sizes=steps, seed=seeds)
@example(config=tiny(position="none"), sizes=(2, 3, 2), seed=0)
@example(config=tiny(position="learned"), sizes=(4, 1, 1, 1), seed=0)
@example(config=tiny(position="rope", n_kv_heads=2, window=3), sizes=(4, 1, 1, 1), seed=0)
@example(config=tiny(position="t5", n_kv_heads=1), sizes=(2, 3, 2), seed=0)
@example(config=tiny(position="alibi"), sizes=(1,) * N, seed=0)
def test_decoding_with_a_cache_equals_decoding_without(config, sizes, seed):
    ids = random_ids(2, N, seed=seed)
    model = make(CausalLM, config, seed=seed)
    with torch.no_grad():
        same(in_steps(model, ids, sizes), model(ids))


@few
@given(config=tiny_configs(), sizes=steps, seed=seeds)
@example(config=tiny(position="learned"), sizes=(4, 1, 1, 1), seed=0)
def test_a_cache_keeps_left_padding_apart(config, sizes, seed):
    real = real_tokens((N, 4), N, "left")
    ids, mask, positions = random_ids(2, N, seed=seed), real[:, None, None, :], positions_of(real)
    model = make(CausalLM, config, seed=seed)
    with torch.no_grad():
        cached = in_steps(model, ids, sizes, mask=mask, positions=positions)
        same(cached[real], model(ids, mask, positions=positions)[real])
        same(cached[1, 3:], model(ids[1:, 3:])[0])  # the padded sequence alone


@few
@given(config=tiny_configs(), sizes=steps, seed=seeds)
@example(config=tiny(), sizes=(2, 3, 2), seed=0)
def test_a_cache_keeps_what_the_encoder_said(config, sizes, seed):
    ids, memory = random_ids(2, N, seed=seed), random_vectors(2, 5, 16, seed=seed)
    memory_mask = real_tokens((5, 3), 5, "right")[:, None, None, :]
    decoder = make(Decoder, config, cross_attention=True, seed=seed)
    with torch.no_grad():
        cached = in_steps(decoder, ids, sizes, memory=memory, memory_mask=memory_mask)
        same(cached, decoder(ids, memory, memory_mask=memory_mask))


# Compiled or not, in other number formats, on no device at all.

COMPILED = {
    "llama": (CausalLM, tiny(**LLAMA, n_layers=1)),
    "t5": (Seq2SeqLM, tiny(position="t5", norm_position="pre", window=4, n_layers=1)),
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_in_one_graph_and_eager_agree(name):
    build, config = COMPILED[name]
    model, inputs = make(build, config), runs(real_tokens((N, 4), N, "right"))[build]
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    result = {}
    for route in (model, compiled):
        model.zero_grad()
        logits = route(*inputs)
        (logits * random_like(logits)).sum().backward()
        result[route] = logits, [parameter.grad for parameter in model.parameters()]
    same(result[compiled], result[model])


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch, about itself
def test_compiled_to_machine_code_and_eager_agree():
    model, ids = make(CausalLM, tiny(position="rope", n_layers=1)), random_ids(2, N)
    with torch.no_grad():
        # 1e-6: the machine code has its own sine and cosine, in float32
        same(torch.compile(model, fullgraph=True)(ids), model(ids), atol=1e-6)


@pytest.mark.parametrize("position", CHOICES["position"])
def test_bfloat16_stays_near(position):
    for build, inputs in runs(real_tokens((N, 4), N, "right")).items():
        model = make(build, tiny(position=position, n_layers=1)).float()
        expected = model(*inputs)
        model.bfloat16()
        for fused in (True, False):
            for layer in attentions(model):
                layer.fused = fused
            logits = model(*inputs)
            assert logits.dtype == torch.bfloat16
            assert (logits.float() - expected).abs().max() < 0.06 * expected.abs().max()


@pytest.mark.parametrize("position", CHOICES["position"])
def test_shapes_are_known_on_the_meta_device(position):
    models = runs(real_tokens((N, 4), N, "right"))
    with torch.device("meta"):
        for build, inputs in models.items():
            model = build(tiny(**LLAMA | {"position": position}, n_layers=1, window=3))
            logits = model(*(tensor.to("meta") for tensor in inputs))
            assert logits.is_meta
            assert logits.shape == (2, inputs[-1].shape[-1], VOCAB)
        image = torch.zeros(2, 3, 8, 8)
        config = tiny(position=position, max_len=5, n_layers=1)
        assert VisionTransformer(config, 8, 4, n_classes=10)(image).shape == (2, 10)


# Copies and modes.


@pytest.mark.parametrize("tied", [True, False])
def test_a_copy_and_a_reloaded_model_say_the_same(tied):
    config = tiny(position="t5", tie_embeddings=tied)
    for build, inputs in runs(real_tokens((N, 4), N, "right")).items():
        model = make(build, config)
        twin, reloaded = copy.deepcopy(model), build(config).double().eval()
        reloaded.load_state_dict(model.state_dict())
        for other in (twin, reloaded):
            same(other(*inputs), model(*inputs))
            tokens = next(m for m in other.modules() if isinstance(m, nn.Embedding))
            assert (other.output.projection.weight is tokens.weight) == tied
        with torch.no_grad():
            next(twin.parameters()).add_(1.0)
        assert not torch.allclose(twin(*inputs), model(*inputs))  # a copy, not another name


def test_training_without_dropout_equals_evaluation():
    for build, inputs in runs(real_tokens((N, 4), N, "right")).items():
        model = make(build, tiny(dropout=0.0, attention_dropout=0.0))
        expected = model(*inputs)
        same(model.train()(*inputs), expected)


def test_dropout_is_on_in_training_and_off_in_evaluation():
    for place in ("dropout", "attention_dropout"):
        chances = {"dropout": 0.0, "attention_dropout": 0.0, place: 0.5}
        for fused in (True, False):
            for build, inputs in runs(real_tokens((N, 4), N, "right")).items():
                model = make(build, tiny(**chances, n_layers=1))
                for layer in attentions(model):
                    layer.fused = fused
                assert model(*inputs).equal(model(*inputs))
                model.train()
                assert not torch.allclose(model(*inputs), model(*inputs))


def test_an_attention_layer_drops_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    layer = make(MultiHeadAttention, 16, 4, dropout=0.2)
    x = random_vectors(1, 4, 16).expand(2000, -1, -1)
    for layer.fused in (True, False):
        expected = layer.eval()(x[:1])
        drawn = layer.train()(x)
        assert_close(drawn.mean(dim=0, keepdim=True), expected, rtol=0, atol=0.05)


def test_a_classifier_without_classes_returns_what_it_would_classify():
    ids = random_ids(2, N)
    for pooling in ("cls", "mean"):
        classifier = make(SequenceClassifier, tiny(), n_classes=3, pooling=pooling)
        bare = SequenceClassifier(tiny(), n_classes=0, pooling=pooling).double().eval()
        weights = classifier.state_dict()
        bare.load_state_dict({k: v for k, v in weights.items() if "classifier" not in k})
        same(classifier.classifier(bare(ids)), classifier(ids))


def test_encoder_and_decoder_apart_equal_the_two_together():
    (source, target, source_mask, target_mask) = runs(real_tokens((N, 4), N, "right"))[Seq2SeqLM]
    model = make(EncoderDecoder, tiny())
    memory = model.encoder(source, source_mask)
    apart = model.decoder(target, memory, target_mask, source_mask)
    same(apart, model(source, target, source_mask, target_mask))
