"""Read Hugging Face checkpoints, and write ours as such."""

import json
import logging
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from transformer_lib import encoder_decoder, models
from transformer_lib.checks import check_choice, check_whole
from transformer_lib.config import TransformerConfig
from transformer_lib.feedforward import ACTIVATIONS
from transformer_lib.hugging_face import FAMILIES, LAYOUTS, TABLES, Family, Model, Transform
from transformer_lib.saving import whole_files, why_missing

Settings = dict[str, Any]  # the content of config.json
Tensors = dict[str, Callable[[], Tensor]]  # what a file has; each is read when it is called
Places = dict[str, tuple[list[str], Transform]]  # our parameters that a tensor holds, and how

_LOGGER = logging.getLogger(__name__)
# All that is downloaded: other files may hold the same weights in another precision.
_DOWNLOADED = ("config.json", "model.safetensors", "model-*-of-*.safetensors")
_INDEX = "model.safetensors.index.json"  # which shard holds a tensor
_SAYS_NOTHING: tuple[object, ...] = (False, {}, [], "")  # as values of a key, and 0 too
_T5_INNER = {"relu": "relu", "geglu_tanh": "gelu_new", "swiglu": "silu"}  # its dense_act_fn

_IGNORED = re.compile("|".join(TABLES["ignored"]))  # tensors that no model needs
_HEADS = ("cls.", "classifier.", "lm_head.")  # these tensors never have the family's prefix

# Our fields that may differ after writing and reading: rope_pairing is converted, and the others
# matter only in training or are not used.
_FREE = {"init", "dropout", "attention_dropout", "rope_pairing", "active_experts"}
_FREE_WITHOUT_TEXT = {"vocab_size", "scale_embeddings", "norm_embeddings", "n_segments"}
_FREE_WITHOUT_OUTPUT = {"tie_embeddings", "logit_scale"}


def load_pretrained(
    name: str | Path, *, dtype: torch.dtype = torch.float32, revision: str | None = None
) -> Model:
    """Read a Hugging Face checkpoint of the BERT, GPT-2, LLaMA, T5 or ViT family.

    Only safetensors files are read: a pickle can run any code when it is opened. Settings that are
    unknown or that our models cannot follow, and tensors that are missing, unknown or of another
    shape are errors.

    Args:
        name: a folder with ``config.json`` and ``model.safetensors`` (or its shards), or else, if
            there is no folder of that name, a name on the hub such as ``"openai-community/gpt2"``,
            which is downloaded.
        dtype: the floating-point type the weights are converted to.
        revision: for a name on the hub the branch, tag or commit; the newest if left out, so what
            is read may change. The commit that was read is logged as information.

    Returns:
        One of our models in evaluation mode. BERT becomes a ``MaskedLM``, a ``SequenceClassifier``
        (without classes if the file is the bare model) or, if it has no pooler, an ``Encoder``;
        GPT-2 and LLaMA a ``CausalLM``, T5 a ``Seq2SeqLM``, ViT a ``VisionTransformer``.

    Raises:
        ImportError: if a name on the hub is given and ``huggingface_hub`` is not installed.
        OSError: if it cannot be downloaded.
        ValueError: if the checkpoint is damaged or is not one of these, or if a folder is given and
            a revision.

    Example:
        >>> import tempfile
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=8, n_heads=2, n_layers=2, position="rope", bias=False,
        ...     norm="rms", norm_position="pre", activation="swiglu", scale_embeddings=False,
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_pretrained(models.CausalLM(config), folder)
        ...     model = load_pretrained(folder)
        >>> model(torch.tensor([[5, 7, 9]])).shape
        torch.Size([1, 3, 100])
    """
    if not dtype.is_floating_point:
        raise ValueError(f"dtype={dtype} must be a floating-point type")
    folder = _find_folder(name, revision)
    settings = _one_spelling(_read_json(folder / "config.json"))
    family = FAMILIES[settings["model_type"]]
    tensors = _open_tensors(folder, family)
    if settings["model_type"] == "t5":  # transformers 5 says tied always, and looks here instead
        settings["tie_word_embeddings"] = _is_copy(tensors, "lm_head.weight", "shared.weight")
    with torch.device("meta"):  # no memory and no time for weights that are replaced anyway
        model = _build(settings, has_pooler="pooler.dense.weight" in tensors)
    places = _places(model, family)
    _check_names(places, tensors, family, f"{settings['architectures'][0]} in {folder}")
    model.load_state_dict(_read_parameters(model, places, tensors, dtype), assign=True)
    return model.eval()


