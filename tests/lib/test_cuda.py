"""On a GPU: the same answers as on the CPU, by every path, eager and compiled.

Skipped without a GPU. With one: ``make test-cuda``.
"""

import copy
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from recording_changes import (
    BETWEEN_CALLS,
    BETWEEN_TOKENS,
    PROMPT,
    a_hook,
    a_pruned_layer,
    a_step_of_training,
    another_setting,
    lively_model,
    new_weights_elsewhere,
)
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import BlockMask
from torch.testing import assert_close
from torch_weights import randomise, small_config

from transformer_lib.generation.fast import cuda_graph as recorded
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.fast.decode_kernel import append_and_attend
from transformer_lib.generation.generate import generate, stream
from transformer_lib.layers.attention import attention
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.caches.static_kv_cache import StaticCache, StaticLayerCache
from transformer_lib.layers.fast import padding_free, quantized_kernels
from transformer_lib.layers.fast.flexible_pattern import FlexPattern
from transformer_lib.layers.fast.quantized_kernels import use_int_kernels
from transformer_lib.layers.fused_attention import fused_attention
from transformer_lib.layers.masks import additive_mask, causal_mask, padding_mask
from transformer_lib.layers.positions import rope_angles, rotate
from transformer_lib.layers.quantized_linear import QuantizedLinear
from transformer_lib.models.blocks import Stack
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM, VisionTransformer
from transformer_lib.models.presets import PRESETS, build_preset
from transformer_lib.models.quantization import quantize
from transformer_lib.models.saving import load_model, save_model
from transformer_lib.training import losses
from transformer_lib.training.data import IGNORE, TextWindows
from transformer_lib.training.loop import train
from transformer_lib.training.losses import linear_cross_entropy
from transformer_lib.training.packing import pack
from transformer_lib.training.recipes import Recipe

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here"),
    # PyTorch's compiler warns of its own doings there, in each version of others.
    pytest.mark.filterwarnings("default"),
]

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
def test_compiled_steps_give_the_tokens_of_the_model(kind, position):
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


@pytest.mark.parametrize(
    "change", [a_step_of_training, new_weights_elsewhere, a_hook, a_pruned_layer, another_setting]
)
def test_compiled_steps_see_what_happened_since_the_last_call(change):
    torch.compiler.reset()
    model = randomise(CausalLM(small_config(position="rope", max_len=40))).cuda()
    rows = [[3, 5, 7], [2, 4, 6]][: 1 if change is another_setting else 2]  # one is tuned longer
    fast, prompt = CompiledDecoder(model, max_len=32), torch.tensor(rows).cuda()
    before = generate(fast, prompt, max_new_tokens=12)
    assert torch.equal(before, generate(model, prompt, max_new_tokens=12, use_cache=False))
    change(model)
    modes = [part.training for part in model.modules()]
    expected = generate(model, prompt, max_new_tokens=12, use_cache=False)
    for _ in range(2):
        assert torch.equal(generate(fast, prompt, max_new_tokens=12), expected)
    assert [part.training for part in model.modules()] == modes
    assert not any("forward" in vars(part) for part in model.modules())


def test_a_recording_does_not_need_the_memory_of_others():
    """They come and go, PyTorch's own among them, and what they leave is given back."""
    torch.manual_seed(0)
    config = small_config(vocab_size=512, d_model=768, n_heads=12, max_len=64, n_layers=2)
    model = CausalLM(config).to("cuda", torch.bfloat16).eval()
    prompt = torch.randint(0, 512, (64, 8), device="cuda")
    fast = CompiledDecoder(model, max_len=64)
    before = generate(fast, prompt, max_new_tokens=40)
    graphed = torch.compile(torch.nn.Linear(768, 768, device="cuda"), mode="reduce-overhead")
    for size in (32, 64, 96):
        generate(model, prompt, max_new_tokens=20)  # its recording ends with the call
        for _ in range(3):
            graphed(torch.randn(size, 768, device="cuda"))
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        others = [torch.full((2**20,), -1, device="cuda") for _ in range(64)]
        assert torch.equal(generate(fast, prompt, max_new_tokens=40), before)
        assert all((x == -1).all() for x in others)


