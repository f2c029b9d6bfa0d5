"""On a GPU: the same answers as on the CPU, by every path, eager and compiled.

Skipped without a GPU. With one: ``pytest tests/lib/test_cuda.py -s`` also prints the errors.
"""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.testing import assert_close
from torch_weights import randomise, small_config

from transformer_lib import losses
from transformer_lib.attention import attention, fused_attention
from transformer_lib.cache import KeyValueCache
from transformer_lib.data import IGNORE, TextWindows
from transformer_lib.decoding import CompiledDecoder
from transformer_lib.generation import generate
from transformer_lib.heads import CausalLM, Seq2SeqLM, VisionTransformer
from transformer_lib.losses import linear_cross_entropy
from transformer_lib.masks import causal_mask, padding_mask
from transformer_lib.presets import PRESETS, build_preset
from transformer_lib.recipes import Recipe
from transformer_lib.training import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")

WHOLE = ["transformer-base", "transformer-big", "bert-base", "gpt2", "gpt2-medium", "t5-small",
         "vit-b-16"]  # fmt: skip
BY_BLOCK = ["gpt2-large", "gpt2-xl", "llama-2-7b", "llama-3-8b"]  # compiled block by block: sooner
SCHEMES = ["sinusoidal", "learned", "rope", "alibi", "t5", "none"]


def relative_error(a, b):
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


def inputs_for(model):
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, VisionTransformer):
        return (torch.randn(2, 3, 224, 224, generator=generator).cuda(),)
    ids = torch.randint(0, 30_000, (2, 128), generator=generator).cuda()
    return (ids, ids[:, :64]) if isinstance(model, Seq2SeqLM) else (ids,)


def logits_and_gradients(model, run, inputs):
    """One forward and one backward pass: logits, and the gradient of the largest matrices."""
    model.zero_grad(set_to_none=True)
    dtype = next(model.parameters()).dtype
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    logits = run(*inputs)
    labels = torch.arange(logits.flatten(end_dim=-2).shape[0], device="cuda") % logits.shape[-1]
    F.cross_entropy(logits.flatten(end_dim=-2).float(), labels).backward()
    gradients = {
        name: p.grad.float().cpu()
        for name, p in model.named_parameters()
        if p.ndim == 2 and (".0." in name or "output" in name)
    }
    return logits.detach().float().cpu(), gradients


def worst_error(measured, exact):
    """Relative error of the logits, and of the gradient that is furthest off."""
    logits, gradients = measured
    return (
        relative_error(logits, exact[0]),
        max(relative_error(gradients[name], exact[1][name]) for name in gradients),
    )


def compiled(model, name):
    torch.compiler.reset()
    if name in WHOLE:
        return torch.compile(model, fullgraph=True)
    for block in model.decoder.stack.blocks:
        block.compile(fullgraph=True)
    return model


@pytest.mark.parametrize("name", WHOLE + BY_BLOCK)
def test_preset_forward_and_backward_eager_and_compiled_in_bfloat16(name):
    """How far bfloat16 is off depends on the model: rounding the weights alone is the yardstick."""
    torch.manual_seed(0)
    model = build_preset(name, device="cuda").eval()
    inputs = inputs_for(model)
    exact = logits_and_gradients(model, model, inputs)
    model.bfloat16().float()
    yardstick = worst_error(logits_and_gradients(model, model, inputs), exact)
    model.bfloat16()
    eager = worst_error(logits_and_gradients(model, model, inputs), exact)
    fast = worst_error(logits_and_gradients(model, compiled(model, name), inputs), exact)
    for what, rounded, plain, quick in zip(
        ("logits", "worst gradient"), yardstick, eager, fast, strict=True
    ):
        print(
            f"{name}: {what}: relative error {rounded:.4f} with rounded weights, "
            f"{plain:.4f} in bfloat16, {quick:.4f} compiled"
        )
        assert max(plain, quick) < 4 * rounded + 0.01
    assert PRESETS[name].parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("position", SCHEMES)
