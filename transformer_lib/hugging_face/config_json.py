"""From ``config.json`` to our configuration, and back."""

import warnings
from dataclasses import asdict, fields, replace

from torch import nn

from transformer_lib.core.checks import check_choice
from transformer_lib.core.config import TransformerConfig
from transformer_lib.hugging_face.checkpoint_notes import CheckpointNotes, ends_of, notes_of
from transformer_lib.hugging_face.family import Family, Settings, check_setting
from transformer_lib.hugging_face.family_list import FAMILIES
from transformer_lib.hugging_face.weight_layouts import Model
from transformer_lib.layers.build_parts import STANDARD_PARTS
from transformer_lib.models.language_models import CausalLM, SequenceClassifier, VisionTransformer
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer

# What transformers reads for every class, or what says that it is not the class alone that counts;
# a family that follows such a key names it among its own. All keys that stand neither here nor in
# the family are harmless: transformers does not look at them, as a test finds out.
_MUST_BE: Settings = {
    "add_cross_attention": False,
    "is_decoder": False,
    "attention_chunk_size": None,
    "auto_map": None,  # the model is made by code that comes with the checkpoint
    "decoder": None,
    "generator": None,
    "layer_types": None,
    "num_kv_shared_layers": None,
    "per_layer_config": None,
    "pruned_heads": None,
    "quantization_config": None,
    "sliding_window": None,
    "text_config": None,
}
_SAYS_NOTHING: tuple[object, ...] = (False, 0, {}, [], "")  # the same as null
_DROPOUTS = ("dropout", "attention_dropout")

_WRITTEN_AS = {  # the kind of checkpoint that a model of ours becomes
    "Encoder": "BertModel",
    "MaskedLM": "BertForMaskedLM",
    "SequenceClassifier": "BertForSequenceClassification",
    "SequenceClassifier without classes": "BertModel",
    "CausalLM with position='learned'": "GPT2LMHeadModel",
    "CausalLM with position='rope'": "LlamaForCausalLM",  # or another that can say what it is
    "CausalLM with position='rope' and experts": "MixtralForCausalLM",  # the same
    "Seq2SeqLM": "T5ForConditionalGeneration",
    "VisionTransformer": "ViTForImageClassification",
}

# Our fields that may differ after writing and reading: rope_pairing is converted, and the others
# matter only in training or are not used.
_MAY_DIFFER = {"init", "dropout", "attention_dropout", "rope_pairing", "active_experts"}
_MAY_DIFFER_WITHOUT_TEXT = {"vocab_size", "scale_embeddings", "norm_embeddings", "n_segments"}
_MAY_DIFFER_WITHOUT_OUTPUT = {"tie_embeddings", "logit_scale"}


def find_family(settings: Settings) -> tuple[Family, str]:
    """Say which family a checkpoint belongs to, and which of its architectures it has.

    Args:
        settings: the content of ``config.json``.

    Returns:
        The family, and the name of the class of ``transformers``.

    Raises:
        ValueError: if one of them is not known.

    Example:
        >>> family, _ = find_family(
        ...     {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
        ... )
        >>> family.name
        'GPT-2'
    """
    model_type, named = settings.get("model_type"), settings.get("architectures")
    check_choice("model_type", model_type, tuple(FAMILIES))
    family = FAMILIES[str(model_type)]
    architecture = named[0] if isinstance(named, list) and named else named
    check_choice("architectures", architecture, tuple(family.architectures))
    return family, str(architecture)


def harmless_settings(family: Family, settings: Settings) -> Settings:
    """Return the settings that change nothing of what a model computes.

    Args:
        family: the family of the checkpoint.
        settings: the content of ``config.json``, in the family's one spelling.

    Returns:
        What ``transformers`` does not read for such a model.

    Example:
        >>> harmless_settings(
        ...     FAMILIES["gpt2"], {"n_embd": 8, "summary_type": "mean"}
        ... )
        {'summary_type': 'mean'}
    """
    return {
        key: value
        for key, value in settings.items()
        if not family.looks_at(key) and key not in _MUST_BE
    }


