"""pretrained: equal to transformers on random weights, both ways; strict about what it reads."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import transformers
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

from transformer_lib.core.config import TransformerConfig
from transformer_lib.hugging_face import pretrained
from transformer_lib.hugging_face.config_json import find_family, read_config
from transformer_lib.hugging_face.pretrained import save_pretrained
from transformer_lib.layers.build_parts import Parts
from transformer_lib.layers.masks import padding_mask
from transformer_lib.models.encoder_decoder import Decoder, Encoder
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.models.presets import PRESETS

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def load_pretrained(*args, **options):
    """The model alone."""
    return pretrained.load_pretrained(*args, **options).model


def check_close(actual, expected, largest=1.0, message=None):
    """Equal up to the rounding of float32 in sums of numbers as large as these."""
    largest = max(largest, expected.abs().max().item())
    assert_close(actual, expected, rtol=1e-5, atol=1e-6 * largest, msg=message)


# Sizes that all differ, so that no two dimensions can be taken for each other.
SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
}
GPT2 = {
    "vocab_size": 50,
    "n_positions": 20,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5 = {"vocab_size": 50, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_heads": 4}
VIT = {k: v for k, v in SIZES.items() if k not in ("vocab_size", "max_position_embeddings")}

MODERN = {**SIZES, "num_key_value_heads": 2, "pad_token_id": None}
GEMMA_3 = {
    **MODERN,
    "head_dim": 8,
    "sliding_window": 5,
    "query_pre_attn_scalar": 11,
    "sliding_window_pattern": 3,
}
GEMMA = {**GEMMA_3, "attn_implementation": "eager"}  # the fused kernels know no cap
del GEMMA["sliding_window_pattern"]
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 12,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
}

# name: class of transformers, its configuration, our class
MODELS = {
    "bert": ("BertModel", SIZES, SequenceClassifier),
    "bert, other eps and tanh": (
        "BertModel",
        {**SIZES, "layer_norm_eps": 0.1, "hidden_act": "gelu_new", "type_vocab_size": 3},
        SequenceClassifier,
    ),
    "bert, masked": ("BertForMaskedLM", SIZES, MaskedLM),
    "bert, classes": (
        "BertForSequenceClassification",
        {**SIZES, "num_labels": 5, "hidden_act": "relu"},
        SequenceClassifier,
    ),
    "gpt2": ("GPT2LMHeadModel", GPT2, CausalLM),
    "gpt2, untied, other eps": (
        "GPT2LMHeadModel",
        {**GPT2, "tie_word_embeddings": False, "layer_norm_epsilon": 0.1, "n_inner": 40},
        CausalLM,
    ),
    "llama": ("LlamaForCausalLM", SIZES, CausalLM),
    "llama, gqa, other theta": (
        "LlamaForCausalLM",
        {**SIZES, "num_key_value_heads": 2, "rope_theta": 50.0, "rms_norm_eps": 0.1},
        CausalLM,
    ),
    "llama, tied": ("LlamaForCausalLM", {**SIZES, "tie_word_embeddings": True}, CausalLM),
    "llama, wide heads": ("LlamaForCausalLM", {**SIZES, "head_dim": 10}, CausalLM),
    "llama 3.1": ("LlamaForCausalLM", {**SIZES, "rope_parameters": LLAMA_3}, CausalLM),
    "mistral": (
        "MistralForCausalLM",
        {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5},
        CausalLM,
    ),
    "mistral, no window": ("MistralForCausalLM", {**MODERN, "sliding_window": None}, CausalLM),
    "qwen2": ("Qwen2ForCausalLM", {**SIZES, "num_key_value_heads": 2}, CausalLM),
    "qwen2, window, yarn": (
        "Qwen2ForCausalLM",
        {
            **MODERN,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
            "rope_parameters": YARN,
        },
        CausalLM,
    ),
    "qwen3": ("Qwen3ForCausalLM", {**MODERN, "head_dim": 10}, CausalLM),
    "gemma2": ("Gemma2ForCausalLM", GEMMA, CausalLM),
    "gemma2, other caps": (
        "Gemma2ForCausalLM",
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        CausalLM,
    ),
    "gemma3": ("Gemma3ForCausalLM", GEMMA_3, CausalLM),
    "gemma3, scaled": (
        "Gemma3ForCausalLM",
        {
            **GEMMA_3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        CausalLM,
    ),
    "olmo2": ("Olmo2ForCausalLM", MODERN, CausalLM),
    "gemma1": ("GemmaForCausalLM", {**MODERN, "head_dim": 8}, CausalLM),
    "phi3": ("Phi3ForCausalLM", {**MODERN, "sliding_window": 5}, CausalLM),
    "smollm3": (
        "SmolLM3ForCausalLM",
        {**MODERN, "no_rope_layer_interval": 2, "bos_token_id": 1, "eos_token_id": 2},
        CausalLM,
    ),
    "mixtral": ("MixtralForCausalLM", {**MODERN, "num_local_experts": 3}, CausalLM),
    "qwen3 moe": (
        "Qwen3MoeForCausalLM",
        {
            **MODERN,
            "head_dim": 10,
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 12,
            "norm_topk_prob": True,
        },
        CausalLM,
    ),
    "t5": ("T5ForConditionalGeneration", T5, Seq2SeqLM),
    "t5, gated, untied": (
        "T5ForConditionalGeneration",
        {
            **T5,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "layer_norm_epsilon": 0.1,
        },
        Seq2SeqLM,
    ),
    "vit": (
        "ViTForImageClassification",
        {**VIT, "image_size": 12, "patch_size": 4, "num_channels": 2, "num_labels": 5},
        VisionTransformer,
    ),
}
TOKENS = [name for name in MODELS if name != "vit"]


def build(name):
    """A model of transformers with weights that hide nothing: biases are not 0, gains are not 1."""
    architecture, config, _ = MODELS[name]
    torch.manual_seed(0)
    kind = getattr(transformers, architecture)
    model = kind(kind.config_class(**config)).eval()
    if name == "t5, gated, untied":  # transformers 5 ties it in spite of the configuration
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
        for path, module in model.named_modules():
            is_norm = ("norm" in path.lower() or "ln_" in path) and hasattr(module, "weight")
            if is_norm and not name.startswith("gemma"):  # which adds the 1 itself
                module.weight.add_(1.0)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Each model of transformers and the folder it was saved to."""
    models = {}

    def get(name):
        if name not in models:
            folder = tmp_path_factory.mktemp("saved")
            model = build(name)
            model.save_pretrained(folder)
            models[name] = model, folder
        return models[name]

    return get


