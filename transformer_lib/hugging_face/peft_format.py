"""LoRA adapters in the format of ``peft``, read and written.

The format names layers as ``transformers`` does, and so does the family of the model. Where a file
has one matrix for several layers of ours (GPT-2's ``c_attn``), it has one adapter for them, too:
ours stand side by side in a wider one, or each of ours takes its rows of that one.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from transformer_lib.core.checks import check_number
from transformer_lib.core.files import read_object, whole_files, why_missing
from transformer_lib.hugging_face.config_json import find_family, write_settings
from transformer_lib.hugging_face.family import Family, Settings, check_setting
from transformer_lib.hugging_face.weight_layouts import (
    FUSED,
    JOINED_GATE,
    JOINED_QKV,
    ROTATED,
    SAME,
    TRANSPOSED,
    Layout,
    Model,
)
from transformer_lib.layers.feedforward import ACTIVATIONS
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.models.lora import LoraLinear, LoraSettings, lora_layers, lora_scale
from transformer_lib.models.lora_files import check_adapters_alone, put_adapters
from transformer_lib.models.saving import Tensors

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_BEFORE_NAMES = "base_model.model."  # what peft puts around a model
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_LAYOUTS = (SAME, ROTATED, TRANSPOSED, FUSED, JOINED_QKV, JOINED_GATE)
_STORED_TRANSPOSED = (TRANSPOSED, FUSED)
# Where other adapters begin. ``True`` and ``False`` are kept in the file; others change the base.
_STARTS = ("gaussian", False, None, True)
# Keys that change nothing of what the adapters compute, or that are read below. All others say that
# they are of a kind of their own, unless they say nothing.
_KNOWN = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "exclude_modules",
    "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core", "peft_type",
    "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "target_modules",
    "task_type",
}  # fmt: skip
_SAYS_NOTHING: tuple[object, ...] = ({}, [], False, None)


class _Place(NamedTuple):
    """A matrix of a file: which layers of ours it holds, in their order, and how."""

    layers: list[str]
    layout: Layout


def save_peft(model: Model, folder: str | Path, *, base: str | None = None) -> None:
    """Write the adapters of a model, without the model, as ``peft`` does.

    ``peft.PeftModel.from_pretrained(base, folder)`` reads them, where ``base`` is the checkpoint as
    ``transformers`` reads it.

    Args:
        model: a model with adapters, of a family of checkpoints.
        folder: where ``adapter_config.json`` and ``adapter_model.safetensors`` are written; made if
            need be.
        base: the name or the folder of the checkpoint, for whoever reads the adapters.

    Raises:
        ValueError: if the model has no adapters, or trains something else too; if no family has
            such a model, or the format has no place for one of its adapters.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> model = CausalLM(TransformerConfig(d_model=8, n_heads=2))
        >>> save_peft(model, "unused")
        Traceback (most recent call last):
        ValueError: model has no adapters; expected one that add_lora gave some
    """
    check_adapters_alone(model)
    places = _places(model, *find_family(write_settings(model)))
    adapted, tensors, scales = lora_layers(model), Tensors(), {}
    for module, place in places.items():
        own = [adapted.get(name) for name in place.layers]
        if any(own):
            down, up, scales[module] = _join(model, place, own)
            tensors[f"{_BEFORE_NAMES}{module}.lora_A.weight"] = down.contiguous()
            tensors[f"{_BEFORE_NAMES}{module}.lora_B.weight"] = up.contiguous()
    if lost := adapted.keys() - {name for place in places.values() for name in place.layers}:
        raise ValueError(f"{sorted(lost)[0]} has an adapter, for which the format has no place")
    settings = _settings(model, places, scales, tensors) | {"base_model_name_or_path": base}
    with whole_files(Path(folder), WEIGHTS, SETTINGS) as (weights, described):
        save_file(tensors, weights, metadata={"format": "pt"})
        described.write_bytes((json.dumps(settings, indent=2, sort_keys=True) + "\n").encode())


def load_peft(model: Model, folder: str | Path) -> None:
    """Give a model the adapters that ``peft`` or :func:`save_peft` has written, in place.

    Args:
        model: the model that they were trained beside, as
            :func:`~transformer_lib.hugging_face.pretrained.load_pretrained` reads it. What is no
            adapter is frozen.
        folder: where ``adapter_config.json`` and ``adapter_model.safetensors`` are.

    Raises:
        ValueError: if a file is missing or damaged, if the adapters are of a kind that ours cannot
            follow, or if they do not fit the model; it is then as it was.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> model = CausalLM(TransformerConfig(d_model=8, n_heads=2))
        >>> load_peft(model, "nowhere")
        Traceback (most recent call last):
        ValueError: nowhere has no adapter_config.json
    """
    folder = Path(folder)
    settings = read_object(folder / SETTINGS)
    _check_settings(settings)
    path = folder / WEIGHTS
    try:
        stored = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}{why_missing(path)}") from None
    family, architecture = find_family(write_settings(model))
    there = _places(model, family, architecture)
    places = {_plain(family, module): place for module, place in there.items()}
    adapters: dict[str, LoraSettings] = {}
    tensors = Tensors()
    for module, (down, up) in _pairs(stored, folder).items():
        place = places.get(_plain(family, module))
        if place is None:
            raise ValueError(
                f"{folder} does not fit the model: it has an adapter for {module}, which is no "
                f"linear layer of a {type(model).__name__} of {family.name}"
            )
        made = LoraSettings(rank=len(down), alpha=_alpha(settings, module), dropout=0.0)
        made["dropout"] = _number(settings, "lora_dropout", 0.0)
        for name, part in zip(place.layers, _split(model, place, up, folder), strict=True):
            adapters[name] = made
            tensors[f"{name}.down"], tensors[f"{name}.up"] = down, part
    put_adapters(model, adapters, tensors, str(folder))


def _places(model: Model, family: Family, architecture: str) -> dict[str, _Place]:
    """Which layers of ours each linear layer of ``transformers`` is, by its name there."""
    _, gated = ACTIVATIONS[model.config.activation]
    inside = tuple(f"{name}.base" for name in lora_layers(model))
    places: dict[str, _Place] = {}
    for name, part in model.named_modules():
        if not hasattr(part, "in_features") or name.startswith(inside or "-"):
            continue
        found = family.place(f"{name}.weight", gated=gated)
        if found is None or found[1] not in _LAYOUTS or ".experts." in name:
            continue  # transformers keeps experts in no layers of their own
        theirs, layout = found
        module = family.full_name(theirs, architecture).removesuffix(".weight")
        places.setdefault(module, _Place([], layout)).layers.append(name)
    return places


def _plain(family: Family, module: str) -> str:
    """A layer's name without the prefix of the family, which some files leave out."""
    return family.plain_name(f"{module}.weight").removesuffix(".weight")


