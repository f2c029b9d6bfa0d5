"""Weights in 8 and 4 bits: as a reference in NumPy has them; on every path, in files, kernels."""

import copy
import gc
import math
import pickle
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from tiny_models import LLAMA, VOCAB, make, random_ids, random_like, tiny
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_book import datasets
from transformer_book.live.one_byte import RESULTS
from transformer_lib.core.config import TransformerConfig
from transformer_lib.generation import decoding_step
from transformer_lib.generation.beam_search import beam_search
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.fast.cuda_graph import record
from transformer_lib.generation.fast.single_token import LeanDecoder
from transformer_lib.generation.generate import generate
from transformer_lib.hugging_face.pretrained import load_pretrained, save_pretrained
from transformer_lib.layers import quantized_linear
from transformer_lib.layers.build_parts import Parts
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.fast import padding_free, quantized_kernels
from transformer_lib.layers.fast.quantized_kernels import use_int_kernels
from transformer_lib.layers.feedforward import MixtureOfExperts
from transformer_lib.layers.masks import padding_mask
from transformer_lib.layers.quantized_linear import QuantizedLinear
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.models.quantization import quantize
from transformer_lib.models.saving import load_model, save_model
from transformer_lib.text.tokenizers import Tokenizer
from transformer_lib.tracing.watch import trace

SETTINGS = [(8, 4), (8, 12), (4, 4), (4, 12), (4, 3)]  # bits and group, for 12 inputs
LARGEST = {8: 127, 4: 7}
PROMPT = torch.tensor([[3, 1, 4], [5, 9, 2]])