def inputs(name):
    generator = torch.Generator().manual_seed(1)

    def draw(high, *shape):
        return torch.randint(high, shape, generator=generator)

    if name == "vit":
        return {"images": torch.randn(3, 2, 12, 12, generator=generator)}
    batch = {"ids": draw(50, 3, 9), "lengths": torch.tensor([9, 6, 2])}
    if name.startswith("bert"):
        batch["segments"] = draw(2, 3, 9)
    if "t5" in name:
        batch |= {"target": draw(50, 3, 5), "target_lengths": torch.tensor([3, 5, 1])}
    return batch


def run_theirs(model, batch):
    """The outputs of a model of transformers, and its hidden states."""
    names = {"images": "pixel_values", "ids": "input_ids", "segments": "token_type_ids"}
    arguments = {names[key]: value for key, value in batch.items() if key in names}
    if "lengths" in batch:
        arguments["attention_mask"] = hide(batch["ids"], batch["lengths"]).long()
    if "target" in batch:
        arguments["decoder_input_ids"] = batch["target"]
        arguments["decoder_attention_mask"] = hide(batch["target"], batch["target_lengths"]).long()
    result = model(**arguments, output_hidden_states=True)
    if "target" in batch:
        return result.logits, [*result.encoder_hidden_states, *result.decoder_hidden_states]
    output = result.pooler_output if "pooler_output" in result else result.logits
    return output, list(result.hidden_states)


def run_ours(model, batch):
    """The same of ours; hidden states are caught where transformers takes them."""
    states = []
    hooks = [
        part.register_forward_hook(lambda _m, _i, output: states.append(output))
        for part in parts_to_watch(model)
    ]
    if "images" in batch:
        output = model(batch["images"])
    elif "target" in batch:
        masks = [
            padding_mask(batch[lengths], batch[ids].shape[1])
            for ids, lengths in (("ids", "lengths"), ("target", "target_lengths"))
        ]
        output = model(batch["ids"], batch["target"], *masks)
    else:
        extra = {"segments": batch["segments"]} if "segments" in batch else {}
        output = model(batch["ids"], padding_mask(batch["lengths"], 9), **extra)
    for hook in hooks:
        hook.remove()
    return output, states


def parts_to_watch(model):
    """What transformers calls hidden states: the embeddings and each block, the last normalised."""
    if isinstance(model, VisionTransformer):  # except for ViT, where the final norm is left out
        return [model.dropout, *model.stack.blocks]
    if isinstance(model, Seq2SeqLM):
        return [*parts_to_watch(model.body.encoder), *parts_to_watch(model.body.decoder)]
    if isinstance(model, Encoder | Decoder):
        last = [] if model.stack.final_norm is None else [model.stack.final_norm]
        blocks = list(model.stack.blocks)
        return [model.embedding, *(blocks[:-1] if last else blocks), *last]
    return parts_to_watch(model.decoder if isinstance(model, CausalLM) else model.encoder)


def hide(ids, lengths):
    return torch.arange(ids.shape[1]) < lengths[:, None]


def real(x, batch):
    """The vectors of real tokens only."""
    for ids, lengths in (("ids", "lengths"), ("target", "target_lengths")):
        if ids in batch and x.ndim == 3 and x.shape[1] == batch[ids].shape[1]:
            return x[hide(batch[ids], batch[lengths])]
    return x


def loss(output, batch):
    """A number on which every output has another influence."""
    values = real(output, batch)
    return (values * torch.linspace(-1, 1, values.numel()).view_as(values)).sum()


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_all_hidden_states_equal_transformers(name, saved):
    theirs, folder = saved(name)
    ours = load_pretrained(folder)
    assert type(ours) is MODELS[name][2]
    assert not ours.training
    batch = inputs(name)
    with torch.no_grad():
        expected, expected_states = run_theirs(theirs, batch)
        output, states = run_ours(ours, batch)
    assert len(states) == len(expected_states) == (8 if name.startswith("t5") else 4)
    for state, expected_state in zip(states, expected_states, strict=True):
        check_close(real(state, batch), real(expected_state, batch))
    check_close(real(output, batch), real(expected, batch))


@pytest.mark.parametrize("name", MODELS)
def test_all_gradients_equal_transformers(name, saved, tmp_path):
    """Both models save their gradients in place of their weights; the files must be equal."""
    theirs, ours = build(name), load_pretrained(saved(name)[1])
    for model, run, save in (
        (theirs, run_theirs, lambda folder: theirs.save_pretrained(folder)),
        (ours, run_ours, lambda folder: save_pretrained(ours, folder)),
    ):
        batch = inputs(name)
        loss(run(model, batch)[0], batch).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0 if parameter.grad is None else parameter.grad)
        save(tmp_path / run.__name__)
    expected = load_file(tmp_path / "run_theirs" / "model.safetensors")
    gradients = load_file(tmp_path / "run_ours" / "model.safetensors")
    assert gradients.keys() == expected.keys()
    # Where large numbers cancel, as for the bias of keys, their rounding is all that is left.
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for tensor, gradient in gradients.items():
        assert expected[tensor].any(), tensor
        check_close(gradient, expected[tensor], largest, tensor)


