"""No page but those on the five documents speaks of them: a claim is tested without a culprit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.notebooks.model import load
from tools.notebooks.rulers import CULPRIT, mentions, texts_of

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"

# Pages about the documents, about the proof, and a list of everything that is cited.
MAY_SPEAK = {"sources", "colophon", "bibliography", "index", "paths"}
MAY_SPEAK |= {f"sources_{letter}" for letter in "abcde"}


def culprits(path: Path) -> list[str]:
    """All mentions on a page, each with the words around it."""
    if path.suffix == ".md":
        return mentions(path.stem, [path.read_text(encoding="utf-8")])
    return mentions(path.stem, texts_of(load(path)))


PAGES = [
    path
    for path in sorted([*BOOK.glob("*.ipynb"), *BOOK.glob("*.md"), *BOOK.glob("api/*.md")])
    if path.stem not in MAY_SPEAK
]


@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_a_page_names_no_culprit(path: Path) -> None:
    assert culprits(path) == []


@pytest.mark.parametrize("package", ["transformer_lib", "transformer_book", "experiments"])
def test_code_names_no_culprit(package: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (ROOT / package).rglob("*.py")
        for match in CULPRIT.finditer(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    "text",
    [
        "Source A writes that", "as source C has it", "C's comment calls it",
        "B says so", "what the document says", "> *In the sources.* It", "see X-A11",
        "[Source A](cite:sourceA)", "five sources",
    ],
)  # fmt: skip
def test_a_new_mention_is_found(text: str) -> None:
    assert CULPRIT.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "the source sequence", "a matrix $A$ has rank 1", "`B, T, D = x.shape`",
        "nn.Linear(D, D)", "rows A of Table 3", "source and target", "$B$ texts",
        "the encoder's source", "2 D gives F",
    ],
)  # fmt: skip
def test_an_encoders_source_or_a_matrix_is_no_culprit(text: str) -> None:
    assert not CULPRIT.search(text)
