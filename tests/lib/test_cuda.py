"""On a GPU: the same answers as on the CPU, by every path, eager and compiled.

Skipped without a GPU. With one: ``pytest tests/lib/test_cuda.py -s`` also prints the errors.
"""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.testing import assert_close
from torch_weights import randomise, small_config

from transformer_lib.attention import attention, fused_attention
from transformer_lib.cache import KeyValueCache
from transformer_lib.heads import CausalLM, Seq2SeqLM, VisionTransformer
from transformer_lib.masks import causal_mask, padding_mask
from transformer_lib.presets import PRESETS, build_preset

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
