"""The live figure of the translator: its numbers are the library's, its claims are true."""

import json
from typing import Any

import live_v8
import pytest
from live_v8 import (
    Engine,
    agree,
    caught_in,
    disagreement_in,
    engine,
    read_anew,
    start_problem,
)  # fmt: skip

from tools import live_starts
from transformer_book import datasets
from transformer_book.live import FIGURES, complete, translate

NAME, FILE = "translate", "translate.js"
IS_TRAINED = "Live.isTrained"
# One after the other, so that what was read before is used again, cut off, or forgotten.
STATES: list[dict[str, Any]] = [
    {},
    {"german": "zweiu", "layer": "2", "head": "1"},
    {"german": "zweiundvierzig", "head": "mean"},
    {"german": "zw", "layer": "1", "head": "4"},
    {"german": "zwo", "head": "3"},
    {"german": "zwo", "head": "3", "hidden": "00000001"},
    {"german": "zwo", "head": "3", "hidden": "11111111100"},
    {"german": "", "hidden": "1", "layer": "1"},
    {"text": "twelve", "german": "fünf", "hidden": "001"},
    {"text": "twelve", "german": "é€", "hidden": "001"},
    {"text": "é ü", "german": ""},
    {"text": "", "german": "zwei"},
    {"text": "nine hundred and ninety-nine thousand nine hundred", "german": "neunhundert"},
    {"text": "x", "german": "neunhundertneunundneunzigtausendneunhundert"},
]
WHOLE = [{**complete(FIGURES[NAME], {}), **changes} for changes in STATES]
DAMAGES = {
    "one letter too many kept": ("const n = this.known(ids);", "const n = this.known(ids) + 1;"),
    "keys not forgotten": ("self.keys.length = self.values.length = n", "self.values.length = n"),
    "an old translation": ("id !== this.ids[t]", "t >= this.ids.length"),
    "an old source": ("kept.text === text;", "true;"),
    "what was hidden before": ("same && kept.hidden === hidden", "same"),
    "what is hidden alone is seen": (".filter((s) => !isHidden", ".filter((s) => isHidden"),
    "the letters behind the hidden ones": (
        "encoded.x.subarray(s * D, (s + 1) * D)",
        "encoded.x.subarray(at * D, (at + 1) * D)",
    ),
    "weights not put back": ("(all[s] = row[at])", "(all[at] = row[at])"),
    "chances of the first letter": ("softmax(row(logits, t))", "softmax(row(logits, 0))"),
    "weights of the first letter": ("whole(rows[t])", "whole(rows[0])"),
    "the sum of the heads": ("row[s], 0) / rows.length)", "row[s], 0))"),
    "layers from 0": ("all[state.layer - 1]", "all[state.layer % 3]"),
    "heads from 0": ("heads[state.head - 1]", "heads[state.head % 4]"),
    "the start left out": (".read([bos, ...written])", ".read(written.length ? written : [bos])"),
    "no start for the translation": ("[bos, ...written]", "[...written, bos]"),
    "chances of the position before": ("positions.at(-1);", "positions.at(-2) ?? positions[0];"),
    "the least likely": ("chances[b] - chances[a]", "chances[a] - chances[b]"),
    "keys without values": ("room: 2 * model", "room: model"),
    "the cache of one layer": ("model.decoder.stack.blocks.length *", ""),
    "too many letters": (".slice(0, MAX);", ";"),
    "one place too few": (
        "const T = written.length + 1;\n  return",
        "const T = written.length;\n  return",
    ),
    "the links of the first letter": ("strongest(weights.at(-1))", "strongest(weights[0])"),
    "the weakest links": ("b[2] - a[2]", "a[2] - b[2]"),
}  # fmt: skip


@pytest.fixture(scope="module")
def v8() -> Engine:
    """The translator."""
    found = engine(NAME)
    found.register("numbers")
    return found


def at(**changes: Any) -> dict[str, Any]:
    return translate.values(**complete(FIGURES[NAME], changes))


def goes_on(**changes: Any) -> str:
    """What the figure writes when "Write all" is pressed."""
    found = at(**changes)
    written = changes.get("german", "")
    while (token := found["candidates"][0][0]) != translate.END:
        written += token
        assert len(written) < translate.MAX
        found = at(**{**changes, "german": written})
    return written


def test_numbers_and_words_are_the_librarys(v8: Engine) -> None:
    agree(NAME, 12, v8)  # random letters
    found = disagreement_in(NAME, WHOLE, v8)
    assert not found, found


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_caught(damage: str, v8: Engine) -> None:
    caught_in(NAME, ("reading.js", "drawings.js", FILE), DAMAGES[damage], WHOLE, v8)


def test_the_start_needs_no_model(v8: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_v8, "ABSOLUTE", 6e-5)  # four digits
    assert not start_problem(NAME, v8), "run: python -m tools.live_starts"
    read_anew(v8, ("translate_start.js",), '["u",0.9232]', '["u",0.9235]')
    assert "candidates[0][1]" in start_problem(NAME, v8)
    read_anew(v8, ("translate_start.js",), "room: 768", "room: 384")
    assert "room" in start_problem(NAME, v8)
    assert len(live_starts.script(NAME).encode()) <= 1_000


