"""Read Hugging Face checkpoints, and write ours as such."""

import json
import logging
import warnings
from collections.abc import Collection
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from transformer_lib.core.checks import check_whole
from transformer_lib.core.files import read_object, whole_files
from transformer_lib.hugging_face.checkpoint_notes import notes_of, take_notes
from transformer_lib.hugging_face.config_json import (
    find_family,
    harmless_settings,
    read_config,
    write_settings,
)
from transformer_lib.hugging_face.family import Family, LazyTensors, Settings, is_copy
from transformer_lib.hugging_face.weight_layouts import SAME, Layout, Model
from transformer_lib.layers.feedforward import ACTIVATIONS
from transformer_lib.layers.quantized_linear import encode
from transformer_lib.models.language_models import VisionTransformer
from transformer_lib.models.lora import lora_layers
from transformer_lib.models.quantization import (
    QuantizedLayers,
    choose_layers,
    describe_quantized,
    make_room,
)
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer


class _OpenFile(Protocol):
    """What is used of an open file; safetensors says nothing of the types."""

    def keys(self) -> list[str]: ...
    def get_tensor(self, name: str) -> Tensor: ...


Places = dict[str, tuple[list[str], Layout]]  # our parameters that a tensor holds, and how

_LOGGER = logging.getLogger(__name__)
# All that is downloaded: other files may hold the same weights in another precision.
_SHARDS = "model-*-of-*.safetensors"
_GENERATION = "generation_config.json"
_DOWNLOADED = ("config.json", _GENERATION, "model.safetensors", _SHARDS)
_TOKENIZER = "tokenizer.json"
_WITH_TOKENIZER = (
    _TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
_INDEX = "model.safetensors.index.json"  # which shard holds a tensor


class Pretrained(NamedTuple):
    """What a checkpoint holds: ``model, tokenizer = load_pretrained(...)``.

    Args:
        model: the model, in evaluation mode.
        tokenizer: what it was trained with; ``None`` if the files hold none, or if it is not asked
            for, or if it is a ViT.

    Example:
        >>> Pretrained._fields
        ('model', 'tokenizer')
    """

    model: Model
    tokenizer: PretrainedTokenizer | None


def load_pretrained(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    revision: str | None = None,
    with_tokenizer: bool = True,
    ignore: Collection[str] = (),
    bits: int | None = None,
    group: int | None = 64,
) -> Pretrained:
    """Read a Hugging Face checkpoint of one of the families that our models can follow.

    These are BERT, GPT-2, LLaMA (also SmolLM 1 and 2), SmolLM3, Mistral, Mixtral, Qwen 2 and 3,
    Qwen 3 MoE, Gemma 1, 2 and 3 (text), OLMo 2, Phi-3 and 4 (without scaling of RoPE), T5 and ViT.

    Only safetensors files are read: a pickle can run any code when it is opened. Settings that our
    models cannot follow, and tensors that are missing, unknown or of another shape are errors. A
    key of ``config.json`` that ``transformers`` does not read for such a model is harmless.

    Args:
        name: a folder with ``config.json`` and ``model.safetensors`` (or its shards), or else, if
            there is no folder of that name, a name on the hub such as ``"openai-community/gpt2"``,
            which is downloaded.
        dtype: the floating-point type the weights are converted to.
        device: where the model is put.
        revision: for a name on the hub the branch, tag or commit; the newest if left out, so what
            is read may change. The commit that was read is logged as information.
        with_tokenizer: whether to read the tokenizer too, if there is one.
        ignore: keys of ``config.json`` that are read as if they were not there, such as one that
            is refused. Each is warned of: without it, the model may compute something else.
        bits: 8 or 4 to quantise the layers in blocks, each as soon as it is read: as
            :func:`~transformer_lib.models.quantization.quantize` would, without room for the model.
        group: if they are quantised, how many neighbours in a row of weights share a scale; a whole
            row if ``None``.

    Returns:
        One of our models in evaluation mode, and its tokenizer. BERT becomes a ``MaskedLM``, a
        ``SequenceClassifier`` (without classes if the file is the bare model) or, if it has no
        pooler, an ``Encoder``; T5 a ``Seq2SeqLM``, ViT a ``VisionTransformer``, and all others a
        ``CausalLM``.

    Raises:
        ImportError: if a name on the hub is given and ``huggingface_hub`` is not installed, or if
            the tokenizer needs ``regex``.
        OSError: if it cannot be downloaded.
        TypeError: if ``ignore`` is a string.
        ValueError: if the checkpoint is damaged or is not one of these, if a folder is given and
            a revision, if a key to ignore is not there, or if a layer cannot be quantised so.

    Example:
        >>> import tempfile
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(
        ...     vocab_size=100,
        ...     d_model=8,
        ...     n_heads=2,
        ...     n_layers=2,
        ...     position="rope",
        ...     bias=False,
        ...     norm="rms",
        ...     norm_position="pre",
        ...     activation="swiglu",
        ...     scale_embeddings=False,
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_pretrained(CausalLM(config), folder)
        ...     model, tokenizer = load_pretrained(folder)
        >>> model(torch.tensor([[5, 7, 9]])).shape
        torch.Size([1, 3, 100])
    """
    if not dtype.is_floating_point:
        raise ValueError(f"dtype={dtype} must be a floating-point type")
    folder = _find_folder(name, revision)
    settings = _without(ignore, read_object(folder / "config.json"))
    family, architecture = find_family(settings)
    settings = family.one_spelling(settings)
    tensors = _open_tensors(folder, family)
    config = read_config(family, settings)
    with torch.device("meta"):  # no memory and no time for weights that are replaced anyway
        model = family.architectures[architecture](config, settings, tensors)
    places = _places(model, family)
    _check_names(places, tensors, family, f"{architecture} in {folder}")
    quantized = {} if bits is None else choose_layers(model, bits, group)
    parameters = _read_parameters(model, places, tensors, dtype, torch.device(device), quantized)
    if quantized:
        make_room(model, quantized)
    model.load_state_dict(parameters, assign=True)
    generation = folder / _GENERATION
    take_notes(
        model, settings, harmless_settings(family, settings),
        read_object(generation) if generation.is_file() else None,
    )  # fmt: skip
    tokenizer = None
    reads_text = not isinstance(model, VisionTransformer)
    if with_tokenizer and reads_text and (folder / _TOKENIZER).is_file():
        tokenizer = PretrainedTokenizer.from_folder(folder)
    return Pretrained(model.eval(), tokenizer)


def save_pretrained(
    model: Model,
    folder: str | Path,
    *,
    tokenizer: PretrainedTokenizer | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Write a model as a Hugging Face checkpoint, which ``transformers`` can load.

    The kind of checkpoint follows from the model: :func:`load_pretrained` says which belong
    together. A model that was read from a checkpoint stays of its family, and keeps what the files
    said beside it: the ids that begin and end a text, the start of a decoder, the names of classes,
    how text is generated. Dropout is written where the format has a place for it.

    Args:
        model: one of our models whose choices are those of a family.
        folder: where ``config.json`` and ``model.safetensors`` are written; made if need be.
        tokenizer: written beside it, with its chat template. Of a model that was not read from a
            checkpoint, it says how a text begins and ends.
        shard_bytes: weights that take more are cut into several files.

    Raises:
        ValueError: if no family has models like this one; it says which choice or part differs. Or
            if the model is quantised, which only ``save_model`` can write, or has adapters (LoRA),
            which have a format of their own. Or if the tokenizer has more tokens than the model, or
            cannot be written.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> model = CausalLM(TransformerConfig(d_model=8, n_heads=2))
        >>> save_pretrained(model, "unused")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: no family of checkpoints has a CausalLM with position=...
    """
    if lora_layers(model):
        raise ValueError(
            "model has adapters, for which a checkpoint has no place; call merge_lora first, or "
            "write the adapters alone with save_peft"
        )
    check_whole("shard_bytes", shard_bytes)
    if tokenizer is not None and tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens; expected "
            f"vocab_size={model.config.vocab_size}, those of the model, at most"
        )
    if describe_quantized(model):
        raise ValueError("model is quantised, which a checkpoint cannot say; call save_model")
    settings = write_settings(model, tokenizer)
    family, architecture = find_family(settings)
    ours, tensors = model.state_dict(), {}
    for name, (names, layout) in _places(model, family).items():
        parts = [ours[part] for part in names]
        if layout is SAME and not all(torch.equal(parts[0], part) for part in parts):
            raise ValueError(f"{' and '.join(names)} differ; {architecture} has one {name}")
        stored = layout.write(parts, model).contiguous()
        tensors[family.full_name(name, architecture)] = stored
    shards = _in_shards(tensors, shard_bytes)
    texts = {} if tokenizer is None else tokenizer.files()
    if len(shards) > 1:
        texts[_INDEX] = _as_json(_index(shards))
    if (generation := notes_of(model).generation) is not None:
        texts[_GENERATION] = _as_json(generation)
    texts["config.json"] = _as_json(settings)  # without which nothing else is read
    folder = Path(folder)
    with whole_files(folder, *shards, *texts) as places:
        for shard, place in zip(shards.values(), places, strict=False):
            save_file(shard, place, metadata={"format": "pt"})
        for text, place in zip(texts.values(), places[len(shards) :], strict=True):
            place.write_bytes(text)
        for old in (folder / "model.safetensors", folder / _INDEX, *folder.glob(_SHARDS)):
            if old.name not in shards and old.name not in texts:
                old.unlink(missing_ok=True)  # else it might be read with the new ones


def _as_json(content: Settings) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def _in_shards(tensors: dict[str, Tensor], largest: int) -> dict[str, dict[str, Tensor]]:
    """Cut weights into files of so many bytes at most; a larger tensor has one of its own."""
    shards: list[dict[str, Tensor]] = [{}]
    room = largest
    for name, tensor in tensors.items():
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = largest
        shards[-1][name] = tensor
        room -= tensor.nbytes
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    n = len(shards)
    return {f"model-{i:05}-of-{n:05}.safetensors": shard for i, shard in enumerate(shards, 1)}


def _index(shards: dict[str, dict[str, Tensor]]) -> Settings:
    """Say which file holds which tensor."""
    return {
        "metadata": {"total_size": sum(t.nbytes for one in shards.values() for t in one.values())},
        "weight_map": {name: file for file, shard in shards.items() for name in shard},
    }


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
        wanted = [*_DOWNLOADED, _INDEX, *_WITH_TOKENIZER]
        folder = Path(snapshot_download(str(name), revision=revision, allow_patterns=wanted))
    except (OSError, ValueError) as error:
        raise OSError(
            f"there is no folder {str(name)!r}, and the hub could not deliver it: {error}"
        ) from error
    _LOGGER.info("%s was loaded with revision=%r", name, folder.name)  # the folder of a commit
    return folder


def _without(ignore: Collection[str], settings: Settings) -> Settings:
    """Leave out the keys that the caller does not want to be read."""
    if isinstance(ignore, str):
        raise TypeError(f"{ignore=} must be a collection of keys, such as [{ignore!r}]")
    for key in ignore:
        if key not in settings:
            raise ValueError(f"ignore holds {key!r}, which config.json does not have")
        warnings.warn(
            f"config.json has {key}={settings[key]!r}, which is ignored as asked for: "
            "the model may compute something else than it was trained to",
            stacklevel=3,
        )
    return {key: value for key, value in settings.items() if key not in ignore}


def _open_tensors(folder: Path, family: Family) -> LazyTensors:
    """Open the files with the weights; the tensors go by the names of the tables."""
    files = ["model.safetensors"]
    if not (folder / files[0]).is_file() and (folder / _INDEX).is_file():
        files = _read_index(folder / _INDEX)
    elif not (folder / files[0]).is_file():
        pickles = ", ".join(sorted(path.name for path in folder.glob("*.bin")))
        only = f", only {pickles}: a pickle can run any code when it is opened" if pickles else ""
        raise ValueError(f"{folder} has no model.safetensors{only}")
    tensors: LazyTensors = {}
    for file in files:
        try:
            opened: _OpenFile = safe_open(folder / file, framework="pt")
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
    listed = read_object(path).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise ValueError(f"{path} has no weight_map that says which file each tensor is in")
    for file in listed.values():
        plain = isinstance(file, str) and Path(file).name == file
        if not plain or Path(file).suffix != ".safetensors":
            raise ValueError(
                f"{path} names {file!r}; expected the plain name of a .safetensors file beside it"
            )
    return sorted(set(listed.values()))


def _places(model: Model, family: Family) -> Places:
    """List the tensors that a file must have, and where each belongs."""
    _, gated = ACTIVATIONS[model.config.activation]
    places: Places = {}
    known_as: dict[int, str] = {}  # a tied parameter goes by the first of its names
    for name, parameter in model.state_dict(keep_vars=True).items():
        found = family.place(known_as.setdefault(id(parameter), name), gated=gated)
        if found is None:
            raise ValueError(f"{family.name} has no tensor for {name}")
        theirs, layout = found
        places.setdefault(theirs, ([], layout))[0].append(name)
    return places


def _check_names(places: Places, tensors: LazyTensors, family: Family, whose: str) -> None:
    """Raise an error if tensors are missing or unknown; drop those that repeat another one."""
    for name, original in family.copies.items():
        if name in tensors and name not in places:
            if not is_copy(tensors, name, original):
                raise ValueError(f"{whose}: {name} differs from {original}, which it should repeat")
            copy = tensors.pop(name)
            tensors.setdefault(original, copy)  # some files have kept the other of the two
    unknown = [name for name in tensors if name not in places and not family.ignores(name)]
    missing = [name for name in places if name not in tensors]
    for kind, names in (("unknown", unknown), ("missing", missing)):
        if names:
            some = ", ".join(names[:3]) + (", ..." if names[3:] else "")
            raise ValueError(f"{whose}: {len(names)} {kind} tensors: {some}")


def _read_parameters(
    model: Model,
    places: Places,
    tensors: LazyTensors,
    dtype: torch.dtype,
    device: torch.device,
    quantized: QuantizedLayers,
) -> dict[str, Tensor]:
    """Read every tensor, check its shape, and cut it into parameters; tied ones are one object."""
    ours = model.state_dict()
    parameters: dict[str, Tensor] = {}
    for name, (names, layout) in places.items():
        tensor = tensors[name]()
        shape = layout.write([ours[part] for part in names], model).shape
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {tuple(shape)}")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has dtype {tensor.dtype}; expected a floating-point type")
        # A copy, because the tensors of safetensors change when their file does.
        pieces = [
            nn.Parameter(piece.to(device, dtype, copy=True, memory_format=torch.contiguous_format))
            for piece in layout.read(tensor, ours[names[0]].shape)
        ]
        for our_name, piece in zip(names, cycle(pieces), strict=False):
            layer, _, last = our_name.rpartition(".")
            if last == "weight" and layer in quantized:
                codes, scale = encode(piece.detach(), **quantized[layer])
                parameters |= {f"{layer}.codes": codes, f"{layer}.scale": scale}
            else:
                parameters[our_name] = piece
    return parameters
