"""Live figures: pictures that a reader can play with, on the site and in a notebook.

A notebook stores the static picture and a sentence about it, which the test run compares. Where the
notebook is run, the live form stands beside them: the scripts of ``book/_static/live``, whose
numbers the tests hold equal to this package's. This module imports no PyTorch until a figure is
asked for.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any
from urllib.parse import quote

from transformer_book.figures.pictures import Picture, finish_svg
from transformer_book.live.documents import SCRIPTS, document

Definition = Mapping[str, Any]
FIGURES: Mapping[str, Definition] = json.loads(
    (SCRIPTS / "figures.json").read_text(encoding="utf-8")
)
STATIC = "TRANSFORMER_BOOK_STATIC"  # set where notebooks are stored or compared
UNQUOTED = "!'()*,"  # what JavaScript leaves as it is, and the comma of a point


@dataclass(frozen=True, repr=False)
class LiveFigure(Picture):
    """A picture with a live form.

    Args:
        title: a short name.
        summary: what the picture shows, computed from its data; the text alternative.
        svg: the static drawing.
        page: the live form, a whole HTML document.

    Example:
        >>> figure("attention-plane").title
        'A query among keys'
    """

    page: str

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Give Jupyter the drawing and its text; where a reader runs it, the live form too."""
        bundle = super()._repr_mimebundle_()
        if not os.environ.get(STATIC):
            frame = "width: 100%; height: 720px; border: 0"
            bundle["text/html"] = (
                f'<iframe title="Live figure: {escape(self.title)}" style="{frame}" '
                f'srcdoc="{escape(self.page)}"></iframe>'
            )
        return bundle


def figure(name: str, *, weights: bool = False, **settings: Any) -> LiveFigure:
    """Make a live figure.

    Args:
        name: which; ``sorted(FIGURES)`` lists them.
        weights: put the weights of the models that it runs into the notebook (megabytes).
        settings: where its controls shall stand; the others stand at their start.

    Returns:
        The figure, to be the last expression of a cell.

    Raises:
        ValueError: if there is no such figure or setting, or the setting cannot have this value.

    Example:
        >>> figure("attention-plane", query=(0.0, 0.0)).summary[:62]
        'A query among keys: The query (0.00, 0.00) has the length 0.00'
    """
    if name not in FIGURES:
        raise ValueError(f"name={name!r}; expected one of {', '.join(map(repr, sorted(FIGURES)))}")
    definition = FIGURES[name]
    state = complete(definition, settings)
    module = import_module(f"transformer_book.live.{name.replace('-', '_')}")
    values = module.values(**state)
    summary = f"{definition['title']}: {module.say(state, values)}"
    drawn = finish_svg(definition["title"], summary, *module.drawing(state, values))
    address = written(definition, state)
    mark = f'<svg data-live="{name}" data-settings="{escape(address)}" '
    models = definition.get("models", ()) if weights else ()
    page = document(name, definition, address, models)
    return LiveFigure(drawn.title, summary, drawn.svg.replace("<svg ", mark, 1), page)


def complete(definition: Definition, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings, and add those that are left out.

    Args:
        definition: the figure's, from ``FIGURES``.
        settings: some of its settings.

    Returns:
        A value for each of its settings.

    Raises:
        ValueError: if there is no such setting, or it cannot have this value.

    Example:
        >>> complete(FIGURES["attention-plane"], {"query": (1, 2)})["query"]
        [1, 2]
    """
    specs = definition["state"]
    for name, value in settings.items():
        if name not in specs:
            raise ValueError(f"{name}={value!r} is no setting; expected some of {', '.join(specs)}")
        expected = _expected(specs[name], value)
        if expected:
            raise ValueError(f"{name}={value!r}; expected {expected}")
    given = {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()}
    return {name: given.get(name, spec["start"]) for name, spec in specs.items()}


def _expected(spec: Mapping[str, Any], value: Any) -> str:
    """What a setting should have been; nothing if the value is fine."""
    if spec["kind"] == "number":
        if "steps" in spec and not spec.get("between"):
            return "" if value in spec["steps"] else f"one of {spec['steps']}"
        if "steps" in spec:
            low, *_, high = spec["steps"]
            fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
            return "" if fits else f"a whole number from {low} to {high}"
        return _expected_between(spec, value)
    if spec["kind"] == "point":
        fits = isinstance(value, list | tuple) and len(value) == 2
        wrong = not fits or any(_expected_between(spec, each) for each in value)
        return f"two numbers from {spec['min']} to {spec['max']}" if wrong else ""
    if spec["kind"] == "choice":
        return "" if value in spec["of"] else f"one of {', '.join(map(repr, spec['of']))}"
    if spec["kind"] == "toggle":
        return "" if isinstance(value, bool) else "True or False"
    fits = isinstance(value, str) and len(value) <= spec["max"]
    fits = fits and bool(re.fullmatch(spec.get("pattern", r"[\s\S]*"), value))
    return "" if fits else f"at most {spec['max']} letters, {spec.get('pattern', 'any')}"


def _expected_between(spec: Mapping[str, Any], value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and spec["min"] <= value <= spec["max"]:
        return ""
    return f"a number from {spec['min']} to {spec['max']}"


def written(definition: Definition, state: Mapping[str, Any]) -> str:
    """Write the settings that differ from the start, as the address of a page does.

    Args:
        definition: the figure's, from ``FIGURES``.
        state: a value for each of its settings.

    Returns:
        Such as ``query=1.2,0.4;by=none``.

    Example:
        >>> plane = FIGURES["attention-plane"]
        >>> written(plane, complete(plane, {"query": (1.5, -2)}))
        'query=1.5,-2'
    """
    pairs = [
        (name, _text(state[name]), _text(s["start"])) for name, s in definition["state"].items()
    ]
    return ";".join(
        f"{name}={quote(text, UNQUOTED)}" for name, text, start in pairs if text != start
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)
