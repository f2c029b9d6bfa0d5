"""Every PyTorch function a model calls, in words and letters.

Letters travel with the tensors. A model's inputs are named by the annotations of its forward pass,
and a rule for each function says where the letters go: ``transpose`` takes them along. None is
guessed from sizes that happen to be equal; where no rule knows a letter, the size stands for it.
The words are in ``recording.toml``, beside this file.
"""

import inspect
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from transformer_lib.checks import LETTERS

Letters = tuple[str, ...]

STEP_LETTERS = {
    **LETTERS,
    "G": "heads with keys and values of their own, where they are fewer than H",
    "E": "experts in a mixture",
    "C": "classes",
}

# What a class does when it calls a child or a function, in words; the file says how to read them.
ROLES: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Step:
    """One step of a forward pass.

    Args:
        module: the path of the module that ran, such as ``"stack.blocks.0.attention.query"``.
        section: the same, or the path of its parent if the module has no parts of its own.
        what: what the step does, in words.
        inputs: the letters of each input, such as ``("B T D",)``; see ``STEP_LETTERS``.
        output: the letters of the output.
        input_sizes: the sizes of each input.
        output_sizes: the sizes of the output.
        parameters: learned numbers that are used here for the first time.
        flops: floating-point operations, of matrix products alone (a multiply-add is two).
        bytes: new memory that the output takes; 0 if it is a view of what was there.

    Example:
        >>> from transformer_lib.tracing import trace
        >>> step = trace(nn.Linear(3, 4), torch.zeros(2, 3)).steps[0]
        >>> step.what, step.output_sizes, step.parameters, step.flops, step.bytes
        ('linear', (2, 4), 16, 48, 32)
    """

    module: str
    section: str
    what: str
    inputs: tuple[str, ...]
    output: str
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[int, ...]
    parameters: int
    flops: int
    bytes: int


