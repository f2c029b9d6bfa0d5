"""Every PyTorch function that a model calls, recorded as a step."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from transformer_lib.layers.quantized_linear import QuantizedLinear
from transformer_lib.tracing.dimension_letters import (
    ELEMENTWISE,
    RULES,
    Letters,
    complete_letters,
    declared_letters,
)
from transformer_lib.tracing.step_wording import PART_OF_NEXT_STEP, Words, words_for

_PRODUCTS = ("linear", "matmul", "mm", "bmm")
_JOINS = ("matmul", "mm", "bmm", "cat", "index_add")  # all their inputs are shown


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
        >>> from transformer_lib import trace
        >>> step = trace(nn.Linear(3, 4), torch.zeros(2, 3)).steps[0]
        >>> (
        ...     step.what,
        ...     step.output_sizes,
        ...     step.parameters,
        ...     step.flops,
        ...     step.bytes,
        ... )
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


@dataclass(frozen=True)
class _Call:
    """One call of a PyTorch function, and what it returned."""

    name: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    inputs: list[Tensor]
    outputs: list[Tensor]

    @property
    def number(self) -> float | None:
        """The first number among the arguments."""
        return next((x for x in self.args if isinstance(x, int | float)), None)

    @property
    def flops(self) -> int:
        if self.name not in _PRODUCTS:
            return 0
        return 2 * self.outputs[0].numel() * self.inputs[0].shape[-1]


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
        self._running: list[tuple[str, nn.Module]] = []  # path and module, outermost first
        self._letters = WeakTensorKeyDictionary()  # of each tensor that flows through the model
        self._origins = WeakTensorKeyDictionary()  # the tensor with which its step began
        self._used: set[Tensor] = set()  # parameters
        self._asked = 0  # how often an expert asked for its tokens on the meta device
        self._paths: dict[nn.Module, list[str]] = {}  # a module that is shared has several
        for path, module in model.named_modules(remove_duplicate=False):
            self._paths.setdefault(module, []).append(path)

    def enter(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Note that a module starts, and name its inputs as its annotations do.

        Args:
            module: the module.
            args: what its forward pass is given.
            kwargs: what its forward pass is given by name.
        """
        above = self._running[-1][0] if self._running else ""
        paths = self._paths[module]
        is_part = bool(self._running)
        self._running.append((next((p for p in paths if p.startswith(above)), paths[0]), module))
        signature = inspect.signature(module.forward)
        given = [
            (value, declared_letters(signature.parameters[name].annotation, value))
            for name, value in signature.bind_partial(*args, **kwargs).arguments.items()
            if isinstance(value, Tensor)
        ]
        outside: dict[str, str] = {}  # what the module calls T may be S in the whole model
        for value, letters in given:
            outside |= dict(zip(letters, self._letters.get(value, ()), strict=False))
        for value, letters in given:
            # A table of distances is made on the way. Whose positions, no annotation can say.
            is_table = is_part and not value.is_floating_point() and {"T", "S"} <= set(letters)
            if letters and value not in self._letters and not is_table:
                self._name(value, tuple(outside.get(x, x) if x.isalpha() else x for x in letters))

    def leave(self, *_: object) -> None:
        """Note that the innermost module is done."""
        self._running.pop()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        name = _name_of(func)
        if name == "nonzero" and isinstance(args[0], Tensor) and args[0].is_meta:
            return self._equal_share(args[0])
        result = func(*args, **kwargs)
        outputs = _tensors_in(result)
        if outputs and self._running:
            self._follow(_Call(name, args, kwargs, _tensors_in((args, kwargs)), outputs))
        return result

    def _follow(self, call: _Call) -> None:
        """Name what a call returns, and record it unless it is a part of the next step."""
        words, output = self._words(call.name), call.outputs[0]
        named = [x for x in call.inputs if x in self._letters]
        if not _flows(named, output) and not _begins_to_flow(words, output):
            return  # a mask or a position
        letters = complete_letters(self._moved_letters(call), words.ends, output.shape)
        for x in call.outputs:
            self._name(x, letters)
        what = words.say("".join(self._letters_of(output)[-1:]), call.number)
        flowing = [x for x in named if x.is_floating_point()] or named or call.inputs[:1]
        origins = [self._origins.get(x, x) for x in flowing]
        if not what or _is_half_rotated(letters):  # a part of the next step
            self._origins.update((x, origins[0]) for x in call.outputs if x is not origins[0])
        elif output.is_floating_point():
            self._record(what, call, origins)

    def _words(self, name: str) -> Words:
        """Look up what a function does here; a plain layer does what its parent has it for."""
        path, caller = self._running[-1]
        if isinstance(caller, QuantizedLinear) and name != "linear":
            return PART_OF_NEXT_STEP  # its codes become a matrix
        if (
            isinstance(caller, nn.Linear | nn.Embedding | QuantizedLinear)
            and len(self._running) > 1
        ):
            caller, name = self._running[-2][1], path.rpartition(".")[2]
        return words_for(caller, name)

    def _record(self, what: str, call: _Call, inputs: list[Tensor]) -> None:
        path, module = self._running[-1]
        output = call.outputs[0]
        weights = {x for x in call.inputs if isinstance(x, nn.Parameter)}
        first_used, self._used = weights - self._used, self._used | weights
        if call.name not in _JOINS:  # one input is enough: the one that keeps its shape
            kept = [x for x in inputs if x.shape == output.shape and call.name in ELEMENTWISE]
            inputs = (kept or inputs)[:1]
        memory = output.untyped_storage()._cdata
        is_view = any(x.untyped_storage()._cdata == memory for x in inputs)
        step = Step(
            module=path,
            section=path if next(module.children(), None) else path.rpartition(".")[0],
            what=what + " (tied)" * (first_used != weights),
            inputs=tuple(" ".join(self._letters_of(x)) for x in inputs),
            output=" ".join(self._letters_of(output)),
            input_sizes=tuple(tuple(x.shape) for x in inputs),
            output_sizes=tuple(output.shape),
            parameters=sum(weight.numel() for weight in first_used),
            flops=call.flops,
            bytes=0 if is_view else output.numel() * output.element_size(),
        )
        self.steps.append(step)

    def _moved_letters(self, call: _Call) -> Letters:
        """Say where a function takes the letters of its inputs; nothing if no rule knows."""
        rule = RULES.get(call.name)
        if rule is None:
            return ()
        in_letters = tree_map(
            lambda x: self._letters_of(x) if isinstance(x, Tensor) else x, call.args
        )
        return rule(*in_letters, **call.kwargs)

    def _letters_of(self, x: Tensor) -> Letters:
        letters: Letters = self._letters.get(x, tuple(map(str, x.shape)))
        return letters

    def _name(self, x: Tensor, letters: Letters) -> None:
        self._letters[x] = tuple(
            str(size) if name.isalpha() and self.sizes.setdefault(name, size) != size else name
            for name, size in zip(letters, x.shape, strict=True)
        )

    def _equal_share(self, mask: Tensor) -> tuple[Tensor, ...]:
        """Which tokens an expert gets, as if they were shared out evenly: there are no values."""
        n = len(list(self._running[-1][1].get_submodule("experts").children()))
        i, self._asked = self._asked % n, self._asked + 1
        share = mask.numel() * (i + 1) // n - mask.numel() * i // n
        return tuple(torch.empty(share, dtype=torch.long, device="meta") for _ in mask.shape)


def _flows(named: list[Tensor], output: Tensor) -> bool:
    """Whether a call goes on with what flows through the model; ids may become other ids."""
    to_numbers = output.is_floating_point()
    return any(x.is_floating_point() or not to_numbers for x in named)


def _begins_to_flow(words: Words, output: Tensor) -> bool:
    """Whether a call makes real numbers whose letters are known, such as a table of positions."""
    return output.is_floating_point() and bool(words.ends)


def _is_half_rotated(letters: Letters) -> bool:
    """Whether a head was split in two halves, as ``Dk/2`` says: a rotation has begun."""
    return any("/" in letter for letter in letters)


def _name_of(func: Callable[..., object]) -> str:
    """The name of a function, or of the attribute that it reads, such as ``mT``."""
    owner = getattr(func, "__self__", func) if func.__name__ == "__get__" else func
    return str(owner.__name__)


def _tensors_in(values: object) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]
