"""The search: what is noted of a page, which names a thing has, and what comes first."""

from __future__ import annotations

import doctest
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from py_mini_racer import MiniRacer
from sphinx import addnodes

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import book_search  # noqa: E402

WITH_TITLE = {"doctitle_xform": False}  # a title is a section, as in the book

PAGE = """
Masks
=====
A **mask** says who may look.

.. raw:: html

   <p>not a word of this</p>

By :math:`\\sqrt{d}`
--------------------
Divide.

::

   causal_mask(size)  # a comment
"""


def test_a_page_is_cut_into_its_sections() -> None:
    _, mask, root = book_search.parts_of(publish_doctree(PAGE, settings_overrides=WITH_TITLE))
    assert mask.row() == ["masks", "Masks", "A mask says who may look.", "mask"]
    assert root.row() == ["by-sqrt-d", "By √d", "Divide.", "", "causal_mask"]


def test_formulas_are_noted_with_the_signs_of_a_keyboard() -> None:
    text = book_search.parts_of(publish_doctree("Title\n=====\n:math:`\\sqrt{d_k}`"))[-1].text
    assert text.strip() == "√d_k"


def test_a_fraction_keeps_its_bar() -> None:
    page = publish_doctree("Weights :math:`\\tfrac23` and :math:`\\frac{q \\cdot k}{\\sqrt{d_k}}`.")
    assert book_search.words_of(page) == "Weights 2/3 and (q · k)/√d_k."


def test_outputs_of_cells_are_no_text() -> None:
    output = nodes.container("", nodes.paragraph("", "0.123"), nb_element="cell_code_output")
    document = publish_doctree("Title\n=====\nText.")
    document += output
    assert "0.123" not in "".join(part.text for part in book_search.parts_of(document))


def glossary(*entries: tuple[list[str], str]) -> nodes.document:
    document = publish_doctree("Glossary\n========\nTerms.")
    for names, meaning in entries:
        terms = [nodes.term("", name, ids=[f"term-{name}"]) for name in names]
        definition = nodes.definition("", nodes.paragraph("", meaning))
        document += nodes.definition_list_item("", *terms, definition)
    return document


def test_a_term_has_its_names_and_those_of_others_that_are_no_terms() -> None:
    document = glossary(
        (["pre-norm"], "First. Also: norm first, bias (JAX); $h$ for its size."),
        (["bias", "offset"], "What is added."),
    )
    assert book_search.names_of(document) == [["pre-norm", "norm first"], ["bias", "offset"]]
    assert [part.anchor for part in book_search.parts_of(document)[-2:]] == [
        "term-pre-norm",
        "term-bias",
    ]


def test_of_a_documented_name_the_first_words_are_noted() -> None:
    signature = addnodes.desc_signature("", "", ids=["lib.mask"], fullname="mask")
    lines = ("Bases: Module", "Return a mask.", "All the rest.")
    words = [nodes.paragraph("", line) for line in lines]
    document = publish_doctree("Title\n=====\nText.")
    document += addnodes.desc("", signature, addnodes.desc_content("", *words))
    part = book_search.parts_of(document)[-1]
    assert part.row() == ["lib.mask", "mask", "Return a mask."]


def test_examples_in_the_docstrings_hold() -> None:
    result = doctest.testmod(book_search)
    assert result.attempted > 0
    assert result.failed == 0


# --- what comes first ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def v8() -> MiniRacer:
    engine = MiniRacer()
    script = (ROOT / "book" / "_static" / "search.js").read_text(encoding="utf-8")
    engine.eval(script.replace("const BookSearch", "var BookSearch", 1))
    return engine


@pytest.mark.parametrize(
    "forms",
    [
        "mask masks masked masking",
        "normalise normalize normalising normalization normalisations normaliser",
        "query queries",
        "embed embedding embeddings",
        "bias biases",
        "√ sqrt",
        "cache caches cached",
    ],
)
def test_the_forms_of_a_word_are_one(v8: MiniRacer, forms: str) -> None:
    stems = {v8.eval(f"BookSearch.stem({json.dumps(form)})") for form in forms.split()}
    assert len(stems) == 1


@pytest.mark.parametrize(
    "words", ["loss los", "norm normal", "encoder encoding", "mask task", "head heat"]
)
def test_other_words_stay_apart(v8: MiniRacer, words: str) -> None:
    stems = {v8.eval(f"BookSearch.stem({json.dumps(word)})") for word in words.split()}
    assert len(stems) == 2


