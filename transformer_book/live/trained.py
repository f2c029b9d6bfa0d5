"""The trained models of the live figures, with the weights that a reader's browser has."""

from functools import cache

import torch
from torch import nn

from transformer_book.live.one_byte import RESULTS, pack, unpack
from transformer_lib import Tokenizer, load_model


@cache
def browser_model(name: str) -> tuple[nn.Module, Tokenizer]:
    """Load a trained model with one byte a number, in float64.

    Args:
        name: its folder in the results.

    Returns:
        The model, in evaluation mode, and its tokenizer.

    Example:
        >>> model, tokenizer = browser_model("shakespeare")
        >>> next(model.parameters()).dtype, len(tokenizer.tokens)
        (torch.float64, 259)
    """
    folder = RESULTS / name
    model = load_model(folder)
    tensors = unpack(*pack(folder)).items()
    model.load_state_dict({key: torch.tensor(one) for key, one in tensors}, strict=False)
    return model.double().eval(), Tokenizer.load(folder / "tokenizer.json")
