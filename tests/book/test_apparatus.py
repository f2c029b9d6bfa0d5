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

import omissions
import pytest
from docutils import nodes
from omissions import differences, fail_on, misplaced, place_in

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
import book_words  # noqa: E402


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


def problem_with(target: str) -> str:
    """Why a place is none; the list of errors on the page of the sources has anchors of its own."""
    page, _, anchor = target.partition("#")
    if page == "sources" and anchor in {name.lower() for name in book_sources.entries()}:
        return ""
    return book_places.problem_with(target)


@pytest.mark.parametrize(
    "module", [book_glossary, book_places, book_sources, book_symbols, book_words, omissions]
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


@pytest.mark.parametrize(
    ("target", "in_book", "said"),
    [
        ("05_mask", False, "there is no page book/05_mask; did you mean '05_masks'?"),
        ("05_masks#cell-nowhere", True, "book/05_masks.ipynb has no heading or cell #cell-nowhere"),
        ("05_masks#what-breaks", False, "_toc.yml has no line for the page: add"),
        ("05_masks#what-breaks", True, "the page that was built has no #what-breaks"),
    ],
)
def test_a_link_that_leads_nowhere_is_told_why(target: str, in_book: bool, said: str) -> None:
    problem = book_places.why_missing(target, in_book=in_book)
    assert problem.startswith(f"place:{target}: {said}")


def test_a_cell_has_no_words() -> None:
    cell = book_places.outline("05_masks").cells[0]
    with pytest.raises(ValueError, match="which has no words; expected a heading"):
        book_places.in_words(f"05_masks#cell-{cell}")


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
    found = book_words.parse_glossary(GLOSSARY)
    assert list(found) == ["attention head", "head", "causal mask", "key", "mask"]
    assert found["head"].meaning == "One copy of attention, of width d_head."
    assert found["key"].meaning == "What a queries is compared with."


def uses(text: str, *words: str) -> list[str]:
    found = book_words.first_uses(text, text, {word: word for word in words})
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


def glossary_problems(text: str) -> list[str]:
    """What is out of order in a glossary, and what it defines twice."""
    body = text.partition(":::{glossary}\n")[2]
    blocks = [block.splitlines()[0].strip() for block in re.split(r"\n\n(?=\S)", body)]
    firsts = [name.lower() for name in blocks if name and name != ":::"]
    wrong = misplaced(firsts, sorted(firsts))
    names = re.findall(r"^(?![ :#])(\S.*)$", body, re.MULTILINE)
    twice = [name for name, count in Counter(names).items() if count > 1]
    return [f"book/glossary.md is in alphabetical order: {wrong}"] * bool(wrong) + [
        f"book/glossary.md defines {name!r} twice: keep one of the two" for name in twice
    ]


def test_the_glossary_is_in_order_and_names_nothing_twice() -> None:
    fail_on(glossary_problems((BOOK / "glossary.md").read_text(encoding="utf-8")))


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
        also = re.split(r"[,;] |\.$", book_words.plain(block.partition(" Also: ")[2]))
        found.append(Entry(names, list(filter(None, also))))
    return found


def test_no_entry_gives_its_own_name_as_another_one() -> None:
    own = [(entry.names[0], {*entry.names} & {*entry.also}) for entry in entries()]
    fail_on(
        f'book/glossary.md, {name!r}: take {sorted(same)} out of "Also"; it is a name already'
        for name, same in own
        if same
    )


def home_problems(firsts: list[str], homes: dict[str, str]) -> list[str]:
    """What terms.yml lacks, has too much, in another order than the glossary, or wrong."""

    def lacks(name: str) -> str:
        return f"{book_glossary.problem_of(name, {})} ({place_in(name, firsts)})"

    def extra(name: str) -> str:
        remedy = "define it there, or take the line out; an entry goes by the first of its names"
        return f"book/terms.yml has a line for {name!r}, which book/glossary.md lacks: {remedy}"

    problems = differences(homes, firsts, lacks=lacks, extra=extra)
    if not problems and (wrong := misplaced(list(homes), firsts)):
        problems.append(f"book/terms.yml has the order of book/glossary.md: {wrong}")
    wrong_places = {name: problem_with(target) for name, target in homes.items()}
    return problems + [f"book/terms.yml, {n!r}: {why}" for n, why in wrong_places.items() if why]


def test_every_entry_has_a_place_that_teaches_it() -> None:
    fail_on(home_problems([entry.names[0] for entry in entries()], book_glossary.homes()))


FIRSTS = ["token", "top-a", "top-k"]
HOMES = {"token": "02_tokens", "top-a": "16_generation", "top-k": "16_generation"}


@pytest.mark.parametrize(
    ("homes", "said"),
    [
        (
            {"token": "02_tokens", "top-k": "16_generation"},
            "book/terms.yml has no line for 'top-a', which book/glossary.md defines: add "
            "\"top-a: PAGE#heading\", the section that teaches it (between 'token' and 'top-k')",
        ),
        (
            {**HOMES, "top-b": "16_generation"},
            "book/terms.yml has a line for 'top-b', which book/glossary.md lacks: define it there, "
            "or take the line out; an entry goes by the first of its names",
        ),
        (
            {name: HOMES[name] for name in ("token", "top-k", "top-a")},
            "book/terms.yml has the order of book/glossary.md: 'top-k' belongs behind 'top-a'",
        ),
        (
            {**HOMES, "top-a": "16_generation#top-aa"},
            "book/terms.yml, 'top-a': book/16_generation.ipynb has no heading or cell #top-aa",
        ),
        (
            {**HOMES, "top-a": "16_generatoin"},
            "book/terms.yml, 'top-a': there is no page book/16_generatoin; "
            "did you mean '16_generation'?",
        ),
    ],
)
def test_a_term_without_its_place_is_told_what_to_write(homes: dict[str, str], said: str) -> None:
    assert home_problems(FIRSTS, HOMES) == []
    (problem,) = home_problems(FIRSTS, homes)
    assert problem.startswith(said)


def test_a_term_in_the_wrong_place_is_told_between_which_it_belongs() -> None:
    moved = GLOSSARY.replace(":::{glossary}\n", ":::{glossary}\nblock\n  A layer.\n\n", 1)
    assert glossary_problems(GLOSSARY) == []
    assert glossary_problems(moved) == [
        "book/glossary.md is in alphabetical order: "
        "'block' belongs between 'attention head' and 'causal mask'"
    ]
    twice = GLOSSARY.replace("\nhead\n", "\nmask\n")
    (problem,) = glossary_problems(twice)
    assert problem == "book/glossary.md defines 'mask' twice: keep one of the two"


def test_what_people_search_for_has_a_place() -> None:
    problems = map(problem_with, book_search.ASKED)
    fail_on(f"book/_ext/book_search.py, ASKED: {problem}" for problem in problems if problem)


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


def silence(entry: Entry, target: str) -> str:
    """What to do about a place that does not speak of the term that it is said to teach."""
    page, _, anchor = target.partition("#")
    if problem_with(target) or speaks_of(sections(page).get(anchor, ""), entry):
        return ""  # a place that is not there has been told above
    names = ", ".join(map(repr, [*entry.names, *entry.also]))
    return (
        f"book/terms.yml says that {target} teaches {entry.names[0]!r}, but it has none of the "
        f'names {names}: use one there, name another section, or add a name after "Also:" in '
        "book/glossary.md"
    )


def test_a_place_speaks_of_the_term_that_it_is_said_to_teach() -> None:
    homes = book_glossary.homes()
    told = [silence(entry, homes[name]) for entry in entries() if (name := entry.names[0]) in homes]
    fail_on(filter(None, told))


def test_a_silent_place_is_noticed() -> None:
    said = silence(Entry(["beam search"], []), "17_cost#tile-by-tile")
    assert said.startswith("book/terms.yml says that 17_cost#tile-by-tile teaches 'beam search'")
    assert silence(Entry(["tile"], []), "17_cost#tile-by-tile") == ""


def test_guarded_words_are_in_the_glossary() -> None:
    unknown = set(book_words.CONTEXT) - set(book_terms.glossary())
    where = "book/_ext/book_words.py has a CONTEXT for"
    remedy = "define it there, or take the line out"
    fail_on(f"{where} {word!r}, which book/glossary.md lacks: {remedy}" for word in sorted(unknown))


# --- the API and the chapters -------------------------------------------------------------------


# Command lines, the reader's file, whose documentation is the book, and what gathers it.
NOT_FOR_READERS = {
    *("transformer_lib.__main__", "transformer_book.file.__main__"),
    *("transformer_book.file", "transformer_book.your_file"),
}


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
    said = f"book/symbols.yml says that {target} explains {name}"
    assert not problem_with(target), f"{said}, but: {problem_with(target)}"
    page = words_of(target.partition("#")[0])
    module = book_symbols.module_of(name)
    # A helper that no chapter names is explained with the module that it belongs to.
    module = book_symbols.places()[module].get("part_of", module)
    siblings = [other for other in public_names() if book_symbols.module_of(other) == module]
    wanted = "|".join(full.rpartition(".")[2] for full in [module, *siblings])
    some = ", ".join(wanted.split("|")[:8])
    remedy = f"use one of them there ({some}), or name another section"
    is_named = re.search(rf"\b(?:{wanted})\b", page)
    assert is_named, f"{said}, but no name of {module} stands on that page: {remedy}"


SYMBOLS = {
    "lib.masks": {"default": "05_masks", "hide": "05_masks#what-breaks"},
    "lib.few": {"only": "05_masks"},
    "lib.part": {"part_of": "lib.masks"},
    "lib.lost": {"part_of": "lib.gone"},
}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "lib.new.thing",
            'book/symbols.yml has no entry for lib.new: add "lib.new:" and below it '
            '"  default: PAGE#heading", the section that explains it',
        ),
        (
            "lib.few.thing",
            "book/symbols.yml has no place for lib.few.thing: add below lib.few "
            '"  thing: PAGE#heading", the section that explains it',
        ),
        ("lib.lost.thing", "book/symbols.yml says that lib.lost is part_of lib.gone, which has no"),
    ],
)
def test_a_name_without_a_place_is_told_what_to_write(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setattr(book_symbols, "places", lambda: SYMBOLS)
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        book_symbols.place_of(name)
    assert book_symbols.place_of("lib.part.thing") == "05_masks"
    assert book_symbols.place_of("lib.masks.hide") == "05_masks#what-breaks"


def test_every_import_line_of_the_api_works() -> None:
    for name in public_names():
        value = pkgutil.resolve_name(name)
        line, found = book_symbols.import_line(name, value), {}
        exec(line, found)
        assert found[name.rpartition(".")[2]] is value, line


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("transformer_lib.models.language_models.CausalLM", "from transformer_lib import CausalLM"),
        ("transformer_lib.tracing.watch.influence", "from transformer_lib import influence"),
        ("transformer_lib.cli.main.main", "from transformer_lib.cli.main import main"),
        ("transformer_lib.cli.train.train", "from transformer_lib.cli.train import train"),
    ],
)
def test_a_name_is_imported_from_the_outermost_package_that_has_it(name: str, line: str) -> None:
    assert book_symbols.import_line(name, pkgutil.resolve_name(name)) == line


