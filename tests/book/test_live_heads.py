"""The live figure of chapter 6: its numbers are the library's, and its claims are true."""

import json
from collections.abc import Iterator
from typing import Any

import live_v8
import pytest
from live_v8 import (
    Engine,
    agree,
    caught_in,
    damaged,
    difference,
    disagreement_in,
    engine,
    library,
    read_anew,
    settings,
    tried,
)

from tools import live_heads
from transformer_book import datasets
from transformer_book.live import FIGURES, complete, heads

NAME, FILE = "heads", "heads.js"
NUMBERS = ["forty-two", "", "seven", "ü ro-e", "nine hundred and one thousand"]
TEXTS = ["a rose is", "", "x", "I’ll see thee, Tom: a rose is a rose, is it"]
DAMAGES = {
    "the letter after": ("j === i - 1 && w", "j === i + 1 && w"),
    "letters that share nothing": ("keys[j] === queries[i] && w", "keys[j] !== queries[i] && w"),
    "itself as its copy": ("j !== i && keys[j]", "keys[j]"),
    "every position the first": ("j === 0 && w", "w"),
    "distance with its sign": ("w * Math.abs(i - j)", "w * (j - i)"),
    "entropy in bits": ("-w * Math.log(w)", "-w * Math.log2(w)"),
    "rows without such a cell counted": ("rows += isAsked", "rows += 1"),
    "all keys counted as seen": ('part === "decoder" ? i + 1 : keys.length', "keys.length"),
    "mask off by one": ('part === "decoder" ? i + 1', 'part === "decoder" ? i'),
    "a cross map measured like others": ('if (table.part === "cross" && !ACROSS', "if (!ACROSS"),
    "target as keys": ("cross: table(target, ids", "cross: table(target, target"),
    "maps of the encoder for the decoder": (
        "decoder: table(target, target, found.attention)",
        "decoder: table(target, target, source.attention)",
    ),
    "the start left out": (
        "[tokenizer.bos, ...model.greedy([tokenizer.bos],",
        "[...model.greedy([tokenizer.bos],",
    ),
    "a used cache": ("model.run(target, model.cache(source)", "model.run(target, options.cache"),
    "no end": ("stop: tokenizer.eos", "stop: null"),
    "too many letters": (".slice(0, MAX)", ""),
    "an old run": ("kept[state.model]?.text !== text", "!kept[state.model]"),
    "layers and heads swapped": ("maps[layer][head]; //", "maps[head % 3][layer]; //"),
    "no last head": ("Math.min(state.head, maps[0].length - 1)", "state.head % maps[0].length"),
    "the weakest links": ("b[2] - a[2]", "a[2] - b[2]"),
    "even over all keys": ("? 1 / seen(table, i)", "? 1 / table.keys.length"),
    "the letter that was read": ("quoted(queries[at + 1])", "quoted(queries[at])"),
    "after for before": ('j < at ? "before"', 'j > at ? "before"'),
    "a distance from the end": ("Math.abs(at - j)", "Math.abs(keys.length - j)"),
    "a distance between two texts": (
        'if (part === "cross") return `',
        'if (part === "none") return `',
    ),
}


