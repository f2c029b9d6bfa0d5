"""ARCHITECTURE.md names every tool, extension, test folder and workflow; all of it is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
ENDINGS = "py|yml|yaml|json|js|md|txt|ipynb|toml"
FILE_OR_FOLDER = re.compile(rf"[\w.*/-]+\.(?:{ENDINGS})|[\w./-]+/")


def named(text: str) -> Iterator[tuple[str, list[Path]]]:
    """Each file or folder in backquotes, with what it stands for; an asterisk may mean several.

    A name is a path from the root, or from a folder that the heading or the table's head above it
    names: below "In `tools/`" `site.py` is `tools/site.py`.
    """
    folders: list[str] = []
    for line in text.splitlines():
        tokens = [t for t in re.findall(r"`([^`\n]+)`", line) if FILE_OR_FOLDER.fullmatch(t)]
        if line.startswith("#"):
            folders = []
        if line.startswith("#") or re.match(r"\| (?:file|files) \|", line):
            folders += [token for token in tokens if token.endswith("/")]
        for token in tokens:
            found = sorted(ROOT.glob(token.rstrip("/")))
            for folder in folders:
                found += sorted((ROOT / folder).glob(token))
            yield token, found


def must_be_named() -> list[Path]:
    """All that somebody who changes the project has to know of."""
    modules = [p for p in (ROOT / "tools").rglob("*.py") if p.name != "__init__.py"]
    folders = [p for p in (ROOT / "tests").iterdir() if p.is_dir() and p.name != "__pycache__"]
    extensions = (ROOT / "book" / "_ext").glob("*.py")
    return [*modules, *extensions, *folders, *(ROOT / ".github" / "workflows").glob("*.yml")]


def missing(text: str) -> list[str]:
    """What a text does not name and must."""
    found = {path for _, paths in named(text) for path in paths}
    return sorted(str(path.relative_to(ROOT)) for path in must_be_named() if path not in found)


def gone(text: str) -> list[str]:
    """What a text names and is not there."""
    return [token for token, paths in named(text) if not paths]


def test_everything_is_named() -> None:
    assert len(must_be_named()) > 60
    lacks = missing(PAGE.read_text(encoding="utf-8"))
    assert not lacks, f"say in ARCHITECTURE.md what these are for: {', '.join(lacks)}"


def test_nothing_is_named_that_is_not_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(list(named(text))) > 150
    wrong = gone(text)
    assert not wrong, f"named in ARCHITECTURE.md, but not there: {', '.join(wrong)}"


@pytest.mark.parametrize(
    "name",
    ["`site.py`", "`svg.py`", "`book_terms.py`", "`weekly.yml`", "`tests/vendor/`"],
)
def test_a_name_that_is_left_out_is_noticed(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    full = {"`svg.py`": "`tools/notebooks/svg.py`", "`book_terms.py`": "`book/_ext/book_terms.py`"}
    without = text.replace(name, "it").replace(full.get(name, name), "it")
    assert [path for path in missing(without) if path.endswith(name.strip("`/"))]


def test_a_name_that_does_not_exist_is_noticed() -> None:
    text = "# In `tools/`\n\n`site.py`, `no_site.py`, `book/no.yml`, `tests/none/`, `test_l*.py`"
    assert gone(text) == ["no_site.py", "book/no.yml", "tests/none/", "test_l*.py"]
    assert gone("# In `tests/book/`\n\n`test_l*.py`, `make test`, `transformers`, `place:`") == []
