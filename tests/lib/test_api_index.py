"""The API pages follow the packages, and their index says of each module what it says of itself."""

import ast
import re
from pathlib import Path

import pytest
from omissions import differences, fail_on, misplaced, told
from test_floors import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "book" / "api"
INDEX = (API / "index.md").read_text(encoding="utf-8")
WHERE = "book/api/index.md"
INTERNAL = {"__main__"}  # only calls the command line


def first_line_of(module):
    """What a module or a package says of itself first."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.exists():
        pytest.fail(f"{WHERE} has a row for {module}, which is no module: take it out")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()[0]


def rows_of(text):
    """The modules in the rows of a text, by their labels, and what is said of each."""
    return re.findall(r"^\| \[`[\w.]+`\]\(#module-([\w.]+)\) \| (.+) \|$", text, re.MULTILINE)


SECTIONS = dict(
    re.findall(r"^### `transformer_lib\.(\w+)`\n\n(.*?)(?=^##)", INDEX, re.MULTILINE | re.DOTALL)
)
OF_THE_LIBRARY = [
    (f"transformer_lib.{name}", w) for s in SECTIONS.values() for name, w in rows_of(s)
]
OF_THE_BOOK = [
    (f"transformer_book.{name}", words)
    for name, words in rows_of(INDEX.split("## What the book")[1])
]
ROWS = OF_THE_LIBRARY + OF_THE_BOOK


def test_the_packages_stand_in_the_order_in_which_they_use_each_other():
    assert tuple(SECTIONS) == PACKAGES
    toc = re.findall(r"book/api/(\w+)", (ROOT / "_toc.yml").read_text(encoding="utf-8"))
    assert tuple(toc[1 : 1 + len(PACKAGES)]) == PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_its_own_words_and_its_page(package):
    said = first_line_of(f"transformer_lib.{package}")
    expected = f"{said} [Its classes and functions]({package}.md)\n"
    assert SECTIONS[package].startswith(expected), f"{WHERE}, below {package}: write {expected!r}"


@pytest.mark.parametrize(("module", "words"), ROWS, ids=[module for module, _ in ROWS])
def test_the_index_repeats_the_modules_own_words(module, words):
    said = first_line_of(module)
    where = f"{WHERE}, row of {module}"
    assert words == said, f"{where}: write the first line of its docstring, {said!r}"


def modules_of(package):
    """All modules and packages below a package, by their paths in the library."""
    folder = ROOT / "transformer_lib"
    for path in sorted((folder / package).rglob("*.py")):
        module = path.parent if path.name == "__init__.py" else path.with_suffix("")
        name = ".".join(module.relative_to(folder).parts)
        if name != package and path.stem not in INTERNAL:
            yield name


def row_problems(wanted, found):
    return differences(
        found,
        wanted,
        lacks=lambda name: f"{WHERE} has no row for transformer_lib.{name}: add one",
        extra=lambda name: f"{WHERE} has a row for {name} in the wrong section, or twice",
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_a_row_below_its_package(package):
    rows = [name for name, _ in rows_of(SECTIONS[package])]
    assert len(rows) == len(set(rows))
    fail_on(row_problems(modules_of(package), rows))
    assert len(rows) > 2


def test_a_module_without_a_row_is_told():
    lacks, extra = told(row_problems)
    assert lacks == "book/api/index.md has no row for transformer_lib.b: add one"
    assert extra.startswith("book/api/index.md has a row for c in the wrong section")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_page_has_the_modules_of_its_package_in_the_order_of_the_index(package):
    page = (API / f"{package}.md").read_text(encoding="utf-8")
    first, *documented = re.findall(r"^\.\. automodule:: transformer_lib\.([\w.]+)$", page, re.M)
    assert first == package
    rows = [name for name, _ in rows_of(SECTIONS[package])]
    fail_on(row_problems(documented, rows))
    assert not misplaced(documented, rows), f"book/api/{package}.md: {misplaced(documented, rows)}"


def test_a_row_of_a_module_that_is_gone_is_told():
    with pytest.raises(pytest.fail.Exception, match="has a row for legs, which is no module"):
        first_line_of("legs")


def test_names_of_the_book_have_rows_too():
    assert len(OF_THE_BOOK) > 15