def read_config(family: Family, settings: Settings) -> TransformerConfig:
    """Turn the settings of ``config.json`` into ours.

    Args:
        family: the family of the checkpoint.
        settings: the content of ``config.json``, in the family's one spelling.

    Returns:
        Our configuration.

    Raises:
        ValueError: if a setting has no counterpart, or two of them contradict each other.

    Example:
        >>> read_config(
        ...     FAMILIES["gpt2"], {"n_embd": 24, "n_head": 4, "n_inner": None}
        ... ).ffn_width
        96
    """
    _check_keys(family, settings)
    given = []
    for key, ours in family.settings.items():
        value = settings.get(key)
        if value is None:  # it follows from the others
            continue
        if ours == "activation":
            check_choice(key, value, tuple(family.activations))
            value = family.activations[str(value)]
        given.append((key, ours, value))
    values = asdict(family.base)
    values.update((ours, value) for _, ours, value in reversed(given) if ours in values)
    values.update(family.more_fields(settings))
    config = family.finish(TransformerConfig(**values), settings)
    for key, ours, value in given:  # two keys for one field, or one for what follows from others
        if ours in _DROPOUTS:
            _check_dropout(key, value, ours, getattr(config, ours))
        else:
            check_setting(key, value, getattr(config, ours))
    return config


def _check_dropout(key: str, value: object, ours: str, taken: float) -> None:
    """Warn if a file has several dropouts where our models have one: training alone differs."""
    if value != taken:
        warnings.warn(
            f"config.json has {key}={value!r} beside another dropout; our model has {ours}={taken} "
            "in both places, which matters in training alone",
            stacklevel=2,
        )


def _check_keys(family: Family, settings: Settings) -> None:
    """Raise an error if a key that counts has a value that our models cannot follow."""
    must_be = {**_MUST_BE, **family.must_be}
    for key in must_be.keys() - family.settings.keys() - set(family.reads):
        value, wanted = settings.get(key), must_be[key]
        if value is not None and not (wanted is None and value in _SAYS_NOTHING):
            try:
                check_setting(key, value, wanted)
            except ValueError as error:
                raise ValueError(f"{error}; ignore=[{key!r}] leaves it out") from None


def architecture_of(model: nn.Module) -> str:
    """Name the class of ``transformers`` that a model of ours corresponds to.

    Args:
        model: the model.

    Returns:
        The architecture that its ``config.json`` names.

    Raises:
        ValueError: if there is none.

    Example:
        >>> architecture_of(
        ...     CausalLM(
        ...         replace(FAMILIES["gpt2"].base, d_model=12, n_layers=1)
        ...     )
        ... )
        'GPT2LMHeadModel'
    """
    kind = type(model).__name__
    if isinstance(model, CausalLM):
        kind += f" with position={model.config.position!r}"
        if model.config.n_experts is not None and model.config.position == "rope":
            kind += " and experts"
    elif isinstance(model, SequenceClassifier):
        kind += " with pooling='mean'" if model.pooler is None else ""
        kind += " without classes" if model.classifier is None else ""
    if kind not in _WRITTEN_AS:
        raise ValueError(f"no family of checkpoints has a {kind}")
    return _WRITTEN_AS[kind]


def write_settings(model: Model, tokenizer: PretrainedTokenizer | None = None) -> Settings:
    """Turn our configuration into the content of ``config.json``.

    Args:
        model: the model.
        tokenizer: says what begins and ends a text, if the model does not know it from a file.

    Returns:
        The settings, ready for JSON.

    Raises:
        ValueError: if no family has such a model, or if a choice or a part would be lost.

    Example:
        >>> model = CausalLM(
        ...     replace(FAMILIES["gpt2"].base, d_model=12, n_layers=1)
        ... )
        >>> write_settings(model)["n_embd"]
        12
    """
    architecture, notes = architecture_of(model), notes_of(model)
    _check_parts(model)
    why_not = []
    for family, candidate in _candidates(architecture, notes.model_type):
        try:  # what a family cannot say is found in many places, each of which says why
            settings = _settings_of_family(model, family, candidate)
            return _notes_beside(settings, family, notes, tokenizer) | settings
        except ValueError as error:
            why_not.append(error)
    raise why_not[0]  # of the family that was asked for


