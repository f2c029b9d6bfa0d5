"""The live figures' scripts in V8, the engine of Chromium and Node, without a browser."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from py_mini_racer import JSEvalException, MiniRacer

from tools.live_definitions import FOR_SOME, NUMERIC, PAGE, figure_scripts
from transformer_book.live import FIGURES, complete
from transformer_book.live.one_byte import weights_script

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ROOT / "book" / "_static" / "live"

# Typed arrays become lists. A number that JSON would quietly write as null is an error.
_HELP = """
var _plain = (value) => JSON.stringify(value, (key, part) => {
  if (typeof part === "number" && !Number.isFinite(part)) throw new Error(`${key} is ${part}`);
  return ArrayBuffer.isView(part) ? Array.from(part) : part;
});
var _state = (name, given) => ({ ...Live.start(Live.figures[name]), ...given });
var _needed = (name, state) => Live.figures[name].needs?.(state) ?? null;
"""


def damaged(file: str, old: str, new: str) -> dict[str, str]:
    """The text of a script with one place changed, for ``engine(..., scripts=...)``."""
    text = (SCRIPTS / file).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file} holds {old!r} {text.count(old)} times; expected once"
    return {file: text.replace(old, new)}


def read_anew(v8: "Engine", files: tuple[str, ...], old: str, new: str) -> None:
    """Let V8 read scripts once more, the one that holds ``old`` with ``new`` in its place."""
    texts = {file: (SCRIPTS / file).read_text(encoding="utf-8") for file in files}
    (hurt,) = [file for file, text in texts.items() if old in text]
    for text in (texts | damaged(hurt, old, new)).values():
        v8.run(text)


class Engine:
    """One V8 with the scripts loaded.

    Args:
        files: the scripts to load, in this order.
        scripts: other texts for some of the files.
    """

    def __init__(self, files: tuple[str, ...], scripts: Mapping[str, str]) -> None:
        self.v8 = MiniRacer()
        self.registered: set[str] = set()
        self.v8.eval(_HELP)
        for file in files:
            text = scripts.get(file) or (SCRIPTS / file).read_text(encoding="utf-8")
            self.v8.eval(text)

    def eval(self, code: str) -> Any:
        """What JavaScript says to an expression; arrays, typed ones too, come back as lists."""
        return json.loads(self.v8.eval(f"_plain({code})") or "null")

    def run(self, code: str) -> None:
        """Let JavaScript run some statements."""
        self.v8.eval(code + "\n;0")

    def register(self, *models: str) -> None:
        """Load the weights of some models, as a page would."""
        for model in set(models) - self.registered:
            self.run(weights_script(model))
            self.registered.add(model)

    def definition(self, name: str) -> dict[str, Any]:
        """What a figure says of itself, without its functions."""
        found: dict[str, Any] = self.eval(f"Live.figures[{json.dumps(name)}]")
        return found

    def values(self, name: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """A figure's numbers; settings that are left out have their start values."""
        self._prepare(name, state)
        found: dict[str, Any] = self.eval("_values")
        return found

    def say(self, name: str, state: Mapping[str, Any]) -> str:
        """A figure's sentences about its numbers."""
        self._prepare(name, state)
        return str(self.eval(f"Live.figures[{json.dumps(name)}].say(_given, _values)"))

    def _prepare(self, name: str, state: Mapping[str, Any]) -> None:
        figure, given = json.dumps(name), json.dumps(state)
        self.run(f"var _given = _state({figure}, {given});")
        model = self.eval(f"_needed({figure}, _given)")
        self.register(*([model] if model else []))
        read = f"Live.model.read({json.dumps(model)})" if model else "undefined"
        self.run(f"var _values = Live.figures[{figure}].values(_given, {read});")


def engine(*figures: str, scripts: Mapping[str, str] | None = None) -> Engine:
    """Start V8 with the numeric scripts and some figures.

    Args:
        figures: their names; without any, only the numeric scripts are loaded.
        scripts: other texts for some of the files, such as ``damaged`` makes.

    Returns:
        The engine. The weights of a model come with the first values that need it.
    """
    own = figure_scripts()
    page = (*PAGE, *(file for name in figures for file in own[name])) if figures else ()
    return Engine(tuple(dict.fromkeys((*NUMERIC, *FOR_SOME, *page))), scripts or {})


# Figures against the library ----------------------------------------------------------------------

RELATIVE, ABSOLUTE = 1e-5, 1e-6