class Recorder(TorchFunctionMode):
    """Sees every PyTorch function that is called; hooks tell it which module calls.

    Args:
        model: whose modules will run.

    Attributes:
        steps: what was recorded so far.
        sizes: the size of each letter. A letter has one size: a dimension that would give it
            another one is shown as a number.

    Example:
        >>> linear, x = nn.Linear(3, 4), torch.zeros(2, 3)
        >>> recorder = Recorder(linear)
        >>> recorder.enter(linear, (x,), {})
        >>> with recorder:
        ...     output = linear(x)
        >>> [step.what for step in recorder.steps]
        ['linear']
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.sizes: dict[str, int] = {}
        self._open: list[tuple[str, nn.Module]] = []  # the modules that run, outermost first
        self._letters = WeakTensorKeyDictionary()  # of each tensor that flows through the model
        self._origins = WeakTensorKeyDictionary()  # the tensor with which its step began
        self._used: set[Tensor] = set()  # parameters
        self._asked = 0  # how often an expert asked for its tokens on the meta device
        self._paths: dict[nn.Module, list[str]] = {}  # a module that is shared has several
        for path, module in model.named_modules(remove_duplicate=False):
            self._paths.setdefault(module, []).append(path)

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note that a module starts, and name its inputs as its annotations do.

        Args:
            module: the module.
            args: what its forward pass is given.
            kwargs: what its forward pass is given by name.
        """
        above = self._open[-1][0] if self._open else ""
        paths = self._paths[module]
        self._open.append((next((p for p in paths if p.startswith(above)), paths[0]), module))
        signature = inspect.signature(module.forward)
        given = [
            (value, _declared(signature.parameters[name].annotation, value))
            for name, value in signature.bind_partial(*args, **kwargs).arguments.items()
            if isinstance(value, Tensor)
        ]
        outside: dict[str, str] = {}  # what the module calls T may be S in the whole model
        for value, letters in given:
            outside |= dict(zip(letters, self._letters.get(value, ()), strict=False))
        for value, letters in given:
            if letters and value not in self._letters:
                self._name(value, tuple(outside.get(x, x) if x.isalpha() else x for x in letters))

    def leave(self, *_: Any) -> None:
        """Note that the innermost module is done."""
        self._open.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.__name__
        if name == "__get__":  # of an attribute, such as x.mT
            name = func.__self__.__name__  # type: ignore[attr-defined]
        if name == "nonzero" and args[0].is_meta:
            return self._equal_share(args[0])
        result = func(*args, **(kwargs or {}))
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if outputs and self._open:
            self._follow(name, args, kwargs or {}, outputs)
        return result

    def _follow(self, name: str, args: Any, kwargs: Any, outputs: list[Tensor]) -> None:
        """Name the outputs of a call, and record it unless it is a part of the next step."""
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        known = [x for x in given if x in self._letters]
        path, caller = self._open[-1]
        called, output = name, outputs[0]
        if isinstance(caller, nn.Linear | nn.Embedding) and len(self._open) > 1:
            caller, called = self._open[-2][1], path.rpartition(".")[2]
        _, names = _role(caller, called)
        real = output.is_floating_point()
        if not (real and names) and not any(x.is_floating_point() >= real for x in known):
            return  # a mask or a position: nothing that flows through the model
        rule = _RULES.get(name)
        moved = rule(*tree_map(self._read, args), **kwargs) if rule else ()
        letters = _complete(moved, names, output.shape)
        for x in outputs:
            self._name(x, letters)
        number = next((f"{x:.4g}" for x in args if isinstance(x, int | float)), "a tensor")
        what, _ = _role(caller, called, *self._letters[output][-1:], number)
        flowing = [x for x in known if x.is_floating_point()] or known or given[:1]
        inputs = [self._origins.get(x, x) for x in flowing]
        if not what or "/" in "".join(letters):
            self._origins.update((x, inputs[0]) for x in outputs if x is not inputs[0])
        elif real:
            self._record(what.format(number), name, given, inputs, output)

    def _record(
        self, what: str, name: str, given: list[Tensor], inputs: list[Tensor], output: Tensor
    ) -> None:
        path, module = self._open[-1]
        weights = {x for x in given if isinstance(x, nn.Parameter)}
        first_used, self._used = weights - self._used, self._used | weights
        if name not in _JOINS:  # one input is enough: the one that keeps its shape
            kept = [x for x in inputs if x.shape == output.shape and _RULES.get(name) is _meet]
            inputs = (kept or inputs)[:1]
        memory = output.untyped_storage()._cdata
        is_view = any(x.untyped_storage()._cdata == memory for x in inputs)
        step = Step(
            module=path,
            section=path if next(module.children(), None) else path.rpartition(".")[0],
            what=what + " (tied)" * (first_used != weights),
            inputs=tuple(" ".join(self._read(x)) for x in inputs),
            output=" ".join(self._read(output)),
            input_sizes=tuple(tuple(x.shape) for x in inputs),
            output_sizes=tuple(output.shape),
            parameters=sum(weight.numel() for weight in first_used),
            flops=2 * output.numel() * given[0].shape[-1] if name in _PRODUCTS else 0,
            bytes=0 if is_view else output.numel() * output.element_size(),
        )
        self.steps.append(step)

    def _name(self, x: Tensor, letters: Letters) -> None:
        self._letters[x] = tuple(
            str(size) if name.isalpha() and self.sizes.setdefault(name, size) != size else name
            for name, size in zip(letters, x.shape, strict=True)
        )

    def _read(self, x: Any) -> Any:
        return self._letters.get(x, tuple(map(str, x.shape))) if isinstance(x, Tensor) else x

    def _equal_share(self, mask: Tensor) -> tuple[Tensor, ...]:
        """Which tokens an expert gets, as if they were shared out evenly: there are no values."""
        n = len(list(self._open[-1][1].get_submodule("experts").children()))
        i, self._asked = self._asked % n, self._asked + 1
        share = mask.numel() * (i + 1) // n - mask.numel() * i // n
        return tuple(torch.empty(share, dtype=torch.long, device="meta") for _ in mask.shape)


def _declared(annotation: object, x: Tensor) -> Letters:
    """The letters of a jaxtyping annotation, sizes where it has none; nothing for ``...``."""
    kinds = (annotation, *get_args(annotation))
    names = " ".join(getattr(kind, "dim_str", "") for kind in kinds).split()
    if names == ["..."]:
        return ()
    if names and names[0].startswith("*"):  # any leading dimensions
        names = ["B", "T"][: x.ndim - len(names) + 1] + names[1:]
    if len(names) != x.ndim:
        names = [""] * x.ndim
    return tuple(
        name.lstrip("#") if name.lstrip("#") in LETTERS and (name, size) != ("#B", 1) else str(size)
        for name, size in zip(names, x.shape, strict=True)
    )