def test_a_name_that_nobody_can_import_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"language_models\.CausalLM cannot be imported"):
        book_symbols.import_line("transformer_lib.models.language_models.CausalLM", None)


def test_an_import_stands_below_the_first_paragraph() -> None:
    lines = ["Do it.", "", "At length.", ""]
    name, value = "transformer_lib.core.checks.check_whole", transformer_lib.check_whole
    book_symbols._add_import(None, "function", name, value, None, lines)
    shown = "``from transformer_lib import check_whole``"
    assert lines == ["Do it.", "", shown, "", "At length.", ""]
    book_symbols._add_import(None, "method", name, value, None, lines)
    assert lines.count(shown) == 1


def test_drawing_functions_are_not_in_the_general_index() -> None:
    entries = {"book/api/pictures": ["arrow"], "book/api/models": ["CausalLM"]}
    book_symbols._drop_from_index(None, SimpleNamespace(domaindata={"index": {"entries": entries}}))
    assert entries == {"book/api/pictures": [], "book/api/models": ["CausalLM"]}
    assert all((BOOK.parent / f"{page}.md").is_file() for page in book_symbols.NOT_INDEXED)


_SECTION = re.compile(r"^([\w.]+)\)=\n###? `(\S+)`\n.*?automodule:: (\S+)", re.DOTALL)