def test_compiled_steps_leave_their_arguments_alone():
    torch.compiler.reset()
    model = randomise(Seq2SeqLM(small_config(max_len=40))).cuda()
    fast = CompiledDecoder(model, max_len=32)
    start, source = torch.ones(2, 1, dtype=torch.long).cuda(), torch.arange(10).view(2, 5).cuda()
    masks = [padding_mask(torch.tensor(n), 5).cuda() for n in ([2, 1], [5, 3])]
    copies = [mask.clone() for mask in masks]
    for mask in (*masks, masks[0]):
        options = {"source": source, "source_mask": mask, "max_new_tokens": 6}
        assert torch.equal(generate(fast, start, **options), generate(model, start, **options))
    for mask, before in zip(masks, copies, strict=True):
        assert torch.equal(mask, before)


@pytest.mark.parametrize("n_new", [9, 40])
@pytest.mark.parametrize("compiled", [False, True])
def test_scores_that_are_not_numbers_are_noticed_in_the_end(compiled, n_new):
    torch.compiler.reset()
    model = randomise(CausalLM(small_config(position="learned", max_len=64))).cuda()
    with torch.no_grad():
        model.decoder.embedding.positions.table.weight[6] = torch.nan
    decoder = CompiledDecoder(model, max_len=60) if compiled else model
    tokens, prompt = [], torch.tensor([[3, 5, 7], [1, 1, 2]]).cuda()
    with pytest.raises(FloatingPointError, match="of row 0 at new token 5 is nan"):
        generate(decoder, prompt, max_new_tokens=n_new, on_token=tokens.append)
    assert len(tokens) == (8 if n_new == 9 else 15)
    with pytest.raises(FloatingPointError, match="of row 0 at new token 5 is nan"):
        generate(decoder, prompt, max_new_tokens=n_new)


@contextmanager
def nobody_waits():
    """Let every operation that waits for the GPU fail, for a while."""
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("options", [{}, {"top_k": 5}])
@pytest.mark.parametrize("compiled", [False, True])
def test_no_token_makes_the_gpu_wait(compiled, options):
    torch.compiler.reset()
    model = randomise(CausalLM(small_config(max_len=64))).cuda()
    decoder = CompiledDecoder(model, max_len=60) if compiled else model
    options = {"max_new_tokens": 20} | options
    tokens = stream(decoder, torch.tensor([[3, 5, 7]]).cuda(), **options)
    next(tokens), next(tokens), next(tokens)  # the prompt, and what has to be recorded
    with nobody_waits():
        for _ in range(8):
            next(tokens)


