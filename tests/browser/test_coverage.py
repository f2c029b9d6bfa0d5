"""The apparatus in the built site: rows, errors, terms and names lead somewhere real."""

from __future__ import annotations

import re
from functools import cache

import pytest
import yaml
from bs4 import BeautifulSoup
from built_site import ROOT, SITE
from site_links import Anchors, parse

ENTRIES = {
    name: entry
    for part in yaml.safe_load((ROOT / "book" / "sources.yml").read_text(encoding="utf-8")).values()
    for name, entry in part.items()
}
ERRATA = {name: entry for name, entry in ENTRIES.items() if name.startswith("X-")}
ITEMS = {name: entry for name, entry in ENTRIES.items() if name not in ERRATA}


@cache
def built(page: str) -> Anchors:
    file = SITE / "book" / f"{page}.html"
    if not file.is_file():
        pytest.fail(f"{page} is not in the built site: run `make book` first", pytrace=False)
    return parse(file)


def missing(places: dict[str, str]) -> list[str]:
    """The names whose page is not built or does not have the anchor."""
    return [
        f"{name}: {target}"
        for name, target in places.items()
        if target.partition("#")[2] not in built(target.partition("#")[0]).ids
    ]


def address(target: str) -> str:
    page, _, anchor = target.partition("#")
    return f"{page}.html#{anchor}"


def page_of(name: str) -> str:
    return f"sources_{name.removeprefix('X-')[0].lower()}"


def test_all_395_items_lead_to_a_heading() -> None:
    assert len(ITEMS) == 395
    assert missing({name: entry["at"] for name, entry in ITEMS.items()}) == []
    for name, entry in ITEMS.items():
        assert address(entry["at"]) in built(page_of(name)).references, name


def test_all_156_errors_lead_to_a_heading_and_have_a_cell() -> None:
    assert len(ERRATA) == 156
    assert missing({name: entry["at"] for name, entry in ERRATA.items()}) == []
    listed = set(built("sources").references)
    for name, entry in ERRATA.items():
        page = page_of(name)
        assert address(entry["at"]) in built(page).references, name
        assert f"cell-{name[2:].lower()}" in built(page).ids, name
        places = [
            r for r in listed if r.startswith(f"{page}.html#{name[2]}{int(name[3:])}-".lower())
        ]
        assert len(places) == 1, name
        assert places[0].partition("#")[2] in built(page).ids, name
    assert {name.lower() for name in ERRATA} <= set(built("sources").ids)


def test_every_chapter_links_its_terms() -> None:
    chapters = sorted(path.stem for path in (ROOT / "book").glob("[0-9]*.ipynb"))
    linked = {
        page: {r for r in built(page).references if r.startswith("glossary.html#term-")}
        for page in chapters
    }
    assert {page: len(terms) for page, terms in linked.items() if len(terms) < 8} == {}
    terms = {name for name in built("glossary").ids if name.startswith("term-")}
    used = {reference.partition("#")[2] for links in linked.values() for reference in links}
    assert len(used) > 0.8 * len(terms)


def test_every_entry_of_the_glossary_leads_to_the_page_that_teaches_it() -> None:
    homes = yaml.safe_load((ROOT / "book" / "terms.yml").read_text(encoding="utf-8"))
    del homes["core"]  # not a term: the list of those that carry the core
    page = BeautifulSoup((SITE / "book" / "glossary.html").read_text("utf-8"), "html.parser")
    links = [str(link["href"]) for link in page.select("dl.glossary .taught-in a")]
    assert links == [address(target).removesuffix("#") for target in homes.values()]
    said = [line.get_text().split(" in ")[0] for line in page.select("dl.glossary .taught-in")]
    answered = [target.startswith("questions#") for target in homes.values()]
    assert said == ["Answered" if answer else "Taught" for answer in answered]
    assert any(answered)
    firsts = [dt.get_text()[0].upper() for dt in page.select("dl.glossary dt")]
    letters = page.select("p.letters a")
    assert [letter.get_text() for letter in letters] == sorted(set(firsts))
    assert {str(letter["href"])[1:] for letter in letters} <= set(built("glossary").ids)


def test_every_work_of_the_bibliography_leads_to_the_pages_that_cite_it() -> None:
    page = BeautifulSoup((SITE / "book" / "bibliography.html").read_text("utf-8"), "html.parser")
    entries = page.select(".citation-list > .citation")
    lines = {entry.get_text(): entry.select(".cited-in a") for entry in entries}
    (paper,) = (
        links for text, links in lines.items() if "attention is all you need" in text.lower()
    )
    assert {"03_attention.html", "13_transformer.html"} <= {str(link["href"]) for link in paper}
    assert [link.get_text() for link in paper][:2] == ["0", "1"]
    assert sum(map(bool, lines.values())) > 250


def test_names_of_the_library_and_chapters_lead_to_each_other() -> None:
    written = sorted((ROOT / "book" / "api").glob("*.md"))
    pages = [SITE / "book" / "api" / f"{path.stem}.html" for path in written]
    explained = set()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        entries = re.findall(r'<dt class="sig sig-object py" id="(transformer_[\w.]+)"', text)
        kinds = re.findall(r'<dl class="py (class|function)">', text)
        places = re.findall(r'Explained in <a [^>]*href="\.\./(\w+)\.html', text)
        assert len(places) == len(kinds), f"{page.name}: a name leads to no chapter"
        explained |= {(place, page.stem) for place in places}
        assert entries or page.stem in {"index"}, page.name
    for chapter, page in explained:
        back = [r for r in built(chapter).references if r.startswith(f"api/{page}.html#")]
        assert back, f"{chapter} does not lead back to {page}"
