"""Glossary, questions, API places and paths: complete, real, and what they say of themselves."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest
from docutils import nodes

import transformer_book
import transformer_lib
from transformer_book import paths
from transformer_book.exercises import EXERCISES

BOOK = Path(__file__).resolve().parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import book_glossary  # noqa: E402
import book_places  # noqa: E402
import book_search  # noqa: E402
import book_sources  # noqa: E402
import book_symbols  # noqa: E402
import book_terms  # noqa: E402


@cache
def words_of(page: str) -> str:
    """All text of a page: prose, code, and what the cells printed."""
    if (BOOK / f"{page}.md").is_file():
        return (BOOK / f"{page}.md").read_text(encoding="utf-8")
    cells = json.loads((BOOK / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    said = ["".join(cell["source"]) for cell in cells]
    for output in (o for cell in cells for o in cell.get("outputs", [])):
        said.append("".join(output.get("text", "")))
        said += ["".join(v) for k, v in output.get("data", {}).items() if k.startswith("text/")]
    return "\n".join(said)


def is_place(target: str) -> bool:
    """Whether a page has the heading or the code cell that a place names."""
    page, _, anchor = target.partition("#")
    if page == "sources" and anchor:
        return anchor in {name.lower() for name in book_sources.entries()}
    if not book_places.path_of(page).is_file():
        return False
    found = book_places.outline(page)
    return anchor in {"", *found.headings, *(f"cell-{cell}" for cell in found.cells)}


@pytest.mark.parametrize(
    "module", [book_glossary, book_places, book_sources, book_symbols, book_terms]
)
def test_examples_of_the_extensions_hold(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


# --- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("05b_masks_in_practice", "chapter 5b"),
        ("21_real_weights", "chapter 21"),
        ("00_reading_this_book", "chapter 0"),
        ("lab2_families", "lab 2"),
        ("speed", "Speed"),
    ],
)
def test_pages_have_short_names(page: str, name: str) -> None:
    assert book_places.short_name(page) == name


def test_a_place_is_named_by_page_and_heading() -> None:
    assert book_places.in_words("05_masks#an-algebra-of-masks") == "chapter 5, An algebra of masks"
    assert book_places.in_words("05_masks") == "chapter 5"


def test_a_reference_to_a_place_waits_for_all_pages() -> None:
    reference = book_places.place("05_masks#what-breaks", "book/sources", nodes.Text("here"))
    assert (reference["reftype"], reference["reftarget"]) == (
        book_places.PLACE,
        "05_masks#what-breaks",
    )
    assert reference.astext() == "here"


# --- terms --------------------------------------------------------------------------------------

GLOSSARY = """# Glossary

:::{glossary}
attention head
head
  One copy of {term}`attention`, of width `d_head`.

causal mask
  The {term}`mask` for $t$.

key
  What a {term}`queries <query>` is compared with.

mask
  Who may look at whom.