def _role(caller: nn.Module, called: str, *details: str) -> tuple[str, Letters]:
    """Look up what a call does, and the last letters of its result; by default, its own name."""
    roles = ROLES[""] | ROLES.get(type(caller).__name__, {})
    keys = (*(f"{called} {detail}" for detail in details), called)
    role = next((roles[key] for key in keys if key in roles), called.strip("_"))
    what, _, names = role.partition(" | ")
    if getattr(caller, "n_kv_heads", None) == getattr(caller, "n_heads", 0):
        names = names.replace("G", "H")
    return what, tuple(names.split())


def _complete(letters: Letters, names: Letters, shape: torch.Size) -> Letters:
    """Fill in what is not known: with the names of a role at the end, otherwise with sizes."""
    unknown = (".",) * len(shape)
    letters = letters if len(letters) == len(shape) else unknown
    names = (unknown + names)[len(names) :] if len(names) <= len(shape) else unknown
    return tuple(
        name if name != "." else letter if letter != "." else str(size)
        for name, letter, size in zip(names, letters, shape, strict=True)
    )


def _meet(*args: Any, **_: Any) -> Letters:
    """Name the result of an elementwise function: of what meets in a dimension, the letter wins."""
    inputs = [reversed(x) for x in args if isinstance(x, tuple) and x and isinstance(x[0], str)]
    columns = zip_longest(*inputs, fillvalue="1")
    names = [{letter for letter in column if not letter.isdigit()} for column in columns]
    return tuple(found.pop() if len(found) == 1 else "." for found in reversed(names))


def _flatten(x: Letters, start_dim: int = 0, end_dim: int = -1) -> Letters:
    """Lay dimensions side by side: H and K make H*K, K/2 and 2 make K."""
    start, end = start_dim % len(x), end_dim % len(x) + 1
    names = [letter for letter in x[start:end] if not letter.isdigit()]
    numbers = [letter for letter in x[start:end] if letter.isdigit()]
    joined = "*".join(names) if not numbers else "."
    if len(names) == 1 and names[0].endswith("/" + "".join(numbers)):
        joined = names[0].partition("/")[0]
    return (*x[:start], joined, *x[end:])


def _unflatten(x: Letters, dim: int, sizes: tuple[int, ...]) -> Letters:
    """Cut a dimension: H*K into H and K, K into K/2 and 2."""
    letter, dim = x[dim], dim % len(x)
    parts = letter.split("*")
    if len(parts) != len(sizes):
        rest = f"{letter}/{math.prod(size for size in sizes if size != -1)}"
        parts = [rest if size == -1 and letter.isalpha() else "." for size in sizes]
    return (*x[:dim], *parts, *x[dim + 1 :])


def _transpose(x: Letters, dim0: int, dim1: int) -> Letters:
    letters = list(x)
    letters[dim0], letters[dim1] = x[dim1], x[dim0]
    return tuple(letters)


def _stack(inputs: tuple[Letters, ...], dim: int = 0) -> Letters:
    at = dim % (len(inputs[0]) + 1)
    return (*inputs[0][:at], ".", *inputs[0][at:])


# The signatures are PyTorch's, with letters in the place of tensors. A dot, or the wrong number of
# letters, means: not known.
# fmt: off
_RULES: dict[str, Callable[..., Letters]] = {
    "linear": lambda x, *_: (*x[:-1], "."), "topk": lambda x, *_, **__: (*x[:-1], "."),
    "embedding": lambda ids, *_, **__: (*ids, "."), "matmul": lambda a, b: (*a[:-1], b[-1]),
    "mT": lambda x: (*x[:-2], x[-1], x[-2]), "transpose": _transpose, "flatten": _flatten,
    "unflatten": _unflatten, "stack": _stack, "view_as": lambda _, other: other,
    "unbind": lambda x, dim=0: x[: dim % len(x)] + x[dim % len(x) + 1 :],
    "repeat_interleave": lambda x, *_, **__: x, "index_add": lambda x, *_: x,
    **dict.fromkeys((
        "add", "sub", "mul", "div", "neg", "exp", "to", "zeros_like", "dropout", "softmax", "relu",
        "gelu", "silu", "tanh", "sigmoid", "masked_fill", "layer_norm", "rms_norm"), _meet),
}
# fmt: on
_PRODUCTS = ("linear", "matmul", "mm", "bmm")
_JOINS = ("matmul", "mm", "bmm", "cat", "index_add")
