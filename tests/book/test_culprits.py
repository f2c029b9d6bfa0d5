"""No page but those on the five documents speaks of them: a claim is tested without a culprit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"

# Pages about the documents, about the proof, and a list of everything that is cited.
MAY_SPEAK = {"sources", "colophon", "bibliography", "index", "paths"}
MAY_SPEAK |= {f"sources_{letter}" for letter in "abcde"}

_VERB = (
    "says|say|said|writes|wrote|calls|prints|gives|claims|puts|shows|states|names|lists|tells|asks"
    "|means|leaves|counts|draws|has|uses|takes|is right|is wrong|forgot|does"
    "|warns|adds|speaks|quotes"
)
_ALONE = r"(?<!\d )(?<![\w√$\\{(=.*`_'-])[A-E]"  # no variable, no matrix
CULPRIT = re.compile(
    r"\b[Ss]ources? [A-E]\b|\b[Dd]ocuments? [A-E]\b|\b[Ss]ources A to E\b|\b[Ff]ive sources\b"
    r"|\b[Ff]ive (?:public )?documents\b|\bthe documents?\b|\b[Ii]n the sources\b|cite:source[A-E]"
    rf"|{_ALONE}(?:'s|’s)(?= [a-z`*])|{_ALONE} (?:{_VERB})\b|\bX-[A-E]\d\d\b|\b[Ee]rrat(?:um|a)\b"
)

# Checked by eye: words that look like a culprit and are none, and the few that may speak of them.
EXCEPTIONS = {
    "00_reading_this_book": ("five public documents",),
    "glossary": ("erratum", "five documents", "X-A11"),
}


def texts(path: Path) -> Iterator[str]:
    """What a reader sees of a page: words, code, captions, what cells print."""
    if path.suffix == ".md":
        yield path.read_text(encoding="utf-8")
        return
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        yield "".join(cell["source"])
        yield json.dumps(cell["metadata"].get("mystnb", {}), ensure_ascii=False)
        for output in cell.get("outputs", []):
            yield "".join(output.get("text", ""))
            yield "".join(output.get("data", {}).get("text/plain", ""))


def culprits(path: Path) -> list[str]:
    """All mentions on a page, each with the words around it."""
    found = []
    for text in texts(path):
        for exception in EXCEPTIONS.get(path.stem, ()):
            text = text.replace(exception, "")
        for match in CULPRIT.finditer(text):
            found.append(text[max(match.start() - 30, 0) : match.end() + 30].replace("\n", " "))
    return found


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
