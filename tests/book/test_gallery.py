"""The gallery of figures: each with words of a person, its file, and the way to where it stands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from docutils import nodes
from omissions import fail_on

BOOK = Path(__file__).resolve().parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import book_gallery  # noqa: E402
import book_search  # noqa: E402
from book_front import pages  # noqa: E402
from book_gallery import Drawing  # noqa: E402
from book_places import problem_with  # noqa: E402

DRAWINGS = book_gallery.all_drawings()


def test_every_stored_figure_is_shown() -> None:
    for page in pages():
        stored = json.loads((BOOK / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
        outputs = [o for cell in stored for o in cell.get("outputs", [])]
        count = sum("image/svg+xml" in output.get("data", {}) for output in outputs)
        assert len(book_gallery.drawings(page)) == count
    assert len({drawing.file for drawing in DRAWINGS}) == len(DRAWINGS) > 150
    fail_on(problem for drawing in DRAWINGS if (problem := problem_with(drawing.place)))


def caption_problems(drawings: list[Drawing], written: dict[str, str]) -> list[str]:
    """Which figures nobody has described, and which descriptions no figure needs."""
    places = {drawing.place.replace("#cell-", "#"): drawing for drawing in drawings}
    bare = [
        f'book/captions.yml has no line for {where}, "{drawing.title}"'
        for where, drawing in places.items()
        if not drawing.caption or drawing.caption.startswith(f"{drawing.title}:")  # a machine's
    ]
    idle = [
        f"book/captions.yml: {where} is no figure, or has a caption of its own"
        for where, caption in written.items()
        if where not in places or places[where].caption != caption
    ]
    return bare + idle


def test_every_figure_has_words_of_a_person() -> None:
    fail_on(caption_problems(DRAWINGS, book_gallery.written_captions()))
    assert not any(drawing.caption.endswith("…") for drawing in DRAWINGS), "cut"


def test_a_figure_without_words_is_told() -> None:
    bare = Drawing("01_a", "cell-01-b", "figures/01_a-1.svg", "Title", "", "", "<svg/>")
    told = caption_problems([bare], {"02_c#02-d": "words"})
    assert [line.split(":")[0].split(", ")[0] for line in told] == [
        "book/captions.yml has no line for 01_a#01-b",
        "book/captions.yml",
    ]


@pytest.mark.parametrize("name", sorted(book_gallery.live_figures()))
def test_a_live_figure_leads_to_a_page_that_has_it(name: str) -> None:
    (drawing,) = [d for d in book_gallery.live_drawings() if d.live == name]
    assert not problem_with(drawing.place)
    kept = BOOK / drawing.file.removeprefix("../")
    assert kept.is_file() or drawing.file.startswith("figures/")  # written by the build
    notebook, plain = BOOK / f"{drawing.page}.ipynb", BOOK / f"{drawing.page}.md"
    if notebook.is_file():
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        (cell,) = [c for c in cells if f"cell-{c['id']}" == drawing.anchor]
        assert f'data-live="{name}"' in "".join(
            "".join(output["data"].get("image/svg+xml", "")) for output in cell["outputs"]
        )
    else:
        assert f":::{{live-figure}} {name}\n" in plain.read_text(encoding="utf-8")


def test_the_search_does_not_find_the_words_of_the_live_gallery() -> None:
    """They would lead to the top of the page, and not to the figure."""
    gallery = nodes.container("", nodes.paragraph("", "masks"), classes=["live-gallery"])
    page = nodes.container("", nodes.paragraph("", "live"), gallery)
    assert book_search.words_of(page) == "live"
    gallery["classes"] = []
    assert book_search.words_of(page).split() == ["live", "masks"]


def test_a_card_has_a_picture_a_file_and_a_licence() -> None:
    drawing = next(d for d in DRAWINGS if d.page == "04_scaling")
    shown, offered = book_gallery.picture(drawing, "figures"), book_gallery.offer(drawing)
    assert f'href="04_scaling.html#{drawing.anchor}"' in shown
    assert f'src="{drawing.file}"' in shown
    assert 'loading="lazy"' in shown
    assert f'href="{drawing.file}" download' in offered
    assert "CC BY 4.0" in offered
