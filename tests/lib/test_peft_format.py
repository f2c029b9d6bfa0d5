"""Adapters of ``peft``: read, they give its logits; written, they are what it reads.

What ``peft`` computes was recorded once, by record_peft.py: it is not needed here.
"""

import json
import re
import shutil

import pytest
import torch
from record_peft import FOLDER, IDS, RECORDED, fill, logits_of
from safetensors.torch import load_file, save_file

from transformer_lib.hugging_face.peft_format import load_peft, save_peft
from transformer_lib.hugging_face.pretrained import load_pretrained, save_pretrained
from transformer_lib.models.language_models import CausalLM
from transformer_lib.models.lora import add_lora, lora_layers, merge_lora
from transformer_lib.models.presets import PRESETS

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """The base models of ``transformers``, on disk."""
    folder = tmp_path_factory.mktemp("bases")
    for make in {make for make, _ in RECORDED.values()}:
        fill(make()).save_pretrained(folder / make.__name__)
    return folder


def base_of(bases, name):
    return load_pretrained(bases / RECORDED[name][0].__name__).model


def ours(model):
    with torch.no_grad():
        return model(IDS, IDS[:, :4]) if hasattr(model, "body") else model(IDS)


def recorded(name):
    return load_file(FOLDER / name / "logits.safetensors")["logits"]


