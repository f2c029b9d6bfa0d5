"""Latent attention: the formulas of DeepSeek V2, the layers of transformers, and a small cache."""

import math
from functools import partial

import pytest
import torch
from tiny_models import make, random_ids, real_tokens, tiny
from torch.testing import assert_close
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.generation.beam_search import beam_search
from transformer_lib.generation.decoding_step import read_prefix
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.generate import generate
from transformer_lib.layers.build_parts import Parts
from transformer_lib.layers.caches.kv_cache import KeyValueCache, LayerCache
from transformer_lib.layers.caches.rolling_kv_cache import RollingCache
from transformer_lib.layers.latent_attention import LatentAttention
from transformer_lib.layers.masks import causal_mask
from transformer_lib.layers.positions import rope_angles
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
D, H, R, PLAIN, TURNED, DV = 16, 4, 6, 4, 2, 3  # D and H as in tiny_models
ROPE = {
    "position": "rope",
    "head_width": PLAIN + TURNED,
    "rope_fraction": TURNED / (PLAIN + TURNED),
}
MAKE = partial(LatentAttention, d_latent=R, d_value=DV)
SOME_PARTS = Parts(attention=MAKE)


def layer_of(d_query_latent=None, **changes):
    config = tiny(**ROPE | {"attention_dropout": 0.0} | changes)
    return make(MAKE, config, d_query_latent=d_query_latent)


def model_of(kind=CausalLM, **changes):
    return make(kind, tiny(**ROPE | changes), parts=SOME_PARTS)


def x_and_angles(batch=2, length=5):
    x = torch.randn(batch, length, D, generator=torch.Generator().manual_seed(1)).double()
    return x, rope_angles(torch.arange(length), TURNED)[None, None]


def normed(vector, weight, eps):
    return vector / (vector.pow(2).mean() + eps).sqrt() * weight


def turned(vector, place):
    """Equation 15: pairs of neighbours, each turned by its angle; here there is one pair."""
    a, b = vector
    cos, sin = math.cos(place), math.sin(place)
    return torch.stack((a * cos - b * sin, a * sin + b * cos))


def by_formula(layer, x):
    """Equations 9 to 19 of the paper, token by token and head by head."""
    weights = layer.key_value.weight.unflatten(0, (H, PLAIN + DV))
    queries = layer.query.weight.unflatten(0, (H, PLAIN + TURNED))
    found = torch.zeros(*x.shape[:2], H, DV, dtype=x.dtype)
    for b in range(x.shape[0]):
        latents, shared = [], []
        for t in range(x.shape[1]):
            made = layer.latent.weight @ x[b, t] + layer.latent.bias
            latents.append(normed(made[:R], layer.latent_norm.weight, layer.latent_norm.eps))
            shared.append(turned(made[R:], t))
            c = x[b, t]
            if layer.query_latent is not None:
                c = layer.query_latent.weight @ c + layer.query_latent.bias
                c = normed(c, layer.query_latent_norm.weight, layer.query_latent_norm.eps)
            for h in range(H):
                q = queries[h] @ c
                q = torch.cat((q[:PLAIN], turned(q[PLAIN:], t)))
                keys = [
                    torch.cat((weights[h, :PLAIN] @ latents[j], shared[j])) for j in range(t + 1)
                ]
                scores = torch.stack([q @ k for k in keys]) / math.sqrt(PLAIN + TURNED)
                values = torch.stack([weights[h, PLAIN:] @ latents[j] for j in range(t + 1)])
                found[b, t, h] = scores.softmax(dim=0) @ values
    return found.flatten(2) @ layer.output.weight.T + layer.output.bias


@torch.no_grad()
def test_attention_is_that_of_the_formulas():
    for d_query_latent in (None, 5):
        layer = layer_of(d_query_latent)
        x, angles = x_and_angles()
        wanted = by_formula(layer, x)
        layer.fused = True
        for latents in (False, True):
            layer.reads_latents = lambda T, S, choice=latents: choice
            assert_close(layer(x, angles=angles, causal=True), wanted)
        layer.fused = False
        assert_close(layer(x, angles=angles, causal=True), wanted)
        assert_close(layer.with_weights(x, angles=angles, causal=True)[0], wanted)


@torch.no_grad()
def test_latent_vectors_are_read_as_keys_and_values_are():
    """Gradients apart: with masks, a bias, and a scale of its own."""
    for scale in (None, 0.3):
        layer = layer_of(attention_scale=scale)
        layer.fused = True
        x, angles = x_and_angles()
        bias = torch.randn(1, H, 5, 5, generator=torch.Generator().manual_seed(2)).double()
        mask = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(3)) > 0.3
        mask |= torch.eye(5, dtype=torch.bool)
        found = []
        for latents in (False, True):
            layer.reads_latents = lambda T, S, choice=latents: choice
            found.append(layer(x, mask=mask, bias=bias, angles=angles, causal=True))
        assert_close(*found)


def peer_layer(module, config_class, d_query_latent):
    config = config_class(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=H, kv_lora_rank=R,
        q_lora_rank=d_query_latent, qk_rope_head_dim=4, qk_nope_head_dim=PLAIN, v_head_dim=DV,
        attention_bias=True, rope_theta=10_000.0, max_position_embeddings=32,
        attn_implementation="eager",
    )  # fmt: skip
    name = config_class.__name__.removesuffix("Config")
    torch.manual_seed(0)
    layer = getattr(module, name + "Attention")(config, 0).eval()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return layer, getattr(module, name + "RotaryEmbedding")(config)


