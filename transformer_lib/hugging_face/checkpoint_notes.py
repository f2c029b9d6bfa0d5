"""What a checkpoint says beside its model: its ends, its labels, how it is asked for text."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from transformer_lib.hugging_face.family import Settings
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer

_ATTRIBUTE = "checkpoint_notes"
# What holds for the files of the checkpoint alone, and not for what is written later.
_NOT_KEPT = {"architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path"}


class CheckpointNotes(NamedTuple):
    """What :func:`~transformer_lib.hugging_face.pretrained.save_pretrained` writes beside a model.

    Args:
        model_type: of the family that the model was read as; empty if it was not read.
        settings: the keys of ``config.json`` that change nothing of what the model computes.
        generation: the content of ``generation_config.json``; ``None`` if there was none.

    Example:
        >>> CheckpointNotes().settings
        {}
    """

    model_type: str = ""
    settings: Settings = {}  # noqa: RUF012  (never changed)
    generation: Settings | None = None


def take_notes(
    model: nn.Module,
    settings: Settings,
    harmless: Mapping[str, object],
    generation: Settings | None,
) -> None:
    """Let a model remember what its checkpoint says beside it.

    Args:
        model: the model.
        settings: the content of ``config.json``.
        harmless: those of its keys that change nothing of what the model computes.
        generation: the content of ``generation_config.json``, if there is one.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> take_notes(
        ...     model, {"model_type": "gpt2"}, {"eos_token_id": 7}, None
        ... )
        >>> notes_of(model).settings
        {'eos_token_id': 7}
    """
    kept = {key: value for key, value in harmless.items() if key not in _NOT_KEPT}
    notes = CheckpointNotes(str(settings.get("model_type")), kept, generation)
    vars(model)[_ATTRIBUTE] = notes  # a plain attribute, which copies of the model have, too


def notes_of(model: nn.Module) -> CheckpointNotes:
    """Return what a model remembers of its checkpoint.

    Args:
        model: the model.

    Returns:
        The notes; empty ones if the model was not read from a checkpoint.

    Example:
        >>> notes_of(nn.Linear(1, 1)).generation is None
        True
    """
    notes = vars(model).get(_ATTRIBUTE)
    return notes if isinstance(notes, CheckpointNotes) else CheckpointNotes()


def ends_of(tokenizer: PretrainedTokenizer | None) -> Settings:
    """Say which tokens begin, end and fill a text.

    Args:
        tokenizer: the tokenizer; without one, there are none.

    Returns:
        What ``config.json`` says of them. ``null`` has to be written: without a key,
        ``transformers`` takes the ids of the first checkpoint of the family.

    Example:
        >>> ends_of(None)
        {'bos_token_id': None, 'eos_token_id': None, 'pad_token_id': None}
    """
    ends = () if tokenizer is None else tokenizer.eos_ids
    return {
        "bos_token_id": None if tokenizer is None else tokenizer.bos_id,
        "eos_token_id": list(ends) if len(ends) > 1 else next(iter(ends), None),
        "pad_token_id": None if tokenizer is None else tokenizer.pad_id,
    }