def uneven_weights(m=5, n=12, seed=0):
    """Groups and rows of very different sizes, of both signs, and a group of zeros."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-3, 2, m * n).view(m, n)
    weight = torch.randn(m, n, generator=generator) * sizes
    weight[1] = 0
    return weight


# The reference: NumPy and loops, written without a look at the library.


def as_bfloat16(number):
    """The nearest number with 8 bits of mantissa; of two, the one that ends in a zero."""
    if number == 0:
        return 0.0
    step = 2.0 ** (math.floor(math.log2(abs(number))) - 7)
    return float(np.rint(number / step) * step)


def reference(weight, bits, group):
    """Codes and scales of a matrix, number by number."""
    m, n = weight.shape
    codes, scales = np.zeros((m, n), dtype=int), np.zeros((m, n // group))
    for row in range(m):
        for first in range(0, n, group):
            own = [float(weight[row, first + i]) for i in range(group)]
            scale = as_bfloat16(max(map(abs, own)) / LARGEST[bits]) or 1.0
            scales[row, first // group] = scale
            codes[row, first : first + group] = [int(np.rint(each / scale)) for each in own]
    return codes, scales


def reference_weights(weight, bits, group):
    codes, scales = reference(weight, bits, group)
    rows = [[c * scales[i, j // group] for j, c in enumerate(row)] for i, row in enumerate(codes)]
    return torch.tensor(rows, dtype=torch.float64)


def a_layer(n=12, m=5, *, bias=True, seed=0):
    layer = nn.Linear(n, m, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(uneven_weights(m, n, seed))
    return layer


def test_codes_and_scales_are_those_of_the_reference():
    for bits, group in SETTINGS:
        weight = uneven_weights()
        wanted, scales = reference(weight.numpy(), bits, group)
        found = quantized_linear.quantize_weight(weight, bits, group)
        assert found.codes.tolist() == wanted.tolist()
        assert found.scale.dtype == torch.bfloat16
        assert found.scale.double().tolist() == scales.tolist()


def test_a_code_times_the_scale_of_its_group_is_the_weight():
    codes = torch.tensor([[1, -2, 3, 4], [5, 6, -7, 0]], dtype=torch.int8)
    scale = torch.tensor([[0.5, 10.0], [2.0, 0.25]])
    wanted = [[0.5, -1.0, 30.0, 40.0], [10.0, 12.0, -1.75, 0.0]]
    assert quantized_linear.dequantize(codes, scale, torch.float32).tolist() == wanted


def test_two_codes_share_a_byte_the_first_in_the_low_half():
    codes = torch.tensor([[-7, 7, 0, -1], [3, -3, 1, 2]], dtype=torch.int8)
    wanted = [
        [(row[i] + 8) + 16 * (row[i + 1] + 8) for i in range(0, 4, 2)] for row in codes.tolist()
    ]
    assert quantized_linear.pack_nibbles(codes).tolist() == wanted


def test_all_codes_come_back_from_their_bytes():
    pairs = torch.cartesian_prod(torch.arange(-8, 8), torch.arange(-8, 8)).to(torch.int8)
    assert quantized_linear.pack_nibbles(pairs).flatten().unique().numel() == 256
    assert torch.equal(quantized_linear.unpack_nibbles(quantized_linear.pack_nibbles(pairs)), pairs)


def test_known_bytes_stand_for_known_codes():
    packed = torch.tensor([[0xF1], [0x8A], [0x07]], dtype=torch.uint8)
    assert quantized_linear.unpack_nibbles(packed).tolist() == [[-7, 7], [2, 0], [-1, -8]]


def test_a_layer_multiplies_by_the_weights_of_the_reference():
    x = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for bits, group in SETTINGS:
        for bias in (True, False):
            layer = a_layer(bias=bias)
            weight = reference_weights(layer.weight.detach().numpy(), bits, group)
            quantized = QuantizedLinear.from_linear(layer, bits, group).double()
            assert torch.equal(quantized.full_weight(torch.float64), weight)
            wanted = x @ weight.T + (layer.bias.double() if bias else 0)
            assert_close(quantized(x), wanted)


def test_sums_of_codes_do_not_overflow_in_float16():
    """127 times 1,024 has no room there; times the scale it has."""
    layer = nn.Linear(1_024, 2, bias=False)
    nn.init.ones_(layer.weight)
    quantized = QuantizedLinear.from_linear(layer, 8, None).half()
    assert_close(quantized(torch.ones(1, 1_024).half()).float(), torch.full((1, 2), 1_024.0))


def test_no_weight_is_off_by_more_than_half_a_step():
    for bits, group in SETTINGS:
        weight = uneven_weights()
        codes, scale = quantized_linear.quantize_weight(weight, bits, group)
        off = (quantized_linear.dequantize(codes, scale, torch.float64) - weight).abs()
        step = scale.double().repeat_interleave(group, dim=1)
        rounding = 1 + LARGEST[bits] / 128  # the largest weight may lie behind the last step
        assert (off <= rounding * step / 2).all()


def test_scales_keep_their_range_in_a_model_of_another_dtype():
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.fill_(1e-9)  # the scale is nothing in float16
    quantized = QuantizedLinear.from_linear(layer, 8, None)
    scale = quantized.scale.clone()
    for dtype in (torch.float16, torch.float64, torch.bfloat16, torch.float32):
        quantized.to(dtype)
        assert quantized.bias.dtype == dtype
        assert quantized.codes.dtype == torch.int8
        assert torch.equal(quantized.scale, scale)
        assert quantized.scale.dtype == torch.bfloat16
        assert quantized(torch.ones(1, 4, dtype=dtype)).dtype == dtype


class SavedShapes:
    """The shapes of all that is kept for the backward pass."""

    def __enter__(self):
        self.shapes = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._note, lambda x: x)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)

    def _note(self, x):
        self.shapes.append(tuple(x.shape))
        return x


def test_gradients_pass_through_and_no_matrix_is_kept_for_them():
    quantized = QuantizedLinear.from_linear(a_layer(), 4, 4)
    x = torch.randn(3, 12, requires_grad=True)
    with SavedShapes() as plain:
        nn.functional.linear(x, quantized.full_weight())
    assert (5, 12) in plain.shapes or (12, 5) in plain.shapes  # what would be kept
    with SavedShapes() as saved:
        y = quantized(x)
    assert not {(5, 12), (12, 5)} & set(saved.shapes)
    factors = torch.randn(3, 5)
    (y * factors).sum().backward()
    assert_close(x.grad, factors @ quantized.full_weight())
    assert all(parameter.grad is None for parameter in quantized.parameters())


KINDS = {
    "gpt": (CausalLM, {"position": "learned", "tie_embeddings": True}),
    "llama": (CausalLM, LLAMA),
    "experts": (CausalLM, {"n_experts": 3}),
    "capped": (CausalLM, {"score_cap": 2.0, "qk_norm": "head"}),
    "seq2seq": (Seq2SeqLM, {}),
    "bert": (MaskedLM, {}),
}


def a_model(kind, seed=0, **more):
    build, choices = KINDS[kind]
    return make(build, tiny(**{"d_ff": 24} | choices | more), seed=seed)


def run(model, ids):
    with torch.no_grad():
        return model(ids, ids.flip(1)) if isinstance(model, Seq2SeqLM) else model(ids)


def with_full_weights(model):
    """The same model, with the weights that the codes stand for."""
    full = copy.deepcopy(model)
    for name, part in list(full.named_modules()):
        if isinstance(part, QuantizedLinear):
            layer = nn.Linear(part.in_features, part.out_features, bias=part.bias is not None)
            layer.double().weight.data = part.full_weight(torch.float64)
            layer.bias = part.bias
            full.set_submodule(name, layer.eval())
    return full


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_computes_with_the_weights_of_its_codes(kind):
    model, ids = a_model(kind), random_ids(2, 7)
    before = run(model, ids)
    report = quantize(model, 4, 4)
    inside = [name for name, part in model.named_modules() if isinstance(part, QuantizedLinear)]
    assert [layer.name for layer in report.layers] == inside
    left = {name for name, part in model.named_modules() if type(part) is nn.Linear}
    assert all("blocks" not in name or name.endswith("router") for name in left)
    found = run(model, ids)
    assert not torch.allclose(found, before)
    assert torch.equal(found, run(with_full_weights(model), ids))


@pytest.mark.parametrize("build", [SequenceClassifier, VisionTransformer])
def test_models_that_classify_keep_their_heads(build):
    if build is VisionTransformer:
        model = make(build, tiny(max_len=5, norm_position="pre"), image_size=8, patch_size=4)
        x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    else:
        model, x = make(build, tiny(), n_classes=3), random_ids(2, 7)
    quantize(model, 8, 4)
    assert type(model.classifier) is nn.Linear
    with torch.no_grad():
        assert torch.equal(model(x), with_full_weights(model)(x))


def test_the_report_tells_bytes_and_errors():
    model = a_model("llama").float()
    before = copy.deepcopy(model)
    stored = sum(p.nbytes for p in model.parameters())
    report = quantize(model, 4, 4)
    tensors = [*model.parameters(), *model.buffers()]
    assert (report.bytes_before, report.bytes_after) == (stored, sum(t.nbytes for t in tensors))
    squares = []
    for layer in report.layers:
        weight = before.get_submodule(layer.name).weight.detach()
        off = model.get_submodule(layer.name).full_weight() - weight
        assert layer.bytes_before == weight.numel() * 4
        assert layer.bytes_after == weight.numel() // 2 + weight.numel() // 4 * 2
        assert layer.largest_error == pytest.approx(float(off.abs().max()))
        assert layer.relative_error == pytest.approx(float(off.norm() / weight.norm()))
        squares.append((float(off.norm()) ** 2, float(weight.norm()) ** 2))
    off, whole = map(sum, zip(*squares, strict=True))
    assert report.relative_error == pytest.approx(math.sqrt(off / whole))
    assert report.largest_error == max(layer.largest_error for layer in report.layers)
    sizes = f"{report.bytes_before:,} -> {report.bytes_after:,} bytes"
    assert str(report).startswith(f"{len(report.layers)} layers: {sizes}, weights off")


def test_layers_can_be_named_and_a_layer_used_twice_stays_one():
    model = a_model("llama")
    down = [f"decoder.stack.blocks.{i}.feed_forward.down" for i in (0, 1)]
    blocks = model.decoder.stack.blocks
    blocks[1].feed_forward.down = blocks[0].feed_forward.down
    ids = random_ids(2, 5)
    report = quantize(model, 8, 8, layers=[down[1], "output.projection"])
    assert [layer.name for layer in report.layers] == [down[0], "output.projection"]
    assert blocks[1].feed_forward.down is blocks[0].feed_forward.down
    assert isinstance(blocks[1].feed_forward.down, QuantizedLinear)
    assert type(blocks[0].feed_forward.up) is nn.Linear
    rest = [n for n, part in model.named_modules() if type(part) is nn.Linear and "blocks" in n]
    quantize(model, 4, 4, layers=rest)  # another setting for the others
    assert torch.equal(run(model, ids), run(with_full_weights(model), ids))


def test_what_is_refused_leaves_the_model_as_it_was():
    model = a_model("llama")
    before = {name: id(part) for name, part in model.named_modules()}
    last = model.decoder.stack.blocks[1].feed_forward.down
    with torch.no_grad():
        last.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="infinite or not a number"):
        quantize(model, 8, 4)
    assert {name: id(part) for name, part in model.named_modules()} == before
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_quantised_model_is_frozen_and_keeps_its_mode():
    model = a_model("gpt").train()
    quantize(model, 4, 4)
    assert all(part.training for part in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


class AliveMatrices:
    """How many matrices that were made of codes are there at once."""

    def __init__(self, monkeypatch):
        self.most, self.made, self._alive = 0, 0, []
        self._make = quantized_linear.dequantize
        monkeypatch.setattr(quantized_linear, "dequantize", self._note)

    def _note(self, codes, scale, dtype):
        weight = self._make(codes, scale, dtype)
        self._alive = [ref for ref in self._alive if ref() is not None] + [weakref.ref(weight)]
        self.most, self.made = max(self.most, len(self._alive)), self.made + 1
        return weight


def test_one_matrix_at_a_time_is_made_of_its_codes(monkeypatch):
    model = a_model("llama")
    quantize(model, 4, 4)
    matrices = AliveMatrices(monkeypatch)
    gc.disable()
    try:
        generate(model, PROMPT, max_new_tokens=3)
    finally:
        gc.enable()
    assert matrices.most == 1
    assert matrices.made == 3 * 14


class LargestTensor(TorchDispatchMode):
    """The most numbers that a floating-point tensor has that is made here."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        for x in found if isinstance(found, tuple | list) else [found]:
            if isinstance(x, torch.Tensor) and x.is_floating_point() and not x.is_meta:
                self.most = max(self.most, x.numel())
        return found


