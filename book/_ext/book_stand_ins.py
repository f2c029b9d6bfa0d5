"""API pages without the deep-learning stack: stand-ins take its place while the library is read.

autodoc imports the modules that it documents, and they import PyTorch, NumPy and others: gigabytes,
of which the pages show nothing but names. So the library is imported once, before the first page is
read, with stand-ins for the packages of :data:`REPLACED`, whether these are installed or not: the
pages are the same everywhere. Then the stand-ins go, and no other code meets them.

Sphinx has mocks of its own (``autodoc_mock_imports``), but they are objects where annotations need
classes: ``torch.dtype | None`` fails on them, and ``Float[Tensor, "B T D"]`` loses its shape.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pkgutil import walk_packages
from types import FunctionType, GenericAlias, ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

DOCUMENTED = ("transformer_lib", "transformer_book")
REPLACED = frozenset(
    ("contourpy", "jaxtyping", "matplotlib", "numpy", "safetensors", "seaborn", "torch", "tqdm")
)
# What the library tries to import and can do without: the pages are those of a machine without it.
REFUSED = frozenset({"triton"})
# Pages show a few names in full: where a class is defined, if not where it is imported from.
HOMES = {
    "matplotlib.axes.Axes": "matplotlib.axes._axes",
    "torch.Generator": "torch._C",
    "torch.nn.Embedding": "torch.nn.modules.sparse",
    "torch.nn.Module": "torch.nn.modules.module",
    "torch.nn.Parameter": "torch.nn.parameter",
    "torch.optim.Optimizer": "torch.optim.optimizer",
}
OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rand", "ror", "rxor"),
    *("lt", "le", "gt", "ge", "neg", "invert", "abs", "getitem", "setitem"),
)


def package_of(module: str) -> str:
    """Return the first part of a module's name.

    Example:
        >>> package_of("torch.nn.functional")
        'torch'
    """
    return module.partition(".")[0]


class _Kind(ABCMeta):
    """The class of all stand-ins; they are classes, since the library annotates and inherits."""

    inventing = False  # only while the library is imported: autodoc asks bases for members later

    def __getattr__(cls, name: str) -> Any:
        # Not for a class of the library that inherits from a stand-in: it has only what it says.
        foreign = package_of(cls.__module__) in REPLACED
        if name.startswith("__") or not (foreign and _Kind.inventing):
            raise AttributeError(name)
        found = make_class(f"{cls.__module__}.{cls.__name__}", name)
        setattr(cls, name, found)
        return found

    def __getitem__(cls, key: Any) -> Any:
        """Make what the real class makes of the brackets, since pages spell it out."""
        if cls.__module__ == "jaxtyping":
            array, shape = key
            return make_class("jaxtyping", f"{cls.__name__}[{array.__name__}, {shape.strip()!r}]")
        if cls.__name__ == "NDArray":
            array, dtype = make_class("numpy", "ndarray"), make_class("numpy", "dtype")
            return array[tuple[Any, ...], dtype[key]]
        return GenericAlias(cls, key)


class _Small(_Kind):
    """The class of stand-ins whose names are written small: functions, namespaces, values."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Call a function; a decorator leaves what it decorates as it is."""
        decorates = args and isinstance(args[0], FunctionType)
        return args[0] if decorates else super().__call__(*args, **kwargs)

    def __repr__(cls) -> str:
        return f"{cls.__module__}.{cls.__name__}"  # such as torch.float32


class StandIn(metaclass=_Kind):
    """An instance of any stand-in: everything can be done with it, and nothing happens."""

    # Without annotations like that of PyTorch's Module, which pages show.
    def __init__(self, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
        """Take anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Stand for a method, or for a decorator, which leaves its function as it is."""
        return args[0] if args and isinstance(args[0], FunctionType) else StandIn()


for _operator in OPERATORS:
    setattr(StandIn, f"__{_operator}__", lambda self, *others: StandIn())


@cache
def make_class(module: str, name: str) -> Any:
    """Make the stand-in for something of a module: for a class, a function or a value."""
    kind = _Small if name[0].islower() else _Kind
    return kind(name, (StandIn,), {"__module__": HOMES.get(f"{module}.{name}", module)})


class _Module(ModuleType):
    """A module that has whatever it is asked for."""

    __path__: list[str] = []  # noqa: RUF012  (it is a package without files)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_class(self.__name__, name)


class _Finder(MetaPathFinder, Loader):
    """Finds the stand-ins before anything else is found."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return where a module comes from: from here, or from elsewhere."""
        return ModuleSpec(fullname, self) if package_of(fullname) in REPLACED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the module."""
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty: it invents what it is asked for."""


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if package_of(name) in REPLACED | REFUSED]
    return {name: sys.modules.pop(name) for name in names}


@contextmanager
def stand_ins() -> Iterator[None]:
    """Replace the packages; afterwards all imports are as they were."""
    real = _take_out()
    sys.modules.update(dict.fromkeys(REFUSED))  # nobody finds them, whoever looks, in whatever way
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    _Kind.inventing = True
    try:
        yield
    finally:
        _Kind.inventing = False
        sys.meta_path.remove(finder)
        _take_out()
        sys.modules.update(real)


def import_library(*_: object) -> None:
    """Import all modules that pages may document, with stand-ins for what they import."""
    with stand_ins():
        for package in DOCUMENTED:
            for module in walk_packages(import_module(package).__path__, f"{package}."):
                if not module.name.endswith(".__main__"):  # a command, not a module to read
                    _import_one(module.name)


def _import_one(name: str) -> None:
    try:
        import_module(name)
    except Exception as error:
        raise ExtensionError(
            f"{name} cannot be imported with stand-ins for {', '.join(sorted(REPLACED))}: what it "
            f"computes while it is imported must not depend on the numbers in a tensor ({error})"
        ) from error


def setup(app: Sphinx) -> dict[str, bool]:
    """Import the library before the first page is read."""
    app.connect("env-before-read-docs", import_library)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
