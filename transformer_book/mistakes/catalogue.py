"""What a mistake is, how it is made, and how it is taken back."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

from torch import Tensor, nn

from transformer_lib import MultiHeadAttention, check_choice

Function = TypeVar("Function", bound=Callable[..., Any])
Maybe = Tensor | None


@dataclass(frozen=True)
class Mistake:
    """One way to build a Transformer wrongly.

    Args:
        name: what :func:`mistake` calls it.
        wrong: what is done wrong.
        symptom: what one sees.
        caught_by: the test that fails, as ``"file::function"`` in ``tests/lib``.
        targets: what is replaced, such as ``"layers.attention.MultiHeadAttention.forward"``.
        function: the wrong version that takes its place.

    Example:
        >>> MISTAKES["mean-counts-pads"].wrong
        'The mean over a sequence counts its padding.'
        >>> print(MISTAKES["mean-counts-pads"].source)
        def _mean_counts_pads(x: Tensor, mask: Maybe = None) -> Tensor:
            return x.mean(dim=1)
    """

    name: str
    wrong: str
    symptom: str
    caught_by: str
    targets: tuple[str, ...]
    function: Callable[..., Any]

    @property
    def source(self) -> str:
        """The wrong version as it is written, without its docstring."""
        whole = inspect.getsource(self.function)
        head, _, rest = whole[whole.index("def ") :].partition('    """')
        return head + rest.partition('"""\n')[2].rstrip()


MISTAKES: dict[str, Mistake] = {}


def mistake(name: str) -> AbstractContextManager[Mistake]:
    """Make a mistake on purpose until the end of the ``with`` block.

    Meanwhile models attend along the readable path, where mistakes can be read.

    Args:
        name: a key of ``MISTAKES``.

    Returns:
        A context manager; ``as`` gives the :class:`Mistake`.

    Raises:
        ValueError: if there is no such mistake.

    Example:
        >>> import torch
        >>> attend = MultiHeadAttention(d_model=8, n_heads=2)
        >>> x = torch.randn(1, 5, 8)
        >>> right = attend(x)
        >>> with mistake("no-scale"):
        ...     wrong = attend(x)
        >>> torch.allclose(wrong, right), torch.allclose(attend(x), right)
        (False, True)
    """
    check_choice("name", name, tuple(MISTAKES))
    return _made(MISTAKES[name])


@contextmanager
def _made(found: Mistake) -> Iterator[Mistake]:
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(MultiHeadAttention, "fused", False))
        for target in found.targets:
            patches.enter_context(mock.patch(f"transformer_lib.{target}", found.function))
        yield found


@contextmanager
def with_part(module: nn.Module, name: str, part: object) -> Iterator[None]:
    """Let a module have another part, or another setting, until the end of the ``with`` block.

    Args:
        module: the module.
        name: of the part.
        part: what takes its place.

    Example:
        >>> layer = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> with with_part(layer, "1", nn.Identity()):
        ...     layer[1]
        Identity()
        >>> layer[1]
        ReLU()
    """
    own = getattr(module, name)
    setattr(module, name, part)
    try:
        yield
    finally:
        setattr(module, name, own)


def instead_of(*targets: str) -> Callable[[Function], Function]:
    """Enter a wrong version in the catalogue; its name and its docstring say the rest.

    Args:
        targets: what it replaces, such as ``"layers.attention.MultiHeadAttention.forward"``.

    Returns:
        A decorator that leaves the function as it is.

    Example:
        >>> MISTAKES["no-scale"].targets
        ('layers.attention.attention',)
    """

    def enter(function: Function) -> Function:
        wrong, _, rest = (inspect.getdoc(function) or "").partition("\n\nSymptom: ")
        symptom, _, caught_by = rest.partition("\nCaught by: ")
        name = function.__name__.strip("_").replace("_", "-")
        MISTAKES[name] = Mistake(name, wrong, symptom, caught_by, targets, function)
        return function

    return enter
