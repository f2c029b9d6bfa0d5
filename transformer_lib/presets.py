"""The famous models, and how many parameters each must have.

Their configurations are in ``presets.toml``, beside this file.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from transformer_lib import models
from transformer_lib.checks import check_choice
from transformer_lib.config import TransformerConfig


@dataclass(frozen=True)
class Preset:
    """A named model: how to build it, and what its authors say about its size.

    Args:
        build: makes the model from a configuration.
        config: the configuration.
        parameters: the exact number of parameters.
        published: the size as its authors give it, or as the published weights have it.
        source: key of the work in the book's bibliography.

    Example:
        >>> PRESETS["gpt2"].parameters
        124439808
    """

    build: Callable[[TransformerConfig], nn.Module]
    config: TransformerConfig
    parameters: int
    published: str
    source: str


def build_preset(name: str, *, device: torch.device | str = "cpu") -> nn.Module:
    """Build a famous model with fresh weights.

    Args:
        name: a key of ``PRESETS``.
        device: where to put it; ``"meta"`` takes no memory, which suits counting and tracing.
            (To fill a model, build it where it shall run: PyTorch unties weights on the way.)

    Returns:
        The model.

    Raises:
        ValueError: if there is no preset of that name.

    Example:
        >>> model = build_preset("llama-3-70b", device="meta")
        >>> sum(p.numel() for p in model.parameters())
        70553706496
    """
    check_choice("name", name, tuple(PRESETS))
    preset = PRESETS[name]
    with torch.device(device):
        return preset.build(preset.config)


def _read_presets(path: Path) -> dict[str, Preset]:
    """Read the presets of a file; a preset may be like one that comes before it."""
    presets: dict[str, Preset] = {}
    for name, row in tomllib.loads(path.read_text(encoding="utf-8")).items():
        base = presets[row["like"]].config if "like" in row else TransformerConfig()
        presets[name] = Preset(
            build=partial(getattr(models, row["model"]), **row.get("arguments", {})),
            config=replace(base, **row.get("config", {})),
            parameters=row["parameters"],
            published=row["published"],
            source=row["source"],
        )
    return presets


PRESETS = _read_presets(Path(__file__).with_suffix(".toml"))
