"""On a GPU: what today's families add is recorded, compiled and trained as it is on the CPU."""

import pytest
import torch
from recording_changes import PROMPT, lively_model

from transformer_lib.core.config import RopeScaling
from transformer_lib.generation.fast import cuda_graph as recorded
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.generate import generate
from transformer_lib.layers.caches.kv_cache import KeyValueCache

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here"),
    # PyTorch's compiler warns of its own doings there, in each version of others.
    pytest.mark.filterwarnings("default"),
]

ROPE = {"position": "rope", "norm": "rms", "norm_position": "pre", "n_kv_heads": 2, "n_layers": 4}
SCALED = {
    kind: {**ROPE, "rope_scaling": RopeScaling(kind=kind, factor=4.0, trained_len=16)}
    for kind in ("linear", "ntk", "yarn", "llama3")
}
LIKE = {
    "qwen2": {**ROPE, "qkv_bias": True, "bias": False, "window": 5, "window_pattern": "GGLL"},
    "qwen3": {**ROPE, "qk_norm": "head", "head_width": 20},
    "gemma2": {
        **ROPE, "norm_position": "both", "norm_offset": 1.0, "head_width": 20, "score_cap": 2.0,
        "logit_cap": 3.0, "window": 5, "window_pattern": "LG",
    },
    "gemma3": {
        **ROPE, "norm_position": "both", "norm_offset": 1.0, "head_width": 20, "qk_norm": "head",
        "window": 5, "window_pattern": "LLLG", "local_rope_theta": 100.0,
    },
    "olmo2": {**ROPE, "norm_position": "update", "qk_norm": "all"},
    "half turned": {**ROPE, "rope_fraction": 0.5},
    **SCALED,
}  # fmt: skip


@pytest.mark.parametrize("name", LIKE)
def test_logits_and_gradients_are_those_of_the_cpu(name):
    answers = []
    ids = torch.arange(80).view(2, 40) % 50
    for device in ("cpu", "cuda"):
        model = lively_model(**LIKE[name]).eval().double().to(device)
        logits = model(ids.to(device))
        logits.square().mean().backward()
        answers.append([logits.cpu(), *(p.grad.cpu() for p in model.parameters())])
    for found, wanted in zip(*answers, strict=True):  # angles are float32 on both
        assert (found - wanted).norm() < 1e-5 * wanted.norm() + 1e-9


@pytest.mark.parametrize("name", LIKE)
def test_recorded_and_compiled_steps_give_the_tokens_of_the_model(name, monkeypatch):
    torch.compiler.reset()
    made, record = [], recorded._record
    monkeypatch.setattr(recorded, "_record", lambda run: made.append(1) or record(run))
    model, prompt = lively_model(**LIKE[name]).cuda().eval(), PROMPT.cuda()
    options = {
        "max_new_tokens": 24,
        "prompt_mask": torch.tensor([[False, True, True], [True] * 3]).cuda(),
    }
    # Where angles grow with the text, keys in a cache stay turned as they were.
    expected = generate(model, prompt, cache=KeyValueCache(4, 60), **options)
    assert not made
    if name != "ntk":
        assert torch.equal(expected, generate(model, prompt, use_cache=False, **options))
    assert torch.equal(generate(model, prompt, **options), expected)
    assert torch.equal(generate(CompiledDecoder(model, max_len=40), prompt, **options), expected)
    assert len(made) == 2