def test_a_step_reads_one_letter_and_the_source_is_read_once(v8: Engine) -> None:
    run = "const found = this.model.run(fresh,"
    read_anew(v8, ("reading.js", FILE), run, f"Live.reads.push(fresh.length); {run}")
    v8.run("Live.reads = []; Live.encoded = 0; var _model = Live.model.read('numbers');")
    v8.run("var _encode = _model.encode.bind(_model);")
    v8.run("_model.encode = (...given) => { Live.encoded += 1; return _encode(...given); };")
    for german in ("zwei", "zweiu", "zweiun", "zweiu", "zweiue"):  # steps, back, another letter
        v8.values(NAME, {"german": german})
    v8.values(NAME, {"german": "zweiue", "layer": "1", "head": "mean"})
    assert v8.eval("[Live.encoded, Live.reads]") == [1, [5, 1, 1, 1]]
    v8.values(NAME, {"german": "zwei", "hidden": "1"})  # other keys: all of the German again
    assert v8.eval("[Live.encoded, Live.reads]") == [1, [5, 1, 1, 1, 5]]
    v8.run("delete _model.encode;")


def test_the_figure_hides_what_a_mask_hides() -> None:
    """The weights of what is left add up to 1, and a letter that is hidden has none."""
    shown = at(hidden="00000001", head="mean")["weights"]
    assert [row[7] for row in shown] == [0] * 5
    assert [sum(row) for row in shown] == pytest.approx([1] * 5)
    assert sum(map(sum, at(hidden="1" * 9)["weights"])) == 0


def test_what_readers_are_told_to_see() -> None:
    states = [one["set"] for one in FIGURES[NAME]["tries"]]
    turn, wrong, one, everything = (at(**state) for state in states)
    sees = [one["see"] for one in FIGURES[NAME]["tries"]]
    assert goes_on(german="") == "zweiundvierzig"

    where = [max(range(9), key=row.__getitem__) for row in turn["weights"]]
    letters = "".join("forty-two"[place] for place in where)
    assert (letters[0], letters[4], letters[7]) == ("w", "-", "f")  # before z, u and v
    assert min(turn["weights"][n][where[n]] for n in (0, 4, 7)) > 0.99

    assert wrong["candidates"][0][0] == "i"
    assert wrong["candidates"][0][1] == pytest.approx(0.92, abs=0.005)
    assert goes_on(**states[1]) == "vierundvierzig"
    assert sees[1].endswith(" vierundvierzig.")

    assert "forty-two"[states[2]["hidden"].index("1")] == "w"
    assert one["candidates"][0] == ["e", pytest.approx(0.60, abs=0.005)]
    assert goes_on(**states[2]) == "einundvierzig"
    assert "einundvierzig." in sees[2]

    assert all(everything["hidden"])
    assert goes_on(**states[3]) == "zweihunderttausenddreihundert"
    assert sees[3].endswith(" zweihunderttausenddreihundert.")


def test_what_the_model_was_not_trained_on_is_told(v8: Engine) -> None:
    data = datasets.numbers()
    numbers = [*data.train, *data.validation, *data.test]
    known = v8.eval(f"{json.dumps([one.english for one in numbers])}.map({IS_TRAINED})")
    assert all(known)
    assert (numbers[0].number, max(one.number for one in numbers) < 1_000_000) == (0, True)
    other = ["", "one million", "seven billion", "forty two", "fort", "zero hundred", "Forty-two"]
    assert not any(v8.eval(f"{json.dumps(other)}.map({IS_TRAINED})"))


def test_the_note_says_how_sure_it_gets() -> None:
    short = [one for one in datasets.numbers().test if len(one.english) <= translate.MAX][:12]
    sure = [
        at(text=one.english, german=one.german[:n])["candidates"][0][1]
        for one in short
        for n in range(0, len(one.german) + 1, 3)
    ]
    assert 0.92 < max(sure) < 0.955


def test_the_cache_grows_by_what_the_picture_says() -> None:
    found = at()
    assert found["room"] == 2 * 3 * 128
    assert "5 places of its own (3,840 numbers; the next letter adds 768)" in translate.say(
        complete(FIGURES[NAME], {}), found
    )


def test_the_picture_fits_on_a_phone() -> None:
    for changes in ({}, {"german": "", "hidden": "1" * 9}, {"text": "x" * 40, "german": "y" * 40}):
        state = complete(FIGURES[NAME], changes)
        body, width, _ = translate.drawing(state, translate.values(**state))
        assert "nan" not in body
        assert width <= 340  # px, without the frame
    empty = complete(FIGURES[NAME], {"text": ""})
    assert "There is no letter yet" in translate.drawing(empty, translate.values(**empty))[0]