def random_states() -> Iterator[dict[str, Any]]:
    """Random settings with few texts, one after the other: a text is run once for many heads."""
    texts = [*(("number", one) for one in NUMBERS), *(("text", one) for one in TEXTS)]
    for n, state in enumerate(settings(FIGURES[NAME], 81, seed=1)):
        kind, text = texts[n // 9]
        model = "shakespeare" if kind == "text" else "numbers"
        yield {**state, "model": model, kind: text}


STATES = list(random_states())


@pytest.fixture(scope="module")
def v8() -> Engine:
    """Both trained models."""
    found = engine(NAME)
    found.register("shakespeare", "numbers")
    return found


def test_numbers_and_words_are_the_librarys(v8: Engine) -> None:
    agree(NAME, 6, v8)  # texts of random letters
    found = disagreement_in(NAME, STATES, v8)
    assert not found, found


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_caught(damage: str, v8: Engine) -> None:
    caught_in(NAME, ("drawings.js", FILE), DAMAGES[damage], STATES, v8)


def written_down(v8: Engine) -> str:
    """What differs between the start that is written down and the library's; nothing if nothing."""
    found, expected = v8.eval(f"Live.figures.{NAME}.stored()"), library(NAME)
    v8.run(f"var _stored = Live.figures.{NAME}.stored(), _first = _state({NAME!r}, {{}});")
    words = v8.eval(f"[Live.figures.{NAME}.say(_first, _stored)]")[0]
    same = words == heads.say(complete(FIGURES[NAME], {}), expected)
    return difference(found, json.loads(json.dumps(expected))) or ("" if same else words)


def test_the_start_needs_no_model(v8: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_v8, "ABSOLUTE", 6e-5)  # four digits
    assert not written_down(v8), "run: python -m tools.live_heads"
    read_anew(v8, ("heads_start.js", FILE), "row[j] ?? 0", "row[j + 1] ?? 0")
    assert "weights" in written_down(v8)
    read_anew(v8, ("heads_start.js", FILE), "at: 15", "at: 14")
    assert written_down(v8)
    assert len(live_heads.script().encode()) <= 2_500


def test_a_run_serves_all_heads(v8: Engine) -> None:
    v8.run(damaged(FILE, "function* run(", "Live.runs = 0;\n  function* run(")[FILE].replace(
        "const { tokenizer } = model;", "const { tokenizer } = model; Live.runs += 1;"
    ))  # fmt: skip
    for head in range(8):
        v8.values(NAME, {"head": head, "at": head})
    v8.values(NAME, {"model": "numbers"})
    v8.values(NAME, {"text": FIGURES[NAME]["state"]["text"]["start"]})
    assert v8.eval("Live.runs") == 2


def test_the_start_is_a_head_for_the_letter_before() -> None:
    found = library(NAME)
    largest = max(max(row) for row in found["heads"])
    assert found["heads"][0][7] == largest == pytest.approx(0.62, abs=0.005)
    assert found["even"][0] == pytest.approx(0.11, abs=0.005)
    assert found["links"] == [[14, pytest.approx(1, abs=0.005)]]


def test_what_readers_are_told_to_see() -> None:
    spaces, space, copies, translator = (tried(NAME, n)[0] for n in range(4))
    own = [space["weights"][i][i] for i, token in enumerate(space["queries"]) if token == " "]
    assert len(own) == 6
    assert min(own) > 0.995
    assert space["queries"][space["at"]] == " "
    assert space["means"][0] == pytest.approx(0.62, abs=0.005)

    assert spaces["heads"][1][0] == max(max(row) for row in spaces["heads"])
    assert spaces["heads"][1][0] == pytest.approx(0.55, abs=0.005)
    assert spaces["even"][3] == pytest.approx(0.22, abs=0.005)
    assert spaces["means"][0] < 0.25  # no diagonal

    assert {copies["keys"][j] for j, _ in copies["links"]} == {copies["queries"][22]} == {"o"}
    assert copies["heads"][0][0] == max(max(row) for row in copies["heads"])
    assert copies["means"][2] == pytest.approx(0.50, abs=0.005)
    assert copies["even"][2] == pytest.approx(0.14, abs=0.005)

    assert "".join(translator["queries"][1:]) == "zweiundvierzig"
    weights, keys = translator["weights"], translator["keys"]
    assert keys[7] == "w"
    assert min(weights[0][7], weights[1][7]) > 0.96  # before the z, and before the w
    assert translator["queries"][5:8] == ["u", "n", "d"]
    assert weights[7][0] == pytest.approx(0.98, abs=0.005)


def test_only_measures_that_apply_can_be_chosen(v8: Engine) -> None:
    figure = f"Live.figures.{NAME}"
    for part, expected in (("cross", heads.ACROSS), ("encoder", tuple(heads.WHAT))):
        state = json.dumps({"model": "numbers", "part": part})
        asked = f"Object.keys({figure}.state.measure.of)"
        applies = f"{figure}.state.measure.applies(what, {state})"
        assert tuple(v8.eval(f"{asked}.filter((what) => {applies})")) == expected
    for state in STATES:
        shown = v8.eval(f"{figure}.settled({json.dumps(state)})")
        found = heads.values(**shown)
        assert shown["measure"] == found.get("measure", shown["measure"])  # as the menu says


def test_letters_that_a_model_does_not_know_are_named(v8: Engine) -> None:
    data = datasets.numbers()
    english = {letter for one in [*data.train, *data.validation, *data.test] for letter in one[1]}
    assert set(v8.eval("Live.NUMBER_LETTERS")) == english
    assert set(v8.eval("Live.PLAYS")) == set(datasets.shakespeare().train)

    def remark(setting: str, text: str) -> str:
        return str(v8.eval(f"[Live.figures.{NAME}.state.{setting}.remark({json.dumps(text)})]")[0])

    for number in ("", "forty-two", "nine hundred thousand, two hundred and one"):
        assert not remark("number", number)
    assert remark("number", "hello").startswith("It knows only English numbers in words")
    assert "never read" not in remark("number", "hello")
    assert remark("number", "100").endswith("It has never read “1”, “0”.")
    assert not remark("text", "Is this a dagger, which I see?")
    assert remark("text", "日本 3").startswith("Not in the plays: “日”, “本”, “3”. ")


def test_the_picture_shows_every_kind_of_attention() -> None:
    for part in ("encoder", "decoder", "cross"):
        state = complete(FIGURES[NAME], {"model": "numbers", "part": part, "layer": 1})
        body, width, _ = heads.drawing(state, heads.values(**state))
        assert "nan" not in body
        assert width <= 380  # all of it fits on a phone
    empty = complete(FIGURES[NAME], {"text": ""})
    assert "There is no letter yet" in heads.drawing(empty, heads.values(**empty))[0]
