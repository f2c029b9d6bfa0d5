"""What becomes of folded cells on paper, where nothing opens.

- Plumbing (set-up, "how this table was made") is left out, with the line that names it: on paper
  that line leads nowhere. The notebooks have it all.
- A prediction's output, and any other fold, is printed open.
- Solutions move to the end of their page, so that nobody reads one by accident; a link leads there
  and another one back.
"""

from __future__ import annotations

from bs4 import BeautifulSoup, Tag

PLUMBING = {"tag_fold", "tag_set-up"}
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


def classes(element: Tag) -> list[str]:
    """Return the classes of an element."""
    found = element.get("class") or ""
    return found.split() if isinstance(found, str) else list(found)


def print_folds(article: Tag) -> None:
    """Replace every fold of an article by what is printed in its place."""
    _collect_solutions(article)
    for fold in article.find_all("details"):
        if fold.parent and not PLUMBING.isdisjoint(classes(fold.parent)):
            fold.decompose()
            continue
        if summary := fold.find("summary", recursive=False):
            summary.decompose() if "hide" in classes(fold) else _as_title(summary)
        fold.name = "div"
        fold["class"] = "unfolded"


def _as_title(summary: Tag) -> None:
    summary.name = "p"
    summary["class"] = "unfolded-title"


def _collect_solutions(article: Tag) -> None:
    """Move the solutions of a page into a section at its end."""
    cells = article.find_all("div", class_="tag_solution")
    if not cells:
        return
    section = _new("section", "solutions")
    section["id"] = "printed-solutions"
    heading = _new("h2")
    heading.string = "Solutions"
    section.append(heading)
    titles = [_title_above(cell) for cell in cells]
    for number, (cell, title) in enumerate(zip(cells, titles, strict=True), 1):
        there, back = f"printed-solution-{number}", f"printed-exercise-{number}"
        nth = f" ({titles[:number].count(title)})" if titles.count(title) > 1 else ""
        cell.insert_before(
            _link("solution-link", back, there, f"Solution{nth}: at the end of this chapter")
        )
        section.append(_link("solution-title", there, back, title + nth))
        section.append(cell.extract())
    _last_section(article).append(section)


def _title_above(cell: Tag) -> str:
    heading = cell.find_previous(HEADINGS)
    assert heading is not None  # a page begins with one
    return heading.get_text().strip()


def _last_section(article: Tag) -> Tag:
    """The section that holds the page: what the site adds after it stays last."""
    found = article.find("section", recursive=False)
    return found if isinstance(found, Tag) else article


def _link(kind: str, own: str, target: str, words: str) -> Tag:
    line, link = _new("p", kind), _new("a")
    line["id"], link["href"], link.string = own, f"#{target}", words
    line.append(link)
    return line


def _new(name: str, kind: str = "") -> Tag:
    return BeautifulSoup("", "html.parser").new_tag(name, attrs={"class": kind} if kind else {})