def test_a_static_cache_that_is_full_says_so_on_the_gpu():
    model = randomise(CausalLM(small_config())).cuda().eval()
    cache = StaticCache(2, max_len=4, device="cuda")
    ids = torch.tensor([[3, 5, 7]]).cuda()
    with torch.no_grad():
        model(ids, cache=cache)
        with pytest.raises(ValueError, match="max_len=4 positions; 3 are in use and 3 more"):
            model(ids, cache=cache)
        cache.rewind(1)
        assert_close(model(ids, cache=cache), model(ids[:, [0, 0, 1, 2]])[:, 1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_queries", [1, 40])
@pytest.mark.parametrize("case", ["none", "causal", "padding", "bias"])
def test_shared_keys_equal_copies_on_the_gpu(dtype, n_queries, case):
    torch.manual_seed(0)
    q = torch.randn(2, 8, n_queries, 64, device="cuda").to(dtype).requires_grad_()
    k, v = torch.randn(2, 2, 2, 40, 64, device="cuda").to(dtype).requires_grad_()
    mask = padding_mask(torch.tensor([40, 11]), 40).cuda() if case == "padding" else None
    bias = torch.randn(1, 8, n_queries, 40, device="cuda") if case == "bias" else None
    options = {"bias": bias, "causal": case == "causal"}
    wanted, _ = attention(q, *(x.repeat_interleave(4, dim=1) for x in (k, v)), mask, **options)
    found = fused_attention(q, k, v, mask, enable_gqa=True, **options)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(
        torch.autograd.grad(found.float().square().sum(), q),
        torch.autograd.grad(wanted.float().square().sum(), q),
        strict=True,
    ):
        assert relative_error(ours, theirs) < (1e-4 if dtype == torch.float32 else 3e-2)


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


def test_padding_stays_on_a_gpu_in_small_batches_and_nobody_waits():
    torch.manual_seed(0)
    stack = randomise(Stack(small_config(d_model=64, n_heads=4), causal=False)).cuda().eval()
    x, mask = torch.randn(8, 200, 64, device="cuda"), padding_mask(torch.arange(1, 9) * 25, 200)
    mask = mask.cuda()
    for dtype in (torch.float32, torch.bfloat16):
        with nobody_waits():
            found = stack.to(dtype)(x.to(dtype), mask)
        assert (found != 0).any(dim=-1).all()


def padded_batch(kind, n_kv_heads, d_model):
    """A stack, a batch, its mask, and where real tokens are; packed rows if it is causal."""
    torch.manual_seed(0)
    causal = kind == "packed"
    sizes = {"d_model": d_model, "n_heads": 8, "n_kv_heads": n_kv_heads, "n_layers": 3}
    config = small_config(position="rope", dropout=0.0, max_len=300, **sizes)
    stack = randomise(Stack(config, causal=causal)).cuda()
    x = torch.randn(8, 300, d_model, device="cuda")
    if causal:
        texts = [[1] * n for n in (200, 120, 90, 290, 150, 80, 5, 260, 140, 30, 170, 250, 9)]
        mask = pack(texts, length=300)["mask"].cuda()
        x = x[: len(mask)]
        return stack, x, mask, mask.any(dim=-1)[:, 0]
    mask = padding_mask(torch.tensor([300, 10, 250, 0, 1, 200, 120, 64]), 300).cuda()
    return stack, x, mask, mask[:, 0, 0]


@pytest.mark.parametrize("d_model", [256, 160])  # heads of 32 and of 20: that has no kernel
@pytest.mark.parametrize("n_kv_heads", [8, 2])
@pytest.mark.parametrize("kind", ["padded", "packed"])
@pytest.mark.parametrize("autocast", [False, True])
def test_padding_is_left_out_on_a_gpu(kind, n_kv_heads, d_model, autocast, monkeypatch):
    monkeypatch.setattr(padding_free, "COST_ON_A_GPU", -1)
    stack, x, mask, real = padded_batch(kind, n_kv_heads, d_model)
    exact = answer_and_gradients(stack, x, mask, real, keeps=True)
    if not autocast:
        stack, x = stack.bfloat16(), x.bfloat16()
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        kept = answer_and_gradients(stack, x, mask, real, keeps=True)
        left_out = answer_and_gradients(stack, x, mask, real, keeps=False)
    for wanted, one, other in zip(exact, kept, left_out, strict=True):
        assert relative_error(other, wanted) < 1.5 * relative_error(one, wanted) + 1e-3


def answer_and_gradients(stack, x, mask, real, *, keeps):
    """What a stack says of real tokens, and all gradients; if somebody listens, padding is kept."""
    handle = stack.register_forward_hook(lambda *_: None) if keeps else None
    x = x.detach().requires_grad_()
    out = stack(x, mask)
    stack.zero_grad()
    out[real].float().square().sum().backward()
    if handle is not None:
        handle.remove()
    assert (out[~real] == 0).all() != keeps
    return [out[real], x.grad[real], *(p.grad.clone() for p in stack.parameters())]


ROWS = {
    "prefix": torch.tensor([0, 170]),
    "documents": torch.tensor([[0] * 40 + [1] * 190 + [2] * 70, [5] * 200 + [3] * 100]),
}


@pytest.mark.parametrize("n_kv_heads", [8, 2])
@pytest.mark.parametrize("rules", [{"window": 50}, ROWS, ROWS | {"window": 50}], ids=len)
def test_a_flexible_pattern_gives_what_its_mask_gives(rules, n_kv_heads, fresh_compiler):
    rules = {name: x.cuda() if torch.is_tensor(x) else x for name, x in rules.items()}
    pattern = FlexPattern(**rules)
    mask = pattern.as_mask(300, causal=True, device="cuda")
    torch.manual_seed(0)
    exact = [torch.randn(2, heads, 300, 64, device="cuda") for heads in (8, n_kv_heads, n_kv_heads)]
    gradient = torch.randn(2, 8, 300, 64, device="cuda")

    def by_mask(q, k, v):
        return fused_attention(q, k, v, mask, scale=0.1, enable_gqa=n_kv_heads < 8)

    def answers(attend, dtype):
        given = [x.detach().to(dtype).requires_grad_() for x in exact]
        found = attend(*given)
        return [found, *torch.autograd.grad(found, given, gradient.to(dtype))]

    def by_rule(q, k, v):
        return pattern.attend(q, k, v, causal=True, scale=0.1)

    wanted, rounded = answers(by_mask, torch.float32), answers(by_mask, torch.bfloat16)
    found = answers(by_rule, torch.bfloat16)
    (made,) = pattern._made.values()
    assert isinstance(made, BlockMask)
    for right, one, other in zip(wanted, rounded, found, strict=True):
        assert relative_error(other, right) < 2 * relative_error(one, right) + 1e-3


def test_a_flexible_pattern_stores_no_mask_and_is_compiled_once(fresh_compiler):
    length = 32_768
    q = torch.randn(1, 2, length, 64, device="cuda", dtype=torch.bfloat16)
    graphs = []
    for n_documents in (3, 5):
        documents = (torch.arange(length, device="cuda") * n_documents // length)[None]
        pattern = FlexPattern(window=500, documents=documents)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        pattern.attend(q, q, q, causal=True)
        assert torch.cuda.max_memory_allocated() - before < length**2 / 8  # bytes; a mask has all
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1]


# Generation records its steps by itself


@pytest.fixture
def recordings(monkeypatch):
    """Grows with every recording."""
    made, record = [], recorded._record
    monkeypatch.setattr(recorded, "_record", lambda run: made.append(1) or record(run))
    return made


def by_the_book(model, **inputs):
    """Greedy, without a cache: every token from the whole sequence."""
    return generate(model, PROMPT.cuda(), max_new_tokens=24, use_cache=False, **inputs)


@pytest.mark.parametrize("kind", [CausalLM, Seq2SeqLM])
@pytest.mark.parametrize("position", SCHEMES)
def test_generate_records_and_gives_the_tokens_of_the_model(position, kind, recordings):
    model = lively_model(kind, position=position, n_kv_heads=2).cuda()
    inputs = {"prompt_mask": torch.tensor([[False, True, True], [True] * 3]).cuda()}
    if kind is Seq2SeqLM:
        inputs["source"] = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]]).cuda()
        inputs["source_mask"] = padding_mask(torch.tensor([4, 2]), 4).cuda()
    found = generate(model, PROMPT.cuda(), max_new_tokens=24, **inputs)
    assert torch.equal(found, by_the_book(model, **inputs))
    assert len(recordings) == 1


