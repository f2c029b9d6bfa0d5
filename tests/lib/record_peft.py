"""Write what ``peft`` makes of adapters, for test_peft_format.py: run where it is installed.

    python tests/lib/record_peft.py        # peft 0.21.2, transformers 5.22.2

The base models come from a formula, so that nothing of them has to be stored. Each folder of
``peft_recorded`` holds the two files that ``peft`` writes, and the logits that it computes.
"""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

FOLDER = Path(__file__).parent / "peft_recorded"
SMALL = {
    "vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 16,
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
IDS = torch.tensor([[3, 7, 1, 12, 5], [4, 4, 9, 2, 11]])


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def phi3():
    return transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**SMALL, resid_pdrop=0.0, embd_pdrop=0.0)
    )


def gpt2():
    sizes = {"vocab_size": 13, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends))


def t5():
    sizes = {
        "vocab_size": 13,
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 24,
        "num_layers": 2,
        "num_heads": 4,
    }
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0)
    )


# For each folder the base model, and what peft is told.
RECORDED = {
    "llama": (llama, {"target_modules": ["q_proj", "v_proj"], "r": 3, "lora_alpha": 5}),
    "llama_patterns": (
        llama,
        {
            "target_modules": ["k_proj", "down_proj"], "r": 2, "lora_alpha": 4,
            "rank_pattern": {"down_proj": 4}, "alpha_pattern": {"layers.1.mlp.down_proj": 9},
        },
    ),
    "gpt2": (gpt2, {"target_modules": ["c_attn", "c_proj"], "r": 2, "lora_alpha": 6}),
    "phi3": (phi3, {"target_modules": ["qkv_proj", "gate_up_proj"], "r": 2, "lora_alpha": 3}),
    "t5": (t5, {"target_modules": ["q", "v", "wo"], "r": 2, "lora_alpha": 4}),
}  # fmt: skip


@torch.no_grad()
def fill(model):
    """Give every parameter numbers that are the same on all machines, and each its own."""
    done = set()
    for place, (_, parameter) in enumerate(sorted(model.named_parameters())):
        if parameter not in done:
            done.add(parameter)
            waves = torch.arange(parameter.numel(), dtype=torch.float64) * (0.7 + 0.01 * place)
            numbers = 0.3 * torch.sin(waves + place) + (parameter.ndim == 1)
            parameter.copy_(numbers.view_as(parameter))
    return model.eval()


def logits_of(model):
    """What a model says of the ids; T5 reads them on both sides."""
    with torch.no_grad():
        if isinstance(model, transformers.T5ForConditionalGeneration):
            return model(input_ids=IDS, decoder_input_ids=IDS[:, :4]).logits
        return model(input_ids=IDS).logits


def record(name):
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415  (only here)

    make, settings = RECORDED[name]
    model = fill(make())
    adapted = get_peft_model(model, LoraConfig(**settings))
    with torch.no_grad():
        for place, (own, parameter) in enumerate(sorted(adapted.named_parameters())):
            if "lora_" in own:
                waves = torch.arange(parameter.numel()) * (1.3 + 0.02 * place) + place
                parameter.copy_(0.2 * torch.sin(waves).view_as(parameter))
    adapted.eval().save_pretrained(FOLDER / name)
    (FOLDER / name / "README.md").unlink()
    save_file({"logits": logits_of(model)}, FOLDER / name / "logits.safetensors")
    config = FOLDER / name / "adapter_config.json"
    kept = json.loads(config.read_text()) | {"base_model_name_or_path": "somewhere"}
    kept["target_modules"] = sorted(kept["target_modules"])
    config.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    for name in RECORDED:
        record(name)
