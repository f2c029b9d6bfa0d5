"""BERT: an encoder, bare, or with a head for masked words or for classes."""

from transformer_lib.core.config import TransformerConfig
from transformer_lib.hugging_face.family import (
    ACTIVATION_NAMES,
    Family,
    LazyTensors,
    Settings,
    check_setting,
    count_classes,
)
from transformer_lib.models.encoder_decoder import Encoder
from transformer_lib.models.language_models import MaskedLM, SequenceClassifier
from transformer_lib.models.presets import PRESETS


def _bare(
    config: TransformerConfig, settings: Settings, tensors: LazyTensors
) -> Encoder | SequenceClassifier:
    if "pooler.dense.weight" in tensors:
        return SequenceClassifier(config, n_classes=0)
    return Encoder(config)


def _masked(config: TransformerConfig, settings: Settings, tensors: LazyTensors) -> MaskedLM:
    check_setting("tie_word_embeddings", config.tie_embeddings, True)
    return MaskedLM(config)


def _classifier(
    config: TransformerConfig, settings: Settings, tensors: LazyTensors
) -> SequenceClassifier:
    return SequenceClassifier(config, count_classes(settings))


BERT = Family(
    name="BERT",
    model_type="bert",
    architectures={
        "BertModel": _bare,
        "BertForMaskedLM": _masked,
        "BertForSequenceClassification": _classifier,
    },
    base=PRESETS["bert-base"].config,
    settings={
        "vocab_size": "vocab_size",
        "max_position_embeddings": "max_len",
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "n_layers",
        "hidden_dropout_prob": "dropout",
        "classifier_dropout": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_eps",
        "hidden_act": "activation",
        "type_vocab_size": "n_segments",
        "tie_word_embeddings": "tie_embeddings",
    },
    activations=ACTIVATION_NAMES,
    must_be={"is_causal": False, "position_embedding_type": "absolute"},
    tensors={
        "embedding.tokens": "embeddings.word_embeddings",
        "embedding.positions.table": "embeddings.position_embeddings",
        "embedding.segments": "embeddings.token_type_embeddings",
        "embedding.norm": "embeddings.LayerNorm",
        "stack.blocks.N.attention.query": "encoder.layer.N.attention.self.query",
        "stack.blocks.N.attention.key": "encoder.layer.N.attention.self.key",
        "stack.blocks.N.attention.value": "encoder.layer.N.attention.self.value",
        "stack.blocks.N.attention.output": "encoder.layer.N.attention.output.dense",
        "stack.blocks.N.attention_norm": "encoder.layer.N.attention.output.LayerNorm",
        "stack.blocks.N.feed_forward.up": "encoder.layer.N.intermediate.dense",
        "stack.blocks.N.feed_forward.down": "encoder.layer.N.output.dense",
        "stack.blocks.N.feed_forward_norm": "encoder.layer.N.output.LayerNorm",
        "transform": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "output.projection.bias": "cls.predictions.bias",
        "pooler": "pooler.dense",
        "classifier": "classifier",
    },
    prefix="bert.",
    copies={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=(  # a constant, what a masked model leaves out, and the head for pairs of sentences
        r"embeddings\.position_ids",
        r"pooler\.dense\.\w+",
        r"cls\.seq_relationship\.\w+",
    ),
)