@pytest.mark.parametrize("change", BETWEEN_CALLS)
def test_generate_sees_what_happened_since_the_last_call(change, recordings):
    model = lively_model(position="rope", window=7).cuda()
    before = generate(model, PROMPT.cuda(), max_new_tokens=24)
    assert torch.equal(before, by_the_book(model))
    change(model)
    expected = by_the_book(model)
    assert not torch.equal(expected, before), "the change is too small to be seen"
    for _ in range(2):
        assert torch.equal(generate(model, PROMPT.cuda(), max_new_tokens=24), expected)
    assert recordings


@pytest.mark.parametrize("change", BETWEEN_TOKENS)
def test_a_stream_sees_what_happened_since_the_last_token(change, recordings):
    results = []
    for cache in (None, KeyValueCache(2, 60)):  # a cache of one's own is used plainly
        model = lively_model(position="rope").cuda()
        tokens = stream(model, PROMPT.cuda(), max_new_tokens=24, cache=cache)
        found = [next(tokens) for _ in range(6)]
        change(model)
        results.append(torch.stack(found + list(tokens), dim=1))
    assert len(recordings) == 1
    assert torch.equal(*results)


def test_what_cannot_be_recorded_is_right_all_the_same(recordings):
    model = lively_model(n_experts=4, active_experts=2).cuda()  # who goes where is asked in Python
    assert torch.equal(generate(model, PROMPT.cuda(), max_new_tokens=24), by_the_book(model))
    model = lively_model().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        assert generate(model, PROMPT.cuda(), max_new_tokens=24).shape == (2, 27)
    assert not recordings