@pytest.mark.parametrize("name", MODELS)
def test_what_we_write_transformers_reads(name, saved, tmp_path):
    theirs, folder = saved(name)
    save_pretrained(load_pretrained(folder), tmp_path)
    same = {"attn_implementation": theirs.config._attn_implementation}
    again, report = type(theirs).from_pretrained(tmp_path, output_loading_info=True, **same)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    batch = inputs(name)
    with torch.no_grad():
        expected, output = run_theirs(theirs, batch)[0], run_theirs(again.eval(), batch)[0]
    assert_close(output, expected, rtol=0, atol=0)
    check_same(load_file(tmp_path / "model.safetensors"), load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("name", MODELS)
def test_what_we_write_we_read_bit_by_bit(name, saved, tmp_path):
    ours = load_pretrained(saved(name)[1])
    save_pretrained(ours, tmp_path)
    again = load_pretrained(tmp_path)
    assert again.config == replace(
        ours.config, d_ff=ours.config.ffn_width, n_kv_heads=again.config.n_kv_heads
    )
    check_same(again.state_dict(), ours.state_dict())


def check_same(tensors, expected):
    assert tensors.keys() == expected.keys()
    for name in expected:
        assert torch.equal(tensors[name], expected[name]), name


@pytest.mark.parametrize("name", MODELS)
def test_tied_weights_are_one_parameter(name, saved):
    theirs, folder = saved(name)
    ours = load_pretrained(folder)
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters()
    assert all(p.requires_grad and not p.is_meta for p in ours.parameters())
    if isinstance(ours, Seq2SeqLM):
        tables = [side.embedding.tokens.weight for side in (ours.body.encoder, ours.body.decoder)]
        assert tables[0] is tables[1]
        assert (ours.output.projection.weight is tables[0]) == (name == "t5")
    elif hasattr(ours, "output"):
        body = ours.decoder if isinstance(ours, CausalLM) else ours.encoder
        tied = ours.output.projection.weight is body.embedding.tokens.weight
        assert tied == theirs.config.tie_word_embeddings


SMALL = {"vocab_size": 50, "d_model": 24, "n_heads": 4, "n_layers": 2, "d_ff": 40, "max_len": 20}
LLAMA = replace(PRESETS["llama-2-7b"].config, **SMALL)
OURS = {  # models of ours that never were anything else
    "bert": lambda: SequenceClassifier(replace(PRESETS["bert-base"].config, **SMALL), n_classes=0),
    "bert, no pooler": lambda: Encoder(
        replace(PRESETS["bert-base"].config, **SMALL, tie_embeddings=False, logit_scale=2.0)
    ),
    "bert, masked": lambda: MaskedLM(replace(PRESETS["bert-base"].config, **SMALL)),
    "bert, classes": lambda: SequenceClassifier(
        replace(PRESETS["bert-base"].config, **SMALL), n_classes=2
    ),
    "gpt2": lambda: CausalLM(replace(PRESETS["gpt2"].config, **SMALL)),
    "llama, interleaved": lambda: CausalLM(LLAMA),
    "llama, interleaved, gqa": lambda: CausalLM(
        replace(LLAMA, n_kv_heads=2, activation="geglu_tanh", rope_theta=500.0, dropout=0.1)
    ),
    "t5": lambda: Seq2SeqLM(replace(PRESETS["t5-small"].config, **SMALL, logit_scale=24**-0.5)),
    "t5, not scaled": lambda: Seq2SeqLM(
        replace(PRESETS["t5-small"].config, **SMALL, logit_scale=1.0, activation="swiglu")
    ),
    "vit": lambda: VisionTransformer(
        replace(PRESETS["vit-b-16"].config, **{**SMALL, "max_len": 10}), 12, 4, 2, n_classes=3
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_models_of_ours_can_be_written(name, tmp_path):
    torch.manual_seed(0)
    ours = OURS[name]().eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    save_pretrained(ours, tmp_path)
    architecture = json.loads((tmp_path / "config.json").read_text())["architectures"][0]
    theirs = getattr(transformers, architecture).from_pretrained(tmp_path).eval()
    again = load_pretrained(tmp_path)
    assert type(again) is type(ours)
    batch = inputs(name)
    with torch.no_grad():
        output, states = run_ours(ours, batch)
        expected, expected_states = run_theirs(theirs, batch)
        check_close(real(run_ours(again, batch)[0], batch), real(output, batch))
    for state, expected_state in zip(states, expected_states, strict=True):
        check_close(real(state, batch), real(expected_state, batch))
    if name != "bert, no pooler":  # transformers makes one up
        check_close(real(output, batch), real(expected, batch))


def test_dtype(saved, tmp_path):
    half = load_pretrained(saved("gpt2")[1], dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    save_pretrained(half, tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert theirs.dtype == torch.bfloat16
    assert load_pretrained(tmp_path).output.projection.weight.dtype == torch.float32
    with pytest.raises(ValueError, match=r"^dtype=torch.int8 must be a floating-point type$"):
        load_pretrained(tmp_path, dtype=torch.int8)


def test_saving_into_the_folder_it_came_from(saved, tmp_path):
    """safetensors maps a file into memory: without a copy, the weights would change here."""
    shutil.copytree(saved("bert")[1], tmp_path, dirs_exist_ok=True)
    ours = load_pretrained(tmp_path)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    (tmp_path / "model.safetensors").write_bytes(bytes(100_000))
    check_same(ours.state_dict(), before)
    save_pretrained(ours, tmp_path)
    check_same(load_pretrained(tmp_path).state_dict(), before)


@pytest.mark.parametrize("name", ["bert, masked", "t5"])
def test_sharded_files(name, saved, tmp_path):
    theirs, folder = saved(name)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    check_same(load_pretrained(tmp_path).state_dict(), load_pretrained(folder).state_dict())


def edited(folder, to, settings=None, tensors=None):
    """A copy of a checkpoint with other settings or tensors; None takes one away."""
    to.mkdir(exist_ok=True)
    for file, change in (("config.json", settings), ("model.safetensors", tensors)):
        is_json = file.endswith("json")
        content = json.loads((folder / file).read_text()) if is_json else load_file(folder / file)
        content = content | change if isinstance(change, dict) else (change or dict)(content)
        content = {key: value for key, value in content.items() if value is not None}
        if is_json:
            (to / file).write_text(json.dumps(content))
        else:
            save_file(content, to / file)
    return to


def without_prefix(prefix):
    return lambda tensors: {name.removeprefix(prefix): t for name, t in tensors.items()}


def as_the_first_bert(tensors):
    """As bert-base-uncased really is: other names for norms, and the head for sentence pairs."""
    renamed = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensor
        for name, tensor in tensors.items()
    }
    return renamed | {
        "bert.pooler.dense.weight": torch.zeros(24, 24),
        "bert.pooler.dense.bias": torch.zeros(24),
        "cls.seq_relationship.weight": torch.zeros(2, 24),
        "cls.seq_relationship.bias": torch.zeros(2),
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
        "bert.embeddings.position_ids": torch.arange(20)[None],
    }


def as_the_first_gpt2(tensors):
    """As gpt2 really is: no prefix, and its masks stored."""
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 20, 20).tril() for i in range(3)}
    masks |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(3)}
    return without_prefix("transformer.")(tensors) | masks


OLDER = {  # how checkpoints look that older versions of transformers wrote
    "bert": ("bert, masked", {"position_embedding_type": "absolute"}, as_the_first_bert),
    "bert with prefix": ("bert", None, lambda ts: {f"bert.{name}": t for name, t in ts.items()}),
    "bert without prefix": ("bert, classes", None, without_prefix("bert.")),
    "gpt2": ("gpt2", {"n_ctx": 20, "scale_attn_weights": None}, as_the_first_gpt2),
    "gpt2 with a copy": (
        "gpt2",
        None,
        lambda ts: ts | {"lm_head.weight": ts["transformer.wte.weight"].clone()},
    ),
    "gpt2 with the other copy": (
        "gpt2",
        None,
        lambda ts: {n.replace("transformer.wte", "lm_head"): t for n, t in ts.items()},
    ),
    "gpt2 without head": ("gpt2", {"architectures": ["GPT2Model"]}, without_prefix("transformer.")),
    "llama": (
        "llama, gqa, other theta",
        {"rope_parameters": None, "rope_theta": 50.0, "rope_scaling": None, "head_dim": None},
        lambda ts: ts | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)},
    ),
    "gemma 1, whose gelu is the approximation": (
        "gemma1",
        {"hidden_act": "gelu", "hidden_activation": None, "rope_theta": 10_000.0},
        None,
    ),
    "phi3 with a longest text": ("phi3", {"original_max_position_embeddings": 4096}, None),
    "llama with default scaling": (
        "llama, gqa, other theta",
        {"rope_parameters": None, "rope_theta": 50.0, "rope_scaling": {"type": "default"}},
        None,
    ),
    "llama with a copy": (
        "llama, tied",
        None,
        lambda ts: ts | {"lm_head.weight": ts["model.embed_tokens.weight"].clone()},
    ),
    "t5": (
        "t5",
        {
            "scale_decoder_outputs": None,
            "tie_word_embeddings": None,
            "num_decoder_layers": None,
            "dense_act_fn": None,
            "feed_forward_proj": None,
        },
        lambda ts: (
            ts
            | {
                "lm_head.weight": ts["shared.weight"].clone(),
                "encoder.embed_tokens.weight": ts["shared.weight"].clone(),
                "decoder.embed_tokens.weight": ts["shared.weight"].clone(),
                "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": ts[
                    "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
                ].clone(),
            }
        ),
    ),
    "t5 1.1": (
        "t5, gated, untied",
        {"scale_decoder_outputs": None, "tie_word_embeddings": False},
        None,
    ),
    "vit without prefix": ("vit", None, without_prefix("vit.")),
}


