"""Settings of published checkpoints, in tiny models: as transformers, or refused for a reason."""

import json
import re
import warnings

import pytest
import torch
import transformers
from published_settings import READ, REFUSED, shrunk
from safetensors.torch import save_file

from transformer_lib.hugging_face.pretrained import load_pretrained, save_pretrained
from transformer_lib.models.language_models import Seq2SeqLM, VisionTransformer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def test_the_table_is_as_long_as_was_promised():
    assert len(READ) >= 25
    assert len(REFUSED) >= 10


def test_settings_are_shrunk_in_size_alone():
    tiny = shrunk(READ["Qwen3-0.6B"])
    sizes = [tiny[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")]
    assert sizes == [16, 4, 2]  # 4 heads of 8 are twice as wide as the stream, as 16 of 128 are
    same = {"head_dim", "rope_theta", "tie_word_embeddings", "use_sliding_window"}
    assert {key for key in tiny if tiny[key] == READ["Qwen3-0.6B"][key]} >= same - {"head_dim"}
    assert shrunk(READ["SmolLM3-3B"])["no_rope_layers"] == [1, 1, 1, 0]
    assert shrunk(READ["DeepSeek-R1-Distill-Qwen-1.5B"])["max_window_layers"] == 2  # of 3


def their_model(settings, folder):
    """A model of transformers, made as one of ``config.json`` is, in a folder with that file."""
    torch.manual_seed(0)
    kind = getattr(transformers, settings["architectures"][0])
    config = kind.config_class.from_dict(settings, attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind(config).eval()
    for name, weight in model.named_parameters():
        gain = "norm" in name.lower() or ".ln_" in name
        weight.normal_(std=0.3).add_(1.0 if gain and "gemma" not in config.model_type else 0.0)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return model


def their_answer(model):
    if isinstance(model, transformers.ViTForImageClassification):
        return model(images()).logits
    if isinstance(model, transformers.T5ForConditionalGeneration):
        return model(ids(), decoder_input_ids=ids()[:, :7]).logits
    answer = model(ids())
    return answer.pooler_output if "pooler_output" in answer else answer.logits


def our_answer(model):
    if isinstance(model, VisionTransformer):
        return model(images())
    return model(ids(), ids()[:, :7]) if isinstance(model, Seq2SeqLM) else model(ids())


def ids():
    return torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(1))


def images():
    return torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def check_close(actual, expected):
    assert (actual - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", READ)
@torch.no_grad()
def test_a_published_checkpoint_is_read_and_written(name, tmp_path):
    settings = shrunk(READ[name])
    theirs = their_model(settings, tmp_path)
    expected, ours = their_answer(theirs), load_pretrained(tmp_path).model
    check_close(our_answer(ours), expected)
    save_pretrained(ours, tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again", attn_implementation="eager").eval()
    check_close(their_answer(again), expected)
    said = again.config.to_dict()
    ends = {key: value for key, value in settings.items() if key.endswith("_token_id")}
    assert ends.items() <= said.items()


@pytest.mark.parametrize("name", REFUSED)
def test_a_published_checkpoint_that_computes_something_else_is_refused(name, tmp_path):
    settings, reason = REFUSED[name]
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}"):
        load_pretrained(tmp_path)
