"""Gated linear attention: chunks give the numbers of the recurrence, and a state is the cache."""

import math

import pytest
import torch
from tiny_models import make, random_ids, random_like, real_tokens, tiny
from torch.testing import assert_close

from transformer_lib.generation.beam_search import beam_search
from transformer_lib.generation.generate import generate
from transformer_lib.layers.build_parts import Parts
from transformer_lib.layers.linear_attention import (
    SLOW,
    GatedLinearAttention,
    StateCache,
    _in_chunks,
)
from transformer_lib.models.language_models import CausalLM

PARTS = Parts(attention=lambda config: GatedLinearAttention(config, d_gate=5, chunk=4))
D, H, DK = 16, 4, 4  # as in tiny_models


def config_of(**changes):
    return tiny(**{"position": "none", "attention_dropout": 0.0} | changes)


def model_of(**changes):
    return make(CausalLM, config_of(**changes), parts=PARTS)


def layer_of(chunk=4, **changes):
    return make(GatedLinearAttention, config_of(**changes), d_gate=5, chunk=chunk)


def inputs(length=11, least_gate=0.2):
    """Queries, keys, values, logarithms of gates, and a state."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, length, 4, generator=generator, dtype=torch.float64)
    gates = torch.rand(q.shape, generator=generator, dtype=torch.float64)
    state = torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)
    return q, k, v, (least_gate + (1 - least_gate) * gates).log(), state


def recurrence(q, k, v, log_gates, state):
    """Equation by equation: forget, write, read."""
    found = []
    for t in range(q.shape[2]):
        state = torch.einsum("bhd,bhde->bhde", log_gates[:, :, t].exp(), state)
        state = state + torch.einsum("bhd,bhe->bhde", k[:, :, t], v[:, :, t])
        found.append(torch.einsum("bhd,bhde->bhe", q[:, :, t], state))
    return torch.stack(found, dim=2), state


def number_by_number(q, k, v, log_gates, state, batch, head, t):
    """One output without a recurrence: each key, times all gates that came after it."""
    found = [0.0] * v.shape[-1]
    for d in range(k.shape[-1]):
        gates = [math.exp(x) for x in log_gates[batch, head, : t + 1, d].tolist()]
        for e in range(v.shape[-1]):
            total = math.prod(gates) * float(state[batch, head, d, e])
            for s in range(t + 1):
                left = math.prod(gates[s + 1 :]) * float(k[batch, head, s, d])
                total += left * float(v[batch, head, s, e])
            found[e] += float(q[batch, head, t, d]) * total
    return found


@pytest.mark.parametrize("chunk", [1, 3, 4, 11, 64])
def test_chunks_give_the_numbers_of_the_recurrence(chunk):
    """And its gradients: of all inputs, and of the state."""
    given = [x.requires_grad_() for x in inputs()]
    results = [_in_chunks(*given, chunk), recurrence(*given)]
    (found, last), (wanted, wanted_last) = results
    assert_close(found, wanted)
    assert_close(last, wanted_last)
    weigh = random_like(found)
    gradients, wanted_gradients = (
        torch.autograd.grad((x * weigh).sum() + y.square().sum(), given) for x, y in results
    )
    for gradient, wanted_gradient in zip(gradients, wanted_gradients, strict=True):
        assert_close(gradient, wanted_gradient)


def test_each_output_is_a_sum_over_the_past():
    given = inputs()
    found, _ = _in_chunks(*given, 4)
    for place in ((0, 0, 0), (1, 2, 5), (0, 1, 10)):
        assert found[place].tolist() == pytest.approx(number_by_number(*given, *place))


def test_gates_that_forget_all_divide_by_nothing():
    """A chunk's gates multiply to e^-3200 here: an inverse would be infinite."""
    q, k, v, log_gates, state = inputs(length=32)
    log_gates = torch.full_like(log_gates, -100.0).requires_grad_()
    found, last = _in_chunks(q, k, v, log_gates, state, 32)
    assert_close(found, (q * k).sum(dim=-1, keepdim=True) * v)
    assert_close(last, k[:, :, -1, :, None] * v[:, :, -1, None])
    (found.sum() + last.sum()).backward()
    assert log_gates.grad.isfinite().all()


def test_with_open_gates_nothing_is_forgotten():
    q, k, v, log_gates, state = inputs()
    found, _ = _in_chunks(q, k, v, torch.zeros_like(log_gates), torch.zeros_like(state), 4)
    assert_close(found, (q @ k.mT).tril() @ v)