@pytest.mark.parametrize(
    ("kind", "bits", "group"),
    [("gpt", 8, None), ("llama", 4, 8), ("seq2seq", 4, 8), ("bert", 8, 4), ("experts", 4, 4)],
)
def test_a_file_gives_the_same_model_without_full_weights(kind, bits, group, tmp_path):
    model, ids = a_model(kind, d_ff=400), random_ids(2, 7)
    model.float()
    quantize(model, bits, group)
    save_model(model, tmp_path)
    with LargestTensor() as seen:
        loaded = load_model(tmp_path)
    assert 0 < seen.most < 16 * 400  # a matrix of a network
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name])
        assert tensor.dtype == theirs[name].dtype
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert len(list(loaded.parameters())) == len(list(model.parameters()))  # tied ones are one
    assert torch.equal(run(loaded, ids), run(model, ids))
    save_model(loaded, tmp_path / "again")
    again = (tmp_path / "again" / "model.safetensors").read_bytes()
    assert again == (tmp_path / "model.safetensors").read_bytes()


def test_an_output_layer_that_was_tied_is_quantised_alone(tmp_path):
    model, ids = a_model("gpt").float(), random_ids(2, 7)
    table = model.decoder.embedding.tokens.weight.clone()
    quantize(model, 8, None, layers=["output.projection"])
    assert torch.equal(model.decoder.embedding.tokens.weight, table)
    save_model(model, tmp_path)
    assert torch.equal(run(load_model(tmp_path), ids), run(model, ids))