def test_models_give_the_same_on_cpu_and_gpu(position):
    config = small_config(position=position, n_kv_heads=1, window=4)
    model = randomise(Seq2SeqLM(config)).eval()
    ids = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = padding_mask(torch.tensor([7, 4, 1]), 7)
    expected = model(ids, ids, mask, mask)
    on_gpu = copy.deepcopy(model).cuda()
    assert_close(
        on_gpu(ids.cuda(), ids.cuda(), mask.cuda(), mask.cuda()).cpu(),
        expected,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", ["none", "causal", "padding", "empty row", "bias"])
def test_both_paths_agree_on_the_gpu(dtype, case):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 40, 64, device="cuda").to(dtype).requires_grad_()
    mask = {
        "padding": padding_mask(torch.tensor([40, 11]), 40).cuda(),
        "empty row": causal_mask(40, device="cuda").tril(-1),
    }.get(case)
    bias = torch.randn(1, 4, 40, 40, device="cuda") if case == "bias" else None
    options = {"bias": bias, "causal": case == "causal"}
    plain, _ = attention(q, k, v, mask, **options)
    fused = fused_attention(q, k, v, mask, **options)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert_close(fused, plain, rtol=tolerance, atol=tolerance)
    (gradient,) = torch.autograd.grad(fused.float().square().sum(), q)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("position", SCHEMES)
def test_cached_decoding_is_the_same_on_the_gpu(position):
    config = small_config(position=position)
    model = randomise(CausalLM(config)).cuda().eval()
    ids = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(0)).cuda()
    cache = KeyValueCache(config.n_layers, config.max_len)
    with torch.no_grad():
        pieces = [model(ids[:, start:end], cache=cache) for start, end in ((0, 6), (6, 7), (7, 9))]
        assert_close(torch.cat(pieces, dim=1), model(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("position", ["learned", "rope", "alibi", "t5"])
@pytest.mark.parametrize("kind", [CausalLM, Seq2SeqLM])
def test_recorded_steps_give_the_tokens_of_the_model(kind, position):
    torch.compiler.reset()
    model = randomise(kind(small_config(position=position, max_len=140))).cuda()
    fast = CompiledDecoder(model, max_len=138)
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(3, 124, dtype=torch.bool, device="cuda")
    mask[0, :5] = False
    for _ in range(2):  # recorded, and replayed with another batch
        inputs = {"prompt": torch.randint(11, (3, 124), generator=generator).cuda()}
        if kind is Seq2SeqLM:
            inputs["source"] = torch.randint(11, (3, 6), generator=generator).cuda()
        plain = generate(model, max_new_tokens=14, prompt_mask=mask, **inputs)
        assert torch.equal(generate(fast, max_new_tokens=14, prompt_mask=mask, **inputs), plain)


@pytest.mark.parametrize("parts", [2**29, 2**12])
def test_the_compiled_loss_is_the_loss_of_all_logits(parts, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", parts)
    torch.compiler.reset()
    torch.manual_seed(0)
    x = torch.randn(4, 64, 32, device="cuda", requires_grad=True)
    weight = torch.randn(101, 32, device="cuda", requires_grad=True)
    targets = torch.randint(101, (4, 64), device="cuda")
    targets[0, :9] = IGNORE
    wanted = F.cross_entropy((x @ weight.mT).flatten(0, 1), targets.flatten(), reduction="sum")
    found = torch.compile(linear_cross_entropy)(x, weight, targets)
    assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(
        torch.autograd.grad(found, (x, weight)),
        torch.autograd.grad(wanted, (x, weight)),
        strict=True,
    ):
        assert relative_error(ours, theirs) < 1e-3


@pytest.mark.parametrize(
    ("precision", "compiled"), [("float32", False), ("bfloat16", True), ("float16", False)]
)
def test_training_learns_in_every_precision(precision, compiled, tmp_path):
    torch.compiler.reset()
    torch.manual_seed(0)
    config = small_config(vocab_size=11, max_len=16, dropout=0.1)
    text = TextWindows(torch.arange(300) % 11, length=16, batch_size=8)
    recipe = Recipe(
        steps=60, learning_rate=0.01, precision=precision, compile=compiled, validate_every=30
    )
    options = {"validation": text, "folder": tmp_path, "progress": False, "device": "cuda"}
    rows = train(CausalLM(config), text, recipe, **options)
    assert rows[-1]["validation_loss"] < 0.8 < 1.5 < rows[0]["loss"]  # log(11) is 2.4
    again = train(CausalLM(config), text, recipe, **options)  # finished: read back, not trained
    assert again[-1] == rows[-1]
