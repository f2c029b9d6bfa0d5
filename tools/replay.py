"""Run chapters without Jupyter, on the CPU or on a GPU, and compare what they print.

    python -m tools.replay                                  # every chapter, on the CPU
    python -m tools.replay --device cuda book/05_masks.ipynb

`make nbval` proves the stored outputs on the machine that runs it. This proves them on another one,
which needs only the library: another processor, another PyTorch, a GPU. On a GPU random numbers are
still drawn on the CPU, since each kind of device has a generator of its own; all else is computed
where the tensors are. Exercises are checked on the CPU: their inputs were made there.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors  # what set_default_device redirects

from tools.notebooks.svg import difference
from transformer_book import exercises
from transformer_lib import STANDARD_PARTS, Parts
from transformer_lib.models import saving

BOOK = Path(__file__).resolve().parents[1] / "book"
TAKERS = {torch.tensor, torch.as_tensor, torch.from_numpy}  # they take numbers that are there
MAKERS = {*_device_constructors(), *TAKERS}
FILLERS = {  # they fill a tensor with random numbers, in place
    *(fill for name, fill in vars(torch.nn.init).items() if re.fullmatch(r"[a-z]\w*_", name)),
    *(getattr(Tensor, f"{name}_") for name in ("uniform", "normal", "bernoulli", "random")),
}
DRAWERS = {  # they return random numbers
    *(torch.rand_like, torch.randn_like, torch.randint_like, torch.normal, torch.bernoulli),
    *(torch.multinomial, Tensor.multinomial, torch.dropout, torch.nn.functional.dropout),
}


class DrawnOnCpu(TorchFunctionMode):
    """Makes new tensors on a device, but draws random numbers on the CPU.

    Args:
        device: where the tensors shall be.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.active = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Redirect calls that make or fill tensors; leave all others alone."""
        kwargs = dict(kwargs or {})
        if not self.active or self.device.type == "cpu":
            return func(*args, **kwargs)
        given = (*args, *kwargs.values())  # torch.nn.init hands its tensor over by name
        hollow = any(isinstance(value, Tensor) and value.is_meta for value in given)
        if hollow and self.device.type != "meta":
            return func(*args, **kwargs)  # nothing is drawn for a tensor without numbers
        if func in FILLERS:
            return self._fill(func, args, kwargs)
        if func in DRAWERS and kwargs.get("device") is None:
            named = {name: _to_cpu(value) for name, value in kwargs.items()}
            return func(*map(_to_cpu, args), **named).to(self.device)
        if func in MAKERS and kwargs.get("device") is None:
            learned = kwargs.pop("requires_grad", False)
            place = {} if func in TAKERS else {"device": "cpu"}
            made: Tensor = func(*args, **{**kwargs, **place}).to(self.device)
            return made.requires_grad_() if learned else made  # torch.func forbids the call
        return func(*args, **kwargs)

    def _fill(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Tensor:
        target: Tensor = args[0] if args else kwargs.pop("tensor")
        copy = torch.empty(target.shape, dtype=target.dtype)
        func(copy, *args[1:], **kwargs)
        with torch.no_grad():
            return target.copy_(copy)

    @contextlib.contextmanager
    def in_charge(self) -> Iterator[None]:
        """Also load files to the device, and check exercises on the CPU."""
        place = str(self.device)
        load, build = safetensors.torch.load_file, saving.load_model

        def load_to_device(path: Path, device: str = place) -> dict[str, Tensor]:
            return load(path, device)

        def build_on_device(
            folder: Path, device: str = place, *, parts: Parts = STANDARD_PARTS
        ) -> Any:
            return build(folder, device, parts=parts)

        def on_cpu(judge: Callable[..., Any]) -> Callable[..., Any]:
            def judge_on_cpu(*given: Any, **named: Any) -> Any:
                self.active = False
                try:
                    return judge(*given, **named)
                finally:
                    self.active = True

            return judge_on_cpu

        with (
            mock.patch.object(safetensors.torch, "load_file", load_to_device),
            mock.patch.object(saving, "load_model", build_on_device),
            mock.patch.object(torch, "get_default_device", return_value=self.device),
            mock.patch.object(exercises, "check", on_cpu(exercises.check)),
            mock.patch.object(exercises, "pick", on_cpu(exercises.pick)),
            self,
        ):
            yield


def replay(path: Path, device: str = "cpu") -> list[str]:
    """Run the cells of a notebook in order; say which print something else than what is stored.

    Args:
        path: the notebook; it runs in its own folder.
        device: where tensors are made.

    Returns:
        One text for each cell that fails or differs.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    problems = []
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    with contextlib.chdir(path.parent), DrawnOnCpu(device).in_charge():
        for cell in (cell for cell in cells if cell["cell_type"] == "code"):
            try:
                printed, value = _run("".join(cell["source"]), names)
            except Exception:  # whatever a cell may raise
                if "raises-exception" not in cell["metadata"].get("tags", []):
                    problems.append(f"{cell['id']} fails:\n{traceback.format_exc(limit=-2)}")
                continue
            found = _difference(cell["outputs"], printed, value)
            if found:
                problems.append(f"{cell['id']} differs: {found}")
    return problems


def _run(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """Run a cell; return what it printed and the value of its last line."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, "cell", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return out.getvalue(), value


def _difference(outputs: Sequence[dict[str, Any]], printed: str, value: Any) -> str:
    here = printed if value is None else printed + getattr(value, "summary", repr(value))
    stored = "".join(
        "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
        for output in outputs
    )
    pairs = zip(_lines(stored), _lines(here), strict=False)
    changed = [f"stored {a!r}, here {b!r}" for a, b in pairs if a != b]
    if len(_lines(stored)) != len(_lines(here)):
        changed.append(f"{len(_lines(stored))} lines are stored, {len(_lines(here))} come here")
    for output in outputs:
        picture = "".join(output.get("data", {}).get("image/svg+xml", ""))
        if picture and not changed:
            changed.append(difference(picture, value.svg) or "")
    return "\n   ".join(filter(None, changed))


def _lines(text: str) -> list[str]:
    """The lines, without the name of the device that PyTorch adds to a tensor on a GPU."""
    return re.sub(r",\s*device='\w+:\d+'", "", text).strip().splitlines()


def _to_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay chapters, each in a process of its own; return how many of them differ."""
    parser = argparse.ArgumentParser(prog="python -m tools.replay", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cpu", help="where tensors are made (default: cpu)")
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks (default: the book)")
    options = parser.parse_args(arguments)
    if len(options.paths) == 1:
        problems = replay(options.paths[0].resolve(), options.device)
        if problems:
            print(*problems, sep="\n")
        verdict = f"{len(problems)} cells differ" if problems else "the same"
        machine = f"{options.device}, {platform.machine()}, torch {torch.__version__}"
        print(f"{options.paths[0].name}: {verdict} ({machine})", flush=True)
        return int(bool(problems))
    command = [sys.executable, "-m", "tools.replay", "--device", options.device]
    root = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BOOK.parent), *sys.path[1:]])}
    paths = options.paths or sorted(BOOK.glob("*.ipynb"))
    runs = [subprocess.run([*command, str(path)], env=root, check=False) for path in paths]
    return sum(run.returncode != 0 for run in runs)


if __name__ == "__main__":
    sys.exit(main())