class TableNorm(nn.Module):
    """A norm with a buffer that no file has."""

    def __init__(self, config):
        super().__init__()
        self.register_buffer("table", torch.ones(config.d_model), persistent=False)

    def forward(self, x):
        return x * self.table


def test_a_part_whose_buffer_is_not_stored_is_refused_with_advice(tmp_path):
    parts = Parts(norm=TableNorm)
    model = CausalLM(tiny(), parts=parts)
    quantize(model, 8, 4)
    save_model(model, tmp_path)
    with pytest.raises(ValueError, match=r"table is not stored.*quantize it again"):
        load_model(tmp_path, parts=parts)


def test_a_checkpoint_is_quantised_afterwards_or_while_it_is_read(tmp_path):
    model, ids = CausalLM(tiny(**LLAMA, scale_embeddings=False, d_ff=400)), random_ids(2, 7)
    save_pretrained(model, tmp_path)
    afterwards = load_pretrained(tmp_path).model
    quantize(afterwards, 4, 8)
    at_once = load_pretrained(tmp_path, bits=4, group=8).model
    ours, theirs = afterwards.state_dict(), at_once.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not any(parameter.requires_grad for parameter in at_once.parameters())
    assert torch.equal(run(afterwards, ids), run(at_once, ids))
    with pytest.raises(ValueError, match=r"blocks.0.attention.query: group=5 must divide"):
        load_pretrained(tmp_path, bits=4, group=5)