def _join(
    model: Model, place: _Place, own: Sequence[LoraLinear | None]
) -> tuple[Tensor, Tensor, float]:
    """Lay adapters side by side, as one for the matrix that a file has for all their layers.

    Its ``down`` holds theirs one below the other; in its ``up``, each layer's rows have numbers in
    the columns of its own adapter alone. One scale holds for all: others are put into ``up``.
    """
    adapters = [adapter for adapter in own if adapter is not None]
    scale = lora_scale(adapters[0].alpha, adapters[0].rank)
    down = torch.cat([adapter.down.detach() for adapter in adapters])
    parts, column = [], 0
    for name, adapter in zip(place.layers, own, strict=True):
        part = down.new_zeros(_n_rows(model, name), len(down))
        if adapter is not None:
            factor = lora_scale(adapter.alpha, adapter.rank) / scale
            part[:, column : column + adapter.rank] = factor * adapter.up.detach()
            column += adapter.rank
        parts.append(part)
    up = place.layout.write(parts, model)
    return down, up.t() if place.layout in _STORED_TRANSPOSED else up, scale


def _split(model: Model, place: _Place, up: Tensor, folder: Path) -> Sequence[Tensor]:
    """Cut the ``up`` of a file's adapter into the rows of each layer of ours."""
    if place.layout in (ROTATED, JOINED_QKV) and model.config.rope_pairing != "split":
        raise ValueError(
            f"model has rope_pairing={model.config.rope_pairing!r}, and the adapters in {folder} "
            "are for 'split'; expected a model that load_pretrained has read"
        )
    sizes = [_n_rows(model, name) for name in place.layers]
    if len(up) != sum(sizes):
        whole = " and ".join(place.layers)
        raise ValueError(
            f"{folder} does not fit the model: its adapter for {whole} has {len(up)} rows; "
            f"expected {sum(sizes)}"
        )
    stored = up.t() if place.layout in _STORED_TRANSPOSED else up
    return place.layout.read(stored, (sizes[0], up.shape[1]))