FILLER = "Nothing of this kind is said here. " * 3


def page(name: str, title: str, weight: float, *sections: tuple[str, str]) -> list[Any]:
    rows = [[heading.lower(), heading, text, "", ""] for heading, text in sections]
    return [f"{name}.html", title, weight, "", [[name, title, FILLER, "", ""], *rows]]


INDEX: dict[str, Any] = {
    "names": [["pre-norm", "norm first"], ["square root", "sqrt"]],
    "pages": [
        page("10", "10 · Blocks", 1, ("Build", f"A block. Pre-norm is used. {FILLER}")),
        page("9", "9 · Norms", 1, ("Order", "Pre-norm before, pre-norm again, and pre-norm.")),
        page("4", "4 · Scaling: why", 1, ("A law", "Divide by √d, or scores grow.")),
        page("terms", "Terms", 0.1, ("pre-norm", "Pre-norm. Also: norm first.")),
        page("a", "5 · Twins", 1, ("Twin", "twin")),
        page("b", "6 · Twins", 1, ("Twin", "twin")),
    ],
}


def ready(index: dict[str, Any]) -> str:
    return f"BookSearch.prepare({json.dumps(book_search.packed(index))})"


def found(v8: MiniRacer, query: str, index: dict[str, Any] = INDEX) -> list[str]:
    call = f"BookSearch.find({ready(index)}, {json.dumps(query)}).found"
    pages = v8.eval(f"JSON.stringify({call}.map((f) => [f.page.address, f.sections[0].anchor]))")
    return [f"{address.removesuffix('.html')}#{anchor}" for address, anchor in json.loads(pages)]


@pytest.mark.parametrize("query", ["pre-norm", "prenorm", "Pre Norm", "what is norm first?"])
def test_a_thing_is_found_by_all_its_names(v8: MiniRacer, query: str) -> None:
    assert found(v8, query) == ["9#order", "10#build", "terms#pre-norm"]


@pytest.mark.parametrize("query", ["why sqrt d", "square root", "√d", "square ro"])
def test_a_sign_is_found_by_words(v8: MiniRacer, query: str) -> None:
    assert found(v8, query)[:1] == (["4#a law"] if query != "square ro" else [])


def test_a_title_leads_to_the_top_and_ties_keep_the_order_of_the_book(v8: MiniRacer) -> None:
    assert found(v8, "blocks")[0] == "10#10"
    assert [place[0] for place in found(v8, "twin")] == ["a", "b"]


SAME = ("Place", "Twin and twin.")
HOMES: dict[str, Any] = {
    "names": [["twin", "double"]],
    "homes": ["c#place"],
    "asked": {"c#place": ["how long does it take"]},
    "pages": [
        page("book/a", "1 · First", 1, SAME, ("Long", "It takes long, and takes longer.")),
        page("book/b", "2 · Second", 1, SAME),
        page("book/c", "3 · Third", 0.2, SAME),
        page("book/api/d", "Names", 0.2, ("lib.many.parts.Twin", "A class.")),
    ],
}
HOMES["pages"][-1][-1][-1][1] = "Twin"  # below the anchor of a name stands the name alone


@pytest.mark.parametrize("query", ["twin", "double", "how long does it take?"])
def test_the_home_of_what_is_asked_comes_first_whatever_its_page_counts(
    v8: MiniRacer, query: str
) -> None:
    assert found(v8, query, HOMES)[0] == "book/c#place"
    homeless = {**HOMES, "homes": [], "asked": {}}
    assert found(v8, query, homeless)[0] != "book/c#place"


def test_a_home_that_does_not_say_the_words_leads_to_where_they_stand(v8: MiniRacer) -> None:
    index = {**HOMES, "homes": ["b#book/b"]}  # the beginning of the page
    assert found(v8, "twin", index)[0] == "book/b#place"


def sections_of_the_first(v8: MiniRacer, query: str, index: dict[str, Any]) -> list[str]:
    call = f"BookSearch.find({ready(index)}, {json.dumps(query)}).found[0]"
    anchors: list[str] = json.loads(
        v8.eval(f"JSON.stringify({call}.sections.map((s) => s.anchor))")
    )
    return anchors


def test_such_a_home_is_shown_with_them_however_many_say_the_words(v8: MiniRacer) -> None:
    many = [(f"{name} twin", "Twin and twin.") for name in ("One", "Two", "Three", "Four")]
    pages = [page("book/b", "2 · Second", 1, ("Home", "Nothing."), *many)]
    index = {"names": [["twin"]], "homes": ["b#home"], "pages": pages}
    sections = sections_of_the_first(v8, "twin", index)
    assert sections == ["one twin", "two twin", "home"]