# Seeds with which models write a text that says something.
LIVELY = {"gpt": 37, "llama": 23, "experts": 15, "capped": 30}


def slowly(model, prompt, n):
    ids = prompt
    for _ in range(n):
        with torch.no_grad():
            ids = torch.cat((ids, model(ids)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    return ids


@pytest.mark.parametrize("kind", LIVELY)
def test_all_ways_of_writing_write_the_same(kind, monkeypatch):
    model = a_model(kind, seed=LIVELY[kind])
    quantize(model, 4, 4)
    wanted = slowly(model, PROMPT, 8)
    assert torch.equal(generate(model, PROMPT, max_new_tokens=8), wanted)
    assert len(wanted[0].unique()) > 4
    beams = beam_search(model, PROMPT[:1], max_new_tokens=8, n_beams=1)
    assert torch.equal(beams[0][0], wanted[:1])
    cache = KeyValueCache(2, 24)
    assert torch.equal(generate(model, PROMPT, max_new_tokens=8, cache=cache), wanted)
    monkeypatch.setattr(decoding_step, "_SINGLE_TOKEN", None)
    assert torch.equal(generate(model, PROMPT, max_new_tokens=8), wanted)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_the_single_token_path_calls_quantised_layers(kind):
    model = a_model(kind)
    before = LeanDecoder(model.decoder)
    caches = [KeyValueCache(2, 12) for _ in range(2)]
    quantize(model, 4, 4)
    lean, token = LeanDecoder(model.decoder), PROMPT[:, :1]
    for cache in caches:
        model.decoder(PROMPT, cache=cache)
    assert not before.can_read(token, caches[0])  # it knows other layers
    assert lean.can_read(token, caches[0])
    assert_close(lean(token, caches[0]), model.decoder(token, cache=caches[1]))
    seen = []
    query = model.decoder.stack.blocks[0].attention.query
    query.register_forward_hook(lambda *_: seen.append(1))
    lean(token, caches[0])
    assert seen == [1]


@torch.no_grad()
def test_recorded_steps_follow_quantised_layers():
    """On a CPU, as on a GPU but for the graph and the kernel."""
    model = a_model("llama", seed=LIVELY["llama"])
    quantize(model, 4, 4)
    wanted = slowly(model, PROMPT, 8)
    step = decoding_step.DecodingStep(model, PROMPT, 8)
    batch, ids = record(model, step, torch.device("cpu")), PROMPT
    for _ in range(8):
        ids = torch.cat((ids, batch(ids).argmax(dim=-1, keepdim=True)), dim=1)
    assert torch.equal(ids, wanted)


def test_compiled_steps_follow_quantised_layers(monkeypatch, fresh_compiler):
    """Only the compiler's first part, the others take long; test_cuda.py has all of it."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model = a_model("llama", seed=LIVELY["llama"], n_layers=1)
    fast = CompiledDecoder(model, max_len=16)
    generate(fast, PROMPT, max_new_tokens=1)  # reads the prompt alone: nothing is compiled
    recorded = fast._recorded.cache
    quantize(model, 4, 4)
    assert torch.equal(generate(fast, PROMPT, max_new_tokens=6), slowly(model, PROMPT, 6))
    assert fast._recorded.cache is not recorded


def test_padding_is_left_out_before_quantised_layers(monkeypatch):
    model = MaskedLM(TransformerConfig(vocab_size=VOCAB, d_model=64, n_heads=4, n_layers=1)).eval()
    quantize(model, 4, 16)
    ids, mask = random_ids(2, 400), padding_mask(torch.tensor([400, 20]), 400)
    batches = []
    leave_out = padding_free.PaddingFreeBatch.drop
    monkeypatch.setattr(
        padding_free.PaddingFreeBatch,
        "drop",
        lambda self, x: batches.append(self.lengths) or leave_out(self, x),
    )
    with torch.no_grad():
        short = model(ids, mask)[1, :20]
        assert batches
        assert_close(short, model(ids[1:, :20])[0], atol=1e-4, rtol=1e-4)


def test_a_trace_has_the_steps_of_full_weights():
    model = a_model("llama")
    wanted = [step.what for step in trace(model, PROMPT).steps]
    quantize(model, 4, 4)
    assert [step.what for step in trace(model, PROMPT).steps] == wanted


# The shipped models, on text that they have not learned from.


def loss_of(model, windows):
    with torch.no_grad():
        logits = model(windows[:, :-1])
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()))


def unseen_text(n, length=150):
    tokenizer = Tokenizer.load(RESULTS / "shakespeare" / "tokenizer.json")
    text = datasets.shakespeare().validation[: 2 * n * length]
    return torch.tensor(tokenizer.encode(text))[: n * length].view(n, length)


def test_the_shakespeare_model_loses_next_to_nothing():
    windows, full, n_bytes = unseen_text(8), load_model(RESULTS / "shakespeare"), {}
    loss = loss_of(full, windows)
    for bits, allowed in ((8, 0.01), (4, 0.1)):
        model = copy.deepcopy(full)
        n_bytes[bits] = quantize(model, bits, group=16).bytes_after
        assert abs(loss_of(model, windows) - loss) < allowed
    assert n_bytes[4] < n_bytes[8] < 0.35 * sum(p.nbytes for p in full.parameters())


def test_a_model_of_a_hundred_thousand_weights_loses_little():
    """In 4 bits it needs small groups; 170 inputs of a layer do not divide by 16."""
    windows, full = unseen_text(24), load_model(RESULTS / "drafts")
    loss, model = loss_of(full, windows), copy.deepcopy(full)
    quantize(model, 8, None)
    assert abs(loss_of(model, windows) - loss) < 0.01
    names = [layer.name for layer in quantize(copy.deepcopy(full), 4, None).layers]
    last = [name for name in names if name.endswith("down")]
    model = copy.deepcopy(full)
    quantize(model, 4, 16, layers=set(names) - set(last))
    quantize(model, 4, 10, layers=last)
    assert abs(loss_of(model, windows) - loss) < 0.1


# Kernels of the CPU.

ON_CPU = [(4, 32), (4, 64), (8, None)]


def wide_layers(bits, group, dtype=torch.bfloat16):
    layer = nn.Linear(128, 48).to(dtype)
    plain = QuantizedLinear.from_linear(layer, bits, group)
    model = nn.Sequential(copy.deepcopy(plain))
    assert use_int_kernels(model) == 1
    assert type(model[0]) is quantized_kernels._KernelLinear
    return plain, model[0]


@pytest.mark.parametrize(("bits", "group"), ON_CPU)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_kernel_multiplies_as_the_formula_does(bits, group, dtype):
    torch.manual_seed(0)
    plain, fast = wide_layers(bits, group, dtype)
    weight = plain.full_weight(torch.float64)
    for shape in ((1,), (3,), (2, 5), (2, quantized_kernels.MOST_ROWS)):
        x = torch.randn(*shape, 128, dtype=dtype)
        with torch.no_grad():
            found = fast(x)
            assert found.dtype == dtype
            assert found.shape == (*shape, 48)
            wanted = x.double() @ weight.T + plain.bias.double()
            assert (found - wanted).norm() < 0.006 * wanted.norm()  # bfloat16 has 8 bits
    many = torch.randn(quantized_kernels.MOST_ROWS + 1, 128, dtype=dtype)
    assert torch.equal(fast(many), plain(many))  # by the formula


@pytest.mark.parametrize(("bits", "group"), ON_CPU)
def test_kernels_are_called_and_can_be_seen_to_be(bits, group, monkeypatch):
    _, fast = wide_layers(bits, group)
    monkeypatch.setattr(quantized_linear, "dequantize", lambda *_: pytest.fail("by the formula"))
    fast(torch.ones(1, 128, dtype=torch.bfloat16))


def test_gradients_other_dtypes_and_autocast_go_by_the_formula():
    plain, fast = wide_layers(4, 64, torch.float32)
    x = torch.randn(3, 128, requires_grad=True)
    assert torch.equal(fast(x), plain(x))
    fast(x).sum().backward()
    assert x.grad.any()
    x = x.detach()
    with torch.autocast("cpu"):
        assert fast(x).dtype == torch.bfloat16
    for dtype in (torch.float16, torch.float64):
        layers = [layer.to(dtype) for layer in (fast, plain)]
        assert torch.equal(*(layer(x.to(dtype)) for layer in layers))


def test_a_model_with_kernels_is_saved_loaded_copied_and_pickled_as_without(tmp_path):
    torch.manual_seed(0)
    choices = {"vocab_size": VOCAB, "d_model": 64, "n_heads": 4, "n_layers": 1, "max_len": 24}
    model = CausalLM(TransformerConfig(**choices)).eval()
    quantize(model, 4, 32)
    other = CausalLM(TransformerConfig(**choices)).eval()
    quantize(other, 4, 32)
    fast = copy.deepcopy(model)
    assert use_int_kernels(fast) == 6
    save_model(fast, tmp_path)
    ids = random_ids(1, 7)
    assert torch.equal(run(load_model(tmp_path), ids), run(model, ids))
    wanted = run(fast, ids)
    assert_close(wanted, run(model, ids), rtol=0.05, atol=0.05)
    assert torch.equal(run(pickle.loads(pickle.dumps(fast)), ids), wanted)
    fast.load_state_dict(other.state_dict())  # what is laid out for the kernel follows
    assert_close(run(fast, ids), run(other, ids), rtol=0.05, atol=0.05)
    assert not torch.allclose(run(fast, ids), wanted, rtol=0.05, atol=0.05)


def test_settings_without_a_kernel_are_left():
    layers = [QuantizedLinear(128, 48, bits=8, group=64), QuantizedLinear(128, 47)]
    layers += [QuantizedLinear(128, 48, group=16)]
    model = nn.Sequential(*layers)
    assert use_int_kernels(model) == 0
    assert list(model) == layers
    x = random_like(torch.zeros(2, 128))
    for layer in layers:
        alone = quantized_kernels._KernelLinear(layer)
        assert torch.equal(alone(x), layer(x))


def test_greedy_text_of_a_trained_model_is_the_same_with_kernels():
    model = load_model(RESULTS / "shakespeare").bfloat16()
    tokenizer = Tokenizer.load(RESULTS / "shakespeare" / "tokenizer.json")
    quantize(model, 8, None)
    fast = copy.deepcopy(model)
    assert use_int_kernels(fast) == 28
    prompt = torch.tensor([tokenizer.encode("ROMEO:\n")])
    written = [generate(each, prompt, max_new_tokens=12) for each in (model, fast)]
    assert torch.equal(*written)


def test_a_mixture_of_experts_keeps_its_router():
    model = a_model("experts")
    quantize(model, 8, 4)
    for part in model.modules():
        if isinstance(part, MixtureOfExperts):
            assert type(part.router) is nn.Linear
            assert all(isinstance(one.up, QuantizedLinear) for one in part.experts)