:::
"""


def test_the_glossary_is_read_with_its_synonyms() -> None:
    found = book_terms.parse_glossary(GLOSSARY)
    assert list(found) == ["attention head", "head", "causal mask", "key", "mask"]
    assert found["head"].meaning == "One copy of attention, of width d_head."
    assert found["key"].meaning == "What a queries is compared with."


def uses(text: str, *words: str) -> list[str]:
    found = book_terms.first_uses(text, text, {word: word for word in words})
    return [text[start:end] for start, end, _ in sorted(found)]


def test_the_longest_term_wins_and_only_the_first_use_counts() -> None:
    text = "Causal masks hide. A mask hides; a causal mask hides the future, masks do."
    assert uses(text, "mask", "causal mask") == ["Causal masks", "mask"]


def test_parts_of_words_are_not_terms() -> None:
    assert uses("unmasked, masked, mask-free, key_padding_mask", "mask", "key") == []


def test_everyday_words_need_their_context() -> None:
    assert uses("The key idea is old.", "key") == []
    assert uses("A query meets a key.", "key") == ["key"]
    assert uses("The value of x", "value") == []
    assert uses("Queries and values", "value") == ["values"]


def test_names_in_capitals_are_not_matched_in_small_letters() -> None:
    assert uses("a relu, a ReLU", "ReLU") == ["ReLU"]
    assert uses("a FLOP, two FLOPs", "FLOP") == ["FLOP"]


def test_links_to_the_glossary_show_the_meaning() -> None:
    body = book_terms.add_meanings('<a class="x" href="glossary.html#term-causal-mask">')
    assert 'title="The mask that lets position t attend' in body
    unknown = '<a href="glossary.html#term-no-such-term">'
    assert book_terms.add_meanings(unknown) == unknown


def test_the_glossary_is_in_order_and_names_nothing_twice() -> None:
    text = (BOOK / "glossary.md").read_text(encoding="utf-8")
    body = text.partition(":::{glossary}\n")[2]
    blocks = [block.splitlines()[0].strip() for block in re.split(r"\n\n(?=\S)", body)]
    firsts = [name.lower() for name in blocks if name and name != ":::"]
    assert firsts == sorted(firsts)
    names = re.findall(r"^(?![ :#])(\S.*)$", body, re.MULTILINE)
    assert [name for name, count in Counter(names).items() if count > 1] == []


class Entry(NamedTuple):
    """An entry of the glossary: its names, and those that it says others use."""

    names: list[str]
    also: list[str]


def entries() -> list[Entry]:
    body = (BOOK / "glossary.md").read_text(encoding="utf-8").partition(":::{glossary}\n")[2]
    blocks = re.split(r"\n\n(?=\S)", body.partition("\n:::")[0])
    found = []
    for block in blocks:
        names = re.findall(r"^(\S.*)$", block, re.MULTILINE)
        also = re.split(r"[,;] |\.$", book_terms.plain(block.partition(" Also: ")[2]))
        found.append(Entry(names, list(filter(None, also))))
    return found


def test_no_entry_gives_its_own_name_as_another_one() -> None:
    assert [entry.names for entry in entries() if {*entry.names} & {*entry.also}] == []


def test_every_entry_has_a_place_that_teaches_it() -> None:
    assert list(book_glossary.homes()) == [entry.names[0] for entry in entries()]
    targets = book_glossary.homes().values()
    assert [target for target in targets if not is_place(target)] == []


def test_what_people_search_for_has_a_place() -> None:
    assert [target for target in book_search.ASKED if not is_place(target)] == []


@cache
def sections(page: str) -> dict[str, str]:
    """What stands below each heading of a page, by its anchor; "" is the whole page."""
    path = book_places.path_of(page)
    text = path.read_text(encoding="utf-8")
    markdown = [{"cell_type": "markdown", "source": text}]
    cells = markdown if path.suffix == ".md" else json.loads(text)["cells"]
    found, anchor = {"": text}, "start"
    for cell in cells:
        for line in "".join(cell["source"]).splitlines():
            if cell["cell_type"] == "markdown" and line.startswith("#"):
                words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("# "))
                anchor = book_places.anchor_of(words)
            found[anchor] = f"{found.get(anchor, '')}\n{line}"
    return found


def speaks_of(text: str, entry: Entry) -> bool:
    """Whether a text has a word of one of the names, in whatever form: its first five letters."""
    words = re.findall(r"\w\w+", " ".join([*entry.names, *entry.also]))
    return any(re.search(rf"(?<![a-z]){re.escape(w[:5])}", text, re.IGNORECASE) for w in words)


def test_a_place_speaks_of_the_term_that_it_is_said_to_teach() -> None:
    silent = []
    for entry in entries():
        page, _, anchor = book_glossary.homes()[entry.names[0]].partition("#")
        if not speaks_of(sections(page)[anchor], entry):
            silent.append(f"{entry.names[0]}: {page}#{anchor}")
    assert silent == []


def test_a_silent_place_is_noticed() -> None:
    assert not speaks_of(sections("17_cost")["tile-by-tile"], Entry(["beam search"], []))


def test_guarded_words_are_in_the_glossary() -> None:
    assert set(book_terms.CONTEXT) <= set(book_terms.glossary())


# --- the API and the chapters -------------------------------------------------------------------


# One only calls the command line; the other speaks when somebody imports what has moved.
NOT_FOR_READERS = {"transformer_lib.__main__", "transformer_lib.moved"}


@cache
def public_names() -> list[str]:
    found = []
    for package in (transformer_lib, transformer_book):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            found += [
                f"{module.__name__}.{name}"
                for name, thing in vars(module).items()
                if not name.startswith("_")
                and (inspect.isclass(thing) or inspect.isfunction(thing))
                and thing.__module__ == module.__name__
                and info.name not in NOT_FOR_READERS
            ]
    return found


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_is_explained_in_a_chapter(name: str) -> None:
    target = book_symbols.place_of(name)
    assert is_place(target), f"{name} is said to be explained at {target}"
    page = words_of(target.partition("#")[0])
    module = book_symbols.module_of(name)
    # A helper that no chapter names is explained with the module that it belongs to.
    module = book_symbols.places()[module].get("part_of", module)
    siblings = [other for other in public_names() if book_symbols.module_of(other) == module]
    wanted = "|".join(full.rpartition(".")[2] for full in [module, *siblings])
    assert re.search(rf"\b(?:{wanted})\b", page), f"{target} does not speak of {module}"


def test_every_import_line_of_the_api_works() -> None:
    for name in public_names():
        value = pkgutil.resolve_name(name)
        line, found = book_symbols.import_line(name, value), {}
        exec(line, found)
        assert found[name.rpartition(".")[2]] is value, line


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("transformer_lib.models.CausalLM", "from transformer_lib import CausalLM"),
        ("transformer_lib.checks.check_whole", "from transformer_lib.checks import check_whole"),
        (
            "transformer_lib.tracing.watch.influence",
            "from transformer_lib.tracing import influence",
        ),
        ("transformer_lib.cli_train.train", "from transformer_lib.cli_train import train"),
    ],
)
def test_a_name_is_imported_from_the_outermost_package_that_has_it(name: str, line: str) -> None:
    assert book_symbols.import_line(name, pkgutil.resolve_name(name)) == line


def test_a_name_that_nobody_can_import_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"transformer_lib\.models\.CausalLM cannot be imported"):
        book_symbols.import_line("transformer_lib.models.CausalLM", None)


def test_an_import_stands_below_the_first_paragraph() -> None:
    lines = ["Do it.", "", "At length.", ""]
    name, value = "transformer_lib.checks.check_whole", transformer_lib.checks.check_whole
    book_symbols._add_import(None, "function", name, value, None, lines)
    shown = "``from transformer_lib.checks import check_whole``"
    assert lines == ["Do it.", "", shown, "", "At length.", ""]
    book_symbols._add_import(None, "method", name, value, None, lines)
    assert lines.count(shown) == 1


def test_drawing_functions_are_not_in_the_general_index() -> None:
    entries = {"book/api/pictures": ["arrow"], "book/api/models": ["CausalLM"]}
    book_symbols._drop_from_index(None, SimpleNamespace(domaindata={"index": {"entries": entries}}))
    assert entries == {"book/api/pictures": [], "book/api/models": ["CausalLM"]}
    assert all((BOOK.parent / f"{page}.md").is_file() for page in book_symbols.NOT_INDEXED)


def test_each_heading_of_the_api_names_its_module_in_full() -> None:
    headings = 0
    for page in (BOOK / "api").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for section in text.split("(module-")[1:]:
            label, heading, module = re.search(
                r"^(\w+)\)=\n## `(\S+)`\n.*?automodule:: (\S+)", section, re.DOTALL
            ).groups()
            assert heading == module
            assert label == module.rpartition(".")[2]
            headings += 1
    assert headings > 70


def test_no_place_is_kept_for_a_name_that_is_gone() -> None:
    names = set(public_names())
    modules = {book_symbols.module_of(name) for name in names}
    for module, places in book_symbols.places().items():
        importlib.import_module(module)  # fails if it is gone
        for name in places:
            known = f"{module}.{name}" in names or module not in modules
            assert name in ("default", "part_of") or known, f"{module}.{name}"


# --- questions ----------------------------------------------------------------------------------

QUESTIONS = (BOOK / "questions.md").read_text(encoding="utf-8")
ANSWERS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", QUESTIONS, re.MULTILINE | re.DOTALL))
_CHAPTER = r"\b(?:chapters?|labs?)\s+\d+[a-d]?(?:(?:,| and| to)\s+\d+[a-d]?)*"


@pytest.mark.parametrize("question", ANSWERS)
def test_an_answer_leads_to_places_that_exist(question: str) -> None:
    targets = re.findall(r"\]\(place:([^)]+)\)", ANSWERS[question])
    assert targets, "the answer leads to no result"
    assert [target for target in targets if not is_place(target)] == []


@pytest.mark.parametrize("question", ANSWERS)
def test_numbers_in_an_answer_stand_on_a_page_it_leads_to(question: str) -> None:
    answer = ANSWERS[question]
    linked = set(re.findall(r"\]\((?:place:)?(\w+)(?:#|\.ipynb)", answer)) - {"sources"}
    said = "\n".join(words_of(page) for page in linked)
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", answer)
    prose = re.sub(_CHAPTER, "", prose)
    numbers = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)", prose)
    for number in (n.rstrip(",") for n in numbers):
        year = re.fullmatch(r"(?:19|20)\d\d", number)
        small = number in {"0", "1", "2", "3", "4"}
        found = re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", said)
        assert year or small or found, f"{number} stands on no page that is linked"


def test_questions_are_asked_once() -> None:
    asked = re.findall(r"^### (.+)$", QUESTIONS, re.MULTILINE)
    assert len(asked) == len(set(asked)) == len(ANSWERS) >= 40


# --- paths --------------------------------------------------------------------------------------


def test_every_chapter_says_what_it_needs_and_how_long_it_takes() -> None:
    pages = paths.read_pages(BOOK)
    assert set(pages) == {p.stem for p in [*BOOK.glob("[0-9]*.ipynb"), *BOOK.glob("lab*.ipynb")]}
    for page in list(pages.values())[1:]:
        assert page.needs, f"{page.name} does not say which page it needs"
        assert page.minutes % 5 == 0, f"{page.name}: {page.minutes} minutes"


def test_a_page_without_minutes_is_refused(tmp_path: Path) -> None:
    cell = {"cell_type": "markdown", "source": ["# 1 · Nothing"]}
    (tmp_path / "01_x.ipynb").write_text(json.dumps({"cells": [cell]}))
    with pytest.raises(ValueError, match="01_x does not say how many minutes"):
        paths.read_pages(tmp_path)


def test_every_exercise_is_counted_with_its_minutes() -> None:
    pages = paths.read_pages(BOOK)
    for page in pages.values():
        headings = re.findall(r'"### Exercise ', (BOOK / f"{page.name}.ipynb").read_text("utf-8"))
        assert len(page.exercises) == len(headings), page.name
    words = "# 4 · D\n*5 minutes to read.*\n\n### Exercise 1 · X\n\n*Easy · {}.* Do it."
    assert paths.read_page("04_d", words.format("15 minutes, on paper"), {}).exercises == (15,)
    assert paths.read_page("04_d", words.format("an hour"), {}).exercises == (60,)
    with pytest.raises(ValueError, match="04_d, 'Exercise 1 · X' does not say how many minutes"):
        paths.read_page("04_d", words.format("quick"), {})


def not_asked(exercises: Iterable[str], text: str) -> set[str]:
    """Exercises that no cell of a text checks."""
    return set(exercises) - set(re.findall(r'\b(?:check|pick)\(\s*"([\w.]+)"', text))


def test_every_exercise_stands_on_a_page() -> None:
    """One that is registered only would be tested for ever, and never be seen."""
    text = "\n".join(words_of(path.stem) for path in sorted(BOOK.glob("*.ipynb")))
    assert not not_asked(EXERCISES, text)
    assert not_asked(["masks.shift", "masks.new"], 'check("masks.shift", f)') == {"masks.new"}


def test_who_wants_to_write_a_gpt_is_not_sent_through_the_encoder() -> None:
    way = [page.number for page in paths.path_to(paths.read_pages(BOOK), ["lab4_mini_gpt"])]
    assert way[-1] == "lab4"
    assert {"5", "6", "7", "9", "10"} <= set(way)
    assert not {"11", "12", "13"} & set(way)


def test_a_table_of_paths_leads_to_its_pages() -> None:
    lab = paths.Page("lab1_b", "B", 90, ("03_a",))
    table = paths.table_of_paths({"x": [paths.Page("03_a", "A", 150, (), (5, 10)), lab]}, "have")
    bundle = table._repr_mimebundle_()
    row = "| x | 2.5 h | 105 min | [3 · A](03_a.ipynb); [lab 1 · B](lab1_b.ipynb) |"
    assert row in bundle["text/markdown"]
    assert bundle["text/plain"].splitlines()[1] == "x | 2.5 h | 105 min | 3 · A; lab 1 · B"


def test_a_long_path_is_told_by_its_ends() -> None:
    pages = [paths.Page(f"{number:02}_a", f"A{number}", 5, ()) for number in range(1, 18)]
    rows = paths.table_of_paths({"x": pages, "y": pages[:16]}, "have").rows
    assert rows[0][-1] == "17 pages, from [1 · A1](01_a.ipynb) to [17 · A17](17_a.ipynb)"
    assert rows[1][-1].count(";") == 15


def test_the_graph_leads_to_every_chapter() -> None:
    pages = paths.read_pages(BOOK)
    graph = paths.prerequisite_graph(pages).svg
    assert "…" not in graph, "a title does not fit into its box"
    links = re.findall(r'<a href="(\w+)\.ipynb">', graph)
    assert links == [p.name for p in pages.values() if p.number == p.chapter and not p.is_lab]


def test_pages_are_read_where_pytorch_is_not_installed() -> None:
    hide = "import sys; sys.modules.update(dict.fromkeys(('torch', 'numpy', 'matplotlib')))"
    read = f"from transformer_book import paths; print(len(paths.read_pages({str(BOOK)!r})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{hide}; {read}"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == len(paths.read_pages(BOOK))


def test_a_page_that_needs_a_later_one_is_refused() -> None:
    words = "# 1 · A\n*5 minutes to read. You need: [b](02_b.ipynb).*"
    with pytest.raises(ValueError, match=r"01_a needs \['02_b'\]; expected pages that come before"):
        paths.read_page("01_a", words, {})


def test_a_folder_without_chapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no chapter"):
        paths.read_pages(tmp_path)


def test_only_the_sentence_of_needs_is_read() -> None:
    before = {name: paths.Page(name, name, 5, ()) for name in ("01_a", "02_b", "03_c")}
    words = (
        "# 4 · D\n*5 minutes to read, 3 seconds to run. You need: [a](01_a.ipynb#x), and [b]"
        "(02_b.ipynb). What c is for: [c](03_c.ipynb).*"
    )
    assert paths.read_page("04_d", words, before).needs == ("01_a", "02_b")


def test_strange_goals_are_refused() -> None:
    pages = {"01_a": paths.Page("01_a", "A", 5, ())}
    with pytest.raises(ValueError, match=r"\['99_z'\] are not pages"):
        paths.path_to(pages, ["99_z"])


def test_days_are_as_equal_as_their_pages_allow() -> None:
    minutes = {"a": 9, "b": 1, "c": 5, "d": 5, "e": 5}
    path = [paths.Page(name, name, takes, ()) for name, takes in minutes.items()]
    cut = paths.sessions(path, 3)
    assert [[page.name for page in day] for day in cut] == [["a", "b"], ["c", "d"], ["e"]]
    assert len(paths.sessions(path[2:], 9)) == 3
    lab = paths.Page("lab1_b", "B", 90, ())
    assert paths.sessions([lab], 1) == [[lab]]


@pytest.mark.parametrize(("pages", "number"), [(0, 2), (1, 0)])
def test_nothing_is_not_cut_into_days(pages: int, number: int) -> None:
    said = f"expected pages and at least one session, got {pages} and {number}"
    with pytest.raises(ValueError, match=said):
        paths.sessions([paths.Page("01_a", "A", 5, ())] * pages, number)


def test_chapters_stand_below_all_that_they_need() -> None:
    pages = paths.read_pages(BOOK)
    rows, lines = paths._rows(paths.chapter_needs(pages))
    depth = {name: number for number, row in enumerate(rows) for name in row}
    assert all(depth[need] < depth[chapter] for need, chapter in lines)
    spots = paths._spots(rows)
    assert len(set(spots.values())) == len(spots)