@pytest.mark.parametrize("older", OLDER)
def test_older_files_and_settings(older, saved, tmp_path):
    name, settings, tensors = OLDER[older]
    _, folder = saved(name)
    ours = load_pretrained(edited(folder, tmp_path, settings, tensors))
    expected = load_pretrained(folder)
    assert ours.config == expected.config
    check_same(ours.state_dict(), expected.state_dict())


def read(architecture, **settings):
    """Our configuration for settings of transformers."""
    kind = getattr(transformers, architecture).config_class
    given = {"model_type": kind.model_type, "architectures": [architecture], **settings}
    family, _ = find_family(given)
    config = read_config(family, family.one_spelling(given))
    return replace(config, d_ff=config.ffn_width, n_kv_heads=config.kv_heads)


@pytest.mark.parametrize("architecture", sorted({name for name, _, _ in MODELS.values()}))
def test_what_a_file_leaves_out_means_what_transformers_means(architecture):
    defaults = getattr(transformers, architecture).config_class()
    full = json.loads(defaults.to_json_string(use_diff=False))
    given = {key: value for key, value in full.items() if key != "architectures"}
    # Left out, it means False, which our mixture of experts cannot follow.
    said = {"norm_topk_prob": True} if "norm_topk_prob" in full else {}
    assert read(architecture, **said) == read(architecture, **given | said)


EVERY_SETTING = {  # settings that are not the default, and all of our fields that are not
    "BertModel": (
        {
            **SIZES,
            "hidden_dropout_prob": 0.3,
            "attention_probs_dropout_prob": 0.4,
            "layer_norm_eps": 1e-3,
            "hidden_act": "gelu_pytorch_tanh",
            "type_vocab_size": 7,
            "tie_word_embeddings": False,
        },
        {
            "position": "learned",
            "norm_position": "post",
            "norm_embeddings": True,
            "norm_eps": 1e-3,
            "activation": "gelu_tanh",
            "dropout": 0.3,
            "attention_dropout": 0.4,
            "n_segments": 7,
            "tie_embeddings": False,
        },
    ),
    "GPT2LMHeadModel": (
        {
            **GPT2,
            "n_inner": 40,
            "resid_pdrop": 0.3,
            "embd_pdrop": 0.3,
            "attn_pdrop": 0.4,
            "layer_norm_epsilon": 1e-3,
            "activation_function": "relu",
            "tie_word_embeddings": False,
        },
        {
            "position": "learned",
            "norm_position": "pre",
            "norm_eps": 1e-3,
            "activation": "relu",
            "dropout": 0.3,
            "attention_dropout": 0.4,
            "tie_embeddings": False,
        },
    ),
    "LlamaForCausalLM": (
        {
            **SIZES,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
            "rms_norm_eps": 1e-3,
            "hidden_act": "gelu",
            "attention_dropout": 0.4,
            "tie_word_embeddings": True,
        },
        {
            "n_kv_heads": 2,
            "position": "rope",
            "rope_pairing": "split",
            "rope_theta": 50.0,
            "norm": "rms",
            "norm_position": "pre",
            "norm_eps": 1e-3,
            "activation": "geglu",
            "bias": False,
            "dropout": 0.0,
            "attention_dropout": 0.4,
            "tie_embeddings": True,
        },
    ),
    "T5ForConditionalGeneration": (
        {
            **T5,
            "n_positions": 20,
            "feed_forward_proj": "gated-silu",
            "dropout_rate": 0.3,
            "layer_norm_epsilon": 1e-3,
            "tie_word_embeddings": False,
        },
        {
            "position": "t5",
            "norm": "rms",
            "norm_position": "pre",
            "norm_eps": 1e-3,
            "activation": "swiglu",
            "bias": False,
            "dropout": 0.3,
            "attention_dropout": 0.3,
            "attention_scale": 1.0,
            "tie_embeddings": False,
        },
    ),
    "ViTForImageClassification": (
        {
            **VIT,
            "image_size": 12,
            "patch_size": 4,
            "hidden_dropout_prob": 0.3,
            "attention_probs_dropout_prob": 0.4,
            "layer_norm_eps": 1e-3,
            "hidden_act": "gelu_new",
        },
        {
            "vocab_size": 1,
            "max_len": 10,
            "position": "learned",
            "norm_position": "pre",
            "norm_eps": 1e-3,
            "activation": "gelu_tanh",
            "dropout": 0.3,
            "attention_dropout": 0.4,
            "scale_embeddings": True,
        },
    ),
}


@pytest.mark.parametrize("architecture", EVERY_SETTING)
def test_every_setting_is_followed(architecture):
    settings, ours = EVERY_SETTING[architecture]
    base = {**SMALL, "n_layers": 3, "n_kv_heads": 4, "scale_embeddings": False}
    config = read(architecture, **settings)
    assert replace(config, init="xavier") == TransformerConfig(**base | ours)


