"""Replaying chapters without Jupyter notices what changed, and draws alike for every device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tools import replay
from tools.replay import DrawnOnCpu
from transformer_book import exercises
from transformer_book.figures import plots
from transformer_lib.models import saving

ROOT = Path(__file__).resolve().parents[2]
FIGURE = """
from transformer_book.figures import plots
plots.bars({"a": [1]}, names=["x"], title="T", y_label="y")
"""


def cell(name: str, source: str, *outputs: dict[str, object], tags: tuple[str, ...] = ()) -> dict:
    shared = {"id": name, "cell_type": "code", "source": source.splitlines(keepends=True)}
    return {**shared, "outputs": list(outputs), "metadata": {"tags": list(tags)}}


def printed(text: str) -> dict[str, object]:
    return {"output_type": "stream", "name": "stdout", "text": [text]}


def result(text: str, **data: str) -> dict[str, object]:
    return {"output_type": "execute_result", "data": {"text/plain": [text], **data}}


def replayed(tmp_path: Path, *cells: dict) -> list[str]:
    path = tmp_path / "chapter.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown"}, *cells]}), encoding="utf-8")
    return replay.replay(path)


def test_a_true_chapter_passes(tmp_path: Path) -> None:
    picture = plots.bars({"a": [1]}, names=["x"], title="T", y_label="y")
    assert not replayed(
        tmp_path,
        cell("a", "x = 20\nprint('total', x)", printed("total 20\n")),
        cell("b", "x + 22", result("42")),
        cell("c", "raise ValueError('meant')", tags=("raises-exception",)),
        cell("d", FIGURE, result(picture.summary, **{"image/svg+xml": picture.svg})),
    )


@pytest.mark.parametrize(
    ("source", "output", "complaint"),
    [
        ("print('total 21')", printed("total 20\n"), "stored 'total 20', here 'total 21'"),
        ("print('total 20\\nmore')", printed("total 20\n"), "1 lines are stored, 2 come here"),
        ("21", result("20"), "stored '20', here '21'"),
        ("1 / 0", result("20"), "ZeroDivisionError"),
    ],
)
def test_a_change_is_noticed(
    source: str, output: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    (problem,) = replayed(tmp_path, cell("b", source, output))
    assert problem.startswith("b ")
    assert complaint in problem


def test_a_changed_figure_is_noticed(tmp_path: Path) -> None:
    picture = plots.bars({"a": [1]}, names=["x"], title="T", y_label="y")
    other = picture.svg.replace("height: ", "height:  ").replace('width="', 'width="9', 1)
    (problem,) = replayed(
        tmp_path, cell("d", FIGURE, result(picture.summary, **{"image/svg+xml": other}))
    )
    assert problem.startswith("d differs")


def test_the_name_of_a_gpu_is_not_compared() -> None:
    tensor = "tensor([1, 2], device='cuda:0')"
    assert replay._lines(tensor) == ["tensor([1, 2])"]


def test_tensors_are_made_on_the_device_and_drawn_on_the_cpu() -> None:
    """The device `meta` holds no numbers, so only the place and the generator can be seen."""
    torch.manual_seed(0)
    torch.rand(3)
    nn.Linear(3, 2)
    torch.dropout(torch.ones(5), 0.5, train=True)
    expected = torch.rand(2)
    torch.manual_seed(0)
    with DrawnOnCpu("meta"):
        drawn, layer = torch.rand(3, requires_grad=True), nn.Linear(3, 2)
        taken = torch.tensor([1.0])
        here = torch.zeros(2, device="cpu")
        nn.init.normal_(tensor=here.clone(), generator=torch.Generator().manual_seed(1))
    assert {drawn.device.type, layer.weight.device.type, taken.device.type} == {"meta"}
    assert drawn.requires_grad
    assert here.device.type == "cpu"
    torch.dropout(torch.ones(5), 0.5, train=True)
    assert torch.equal(torch.rand(2), expected)


def test_everything_is_put_back_afterwards() -> None:
    before = saving.load_model, exercises.check, torch.get_default_device
    mode = DrawnOnCpu("meta")
    with mode.in_charge():
        assert torch.get_default_device().type == "meta"
        exercises.check("attention.by_distance", lambda query, keys, values: ...)
        assert mode.active
    assert (saving.load_model, exercises.check, torch.get_default_device) == before


def test_the_command_says_what_differs(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.ipynb", tmp_path / "bad.ipynb"
    good.write_text(json.dumps({"cells": [cell("a", "print(1)", printed("1\n"))]}))
    bad.write_text(json.dumps({"cells": [cell("a", "print(2)", printed("1\n"))]}))
    command = [sys.executable, "-m", "tools.replay", str(good), str(bad)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "good.ipynb: the same" in done.stdout
    assert "bad.ipynb: 1 cells differ" in done.stdout


def test_nothing_is_drawn_for_a_tensor_without_numbers() -> None:
    """A model of a hundred billion parameters on the device `meta` must cost nothing."""
    endless = torch.empty(10**7, 10**7, device="meta")
    with DrawnOnCpu("cuda"):
        assert torch.nn.functional.dropout(torch.empty(3, device="meta"), 0.5).is_meta
        assert torch.nn.init.normal_(endless).is_meta