def test_two_streams_at_once_do_not_disturb_each_other(recordings):
    model, prompts = lively_model().cuda(), (PROMPT.cuda(), PROMPT.cuda() + 9)
    alone = [generate(model, prompt, max_new_tokens=24)[:, 3:] for prompt in prompts]
    streams = [stream(model, prompt, max_new_tokens=24) for prompt in prompts]
    found = [torch.stack(tokens) for tokens in zip(*streams, strict=True)]
    together = torch.stack(found).permute(1, 2, 0)
    assert torch.equal(together[0], alone[0])
    assert torch.equal(together[1], alone[1])
    assert len(recordings) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "shared", "width"), [(4, 4, 64), (6, 2, 80), (8, 1, 16), (3, 3, 12)]
)
@pytest.mark.parametrize("n_parts", [1, 3, 16, 64])
def test_the_kernel_for_a_step_does_what_the_others_do(n_parts, heads, shared, width, dtype):
    torch.manual_seed(0)
    for n, places in ((1, 5), (64, 65), (130, 200), (2_000, 2_048)):
        q = torch.randn(2, 1, heads, width, device="cuda").to(dtype).transpose(1, 2)
        k, v = torch.randn(2, 2, 1, shared, width, device="cuda").to(dtype).transpose(2, 3)
        stored = torch.randn(2, 2, shared, n, width, device="cuda").to(dtype)
        caches = []
        for _ in range(2):
            caches.append(StaticLayerCache(places, torch.tensor(0, device="cuda")))
            caches[-1].append(*stored)
            caches[-1].filled += n
        past = torch.arange(places, device="cuda") <= n
        bias = additive_mask(past, torch.randn(2, heads, 1, places, device="cuda"), dtype)
        keys, values = caches[0].append(k, v)
        wanted = fused_attention(q, keys, values, bias=bias, enable_gqa=True)
        found = append_and_attend(q, k, v, caches[1], bias, n_parts=n_parts)
        tolerance = 1e-4 if dtype == torch.float32 else 2e-2
        assert_close(found, wanted, rtol=tolerance, atol=tolerance)
        assert torch.equal(keys, caches[1].read()[0])
        assert torch.equal(values, caches[1].read()[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pairing", ["interleaved", "split"])
@pytest.mark.parametrize("turning", [80, 32])
def test_the_kernel_for_a_step_turns_queries_and_keys(turning, pairing, dtype):
    torch.manual_seed(0)
    q = torch.randn(2, 6, 1, 80, device="cuda").to(dtype)
    k, v = torch.randn(2, 2, 2, 1, 80, device="cuda").to(dtype)
    places = torch.tensor([[[3]], [[16_001]]], device="cuda")  # (B, 1, T)
    angles = rope_angles(places, turning, 10_000.0)
    wanted_cache, cache = (StaticLayerCache(300, torch.tensor(0, device="cuda")) for _ in range(2))
    for each in (wanted_cache, cache):
        each.append(*torch.ones(2, 2, 2, 200, 80, device="cuda", dtype=dtype))
        each.filled += 200
    hidden = additive_mask(torch.arange(300, device="cuda") <= 200, None, dtype).expand(1, 300)
    turned = rotate(q, angles, pairing), rotate(k, angles, pairing)
    keys, values = wanted_cache.append(turned[1], v)
    wanted = fused_attention(turned[0], keys, values, bias=hidden, enable_gqa=True)
    found = append_and_attend(q, k, v, cache, hidden, angles=angles, pairing=pairing, n_parts=3)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    assert_close(cache.read()[0], keys, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("window", [None, 100])
def test_long_contexts_give_the_tokens_of_the_model(window, padded, recordings):
    model = lively_model(position="rope", n_kv_heads=2, window=window, max_len=1_300).cuda()
    prompt = torch.randint(0, 11, (2, 1_200), device="cuda")
    real = torch.arange(1_200, device="cuda") >= torch.tensor([[500], [0]], device="cuda")
    inputs = {"prompt_mask": real} if padded else {}
    cached = generate(
        model, prompt, max_new_tokens=24, cache=KeyValueCache(2, 1_300), **inputs
    )  # not recorded
    assert not recordings
    assert torch.equal(generate(model, prompt, max_new_tokens=24, **inputs), cached)
    assert recordings
    fast = CompiledDecoder(model, max_len=1_300)
    assert torch.equal(generate(fast, prompt, max_new_tokens=24, **inputs), cached)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("bits", "group"), [(8, 64), (8, None), (8, 43), (4, 16), (4, 688)])
def test_quantised_layers_multiply_by_the_kernel(bits, group, dtype, monkeypatch):
    torch.manual_seed(0)
    for outputs in (1, 50, 256):
        layer = nn.Linear(688 if group != 64 else 256, outputs)
        plain = QuantizedLinear.from_linear(layer, bits, group).cuda().to(dtype)
        model = nn.Sequential(copy.deepcopy(plain))
        assert use_int_kernels(model) == 1
        for shape in ((1,), (2, 3), (quantized_kernels.MOST_ROWS_ON_GPU,)):
            x = torch.randn(*shape, layer.in_features, device="cuda", dtype=dtype)
            wanted = plain.double()(x.double())
            plain.to(dtype)
            with monkeypatch.context() as patch, torch.no_grad():
                patch.setattr(QuantizedLinear, "_product", lambda *_: pytest.fail("no kernel"))
                found = model(x)
            assert found.dtype == dtype
            tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype]
            assert relative_error(found, wanted) < tolerance
        many = torch.randn(300, layer.in_features, device="cuda", dtype=dtype)
        assert_close(model(many), plain(many))  # by the formula


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 16)])
def test_a_quantised_model_writes_the_same_by_all_paths(bits, group, kernels, recordings):
    model = lively_model(position="rope", max_len=60, d_model=64, n_heads=4)
    quantize(model, bits, group)
    model.cuda()
    prompt = PROMPT.cuda()
    wanted = generate(model, prompt, max_new_tokens=24, cache=KeyValueCache(2, 60))
    assert not recordings
    if kernels:
        use_int_kernels(model)
    assert torch.equal(generate(model, prompt, max_new_tokens=24), wanted)
    assert recordings
    fast = CompiledDecoder(model, max_len=60)
    assert torch.equal(generate(fast, prompt, max_new_tokens=24), wanted)


def test_a_quantised_file_is_loaded_onto_the_gpu(tmp_path):
    model = lively_model(position="rope").eval()
    quantize(model, 4, 8)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path, "cuda")
    assert all(tensor.is_cuda for tensor in loaded.state_dict().values())
    with torch.no_grad():
        assert_close(loaded(PROMPT.cuda()).cpu(), model(PROMPT), rtol=1e-4, atol=1e-4)


def test_a_decoder_compiles_one_step_for_all_lengths():
    torch.compiler.reset()
    counters.clear()
    model = lively_model(max_len=200).cuda()
    generate(CompiledDecoder(model, max_len=200), PROMPT.cuda(), max_new_tokens=190)
    assert counters["stats"]["unique_graphs"] == 2  # a block, and the choice of a token


def test_training_leaves_the_random_numbers_of_the_gpu_as_they_were():
    torch.manual_seed(0)
    model = CausalLM(small_config(dropout=0.1))
    torch.manual_seed(3)
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    recipe = Recipe(steps=2, learning_rate=0.01)
    train(model, TextWindows(torch.arange(50) % 11, 4, 2), recipe, device="cuda", progress=False)
    assert_close((torch.get_rng_state(), torch.cuda.get_rng_state()), before, rtol=0, atol=0)
