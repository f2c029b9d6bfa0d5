"""Commands that look at models: trace, presets."""

from argparse import Namespace
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import torch

from transformer_lib.models.language_models import Seq2SeqLM, VisionTransformer
from transformer_lib.models.presets import PRESETS, build_preset
from transformer_lib.models.saving import load_model
from transformer_lib.tracing import watch


def trace(given: Namespace) -> None:
    """Show a forward pass: :func:`~transformer_lib.cli.options.trace_options` says which.

    Args:
        given: what the command line says.

    Example:
        >>> trace(Namespace(model="gpt3"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: model='gpt3' is no folder and no preset; the nearest ...
    """
    if given.model in PRESETS:
        model = build_preset(given.model, device="meta")
    elif Path(given.model).is_dir():
        model = load_model(given.model, device="meta")
    else:
        nearest = get_close_matches(given.model, PRESETS, n=1, cutoff=0)[0]
        instead = f"is no folder and no preset; the nearest is {nearest!r}"
        raise ValueError(f"model={given.model!r} {instead}")
    inputs = [torch.zeros(given.batch, given.length, dtype=torch.long, device="meta")]
    if isinstance(model, VisionTransformer):
        size = model.patches.image_size
        inputs = [torch.zeros(given.batch, model.patches.n_channels, size, size, device="meta")]
    print(watch.trace(model, *inputs * (2 if isinstance(model, Seq2SeqLM) else 1)))


def presets(_: Namespace) -> None:
    """List the famous models, one a line.

    Example:
        >>> presets(Namespace())  # doctest: +ELLIPSIS
        preset            model               layers  width  heads ...
        transformer-base  Seq2SeqLM                6    512      8 ...
        ...
    """
    line = "{:17} {:18} {:>7} {:>6} {:>6} {:>16}  {:14} {}"
    names = ("preset", "model", "layers", "width", "heads", "parameters", "published", "source")
    print(line.format(*names))
    for name, preset in PRESETS.items():
        config = preset.config
        with torch.device("meta"):
            kind = type(preset.build(replace(config, n_layers=1))).__name__
        sizes = (config.n_layers, config.d_model, config.n_heads, f"{preset.parameters:,}")
        print(line.format(name, kind, *sizes, preset.published, preset.source))
