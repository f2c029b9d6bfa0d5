"""What each class of the library does, in words: one row for each child or function it calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.embeddings import Embedding, PatchEmbedding
from transformer_lib.layers.feedforward import FeedForward, MixtureOfExperts
from transformer_lib.layers.positions import AddedPositions, T5Bias
from transformer_lib.models.blocks import Block
from transformer_lib.models.language_models import (
    MaskedLM,
    OutputLayer,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.models.lora import LoraLinear


@dataclass(frozen=True)
class Words:
    """What a call does.

    Args:
        what: the words; ``{}`` stands for the number that is passed. Without words, the call is a
            part of the next step.
        ends: the last letters of the result, where no rule can know them; a dot leaves one as it
            is.
        if_last: other words, by the last letter of the result.
        if_number: other words, by the number that is passed.

    Example:
        >>> words = Words("mask", if_number={0: "set masked weights to 0"})
        >>> words.say("T", number=float("-inf")), words.say("T", number=0)
        ('mask', 'set masked weights to 0')
        >>> Words("scale by {}").say("T", number=0.125)
        'scale by 0.125'
    """

    what: str
    ends: str = ""
    if_last: Mapping[str, str] = field(default_factory=dict)
    if_number: Mapping[float, str] = field(default_factory=dict)

    def say(self, last_letter: str, number: float | None) -> str:
        """Choose the words for one call.

        Args:
            last_letter: of its result; empty if the result is a single number.
            number: the first number that is passed, or None.

        Returns:
            The words, with the number in them; nothing for a part of the next step.
        """
        what = self.if_last.get(last_letter, self.what)
        if number is None:
            return what.format("a tensor")
        return self.if_number.get(number, what).format(f"{number:.4g}")


PART_OF_NEXT_STEP = Words("")

# The words of a class are also those of its subclasses, which may have others for some calls.
WORDS: dict[type, dict[str, Words]] = {
    Embedding: {
        "tokens": Words("look up token vectors", ends="D"),
        "mul": Words("scale by sqrt(D) = {}"),
        "segments": Words("look up segment vectors", ends="D"),
        "add": Words("add segments"),
    },
    AddedPositions: {
        "table": Words("look up position vectors", ends="D"),
        "add": Words("add positions"),
    },
    T5Bias: {
        "table": Words("look up a bias for distances", ends="H"),
        "permute": Words("put heads first", ends="H . ."),
    },
    PatchEmbedding: {
        "unfold": PART_OF_NEXT_STEP,
        "permute": Words("cut into patches", ends="B . . . . ."),
        "flatten": Words("lay out in a row"),
        "projection": Words("project each patch", ends="D"),
    },
    MultiHeadAttention: {
        "query": Words("project to queries", ends="H*Dk"),
        "key": Words("project to keys", ends="G*Dk"),
        "value": Words("project to values", ends="G*Dk"),
        "unflatten": Words("split heads"),
        "transpose": Words("swap positions and heads"),
        "new_zeros": Words("set memory aside", ends="B G . Dk"),
        "__getitem__": Words("read the cache", ends="B G S Dk"),
        "repeat_interleave": Words("repeat for each group of heads", ends="H . ."),
        "matmul": Words("scores: queries · keys", if_last={"Dk": "weighted sum of values"}),
        "mul": Words("scale by {}"),
        "add": Words("add bias"),
        "masked_fill": Words("mask", if_number={0: "set masked weights to 0"}),
        "flatten": Words("merge heads", if_last={"Dk": "rotate (RoPE)"}),
        "output": Words("project and mix heads", ends="D"),
    },
    Block: {
        "add": Words("add to the stream"),
    },
    FeedForward: {
        "up": Words("expand", ends="F"),
        "gate": Words("expand for the gate", ends="F"),
        "mul": Words("multiply by the gate"),
        "down": Words("contract", ends="D"),
    },
    LoraLinear: {
        "base": Words("the frozen layer"),
        "linear": Words("through the adapter"),
        "mul": Words("scale the adapter by {}"),
        "add": Words("add what the adapter says"),
    },
    MixtureOfExperts: {
        "flatten": Words("line up all tokens"),
        "router": Words("score the experts", ends="E"),
        "topk": Words("pick the best"),
        "div": Words("make the weights sum to 1"),
        "__getitem__": Words("", ends="D", if_last={"D": "take this expert's tokens"}),
        "mul": Words("", if_last={"D": "weigh what it says"}),  # or a part of the balance loss
        "sum": PART_OF_NEXT_STEP,  # this and the next one: of the balance loss
        "mean": PART_OF_NEXT_STEP,
        "index_add": Words("add it to the output"),
        "view_as": Words("back to sequences"),
    },
    OutputLayer: {
        "mul": Words("scale by {}"),
        "projection": Words("logits", ends="V"),
    },
    MaskedLM: {
        "transform": Words("transform", ends="D"),
    },
    SequenceClassifier: {
        "__getitem__": Words("take the first token", ends="B D"),
        "pooler": Words("pool", ends="D"),
        "masked_fill": Words("set padding to 0"),
        "sum": Words("sum over tokens", ends="B D"),
        "mean": Words("mean over tokens", ends="B D"),
        "div": Words("divide by their number"),
        "classifier": Words("logits", ends="C"),
    },
    VisionTransformer: {
        "expand": Words("repeat the class token", ends="B . D"),
        "cat": Words("put the class token first", ends="B T D"),
        "__getitem__": Words("take the class token", ends="B D"),
        "classifier": Words("logits", ends="C"),
    },
    nn.Module: {  # every class
        "relu": Words("activate (ReLU)"),
        "gelu": Words("activate (GELU)"),
        "silu": Words("activate (SiLU)"),
        "layer_norm": Words("layer norm"),
        "rms_norm": Words("RMS norm"),
        "mT": PART_OF_NEXT_STEP,
        "unbind": PART_OF_NEXT_STEP,
        "stack": PART_OF_NEXT_STEP,
        "zeros_like": PART_OF_NEXT_STEP,
        "to": PART_OF_NEXT_STEP,
        "__getitem__": PART_OF_NEXT_STEP,
        "dropout": PART_OF_NEXT_STEP,  # in eval mode it rests
    },
}


def words_for(caller: nn.Module, called: str) -> Words:
    """Look up what a call does; by default, its own name says it.

    Args:
        caller: the module that calls.
        called: the name of its child, or of the PyTorch function.

    Returns:
        The words of the caller's class or of the nearest one that it inherits from. ``G`` is ``H``
        where every head has keys and values of its own.

    Example:
        >>> words_for(
        ...     MultiHeadAttention(8, n_heads=4, n_kv_heads=2), "key"
        ... ).ends
        'G*Dk'
        >>> words_for(MultiHeadAttention(8, n_heads=4), "key").ends
        'H*Dk'
        >>> words_for(nn.Tanh(), "tanh").what
        'tanh'
    """
    tables = (WORDS.get(kind, {}) for kind in type(caller).__mro__)
    words = next((table[called] for table in tables if called in table), Words(called.strip("_")))
    if getattr(caller, "n_kv_heads", None) == getattr(caller, "n_heads", 0):
        return replace(words, ends=words.ends.replace("G", "H"))
    return words