def section_problems(text: str) -> list[str]:
    """Which sections of an API page are not headed by their module, by its full name."""
    problems = []
    for section in text.split("(module-")[1:]:
        found = _SECTION.search(section)
        label, heading, module = found.groups() if found else ("", "", "MODULE")
        name = module.partition(".")[2] or module
        if (label, heading) != (name, module):
            start = section.splitlines()[0]
            wanted = f"(module-{name})=, ## `{module}`, .. automodule:: {module}"
            problems.append(f'below "(module-{start}", expected in this order: {wanted}')
    return problems


def test_each_heading_of_the_api_names_its_module_in_full() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in (BOOK / "api").glob("*.md")}
    assert sum(text.count("(module-") for text in texts.values()) > 70
    problems = {name: section_problems(text) for name, text in texts.items()}
    fail_on(f"book/api/{name}: {problem}" for name, found in problems.items() for problem in found)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("(module-a)=\n## `lib.b`\n.. automodule:: lib.a\n", "## `lib.a`"),
        ("(module-b)=\n## `lib.a`\n.. automodule:: lib.a\n", "(module-a)="),
        ("(module-a)=\n## `lib.a`\n", ".. automodule:: MODULE"),
    ],
)
def test_a_section_of_the_api_that_lacks_a_line_is_told_which(section: str, said: str) -> None:
    assert section_problems("(module-a)=\n## `lib.a`\n\n.. automodule:: lib.a\n") == []
    (problem,) = section_problems(section)
    assert said in problem