def save_pretrained(model: Model, folder: str | Path) -> None:
    """Write a model as a Hugging Face checkpoint, which ``transformers`` can load.

    The kind of checkpoint follows from the model: :func:`load_pretrained` says which belong
    together. Dropout is written where the format has a place for it.

    Args:
        model: one of our models whose choices are those of a family.
        folder: where ``config.json`` and ``model.safetensors`` are written; made if need be.

    Raises:
        ValueError: if no family has models like this one; it says which choice differs.

    Example:
        >>> save_pretrained(models.CausalLM(TransformerConfig(d_model=8, n_heads=2)), "unused")
        Traceback (most recent call last):
        ValueError: no family of checkpoints has a CausalLM with position='sinusoidal'
    """
    architecture = _architecture(model)
    settings = _write_settings(model, architecture)
    family = FAMILIES[settings["model_type"]]
    prefix = "" if architecture == "BertModel" else family.prefix
    ours, tensors = model.state_dict(), {}
    for name, (names, transform) in _places(model, family).items():
        parts = [ours[part] for part in names]
        if transform is LAYOUTS["same"] and not all(torch.equal(parts[0], part) for part in parts):
            raise ValueError(f"{' and '.join(names)} differ; {architecture} has one {name}")
        full_name = name if name.startswith(_HEADS) else prefix + name
        tensors[full_name] = transform.write(parts, model).contiguous()
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    with whole_files(Path(folder), "model.safetensors", "config.json") as (weights, config):
        save_file(tensors, weights, metadata={"format": "pt"})
        config.write_bytes(text.encode())


def _find_folder(name: str | Path, revision: str | None) -> Path:
    """Return the folder of that name, or download it from the hub."""
    if Path(name).is_dir():
        if revision is not None:
            raise ValueError(f"{revision=} is for names on the hub; {str(name)!r} is a folder")
        return Path(name)
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  (an optional extra)
    except ImportError:
        raise ImportError(
            f"there is no folder {str(name)!r}; to look for it on the hub, install huggingface_hub"
        ) from None
    try:
        wanted = [*_DOWNLOADED, _INDEX]
        folder = Path(snapshot_download(str(name), revision=revision, allow_patterns=wanted))
    except (OSError, ValueError) as error:
        raise OSError(
            f"there is no folder {str(name)!r}, and the hub could not deliver it: {error}"
        ) from error
    _LOGGER.info("%s was loaded with revision=%r", name, folder.name)  # the folder of a commit
    return folder


def _read_json(path: Path) -> Settings:
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}{why_missing(path)}")
    try:
        content: Settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("expected an object")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return content


