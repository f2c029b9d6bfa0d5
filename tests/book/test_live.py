"""The frame of the live figures: settings, addresses, definitions, what a notebook stores."""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_v8 import SCRIPTS, Engine, engine, settings
from omissions import fail_on

from tools.light.pages import without_room
from tools.live_definitions import NUMERIC, PAGE, TARGET, figure_scripts, text
from transformer_book import live
from transformer_book.live.wording import number

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import book_live  # noqa: E402

PLANE = "attention-plane"
LIMIT = 100_000  # bytes of scripts that figures bring to their page
LATER = 40_000  # and of those that come with a model, after the first touch


@pytest.fixture(scope="module")
def v8() -> Iterator[Engine]:
    return engine(*figure_scripts())


def test_the_definitions_are_up_to_date() -> None:
    assert TARGET.read_text(encoding="utf-8") == text(), "run: python -m tools.live_definitions"


def stored_words() -> Iterator[tuple[str, str, str]]:
    """Each page with a live figure: the call that shows it, and the words that the page keeps."""
    for path in sorted((ROOT / "book").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            calls = re.findall(r"^live\.figure\(.*\)$", "".join(cell["source"]), re.MULTILINE)
            for call in calls:
                yield path.stem, call, "".join(cell["outputs"][0]["data"]["text/plain"])


@pytest.mark.parametrize(("page", "call", "words"), [*stored_words()])
def test_a_page_keeps_the_words_of_todays_figure(page: str, call: str, words: str) -> None:
    asked = ast.parse(call, mode="eval").body
    assert isinstance(asked, ast.Call)
    changes = {str(one.arg): ast.literal_eval(one.value) for one in asked.keywords}
    drawn = live.figure(*map(ast.literal_eval, asked.args), **changes)
    assert drawn.summary == words, f"run: python -m tools.notebooks run {page.partition('_')[0]}"


def test_every_live_figure_of_a_page_is_found() -> None:
    names = {call.split('"')[1] for _, call, _ in stored_words()}
    assert names == live.FIGURES.keys() - {"front"}  # its page is no notebook


def figure_problems(name: str, page: str, root: Path) -> list[str]:
    """Which of its files a live figure lacks: its twin, its test, its cell, its place to play."""
    module = name.replace("-", "_")
    twin, test = f"transformer_book/live/{module}.py", f"tests/book/test_live_{module}.py"
    problems = [
        f"{file} is not there, {what} of the live figure {name!r}: write it"
        for file, what in ((twin, "the twin"), (test, "the test"))
        if not (root / file).is_file()
    ]
    plain = root / "book" / f"{page}.md"
    if plain.is_file():  # no notebook: its picture is kept in files of its own
        if f"{{live-figure}} {name}\n" not in plain.read_text(encoding="utf-8"):
            problems.append(
                f'book/{page}.md does not show {name!r}: add ":::{{live-figure}} {name}"'
            )
        return problems
    if f"{{live-figure}} {name}\n" not in (root / "book" / "play.md").read_text(encoding="utf-8"):
        problems.append(f'book/play.md does not show {name!r}: add ":::{{live-figure}} {name}"')
    cells = root / "book" / f"{page}.ipynb"
    if not cells.is_file():
        problems.append(f"{module}.js puts {name!r} on {page}, but there is no book/{page}.ipynb")
    elif f'live.figure(\\"{name}\\"' not in cells.read_text(encoding="utf-8"):
        problems.append(f'book/{page}.ipynb does not show {name!r}: add live.figure("{name}")')
    return problems


@pytest.mark.parametrize("name", sorted(live.FIGURES))
def test_a_figure_has_all_its_files(name: str) -> None:
    fail_on(figure_problems(name, live.FIGURES[name]["page"], ROOT))


def test_what_a_figure_lacks_is_told(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "play.md").write_text(":::{live-figure} old\n:::\n")
    (tmp_path / "book" / "01_a.ipynb").write_text("{}")
    assert [problem.split()[0] for problem in figure_problems("new-one", "01_a", tmp_path)] == [
        *("transformer_book/live/new_one.py", "tests/book/test_live_new_one.py"),
        *("book/play.md", "book/01_a.ipynb"),
    ]
    assert "there is no book/02_b.ipynb" in figure_problems("old", "02_b", tmp_path)[-1]
    (tmp_path / "book" / "index.md").write_text(":::{live-figure} front\n:::\n")
    assert "book/index.md does not show 'old'" in figure_problems("old", "index", tmp_path)[-1]
    assert len(figure_problems("front", "index", tmp_path)) == 2  # twin and test


def test_a_figure_that_nobody_wrote_down_is_told_the_command(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"figures.json has no figure 'new': run `.venv/bin/python -m"
    ):
        book_live.framed('<svg data-live="new" data-settings=""></svg>', {})
    (tmp_path / "01_a.ipynb").write_text('{"cells": []}')
    with pytest.raises(
        ValueError, match=r"01_a.ipynb shows no live figure .new.: add a cell `live.fig"
    ):
        book_live.stored_picture(tmp_path / "01_a.ipynb", "new")


def test_what_a_page_loads_stays_small() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.js")}
    sent = {name: without_room(text) for name, text in texts.items()}
    sizes = {name: len(text.encode()) for name, text in sent.items()}  # as the site sends them
    assert {*NUMERIC, *PAGE} < set(sizes)
    print(f"engine and all figures: {sum(sizes.values()) / 1e3:.0f} kB")  # not limited
    for kind, limit in (("scripts", LIMIT), ("later", LATER)):
        pages: dict[str, set[str]] = {}
        for figure in live.FIGURES.values():
            pages.setdefault(figure["page"], set()).update(figure.get(kind, ()))
        heavy = {page: sum(map(sizes.__getitem__, files)) for page, files in pages.items()}
        print(kind, {page: f"{size / 1e3:.0f} kB" for page, size in heavy.items() if size})
        assert max(heavy.values()) <= limit, heavy


def test_what_comes_later_is_in_no_page_from_the_start() -> None:
    """Only then may it be counted by itself; and it comes only with a model, which weighs more."""
    later = [figure for figure in live.FIGURES.values() if figure.get("later")]
    assert [figure["name"] for figure in later] == ["front"]
    for figure in later:
        assert figure["models"]
        assert not set(figure["scripts"]) & set(figure["later"])


def test_the_picture_of_a_plain_page_is_kept_in_files() -> None:
    kept = book_live.kept_pictures(ROOT / "book", "front", dict(live.FIGURES))
    assert [path.name for path in kept] == live.FIGURES["front"]["pictures"]
    framed = book_live.framed("".join(kept.values()), dict(live.FIGURES))
    assert framed.count('data-live="front"') == 1  # one frame, two pictures
    assert framed.count("<svg ") == 2
    (notebook,) = book_live.kept_pictures(ROOT / "book", PLANE, dict(live.FIGURES))
    assert notebook.name == "03_attention.ipynb"


@pytest.mark.parametrize("name", sorted(live.FIGURES))
def test_every_figure_asks_and_offers_something_to_try(name: str) -> None:
    figure = live.FIGURES[name]
    assert figure["question"].endswith("?")
    assert 2 <= len(figure["tries"]) <= 4
    for one in figure["tries"]:
        assert one["see"].endswith("."), one
        live.complete(figure, one["set"])


@pytest.mark.parametrize("name", sorted(live.FIGURES))
def test_settings_survive_the_address(name: str, v8: Engine) -> None:
    figure = live.FIGURES[name]
    start = live.complete(figure, {})
    for state in settings(figure, 30, seed=3):
        written = live.written(figure, state)
        code = f"Live.write(Live.figures[{json.dumps(name)}], {json.dumps(state)})"
        assert v8.eval(code) == written
        found = v8.eval(f"Live.fromAddress({json.dumps(f'#live:{name}:{written}')})")
        assert {**start, **found["settings"]} == state


@pytest.mark.parametrize(
    "address",
    [
        "", "#", "#exercises", "#live", "#live:", "#live:nothing:query=0,0", "#live:__proto__:a=1",
        f"#live:{PLANE}", f"#live:{PLANE}:query=1", f"#live:{PLANE}:query=1,2,3",
        f"#live:{PLANE}:query=a,b", f"#live:{PLANE}:query=1,", f"#live:{PLANE}:query=1e9,0",
        f"#live:{PLANE}:query=NaN,0", f"#live:{PLANE}:toString=1", f"#live:{PLANE}:query",
        f"#live:{PLANE}:gradient=maybe", f"#live:{PLANE}:query=%E0%A4%A,0",
        f"#live:{PLANE}:query=0,0;nonsense=1",
    ],
)  # fmt: skip
def test_malformed_addresses_are_ignored(address: str, v8: Engine) -> None:
    assert v8.eval(f"Live.fromAddress({json.dumps(address)})") is None


def test_a_good_address_is_followed(v8: Engine) -> None:
    found = v8.eval(f'Live.fromAddress("#live:{PLANE}:query=1.2,0.4;gradient=yes")')
    assert found == {"name": PLANE, "settings": {"query": [1.2, 0.4], "gradient": True}}


@pytest.mark.parametrize("value", [-1.005, -0.004, 0.125, 2.5, 1e-9, 12.345, 0.5, 1.5])
def test_numbers_are_written_alike(value: float, v8: Engine) -> None:
    for digits in range(4):
        expected = number(value, digits)
        assert v8.eval(f"Live.part.number({value!r}, {digits})") == expected


@pytest.mark.parametrize("static", ["1", ""])
def test_what_a_notebook_gets(static: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(live.STATIC, static)
    bundle = live.figure(PLANE, query=(0, 1))._repr_mimebundle_()
    assert ("text/html" in bundle) == (not static)
    assert 'data-live="attention-plane" data-settings="query=0,1"' in bundle["image/svg+xml"]
    assert f"<desc>{bundle['text/plain']}</desc>" in bundle["image/svg+xml"]
    if not static:
        frame = bundle["text/html"]
        assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", frame)
        assert "Live.register(" not in frame.replace("Live.register = ", "")


def test_weights_are_put_into_a_notebook_when_asked() -> None:
    plain, heavy = (live.figure("heads", weights=asked).page for asked in (False, True))
    for model in live.FIGURES["heads"]["models"]:
        assert f'Live.register("{model}"' in heavy
        assert f'Live.register("{model}"' not in plain


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("nothing", {}, "name='nothing'; expected one of 'attention-plane'"),
        (PLANE, {"quary": 1}, "quary=1 is no setting; expected some of query"),
        (PLANE, {"query": 1}, "query=1; expected two numbers from -4 to 4"),
        (PLANE, {"query": (1, 9)}, r"query=\(1, 9\); expected two numbers from -4 to 4"),
        (PLANE, {"gradient": "yes"}, "gradient='yes'; expected True or False"),
    ],
)
def test_wrong_settings_are_named(name: str, wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        live.figure(name, **wrong)


CALM = ("scale", "positions", "heads", "norms", "recurrence")


@pytest.mark.parametrize("name", CALM)
def test_a_figure_is_told_in_one_sentence(name: str) -> None:
    """What stands below a figure is read once; the rest of its numbers stand in the drawing."""
    figure = engine(name)
    for settings_ in ({}, *(one["set"] for one in live.FIGURES[name]["tries"])):
        said = figure.say(name, settings_)
        opening = re.sub(r"^It writes \w+\. | Of the stream at the end, .*$", "", said)
        assert len(re.findall(r"\.(?= |$)", opening)) == 1, said
        assert len(re.findall(r"\d+\.\d+", opening)) <= 3, said
        assert "in code" not in said