# The layer.


@torch.no_grad()
def test_the_layer_is_that_of_the_formulas():
    layer = layer_of(bias=True)
    x = random_like(torch.zeros(2, 11, D, dtype=torch.float64))

    def heads(y):
        return y.unflatten(-1, (H, DK)).transpose(1, 2)

    gates = torch.sigmoid(layer.gate_up(layer.gate_down(x))) ** (1 / SLOW)
    parts = (heads(y) for y in (layer.query(x), layer.key(x), layer.value(x), gates.log()))
    found, _ = recurrence(*parts, torch.zeros(2, H, DK, DK, dtype=torch.float64))
    mean = found.pow(2).mean(dim=-1, keepdim=True)
    normed = found / (mean + layer.head_norm.eps).sqrt() * layer.head_norm.weight
    wanted = layer.output(normed.transpose(1, 2).flatten(2))
    assert_close(layer(x, causal=True), wanted)
    by_pairs, weights = layer.with_weights(x, causal=True)
    assert_close(by_pairs, wanted)
    assert weights.triu(1).abs().max() == 0


def test_states_are_kept_in_float32():
    layer, cache = layer_of().bfloat16(), StateCache(1, 9)
    with torch.no_grad():
        found = layer(torch.ones(1, 3, D).bfloat16(), causal=True, cache=cache.layers[0])
    assert found.dtype == torch.bfloat16
    assert cache.layers[0].state.dtype == torch.float32


# Whole models.


@torch.no_grad()
def test_a_text_is_read_alike_at_once_in_pieces_and_token_by_token():
    model, ids = model_of(), random_ids(2, 13)
    whole = model(ids)
    for sizes in ([1] * 13, [5, 1, 7], [4, 4, 5]):
        cache = StateCache(model.config.n_layers, 13)
        pieces = [model(part, cache=cache) for part in ids.split(sizes, dim=1)]
        assert_close(torch.cat(pieces, dim=1), whole)
        assert cache.length == 13


@torch.no_grad()
def test_no_token_sees_a_later_one():
    model, ids = model_of(), random_ids(1, 13)
    other = ids.clone()
    other[0, 7:] = random_ids(1, 6, seed=1)
    assert not torch.equal(ids, other)
    assert_close(model(ids)[:, :7], model(other)[:, :7])


@torch.no_grad()
def test_padding_on_either_side_changes_nothing():
    model, lengths = model_of(), [13, 4, 1]
    ids = random_ids(3, 13)
    for side in ("left", "right"):
        real = real_tokens(lengths, 13, side)
        batch = model(ids, real[:, None, None])
        for row in range(3):
            assert_close(batch[row, real[row]], model(ids[row : row + 1, real[row]])[0])


def test_a_state_writes_what_is_written_without_a_cache():
    """Greedy and with beams, in a batch with padding, prompts at once and in pieces."""
    model, ids = model_of(), random_ids(2, 6)
    real = real_tokens([6, 3], 6, "left")
    options = {"prompt_mask": real, "max_new_tokens": 8}

    def cache():
        return StateCache(model.config.n_layers, 30)

    wanted = generate(model, ids, use_cache=False, **options)
    assert torch.equal(generate(model, ids, cache=cache(), **options), wanted)
    in_pieces = generate(model, ids, cache=cache(), prefill_chunk=2, **options)
    assert torch.equal(in_pieces, wanted)
    wanted, scores = beam_search(model, ids, n_beams=3, use_cache=False, eos_id=3, **options)
    found, own = beam_search(model, ids, n_beams=3, cache=cache(), eos_id=3, **options)
    assert torch.equal(found, wanted)
    assert_close(own, scores)


def test_a_cache_does_not_grow_and_can_be_used_again():
    model, cache = model_of(), StateCache(2, 20)
    sizes, texts = set(), []
    for _ in range(2):
        for n in (2, 12):
            cache.reset()
            texts.append(generate(model, random_ids(1, 3), max_new_tokens=n, cache=cache))
            sizes.add(cache.n_bytes)
    assert sizes == {2 * H * DK * DK * 8}  # two layers, float64
    assert torch.equal(texts[1], texts[3])


def test_a_model_learns_with_it():
    """A text in which each token tells the next one."""
    torch.manual_seed(0)
    model = CausalLM(config_of(dropout=0.0), parts=PARTS)
    ids = torch.arange(24).remainder(7)[None] + 1
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert model(ids).isfinite().all()
