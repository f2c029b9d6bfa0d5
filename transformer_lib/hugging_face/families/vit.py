"""ViT: an encoder that reads the patches of an image."""

from dataclasses import replace

from transformer_lib.core.config import TransformerConfig
from transformer_lib.hugging_face.family import (
    ACTIVATION_NAMES,
    Family,
    LazyTensors,
    Settings,
    check_setting,
    count_classes,
    whole_setting,
)
from transformer_lib.hugging_face.weight_layouts import BATCHED, CONVOLUTION, Model
from transformer_lib.models.language_models import VisionTransformer
from transformer_lib.models.presets import PRESETS


def _build(
    config: TransformerConfig, settings: Settings, tensors: LazyTensors
) -> VisionTransformer:
    return VisionTransformer(
        config,
        image_size=whole_setting(settings, "image_size"),
        patch_size=whole_setting(settings, "patch_size"),
        n_channels=whole_setting(settings, "num_channels"),
        n_classes=count_classes(settings),
    )


def _one_spelling(settings: Settings) -> Settings:
    return {"image_size": 224, "patch_size": 16, "num_channels": 3} | settings


def _finish(config: TransformerConfig, settings: Settings) -> TransformerConfig:
    """There is a position for each patch, and one for the class token."""
    check_setting("head_dim", settings.get("head_dim"), None, config.d_head)
    per_side = whole_setting(settings, "image_size") // whole_setting(settings, "patch_size")
    return replace(config, max_len=per_side**2 + 1)


def _more_settings(model: Model) -> Settings:
    assert isinstance(model, VisionTransformer)  # no other model is written as a ViT
    return {
        "image_size": model.patches.image_size,
        "patch_size": model.patches.patch_size,
        "num_channels": model.patches.n_channels,
    }


VIT = Family(
    name="ViT",
    model_type="vit",
    architectures={"ViTForImageClassification": _build},
    base=replace(PRESETS["vit-b-16"].config, dropout=0.0, norm_eps=1e-12),
    settings={
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "n_layers",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_eps",
        "hidden_act": "activation",
    },
    activations=ACTIVATION_NAMES,
    must_be={"is_causal": False, "qkv_bias": True},
    reads=("head_dim", "image_size", "patch_size", "num_channels"),
    tensors={
        "class_token": "embeddings.cls_token",
        "positions.table.weight": "embeddings.position_embeddings",
        "patches.projection": "embeddings.patch_embeddings.projection",
        "stack.blocks.N.attention.query": "encoder.layer.N.attention.attention.query",
        "stack.blocks.N.attention.key": "encoder.layer.N.attention.attention.key",
        "stack.blocks.N.attention.value": "encoder.layer.N.attention.attention.value",
        "stack.blocks.N.attention.output": "encoder.layer.N.attention.output.dense",
        "stack.blocks.N.attention_norm": "encoder.layer.N.layernorm_before",
        "stack.blocks.N.feed_forward.up": "encoder.layer.N.intermediate.dense",
        "stack.blocks.N.feed_forward.down": "encoder.layer.N.output.dense",
        "stack.blocks.N.feed_forward_norm": "encoder.layer.N.layernorm_after",
        "stack.final_norm": "layernorm",
        "classifier": "classifier",
    },
    layouts={"cls_token": BATCHED, "position_embeddings": BATCHED, "projection": CONVOLUTION},
    prefix="vit.",
    ignored=(r"pooler\.dense\.\w+",),
    one_spelling=_one_spelling,
    finish=_finish,
    more_settings=_more_settings,
)
