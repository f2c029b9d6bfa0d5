"""every setting: logits as transformers', or refused; `every_setting.py` says how to run it all."""

import pytest
import transformers
from every_setting import BASES, Judge, all_cases, base, read_by_transformers, sweep
from every_setting import Case as File

from transformer_lib.hugging_face import rope_settings as rope
from transformer_lib.hugging_face.config_json import _MUST_BE, find_family

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SOME = 20  # cases of each architecture run here, evenly spread
FEW = 3  # and of those with keys that our reader does not look at
FULL, LOCAL = {"rope_type": "default", "rope_theta": 1e6}, {"rope_type": "default"}
FOUND = [  # what the sweep has found wrong, once
    ("LlamaForCausalLM", {"rope_parameters": LOCAL, "rope_scaling": "yarn"}),
    ("Gemma2ForCausalLM", {"hidden_act": "silu"}),
    ("Gemma2ForCausalLM", {"sliding_window_pattern": 3}),
    ("Gemma3ForCausalLM", {"hidden_act": "silu"}),
    ("Gemma3ForCausalLM", {"_sliding_window_pattern": 2}),
    ("Gemma3ForCausalLM", {"attn_logit_softcapping": 0.5}),
    ("Gemma3ForCausalLM", {"rope_parameters": {"full_attention": "yarn"}}),
    ("Gemma3ForCausalLM", {"rope_parameters": {"full_attention": FULL}, "rope_scaling": "yarn"}),
    (
        "Gemma3ForCausalLM",
        {"rope_parameters": {"sliding_attention": LOCAL}, "rope_local_base_freq": 50.0},
    ),
    ("T5ForConditionalGeneration", {"tie_word_embeddings": None}),
    (
        "SmolLM3ForCausalLM",
        {"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
    ),
]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def _spelled(value):
    """The scaling itself, where only its name stands."""
    if isinstance(value, dict):
        return {key: _spelled(inner) for key, inner in value.items()}
    return YARN if value == "yarn" else value


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("architecture", BASES)
def test_a_changed_setting_is_followed_or_refused(architecture):
    cases = list(all_cases(architecture))
    looked_at, others = ([c for c in cases if c.counts is counts] for counts in (True, False))
    few = others[:: len(others) // FEW]
    counts, wrong = sweep([*looked_at[:: len(looked_at) // SOME], *few])
    assert not wrong, "\n".join(wrong)
    assert min(counts["equal"], counts["refused"]) >= SOME // 10, "next to nothing was looked at"


@pytest.mark.parametrize("architecture", BASES)
def test_our_reader_knows_every_key_that_transformers_reads(architecture):
    """So a key that it does not know is harmless: that is the whole rule."""
    family, _ = find_family(base(architecture, full=False))
    known = {*family.settings, *family.reads, *family.must_be, *_MUST_BE}
    found = read_by_transformers(architecture)
    assert {"vocab_size", "hidden_size", "n_embd", "d_model"} & found
    without_text = {"tie_word_embeddings"} if architecture.startswith("ViT") else set()
    assert not found - known - without_text


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("architecture", "change"), FOUND)
def test_what_was_wrong_once_is_right(architecture, change):
    settings = base(architecture, full=False) | _spelled(change)
    assert Judge()(File(architecture, str(change), settings)) == "equal"


def test_the_sweep_sees_a_model_that_is_wrong(monkeypatch):
    monkeypatch.setattr(rope, "_sharpness", lambda _: 1.0)
    settings = base("LlamaForCausalLM", full=True) | {"rope_parameters": YARN}
    assert Judge()(File("LlamaForCausalLM", "yarn", settings)).startswith("wrong: off by ")


def test_the_sweep_sees_an_error_that_is_no_refusal(monkeypatch):
    monkeypatch.setattr(rope, "_sharpness", lambda _: {}["no such thing"])
    settings = base("LlamaForCausalLM", full=True) | {"rope_parameters": YARN}
    assert Judge()(File("LlamaForCausalLM", "yarn", settings)).startswith("no clear refusal: Key")