def _notes_beside(
    settings: Settings,
    family: Family,
    notes: CheckpointNotes,
    tokenizer: PretrainedTokenizer | None,
) -> Settings:
    """What a checkpoint says beside the model's own settings."""
    beside = {} if notes.model_type else ends_of(tokenizer)
    beside |= harmless_settings(family, notes.settings)
    labels, n_classes = beside.get("id2label"), settings.get("num_labels")
    if isinstance(labels, dict) and n_classes == len(labels):
        del settings["num_labels"]  # the names say it
    elif n_classes is not None:
        beside = {key: beside[key] for key in beside if key not in ("id2label", "label2id")}
    return beside


def _candidates(architecture: str, model_type: str) -> list[tuple[Family, str]]:
    """The families that have all parts of an architecture, each with its own name for it.

    The family that a model was read as comes first, or else that of the architecture itself. Those
    that follow LLaMA have the same parts, and can say more.
    """
    first = next(f for f in FAMILIES.values() if architecture in f.architectures)
    others = [f for f in FAMILIES.values() if f.tensors.keys() >= first.tensors.keys()]
    alike = [(f, next(iter(f.architectures))) for f in others if f is not first]
    return sorted([(first, architecture), *alike], key=lambda one: one[0].model_type != model_type)


def _settings_of_family(model: Model, family: Family, architecture: str) -> Settings:
    """Turn our configuration into the settings of a family, if it can say all that matters."""
    config = _spelled_out(model.config)
    names = {ours: name for name, ours in reversed(family.activations.items())}
    check_choice("activation", config.activation, tuple(names))
    settings: Settings = {
        key: names[config.activation] if ours == "activation" else getattr(config, ours)
        for key, ours in family.settings.items()
    }
    settings |= {"architectures": [architecture], "model_type": family.model_type}
    settings |= family.more_settings(model)
    classifier = getattr(model, "classifier", None)
    if isinstance(classifier, nn.Linear):
        settings["num_labels"] = classifier.out_features
    written = _spelled_out(read_config(family, family.one_spelling(settings)))
    for name in _fields_that_matter(model):
        ours, theirs = getattr(config, name), getattr(written, name)
        if ours != theirs:
            raise ValueError(f"{name}={ours!r} cannot be written: {architecture} has {theirs!r}")
    return settings


def _check_parts(model: Model) -> None:
    """Raise an error if a part of the model is made by its owner: the format has no word for it."""
    parts = getattr(model, "parts", STANDARD_PARTS)
    for field in fields(STANDARD_PARTS):
        if getattr(parts, field.name) is not getattr(STANDARD_PARTS, field.name):
            raise ValueError(f"{field.name} of parts is not the library's: it cannot be written")


def _fields_that_matter(model: Model) -> list[str]:
    may_differ = _MAY_DIFFER if model.config.position == "rope" else _MAY_DIFFER | {"rope_theta"}
    if isinstance(model, VisionTransformer):
        may_differ = may_differ | _MAY_DIFFER_WITHOUT_TEXT
    if not hasattr(model, "output"):
        may_differ = may_differ | _MAY_DIFFER_WITHOUT_OUTPUT
    return [field.name for field in fields(model.config) if field.name not in may_differ]


def _spelled_out(config: TransformerConfig) -> TransformerConfig:
    bias = config.bias if config.qkv_bias is None else config.qkv_bias
    return replace(
        config,
        d_ff=config.ffn_width,
        n_kv_heads=config.kv_heads,
        head_width=config.d_head,
        qkv_bias=bias,
        attention_scale=config.attention_scale or config.d_head**-0.5,
        window_pattern="".join("GL"[config.is_local(n)] for n in range(config.n_layers)),
        rope_pattern="".join("NR"[config.has_rope(n)] for n in range(config.n_layers)),
    )
