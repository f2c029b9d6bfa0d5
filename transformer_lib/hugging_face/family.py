"""What the checkpoints of one kind of model have in common."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transformer_lib.core.checks import check_number, check_whole
from transformer_lib.core.config import TransformerConfig
from transformer_lib.hugging_face.weight_layouts import SAME, Layout, Model

Settings = dict[str, object]  # the content of config.json
LazyTensors = dict[str, Callable[[], Tensor]]  # what a file has; each is read when it is called
Build = Callable[[TransformerConfig, Settings, LazyTensors], Model]

_HEADS = ("cls.", "classifier.", "lm_head.")  # these tensors never have the family's prefix
# What several families call activations, and what we call them.
ACTIVATION_NAMES = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def _as_they_are(settings: Settings) -> Settings:
    return settings


def _as_it_is(config: TransformerConfig, settings: Settings) -> TransformerConfig:
    return config


def _nothing_more(model: Model) -> Settings:
    return {}


def _no_fields(settings: Settings) -> Settings:
    return {}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of checkpoints: its names for our settings and tensors, and its peculiarities.

    Args:
        name: what people call it, for error messages.
        model_type: what its ``config.json`` calls it.
        architectures: the classes of ``transformers`` that are known, each with a function that
            makes our model of it, from the configuration, the settings and the tensors.
        base: the configuration that a file means which leaves all keys out.
        settings: the keys of ``config.json``, and our field, or property, of the same value. Two
            keys for one of them must agree.
        activations: its names for activations, and ours.
        must_be: other keys, of which our models can follow only one value, and which.
        reads: all other keys that the functions below read. What is in neither of the three,
            ``transformers`` does not read for this family either.
        tensors: our names of the parts of a model, and theirs. ``N`` is the number of a block, and
            a second one that of an expert. The end ``.weight`` or ``.bias`` is left out where both
            have it, and ``encoder.`` or ``decoder.`` where both sides, or the only one, are alike.
        gated_tensors: what differs in models whose feed-forward networks have a gate.
        layouts: the last part of their names of tensors that are not laid out like ours.
        prefix: what stands before their names, but those of the head; some files leave it out.
        copies: tensors that some files have and that only repeat another one.
        ignored: tensors that some files have and no model needs, as regular expressions.
        one_spelling: brings the settings of all versions to one spelling.
        more_fields: values of our fields that no single key says as it is.
        finish: completes a configuration with what no single key says.
        more_settings: what is written to ``config.json`` beside the configuration of a model.

    Example:
        >>> from transformer_lib import FAMILIES
        >>> name, layout = FAMILIES["gpt2"].place(
        ...     "decoder.stack.blocks.3.attention_norm.weight"
        ... )
        >>> name
        'h.3.ln_1.weight'
    """

    name: str
    model_type: str
    architectures: dict[str, Build]
    base: TransformerConfig
    settings: dict[str, str]
    activations: dict[str, str]
    must_be: dict[str, object] = field(default_factory=dict)
    reads: Collection[str] = ()
    tensors: dict[str, str]
    gated_tensors: dict[str, str] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    prefix: str = ""
    copies: dict[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    one_spelling: Callable[[Settings], Settings] = _as_they_are
    more_fields: Callable[[Settings], Settings] = _no_fields
    finish: Callable[[TransformerConfig, Settings], TransformerConfig] = _as_it_is
    more_settings: Callable[[Model], Settings] = _nothing_more

    def looks_at(self, key: str) -> bool:
        """Say whether the reader of the family looks at a key of ``config.json``."""
        return key in self.settings or key in self.must_be or key in self.reads

    def plain_name(self, name: str) -> str:
        """Return a file's name of a tensor as the tables have it."""
        name = name.removeprefix(self.prefix)
        # The first BERT was trained with another framework, which says gamma and beta.
        return re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))

    def full_name(self, name: str, architecture: str) -> str:
        """Return the name that a tensor of a plain name has in a file of one architecture."""
        bare = architecture == "BertModel"  # which has no prefix; heads never have one
        return name if bare or name.startswith(_HEADS) else self.prefix + name

    def ignores(self, name: str) -> bool:
        """Say whether no model needs the tensor of this plain name."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def place(self, name: str, *, gated: bool = False) -> tuple[str, Layout] | None:
        """Say in which tensor of a file a parameter of ours is stored, and how.

        Args:
            name: the parameter's name in our model.
            gated: whether its feed-forward networks have a gate.

        Returns:
            The plain name of the tensor, and the layout; ``None`` if the family has none.
        """
        tensors = {**self.tensors, **(self.gated_tensors if gated else {})}
        numbered = re.compile(r"\b(blocks|experts)\.(\d+)\.")
        whole = numbered.sub(r"\1.N.", name.removeprefix("body."))
        for ours in (whole, re.sub(r"^(encoder|decoder)\.", "", whole)):
            part, _, end = ours.rpartition(".")
            theirs = tensors.get(ours)
            if theirs is None and part in tensors:
                theirs = f"{tensors[part]}.{end}"
            if theirs is not None:
                layout = self.layouts.get(theirs.removesuffix(f".{end}").split(".")[-1], SAME)
                for _, number in numbered.findall(name):
                    theirs = theirs.replace(".N.", f".{number}.", 1)
                return theirs, layout
        return None


def check_setting(key: str, value: object, *allowed: object, file: str = "config.json") -> None:
    """Raise an error unless a setting has a value that our models can follow.

    Args:
        key: its key in the file.
        value: what stands there.
        allowed: what may stand there; the last one is named in the message.
        file: the name of the file.

    Raises:
        ValueError: if it is none of these.

    Example:
        >>> check_setting("mlp_bias", True, False)
        Traceback (most recent call last):
        ValueError: config.json has mlp_bias=True; our models need False here
    """
    if value not in allowed:
        raise ValueError(f"{file} has {key}={value!r}; our models need {allowed[-1]!r} here")


def whole_setting(settings: Settings, key: str, *, least: int = 1) -> int:
    """Return a setting that must be a whole number.

    Args:
        settings: the content of ``config.json``.
        key: the key.
        least: the smallest value that it may have.

    Returns:
        Its value.

    Raises:
        ValueError: if it is something else. (transformers also knows pairs of numbers.)

    Example:
        >>> whole_setting({"image_size": [12, 8]}, "image_size")
        Traceback (most recent call last):
        ValueError: image_size=[12, 8] must be a whole number of at least 1
    """
    value = settings.get(key)
    check_whole(key, value, least=least)
    assert isinstance(value, int)  # as check_whole has seen
    return value


def number_setting(settings: Settings, key: str) -> float:
    """Return a setting that must be a positive number.

    Args:
        settings: the content of ``config.json``, or an object in it.
        key: the key.

    Returns:
        Its value.

    Raises:
        ValueError: if it is something else.

    Example:
        >>> number_setting({"factor": 8}, "factor")
        8.0
    """
    value = settings.get(key)
    check_number(key, value, lambda x: x > 0, "greater than 0")
    assert isinstance(value, int | float)  # as check_number has seen
    return float(value)


def own_head_width(settings: Settings, width: str, heads: str, own: str) -> int | None:
    """Return the width of heads that do not share the stream's among them.

    Args:
        settings: the content of ``config.json``.
        width: the key of the stream's width.
        heads: the key of the number of heads.
        own: the key of the width of one head.

    Returns:
        Our ``head_width``: ``None`` if it follows from the other two.

    Raises:
        ValueError: if one of them is no whole number.

    Example:
        >>> t5_small = {"d_model": 512, "num_heads": 6, "d_kv": 64}
        >>> own_head_width(t5_small, "d_model", "num_heads", "d_kv")
        64
    """
    d_model, n_heads, d_head = (whole_setting(settings, key) for key in (width, heads, own))
    return None if n_heads * d_head == d_model else d_head


def one_name(settings: Settings, names: Mapping[str, str]) -> Settings:
    """Give settings that go by a second name their first one, as ``transformers`` does.

    Args:
        settings: the content of ``config.json``.
        names: the first name of each second one.

    Returns:
        The settings under their first names.

    Raises:
        ValueError: if the file has both, and they differ.

    Example:
        >>> one_name({"hidden_size": 768}, {"hidden_size": "n_embd"})
        {'n_embd': 768}
    """
    named = {key: value for key, value in settings.items() if key not in names}
    for second, first in names.items():
        if settings.get(second) is not None:
            if named.get(first) is None:
                named[first] = settings[second]
            check_setting(second, settings[second], named[first])
    return named


def count_classes(settings: Settings) -> int:
    """Return the number of classes that a classifier tells apart.

    Args:
        settings: the content of ``config.json``.

    Returns:
        The number of names in ``id2label``, or else ``num_labels``, or else 2.

    Raises:
        ValueError: if it is no whole number.

    Example:
        >>> count_classes(
        ...     {"id2label": {"0": "cat", "1": "dog", "2": "neither"}}
        ... )
        3
    """
    labels = settings.get("id2label")
    if isinstance(labels, dict) and labels:
        return len(labels)
    return whole_setting({"num_labels": 2} | settings, "num_labels")


def is_copy(tensors: LazyTensors, name: str, original: str) -> bool:
    """Say whether a tensor that may repeat another one is left out, or does repeat it.

    Args:
        tensors: what a file has.
        name: the tensor that may be a copy.
        original: the one that it may repeat.

    Returns:
        Whether nothing is lost without it.

    Example:
        >>> table, other = torch.ones(2), torch.zeros(2)
        >>> is_copy(
        ...     {"wte": lambda: table, "lm_head": lambda: other},
        ...     "lm_head",
        ...     "wte",
        ... )
        False
    """
    if name not in tensors or original not in tensors:
        return True
    return torch.equal(tensors[name](), tensors[original]())