def left_over(places: dict[str, dict[str, str]], names: set[str]) -> list[str]:
    """The lines of symbols.yml for modules and names that are gone."""
    modules = {book_symbols.module_of(name) for name in names}
    problems = []
    for module, lines in places.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            remedy = "take it out, or name the module as it is called now"
            problems.append(f"book/symbols.yml has an entry for {module} ({error}): {remedy}")
            continue
        gone = [n for n in lines if f"{module}.{n}" not in names and module in modules]
        problems += [
            f"book/symbols.yml, {module}: there is no public {name!r} in it: take its line out"
            for name in gone
            if name not in ("default", "part_of")
        ]
    return problems


def test_no_place_is_kept_for_a_name_that_is_gone() -> None:
    fail_on(left_over(book_symbols.places(), set(public_names())))


def test_a_place_that_is_left_over_is_told() -> None:
    places = {"transformer_lib.layers.masks": {"gone": "05_masks"}, "transformer_lib.legs": {}}
    first, second = left_over(places, {"transformer_lib.layers.masks.causal_mask"})
    assert first == (
        "book/symbols.yml, transformer_lib.layers.masks: "
        "there is no public 'gone' in it: take its line out"
    )
    assert second.startswith("book/symbols.yml has an entry for transformer_lib.legs (No module")


# --- questions ----------------------------------------------------------------------------------

QUESTIONS = (BOOK / "questions.md").read_text(encoding="utf-8")
ANSWERS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", QUESTIONS, re.MULTILINE | re.DOTALL))
_CHAPTER = r"\b(?:chapters?|labs?)\s+\d+[a-d]?(?:(?:,| and| to)\s+\d+[a-d]?)*"


def link_problems(question: str, answer: str) -> list[str]:
    """What is wrong with the links of an answer to places."""
    where = f"book/questions.md, {question!r}"
    targets = re.findall(r"\]\(place:([^)]+)\)", answer)
    if not targets:
        remedy = "add [words](place:PAGE#heading), the section that measures it"
        return [f"{where}: the answer leads to no result: {remedy}"]
    problems = map(problem_with, targets)
    return [f"{where}: {problem}" for problem in problems if problem]


