"""From each name in the API to the chapter that explains it, and back: by ``symbols.yml``.

Each documented class and function says how it is imported and where it is explained; each chapter
ends with a list of the names that it imports and explains, each with what its docstring says first,
and of what else it explains of the library.
"""

from __future__ import annotations

import ast
import json
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

from book_places import in_words

FILE = Path(__file__).resolve().parents[1] / "symbols.yml"
NOT_INDEXED = ("book/api/pictures",)
_KINDS = ("class", "function")
_SECTION = "the section that explains it"
_log = logging.getLogger(__name__)


@cache
def places() -> dict[str, dict[str, str]]:
    """Read the file: for each module the places of its names, and the one of all others."""
    found: dict[str, dict[str, str]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return found


def module_of(full_name: str) -> str:
    """Name the module under which a name is looked up: the longest path that the file has.

    A package may have one entry for all that lies below it, or one for each of its modules.

    >>> module_of("transformer_book.figures.plots.heatmap")
    'transformer_book.figures.plots'
    >>> module_of("transformer_book.exercises.heads.merge")
    'transformer_book.exercises'
    """
    parts = full_name.split(".")
    paths = [".".join(parts[:n]) for n in range(len(parts), 1, -1)]
    return next((path for path in paths if path in places()), paths[-1])


def place_of(full_name: str) -> str:
    """Say where a documented name is explained.

    Raises:
        ValueError: if the file has no place for it.
    """
    module, name = module_of(full_name), full_name.rpartition(".")[2]
    if module not in places():
        module = full_name.rpartition(".")[0]
        lines = f'"{module}:" and below it "  default: PAGE#heading"'
        raise ValueError(f"book/symbols.yml has no entry for {module}: add {lines}, {_SECTION}")
    if name in places()[module]:
        return places()[module][name]
    whole = places()[module].get("part_of", module)
    if whole not in places():
        said = f"book/symbols.yml says that {module} is part_of {whole}"
        raise ValueError(f"{said}, which has no entry there: name a module that has one")
    if "default" not in places()[whole]:
        line = f'below {module} "  {name}: PAGE#heading"'
        raise ValueError(f"book/symbols.yml has no place for {full_name}: add {line}, {_SECTION}")
    return places()[whole]["default"]


def first_sentence(text: str) -> str:
    """Return the first sentence without its full stop and without marks of code.

    >>> first_sentence("Return ``(B, T)``. The rest follows.")
    'Return (B, T)'
    """
    return text.partition(". ")[0].rstrip(".").replace("`", "")


def import_line(full_name: str, value: object) -> str:
    """Write how a name is imported: from the outermost package that has it.

    >>> from transformer_lib.cli.main import main
    >>> import_line("transformer_lib.cli.main.main", main)
    'from transformer_lib.cli.main import main'
    """
    *parts, name = full_name.split(".")
    for n in range(1, len(parts) + 1):
        module = import_module(".".join(parts[:n]))
        offered = name in vars(module) or name in getattr(module, "__all__", ())
        if offered and getattr(module, name) is value:
            return f"from {module.__name__} import {name}"
    raise ValueError(f"{full_name} cannot be imported by that name")


def _add_import(
    _app: Sphinx, what: str, name: str, value: object, _options: object, lines: list[str]
) -> None:
    """Say below the first paragraph how a class or function is imported."""
    if what in _KINDS:
        end = lines.index("") if "" in lines else len(lines)
        lines[end:end] = ["", f"``{import_line(name, value)}``"]


def _add_place(
    app: Sphinx, what: str, name: str, _object: object, _options: object, lines: list[str]
) -> None:
    if what in _KINDS and module_of(name) in places():
        try:
            target = place_of(name)
            words = in_words(target)
        except ValueError as error:
            _log.warning("%s: %s", name, error)  # a warning fails the build
            return
        summary = first_sentence(lines[0]) if lines else ""
        lines += ["", f"Explained in :place:`{words} <{target}>`.", ""]
        _explained(app).setdefault(target.partition("#")[0], {})[name] = summary


def _explained(app: Sphinx) -> dict[str, dict[str, str]]:
    """For each page the names that it explains, with a summary, while the API pages are read."""
    if not hasattr(app.env, "book_explained"):
        app.env.book_explained = {}  # type: ignore[attr-defined]
    found: dict[str, dict[str, str]] = app.env.book_explained  # type: ignore[attr-defined]
    return found


def imported_by(sources: list[str]) -> set[str]:
    """Name what code takes from the two packages: what it imports, and what it uses of a module.

    >>> sorted(
    ...     imported_by(
    ...         [
    ...             "from transformer_book.figures import plots",
    ...             "plots.lines(torch.e)",
    ...         ]
    ...     )
    ... )
    ['plots', 'plots.lines']
    """
    steps = [step for source in sources for step in ast.walk(ast.parse(source))]
    imports = [step for step in steps if isinstance(step, ast.ImportFrom)]
    ours = [step for step in imports if (step.module or "").startswith("transformer_")]
    names = {alias.name for step in ours for alias in step.names}
    used = [step for step in steps if isinstance(step, ast.Attribute)]
    parts = {(s.value.id, s.attr) for s in used if isinstance(s.value, ast.Name)}
    return names | {f"{module}.{name}" for module, name in parts if module in names}


def _names_of(app: Sphinx, document: str) -> tuple[dict[str, str], dict[str, str]]:
    """For a page, the names that it explains and imports, and what else it explains."""
    explained = _explained(app).get(document.removeprefix("book/"), {})
    if not explained:
        return {}, {}
    text = Path(str(app.env.doc2path(document))).read_text(encoding="utf-8")
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    used = imported_by(["".join(cell["source"]) for cell in code])
    imported = [name for name in explained if any(name.endswith(f".{u}") for u in used)]
    others = [name for name in explained if name.startswith("transformer_lib.")]
    rest = sorted(set(others) - set(imported))
    return {name: explained[name] for name in sorted(imported)}, dict.fromkeys(rest, "")


def _list_names(app: Sphinx, doctree: nodes.document, document: str) -> None:
    """Fill the list at the end of a chapter, now that the API pages are read."""
    for paragraph in list(doctree.findall(nodes.paragraph)):
        if "library-names" not in paragraph["classes"]:
            continue
        used, others = _names_of(app, document)
        for title, names in {"In the library: ": used, "Related: ": others}.items():
            for position, (name, summary) in enumerate(names.items()):
                paragraph += nodes.Text("; " if position else title)
                paragraph += _api_link(app, document, name)
                paragraph += nodes.Text(f" ({summary})" if summary else "")
            paragraph += nodes.Text(". " if names else "")
        if not used and not others:
            paragraph.parent.remove(paragraph)


def _api_link(app: Sphinx, document: str, name: str) -> nodes.Node:
    where = app.env.get_domain("py").objects[name]  # type: ignore[attr-defined]
    address = app.builder.get_relative_uri(document, where.docname)
    link = nodes.reference("", "", refuri=f"{address}#{where.node_id}", internal=True)
    link += nodes.literal(text=name.rpartition(".")[2])
    return link


def _drop_from_index(_app: Sphinx, env: BuildEnvironment) -> None:
    """Keep the drawing functions out of the general index: no reader looks them up there."""
    for document, entries in env.domaindata["index"]["entries"].items():
        if document in NOT_INDEXED:
            entries.clear()


class RoomForNames(SphinxTransform):
    """Leave a place for the list at the end of each notebook's page."""

    default_priority = 990

    def apply(self, **_kwargs: Any) -> None:
        """Add an empty paragraph to the last section of one document."""
        path = Path(str(self.env.doc2path(self.env.docname)))
        sections = [s for s in self.document.children if isinstance(s, nodes.section)]
        if path.suffix == ".ipynb" and sections:
            last = [s for s in sections[-1].children if isinstance(s, nodes.section)]
            (last[-1] if last else sections[-1]).append(
                nodes.paragraph("", classes=["library-names"])
            )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", _add_place)
    app.connect("autodoc-process-docstring", _add_import)
    app.connect("env-updated", _drop_from_index)
    app.add_transform(RoomForNames)
    app.connect("doctree-resolved", _list_names)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
