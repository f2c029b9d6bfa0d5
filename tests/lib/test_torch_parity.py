"""Ours equals PyTorch's own modules: outputs, weights and gradients, float32, rtol 1e-5."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch_weights import copy_attention, copy_block, copy_stack, randomise, small_config

from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.feedforward import ACTIVATIONS
from transformer_lib.layers.masks import causal_mask, padding_mask
from transformer_lib.layers.norms import LayerNorm, RMSNorm, layer_norm, rms_norm
from transformer_lib.models.blocks import Block, Stack

CLOSE = {"rtol": 1e-5, "atol": 2e-6}
D, H, F = 8, 2, 12
PADDING = padding_mask(torch.tensor([5, 3]), 5)
THEIR_PADDING = ~PADDING[:, 0, 0]  # PyTorch's key_padding_mask: True = ignore
THEIR_CAUSAL = ~causal_mask(5)  # nn.Transformer's mask: True = may not attend


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(output, inputs):
    """Gradients of a fixed mixture of the outputs."""
    mixture = vectors(*output.shape, seed=9)
    return torch.autograd.grad((output * mixture).sum(), inputs, retain_graph=True)


def assert_same(ours, theirs, our_inputs, their_inputs):
    assert_close(ours, theirs, **CLOSE)
    for mine, other in zip(
        gradients(ours, our_inputs), gradients(theirs, their_inputs), strict=True
    ):
        assert_close(mine, other, **CLOSE)


def both(*tensors):
    return [t.clone().requires_grad_() for t in tensors], [
        t.clone().requires_grad_() for t in tensors
    ]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("case", ["self", "cross", "padded", "causal"])
def test_multi_head_attention_equals_torch(bias, fused, case):
    theirs = randomise(nn.MultiheadAttention(D, H, bias=bias, batch_first=True))
    ours = MultiHeadAttention(D, H, bias=bias)
    ours.fused = fused
    copy_attention(ours, theirs)
    (x, memory), (their_x, their_memory) = both(vectors(2, 5, D), vectors(2, 7, D, seed=1))
    if case == "cross":
        mine, other = ours(x, memory), theirs(their_x, their_memory, their_memory)[0]
        assert_same(mine, other, (x, memory), (their_x, their_memory))
        return
    hidden = {"padded": {"key_padding_mask": THEIR_PADDING}, "causal": {"attn_mask": THEIR_CAUSAL}}
    other = theirs(their_x, their_x, their_x, **hidden.get(case, {}))[0]
    mine = ours(x, mask=PADDING if case == "padded" else None, causal=case == "causal")
    assert_same(mine, other, (x,), (their_x,))


def test_attention_weights_equal_torch():
    theirs = randomise(nn.MultiheadAttention(D, H, batch_first=True))
    ours = MultiHeadAttention(D, H)
    copy_attention(ours, theirs)
    x = vectors(2, 5, D)
    output, weights = ours.with_weights(x, mask=PADDING)
    their_output, their_weights = theirs(
        x, x, x, key_padding_mask=THEIR_PADDING, average_attn_weights=False
    )
    assert_close(output, their_output, **CLOSE)
    assert_close(weights, their_weights, **CLOSE)


def test_parameter_gradients_of_attention_equal_torch():
    theirs = randomise(nn.MultiheadAttention(D, H, batch_first=True)).double()
    ours = MultiHeadAttention(D, H).double()
    copy_attention(ours, theirs)
    x = vectors(2, 5, D).double()
    mixture = vectors(2, 5, D, seed=9).double()
    (ours(x) * mixture).sum().backward()
    (theirs(x, x, x)[0] * mixture).sum().backward()
    projections = (ours.query, ours.key, ours.value)
    assert_close(torch.cat([p.weight.grad for p in projections]), theirs.in_proj_weight.grad)
    assert_close(torch.cat([p.bias.grad for p in projections]), theirs.in_proj_bias.grad)
    assert_close(ours.output.weight.grad, theirs.out_proj.weight.grad)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_block_equals_torch(norm_position, activation):
    theirs = nn.TransformerEncoderLayer(
        D, H, F, dropout=0.0, activation=activation, batch_first=True,
        norm_first=norm_position == "pre",
    )  # fmt: skip
    ours = Block(small_config(norm_position=norm_position, activation=activation))
    copy_block(ours, randomise(theirs))
    (x,), (their_x,) = both(vectors(2, 5, D))
    mine = ours(x, PADDING)
    other = theirs(their_x, src_key_padding_mask=THEIR_PADDING)
    assert_same(mine, other, (x,), (their_x,))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_decoder_block_equals_torch(norm_position):
    theirs = nn.TransformerDecoderLayer(
        D, H, F, dropout=0.0, batch_first=True, norm_first=norm_position == "pre"
    )
    ours = Block(small_config(norm_position=norm_position), cross_attention=True)
    copy_block(ours, randomise(theirs))
    (x, memory), (their_x, their_memory) = both(vectors(2, 5, D), vectors(2, 7, D, seed=1))
    memory_mask = padding_mask(torch.tensor([4, 7]), 7)
    mine = ours(x, PADDING, memory, memory_mask, causal=True)
    other = theirs(
        their_x,
        their_memory,
        tgt_mask=THEIR_CAUSAL,
        tgt_key_padding_mask=THEIR_PADDING,
        memory_key_padding_mask=~memory_mask[:, 0, 0],
    )
    assert_same(mine, other, (x, memory), (their_x, their_memory))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_whole_transformer_equals_torch(norm_position):
    """PyTorch ends post-norm stacks with one more norm, which the paper does not have: removed."""
    pre = norm_position == "pre"
    theirs = randomise(nn.Transformer(D, H, 2, 2, F, dropout=0.0, batch_first=True, norm_first=pre))
    if not pre:
        theirs.encoder.norm = theirs.decoder.norm = None
    config = small_config(norm_position=norm_position)
    encoder = Stack(config, causal=False)
    decoder = Stack(config, causal=True, cross_attention=True)
    copy_stack(encoder, theirs.encoder)
    copy_stack(decoder, theirs.decoder)
    (source, target), (their_source, their_target) = both(
        vectors(2, 7, D), vectors(2, 5, D, seed=1)
    )
    source_mask = padding_mask(torch.tensor([7, 4]), 7)
    hidden = ~source_mask[:, 0, 0]
    mine = decoder(target, PADDING, encoder(source, source_mask), source_mask)
    other = theirs(
        their_source,
        their_target,
        tgt_mask=THEIR_CAUSAL,
        src_key_padding_mask=hidden,
        tgt_key_padding_mask=THEIR_PADDING,
        memory_key_padding_mask=hidden,
    )
    assert_same(mine, other, (source, target), (their_source, their_target))


@pytest.mark.parametrize("eps", [1e-5, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_equals_torch(eps, bias):
    theirs = randomise(nn.LayerNorm(D, eps=eps, bias=bias))
    ours = LayerNorm(D, eps, bias=bias)
    ours.load_state_dict({"weight": theirs.weight} | ({"bias": theirs.bias} if bias else {}))
    (x, y), (their_x, _) = both(vectors(2, 5, D), vectors(2, 5, D))
    written_out = layer_norm(y, ours.weight, ours.bias, eps)
    assert_same(ours(x), theirs(their_x), (x,), (their_x,))
    assert_same(written_out, theirs(their_x), (y,), (their_x,))


@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_rms_norm_equals_torch(eps):
    theirs = randomise(nn.RMSNorm(D, eps=eps))
    ours = RMSNorm(D, eps)
    ours.load_state_dict({"weight": theirs.weight})
    (x, y), (their_x, _) = both(vectors(2, 5, D), vectors(2, 5, D))
    assert_same(ours(x), theirs(their_x), (x,), (their_x,))
    assert_same(rms_norm(y, ours.weight, eps), theirs(their_x), (y,), (their_x,))


@pytest.mark.parametrize(
    ("name", "theirs"),
    {
        "relu": nn.ReLU(),
        "gelu": nn.GELU(),
        "gelu_tanh": nn.GELU(approximate="tanh"),
        "swiglu": nn.SiLU(),
        "geglu": nn.GELU(),
        "geglu_tanh": nn.GELU(approximate="tanh"),
    }.items(),
)
def test_activations_equal_torch(name, theirs):
    x = torch.linspace(-4, 4, 50)
    assert_close(ACTIVATIONS[name][0](x), theirs(x))
    assert ACTIVATIONS[name][1] == (name in ("swiglu", "geglu", "geglu_tanh"))
