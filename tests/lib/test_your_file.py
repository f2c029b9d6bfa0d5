"""The reader's file equals the library with the same weights, forwards and backwards."""

import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import transformer_lib as lib
from transformer_book import file

EQUAL = {"rtol": 1e-10, "atol": 1e-10}
SEEDS = range(20)
COMPARED = {
    *("merge", "BytePairs", "attention", "causal_mask", "padding_mask", "MultiHeadAttention"),
    *("rotate", "sinusoids"),
    "FeedForward",
    "RMSNorm",
    "Block",
    *("Encoder", "DecoderBlock", "Transformer", "translate"),
}


def is_own(value):
    return callable(value) and getattr(value, "__module__", None) == file.__name__


def test_every_part_is_compared():  # merge and BytePairs in test_your_file_checks.py
    parts = {name for name, value in vars(file).items() if is_own(value)}
    assert parts == COMPARED, "compare the new part with the library here, and add its name"


def drawn(seed, *shapes):
    """Doubles that want a gradient."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [x.requires_grad_() for x in tensors]


def some_mask(seed, *shape, blind=False):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(shape, generator=generator) < 0.5
    mask[..., 0] = True  # every row sees something
    if blind:
        mask[..., shape[-2] // 2, :] = False
    return mask


def gradients(output, inputs, upstream):
    return torch.autograd.grad(output, inputs, upstream, allow_unused=True)


def assert_equal(ours, theirs, ours_in, theirs_in):
    """Outputs and the gradients of all inputs are the same."""
    torch.testing.assert_close(ours, theirs, **EQUAL)
    upstream = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    pairs = zip(
        gradients(ours, ours_in, upstream), gradients(theirs, theirs_in, upstream), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, **EQUAL)


def sizes(seed):
    """B, H, T, S, Dk and Dv, all of them random."""
    return random.Random(seed).choices(range(1, 9), k=6)


def masks_for(seed, b, t, s):
    """No mask, one for pairs, padding, and one with a row that sees nothing."""
    yield None
    yield some_mask(seed, t, s)
    yield some_mask(seed, b, 1, 1, s)
    yield some_mask(seed, t, s, blind=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_attention_is_the_librarys(seed):
    b, h, t, s, d_key, d_value = sizes(seed)
    shapes = (b, h, t, d_key), (b, h, s, d_key), (b, h, s, d_value)
    for mask in masks_for(seed, b, t, s):
        inputs, twins = drawn(seed, *shapes), drawn(seed, *shapes)
        output, weights = file.attention(*inputs, mask)
        expected, expected_weights = lib.attention(*twins, mask)
        torch.testing.assert_close(weights, expected_weights, **EQUAL)
        assert_equal(output, expected, inputs, twins)


@pytest.mark.parametrize("seed", SEEDS)
def test_masks_are_the_librarys(seed):
    b, t, pad_id, *_ = sizes(seed)
    ids = torch.randint(pad_id + 2, (b, t), generator=torch.Generator().manual_seed(seed))
    for found, expected in (
        (file.causal_mask(t), lib.causal_mask(t)),
        (file.padding_mask(ids), lib.token_mask(ids, 0)),
        (file.padding_mask(ids, pad_id), lib.token_mask(ids, pad_id)),
    ):
        torch.testing.assert_close(found, expected)  # the dtype and the shape, too


def test_padding_at_the_end_is_hidden_as_by_its_length():
    lengths = torch.tensor([3, 0, 5])
    ids = (torch.arange(5) < lengths[:, None]).int()
    assert torch.equal(file.padding_mask(ids), lib.padding_mask(lengths, 5))


@pytest.mark.parametrize("seed", SEEDS)
def test_multi_head_attention_is_the_librarys(seed):
    b, h, t, s, d_head, _ = sizes(seed)
    theirs = lib.MultiHeadAttention(h * d_head, h).double()
    ours = file.MultiHeadAttention(h * d_head, h).double()
    ours.load_state_dict(theirs.state_dict())
    for n_keys, shapes in (
        (t, [(b, t, h * d_head)]),
        (s, [(b, t, h * d_head), (b, s, h * d_head)]),
    ):
        for mask in masks_for(seed, b, t, n_keys):
            inputs, twins = drawn(seed, *shapes), drawn(seed, *shapes)
            output, expected = ours(*inputs, mask=mask), theirs(*twins, mask=mask)
            own, other = [*ours.parameters()], [*theirs.parameters()]
            assert_equal(output, expected, [*inputs, *own], [*twins, *other])


@pytest.mark.parametrize("seed", SEEDS)
def test_rotate_is_the_librarys(seed):
    b, h, t, *_, half = sizes(seed)
    positions = torch.randint(500, (t,), generator=torch.Generator().manual_seed(seed))
    angles = lib.rope_angles(positions, 2 * half)
    (x,), (twin,) = drawn(seed, (b, h, t, 2 * half)), drawn(seed, (b, h, t, 2 * half))
    assert_equal(file.rotate(x, positions), lib.rotate(twin, angles), [x], [twin])


def test_rotate_keeps_the_dtype_and_turns_by_the_base_that_is_given():
    x, positions = torch.randn(3, 8), torch.tensor([0, 1, 900])
    turned = file.rotate(x.bfloat16(), positions)
    assert turned.dtype == torch.bfloat16
    exact = file.rotate(x.bfloat16().float(), positions)
    torch.testing.assert_close(turned, exact.bfloat16(), rtol=0, atol=0)
    angles = lib.rope_angles(positions, 8, 500_000.0)
    torch.testing.assert_close(file.rotate(x, positions, 500_000.0), lib.rotate(x, angles))


def test_rotary_attention_runs_in_bfloat16():
    layer = file.MultiHeadAttention(16, 2, rotary=True).bfloat16()
    assert layer(torch.randn(2, 5, 16).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(("length", "width"), [(1, 2), (5, 8), (60, 512)])
def test_sinusoids_are_the_librarys(length, width):
    expected = lib.sinusoidal(torch.arange(length), width)
    torch.testing.assert_close(file.sinusoids(length, width), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_rotary_attention_is_the_librarys(seed):
    b, h, t, s, half, _ = sizes(seed)
    width = 2 * h * half
    theirs = lib.MultiHeadAttention(width, h).double()
    ours = file.MultiHeadAttention(width, h, rotary=True).double()
    ours.load_state_dict(theirs.state_dict())
    angles = lib.rope_angles(torch.arange(t), 2 * half)
    own, other = [*ours.parameters()], [*theirs.parameters()]
    for mask in masks_for(seed, b, t, t):
        (x,), (twin,) = drawn(seed, (b, t, width)), drawn(seed, (b, t, width))
        output, expected = ours(x, mask=mask), theirs(twin, mask=mask, angles=angles)
        assert_equal(output, expected, [x, *own], [twin, *other])
    shapes = (b, t, width), (b, s, width)
    inputs, twins = drawn(seed, *shapes), drawn(seed, *shapes)
    assert_equal(ours(*inputs), theirs(*twins), [*inputs, *own], [*twins, *other])


ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_feed_forward_is_the_librarys(seed, activation):
    b, _, t, _, d_model, d_ff = sizes(seed)
    theirs = lib.FeedForward(d_model, d_ff, activation).double()
    ours = file.FeedForward(d_model, d_ff, ACTIVATIONS[activation]).double()
    ours.load_state_dict(theirs.state_dict())
    for shape in ((b, t, d_model), (d_model,)):
        (x,), (twin,) = drawn(seed, shape), drawn(seed, shape)
        own, other = [*ours.parameters()], [*theirs.parameters()]
        assert_equal(ours(x), theirs(twin), [x, *own], [twin, *other])


def test_feed_forward_has_a_relu_if_nothing_else_is_asked_for():
    x = torch.randn(3, 4)
    layer = file.FeedForward(4, 6)
    torch.testing.assert_close(layer(x), layer.down(layer.up(x).relu()))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_norm_is_the_librarys(seed):
    b, _, t, _, width, _ = sizes(seed)
    eps = (1e-5, 1e-6, 0.1)[seed % 3]
    theirs, ours = lib.RMSNorm(width, eps).double(), file.RMSNorm(width, eps).double()
    torch.nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    for shape in ((b, t, width), (width,)):
        (x,), (twin,) = drawn(seed, shape), drawn(seed, shape)
        own, other = [*ours.parameters()], [*theirs.parameters()]
        assert_equal(ours(x), theirs(twin), [x, *own], [twin, *other])


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_is_the_librarys(seed, rotary, norm):
    b, h, t, _, half, _ = sizes(seed)
    width = 2 * h * half
    theirs = lib.Block(
        lib.TransformerConfig(d_model=width, n_heads=h, norm=norm, norm_position="pre")
    )
    theirs.eval().double()
    kind = {"layer": torch.nn.LayerNorm, "rms": lib.RMSNorm}[norm]
    ours = file.Block(width, h, norm=kind, rotary=rotary, dropout=0.5).eval().double()
    ours.load_state_dict(theirs.state_dict())
    angles = lib.rope_angles(torch.arange(t), 2 * half) if rotary else None
    for mask in masks_for(seed, b, t, t):
        (x,), (twin,) = drawn(seed, (b, t, width)), drawn(seed, (b, t, width))
        output, expected = ours(x, mask), theirs(twin, mask=mask, angles=angles)
        twins = dict(theirs.named_parameters())
        own = dict(ours.named_parameters())
        assert_equal(output, expected, [x, *own.values()], [twin, *(twins[name] for name in own)])


def test_dropout_acts_on_what_a_block_writes_and_not_on_the_stream():
    x = torch.randn(2, 3, 8)
    assert torch.equal(file.Block(8, 2, dropout=1.0)(x), x)


def pre_norm(width, heads, **more):
    return lib.TransformerConfig(
        d_model=width, n_heads=heads, norm_position="pre", dropout=0.0, **more
    )


def four_axes(mask):
    """As a stack of the library asks for it, (B, H, T, S)."""
    return mask[None, None] if mask is not None and mask.ndim == 2 else mask


def parameters_by_name(ours, theirs):
    """Those of both, in the same order."""
    own, twins = dict(ours.named_parameters()), dict(theirs.named_parameters())
    return list(own.values()), [twins[name] for name in own]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_encoder_is_the_librarys_stack(seed):
    b, h, t, _, half, _ = sizes(seed)
    width, n_layers = 2 * h * half, 1 + seed % 3
    config = pre_norm(width, h, n_layers=n_layers, position="none")
    theirs = lib.Stack(config, causal=False).eval().double()
    ours = file.Encoder(width, h, n_layers, dropout=0.5).eval().double()
    ours.load_state_dict(theirs.state_dict())
    own, twins = parameters_by_name(ours, theirs)
    for mask in masks_for(seed, b, t, t):
        (x,), (twin,) = drawn(seed, (b, t, width)), drawn(seed, (b, t, width))
        expected = theirs(twin, four_axes(mask))
        assert_equal(ours(x, mask), expected, [x, *own], [twin, *twins])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_decoder_block_is_the_librarys(seed):
    b, h, t, s, half, _ = sizes(seed)
    width = 2 * h * half
    theirs = lib.Block(pre_norm(width, h), cross_attention=True).eval().double()
    ours = file.DecoderBlock(width, h, dropout=0.5).eval().double()
    ours.load_state_dict(theirs.state_dict())
    own, twins = parameters_by_name(ours, theirs)
    causal = file.causal_mask(t)
    for mask in masks_for(seed, b, t, s):
        shapes = (b, t, width), (b, s, width)
        (x, memory), (twin, other) = drawn(seed, *shapes), drawn(seed, *shapes)
        expected = theirs(twin, causal[None, None], other, four_axes(mask))
        given = [x, memory, *own], [twin, other, *twins]
        assert_equal(ours(x, memory, causal, mask), expected, *given)


def whole_models(seed):
    """The reader's Transformer and the library's, with the same weights."""
    _, h, _, _, half, _ = sizes(seed)
    width, n_layers = 2 * h * half, 1 + seed % 2
    config = pre_norm(width, h, n_layers=n_layers, vocab_size=11, max_len=40)
    theirs = lib.Seq2SeqLM(config).eval().double()
    for parameter in theirs.parameters():  # a fresh model repeats what it has read last
        torch.nn.init.normal_(parameter, std=0.5)
    ours = file.Transformer(11, width, h, n_layers).eval().double()
    encoder, decoder = theirs.body.encoder, theirs.body.decoder
    ours.tokens.load_state_dict(encoder.embedding.tokens.state_dict())
    ours.encoder.load_state_dict(encoder.stack.state_dict())
    ours.decoder.load_state_dict(decoder.stack.blocks.state_dict())
    ours.final_norm.load_state_dict(decoder.stack.final_norm.state_dict())
    return ours, theirs


def some_ids(seed, *shape, padded=False):
    ids = torch.randint(1, 11, shape, generator=torch.Generator().manual_seed(seed))
    if padded:
        ids[0, -1] = 0
    return ids


@pytest.mark.parametrize("seed", SEEDS)
def test_the_whole_transformer_is_the_librarys(seed):
    ours, theirs = whole_models(seed)
    b, _, t, s, _, _ = sizes(seed)
    source, target = some_ids(seed, b, s, padded=s > 1), some_ids(seed + 1, b, t)
    expected = theirs(source, target, lib.token_mask(source, pad_id=0))
    logits = ours(source, target)
    torch.testing.assert_close(logits, expected, **EQUAL)
    upstream = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits)
    (own,) = gradients(logits, [ours.tokens.weight], upstream)
    (other,) = gradients(expected, [theirs.output.projection.weight], upstream)
    torch.testing.assert_close(own, other, **EQUAL)  # of the table, from all three of its jobs


@pytest.mark.parametrize("seed", SEEDS)
def test_it_writes_what_the_library_writes(seed):
    ours, theirs = whole_models(seed)
    b, _, _, s, _, _ = sizes(seed)
    source = some_ids(seed, b, s, padded=s > 1)
    written = file.translate(ours, source, start=1, end=2, longest=12)
    mask = lib.token_mask(source, pad_id=0)
    start = torch.ones(b, 1, dtype=torch.long)
    theirs_written = lib.generate(
        theirs, start, source=source, source_mask=mask, max_new_tokens=12, eos_id=2, pad_id=0
    )
    for own, other in zip(written.tolist(), theirs_written[:, 1:].tolist(), strict=True):
        end = own.index(2) + 1 if 2 in own else len(own)
        assert own[:end] == other[:end]


def test_a_block_takes_another_network():
    block = file.Block(8, 2, feed=lambda d_model, d_ff: torch.nn.Linear(d_model, d_ff // 4))
    assert block(torch.randn(2, 3, 8)).shape == (2, 3, 8)
    assert block.feed_forward.weight.shape == (8, 8)


@pytest.mark.parametrize("name", ["MultiHeadAttention", "FeedForward", "RMSNorm"])
def test_names_and_shapes_of_parameters_are_the_librarys(name):
    ours, theirs = (getattr(module, name)(12, 3).state_dict() for module in (file, lib))
    assert [(n, v.shape) for n, v in ours.items()] == [(n, v.shape) for n, v in theirs.items()]


def test_a_difference_in_the_tenth_digit_would_be_noticed():
    (q, k, v), twins = drawn(1, (3, 4), (5, 4), (5, 2)), drawn(1, (3, 4), (5, 4), (5, 2))
    output, _ = file.attention(q, k * (1 + 1e-8), v)
    with pytest.raises(AssertionError, match="not close"):
        assert_equal(output, lib.attention(*twins)[0], [q, k, v], twins)
