"""Checkpoints whose ``config.json`` differs in one key, read by transformers and by us.

For every architecture that is read, every key of its configuration class, of all other classes, of
the base class and of generation is set to other values, in a file that says little and in one that
says all; and RoPE is described in all kinds, in each of its two places and in both. Each file goes
with the weights of the model that transformers makes of it. Either our logits are those of
transformers, or the file is refused. The whole sweep takes minutes:

    .venv/bin/python tests/lib/every_setting.py [architecture ...]
"""

import copy
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig

from transformer_lib.hugging_face.config_json import _MUST_BE, find_family, read_config
from transformer_lib.hugging_face.family_list import FAMILIES
from transformer_lib.hugging_face.pretrained import load_pretrained
from transformer_lib.models.language_models import Seq2SeqLM, VisionTransformer

TOLERANCE = 1e-4  # of the largest number that transformers gives
VOCAB = 40
LONGEST = 72  # more than the tiny models were trained on

_MODERN = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
}
_BERT = {key: value for key, value in _MODERN.items() if key != "num_key_value_heads"}
_GEMMA = {**_MODERN, "head_dim": 8, "query_pre_attn_scalar": 11, "sliding_window": 5}
BASES = {  # the least that a file must say so that the model is tiny, and all layers differ
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT,
    "BertForSequenceClassification": _BERT,
    "GPT2LMHeadModel": {
        "vocab_size": VOCAB, "n_positions": 64, "n_embd": 24, "n_layer": 3, "n_head": 4,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "LlamaForCausalLM": _MODERN,
    "MistralForCausalLM": {**_MODERN, "sliding_window": 5},
    "Qwen2ForCausalLM": {**_MODERN, "sliding_window": 5, "max_window_layers": 1},
    "Qwen3ForCausalLM": {**_MODERN, "head_dim": 8, "sliding_window": 5, "max_window_layers": 1},
    "Gemma2ForCausalLM": {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "Gemma3ForCausalLM": {**_GEMMA, "num_hidden_layers": 7},  # the sixth is the first global one
    "GemmaForCausalLM": {**_MODERN, "head_dim": 8},
    "SmolLM3ForCausalLM": {
        **_MODERN, "no_rope_layer_interval": 2, "sliding_window": 5,
        "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 2,
    },
    "MixtralForCausalLM": {**_MODERN, "num_local_experts": 4, "sliding_window": 5},
    "Qwen3MoeForCausalLM": {
        **_MODERN, "head_dim": 8, "moe_intermediate_size": 12, "num_experts": 4,
        "num_experts_per_tok": 2, "norm_topk_prob": True, "sliding_window": 5,
    },
    "Phi3ForCausalLM": {**_MODERN, "sliding_window": 5, "pad_token_id": 1, "eos_token_id": 2},
    "Olmo2ForCausalLM": {**_MODERN, "pad_token_id": 1, "eos_token_id": 2},
    "T5ForConditionalGeneration": {
        "vocab_size": VOCAB, "d_model": 24, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 4,
        "n_positions": 64,
    },
    "ViTForImageClassification": {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 20, "image_size": 12, "patch_size": 4,
    },
}  # fmt: skip

_SAID = {"rope_type": "default"}
_LINEAR = {"rope_type": "linear", "factor": 4.0}
_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_RAMP = {"beta_fast": 2.0, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 1.3}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 0.5,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 16,
}
_HALVES = [1.0, 1.5, 2.0]
ROPES = {
    "default": _SAID,
    "linear": _LINEAR,
    "dynamic": _DYNAMIC,
    "yarn": _YARN,
    "llama3": _LLAMA3,
}
MORE_ROPES = {  # alone only
    "nothing": {},
    "theta alone": {"rope_theta": 50.0},
    "older name": {"type": "linear", "factor": 4.0},
    "both names": {"type": "yarn", **_YARN},
    "names differ": {"type": "dynamic", **_LINEAR},
    "factor 1": {**_LINEAR, "factor": 1.0},
    "whole factor": {**_LINEAR, "factor": 4},
    "small factor": {**_LINEAR, "factor": 0.5},
    "no factor": {"rope_type": "yarn", "original_max_position_embeddings": 16},
    "factor null": {**_YARN, "factor": None},
    "factor in words": {**_DYNAMIC, "factor": "4"},
    "no length": {"rope_type": "yarn", "factor": 4.0},
    "llama3, no length": {k: v for k, v in _LLAMA3.items() if not k.startswith("original")},
    "dynamic, a length": {**_DYNAMIC, "original_max_position_embeddings": 16},
    "yarn, ramp": {**_YARN, **_RAMP},
    "yarn, no whole pairs": {**_YARN, "truncate": False},
    "yarn, sharpness": {**_YARN, "attention_factor": 1.3},
    "yarn, no sharpness": {**_YARN, "attention_factor": 1.0},
    "yarn, mscale alone": {**_YARN, "mscale": 0.7},
    "yarn, turned round": {**_YARN, "beta_fast": 1.0, "beta_slow": 4.0},
    "llama3, turned round": {**_LLAMA3, "low_freq_factor": 3.0},
    "half of a head": {**_SAID, "partial_rotary_factor": 0.5},
    "linear, half of a head": {**_LINEAR, "partial_rotary_factor": 0.5},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "short_factor": _HALVES,
                 "long_factor": _HALVES, "original_max_position_embeddings": 16},
    "proportional": {"rope_type": "proportional", "rope_theta": 50.0},
    "mrope": {"rope_type": "mrope", "mrope_section": [1, 1, 1]},
    "unknown": {"rope_type": "spiral"},
    "no type": {"rope_type": None},
}  # fmt: skip

