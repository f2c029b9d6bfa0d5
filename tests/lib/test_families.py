"""Today's families of decoders against transformers: cached, padded, written, and beyond."""

import json
import math
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from torch.testing import assert_close

from transformer_lib.core.config import RopeScaling, TransformerConfig
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.generate import generate
from transformer_lib.hugging_face.pretrained import load_pretrained, save_pretrained
from transformer_lib.layers.build_parts import Parts, make_attention
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.positions import rope_angles, rotate
from transformer_lib.layers.qk_norm_softcap import BoundedAttention
from transformer_lib.models.encoder_decoder import Decoder
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.training.losses import Objective

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SIZES = {
    "vocab_size": 60,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": None,
    "attn_implementation": "eager",
}
WINDOW = {"sliding_window": 5}
GEMMA = {**SIZES, **WINDOW, "head_dim": 10, "query_pre_attn_scalar": 11}
FAMILIES = {  # all that differs from LLaMA is there, in sizes that all differ
    "llama 3.1": ("Llama", {**SIZES, "rope_parameters": None}),
    "mistral": ("Mistral", {**SIZES, **WINDOW, "head_dim": 10}),
    "qwen2": ("Qwen2", SIZES),
    "qwen2, window": (
        "Qwen2",
        {**SIZES, **WINDOW, "use_sliding_window": True, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3", {**SIZES, "head_dim": 10}),
    "gemma2": (
        "Gemma2",
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": ("Gemma3", {**GEMMA, "sliding_window_pattern": 2}),
    "gemma3, yarn": (  # in global layers alone
        "Gemma3",
        {**GEMMA, "sliding_window_pattern": 2, "rope_parameters": None},
    ),
    "olmo2": ("Olmo2", SIZES),
    "gemma1": ("Gemma", {**SIZES, "head_dim": 10}),
    "phi3": ("Phi3", SIZES),
    "phi3, a part of each head": (  # 6 of 8 features turn, as 96 of 128 in Phi-4-mini
        "Phi3",
        {**SIZES, "hidden_size": 32, "partial_rotary_factor": 0.75},
    ),
    "smollm3": ("SmolLM3", {**SIZES, "tie_word_embeddings": True}),
    "smollm3, window": (
        "SmolLM3",
        {**SIZES, **WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 0, 0, 1]},
    ),
    "mixtral": ("Mixtral", {**SIZES, "head_dim": 10, "num_local_experts": 5}),
    "mixtral, window": (
        "Mixtral",
        {**SIZES, **WINDOW, "num_local_experts": 4, "num_experts_per_tok": 3},
    ),
    "qwen3 moe": (
        "Qwen3Moe",
        {
            **SIZES,
            "head_dim": 10,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 12,
            "norm_topk_prob": True,
        },
    ),
    "qwen3 moe, one expert": (
        "Qwen3Moe",
        {
            **SIZES,
            "head_dim": 10,
            "num_experts": 3,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 12,
        },
    ),
    "phi3, window": ("Phi3", {**SIZES, **WINDOW}),
}
PARTLY = ("phi3, a part of each head", "smollm3", "mixtral", "qwen3 moe", "qwen3 moe, one expert")
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn, other ramp": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 2.0,
        "beta_slow": 0.5,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "truncate": False,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 0.5,
        "high_freq_factor": 2.0,
        "original_max_position_embeddings": 16,
    },
}
SCALINGS["llama 3.1"] = SCALINGS["llama3"]
FAMILIES["llama 3.1"][1]["rope_parameters"] = SCALINGS["llama3"] | {"rope_theta": 100.0}
# Whose RoPE is not to be scaled, or which would be scaled as others are.
FIXED = (
    "llama 3.1", "gemma3, yarn", "phi3", "phi3, window", "phi3, a part of each head",
    "smollm3, window", "mixtral, window", "qwen3 moe, one expert",
)  # fmt: skip
PLAIN = ["llama", *(name for name in FAMILIES if name not in FIXED)]
FAMILIES["gemma3, yarn"][1]["rope_parameters"] = {
    "full_attention": SCALINGS["yarn"] | {"factor": 16.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def their_model(kind, settings):
    """A model of transformers whose weights hide nothing."""
    torch.manual_seed(0)
    config = "Gemma3Text" if kind == "Gemma3" else kind
    config = getattr(transformers, f"{config}Config")(**settings)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            gain = "norm" in name and not kind.startswith("Gemma")
            weight.normal_(std=0.3).add_(1.0 if gain else 0.0)
    return model


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A model of transformers, and ours that was read from its files."""
    made = {}

    def get(name, kind=None, settings=None):
        if name not in made:
            default = FAMILIES.get(name, (kind, settings))
            theirs, folder = their_model(*default), tmp_path_factory.mktemp("family")
            theirs.save_pretrained(folder)
            made[name] = theirs, load_pretrained(folder).model
        return made[name]

    return get


def check_close(actual, expected):
    """Equal up to the rounding of float32 in sums of numbers as large as these."""
    assert_close(actual, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def check_differs(actual, expected):
    """So much that no rounding explains it."""
    assert (actual - expected).abs().max() > 0.01 * expected.abs().max()


def ids(*shape, seed=1):
    return torch.randint(1, 60, shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def check_logits(families):
    for kind, settings in families:
        theirs = their_model(kind, settings)
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            ours = load_pretrained(folder).model
        text = ids(2, 24)
        check_close(ours(text), theirs(text).logits)


def test_all_families_say_what_transformers_says():
    check_logits(settings for name, settings in FAMILIES.items() if name not in PARTLY)


def test_families_that_turn_or_ask_a_part_say_what_transformers_says():
    """Layers or features without RoPE, experts that are not asked."""
    check_logits(FAMILIES[name] for name in PARTLY)


@torch.no_grad()
def test_files_of_all_families_are_read_by_transformers():
    for kind, settings in FAMILIES.values():
        with tempfile.TemporaryDirectory() as folder:
            their_model(kind, settings).save_pretrained(folder)
            config = load_pretrained(folder).model.config
        mine = CausalLM(replace(config, rope_pairing="interleaved")).eval()
        for weight in mine.parameters():
            weight.normal_(std=0.3, generator=torch.Generator().manual_seed(weight.numel()))
        with tempfile.TemporaryDirectory() as folder:
            save_pretrained(mine, folder)
            read = transformers.AutoModelForCausalLM.from_pretrained
            theirs = read(folder, attn_implementation="eager").eval()
            assert load_pretrained(folder).model.config == config
        text = ids(2, 20)
        check_close(theirs(text).logits, mine(text))


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_cached_steps_say_what_transformers_says(name, both):
    theirs, ours = both(name)
    text = ids(2, 24)
    expected = theirs(text).logits
    cache, logits = KeyValueCache(4, 64), []
    for first, last in ((0, 7), (7, 8), (8, 9), (9, 20), (20, 24)):
        logits.append(ours(text[:, first:last], cache=cache))
    check_close(torch.cat(logits, dim=1), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_with_padding_equals_transformers(name, both):
    theirs, ours = both(name)
    prompt, real = ids(3, 9), torch.ones(3, 9, dtype=torch.long)
    real[0, :4], real[2, :7] = 0, 0
    expected = theirs.generate(
        prompt, attention_mask=real, max_new_tokens=14, do_sample=False, eos_token_id=None
    )
    options = {"max_new_tokens": 14, "prompt_mask": real.bool()}
    assert torch.equal(generate(ours, prompt, **options), expected)
    assert torch.equal(generate(ours, prompt, use_cache=False, **options), expected)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_left_padded_rows_say_what_transformers_says(name, both):
    """There, whoever pads on the left gives the positions, too."""
    theirs, ours = both(name)
    text, real = ids(3, 12), torch.ones(3, 12, dtype=torch.bool)
    real[0, :4], real[2, :9] = False, False
    positions = (real.cumsum(dim=1) - 1).clamp(min=0)
    expected = theirs(text, attention_mask=real.long(), position_ids=positions).logits
    check_close(ours(text, real=real)[real], expected[real])


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "olmo2", "smollm3, window"])
def test_compiled_steps_know_both_kinds_of_layers(name, both, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    _, ours = both(name)
    prompt, fast = ids(2, 9), CompiledDecoder(ours, max_len=40)
    expected = generate(ours, prompt, max_new_tokens=14, use_cache=False)
    assert torch.equal(generate(fast, prompt, max_new_tokens=14), expected)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_the_readable_formula_says_the_same(name, both):
    _, ours = both(name)
    text = ids(2, 20)
    expected = ours(text)
    for part in ours.modules():
        if hasattr(part, "fused"):
            part.fused = False
    logits = ours(text)
    for part in ours.modules():
        vars(part).pop("fused", None)
    check_close(logits, expected)


@pytest.mark.parametrize("kind", SCALINGS)
@torch.no_grad()
def test_scaled_rope_equals_transformers_beyond_the_trained_length(kind, both):
    rope = SCALINGS[kind] | {"rope_theta": 100.0}
    longest = 16 if kind == "dynamic" else 64
    settings = {**SIZES, "max_position_embeddings": longest, "rope_parameters": rope}
    theirs, ours = both(f"scaled, {kind}", "Llama", settings)
    assert ours.config.max_len == 64
    for length in (12, 17, 60):
        text = ids(2, length)
        check_close(ours(text), theirs(text).logits)


@torch.no_grad()
def test_a_longer_text_moves_only_what_dynamic_scaling_moves(both):
    """With a cache its keys stay turned as they were: transformers does the same."""
    rope = SCALINGS["dynamic"] | {"rope_theta": 100.0}
    settings = {**SIZES, "max_position_embeddings": 16, "rope_parameters": rope}
    theirs, ours = both("scaled, dynamic", "Llama", settings)
    prompt = ids(2, 10)
    expected = theirs.generate(prompt, max_new_tokens=30, do_sample=False, eos_token_id=None)
    assert torch.equal(generate(ours, prompt, max_new_tokens=30), expected)


@torch.no_grad()
def test_what_dynamic_scaling_says_depends_on_what_is_read_together():
    """As RopeScaling says: neither step by step nor beside a longer text it is the same."""
    rope = SCALINGS["dynamic"] | {"rope_theta": 100.0}
    settings = {**SIZES, "max_position_embeddings": 16, "rope_parameters": rope}
    theirs = their_model("Llama", settings)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load_pretrained(folder).model
    text = ids(2, 40)
    at_once = ours(text)
    check_close(at_once, theirs(text).logits)
    cache, past = KeyValueCache(4, 64), transformers.DynamicCache()
    places = range(40)
    steps = torch.cat([ours(text[:, i : i + 1], cache=cache) for i in places], 1)
    read = partial(theirs, past_key_values=past, use_cache=True)
    check_close(steps, torch.cat([read(text[:, i : i + 1]).logits for i in places], 1))
    check_close(steps[:, :16], ours(text[:, :16]))  # within the trained length
    check_differs(steps[:, 17:], at_once[:, 17:])
    real = torch.arange(40) < torch.tensor([[12], [40]])
    beside = ours(text, real[:, None, None])
    expected = theirs(text, attention_mask=real.long()).logits
    check_close(beside[0, :12], expected[0, :12])
    check_close(beside[1], expected[1])
    check_differs(beside[0, :12], ours(text[:1, :12])[0])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_what_other_scalings_say_does_not(kind):
    scaling = RopeScaling(kind=kind, factor=4.0, trained_len=16)
    sizes = {"vocab_size": 60, "d_model": 24, "n_heads": 2, "n_layers": 2, "max_len": 64}
    torch.manual_seed(0)
    model = CausalLM(TransformerConfig(**sizes, position="rope", rope_scaling=scaling)).eval()
    text, cache = ids(2, 40), KeyValueCache(2, 64)
    steps = torch.cat([model(text[:, i : i + 1], cache=cache) for i in range(40)], 1)
    check_close(steps, model(text))


YARN = {
    "vocab_size": 60,
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 4,
    "position": "rope",
    "rope_theta": 1000.0,
    "rope_scaling": RopeScaling(kind="yarn", factor=16.0, trained_len=16),
    "window": 5,
    "window_pattern": "LG",
}


def test_yarn_sharpens_only_attention_whose_rope_it_scales():
    """G1: a memory is not turned at all, and a base of their own frees local layers."""
    sharp = 8**-0.5 * (1 + 0.1 * math.log(16)) ** 2
    body = Seq2SeqLM(TransformerConfig(**YARN, local_rope_theta=100.0)).body
    for stack in (body.encoder.stack, body.decoder.stack):
        scales = [block.attention.scale for block in stack.blocks]
        assert scales == [None, pytest.approx(sharp), None, pytest.approx(sharp)]
    assert [block.cross_attention.scale for block in body.decoder.stack.blocks] == [None] * 4
    blocks = CausalLM(TransformerConfig(**YARN)).decoder.stack.blocks
    assert [block.attention.scale for block in blocks] == [pytest.approx(sharp)] * 4
    own = TransformerConfig(**YARN, local_rope_theta=100.0, attention_scale=0.5)
    block = Seq2SeqLM(own).body.decoder.stack.blocks[1]
    assert block.attention.scale == pytest.approx(0.5 * sharp * 8**0.5)
    assert block.cross_attention.scale == 0.5


def test_whoever_makes_attention_is_told_of_rope_as_it_is_there():
    told = []

    def make(config):
        told.append((config.rope_theta, config.rope_scaling))
        return make_attention(config)

    config = TransformerConfig(**YARN, local_rope_theta=100.0)
    CausalLM(config, parts=Parts(attention=make))
    assert told == [(100.0, None), (1000.0, YARN["rope_scaling"])] * 2
    told.clear()
    Decoder(replace(config, n_layers=2), cross_attention=True, parts=Parts(attention=make))
    assert told[1::2] == [(100.0, None), (1000.0, None)]


@torch.no_grad()
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("scaling", ["linear", "yarn", "llama3"])
def test_rope_scaling_beside_rope_parameters_counts(name, scaling, tmp_path):
    """F1: newer files say rope_parameters, and model cards tell to add rope_scaling."""
    theirs, text = their_model(*FAMILIES.get(name, ("Llama", SIZES))), ids(2, 40)
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text())
    assert settings["rope_parameters"]
    without = load_pretrained(tmp_path).model(text)
    path.write_text(json.dumps(settings | {"rope_scaling": SCALINGS[scaling]}))
    read = transformers.AutoModelForCausalLM.from_pretrained
    expected = read(tmp_path, attn_implementation="eager").eval()(text).logits
    check_close(load_pretrained(tmp_path).model(text), expected)
    check_differs(without, expected)


def test_gemma_3_has_no_cap_on_scores():
    """F14: transformers knows the key, and does not look at it; so such a model is not written."""
    capped = {**GEMMA, "sliding_window_pattern": 2, "attn_logit_softcapping": 0.5}
    theirs, text = their_model("Gemma3", capped), ids(2, 20)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        theirs.save_pretrained(folder)
        ours = load_pretrained(folder).model
        assert ours.config.score_cap is None
        check_close(ours(text), theirs(text).logits)
        capped = CausalLM(replace(ours.config, score_cap=0.5))
        with pytest.raises(ValueError, match=r"cannot be written|our models need"):
            save_pretrained(capped, folder)


@pytest.mark.parametrize("first", [0, 1, 3, 4])
def test_the_first_layer_with_a_window_may_be_any(first):
    """F14: max_window_layers=0 was refused."""
    window = {**WINDOW, "use_sliding_window": True, "max_window_layers": first}
    theirs, text = their_model("Qwen2", {**SIZES, **window}), ids(2, 20)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        theirs.save_pretrained(folder)
        path = Path(folder, "config.json")
        settings = json.loads(path.read_text()) | window
        path.write_text(json.dumps({k: v for k, v in settings.items() if k != "layer_types"}))
        ours = load_pretrained(folder).model
        assert [ours.config.is_local(n) for n in range(4)] == [n >= first for n in range(4)]
        check_close(ours(text), theirs(text).logits)


def test_only_the_first_features_of_a_head_turn():
    x, positions = torch.randn(2, 3, 5, 8), torch.arange(5)
    angles = rope_angles(positions, 4)
    for pairing in ("interleaved", "split"):
        turned = rotate(x, angles, pairing)
        assert torch.equal(turned[..., 4:], x[..., 4:])
        assert_close(turned[..., :4], rotate(x[..., :4], angles, pairing))
    config = TransformerConfig(
        vocab_size=60, d_model=24, n_heads=2, n_layers=2, position="rope", rope_fraction=1 / 3
    )
    assert config.rope_width == 4
    model = CausalLM(config).eval()
    text, cache = ids(2, 12), KeyValueCache(2, 12)
    with torch.no_grad():
        parts = [model(text[:, :5], cache=cache), model(text[:, 5:], cache=cache)]
        check_close(torch.cat(parts, 1), model(text))
    expected = generate(model, text, max_new_tokens=20, use_cache=False)
    assert torch.equal(generate(model, text, max_new_tokens=20), expected)


def test_norms_on_queries_bound_the_scores():
    """However large the projections grow, a score stays within the square root of Dk."""
    config = TransformerConfig(d_model=32, n_heads=4, norm="rms", qk_norm="head")
    attention = BoundedAttention(config, d_model=32, n_heads=4)
    with torch.no_grad():
        attention.query.weight.mul_(1000)
        q = attention.project_queries(torch.randn(1, 50, 32))
        k, _ = attention.project_keys_values(torch.randn(1, 50, 32))
    scores = (q @ k.mT) / 8**0.5
    assert scores.abs().max() <= 8**0.5 + 1e-4


def test_a_cap_bends_scores_also_for_whoever_asks_for_weights():
    torch.manual_seed(0)
    config = TransformerConfig(d_model=32, n_heads=4, score_cap=0.5)
    attention = BoundedAttention(config, d_model=32, n_heads=4).eval()
    with torch.no_grad():
        attention.query.weight.mul_(50)
    x = torch.randn(2, 6, 32)
    output, weights = attention.with_weights(x, causal=True)
    assert_close(attention(x, causal=True), output)
    # e^0.5 / e^-0.5 at most
    assert (weights[..., -1, :].amax(-1) / weights[..., -1, :].amin(-1)).max() <= 2.7183


def test_capped_logits_are_trained_as_they_are_asked_for():
    """The loss in parts multiplies by the weights itself, and would forget the cap."""
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=60, d_model=16, n_heads=2, n_layers=1, logit_cap=0.3)
    model, text = CausalLM(config).eval(), ids(2, 9)
    with torch.no_grad():
        model.output.projection.weight.mul_(30)
    logits = model(text[:, :-1])
    assert logits.abs().max() <= 0.3
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), text[:, 1:].flatten(), reduction="sum"
    )
    total, _ = Objective(model)({"ids": text[:, :-1], "targets": text[:, 1:]})
    assert_close(total, expected)


BAD = [
    ({"head_width": 0}, r"^head_width=0 must be a whole number of at least 1$"),
    ({"head_width": 5, "position": "rope"}, r"rotates pairs of features: "),
    ({"window_pattern": ""}, r"^window_pattern='' must be made of 'L'"),
    ({"window_pattern": "LX"}, r"^window_pattern='LX' must be made of 'L'"),
    ({"rope_pattern": ""}, r"^rope_pattern='' must be made of 'R' \(with RoPE\) and 'N' \(without"),
    ({"rope_pattern": "RL"}, r"^rope_pattern='RL' must be made of 'R'"),
    ({"norm_offset": 1.0}, r"^norm_offset=1.0 needs norm='rms', not 'layer'$"),
    ({"norm_offset": float("nan"), "norm": "rms"}, r"^norm_offset=nan must be a number finite$"),
    ({"qk_norm": "heads"}, r"^qk_norm='heads' must be one of 'none', 'head', 'all'$"),
    ({"norm_position": "sandwich"}, r"^norm_position='sandwich' must be one of 'pre', 'post', "),
    ({"score_cap": 0.0}, r"^score_cap=0.0 must be a number greater than 0$"),
    ({"logit_cap": -1.0}, r"^logit_cap=-1.0 must be a number greater than 0$"),
    ({"local_rope_theta": 0.0}, r"^local_rope_theta=0.0 must be a number greater than 0$"),
    ({"rope_fraction": 1.5, "position": "rope"}, r"^rope_fraction=1.5 must be a number above 0"),
    ({"rope_fraction": 0.01, "position": "rope"}, r"0.01 of d_head=64 must be even"),
]
BAD_SCALINGS = [
    ({"kind": "dynamic", "factor": 2.0}, r"^kind='dynamic' must be one of 'linear', 'ntk', "),
    ({"kind": "linear", "factor": 0.5}, r"^factor=0.5 must be a number at least 1$"),
    ({"kind": "yarn", "factor": 2.0}, r"^trained_len=None; kind='yarn' needs a number of tokens$"),
    ({"kind": "llama3", "factor": 2.0, "trained_len": 0}, r"^trained_len=0 must be a whole"),
    (
        {"kind": "llama3", "factor": 2.0, "trained_len": 8, "fast_turns": 1.0},
        r"^fast_turns=1.0 must be greater than slow_turns=1.0$",
    ),
    (
        {"kind": "yarn", "factor": 2.0, "trained_len": 8, "sharpness": 0.0},
        r"^sharpness=0.0 must be a number greater than 0$",
    ),
]


@pytest.mark.parametrize(("choice", "message"), BAD)
def test_choices_that_mean_nothing_are_refused(choice, message, unchecked_shapes):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**choice)


@pytest.mark.parametrize(("choice", "message"), BAD_SCALINGS)
def test_scalings_that_mean_nothing_are_refused(choice, message, unchecked_shapes):
    with pytest.raises(ValueError, match=message):
        RopeScaling(**choice)


def test_yarn_needs_whole_heads():
    scaling = RopeScaling(kind="yarn", factor=4.0, trained_len=16)
    with pytest.raises(ValueError, match=r"of kind 'yarn' multiplies whole heads; rope_fraction="):
        TransformerConfig(position="rope", rope_scaling=scaling, rope_fraction=0.5)


def test_angles_of_more_pairs_than_a_head_has_are_refused():
    with pytest.raises(ValueError, match=r"^angles has 4 pairs; expected at most half the width"):
        rotate(torch.zeros(1, 2, 6), rope_angles(torch.arange(2), 8))