def test_on_a_page_that_answers_the_section_leads_that_says_a_part(v8: MiniRacer) -> None:
    index = {
        "names": [["live figure"]],
        "asked": {"play": ["live figure"]},
        "pages": [page("book/play", "Play", 0.2, ("Heads", "One."), ("Masks", "Two."))],
    }
    assert found(v8, "mask live figure", index) == ["book/play#masks"]


def test_a_question_with_other_words_is_another_question(v8: MiniRacer) -> None:
    assert found(v8, "how long does it take first", HOMES)[0] == "book/a#long"


@pytest.mark.parametrize(
    "line", ["lib.many.parts.Twin", "from lib.many.parts import Twin", "from lib import Twin"]
)
def test_a_line_of_code_leads_to_the_name_that_it_imports(v8: MiniRacer, line: str) -> None:
    assert found(v8, line, HOMES)[0] == "book/api/d#lib.many.parts.twin"


CODE: dict[str, Any] = {
    "names": [["twin layer"], ["TwinNorm"], ["class token"]],
    "homes": ["a#place", "a#place", "a#place"],
    "pages": [
        page("book/a", "1 · Twins", 1, ("Place", "A twin layer, a TwinNorm, a class token.")),
        page(
            "book/api/d",
            "Names",
            0.2,
            *(("lib.parts.Pair.token", "A member."), ("lib.parts.TwinLayer", "A class.")),
            *(("lib.parts.TwinNorm", "A class."), ("lib.parts.twin_layer", "A function.")),
            *(("lib.parts.use", "A function."), ("lib.parts.from_place", "A function.")),
        ),
    ],
}
for _row in CODE["pages"][1][-1][1:]:  # the anchors of code keep its capitals
    _row[0], _row[1] = _row[1], _row[1].removeprefix("lib.parts.")


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("TwinLayer", "book/api/d#lib.parts.TwinLayer"),
        (" twin_layer ", "book/api/d#lib.parts.twin_layer"),
        ("twin layer", "book/a#place"),
        ("twin layer class", "book/api/d#lib.parts.TwinLayer"),
        ("import twin layer", "book/api/d#lib.parts.TwinLayer"),
        ("TwinNorm", "book/a#place"),  # a term as well
        ("class TwinNorm", "book/api/d#lib.parts.TwinNorm"),
        ("class token", "book/a#place"),
        ("class", "book/a#place"),  # no name; "use", a word without weight, is none either
        ("place class", "book/a#place"),  # from_place is another name
    ],
)
def test_a_name_of_the_code_leads_to_where_it_is_documented(
    v8: MiniRacer, query: str, first: str
) -> None:
    assert found(v8, query, CODE)[0] == first


def test_the_place_that_teaches_a_name_of_the_code_comes_second(v8: MiniRacer) -> None:
    assert found(v8, "TwinLayer", CODE)[1] == "book/a#place"


def test_parts_of_a_name_are_found_written_as_one(v8: MiniRacer) -> None:
    index = {
        "names": [["multi-head attention"]],
        "pages": [page("6", "6 · Several", 1, ("Heads", "Multi-head."))],
    }
    assert found(v8, "multihead", index) == ["6#heads"]
    assert found(v8, "multihead", {**index, "names": []}) == []


def test_a_synonym_of_two_letters_counts_only_where_it_is_typed(v8: MiniRacer) -> None:
    index = {
        "names": [["layer norm", "LN", "LNorm"]],
        "pages": [
            page("5", "5 · Loss", 1, ("Floor", "At best ln 2, or ln 3.")),
            page("9", "9 · Norms", 1, ("Layer", "A layer norm, an LNorm.")),
        ],
    }
    assert found(v8, "layer norm", index) == ["9#layer"]
    assert "5#floor" in found(v8, "LN", index)