def number_problems(question: str, answer: str) -> list[str]:
    """The numbers of an answer that stand on no page to which it leads."""
    linked = set(re.findall(r"\]\((?:place:)?(\w+)(?:#|\.ipynb)", answer)) - {"sources"}
    said = "\n".join(words_of(page) for page in linked if not problem_with(page))
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", answer)
    prose = re.sub(_CHAPTER, "", prose)
    numbers = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)", prose)
    problems = []
    for number in (n.rstrip(",") for n in numbers):
        year = re.fullmatch(r"(?:19|20)\d\d", number)
        small = number in {"0", "1", "2", "3", "4"}
        found = re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", said)
        if not (year or small or found):
            pages = ", ".join(sorted(linked)) or "no page"
            remedy = "link to the place that prints it, or leave it out"
            problems.append(
                f"book/questions.md, {question!r}: {number} does not stand on {pages}: {remedy}"
            )
    return problems


@pytest.mark.parametrize("question", ANSWERS)
def test_an_answer_leads_to_places_that_exist(question: str) -> None:
    fail_on(link_problems(question, ANSWERS[question]))


@pytest.mark.parametrize("question", ANSWERS)
def test_numbers_in_an_answer_stand_on_a_page_it_leads_to(question: str) -> None:
    fail_on(number_problems(question, ANSWERS[question]))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("Yes.", "the answer leads to no result: add [words](place:PAGE#heading)"),
        ("[So](place:05_masks#nowhere).", "book/05_masks.ipynb has no heading or cell #nowhere"),
        ("[So](place:05_mask).", "there is no page book/05_mask; did you mean '05_masks'?"),
        ("[So](place:05_masks#what-breaks), 98765 times.", "98765 does not stand on 05_masks"),
    ],
)
def test_an_answer_that_lacks_something_is_told_what(answer: str, said: str) -> None:
    (problem,) = link_problems("Why?", answer) + number_problems("Why?", answer)
    assert problem.startswith(f"book/questions.md, 'Why?': {said}")


def test_questions_are_asked_once() -> None:
    asked = re.findall(r"^### (.+)$", QUESTIONS, re.MULTILINE)
    twice = [question for question, count in Counter(asked).items() if count > 1]
    fail_on(f"book/questions.md asks {question!r} twice: keep one of the two" for question in twice)
    assert len(asked) == len(ANSWERS) >= 40


# --- paths --------------------------------------------------------------------------------------


def test_every_chapter_says_what_it_needs_and_how_long_it_takes() -> None:
    pages = paths.read_pages(BOOK)
    assert set(pages) == {p.stem for p in [*BOOK.glob("[0-9]*.ipynb"), *BOOK.glob("lab*.ipynb")]}
    for page in list(pages.values())[1:]:
        top = f"book/{page.name}.ipynb, first cell"
        assert page.needs, f'{top}: add "You need: [a page](PAGE.ipynb)." behind the minutes'
        assert page.minutes % 5 == 0, f"{top}: {page.minutes} minutes; expected a multiple of 5"


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


def test_newcomers_begin_with_attention_and_never_need_what_they_have_not_read() -> None:
    pages = paths.read_pages(BOOK)
    steps = paths.in_steps(pages, paths.NEWCOMERS)
    way = [page for path in steps.values() for page in path]
    assert [page.number for page in way[:2]] == ["0", "3"]  # 0 is about this book
    assert {"lab4", "1"} <= {page.number for page in way}
    for number, page in enumerate(way):
        late = set(page.needs) - {before.name for before in way[:number]}
        assert not late, f"the path for newcomers reads {page.name} before {late}"
    assert all(steps.values()), "a step has nothing to read: take it out of NEWCOMERS"
    assert len(way) == len(set(way))


def test_a_week_can_count_exercises_too() -> None:
    path = [paths.Page(f"{n:02}_a", "A", 10, (), (n * 10,)) for n in range(4)]
    assert paths.all_minutes(path) == 100
    cut = paths.sessions(path, 2, paths.all_minutes)
    assert [len(week) for week in cut] == [3, 1]
    assert [len(week) for week in paths.sessions(path, 2)] == [2, 2]


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