BAD_SETTINGS = [  # name, change, the message
    ("bert", {"model_type": "roberta"}, "model_type='roberta' must be one of 'bert', 'gpt2', "),
    ("bert", {"model_type": None}, "model_type=None must be one of 'bert', 'gpt2', 'llama', "),
    ("bert", {"architectures": None}, "architectures=None must be one of 'BertModel', "),
    (
        "llama",
        {"architectures": ["LlamaForSequenceClassification"]},
        "architectures='LlamaForSequenceClassification' must be one of 'LlamaForCausalLM'",
    ),
    ("bert", {"hidden_act": "silu"}, "hidden_act='silu' must be one of 'gelu', 'gelu_new', "),
    ("llama", {"hidden_act": "relu"}, "hidden_act='relu' must be one of 'silu', 'gelu', "),
    ("t5", {"feed_forward_proj": "gelu"}, "feed_forward_proj='gelu' must be one of 'relu', "),
    ("bert", {"num_attention_heads": 5}, "n_heads=5 must divide d_model=24: "),
    ("vit", {"image_size": [12, 8]}, "image_size=[12, 8] must be a whole number of at least 1"),
    ("vit", {"patch_size": 5}, "patch_size=5 must divide image_size=12: "),
    *(
        (name, {key: value}, f"config.json has {key}={value!r}; our models need {need} here")
        for name, key, value, need in [
            ("bert", "is_decoder", True, "False"),
            ("bert", "add_cross_attention", True, "False"),
            ("bert", "position_embedding_type", "relative_key", "'absolute'"),
            ("bert", "pruned_heads", {"0": [1]}, "None"),
            ("bert", "quantization_config", {"bits": 4}, "None"),
            ("bert, masked", "tie_word_embeddings", False, "True"),
            ("gpt2", "scale_attn_weights", False, "True"),
            ("gpt2", "scale_attn_by_inverse_layer_idx", True, "False"),
            ("gpt2", "reorder_and_upcast_attn", True, "False"),
            ("llama", "attention_bias", True, "False"),
            ("llama", "mlp_bias", True, "False"),
            ("t5", "num_decoder_layers", 2, "3"),
            ("t5", "relative_attention_num_buckets", 16, "32"),
            ("t5", "relative_attention_max_distance", 64, "128"),
            ("t5", "dense_act_fn", "gelu", "'relu'"),
            ("t5", "is_gated_act", True, "False"),
            ("t5", "is_encoder_decoder", False, "True"),
            ("llama", "partial_rotary_factor", 0.5, "1.0"),
            ("vit", "qkv_bias", False, "True"),
            ("vit", "is_causal", True, "False"),
            ("vit", "head_dim", 4, "6"),
            ("bert", "is_causal", True, "False"),
            ("gpt2", "hidden_size", 48, "24"),  # transformers takes it for n_embd
            ("t5", "num_hidden_layers", 2, "3"),
            ("llama", "sliding_window", 4, "None"),
            ("llama", "attention_chunk_size", 8, "None"),
            ("llama", "auto_map", {"AutoModelForCausalLM": "modeling.Other"}, "None"),
        ]
    ),
    *(
        ("llama", {key: rope}, f"config.json has {message}")
        for key in ("rope_parameters", "rope_scaling")
        for rope, message in (
            ({"rope_type": "llama3", "factor": 8.0}, "rope_type='llama3' without high_freq_factor"),
            ({"type": "linear"}, "rope_type='linear' without factor"),
            ({"rope_type": "linear", "factor": 2.0, "mscale": 1.0}, "mscale=1.0, which is not"),
            (
                {"rope_type": "longrope", "factor": 8.0},
                "rope_type='longrope'; our models know 'default', 'linear', 'dynamic', 'yarn', ",
            ),
            (
                {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                "partial_rotary_factor=0.5; our models need 1.0 here",
            ),
            ({"rope_type": "default", "factor": 2.0}, "factor=2.0, which is not known for "),
        )
    ),
    ("llama", {"rope_parameters": "yarn"}, "config.json has rope_parameters='yarn'; expected an"),
    *(
        ("llama", {"rope_scaling": {"rope_type": kind, "factor": "4"}}, "factor='4' must be a num")
        for kind in ("linear", "dynamic")
    ),
    ("llama", {"rope_scaling": "yarn"}, "config.json has rope_scaling='yarn'; expected an object"),
    (
        "llama",
        {"rope_scaling": {"type": "dynamic", "rope_type": "linear", "factor": 2.0}},
        "config.json has type='dynamic' beside rope_type='linear'; expected the same",
    ),
    *(
        (
            name,
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_scaling": rope},
            "config.json has rope_theta=1000000.0 in rope_parameters, which does not count beside "
            f"rope_scaling: {theta} would; say all of it in rope_parameters",
        )
        for name in ("llama", "qwen2", "gemma2")
        for rope, theta in (
            ({"rope_type": "linear", "factor": 2.0}, 10000.0),
            ({"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}, 50.0),
        )
    ),
    ("llama", {"head_dim": 7}, "position='rope' rotates pairs of features: "),
    ("gemma2", {"layer_types": ["chunked_attention"] * 3}, "config.json has layer_types=['chunked"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0 must be a number greater th"),
    ("gemma3", {"query_pre_attn_scalar": -4}, "query_pre_attn_scalar=-4 must be a number greater"),
    (
        "gemma2",
        {"layer_types": ["full_attention"] * 2},
        "config.json has 2 layer_types; expected n",
    ),
    ("gemma3", {"use_bidirectional_attention": True}, "config.json has use_bidirectional_att"),
    (
        "gemma3",
        {"rope_parameters": {"rope_type": "linear", "factor": 8.0}},
        "config.json has rope_parameters={'rope_type': 'linear', 'factor': 8.0}; Gemma 3 needs an "
        "object with full_attention and sliding_attention, and nothing else",
    ),
    (
        "gemma3",
        {"rope_scaling": {"type": "linear", "factor": 8.0}},
        "config.json has rope_scaling={'type': 'linear', 'factor': 8.0}; Gemma 3 needs its rope_ty",
    ),
    (
        "gemma3",
        {"rope_parameters": {"full_attention": {**YARN, "truncate": False}}},
        "config.json has truncate=False; our models need True here",
    ),
    (
        "gemma3",
        {"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 8.0}}},
        "config.json has rope_type='linear'; our models need 'default' here",
    ),
    (
        "gemma3",
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}}},
        "config.json has rope_type='yarn'; our models need 'default' here",
    ),
    ("qwen3", {"attention_bias": True}, "config.json has attention_bias=True; our models need F"),
    *(
        (
            "phi3",
            {"rope_scaling": rope},
            "config.json has rope_",
        )
        for rope in (YARN, {"rope_type": "longrope", "factor": 4.0})
    ),
    *(
        ("phi3", {"rope_parameters": None, "partial_rotary_factor": part}, message)
        for part, message in (
            (0.5, "position='rope' rotates pairs of features: 0.5 of d_head=6 must be even"),
            (1.5, "rope_fraction=1.5 must be a number above 0, up to 1"),
        )
    ),
    ("mixtral", {"num_experts_per_tok": 1}, "config.json has num_experts_per_tok=1; our models n"),
    ("mixtral", {"num_experts_per_tok": 4}, "active_experts=4 must be at most n_experts=3"),
    ("mixtral", {"router_jitter_noise": 0.1}, "config.json has router_jitter_noise=0.1; our mod"),
    ("mixtral", {"num_experts": 4}, "config.json has num_experts=4; our models need 3 here"),
    ("qwen3 moe", {"norm_topk_prob": False}, "config.json has norm_topk_prob=False; our models n"),
    ("qwen3 moe", {"mlp_only_layers": [0]}, "config.json has mlp_only_layers=[0]; our models nee"),
    ("qwen3 moe", {"decoder_sparse_step": 2}, "config.json has decoder_sparse_step=2; our models"),
    ("smollm3", {"no_rope_layers": [1, 0]}, "config.json has no_rope_layers=[1, 0]; expected a l"),
    ("smollm3", {"no_rope_layers": [1, 2, 0]}, "config.json has no_rope_layers=[1, 2, 0]; expec"),
    ("smollm3", {"mlp_bias": True}, "config.json has mlp_bias=True; our models need False here"),
    ("phi3", {"attention_bias": True}, "config.json has attention_bias=True; our models need Fal"),
    ("gemma1", {"use_bidirectional_attention": True}, "config.json has use_bidirectional_attenti"),
    ("mistral", {"sliding_window": 0}, "window=0 must be a whole number of at least 1"),
]


@pytest.mark.parametrize(("name", "settings", "message"), BAD_SETTINGS)
def test_settings_that_our_models_cannot_follow(
    name, settings, message, saved, tmp_path, unchecked_shapes
):
    if "rope_scaling" in settings:
        settings = {"rope_parameters": None, **settings}
    folder = edited(saved(name)[1], tmp_path, settings)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        load_pretrained(folder)


HARMLESS = {  # F4: what published files say beside what transformers reads for their class
    "llama": {"is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 1},
    "llama, tied": {"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
    "gpt2": {"predict_special_tokens": True, "_num_labels": 1, "n_ctx": 1024, "head_dim": 12},
    "bert": {"directionality": "bidi", "pooler_size_per_head": 128, "embedding_size": 12},
    "t5": {"n_positions": 512, "output_past": True, "use_rope": True},
    "vit": {"encoder_stride": 16, "num_registers": 4},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_setting_that_transformers_does_not_read_is_harmless(name, saved, tmp_path):
    _, folder = saved(name)
    ours = load_pretrained(edited(folder, tmp_path, HARMLESS[name]))
    assert replace(ours.config, max_len=9) == replace(load_pretrained(folder).config, max_len=9)


def test_a_setting_can_be_ignored_by_name(saved, tmp_path):
    _, folder = saved("llama")
    odd = {"sliding_window": 4, "attention_bias": True}
    to = edited(folder, tmp_path, odd)
    refusal = (
        r"our models need .* here; ignore=\['(sliding_window|attention_bias)'\] leaves it out$"
    )
    with pytest.raises(ValueError, match=refusal):
        load_pretrained(to)
    with pytest.warns(
        UserWarning, match="has (sliding_window=4|attention_bias=True), which is ign"
    ):
        ours = load_pretrained(to, ignore=list(odd))
    assert ours.config == load_pretrained(folder).config


@pytest.mark.parametrize(
    ("ignore", "error", "message"),
    [
        ("mlp_bias", TypeError, "ignore='mlp_bias' must be a collection of keys, such as ['mlp_b"),
        (["mpl_bias"], ValueError, "ignore holds 'mpl_bias', which config.json does not have"),
    ],
)
def test_what_cannot_be_ignored(ignore, error, message, saved):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        load_pretrained(saved("llama")[1], ignore=ignore)


DROPOUTS = [  # F14: name, key, value, the field that it is beside
    ("bert", "classifier_dropout", 0.5, "dropout=0.1"),
    ("gpt2", "embd_pdrop", 0.5, "dropout=0.1"),
    ("gpt2", "embd_pdrop", 0.0, "dropout=0.1"),
]


@pytest.mark.parametrize(("name", "key", "value", "ours"), DROPOUTS)
def test_where_a_file_has_several_dropouts_our_model_has_the_first(
    name, key, value, ours, saved, tmp_path
):
    _, folder = saved(name)
    to = edited(folder, tmp_path, {key: value})
    with pytest.warns(UserWarning, match=f"{key}={value} beside another dropout; .* has {ours} in"):
        assert load_pretrained(to).config == load_pretrained(folder).config


PUBLISHED = {  # F4, F5: the shapes of published checkpoints, a few times smaller
    "SmolLM2-135M": (
        "LlamaForCausalLM",
        {**SIZES, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 36,
         "rope_theta": 100_000, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
        {"is_llama_config": True, "rope_interleaved": False, "rope_scaling": None,
         "transformers.js_config": {"dtype": "q4"}},
    ),
    "gpt2-medium": ("GPT2LMHeadModel", GPT2, {"predict_special_tokens": True, "n_special": 0}),
    "distilgpt2": ("GPT2LMHeadModel", GPT2, {"_num_labels": 1, "id2label": {"0": "LABEL_0"}}),
    "flan-t5-small": (
        "T5ForConditionalGeneration",
        {**T5, "num_heads": 6, "d_kv": 8, "d_model": 64, "feed_forward_proj": "gated-gelu",
         "tie_word_embeddings": False},
        {"n_positions": 512, "output_past": True, "decoder_start_token_id": 0},
    ),
    "t5-v1_1-small": (
        "T5ForConditionalGeneration",
        {**T5, "num_heads": 6, "d_kv": 8, "d_model": 64, "feed_forward_proj": "gated-gelu",
         "tie_word_embeddings": False},
        {"tie_word_embeddings": False, "initializer_factor": 1.0},
    ),
    "t5-3b": ("T5ForConditionalGeneration", {**T5, "d_kv": 12}, {"prefix": ""}),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
@torch.no_grad()
def test_published_checkpoints_are_read_as_transformers_reads_them(name, tmp_path):
    architecture, settings, more = PUBLISHED[name]
    torch.manual_seed(0)
    kind = getattr(transformers, architecture)
    theirs = kind(kind.config_class(**settings)).eval()
    for parameter in theirs.parameters():
        parameter.normal_(std=0.2)
    theirs.save_pretrained(tmp_path / "saved")
    folder = edited(tmp_path / "saved", tmp_path / "edited", more)
    theirs, batch = kind.from_pretrained(folder).eval(), inputs(name)
    ours = load_pretrained(folder)
    check_close(real(run_ours(ours, batch)[0], batch), real(run_theirs(theirs, batch)[0], batch))
    save_pretrained(ours, tmp_path / "again")
    again = kind.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(run_theirs(again, batch)[0], run_theirs(theirs, batch)[0])


@pytest.mark.parametrize("value", [None, False, {}, []])
def test_a_setting_that_says_nothing_is_harmless(value, saved, tmp_path):
    _, folder = saved("llama")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "no_such_thing": value}))
    shutil.copy(folder / "model.safetensors", tmp_path)
    assert load_pretrained(tmp_path).config == load_pretrained(folder).config


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_a_model_that_transformers_would_not_make_causal_is_refused(name, saved, tmp_path):
    """M9: transformers 5 lets such a model look ahead; ours would not."""
    folder = edited(saved(name)[1], tmp_path, {"is_causal": False})
    message = "config.json has is_causal=False; our models need True here; ignore="
    with pytest.raises(ValueError, match=f"^{message}"):
        load_pretrained(folder)
    assert load_pretrained(edited(saved(name)[1], tmp_path, {"is_causal": True}))


def test_what_transformers_4_wrote_of_generation_and_bookkeeping_is_ignored(saved, tmp_path):
    _, folder = saved("gpt2")
    written = {
        "torch_dtype": "float16", "max_length": 20, "do_sample": True, "temperature": 0.7,
        "task_specific_params": {"text-generation": {"do_sample": True}}, "return_dict": True,
        "tokenizer_class": "GPT2Tokenizer", "decoder_start_token_id": 1, "finetuning_task": "x",
        "_attn_implementation_autoset": True, "label2id": {"A": 0}, "gradient_checkpointing": True,
    }  # fmt: skip
    ours = load_pretrained(edited(folder, tmp_path, written))
    assert ours.config == load_pretrained(folder).config


WORD = "embeddings.word_embeddings.weight"
BAD_TENSORS = [  # name, change, the message
    ("bert", {"pooler.dense.bias": None}, "BertModel in {}: 1 missing tensors: pooler.dense.bias"),
    (
        "bert",
        lambda ts: {n: t for n, t in ts.items() if "attention.self" not in n},
        "BertModel in {}: 18 missing tensors: encoder.layer.0.attention.self.query.weight, "
        "encoder.layer.0.attention.self.query.bias, encoder.layer.0.attention.self.key.weight, ...",
    ),
    (
        "bert",
        {"adapter.b": torch.zeros(1), "adapter.a": torch.zeros(1)},
        "BertModel in {}: 2 unknown tensors: adapter.a, adapter.b",
    ),
    ("bert", {f"bert.{WORD}": torch.zeros(50, 24)}, f"{{}} has the tensor {WORD} twice"),
    ("bert", {WORD: torch.zeros(51, 24)}, f"{WORD} has shape (51, 24); expected (50, 24)"),
    (
        "bert",
        {WORD: torch.zeros(50, 24, dtype=torch.int8)},
        f"{WORD} has dtype torch.int8; expected a floating-point type",
    ),
    (
        "gpt2",  # as if it were not transposed
        {"transformer.h.1.mlp.c_fc.weight": torch.zeros(96, 24)},
        "h.1.mlp.c_fc.weight has shape (96, 24); expected (24, 96)",
    ),
    (
        "gpt2",
        {"transformer.h.1.attn.c_attn.bias": torch.zeros(71)},
        "h.1.attn.c_attn.bias has shape (71,); expected (72,)",
    ),
    (
        "gpt2",
        {"lm_head.weight": torch.zeros(50, 24)},
        "GPT2LMHeadModel in {}: lm_head.weight differs from wte.weight, which it should repeat",
    ),
    (
        "gpt2, untied, other eps",
        {"lm_head.weight": None},
        "GPT2LMHeadModel in {}: 1 missing tensors: lm_head.weight",
    ),
    (
        "t5",
        {"encoder.embed_tokens.weight": torch.zeros(50, 24)},
        "T5ForConditionalGeneration in {}: encoder.embed_tokens.weight differs from shared.weight, "
        "which it should repeat",
    ),
    (
        "vit",
        {"vit.embeddings.patch_embeddings.projection.weight": torch.zeros(24, 32)},
        "embeddings.patch_embeddings.projection.weight has shape (24, 32); expected (24, 2, 4, 4)",
    ),
    (
        "vit",
        {"vit.embeddings.position_embeddings": torch.zeros(1, 9, 24)},
        "embeddings.position_embeddings has shape (1, 9, 24); expected (1, 10, 24)",
    ),
    (
        "vit",
        {"classifier.weight": torch.zeros(4, 24)},
        "classifier.weight has shape (4, 24); expected (5, 24)",
    ),
]


@pytest.mark.parametrize(("name", "tensors", "message"), BAD_TENSORS)
def test_tensors_that_do_not_fit(name, tensors, message, saved, tmp_path):
    folder = edited(saved(name)[1], tmp_path, tensors=tensors)
    with pytest.raises(ValueError, match=f"^{re.escape(message.format(folder))}$"):
        load_pretrained(folder)


def test_broken_folders(saved, tmp_path):
    def refused(message):
        return pytest.raises(ValueError, match=f"^{re.escape(message)}")

    with refused(f"{tmp_path} has no config.json"):
        load_pretrained(tmp_path)
    config = tmp_path / "config.json"
    for text in ("{", "[]"):
        config.write_text(text)
        with refused(f"{config} is damaged: "):
            load_pretrained(tmp_path)
    shutil.copy(saved("bert")[1] / "config.json", tmp_path)
    with refused(f"{tmp_path} has no model.safetensors"):
        load_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"not safetensors")
    with refused(f"{file} is missing or damaged: "):
        load_pretrained(tmp_path)
    file.unlink()
    index = {"weight_map": {"a": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with refused(f"{tmp_path / 'model-1.safetensors'} is missing or damaged: "):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "{}", "sub/a.safetensors", "..", 7])
def test_an_index_leads_to_no_file_outside_its_folder(file, saved, tmp_path):
    """Whoever writes an index must not choose what else of the disk is read."""
    name = file.format(tmp_path / "elsewhere.safetensors") if isinstance(file, str) else file
    folder = tmp_path / "checkpoint"
    (folder / "sub").mkdir(parents=True)
    for to in (tmp_path / "elsewhere.safetensors", folder / "sub" / "a.safetensors"):
        shutil.copy(saved("bert")[1] / "model.safetensors", to)
    shutil.copy(saved("bert")[1] / "config.json", folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    message = f"{index} names {name!r}; expected the plain name of a .safetensors file beside it"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load_pretrained(folder)


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"weight_map": ["a"]}])
def test_an_index_without_files_is_an_error(content, saved, tmp_path):
    shutil.copy(saved("bert")[1] / "config.json", tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps(content))
    message = f"{index} has no weight_map that says which file each tensor is in"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        load_pretrained(tmp_path)


def test_pickles_are_not_opened(saved, tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path.joinpath("opened").touch, ())

    shutil.copy(saved("bert")[1] / "config.json", tmp_path)
    torch.save(Evil(), tmp_path / "pytorch_model.bin")
    message = (
        f"{tmp_path} has no model.safetensors, only pytorch_model.bin: "
        "a pickle can run any code when it is opened"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load_pretrained(tmp_path)
    assert not (tmp_path / "opened").exists()


def test_a_name_on_the_hub(saved, monkeypatch):
    _, folder = saved("gpt2")
    asked = []

    def download(name, **options):
        asked.append((name, options))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    ours = load_pretrained("openai-community/gpt2")
    check_same(ours.state_dict(), load_pretrained(folder).state_dict())
    load_pretrained("openai-community/gpt2", revision="v1.0")
    (name, options), (_, pinned) = asked
    assert name == "openai-community/gpt2"
    assert options["revision"] is None
    assert pinned["revision"] == "v1.0"
    offered = [
        "config.json", "model.safetensors", "model-00001-of-00002.safetensors",
        "model.safetensors.index.json", "model.fp16.safetensors", "model.bin", "tf_model.h5",
        "model_quantized.safetensors", "model.fp16-00001-of-00002.safetensors", "modeling.py",
    ]  # fmt: skip
    wanted = list(filter_repo_objects(offered, allow_patterns=options["allow_patterns"]))
    assert wanted == offered[:4]


def test_the_commit_that_was_downloaded_is_said(saved, tmp_path, monkeypatch, caplog):
    """With it, revision= gets the same weights again."""
    commit = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
    snapshot = tmp_path / "models--openai-community--gpt2" / "snapshots" / commit
    shutil.copytree(saved("gpt2")[1], snapshot)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    with caplog.at_level("INFO", logger="transformer_lib.hugging_face.pretrained"):
        load_pretrained("openai-community/gpt2")
    assert caplog.messages == [f"openai-community/gpt2 was loaded with revision='{commit}'"]


def test_a_folder_has_no_revision(saved):
    _, folder = saved("gpt2")
    message = f"revision='main' is for names on the hub; {str(folder)!r} is a folder"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load_pretrained(folder, revision="main")


def test_no_hub():
    message = r"^there is no folder 'some/thing', and the hub could not deliver it: Cannot find"
    with pytest.raises(OSError, match=message):
        load_pretrained("some/thing")
    with pytest.raises(OSError, match=r"^there is no folder 'a/b/c', and .*: Repo id must be"):
        load_pretrained("a/b/c")


def test_no_huggingface_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = "there is no folder 'gpt2'; to look for it on the hub, install huggingface_hub"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        load_pretrained("gpt2")


def test_optional_packages_and_the_compiler_are_imported_only_when_needed():
    """The compiler alone takes longer to import than the library."""
    code = (
        "import sys, transformer_lib.hugging_face.pretrained, transformer_lib.training.loop\n"
        "print(sorted({'transformers', 'huggingface_hub', 'torch._dynamo'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


BERT_CONFIG = replace(PRESETS["bert-base"].config, **SMALL)
GPT2_CONFIG = replace(PRESETS["gpt2"].config, **SMALL)
T5_CONFIG = replace(PRESETS["t5-small"].config, **SMALL, logit_scale=1.0)
CANNOT_BE_WRITTEN = [
    (
        lambda: CausalLM(replace(LLAMA, n_experts=3, active_experts=1)),
        "config.json has num_experts_per_tok=1; our models need 2 or more here",
    ),
    (lambda: Decoder(GPT2_CONFIG), "no family of checkpoints has a Decoder"),
    (
        lambda: SequenceClassifier(BERT_CONFIG, 2, pooling="mean"),
        "no family of checkpoints has a SequenceClassifier with pooling='mean'",
    ),
    (
        lambda: CausalLM(replace(GPT2_CONFIG, position="alibi")),
        "no family of checkpoints has a CausalLM with position='alibi'",
    ),
    (
        lambda: CausalLM(GPT2_CONFIG, parts=Parts(norm=lambda c: nn.LayerNorm(c.d_model))),
        "norm of parts is not the library's: it cannot be written",
    ),
    (
        lambda: MaskedLM(replace(BERT_CONFIG, activation="swiglu")),
        "activation='swiglu' must be one of 'relu', 'gelu_tanh', 'gelu'",
    ),
    (
        lambda: MaskedLM(replace(BERT_CONFIG, tie_embeddings=False)),
        "BERT has no tensor for output.projection.weight",
    ),
    (
        lambda: Seq2SeqLM(replace(T5_CONFIG, tie_embeddings=False)),
        "body.encoder.embedding.tokens.weight and body.decoder.embedding.tokens.weight differ; "
        "T5ForConditionalGeneration has one shared.weight",
    ),
    *(
        (
            lambda kind=kind, config=config, name=name, ours=ours: kind(
                replace(config, **{name: ours})
            ),
            f"{name}={ours!r} cannot be written: {architecture} has {theirs!r}",
        )
        for kind, architecture, config, name, ours, theirs in [
            (Encoder, "BertModel", BERT_CONFIG, "position", "sinusoidal", "learned"),
            (Encoder, "BertModel", BERT_CONFIG, "norm_position", "pre", "post"),
            (Encoder, "BertModel", BERT_CONFIG, "norm_embeddings", False, True),
            (Encoder, "BertModel", BERT_CONFIG, "scale_embeddings", True, False),
            (Encoder, "BertModel", BERT_CONFIG, "n_kv_heads", 2, 4),
            (Encoder, "BertModel", BERT_CONFIG, "bias", False, True),
            (Encoder, "BertModel", BERT_CONFIG, "window", 3, None),
            (Encoder, "BertModel", BERT_CONFIG, "n_experts", 4, None),
            (MaskedLM, "BertForMaskedLM", BERT_CONFIG, "logit_scale", 2.0, 1.0),
            (CausalLM, "GPT2LMHeadModel", GPT2_CONFIG, "attention_scale", 1.0, 6**-0.5),
            (CausalLM, "GPT2LMHeadModel", GPT2_CONFIG, "norm", "rms", "layer"),
            (CausalLM, "LlamaForCausalLM", LLAMA, "norm", "layer", "rms"),
            (CausalLM, "LlamaForCausalLM", LLAMA, "bias", True, False),
            (Seq2SeqLM, "T5ForConditionalGeneration", T5_CONFIG, "logit_scale", 0.5, 24**-0.5),
        ]
    ),
]


@pytest.mark.parametrize(("make", "message"), CANNOT_BE_WRITTEN)
def test_models_that_no_family_has(make, message, tmp_path, unchecked_shapes):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        save_pretrained(make(), tmp_path / "new")
    assert not (tmp_path / "new").exists()