@pytest.mark.parametrize(
    ("query", "meant", "unknown"),
    [
        ("nrom first", "norm first", []),  # short words: one slip
        ("sacling", "scaling", []),  # two letters swapped
        ("scalling", "scaling", []),  # a letter doubled
        ("What are Blokcss?", "What are blocks?", []),
        ("sqaure rooot", "square root", []),
        ("squere root", "square root", []),  # one slip in a name: the name as it is written
        ("block xyzzy", "block xyzzy", ["xyzzy"]),
        ("qre", "qre", ["qre"]),
        ("blocks", "blocks", []),
        ("bloc", "bloc", []),  # the beginning of a word, which is being typed
        ("", "", []),
    ],
)
def test_misspelled_words_are_corrected(
    v8: MiniRacer, query: str, meant: str, unknown: list[str]
) -> None:
    call = f"BookSearch.find({ready(INDEX)}, {json.dumps(query)})"
    told = json.loads(v8.eval(f"{{ const a = {call}; JSON.stringify([a.meant, a.unknown]) }}"))
    assert told == [meant, unknown]


def test_what_is_misspelled_is_found(v8: MiniRacer) -> None:
    assert found(v8, "blokcs") == found(v8, "blocks")
    assert found(v8, "blocks xyzzy") == found(v8, "blocks")


INTENT: dict[str, Any] = {
    "names": [],
    "intents": [["lab", [["make", "write"], ["gpt", "language model"]]]],
    "pages": [
        page("book/a", "1 · Models", 1, ("Words", "Much is said of a language model.")),
        page("book/lab", "Lab", 0.4, ("Steps", "In a language model.")),
    ],
}


@pytest.mark.parametrize("query", ["how do I write a language model", "make my own GPT"])
def test_an_intention_is_found_in_any_words_and_order(v8: MiniRacer, query: str) -> None:
    assert found(v8, query, INTENT)[0].startswith("book/lab#")
    assert found(v8, "the language model", INTENT)[0].startswith("book/a#")


def test_units_that_stand_near_each_other_count_more(v8: MiniRacer) -> None:
    far = f"A twin. {FILLER * 3} A house."
    index = {
        "names": [],
        "pages": [
            page("a", "A", 1, ("Far", far)),
            page("b", "B", 1, ("Near", f"{FILLER * 3} The twin house.")),
        ],
    }
    assert found(v8, "twin house", index)[0] == "b#near"


@pytest.mark.parametrize(
    "text", ["One, two: three.", "d_k = √64 (B, H, T)", "a—b", " ", "", "x²+1 isn’t <b>\\"]
)
def test_a_text_is_read_back_as_it_was_written(v8: MiniRacer, text: str) -> None:
    many = " ".join(f"w{n}" for n in range(5000))  # so that some words need three signs
    index = {
        "names": [],
        "pages": [page("a", "A", 1, ("Head", " ".join(text.split())), ("M", many))],
    }
    call = f"const r = {ready(index)}; r.sections.map((s) => BookSearch.textOf(r, s))"
    texts = json.loads(v8.eval(f"{{ {call.replace('r.sections', 'JSON.stringify(r.sections')}) }}"))
    assert texts == [FILLER, " ".join(text.split()), many]


@pytest.mark.parametrize("query", ["", "  ", "?!", "xyzzy"])
def test_what_says_nothing_finds_nothing(v8: MiniRacer, query: str) -> None:
    assert found(v8, query) == []


def test_an_excerpt_shows_the_sentence_that_says_most(v8: MiniRacer) -> None:
    text = "A norm. " + FILLER * 9 + "It has a norm first and √d. " + FILLER * 4
    units = f'const {{ units }} = BookSearch.find({ready(INDEX)}, "pre-norm square root");'
    told = f"const text = {json.dumps(text)}; JSON.stringify(BookSearch.excerpt(text, units))"
    excerpt = json.loads(v8.eval(f"{{ {units} {told} }}"))
    assert [excerpt["text"][a:b] for a, b in excerpt["marks"]] == ["norm first", "√"]
    assert excerpt["text"].startswith("It has a norm first")
    assert 100 < len(excerpt["text"]) < 250


def test_all_words_of_a_query_are_marked_in_all_their_forms(v8: MiniRacer) -> None:
    text = "A norm first, a Pre-Norm, Blocks. " + FILLER
    index = {
        **INDEX,
        "pages": [
            page("a", "A", 1, ("One", text), ("Two", "The block; a root.")),
            page("b", "B", 0.1, ("Root", "A square root.")),
        ],
    }
    setting = (
        f"const r = {ready(index)}; const a = BookSearch.find(r, 'pre-norm block square root');"
    )
    words = "JSON.stringify(BookSearch.wordsIn(r, a.found[0].page, a.units))"
    marked = json.loads(v8.eval(f"{{ {setting} {words} }}"))
    assert set(marked) == {"norm first", "pre norm", "blocks", "block", "root"}
