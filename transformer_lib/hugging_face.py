"""What Hugging Face calls the parts of our models.

Each family of checkpoints has a column in a table of settings (the keys of its ``config.json``) and
one in a table of tensors. Both are used in both directions: to read a checkpoint and to write one.
The tables, and what else is known of the families, are in ``hugging_face.toml``, beside this file.
"""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transformer_lib import encoder_decoder, models
from transformer_lib.config import TransformerConfig
from transformer_lib.positions import change_pairing
from transformer_lib.presets import PRESETS

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

TextModel = encoder_decoder.Encoder | models.MaskedLM | models.SequenceClassifier | models.CausalLM
Model = TextModel | models.Seq2SeqLM | models.VisionTransformer


class Transform(NamedTuple):
    """How one tensor of a file becomes one or more of ours, and back.

    Args:
        read: takes the file's tensor and the shape of ours; returns ours.
        write: takes ours and the model; returns the file's tensor.

    Example:
        >>> LAYOUTS["transposed"].read(torch.zeros(2, 3), (3, 2))[0].shape
        torch.Size([3, 2])
    """

    read: Callable[[Tensor, Sequence[int]], Sequence[Tensor]]
    write: Callable[[Sequence[Tensor], Model], Tensor]


def _split_pairs(parts: Sequence[Tensor], model: Model) -> Tensor:
    """Order the rows of a query or key projection for the RoPE pairing of Hugging Face."""
    if model.config.rope_pairing == "split":
        return parts[0]
    return change_pairing(parts[0], parts[0].shape[0] // model.config.d_head, to="split")


def _as_convolution(parts: Sequence[Tensor], model: Model) -> Tensor:
    """A linear layer over patches is a convolution whose steps are as wide as its kernel."""
    if parts[0].ndim == 1 or not isinstance(model, models.VisionTransformer):
        return parts[0]  # the bias
    size = model.patches.patch_size
    return parts[0].reshape(-1, model.patches.n_channels, size, size)


LAYOUTS = {
    "same": Transform(lambda tensor, shape: [tensor], lambda parts, model: parts[0]),
    "transposed": Transform(lambda tensor, shape: [tensor.t()], lambda parts, model: parts[0].t()),
    "fused": Transform(  # queries, keys and values in one transposed matrix
        lambda tensor, shape: [part.t() for part in tensor.chunk(3, dim=-1)],
        lambda parts, model: torch.cat([part.t() for part in parts], dim=-1),
    ),
    "rotated": Transform(lambda tensor, shape: [tensor], _split_pairs),
    "convolution": Transform(lambda tensor, shape: [tensor.reshape(shape)], _as_convolution),
    "batched": Transform(  # with a batch dimension of 1
        lambda tensor, shape: [tensor.reshape(shape)],
        lambda parts, model: parts[0].reshape(1, -1, model.config.d_model),
    ),
}


@dataclass(frozen=True)
class Family:
    """What the checkpoints of one kind of model have in common.

    Args:
        column: its name in the tables.
        architectures: the classes of ``transformers`` that are known.
        prefix: what stands before the names of all tensors but those of the head. Some files leave
            it out, and so do the tables.
        block: what stands before the names of the parts of block ``n``.
        base: the configuration of which ``config.json`` changes some values.
        activations: its names for activations, and ours.
        transforms: the last part of the names of tensors that are laid out differently.
        copies: tensors that some files have and that only repeat another one.
        must_be: keys of ``config.json`` of which our models can follow only one value, and which.
        known: all other keys that may be there.

    Example:
        >>> name, transform = FAMILIES["gpt2"].place("decoder.stack.blocks.3.attention_norm.weight")
        >>> name
        'h.3.ln_1.weight'
    """

    column: str
    architectures: Sequence[str]
    prefix: str
    block: str
    base: TransformerConfig
    activations: dict[str, str]
    transforms: dict[str, Transform]
    copies: dict[str, str]
    must_be: dict[str, Any]
    known: frozenset[str]

    @cached_property
    def settings(self) -> list[tuple[str, str]]:
        """Fields of our configuration, and the keys of ``config.json`` with the same values."""
        return _read_column(TABLES["settings"], self.column)

    @cached_property
    def tensors(self) -> dict[str, str]:
        """Our names of the parts of a model, and theirs."""
        return dict(_read_column(TABLES["tensors"], self.column))

    def plain_name(self, name: str) -> str:
        """Return a file's name of a tensor as the tables have it."""
        name = name.removeprefix(self.prefix)
        # The first BERT was trained with another framework, which says gamma and beta.
        return re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))

    def place(self, name: str, *, gated: bool = False) -> tuple[str, Transform] | None:
        """Say in which tensor of a file a parameter of ours is stored, and how.

        Args:
            name: the parameter's name in our model.
            gated: whether its feed-forward networks have a gate.

        Returns:
            The plain name of the tensor, and the transform; ``None`` if the family has none.
        """
        match = re.fullmatch(r"(?:body\.)?(?:(\w+coder)\.)?(?:stack\.blocks\.(\d+)\.)?(.+)", name)
        side, number, ours = match.groups() if match else ("", "", "")
        part, _, end = ours.rpartition(".")
        theirs = self.tensors.get(ours)
        if theirs is None and part in self.tensors:
            theirs = f"{self.tensors[part]}.{end}"
        if theirs is None:
            return None
        last_part = theirs.removesuffix(f".{end}").rpartition(".")[-1]
        layout = self.transforms.get(last_part, LAYOUTS["same"])
        full = (self.block if number else "") + theirs
        last = 1 if side == "encoder" else 2  # T5 numbers the sublayers of a block
        return full.format(n=number, side=side, last=last, wi="wi_1" if gated else "wi"), layout


def _read_column(table: str, column: str) -> list[tuple[str, str]]:
    """Return the pairs of our names and theirs from the table that has this column."""
    part = next(part for part in table.strip().split("\n\n") if column in part.split())
    rows = [row.split() for row in part.splitlines()]
    i = rows[0].index(column)
    return [(row[0], row[i]) for row in rows[1:] if row[i] != "-"]


def _read_family(
    like: str,
    config: dict[str, Any],
    transforms: dict[str, str],
    must_be: dict[str, Any],
    known: str,
    **fields: Any,
) -> Family:
    """Make a family of what ``hugging_face.toml`` says."""
    base = replace(PRESETS[like].config, **config)
    layouts = {name: LAYOUTS[layout] for name, layout in transforms.items()}
    only = dict.fromkeys(TABLES["must_be_absent"]) | TABLES["must_be"] | must_be
    keys = [key for _, key in _read_column(TABLES["settings"], fields["column"])]
    keys += known.split() + TABLES["harmless"].split()
    return Family(base=base, transforms=layouts, must_be=only, known=frozenset(keys), **fields)


FAMILIES = {kind: _read_family(**row) for kind, row in TABLES["families"].items()}
