"""LoRA: thin adapters beside frozen linear layers, trained in their place.

A layer keeps its matrix ``W``. Beside it stand two thin matrices, ``down`` and ``up`` (A and B in
the paper of Hu et al., 2021), and only they are trained:

    y = W x + alpha / rank * up (down x)

``up`` starts at zero, so that a new adapter changes nothing. Later the product can be added to the
matrix (:func:`merge_lora`), or the adapter be taken off again (:func:`remove_lora`).
"""

import math
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypedDict

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Float
from torch import Tensor, nn

from transformer_lib.core.checks import check_number, check_probability, check_whole

QUERY_AND_VALUE = ("query", "value")  # what the paper adapts
_FROZEN = "frozen_beside_adapters"
_IN_A_BLOCK = re.compile(r"\bblocks\.\d+\.")


class LoraSettings(TypedDict):
    """What an adapter was made with, ready for JSON.

    Args:
        rank: the width between its two matrices.
        alpha: its output is multiplied by ``alpha / rank``.
        dropout: the probability with which a number that it reads is dropped in training.

    Example:
        >>> LoraSettings(rank=8, alpha=16.0, dropout=0.0)["rank"]
        8
    """

    rank: int
    alpha: float
    dropout: float


class LoraLinear(nn.Module):
    """A linear layer and, beside it, an adapter.

    The layer is called, whatever it is: its matrix may be of another precision, or packed. It has
    no attribute ``weight`` on purpose: whoever multiplied by that would lose the adapter.

    Args:
        base: the layer: any module with ``in_features`` and ``out_features``.
        rank: the width between the two thin matrices.
        alpha: the adapter's output is multiplied by ``alpha / rank``.
        dropout: the probability with which a number that the adapter reads is dropped in training;
            what the layer reads is never dropped.

    Attributes:
        down: from the input to the rank, ``(rank, in_features)``.
        up: from the rank to the output, ``(out_features, rank)``; zeros at first. Both are in
            float32 at least, also beside a layer in half precision.

    Raises:
        TypeError: if ``base`` has no ``in_features`` and ``out_features``.
        ValueError: if a number is out of range.

    Example:
        >>> layer = nn.Linear(6, 4)
        >>> adapted, x = LoraLinear(layer, rank=2), torch.ones(3, 6)
        >>> torch.equal(adapted(x), layer(x))
        True
        >>> adapted.down.shape, adapted.up.shape
        (torch.Size([2, 6]), torch.Size([4, 2]))
    """

    def __init__(
        self, base: nn.Module, rank: int = 8, alpha: float = 16.0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_whole("rank", rank)
        check_number("alpha", alpha, lambda x: x > 0, "greater than 0")
        check_probability("dropout", dropout)
        if not _is_linear(base):
            kind = type(base).__name__
            raise TypeError(
                f"base has type {kind}; expected a layer with in_features and out_features"
            )
        self.base = base
        self.rank, self.alpha = rank, float(alpha)
        self.in_features, self.out_features = _sizes(base)
        self.dropout = nn.Dropout(dropout)
        dtype, device = _place(base)
        self.down = nn.Parameter(torch.empty(rank, self.in_features, dtype=dtype, device=device))
        self.up = nn.Parameter(torch.empty(self.out_features, rank, dtype=dtype, device=device))
        self.reset()

    def reset(self) -> None:
        """Draw ``down`` at random, as a linear layer is drawn, and set ``up`` to zero."""
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        nn.init.zeros_(self.up)

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        """Return what the layer says of ``x``, ``(..., in_features)``, and the adapter on top."""
        y: Tensor = self.base(x)
        narrow = F.linear(self.dropout(x).to(self.down.dtype), self.down)  # (..., rank)
        added = lora_scale(self.alpha, self.rank) * F.linear(narrow, self.up)
        return y + added.to(y.dtype)

    def product(self) -> Float[Tensor, "m n"]:
        """Return the matrix that the adapter amounts to, ``(out_features, in_features)``."""
        return lora_scale(self.alpha, self.rank) * self.up @ self.down

    @property
    def settings(self) -> LoraSettings:
        """What the adapter was made with."""
        return LoraSettings(rank=self.rank, alpha=self.alpha, dropout=self.dropout.p)

    def extra_repr(self) -> str:
        """Say in one line what it is, for ``print``."""
        return f"rank={self.rank}, alpha={self.alpha}"


def lora_scale(alpha: float, rank: int) -> float:
    """Return what an adapter's output is multiplied by.

    Divided by the rank, the output of a new rank is as large as before, and the learning rate can
    stay.

    Args:
        alpha: the numerator.
        rank: the width of the adapter.

    Returns:
        ``alpha / rank``.

    Example:
        >>> lora_scale(16.0, rank=8)
        2.0
    """
    return alpha / rank


def add_lora(
    model: nn.Module,
    rank: int = 8,
    alpha: float = 16.0,
    *,
    layers: str | Sequence[str] = QUERY_AND_VALUE,
    dropout: float = 0.0,
) -> list[str]:
    """Put adapters beside linear layers of a model, in place, and freeze all the rest.

    :func:`~transformer_lib.training.loop.train` then trains the adapters alone. The model computes
    what it did before until they have been trained.

    Args:
        model: any model. Layers of another class may stand in it, as long as they have
            ``in_features`` and ``out_features``.
        rank: the width of each adapter.
        alpha: its output is multiplied by ``alpha / rank``.
        layers: which layers get one: the ends of their names, such as ``"attention.query"``, in
            which ``*`` stands for anything; or ``"all"``, all linear layers of all blocks.
        dropout: the probability with which a number that an adapter reads is dropped in training.

    Returns:
        The names of the layers that have an adapter now.

    Raises:
        ValueError: if the model has adapters already, if a name fits no layer, if a layer shares
            its weight with another part, or if a number is out of range.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=8, n_heads=2, n_layers=1
        ... )
        >>> model = CausalLM(config)
        >>> for name in add_lora(model, rank=2):
        ...     print(name)
        decoder.stack.blocks.0.attention.query
        decoder.stack.blocks.0.attention.value
        >>> trainable_parameters(model)  # 2 layers, 2 matrices of 2 * 8
        64
    """
    names = _chosen(model, layers)
    settings = LoraSettings(rank=rank, alpha=alpha, dropout=dropout)
    add_adapters(model, dict.fromkeys(names, settings))
    return names


def add_adapters(model: nn.Module, adapters: dict[str, LoraSettings]) -> None:
    """Put new adapters beside the layers that are named, in place, and freeze all the rest.

    Args:
        model: any model.
        adapters: for the name of each layer what its adapter is made with.

    Raises:
        ValueError: as :func:`add_lora`; or if the model has no linear layer of one of these names.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 4))
        >>> add_adapters(
        ...     model, {"0": LoraSettings(rank=1, alpha=1.0, dropout=0.0)}
        ... )
        >>> describe_adapters(model)
        {'0': {'rank': 1, 'alpha': 1.0, 'dropout': 0.0}}
    """
    if lora_layers(model):
        raise ValueError("model has adapters already; call merge_lora or remove_lora first")
    parts = dict(model.named_modules())
    shared = _shared(model)
    wrapped = {}
    for name, settings in adapters.items():
        if name not in parts or not _is_linear(parts[name]):
            raise ValueError(f"model has no linear layer {name}; expected one of this name")
        for parameter in parts[name].parameters(recurse=False):
            if (twins := shared.get(id(parameter), [])) and len(twins) > 1:
                raise ValueError(
                    f"layers chooses {name}, whose weights are shared: {' and '.join(twins)} are "
                    "one; expected layers with weights of their own"
                )
        wrapped[name] = LoraLinear(parts[name], **settings).train(parts[name].training)
    _freeze(model)
    for name, layer in wrapped.items():
        _put(model, name, layer)


def lora_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """Find the layers of a model that have an adapter.

    Args:
        model: any model.

    Returns:
        The layers by their names.

    Example:
        >>> lora_layers(nn.Sequential(nn.Linear(2, 3)))
        {}
    """
    return {name: part for name, part in model.named_modules() if isinstance(part, LoraLinear)}


def describe_adapters(model: nn.Module) -> dict[str, LoraSettings]:
    """Say which layers of a model have an adapter, and what it was made with.

    Args:
        model: any model.

    Returns:
        The settings by the names of the layers, ready for JSON.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3))
        >>> names = add_lora(model, rank=1, layers="0")
        >>> describe_adapters(model)["0"]["alpha"]
        16.0
    """
    return {name: layer.settings for name, layer in lora_layers(model).items()}


def trainable_parameters(model: nn.Module) -> int:
    """Count the numbers that training would change.

    Args:
        model: any model.

    Returns:
        How many numbers its parameters hold that are not frozen; tied ones count once.

    Example:
        >>> model = nn.Sequential(nn.Linear(100, 100))
        >>> names = add_lora(model, rank=1, layers="0")
        >>> trainable_parameters(model), 100 * 100 + 100
        (200, 10100)
    """
    return sum(part.numel() for part in model.parameters() if part.requires_grad)


@torch.no_grad()
def merge_lora(model: nn.Module) -> None:
    """Add each adapter to the matrix beside it, in place; no adapter is left.

    The model then has the parts that it had before, computes what it did with adapters, up to
    rounding, and can be saved as any other. What could be trained before can be again. A sum cannot
    be undone: keep the adapters with :func:`~transformer_lib.models.lora_files.save_lora`, too.

    Args:
        model: a model with adapters.

    Raises:
        ValueError: if it has none, or if a layer is no plain ``nn.Linear``, such as a quantised
            one, whose matrix cannot take the sum.

    Example:
        >>> model, x = nn.Sequential(nn.Linear(2, 3)), torch.ones(1, 2)
        >>> names = add_lora(model, rank=1, layers="0")
        >>> before = model(x)
        >>> merge_lora(model)
        >>> type(model[0]).__name__, torch.allclose(model(x), before)
        ('Linear', True)
    """
    layers = _adapted(model)
    for name, layer in layers.items():
        if type(layer.base) is not nn.Linear:
            kind = type(layer.base).__name__
            raise ValueError(
                f"model has a {kind} at {name}, whose matrix cannot take the sum; expected "
                "nn.Linear: leave the adapters beside it, or add them to the model before "
                "it was changed"
            )
    for layer in layers.values():
        weight = layer.base.weight
        assert isinstance(weight, Tensor)
        product = layer.product()
        weight.copy_(weight.to(product.dtype) + product)  # rounded once, in half precision too
    _put_back(model, layers)


def remove_lora(model: nn.Module) -> None:
    """Take all adapters off, in place: the model computes what it did before it got them.

    What could be trained before can be trained again.

    Args:
        model: a model with adapters.

    Raises:
        ValueError: if it has none.

    Example:
        >>> model = nn.Sequential(layer := nn.Linear(2, 3))
        >>> names = add_lora(model, rank=1, layers="0")
        >>> remove_lora(model)
        >>> model[0] is layer
        True
    """
    _put_back(model, _adapted(model))


def _adapted(model: nn.Module) -> dict[str, LoraLinear]:
    layers = lora_layers(model)
    if not layers:
        raise ValueError("model has no adapters; expected one that add_lora or load_lora gave some")
    return layers


def _put_back(model: nn.Module, layers: dict[str, LoraLinear]) -> None:
    for name, layer in layers.items():
        _put(model, name, layer.base)
    for name in vars(model).pop(_FROZEN, []):
        model.get_parameter(name).requires_grad_(True)


def _freeze(model: nn.Module) -> None:
    """Freeze all parameters; the model remembers which could be trained before."""
    # A plain attribute, which copies of the model have, too.
    vars(model)[_FROZEN] = [name for name, each in model.named_parameters() if each.requires_grad]
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Let a layer stand at a name."""
    owner, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(owner), own_name, layer)


def _is_linear(part: nn.Module) -> bool:
    sizes = (getattr(part, name, None) for name in ("in_features", "out_features"))
    return all(isinstance(size, int) for size in sizes)


def _sizes(layer: nn.Module) -> tuple[int, int]:
    n_in, n_out = layer.in_features, layer.out_features
    assert isinstance(n_in, int) and isinstance(n_out, int)  # noqa: PT018  (see above)
    return n_in, n_out


def _place(base: nn.Module) -> tuple[torch.dtype, torch.device | None]:
    """In which precision an adapter is, and where: where the layer is, and precise enough to learn.

    A step that is small beside a weight would be rounded away in half precision.
    """
    tensors: Iterable[Tensor] = [*base.parameters(), *base.buffers()]
    dtype, device = torch.float32, None
    for tensor in tensors:
        device = tensor.device
        if tensor.is_floating_point():
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype, device


def _shared(model: nn.Module) -> dict[int, list[str]]:
    """All names of each parameter; one that is tied has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def _chosen(model: nn.Module, layers: str | Sequence[str]) -> list[str]:
    """The names of the linear layers that a user asks for, in the order of the model."""
    linear = [name for name, part in model.named_modules() if name and _is_linear(part)]
    if layers == "all":
        names = [name for name in linear if _IN_A_BLOCK.search(name)]
        if not names:
            raise ValueError("layers='all' means those of blocks, and model has none; name some")
        return names
    chosen: set[str] = set()
    for pattern in [layers] if isinstance(layers, str) else layers:
        fitting = [name for name in linear if fnmatchcase(f".{name}", f"*.{pattern}")]
        if not fitting:
            known = ", ".join(sorted({repr(name.split(".")[-1]) for name in linear})) or "none"
            raise ValueError(
                f"layers holds {pattern!r}, which fits no linear layer; expected the end of a name "
                f"such as {known}, or 'all'"
            )
        chosen.update(fitting)
    if not chosen:
        raise ValueError(f"{layers=} chooses nothing; expected the end of a layer's name")
    return [name for name in linear if name in chosen]