@pytest.mark.parametrize("name", RECORDED)
def test_logits_are_those_of_peft(name, bases):
    model = base_of(bases, name)
    before = ours(model)
    load_peft(model, FOLDER / name)
    torch.testing.assert_close(ours(model), recorded(name), rtol=0, atol=5e-6)
    assert (before - recorded(name)).abs().max() > 0.1
    merge_lora(model)
    torch.testing.assert_close(ours(model), recorded(name), rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_written_is_what_was_read(name, bases, tmp_path):
    model = base_of(bases, name)
    load_peft(model, FOLDER / name)
    save_peft(model, tmp_path, base="somewhere")
    other = base_of(bases, name)
    load_peft(other, tmp_path)
    torch.testing.assert_close(ours(other), recorded(name), rtol=0, atol=5e-6)
    written, theirs = (
        json.loads((folder / "adapter_config.json").read_text())
        for folder in (tmp_path, FOLDER / name)
    )
    for key in ("peft_type", "fan_in_fan_out", "target_modules", "base_model_name_or_path"):
        assert written[key] == theirs[key], key
    if name.startswith(("llama", "t5")):  # no matrix for several layers: the very same tensors
        both = (load_file(x / "adapter_model.safetensors") for x in (tmp_path, FOLDER / name))
        one, two = both
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
        assert (written["r"], written["lora_alpha"]) == (theirs["r"], theirs["lora_alpha"])


def added_by_hand(bases, name, folder):
    """The logits of ``transformers`` with W + alpha / r * B A, by the file's names alone."""
    make = RECORDED[name][0]
    model, told = fill(make()), json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    for key in [key for key in tensors if key.endswith(".lora_A.weight")]:
        module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        down, up = tensors[key], tensors[key.replace("lora_A", "lora_B")]
        rank = told["rank_pattern"].get(module, told["r"])
        assert len(down) == up.shape[1] == rank
        product = told["alpha_pattern"].get(module, told["lora_alpha"]) / rank * up @ down
        weight = model.get_submodule(module).weight.data
        assert any(f".{module}".endswith(f".{end}") for end in told["target_modules"])
        weight += product.mT if told["fan_in_fan_out"] else product
    return logits_of(model)


CHOSEN = {
    "llama": ("query", "feed_forward.down"),
    "gpt2": ("query", "value", "feed_forward.up"),  # keys have none: a third of c_attn is zero
    "phi3": ("key", "attention.output", "gate"),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_written_adapters_are_sums_of_matrices_in_transformers(name, bases, tmp_path):
    model = base_of(bases, name)
    torch.manual_seed(0)
    add_lora(model, rank=2, alpha=3.0, layers=CHOSEN[name])
    for layer in lora_layers(model).values():
        torch.nn.init.normal_(layer.up, std=0.2)
    next(iter(lora_layers(model).values())).alpha = 1.5  # a scale of its own
    save_peft(model, tmp_path)
    expected = added_by_hand(bases, name, tmp_path)
    torch.testing.assert_close(ours(model), expected, rtol=0, atol=5e-6)
    other = base_of(bases, name)
    load_peft(other, tmp_path)
    torch.testing.assert_close(ours(other), expected, rtol=0, atol=5e-6)


def test_a_model_that_turns_neighbours_writes_what_peft_reads(bases, tmp_path):
    """Ours may pair the features of a head in another way; the file has always halves."""
    config = PRESETS["llama-2-7b"].config
    sizes = {"vocab_size": 13, "d_model": 16, "n_heads": 4, "n_layers": 1, "d_ff": 24}
    torch.manual_seed(0)
    model = CausalLM(type(config)(**{**vars(config), **sizes, "max_len": 16})).eval()
    assert model.config.rope_pairing == "interleaved"
    save_pretrained(model, tmp_path / "base")
    add_lora(model, layers=("query", "key"), rank=2)
    for layer in lora_layers(model).values():
        torch.nn.init.normal_(layer.up, std=0.2)
    save_peft(model, tmp_path / "adapter")
    read = load_pretrained(tmp_path / "base").model
    load_peft(read, tmp_path / "adapter")
    torch.testing.assert_close(ours(read), ours(model), rtol=0, atol=1e-5)
    plain = CausalLM(model.config)
    with pytest.raises(ValueError, match="model has rope_pairing='interleaved', and the adapters"):
        load_peft(plain, tmp_path / "adapter")
    assert not lora_layers(plain)


# --- what is refused ----------------------------------------------------------------------------


SETTINGS = [
    ({"peft_type": "LOHA"}, "adapter_config.json has peft_type='LOHA'; our models need 'LORA'"),
    ({"bias": "all"}, "adapter_config.json has bias='all'; our models need 'none' here"),
    ({"use_dora": True}, "adapter_config.json has use_dora=True; our models need None here"),
    ({"use_rslora": True}, "adapter_config.json has use_rslora=True; our models need None here"),
    ({"modules_to_save": ["lm_head"]}, "adapter_config.json has modules_to_save=['lm_head']; our"),
    ({"init_lora_weights": "pissa"}, "adapter_config.json has init_lora_weights='pissa'; our mod"),
    ({"of_next_year": 1}, "adapter_config.json has of_next_year=1; our models need None here"),
    ({"lora_alpha": "much"}, "lora_alpha='much' must be a number of at least 0"),
    ({"alpha_pattern": {"(q|v)_proj": 2}}, "adapter_config.json has a pattern '(q|v)_proj' in alp"),
]


@pytest.mark.parametrize(("changes", "message"), SETTINGS, ids=[row[1] for row in SETTINGS])
def test_adapters_of_another_kind_are_refused(changes, message, bases, tmp_path):
    shutil.copytree(FOLDER / "llama", tmp_path / "a")
    path = tmp_path / "a" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    model = base_of(bases, "llama")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        load_peft(model, tmp_path / "a")
    assert not lora_layers(model)


def renamed(old, new):
    return lambda tensors: {key.replace(old, new): tensor for key, tensor in tensors.items()}


def without_one(tensors):
    return dict(list(tensors.items())[1:])


def narrower(tensors):
    return {key: x[:, :8] if "lora_A" in key else x for key, x in tensors.items()}


def shorter(tensors):
    return {key: x[:7] if "lora_B" in key else x for key, x in tensors.items()}


TENSORS = [
    (
        renamed("q_proj", "z_proj"),
        "does not fit the model: it has an adapter for model.layers.0",
    ),
    (renamed("lora_A", "lora_embedding_A"), "is no matrix of a linear layer's adapter"),
    (without_one, "has no two matrices of one rank for model.layers.0.self_attn.q_proj"),
    (lambda _: {}, "holds no adapter"),
    (narrower, "query.down has shape (3, 8); expected (3, 16)"),
    (shorter, "attention.query has 7 rows; expected 16"),
]


@pytest.mark.parametrize(("change", "message"), TENSORS, ids=[row[1] for row in TENSORS])
def test_tensors_that_do_not_fit_are_refused(change, message, bases, tmp_path):
    shutil.copytree(FOLDER / "llama", tmp_path / "a")
    path = tmp_path / "a" / "adapter_model.safetensors"
    changed = {key: x.contiguous() for key, x in change(load_file(path)).items()}
    save_file(changed, path)
    model = base_of(bases, "llama")
    with pytest.raises(ValueError, match=re.escape(message)):
        load_peft(model, tmp_path / "a")
    assert not lora_layers(model)
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors cannot be read: "):
        load_peft(model, tmp_path / "a")


def test_what_the_format_has_no_place_for_is_refused(bases, tmp_path):
    model = base_of(bases, "llama")
    add_lora(model)
    with pytest.raises(ValueError, match="model has adapters, for which a checkpoint has no"):
        save_pretrained(model, tmp_path)
    experts = PRESETS["llama-2-7b"].config
    sizes = {"vocab_size": 13, "d_model": 16, "n_heads": 4, "n_layers": 1, "d_ff": 24}
    mixture = CausalLM(type(experts)(**{**vars(experts), **sizes, "n_experts": 2}))
    add_lora(mixture, layers="experts.0.up")
    with pytest.raises(ValueError, match=r"experts\.0\.up has an adapter, for which the format"):
        save_peft(mixture, tmp_path)
    assert not list(tmp_path.iterdir())
