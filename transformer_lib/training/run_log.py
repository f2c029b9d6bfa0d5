"""What a training run writes down, for people to look at."""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypedDict, runtime_checkable

from transformer_lib.core.files import write_file


class Metrics(TypedDict):
    """The numbers of one step: a row of ``metrics.csv``.

    Args:
        step: which one, counted from 1.
        tokens: how many targets there were in all steps so far.
        loss: the mean that this step made smaller.
        learning_rate: of this step.
        grad_norm: the length of the gradient, before it was clipped.
        validation_loss: if this step was followed by a validation, else ``None``.
        perplexity: of the validation.

    Example:
        >>> Metrics(
        ...     step=1,
        ...     tokens=32,
        ...     loss=2.3,
        ...     learning_rate=0.1,
        ...     grad_norm=1.5,
        ...     validation_loss=None,
        ...     perplexity=None,
        ... )["loss"]
        2.3
    """

    step: int
    tokens: int
    loss: float
    learning_rate: float
    grad_norm: float
    validation_loss: float | None
    perplexity: float | None


COLUMNS = tuple(Metrics.__annotations__)


@runtime_checkable
class _Board(Protocol):
    """As much as is needed here of TensorBoard's writer."""

    def add_scalar(self, name: str, value: float, step: int, /) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class MetricsLog:
    """Where rows go: ``metrics.csv``, a picture, TensorBoard; nowhere without a folder.

    Args:
        folder: where the files shall be, or ``None``.
        rows: the rows so far; the caller adds to this list.

    Example:
        >>> log = MetricsLog(None, [])
        >>> log.draw()
        >>> log.close()
    """

    def __init__(self, folder: Path | None, rows: list[Metrics]) -> None:
        self.folder, self.rows, self.clock = folder, rows, time.perf_counter()
        self.board: _Board | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            lines = [",".join(COLUMNS) + "\n", *map(_line, rows)]
            write_file(folder / "metrics.csv", "".join(lines).encode())
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (optional)

                next_step = rows[-1]["step"] + 1 if rows else 1
                self.board = SummaryWriter(folder / "tensorboard", purge_step=next_step)

    def add(self, row: Metrics) -> str:
        """Write the row that was added last; return what the progress bar shall say."""
        if self.folder is not None:
            with (self.folder / "metrics.csv").open("a", encoding="utf-8") as file:
                file.write(_line(row))
        if self.board is not None:
            for name, value in row.items():
                if name != "step" and isinstance(value, int | float):
                    self.board.add_scalar(name, value, row["step"])
        before, self.clock = self.clock, time.perf_counter()
        tokens = row["tokens"] - (self.rows[-2]["tokens"] if len(self.rows) > 1 else 0)
        return f"loss {row['loss']:.4f}, {tokens / (self.clock - before):,.0f} tokens/s"

    def draw(self) -> None:
        """Draw the losses so far, if matplotlib is installed."""
        if self.folder is None:
            return
        if self.board is not None:
            self.board.flush()
        with suppress(ImportError):
            from matplotlib.figure import Figure  # noqa: PLC0415  (optional)

            losses = [(row["step"], row["loss"]) for row in self.rows]
            judged = [(row["step"], row["validation_loss"]) for row in self.rows]
            judged = [(step, loss) for step, loss in judged if loss is not None]
            figure = Figure(figsize=(7, 4), layout="constrained")
            axes = figure.subplots()
            for name, drawn in (("loss", losses), ("validation_loss", judged)):
                if drawn:
                    axes.plot(*zip(*drawn, strict=True), label=name)
            axes.set(xlabel="step", ylabel="loss of a target, in nats")
            axes.legend()
            unfinished = self.folder / ".curve.svg"
            figure.savefig(unfinished)
            unfinished.replace(self.folder / "curve.svg")

    def close(self) -> None:
        """Let TensorBoard's writer end its file and its thread."""
        if self.board is not None:
            self.board.close()


def _line(row: Metrics) -> str:
    values: Mapping[str, object] = row
    return ",".join("" if values[name] is None else repr(values[name]) for name in COLUMNS) + "\n"
