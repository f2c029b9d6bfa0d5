"""What `make binder-check` does, but for the installation, which takes minutes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tools import fresh_env
from tools.fresh_env import FreshEnv, FreshEnvError, Report, compare, copy_repository, pinned

Cell = dict[str, Any]


def cell(*outputs: Cell) -> Cell:
    return {"cell_type": "code", "outputs": list(outputs)}


def stdout(text: str | list[str]) -> Cell:
    return {"output_type": "stream", "name": "stdout", "text": text}


def shown(**data: str) -> Cell:
    named = {kind.replace("_", "/"): text for kind, text in data.items()}
    return {"output_type": "execute_result", "data": named}


def test_equal_text_passes_however_it_is_split() -> None:
    stored = [{"cell_type": "markdown"}, cell(stdout(["a\n", "b\n"])), cell()]
    new = [{"cell_type": "markdown"}, cell(stdout("a\n"), stdout("b\n")), cell()]
    assert compare("x.ipynb", stored, new) == (1, [])


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        (cell(stdout("0.67")), cell(stdout("0.68"))),
        (cell(stdout("0.67")), cell()),
        (cell(), cell(stdout("0.67"))),
        (cell(shown(text_plain="4")), cell(shown(text_plain="5"))),
        (cell(shown(text_plain="4")), cell(stdout("4"))),
        (
            cell({"output_type": "error", "ename": "ValueError", "evalue": "a"}),
            cell({"output_type": "error", "ename": "ValueError", "evalue": "b"}),
        ),
    ],
)
def test_a_difference_is_named_with_its_cell(stored: Cell, new: Cell) -> None:
    _, (difference,) = compare("x.ipynb", [cell(), stored], [cell(), new])
    assert difference.startswith("x.ipynb: code cell 2 ")


def test_pictures_are_left_to_nbval() -> None:
    stored, new = cell({"output_type": "display_data", "data": {"image/png": "a"}}), cell()
    assert compare("x.ipynb", [stored], [new]) == (0, [])


def test_too_much_memory_is_a_problem() -> None:
    assert Report("x", 1, [], seconds=1.0, peak_mib=900).problems == []
    assert Report("x", 1, ["d"], seconds=1.0, peak_mib=900).problems == ["d"]
    (problem,) = Report("x", 1, [], seconds=1.0, peak_mib=1900).problems
    assert "1900 MiB" in problem


def test_the_copy_has_the_repository_but_nothing_ignored(tmp_path: Path) -> None:
    copy_repository(tmp_path)
    assert (tmp_path / "binder" / "postBuild").stat().st_mode & 0o100
    assert (tmp_path / "transformer_lib" / "__init__.py").is_file()
    assert not (tmp_path / ".venv").exists()
    assert not (tmp_path / ".git").exists()


def test_other_environments_do_not_shine_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(fresh_env.ROOT))
    fresh = FreshEnv(clone=tmp_path, environment=tmp_path / "environment")
    assert "PYTHONPATH" not in fresh.variables
    assert fresh.variables["PATH"].startswith(str(tmp_path / "environment" / "bin"))


def test_a_failed_step_ends_the_check(tmp_path: Path) -> None:
    fresh = FreshEnv(clone=tmp_path, environment=tmp_path)
    fresh.call(sys.executable, "-c", "pass")
    with pytest.raises(FreshEnvError, match="exit status 3"):
        fresh.call(sys.executable, "-c", "raise SystemExit(3)")


def test_only_pinned_packages_are_installed() -> None:
    assert pinned("nbclient").startswith("nbclient==")
    with pytest.raises(FreshEnvError, match="does not pin no-such-package"):
        pinned("no-such-package")
