"""Eval twin: a copy of a model in eval mode that shares its weights."""

from typing import Generic, TypeVar

from torch import nn

from transformer_lib.core.fingerprint import Fingerprint

_Model = TypeVar("_Model", bound=nn.Module)


class Twin(Generic[_Model]):
    """The same model in evaluation mode, beside the model, which is neither written to nor called.

    Its parts are copies, its weights are the model's. Only models whose parts are all of this
    library or of PyTorch have one: another class may keep notes on itself, a hook may compare
    modules, a ``forward`` of one's own may call the model's parts.

    Args:
        model: any model.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
        >>> twin = Twin(model).refreshed()
        >>> twin[0].weight is model[0].weight, twin[1].training
        (True, False)
        >>> handle = model[0].register_forward_hook(lambda *_: None)
        >>> Twin(model).refreshed() is None
        True
    """

    def __init__(self, model: _Model) -> None:
        self._model = model
        self._fingerprint: Fingerprint | None = None
        self._twins: dict[nn.Module, nn.Module] = {}

    def refreshed(self) -> _Model | None:
        """Return the twin as the model is now, or nothing where it could differ from it."""
        if self._fingerprint is None or not self._fingerprint.holds():
            self._fingerprint = Fingerprint(self._model.modules(), to_compare=True)
            self._twins = _copies(self._model) if self._fingerprint.is_plain else {}
        if not self._twins:
            return None
        for part, twin in self._twins.items():
            _take_over(twin, part)
        found = self._twins[self._model]
        assert isinstance(found, type(self._model))
        return found


def shared_copy(model: _Model) -> _Model:
    """Copy a model in evaluation mode: its parts are new, its weights are those of the model.

    Parts of the copy can be exchanged for faster ones, while the model may be trained. Its weights,
    buffers and hooks are the model's: what is done to them is done to the model.

    Args:
        model: any model.

    Returns:
        A copy that sees every change of the weights.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> shared_copy(model)[0].weight is model[0].weight
        True
    """
    twin = _copies(model)[model]
    assert isinstance(twin, type(model))
    return twin


def _copies(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """A twin for each module; what comes twice in the model has one."""
    twins: dict[nn.Module, nn.Module] = {
        part: object.__new__(type(part)) for part in model.modules()
    }
    for part, twin in twins.items():
        vars(twin)["_modules"] = {
            name: None if child is None else twins[child] for name, child in part._modules.items()
        }
        _take_over(twin, part)
    return twins


def _take_over(twin: nn.Module, part: nn.Module) -> None:
    """Give a twin all that its original has now, but for parts and mode."""
    own, its = vars(twin), vars(part)
    kept = {"_modules": own["_modules"], "training": False}
    own.update(its)
    if len(own) != len(its):  # the original has lost something
        own.clear()
        own.update(its)
    own.update(kept)
    own.pop("_compiled_call_impl", None)  # it would call the original