def _open_tensors(folder: Path, family: Family) -> Tensors:
    """Open the files with the weights; the tensors go by the names of the tables."""
    files = ["model.safetensors"]
    if not (folder / files[0]).is_file() and (folder / _INDEX).is_file():
        files = _read_index(folder / _INDEX)
    elif not (folder / files[0]).is_file():
        pickles = ", ".join(sorted(path.name for path in folder.glob("*.bin")))
        only = f", only {pickles}: a pickle can run any code when it is opened" if pickles else ""
        raise ValueError(f"{folder} has no model.safetensors{only}")
    tensors: Tensors = {}
    for file in files:
        try:
            opened: Any = safe_open(folder / file, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{folder / file} is missing or damaged: {error}") from None
        for name in list(opened.keys()):
            plain_name = family.plain_name(name)
            if plain_name in tensors:
                raise ValueError(f"{folder} has the tensor {plain_name} twice")
            tensors[plain_name] = partial(opened.get_tensor, name)
    return tensors


def _read_index(path: Path) -> list[str]:
    """Return the names of the files that an index lists; they must lie beside it.

    What a file in the folder links to is not looked at: the hub's own folders are full of links.
    """
    listed = _read_json(path).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise ValueError(f"{path} has no weight_map that says which file each tensor is in")
    for file in listed.values():
        plain = isinstance(file, str) and Path(file).name == file
        if not plain or Path(file).suffix != ".safetensors":
            raise ValueError(
                f"{path} names {file!r}; expected the plain name of a .safetensors file beside it"
            )
    return sorted(set(listed.values()))


def _one_spelling(settings: Settings) -> Settings:
    """Check which family it is, and bring the settings of all versions to one spelling."""
    check_choice("model_type", settings.get("model_type"), tuple(FAMILIES))
    known = FAMILIES[settings["model_type"]].architectures
    named = settings.get("architectures") or [None]
    check_choice("architectures", named[0], known)
    settings = dict(settings)
    match settings["model_type"]:
        case "llama":
            rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
            kind = rope.get("rope_type", rope.get("type", "default"))
            default = kind == "default" and rope.keys() <= {"rope_type", "type", "rope_theta"}
            settings["rope_scaling"] = None if default else rope
            settings["rope_theta"] = rope.get("rope_theta", settings.get("rope_theta"))
        case "t5":
            tied = settings.get("tie_word_embeddings", True)
            settings = {"scale_decoder_outputs": tied} | settings
        case "vit":
            settings = {"image_size": 224, "patch_size": 16, "num_channels": 3} | settings
            for key in ("image_size", "patch_size"):
                check_whole(key, settings[key])  # transformers also knows pairs
    return settings


def _read_config(settings: Settings) -> TransformerConfig:
    """Turn the settings of ``config.json`` into ours; raise an error if one has no counterpart."""
    family, kind = FAMILIES[settings["model_type"]], settings["model_type"]
    for key, value in settings.items():
        if value is None:  # as if it were not there
            continue
        if key in family.must_be:
            _expect(key, value, family.must_be[key])
        elif key not in family.known and value not in _SAYS_NOTHING:
            raise ValueError(
                f"config.json has {key}={value!r}, which is not known for {family.column}; "
                "expected no such key, or null"
            )
    given = []
    for ours, key in family.settings:
        value = settings.get(key)
        if ours == "activation" and value is not None:
            check_choice(key, value, tuple(family.activations))
            value = family.activations[value]
        if value is not None:  # null: what follows from the others
            given.append((ours, key, value))
    names = {field.name for field in fields(TransformerConfig)}
    values = {ours: value for ours, _, value in reversed(given) if ours in names}
    if kind == "vit":
        values["max_len"] = (settings["image_size"] // settings["patch_size"]) ** 2 + 1
    config = replace(family.base, **values)
    if kind == "t5":
        _expect("dense_act_fn", settings.get("dense_act_fn"), None, _T5_INNER[config.activation])
        gated = ACTIVATIONS[config.activation][1]
        _expect("is_gated_act", settings.get("is_gated_act"), None, gated)
        scaled = settings["scale_decoder_outputs"]
        config = replace(config, logit_scale=config.d_model**-0.5 if scaled else 1.0)
    for ours, key, value in given:  # two keys for one field, or for what follows from others
        _expect(key, value, getattr(config, ours))
    return config


def _expect(key: str, value: object, *allowed: object) -> None:
    if value not in allowed:
        raise ValueError(f"config.json has {key}={value!r}; our models need {allowed[-1]!r} here")


def _build(settings: Settings, *, has_pooler: bool) -> Model:
    """Make the model of ours that an architecture of ``transformers`` corresponds to."""
    config = _read_config(settings)
    n_classes = len(settings.get("id2label") or ()) or settings.get("num_labels", 2)
    match settings["architectures"][0]:
        case "BertModel" if not has_pooler:
            return encoder_decoder.Encoder(config)
        case "BertModel":
            return models.SequenceClassifier(config, n_classes=0)
        case "BertForMaskedLM":
            _expect("tie_word_embeddings", config.tie_embeddings, True)
            return models.MaskedLM(config)
        case "BertForSequenceClassification":
            return models.SequenceClassifier(config, n_classes)
        case "T5ForConditionalGeneration":
            return models.Seq2SeqLM(config)
        case "ViTForImageClassification":
            sizes = settings["image_size"], settings["patch_size"], settings["num_channels"]
            return models.VisionTransformer(config, *sizes, n_classes)
    return models.CausalLM(config)


def _architecture(model: nn.Module) -> str:
    """Return the architecture of ``transformers`` that a model of ours corresponds to."""
    kind = type(model).__name__
    if isinstance(model, models.CausalLM):
        kind += f" with position={model.config.position!r}"
    elif isinstance(model, models.SequenceClassifier):
        kind += " with pooling='mean'" if model.pooler is None else ""
        kind += " without classes" if model.classifier is None else ""
    if kind not in TABLES["written_as"]:
        raise ValueError(f"no family of checkpoints has a {kind}")
    architecture: str = TABLES["written_as"][kind]
    return architecture


def _write_settings(model: Model, architecture: str) -> Settings:
    """Turn our configuration into ``config.json``; raise an error if a choice would be lost."""
    kind = next(kind for kind, family in FAMILIES.items() if architecture in family.architectures)
    config = _spelled_out(model.config)
    activations = {ours: name for name, ours in reversed(FAMILIES[kind].activations.items())}
    check_choice("activation", config.activation, tuple(activations))
    settings = {
        key: activations[config.activation] if ours == "activation" else getattr(config, ours)
        for ours, key in FAMILIES[kind].settings
    }
    settings |= {"architectures": [architecture], "model_type": kind}
    if kind == "t5":
        settings["scale_decoder_outputs"] = config.logit_scale != 1.0
    if isinstance(model, models.VisionTransformer):
        patches = model.patches
        settings |= {"image_size": patches.image_size, "patch_size": patches.patch_size}
        settings["num_channels"] = patches.n_channels
    classifier = getattr(model, "classifier", None)
    if classifier is not None:
        settings["num_labels"] = classifier.out_features
    written = _spelled_out(_read_config(_one_spelling(settings)))
    for name in _fields_that_matter(model):
        ours, theirs = getattr(config, name), getattr(written, name)
        if ours != theirs:
            raise ValueError(f"{name}={ours!r} cannot be written: {architecture} has {theirs!r}")
    return settings


def _fields_that_matter(model: Model) -> list[str]:
    free = _FREE if model.config.position == "rope" else _FREE | {"rope_theta"}
    if isinstance(model, models.VisionTransformer):
        free = free | _FREE_WITHOUT_TEXT
    if not hasattr(model, "output"):
        free = free | _FREE_WITHOUT_OUTPUT
    return [field.name for field in fields(model.config) if field.name not in free]


def _spelled_out(config: TransformerConfig) -> TransformerConfig:
    return replace(config, d_ff=config.ffn_width, n_kv_heads=config.kv_heads)


def _places(model: Model, family: Family) -> Places:
    """List the tensors that a file must have, and where each belongs."""
    _, gated = ACTIVATIONS[model.config.activation]
    places: Places = {}
    known_as: dict[int, str] = {}  # a tied parameter goes by the first of its names
    for name, parameter in model.state_dict(keep_vars=True).items():
        found = family.place(known_as.setdefault(id(parameter), name), gated=gated)
        if found is None:
            raise ValueError(f"{family.column} has no tensor for {name}")
        theirs, transform = found
        places.setdefault(theirs, ([], transform))[0].append(name)
    return places


def _is_copy(tensors: Tensors, name: str, original: str) -> bool:
    """Whether a tensor that may repeat another one is left out, or does repeat it."""
    if name not in tensors or original not in tensors:
        return True
    return torch.equal(tensors[name](), tensors[original]())


def _check_names(places: Places, tensors: Tensors, family: Family, whose: str) -> None:
    """Raise an error if tensors are missing or unknown; drop those that repeat another one."""
    for name, original in family.copies.items():
        if name in tensors and name not in places:
            if not _is_copy(tensors, name, original):
                raise ValueError(f"{whose}: {name} differs from {original}, which it should repeat")
            copy = tensors.pop(name)
            tensors.setdefault(original, copy)  # some files have kept the other of the two
    unknown = [name for name in tensors if name not in places and not _IGNORED.fullmatch(name)]
    missing = [name for name in places if name not in tensors]
    for kind, names in (("unknown", unknown), ("missing", missing)):
        if names:
            some = ", ".join(names[:3]) + (", ..." if names[3:] else "")
            raise ValueError(f"{whose}: {len(names)} {kind} tensors: {some}")


def _read_parameters(
    model: Model, places: Places, tensors: Tensors, dtype: torch.dtype
) -> dict[str, nn.Parameter]:
    """Read every tensor, check its shape, and cut it into parameters; tied ones are one object."""
    ours = model.state_dict()
    parameters: dict[str, nn.Parameter] = {}
    for name, (names, transform) in places.items():
        tensor = tensors[name]()
        shape = transform.write([ours[part] for part in names], model).shape
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {tuple(shape)}")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has dtype {tensor.dtype}; expected a floating-point type")
        # A copy, because the tensors of safetensors change when their file does.
        pieces = [
            nn.Parameter(piece.to(dtype, copy=True, memory_format=torch.contiguous_format))
            for piece in transform.read(tensor, ours[names[0]].shape)
        ]
        parameters.update(zip(names, cycle(pieces), strict=False))
    return parameters