OUR_NAMES = {
    "q_proj": "query", "q_a_proj": "query_latent", "q_a_layernorm": "query_latent_norm",
    "q_b_proj": "query", "kv_a_proj_with_mqa": "latent", "kv_a_layernorm": "latent_norm",
    "kv_b_proj": "key_value", "o_proj": "output",
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("d_query_latent", [None, 5])
@pytest.mark.parametrize(("module", "config"), [(v2, DeepseekV2Config), (v3, DeepseekV3Config)])
def test_attention_is_that_of_transformers(module, config, d_query_latent):
    peer, rotary = peer_layer(module, config, d_query_latent)
    ours = LatentAttention(
        tiny(position="rope", head_width=PLAIN + 4, rope_fraction=0.5, norm_eps=1e-6),
        d_latent=R, d_value=DV, d_query_latent=d_query_latent,
    ).eval()  # fmt: skip
    theirs = {
        f"{OUR_NAMES[name.split('.')[0]]}.{name.split('.')[1]}": weight
        for name, weight in peer.state_dict().items()
    }
    ours.load_state_dict(theirs)  # every weight has its place
    x, places = x_and_angles()[0].float(), torch.arange(5)[None]
    hidden = torch.zeros(1, 1, 5, 5).masked_fill(~causal_mask(5), -math.inf)
    wanted = peer(hidden_states=x, position_embeddings=rotary(x, places), attention_mask=hidden)[0]
    angles = rope_angles(places, 4)[:, None]
    assert_close(ours(x, angles=angles, causal=True), wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{"window": 3}, {"position": "alibi"}, {"rope_pattern": "RN"}])
def test_with_a_cache_the_scores_are_the_same(changes):
    model, ids = model_of(**changes), random_ids(2, 12)
    wanted = model(ids)
    for sizes in ([12], [7, 1, 1, 3]):
        cache, start, found = KeyValueCache(2, 12), 0, []
        for size in sizes:
            found.append(model(ids[:, start : start + size], cache=cache))
            start += size
        assert_close(torch.cat(found, dim=1), wanted)


def test_a_cache_holds_one_latent_vector_of_each_token():
    model = model_of()
    cache = KeyValueCache(2, 20)
    generate(model, random_ids(3, 7), max_new_tokens=4, cache=cache)
    assert cache.n_bytes == 2 * 3 * 20 * (R + TURNED) * 8  # layers, rows, places, float64
    usual = KeyValueCache(2, 20)
    generate(make(CausalLM, tiny(**ROPE)), random_ids(3, 7), max_new_tokens=4, cache=usual)
    assert usual.n_bytes == 2 * 3 * 20 * 2 * H * (PLAIN + TURNED) * 8


def test_all_ways_to_generate_know_it(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    ids, model = random_ids(2, 8), model_of(window=4)
    usual = {"max_new_tokens": 6, "prompt_mask": real_tokens([5, 8], 8, "left")}
    wanted = generate(model, ids, use_cache=False, **usual)
    cache = RollingCache(model.config)
    assert torch.equal(generate(model, ids, cache=cache, prefill_chunk=3, **usual), wanted)
    assert torch.equal(generate(CompiledDecoder(model, 20), ids, **usual), wanted)
    beams = [beam_search(model, ids, n_beams=2, use_cache=x, **usual)[1] for x in (True, False)]
    assert_close(*beams)
    prefix = read_prefix(model, ids[:1, :4])
    found = generate(model, ids[:1], max_new_tokens=6, prefix=prefix)
    assert torch.equal(found, generate(model, ids[:1], max_new_tokens=6))


@torch.no_grad()
def test_a_translator_may_be_made_of_it():
    model, source, ids = model_of(Seq2SeqLM), random_ids(2, 5), random_ids(2, 3)
    usual = {"max_new_tokens": 5, "source": source}
    wanted = generate(model, ids, use_cache=False, **usual)
    assert torch.equal(generate(model, ids, **usual), wanted)


def test_gradients_are_those_of_the_readable_path():
    x, angles = x_and_angles()
    found = []
    for fused in (True, False):
        layer = layer_of(5)
        layer.fused = fused
        layer(x, angles=angles, causal=True).square().sum().backward()
        found.append([weight.grad for weight in layer.parameters()])
    for one, other in zip(*found, strict=True):
        assert_close(one, other)


def test_the_cheaper_way_is_taken():
    """With the sizes of DeepSeek V3: latent vectors for one new token, keys in training."""
    config = tiny(d_model=64, n_heads=2, position="rope", head_width=192, rope_fraction=1 / 3)
    layer = LatentAttention(config, d_latent=512, d_value=128)
    assert (layer.d_kept, layer.d_plain) == (576, 128)
    assert layer.reads_latents(1, 4096)
    assert not layer.reads_latents(4096, 4096)


@torch.no_grad()
def test_a_hook_on_the_weights_that_make_keys_is_called():
    layer, calls = layer_of(), []
    layer.fused = True
    x, _ = x_and_angles(length=1)
    cache = LayerCache(9)
    assert Fingerprint([layer.key_value]).is_plain
    for _ in range(4):
        layer(x, causal=True, cache=cache)
    handle = layer.key_value.register_forward_hook(lambda *_: calls.append(1))
    layer(x, causal=True, cache=cache)
    handle.remove()
    assert calls == [1]
    layer.key_value = torch.nn.Sequential(layer.key_value)
    assert layer(x, causal=True, cache=cache).shape == x.shape
