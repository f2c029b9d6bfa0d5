"""ARCHITECTURE.md and the READMEs of folders name what a stranger must know; all of it is there."""

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


# --- the READMEs of folders ---------------------------------------------------------------------

README_OF = ("transformer_book", "experiments")


def strangers(folder: str, text: str) -> list[str]:
    """What a README names in backquotes, and is neither in its folder nor in the project."""
    tokens = [t for t in re.findall(r"`([^`\n]+)`", text) if FILE_OR_FOLDER.fullmatch(t)]
    inside = [ROOT / folder, *(path for path in (ROOT / folder).iterdir() if path.is_dir())]
    places = [ROOT, *inside]
    return [token for token in tokens if not any((place / token).exists() for place in places)]


def untold(names: list[str], text: str) -> list[str]:
    """Which names a README does not have in backquotes."""
    return sorted(name for name in names if f"`{name}`" not in text)


@pytest.mark.parametrize("folder", README_OF)
def test_what_the_readme_of_a_folder_names_is_there(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    assert not strangers(folder, text)
    links = re.findall(r"\]\(\.\./([\w.]+)#([\w-]+)\)", text)
    assert links
    for document, anchor in links:
        headings = re.findall(r"^#+ (.+)$", (ROOT / document).read_text("utf-8"), re.MULTILINE)
        assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_all_that_lies_in_transformer_book_is_told() -> None:
    """Of the experiments the table in CONTRIBUTING tells; what they share is told here."""
    package = ROOT / "transformer_book"
    names = [path.name for path in package.glob("*.py") if path.name != "__init__.py"]
    names += [f"{path.parent.name}/" for path in package.glob("*/__init__.py")]
    assert len(names) > 10
    lacks = untold(names, (package / "README.md").read_text(encoding="utf-8"))
    assert not lacks, f"say in transformer_book/README.md what these are for: {', '.join(lacks)}"
    shared = [path.name for path in (ROOT / "experiments" / "shared").glob("[a-z]*.py")]
    lacks = untold(shared, (ROOT / "experiments" / "README.md").read_text(encoding="utf-8"))
    assert not lacks, f"say in experiments/README.md what these are for: {', '.join(lacks)}"


def test_every_experiment_has_a_row_beside_its_results() -> None:
    text = (ROOT / "book" / "results" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `experiments/(\w+)\.py` \| .{20,} \|$", text, re.MULTILINE)
    found = [path.stem for path in (ROOT / "experiments").glob("[a-z]*.py")]
    assert sorted(rows) == [(name, name) for name in sorted(found) if name != "run_all"]


def test_a_readme_that_is_wrong_is_noticed() -> None:
    assert strangers("experiments", "`gone.py`, `common.py`, `heads.py`, `tools/`") == ["gone.py"]
    assert untold(["a.py", "b/"], "`a.py` and b/") == ["b/"]