_WORDS = {  # what else a key may say, where a value of the same type would mean nothing
    "hidden_act": ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "quick_gelu"),
    "feed_forward_proj": ("relu", "gated-gelu", "gated-silu", "gated-relu", "gelu", "gelu_new"),
    "dense_act_fn": ("relu", "gelu_new", "silu"),
    "position_embedding_type": ("absolute", "relative_key", "relative_key_query"),
    "layer_types": (
        ["full_attention"] * 3,
        ["sliding_attention", "full_attention", "full_attention"],
        ["full_attention"] * 2,
        ["chunked_attention"] * 3,
    ),
    "dtype": ("float32", "bfloat16"),
    "torch_dtype": ("float32", "float16"),
    "attn_implementation": ("eager", "sdpa"),
    "_attn_implementation": ("eager", "sdpa"),
    "problem_type": ("regression", "multi_label_classification"),
    "id2label": ({"0": "a", "1": "b", "2": "c"},),
    "label2id": ({"a": 0, "b": 1, "c": 2},),
    "pruned_heads": ({"0": [1]},),
    "quantization_config": ({"quant_method": "bitsandbytes", "load_in_8bit": True},),
    "per_layer_config": ({"0": {"intermediate_size": 12}},),
    "attention_chunk_size": (4,),
    "sliding_window_pattern": (1, 2, 3, "LG"),
    "_sliding_window_pattern": (2, 3),
    "num_labels": (1, 3),
    "_num_labels": (3,),
    "image_size": (8, 16, [12, 8], [12, 12]),
    "patch_size": (2, 6, [4, 4]),
    "partial_rotary_factor": (1.0, 0.5),
    "rope_theta": (100.0, 1, 1_000_000),
    "rope_local_base_freq": (100.0, 50),
    "max_position_embeddings": (32, 65),
    "no_rope_layers": ([0, 1, 1], [1, 1, 1, 0], [1, 0], [2, 1, 0], [True, False, True], "101"),
    "no_rope_layer_interval": (1, 3, 5, 0, "2"),
    "num_experts_per_tok": (1, 3, 4, 5, 0),
    "num_experts": (3, 5, 1, 0),
    "num_local_experts": (3, 5, 1, 0),
    "mlp_only_layers": ([], [1]),
    "decoder_sparse_step": (1, 2),
}
_WORDS["hidden_activation"] = _WORDS["activation_function"] = _WORDS["hidden_act"]
_WORDS["pooler_act"] = _WORDS["hidden_act"]
_UNTYPED = (True, 3, 0.7, "other", {})
# Where the wide default would be taken, the model is no longer tiny.
_STAYS = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "n_embd", "n_layer",
    "d_model", "d_ff", "num_layers", "max_position_embeddings", "n_positions", "image_size",
    "patch_size", "head_dim", "num_attention_heads", "num_key_value_heads", "d_kv", "num_heads",
    "n_head",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One file: its architecture, what was changed in it, what it says, and if we look at that."""

    architecture: str
    changed: str
    settings: dict[str, object]
    counts: bool = True


def base(architecture, *, full):
    """The content of ``config.json``: the sizes alone, or all that transformers would write."""
    kind = getattr(transformers, architecture).config_class
    settings = copy.deepcopy(BASES[architecture])
    if full:
        settings = json.loads(kind(**settings).to_json_string(use_diff=False))
    return settings | {"architectures": [architecture], "model_type": kind.model_type}


def defaults():
    """Every key that some class of transformers has, or that we know, with its values there."""
    classes = [getattr(transformers, name).config_class for name in BASES]
    found = {}
    for kind in [*classes, PreTrainedConfig]:
        for field in fields(kind):
            value = None if field.default is MISSING else field.default
            found.setdefault(field.name, []).append(value)
    for kind in classes:
        for key, value in kind().to_dict().items():
            found.setdefault(key, []).append(value)
        for key, same_as in kind.attribute_map.items():
            found.setdefault(key, []).append(BASES_BY_KIND[kind].get(same_as))
    for key, value in GenerationConfig().to_dict().items():
        found.setdefault(key, []).append(value)
    known = {key for f in FAMILIES.values() for key in (*f.settings, *f.reads, *f.must_be)}
    for key in sorted(known | _MUST_BE.keys() | _WORDS.keys()):
        found.setdefault(key, [None])
    for key in ("model_type", "architectures", "transformers_version", "rope_parameters",
                "rope_scaling"):  # fmt: skip
        found.pop(key, None)
    return dict(sorted(found.items()))


BASES_BY_KIND = {getattr(transformers, name).config_class: values for name, values in BASES.items()}


# What the code that all models of transformers share asks every configuration, and what changes no
# number: how and where it is computed, what else is returned, what training starts with.
SHARED = frozenset({
    "_attn_implementation", "_attn_implementation_internal", "_experts_implementation",
    "_experts_implementation_internal", "_heterogeneity_spec", "_name_or_path",
    "_output_attentions", "base_model_ep_plan", "base_model_fsdp_plan", "base_model_pp_plan",
    "base_model_tp_plan", "chunk_size_feed_forward", "gradient_checkpointing", "id2label",
    "init_std", "initializer_factor", "initializer_range", "is_encoder_decoder", "is_heterogeneous",
    "name_or_path", "num_labels", "output_attentions", "output_cross_attentions",
    "output_hidden_states", "output_router_logits", "pad_token_id", "router_aux_loss_coef",
    "return_dict", "use_cache", "vision_aspect_ratio",
    "vision_feature_layer", "vision_feature_select_strategy",
})  # fmt: skip


def read_by_transformers(architecture):
    """The keys that a model of transformers asks its configuration for, when built and run."""
    settings, found = base(architecture, full=False), set()
    config = _their_config(architecture, settings)

    class Watched(type(config)):
        def __getattribute__(self, name):
            found.add(name)
            return super().__getattribute__(name)

    config.__class__ = Watched
    with torch.no_grad(), _undrawn():
        _their_answer(getattr(transformers, architecture)(config).eval(), 20)
    shared = {name for name in found if name.startswith("__") or callable(getattr(config, name, 0))}
    return {config.attribute_map.get(name, name) for name in found - shared} - SHARED


def others(key, value):
    """Values that a key could have instead."""
    if key in _WORDS:
        return [*_WORDS[key], None]
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        return [value + 1, 2 * value, 0, None]
    if isinstance(value, float):
        return [0.5 * value + 0.1, 0.0, None]
    if isinstance(value, str):
        return ["other", None]
    if isinstance(value, dict | list):
        return [type(value)(), None]
    return [*_UNTYPED]


def one_key_at_a_time(architecture) -> Iterator[Case]:
    """Every key with other values, in a file that says little, and in one that says all.

    A key that no family looks at is tried in the short file alone.
    """
    for full in (False, True):
        settings = base(architecture, full=full)
        where = "in a full file" if full else "in a short file"
        yield Case(architecture, f"nothing {where}", settings)
        for key, values in defaults().items():
            if full and (key not in settings or not _counts(architecture, key)):
                continue
            for new in _new_values(key, settings.get(key), values):
                changed, counts = f"{key}={new!r} {where}", _counts(architecture, key)
                yield Case(architecture, changed, settings | {key: new}, counts)
            if key in settings and key not in _STAYS:
                left = {name: value for name, value in settings.items() if name != key}
                yield Case(architecture, f"{key} left out {where}", left)


def _counts(architecture, key):
    """Whether our reader looks at a key at all."""
    family, _ = find_family(base(architecture, full=False))
    return key in {*family.settings, *family.reads, *family.must_be, *_MUST_BE}


def _new_values(key, value, elsewhere):
    """What a key could say instead of its value here, or if it has none, of those elsewhere."""
    found = {}
    for old in [value] if value is not None else elsewhere:
        possible = [*others(key, old), *([old] if value is None and old is not None else [])]
        found |= {repr(new): new for new in possible if _is_tiny(key, new)}
    return list(found.values())


def _is_tiny(key, value):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number or value <= 100 or not (key in _STAYS or key.startswith("num_"))


def ropes(architecture) -> Iterator[Case]:
    """All kinds of RoPE, in either place and in both."""
    if "num_key_value_heads" not in BASES[architecture]:
        return
    with_theta = {f"{name}, theta": {**rope, "rope_theta": 50.0} for name, rope in ROPES.items()}
    places = {
        "rope_parameters": ROPES | with_theta | MORE_ROPES,
        "rope_scaling": ROPES | with_theta | MORE_ROPES,
    }
    if architecture.startswith("Gemma3"):
        places["rope_parameters"] = places["rope_parameters"] | _nested(places["rope_parameters"])
    for place, kinds in places.items():
        for theta in ({}, {"rope_theta": 100.0}):
            for full in (False, True):
                settings = base(architecture, full=full) | theta
                for name, rope in kinds.items():
                    changed = f"{place}: {name}, {theta}, full={full}"
                    yield Case(architecture, changed, settings | {place: rope})
    both = ROPES | with_theta
    parameters = _nested(both) if architecture.startswith("Gemma3") else both
    for theta in ({}, {"rope_theta": 100.0}, {"rope_theta": 50.0}):
        settings = base(architecture, full=False) | theta
        for name, first in parameters.items():
            for other, second in both.items():
                changed = f"rope_parameters: {name}, rope_scaling: {other}, {theta}"
                rope = {"rope_parameters": first, "rope_scaling": second}
                yield Case(architecture, changed, settings | rope)


def _nested(kinds):
    """As Gemma 3 has them."""
    local = {"rope_type": "default", "rope_theta": 30.0}
    made = {
        f"{name}, nested": {"full_attention": rope, "sliding_attention": local}
        for name, rope in kinds.items()
    }
    made |= {f"{name}, global alone": {"full_attention": rope} for name, rope in kinds.items()}
    made |= {f"{name}, local": {"sliding_attention": rope} for name, rope in kinds.items()}
    made["nulls"] = {"full_attention": None, "sliding_attention": None}
    made["local theta alone"] = {"full_attention": {}, "sliding_attention": {"rope_theta": 30.0}}
    return made


def all_cases(architecture):
    """All files of one architecture."""
    yield from one_key_at_a_time(architecture)
    yield from ropes(architecture)


class Judge:
    """Says of each file whether we agree with transformers; asks once for the same two models."""

    def __init__(self):
        self.known = {}

    def __call__(self, case):
        """``"equal"``, ``"refused"``, ``"not built"`` (by transformers), or what is wrong."""
        settings = json.loads(json.dumps(case.settings))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of several dropouts
                family, _ = find_family(settings)
                ours = read_config(family, family.one_spelling(copy.deepcopy(settings)))
        except ValueError:
            return "refused"
        except Exception as error:
            return f"no clear refusal: {error!r}"
        try:
            theirs = _their_config(case.architecture, settings)
        except Exception:
            return "not built"
        their_words = {k: v for k, v in theirs.to_dict().items() if k != "transformers_version"}
        own = {k: settings.get(k) for k in ("id2label", "num_labels", "image_size", "patch_size")}
        key = (case.architecture, repr(ours), repr(their_words), repr(own))
        if key not in self.known:
            length = min(ours.max_len, LONGEST)  # of a text; "dynamic" allows for more
            self.known[key] = _compare(case.architecture, settings, theirs, length)
        return self.known[key]


def _their_config(architecture, settings):
    kind = getattr(transformers, architecture).config_class
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind.from_dict(copy.deepcopy(settings), attn_implementation="eager")


@contextmanager
def _undrawn():
    """Leave weights as they are: all of them are replaced, and to draw them takes longest."""
    names = ("normal_", "uniform_", "trunc_normal_", "xavier_uniform_", "kaiming_uniform_")
    kept = {name: getattr(nn.init, name) for name in names}
    for name in names:
        setattr(nn.init, name, lambda tensor, *_, **__: tensor)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(nn.init, name, function)


@torch.no_grad()
def _compare(architecture, settings, config, length):
    with tempfile.TemporaryDirectory() as folder, _undrawn(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = _their_model(architecture, config)
            expected = _their_answer(theirs, length)
            theirs.save_pretrained(folder)
        except Exception:
            return "not built"
        (Path(folder) / "config.json").write_text(json.dumps(settings))
        try:
            actual = _our_answer(load_pretrained(folder).model, length)
        except ValueError:
            return "refused"
        except Exception as error:
            return f"no clear refusal: {error!r}"
    if actual.shape != expected.shape:
        return f"wrong: {tuple(actual.shape)} instead of {tuple(expected.shape)}"
    difference = ((actual - expected).abs().max() / expected.abs().max()).item()
    return "equal" if difference <= TOLERANCE else f"wrong: off by {difference:.2g}"


def _their_model(architecture, config):
    """With weights that hide nothing."""
    config.dtype = None  # how precisely numbers are stored is for whoever loads them
    model = getattr(transformers, architecture)(config).eval()
    random = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        gain = "norm" in name.lower() or ".ln_" in name
        drawn = torch.randn(weight.shape, generator=random)
        weight.copy_(0.3 * drawn + (1.0 if gain and not architecture.startswith("Gemma") else 0.0))
    return model


def _ids(*shape, seed=1):
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def _images(model):
    size = model.config.image_size if hasattr(model.config, "image_size") else None
    channels = model.config.num_channels if size else model.patches.n_channels
    size = size or model.patches.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1))


def _their_answer(model, length):
    kind = type(model).__name__
    if kind.startswith("ViT"):
        return model(_images(model), return_dict=True).logits
    if kind.startswith("T5"):
        return model(_ids(2, 9), decoder_input_ids=_ids(2, 7, seed=2), return_dict=True).logits
    answer = model(_ids(2, length), return_dict=True)
    return answer.pooler_output if kind == "BertModel" else answer.logits


def _our_answer(model, length):
    if isinstance(model, VisionTransformer):
        return model(_images(model))
    if isinstance(model, Seq2SeqLM):
        return model(_ids(2, 9), _ids(2, 7, seed=2))
    return model(_ids(2, length))


def sweep(cases):
    """Count the verdicts; return the counts and the cases that are wrong."""
    judge, counts, wrong = Judge(), Counter(), []
    for case in cases:
        verdict = judge(case)
        counts[verdict if verdict in ("equal", "refused", "not built") else "wrong"] += 1
        if verdict not in ("equal", "refused", "not built"):
            wrong.append(f"{case.architecture}: {case.changed}: {verdict}")
    return counts, wrong


def main(names):
    """Sweep, and print a line for each architecture, and what is wrong."""
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    any_wrong = False
    for architecture in names or BASES:
        counts, wrong = sweep(all_cases(architecture))
        line = ", ".join(f"{counts[kind]} {kind}" for kind in ("equal", "refused", "not built"))
        print(f"{architecture}: {line}, {len(wrong)} wrong", *wrong, sep="\n    ", flush=True)
        any_wrong = any_wrong or bool(wrong)
    return int(any_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
