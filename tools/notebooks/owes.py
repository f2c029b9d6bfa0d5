"""What leads to a page: all of it must still lead somewhere when the page is rewritten.

Items and errors of the five documents, names of the library, questions, and every link or mention
in other pages, in the library, in tests and in the project's own documents, heading by heading.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from .model import ROOT, NotebookError

Owed = dict[str, list[str]]  # for each anchor of the page what leads there; "" is the page itself

SOURCES, SYMBOLS, QUESTIONS = "book/sources.yml", "book/symbols.yml", "book/questions.md"
_SEARCHED = (
    *("book/*.md", "book/*.ipynb", "book/*.yml", "book/api/*.md", "*.md", "_toc.yml"),
    *("transformer_lib/**/*.py", "transformer_book/**/*.py", "tests/**/*.py", "experiments/*.py"),
)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def owed(page: str, root: Path = ROOT) -> Owed:
    """Gather all that leads to a page.

    Args:
        page: its name, such as ``05_masks``.
        root: the project.

    Returns:
        For each anchor, lines that say what leads there.

    Raises:
        NotebookError: if there is no such page.
    """
    if not list((root / "book").glob(f"{page}.*")):
        raise NotebookError(f"book/{page}: no such page; expected a name such as 05_masks")
    found: Owed = defaultdict(list)
    for place, line in (*_entries(root), *_symbols(root), *_questions(root, page)):
        name, _, anchor = place.partition("#")
        if name == page:
            found[anchor].append(line)
    for (anchor, file), count in sorted(_mentions(root, page).items()):
        times = "" if count == 1 else f" ({count})"
        found[anchor].append(f"link      {file}{times}")
    return dict(sorted(found.items()))


def table(page: str, found: Owed) -> str:
    """Write down what :func:`owed` found, for people."""
    lines = [line for group in found.values() for line in group]
    kinds = Counter(line.split()[0] for line in lines)
    head = ", ".join(f"{number} {kind}s" for kind, number in sorted(kinds.items())) or "nothing"
    parts = [f"{page}: {head}"]
    for anchor, group in found.items():
        parts += ["", f"#{anchor}" if anchor else "the page itself"]
        parts += [f"  {line}" for line in group]
    return "\n".join(parts)


def _entries(root: Path) -> Iterator[tuple[str, str]]:
    chapters = yaml.safe_load((root / SOURCES).read_text(encoding="utf-8")) or {}
    for name, entry in ((n, e) for entries in chapters.values() for n, e in entries.items()):
        kind, words = ("item", entry["item"]) if "item" in entry else ("error", entry["says"])
        yield entry["at"], f"{kind:9} {name:8} {words}"


def _symbols(root: Path) -> Iterator[tuple[str, str]]:
    modules = yaml.safe_load((root / SYMBOLS).read_text(encoding="utf-8")) or {}
    for module, names in modules.items():
        for name, place in names.items():
            if name != "part_of":
                yield place, f"symbol    {module}{'' if name == 'default' else f'.{name}'}"


def _questions(root: Path, page: str) -> Iterator[tuple[str, str]]:
    """Every question whose answer leads to the page."""
    text = (root / QUESTIONS).read_text(encoding="utf-8")
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    for heading, end in zip(headings, ends, strict=True):
        for anchor in _anchors(page, text[heading.end() : end]):
            yield f"{page}#{anchor}", f"question  {heading[1]}"


def _mentions(root: Path, page: str) -> Counter[tuple[str, str]]:
    """How often each file names each anchor of the page; what is told apart is left out."""
    found: Counter[tuple[str, str]] = Counter()
    told_apart = {root / name for name in (SOURCES, SYMBOLS, QUESTIONS)}
    for path in sorted({file for pattern in _SEARCHED for file in root.glob(pattern)} - told_apart):
        if path.stem != page:
            name = path.relative_to(root).as_posix()
            found.update((anchor, name) for anchor in _anchors(page, _text(path)))
    return found


def _anchors(page: str, text: str) -> list[str]:
    """The anchor of each mention of a page in a text."""
    pattern = rf"(?<![\w-]){re.escape(page)}(?:\.ipynb|\.md|\.html)?(?:#([\w-]+))?(?![\w-])"
    return [match[1] or "" for match in re.finditer(pattern, text)]


def _text(path: Path) -> str:
    """What somebody wrote into a file: of a notebook its cells, not their outputs."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