def settings(definition: Mapping[str, Any], count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Random settings that the figure's controls could have."""
    random = Random(seed)
    specs = definition["state"]
    return [{name: _random(spec, random) for name, spec in specs.items()} for _ in range(count)]


def _random(spec: Mapping[str, Any], random: Random) -> Any:
    if spec["kind"] == "number":
        if spec.get("between") and random.random() < 0.5:
            return random.randint(spec["steps"][0], spec["steps"][-1])
        return random.choice(spec["steps"]) if "steps" in spec else _on_grid(spec, random)
    if spec["kind"] == "point":
        return [_on_grid(spec, random), _on_grid(spec, random)]
    if spec["kind"] == "choice":
        return random.choice(list(spec["of"]))
    if spec["kind"] == "toggle":
        return random.random() < 0.5
    letters = spec.get("letters", "abc deé,.?’☃")  # what this figure's text is made of
    return "".join(random.choice(letters) for _ in range(random.randint(0, spec["max"])))


def _on_grid(spec: Mapping[str, Any], random: Random) -> float:
    steps = round((spec["max"] - spec["min"]) / spec["step"])
    value = round(spec["min"] + random.randint(0, steps) * spec["step"], 6)
    return int(value) if value == int(value) else value


def difference(ours: Any, theirs: Any, where: str = "values") -> str:
    """Where two nested values differ by more than rounding; nothing if nowhere."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        if set(ours) != set(theirs):
            return f"{where}: {sorted(ours)} against {sorted(theirs)}"
        found = (difference(ours[key], theirs[key], f"{where}.{key}") for key in ours)
    elif isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        if len(ours) != len(theirs):
            return f"{where}: {len(ours)} against {len(theirs)} entries"
        pairs = enumerate(zip(ours, theirs, strict=True))
        found = (difference(one, other, f"{where}[{at}]") for at, (one, other) in pairs)
    elif _is_number(ours) and _is_number(theirs):
        near = math.isclose(ours, theirs, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        return "" if near else f"{where}: {ours!r} against {theirs!r}"
    else:
        return "" if ours == theirs else f"{where}: {ours!r} against {theirs!r}"
    return next(filter(None, found), "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def states_of(definition: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The start, what readers are told to try, and random settings."""
    start = {name: spec["start"] for name, spec in definition["state"].items()}
    tries = [{**start, **one["set"]} for one in definition["tries"]]
    return [start, *tries, *settings(definition, count)]


def disagreement(figure: str, count: int, v8: Engine) -> str:
    """The first setting for which JavaScript and the library differ; nothing if they agree."""
    return disagreement_in(figure, states_of(v8.definition(figure), count), v8)


def disagreement_in(figure: str, states: Iterable[Mapping[str, Any]], v8: Engine) -> str:
    """The same for these settings."""
    module = _module(figure)
    for state in states:
        expected = module.values(**state)
        found = difference(v8.values(figure, state), _plain(expected))
        said, words = v8.say(figure, state), module.say(state, expected)
        if not found and said != words:
            found = f"say: {said!r} against {words!r}"
        if found:
            return f"{figure} at {state}: {found}"
    return ""


def _module(figure: str) -> Any:
    """A figure's twin in Python."""
    return import_module(f"transformer_book.live.{figure.replace('-', '_')}")


def _plain(value: Any) -> Any:
    """Tuples as lists, and every number one that JSON knows."""
    return json.loads(json.dumps(value, allow_nan=False))


def agree(figure: str, count: int, v8: Engine | None = None) -> None:
    """Hold a figure's numbers and words equal to the library's for many settings."""
    found = disagreement(figure, count, v8 or engine(figure))
    assert not found, found


def caught(figure: str, file: str, old: str, new: str, count: int = 25) -> None:
    """Hold that a damage to a script is noticed."""
    try:
        found = disagreement(figure, count, engine(figure, scripts=damaged(file, old, new)))
    except JSEvalException as error:
        found = str(error)
    assert found, f"nobody noticed {new!r} for {old!r} in {file}"


def caught_in(
    figure: str,
    files: tuple[str, ...],
    damage: tuple[str, str],
    states: list[dict[str, Any]],
    v8: Engine,
) -> None:
    """The same, in a V8 that keeps its models: only these scripts are read anew."""
    read_anew(v8, files, *damage)
    try:
        found = disagreement_in(figure, states, v8)
    except JSEvalException as error:
        found = str(error)
    assert found, f"nobody noticed {damage[1]!r} for {damage[0]!r}"


def start_problem(figure: str, v8: Engine) -> str:
    """How the start that is written down differs from the library's; nothing if it does not.

    What is said of it must be the same to the letter.
    """
    state = complete(FIGURES[figure], {})
    expected = _module(figure).values(**state)
    stored, first = f"Live.figures.{figure}.stored()", f"_state({json.dumps(figure)}, {{}})"
    found = difference(v8.eval(stored), _plain(expected))
    words = v8.eval(f"[Live.figures.{figure}.say({first}, {stored})]")[0]
    return found or ("" if words == _module(figure).say(state, expected) else words)


# What the library says of a figure ----------------------------------------------------------------


def library(figure: str, **given: Any) -> dict[str, Any]:
    """The library's values; settings that are left out have their start values."""
    found: dict[str, Any] = _module(figure).values(**complete(FIGURES[figure], given))
    return found


def tried(figure: str, place: int) -> tuple[dict[str, Any], str]:
    """The library's values at a thing to try, and what readers are told to see there."""
    one = FIGURES[figure]["tries"][place]
    return library(figure, **one["set"]), one["see"]


def on_paper(figure: str, given: Iterable[Mapping[str, Any]], high: float = 400) -> Iterator[str]:
    """The static picture at each of these settings, when its size and numbers are sound."""
    module = _module(figure)
    for one in given:
        state = complete(FIGURES[figure], one)
        body, width, height = module.drawing(state, module.values(**state))
        assert width <= 680
        assert height <= high
        assert not re.search("nan|inf", body)
        yield body
