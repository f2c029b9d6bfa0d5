"""T5: encoder and decoder with a learned bias for distances.

T5 also drops inside the feed-forward network and after the final norm; our models do not.
"""

from dataclasses import replace

from transformer_lib.core.config import TransformerConfig
from transformer_lib.hugging_face.checkpoint_notes import notes_of
from transformer_lib.hugging_face.family import (
    Family,
    LazyTensors,
    Settings,
    check_setting,
    is_copy,
    one_name,
    own_head_width,
)
from transformer_lib.hugging_face.weight_layouts import Model
from transformer_lib.layers.feedforward import ACTIVATIONS
from transformer_lib.models.language_models import Seq2SeqLM
from transformer_lib.models.presets import PRESETS

_SECOND_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
_INNER = {"relu": "relu", "geglu_tanh": "gelu_new", "swiglu": "silu"}  # its dense_act_fn


def _build(config: TransformerConfig, settings: Settings, tensors: LazyTensors) -> Seq2SeqLM:
    """Let the tensors say whether they are tied: for transformers 5, the settings always do."""
    tied = is_copy(tensors, "lm_head.weight", "shared.weight")
    return Seq2SeqLM(replace(config, tie_embeddings=tied))


def _one_spelling(settings: Settings) -> Settings:
    """Say whether the output is scaled; older files mean that it is if the weights are tied."""
    scaled = settings.get("tie_word_embeddings") is not False
    return one_name({"scale_decoder_outputs": scaled} | settings, _SECOND_NAMES)


def _more_fields(settings: Settings) -> Settings:
    """Heads may be wider or narrower than a share of the stream."""
    sizes: Settings = {"d_model": 512, "num_heads": 8, "d_kv": 64} | settings
    return {"head_width": own_head_width(sizes, "d_model", "num_heads", "d_kv")}


def _finish(config: TransformerConfig, settings: Settings) -> TransformerConfig:
    """Scale the output, and drop attention weights like all else."""
    _, gated = ACTIVATIONS[config.activation]
    check_setting("dense_act_fn", settings.get("dense_act_fn"), None, _INNER[config.activation])
    check_setting("is_gated_act", settings.get("is_gated_act"), None, gated)
    scale = config.d_model**-0.5 if settings["scale_decoder_outputs"] else 1.0
    return replace(config, attention_dropout=config.dropout, logit_scale=scale)


def _more_settings(model: Model) -> Settings:
    """Say what a decoder begins with, too: of a model that was read, its file says it."""
    start = notes_of(model).settings.get("decoder_start_token_id", 0)
    scaled = model.config.logit_scale != 1.0
    return {"scale_decoder_outputs": scaled, "decoder_start_token_id": start}


def _in_blocks(side: str, parts: dict[str, str]) -> dict[str, str]:
    """Name the parts of the blocks of one side."""
    return {
        f"{side}.stack.blocks.N.{ours}": f"{side}.block.N.{theirs}"
        for ours, theirs in parts.items()
    }


_ENDS = {  # what is not in a block; the first block of a side holds the bias of all
    "embedding.tokens": "shared",
    "encoder.stack.bias.table": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "encoder.stack.final_norm": "encoder.final_layer_norm",
    "decoder.stack.bias.table": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "decoder.stack.final_norm": "decoder.final_layer_norm",
    "output.projection": "lm_head",
}
_ATTENTION = {
    "attention.query": "layer.0.SelfAttention.q",
    "attention.key": "layer.0.SelfAttention.k",
    "attention.value": "layer.0.SelfAttention.v",
    "attention.output": "layer.0.SelfAttention.o",
    "attention_norm": "layer.0.layer_norm",
}
_ENCODER = _ATTENTION | {
    "feed_forward.up": "layer.1.DenseReluDense.wi",
    "feed_forward.down": "layer.1.DenseReluDense.wo",
    "feed_forward_norm": "layer.1.layer_norm",
}
_ENCODER_GATE = {
    "feed_forward.gate": "layer.1.DenseReluDense.wi_0",
    "feed_forward.up": "layer.1.DenseReluDense.wi_1",
}
_DECODER = _ATTENTION | {
    "cross_attention.query": "layer.1.EncDecAttention.q",
    "cross_attention.key": "layer.1.EncDecAttention.k",
    "cross_attention.value": "layer.1.EncDecAttention.v",
    "cross_attention.output": "layer.1.EncDecAttention.o",
    "cross_attention_norm": "layer.1.layer_norm",
    "feed_forward.up": "layer.2.DenseReluDense.wi",
    "feed_forward.down": "layer.2.DenseReluDense.wo",
    "feed_forward_norm": "layer.2.layer_norm",
}
_DECODER_GATE = {
    "feed_forward.gate": "layer.2.DenseReluDense.wi_0",
    "feed_forward.up": "layer.2.DenseReluDense.wi_1",
}

T5 = Family(
    name="T5",
    model_type="t5",
    architectures={"T5ForConditionalGeneration": _build},
    base=PRESETS["t5-small"].config,
    settings={
        "vocab_size": "vocab_size",
        "n_positions": "max_len",
        "d_model": "d_model",
        "num_heads": "n_heads",
        "d_kv": "d_head",
        "d_ff": "d_ff",
        "num_layers": "n_layers",
        "num_decoder_layers": "n_layers",
        "dropout_rate": "dropout",
        "layer_norm_epsilon": "norm_eps",
        "feed_forward_proj": "activation",
        "tie_word_embeddings": "tie_embeddings",
    },
    activations={"relu": "relu", "gated-gelu": "geglu_tanh", "gated-silu": "swiglu"},
    must_be={
        "is_causal": True,
        "is_encoder_decoder": True,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
    },
    reads=("scale_decoder_outputs", "dense_act_fn", "is_gated_act"),
    tensors=_ENDS | _in_blocks("encoder", _ENCODER) | _in_blocks("decoder", _DECODER),
    gated_tensors=_in_blocks("encoder", _ENCODER_GATE) | _in_blocks("decoder", _DECODER_GATE),
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    ignored=(  # old files have it; transformers does not read it either
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
    one_spelling=_one_spelling,
    more_fields=_more_fields,
    finish=_finish,
    more_settings=_more_settings,
)
