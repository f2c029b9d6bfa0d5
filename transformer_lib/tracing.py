"""Watch a model at work: steps, attention weights, influence."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_lib.attention import MultiHeadAttention
from transformer_lib.blocks import Block
from transformer_lib.recording import STEP_LETTERS, Recorder, Step

COLUMNS = ("step", "shape", "sizes", "parameters", "FLOPs", "bytes")
SIDES = ("left", "left", "left", "right", "right", "right")
NOTE = "FLOPs: matrix products only, a multiply-add is 2. bytes: new memory; a view takes none."


@dataclass(frozen=True, repr=False)
class Trace:
    """All steps of a forward pass; prints as a table, in a notebook too.

    Args:
        model: the model's class.
        steps: in the order in which they ran.
        sizes: the size of each letter.

    Example:
        >>> from transformer_lib.feedforward import FeedForward
        >>> print(trace(FeedForward(4, 8), torch.zeros(2, 3, 4)))
        FeedForward: 3 steps with B=2 T=3 D=4 F=8
        <BLANKLINE>
        step               shape          sizes      parameters  FLOPs  bytes
        FeedForward
          expand           B T D → B T F  (2, 3, 8)          40    384    192
          activate (ReLU)  B T F → B T F  (2, 3, 8)           -      -    192
          contract         B T F → B T D  (2, 3, 4)          36    384     96
        total                                                76    768    480
        <BLANKLINE>
        FLOPs: matrix products only, a multiply-add is 2. bytes: new memory; a view takes none.
    """

    model: str
    steps: tuple[Step, ...]
    sizes: dict[str, int]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def total(self) -> Step:
        """Parameters, FLOPs and bytes of all steps together."""
        return _sum(self.steps, "", "total")

    def __repr__(self) -> str:
        return f"Trace({self._title})"

    def to_text(self, *, fold: bool = True) -> str:
        """Write the table for a terminal.

        Args:
            fold: whether blocks that do the same as the one before them are one line.

        Returns:
            The table. Its first line has the size of each letter, the others those of outputs.
        """
        rows: list[Sequence[str]] = [COLUMNS]
        for section, steps in self._sections(fold):
            rows += [[section], *([f"  {step.what}", *_text_cells(step)] for step in steps)]
        rows.append(["total", *_text_cells(self.total)])
        columns = zip(*(row for row in rows if len(row) > 1), strict=True)
        widths = [max(map(len, column)) for column in columns]
        line = "{{:<{}}}  {{:<{}}}  {{:<{}}}  {{:>{}}}  {{:>{}}}  {{:>{}}}".format(*widths)
        lines = [line.format(*row).rstrip() if len(row) > 1 else row[0] for row in rows]
        return "\n".join([self._title, "", *lines, "", NOTE])

    def to_html(self, *, fold: bool = True) -> str:
        """Write the table for a page.

        Args:
            fold: whether blocks that do the same as the one before them are one line.

        Returns:
            A ``<table class="trace">`` without colours of its own.
        """
        head = _html_cells(COLUMNS, 'th scope="col"')
        sections = "".join(
            f'<tbody><tr><th colspan="6" scope="rowgroup" style="text-align: left">{escape(name)}'
            f"</th></tr>{''.join(map(_html_row, steps))}</tbody>"
            for name, steps in self._sections(fold)
        )
        return (
            f'<table class="dataframe trace"><caption>{escape(self._title)}. {NOTE}</caption>'
            f"<thead>{head}</thead>{sections}"
            f"<tfoot>{_html_row(self.total)}</tfoot></table>"
        )

    __str__ = to_text
    _repr_html_ = to_html

    @property
    def _title(self) -> str:
        sizes = [f"{name}={self.sizes[name]}" for name in STEP_LETTERS if name in self.sizes]
        return f"{self.model}: {len(self)} steps with {' '.join(sizes)}"

    def _sections(self, fold: bool) -> Iterator[tuple[str, Iterator[Step]]]:
        steps = _fold(self.steps) if fold else self.steps
        return groupby(steps, key=lambda step: step.section or self.model)


def trace(model: nn.Module, *inputs: Any, **options: Any) -> Trace:
    """Run a model once and record every step.

    The model runs in eval mode, without gradients, and with the readable path of attention; it is
    left as it was. On the ``meta`` device even the largest model takes no memory. There, nobody
    knows which tokens a mixture sends where: every expert gets an equal share.

    Args:
        model: any model or part of this library; others are traced too, with fewer words.
        *inputs: what its forward pass takes. A cache among them is filled.
        **options: what its forward pass takes by name.

    Returns:
        The steps.

    Example:
        >>> attend = MultiHeadAttention(d_model=8, n_heads=2)
        >>> for step in list(trace(attend, torch.zeros(1, 3, 8)))[:3]:
        ...     print(f"{step.what}: {step.inputs[0]} -> {step.output}")
        project to queries: B T D -> B T H*K
        split heads: B T H*K -> B T H K
        swap positions and heads: B T H K -> B H T K
    """
    recorder = Recorder(model)
    with _undisturbed(model) as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(recorder.enter, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(recorder.leave))
            if isinstance(module, MultiHeadAttention):
                module.fused = False
        with recorder:
            model(*inputs, **options)
    return Trace(type(model).__name__, tuple(recorder.steps), recorder.sizes)


def attention_maps(
    model: nn.Module, *inputs: Any, **options: Any
) -> dict[str, Float[Tensor, "B H T S"]]:
    """Run a model once and return the attention weights of every layer.

    Args:
        model: any model or part of this library, which is left as it was.
        *inputs: what its forward pass takes.
        **options: what its forward pass takes by name.

    Returns:
        For the path of each ``MultiHeadAttention``, in the order in which they ran, its weights
        ``(B, H, T, S)``.

    Raises:
        ValueError: if a cache is among the inputs.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> block = Block(TransformerConfig(d_model=8, n_heads=2))
        >>> maps = attention_maps(block, torch.zeros(1, 3, 8), causal=True)
        >>> maps["attention"][0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """
    maps: dict[str, Tensor] = {}

    def keep(path: str, attend: Any, args: Any, kwargs: Any, _: Tensor) -> None:
        options = {**kwargs}
        if options.pop("store", None) is not None:
            raise ValueError("attention maps are of whole sequences: leave the cache out")
        maps[path] = attend.with_weights(*args, **options)[1]

    _run_with_hooks(model, MultiHeadAttention, keep, inputs, options)
    return maps


def hidden_states(
    model: nn.Module, *inputs: Any, **options: Any
) -> dict[str, Float[Tensor, "B T D"]]:
    """Run a model once and return the residual stream before the first and after every block.

    Args:
        model: any model or part of this library, which is left as it was.
        *inputs: what its forward pass takes.
        **options: what its forward pass takes by name.

    Returns:
        The stream ``(B, T, D)``: after the embedding as ``"...stack.input"``, after each block by
        the block's path, in the order in which they ran. The final norm is not applied.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> from transformer_lib.blocks import Stack
        >>> stack = Stack(TransformerConfig(d_model=8, n_heads=2, n_layers=2), causal=True)
        >>> list(hidden_states(stack, torch.zeros(1, 3, 8)))
        ['input', 'blocks.0', 'blocks.1']
    """
    states: dict[str, Tensor] = {}

    def keep(path: str, _: Block, args: Any, __: Any, output: Tensor) -> None:
        states.setdefault(f"{path.rpartition('blocks.')[0]}input", args[0])
        states[path] = output

    _run_with_hooks(model, Block, keep, inputs, options)
    return states


def influence(
    function: Callable[[Tensor], Tensor], x: Float[Tensor, "1 T D"]
) -> Float[Tensor, "T_out T"]:
    """Measure how strongly each input position moves each output position.

    A fixed vector is added to each position in turn, and the largest change of every output
    position is recorded. A function that works on each token alone gives a diagonal matrix; one
    that mixes tokens gives entries off the diagonal; a causal one gives a lower triangle.

    Args:
        function: maps ``(1, T, D)`` to ``(1, T_out, ...)``; a module in eval mode, for example.
        x: the input around which to measure.

    Returns:
        Entry ``[i, j]`` is the largest absolute change in output ``i`` when input ``j`` changes.

    Raises:
        ValueError: if ``x`` is not one sequence of vectors.

    Example:
        >>> influence(lambda x: 2 * x, torch.zeros(1, 3, 4))
        tensor([[2., 0., 0.],
                [0., 2., 0.],
                [0., 0., 2.]])
    """
    if x.ndim != 3 or x.shape[0] != 1:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected one sequence, (1, T, D)")
    # Not the same for all features: a norm would not notice a shift of the whole vector.
    nudge = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype, device=x.device)
    nudges = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[:, :, None] * nudge  # (T, T, D)
    with torch.no_grad():
        changes = torch.cat([function(x + one) - function(x) for one in nudges])  # (T, T_out, ...)
    return changes.abs().flatten(start_dim=2).amax(dim=-1).T


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[ExitStack]:
    """Eval mode, no gradients, and a place for hooks; afterwards every attribute is as it was."""
    before = {module: dict(vars(module)) for module in model.modules()}
    try:
        with torch.no_grad(), ExitStack() as hooks:
            model.eval()
            yield hooks
    finally:
        for module, attributes in before.items():
            vars(module).update(attributes)


def _run_with_hooks(
    model: nn.Module, kind: type[nn.Module], hook: Callable[..., None], inputs: Any, options: Any
) -> None:
    """Run a model; after each module of a kind, call the hook with its path, input and output."""
    with _undisturbed(model) as hooks:
        for path, module in model.named_modules():
            if isinstance(module, kind):
                handle = module.register_forward_hook(partial(hook, path), with_kwargs=True)
                hooks.enter_context(handle)
        model(*inputs, **options)


def _fold(steps: Sequence[Step]) -> list[Step]:
    """Replace blocks that do the same as the one before them by one line."""
    blocks = [(path, list(block)) for path, block in groupby(steps, key=_block)]
    rows: list[Step] = []
    for _, same in groupby(blocks, key=_likeness):
        (path, shown), *others = same
        rows += shown
        if others:
            first, last = others[0][0], others[-1][0].rpartition(".")[2]
            section = f"{first} to {last}" if len(others) > 1 else first
            what = f"as block {path.rpartition('.')[2]}"
            rows.append(_sum([step for _, block in others for step in block], section, what))
    return rows


def _block(step: Step) -> str:
    """The path up to its first number, such as ``"decoder.stack.blocks.0"``."""
    found = re.match(r"(.*?\.)??\d+(?=\.|$)", step.section)
    return found.group() if found else ""


def _likeness(block: tuple[str, list[Step]]) -> list[tuple[str, str]]:
    """What blocks that do the same have in common: all but numbers in their paths and shapes."""
    return [(step.what, re.sub(r"\d+", "n", step.section + _shape(step))) for step in block[1]]


def _sum(steps: Sequence[Step], section: str, what: str) -> Step:
    parameters, flops, n_bytes = (
        sum(getattr(step, name) for step in steps) for name in ("parameters", "flops", "bytes")
    )
    return Step(section, section, what, (), "", (), (), parameters, flops, n_bytes)


def _shape(step: Step) -> str:
    return f"{', '.join(step.inputs)} → {step.output}" if step.output else ""


def _text_cells(step: Step) -> tuple[str, ...]:
    sizes = str(step.output_sizes) if step.output else ""
    counts = (f"{step.parameters:,}", _short(step.flops), _short(step.bytes))
    return (_shape(step), sizes, *("-" if count == "0" else count for count in counts))


def _html_row(step: Step) -> str:
    sizes = f"{', '.join(map(str, step.input_sizes))} → {step.output_sizes}" if step.output else ""
    counts = (f"{count:,}" for count in (step.parameters, step.flops, step.bytes))
    return _html_cells((escape(step.what), f"<code>{_shape(step)}</code>", sizes, *counts))


def _html_cells(cells: Sequence[str], tag: str = "td") -> str:
    row = (
        f'<{tag} style="text-align: {side}">{cell}</{tag[:2]}>'
        for cell, side in zip(cells, SIDES, strict=True)
    )
    return f"<tr>{''.join(row)}</tr>"


def _short(number: int) -> str:
    """Write a number so that it fits a narrow column."""
    for power, unit in ((12, "T"), (9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:,.4g} {unit}"
    return f"{number:,}"