def _n_rows(model: Model, name: str) -> int:
    n_rows = model.get_submodule(name).out_features
    assert isinstance(n_rows, int)  # as of all linear layers
    return n_rows


def _settings(
    model: Model, places: dict[str, _Place], scales: dict[str, float], tensors: Tensors
) -> Settings:
    """Say what ``peft`` must know of adapters."""
    ranks = {name: len(tensors[f"{_BEFORE_NAMES}{name}.lora_A.weight"]) for name in scales}
    alphas = {name: scales[name] * ranks[name] for name in scales}
    rank, alpha = (next(iter(numbers.values())) for numbers in (ranks, alphas))
    dropouts = {layer.settings["dropout"] for layer in lora_layers(model).values()}
    ends = {name.rpartition(".")[2] for name in scales}
    exact = all(name in scales or name.rpartition(".")[2] not in ends for name in places)
    tasks = {CausalLM: "CAUSAL_LM", Seq2SeqLM: "SEQ_2_SEQ_LM"}
    return {
        "peft_type": "LORA",
        "task_type": tasks.get(type(model)),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": max(dropouts),
        "target_modules": sorted(ends if exact else scales),
        "rank_pattern": {name: number for name, number in ranks.items() if number != rank},
        "alpha_pattern": {name: number for name, number in alphas.items() if number != alpha},
        "fan_in_fan_out": any(places[name].layout in _STORED_TRANSPOSED for name in scales),
        "bias": "none",
        "inference_mode": True,
    }


def _check_settings(settings: Settings) -> None:
    """Raise an error if adapters are of a kind that ours cannot follow."""
    check_setting("peft_type", settings.get("peft_type"), "LORA", file=SETTINGS)
    check_setting("bias", settings.get("bias", "none"), "none", file=SETTINGS)
    start = settings.get("init_lora_weights")
    check_setting("init_lora_weights", start, *_STARTS, file=SETTINGS)
    for key in settings.keys() - _KNOWN:
        check_setting(key, settings[key], *_SAYS_NOTHING, file=SETTINGS)


def _pairs(stored: Tensors, folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Sort the tensors of a file: for each layer its two matrices, ``down`` and ``up``."""
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in sorted(stored.items()):
        found = _TENSOR.fullmatch(name)
        if found is None or tensor.ndim != 2:
            raise ValueError(f"{folder}: {name} is no matrix of a linear layer's adapter")
        sides.setdefault(found[1], {})[found[2]] = tensor
    for module, own in sides.items():
        if len(own) != 2 or len(own["A"]) != own["B"].shape[1]:
            raise ValueError(f"{folder} has no two matrices of one rank for {module}")
    if not sides:
        raise ValueError(f"{folder} holds no adapter")
    return {module: (own["A"], own["B"]) for module, own in sides.items()}


def _alpha(settings: Settings, module: str) -> float:
    """The ``alpha`` of one layer, which may have its own."""
    own = settings.get("alpha_pattern")
    for end in own if isinstance(own, dict) else {}:
        assert isinstance(own, dict)
        if re.search(r"[^\w.]", end):
            raise ValueError(f"{SETTINGS} has a pattern {end!r} in alpha_pattern; expected names")
        if f".{module}".endswith(f".{end}"):
            return _number(own, end)
    return _number(settings, "lora_alpha", 8.0)


def _number(settings: Settings, key: str, usual: float | None = None) -> float:
    value = settings.get(key, usual)
    check_number(key, value, lambda x: x >= 0, "of at least 0")
    assert isinstance(value, int | float)  # as check_number has seen
    return float(value)
