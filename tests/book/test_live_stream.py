"""The live figure of the residual stream: its numbers are the library's, its claims are true."""

import json
from typing import Any

import live_v8
import pytest
from live_v8 import (
    SCRIPTS,
    Engine,
    agree,
    caught_in,
    damaged,
    disagreement_in,
    engine,
    library,
    read_anew,
    start_problem,
    tried,
)

from tools import live_starts
from transformer_book.live import FIGURES, complete, stream

NAME, FILE = "stream", "stream.js"
START = FIGURES[NAME]["state"]["text"]["start"]
# One line after the other, so that what was read before is used again, cut off, or forgotten.
STATES: list[dict[str, Any]] = [
    {},
    {"stop": 5, "letter": "r"},
    {"text": START[:15], "at": 3, "stop": 8},
    {"text": START[:15] + "é", "at": 15, "stop": 1},
    {"text": "The king and the q", "at": 17, "stop": 2, "letter": "1"},
    {"text": "The king and the q", "at": 4, "stop": 3, "letter": "’"},
    {"text": "x", "stop": 0},
    {"text": "", "stop": 4},
    {"text": "To be, or not to be, that", "at": 23, "stop": 7, "letter": "\n"},
]
WHOLE = [{**complete(FIGURES[NAME], {}), **changes} for changes in STATES]
DAMAGES = {
    "the norm of the write": ("stream.at(-1), [id,", "parts[stop], [id,"),
    "the norm at the stop": ("stream.at(-1), [id,", "stream[stop], [id,"),
    "no gain of the norm": ("* gain[i]) / size", ") / size"),
    "the length for the mean square": ("dot(final, final) / final.length +", "dot(final, final) +"),
    "the write of the block before": (
        "parts: stream.map(({ x, update = x })",
        "parts: stream.map((_, n) => stream[Math.max(0, n - 2)]).map(({ x, update = x })",
    ),
    "the stream for the write": ("({ x, update = x }) => row(update, t)", "({ x }) => row(x, t)"),
    "the lens without the final norm": (
        "model.logits(x))",
        "Live.tensor.matmulT(x, model.table.data, fresh.length, 256, 259))",
    ),
    "the lens of the sublayer before": ("answers[2 * n]", "answers[Math.max(0, 2 * n - 1)]"),
    "the mean over all tokens": (
        "letters.reduce((sum, id) => sum + data[id * D + i], 0) / letters.length",
        "data.reduce((sum, one, n) => sum + (n % D === i ? one : 0), 0) / 259",
    ),
    "no mean": ("(data[id * D + i] - each)", "data[id * D + i]"),
    "a letter forgotten": ("?ABCDEF", "?ABCDE"),
    "the logit itself": ("logits[id] - mean(", "logits[id] - 0 * mean("),
    "one letter too many kept": ("const n = this.known(ids);", "const n = this.known(ids) + 1;"),
    "keys not forgotten": ("self.keys.length = self.values.length = n", "self.values.length = n"),
    "an old line": ("id !== this.ids[t]", "t >= this.ids.length"),
    "another position": ("= line[at];", "= line[Math.max(0, at - 1)];"),
    "the letter at this stop": ("typed[0] : best(logits)", "typed[0] : answers[stop][0]"),
    "the first of several bytes": ("typed.length === 1 ? typed[0]", "typed.length ? typed[0]"),
    "lowered in their order": (".slice(-MOST).reverse()", ".slice(-MOST)"),
    "too many letters": (".slice(0, MAX)", ""),
    "chances of the answer": (
        "chances.map((each) => each[id])",
        "chances.map((each) => Math.max(...each))",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def v8() -> Engine:
    """The Shakespeare model."""
    found = engine(NAME)
    found.register("shakespeare")
    return found


def test_numbers_and_words_are_the_librarys(v8: Engine) -> None:
    agree(NAME, 8, v8)  # lines of random letters
    found = disagreement_in(NAME, WHOLE, v8)
    assert not found, found


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_caught(damage: str, v8: Engine) -> None:
    caught_in(NAME, ("reading.js", FILE), DAMAGES[damage], WHOLE, v8)


def test_the_start_needs_no_model(v8: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_v8, "ABSOLUTE", 6e-5)  # four digits
    assert not start_problem(NAME, v8), "run: python -m tools.live_starts"
    read_anew(v8, ("stream_start.js",), '["e",0.5767]', '["e",0.5769]')
    assert "answers[1][1]" in start_problem(NAME, v8)
    read_anew(v8, ("stream_start.js",), "stop: 6", "stop: 5")
    assert "stop" in start_problem(NAME, v8)
    assert len(live_starts.script(NAME).encode()) <= 2_500


def test_what_is_drawn_is_said_beside_it(v8: Engine) -> None:
    """A newcomer finds what a column, a row, a cell, a shade, an arrow and a bar are."""
    text = (SCRIPTS / FILE).read_text(encoding="utf-8")
    for word in ("Column: ", "Row: ", "Cell: ", "darker: ", "underlined: ", "arrow to the blue",
                 "Bar: "):  # fmt: skip
        assert text.count(word) == 1, word
    v8.run(damaged(FILE, "Live.define({", "Live.told = { barsOf, scaleOf }; Live.define({")[FILE])
    state = {"tokens": ["q", " "], "at": 1, "letter": " "}
    assert v8.eval(f"Live.told.barsOf({json.dumps(state)})") == (
        "After “␣”: a row adds its arrow to the blue stream. "
        "Bar: what this alone adds to the logit of “␣”."
    )
    state = {"stop": 0, "lengths": [2, *[3] * 7, 30]}
    assert v8.eval(f"Live.told.scaleOf({json.dumps(state)})") == (
        "The norm divides by the root mean square: at the end 1.88, here 0.13 "
        "(these would weigh × 15)."
    )
    assert v8.eval(f"Live.told.scaleOf({json.dumps({**state, 'stop': 8})})") == (
        "The norm divides by the root mean square: at the end 1.88."
    )


def test_the_effects_add_up_to_the_logit(v8: Engine) -> None:
    read_anew(v8, ("reading.js", FILE), "const MAX", "const  MAX")
    for state in WHOLE:
        for found in (v8.values(NAME, state), stream.values(**state)):
            if found["tokens"]:
                assert sum(found["effects"]) == pytest.approx(found["total"], abs=1e-4)


def test_the_letters_are_those_of_the_plays(v8: Engine) -> None:
    v8.run(damaged(FILE, "Live.define({", "Live.letters = LETTERS; Live.define({")[FILE])
    assert v8.eval("Live.letters") == stream.letters()
    assert len(stream.letters()) == 66  # the note says so


def test_a_line_is_read_in_pieces_and_no_letter_twice(v8: Engine) -> None:
    run = "const found = this.model.run(fresh,"
    read_anew(v8, ("reading.js", FILE), run, f"Live.read.push(fresh.length); {run}")
    v8.run("Live.read = []; var _model = Live.model.read('shakespeare');")
    v8.run("var _pieces = [...Live.figures.stream.prepare(_state('stream', {}), _model)].length;")
    assert v8.eval("[_pieces, Live.read.length, Math.max(...Live.read)]") == [12, 12, 2]
    v8.values(NAME, {"stop": 3})
    v8.values(NAME, {"text": START + "a"})
    v8.values(NAME, {"text": START[:-1] + "o"})
    assert v8.eval("Live.read.slice(12)") == [1]


def test_what_readers_are_told_to_see() -> None:
    first, long, queen, large = (tried(NAME, n)[0] for n in range(4))
    assert [token for token, _ in first["lens"][0]] == first["tokens"]
    assert first["stop"] == 0

    assert long["letter"] == "a"
    assert long["written"][5] == pytest.approx(24.0, abs=0.05)
    assert long["effects"][5] == pytest.approx(-0.08, abs=0.005)

    assert queen["letter"] == "u"
    assert queen["answers"][2] == ["u", pytest.approx(0.95, abs=0.005)]
    lifts = queen["effects"][2::2]
    assert [min(lifts), max(lifts)] == pytest.approx([2.94, 3.79], abs=0.005)

    assert large["letter"] == "e"
    assert max(large["effects"]) == large["effects"][8] == pytest.approx(6.76, abs=0.005)
    assert [token for token, _ in large["lifted"]] == ["e", "i", "r"]
    assert large["lifted"][2][1] > 6.6
    assert large["chances"][7:] == pytest.approx([0.80, 0.76], abs=0.005)


def test_the_start_shows_where_the_answer_is_found() -> None:
    found = library(NAME)
    assert found["stop"] == 6
    assert [token for token, _ in found["answers"]] == ["e", "e", *"rrrr", "a", "a", "a"]


def test_the_picture_fits_on_a_phone() -> None:
    state = complete(FIGURES[NAME], {"letter": "r", "stop": 8})
    body, width, _ = stream.drawing(state, stream.values(**state))
    assert "nan" not in body
    assert width <= 330  # px, without the frame
    empty = complete(FIGURES[NAME], {"text": ""})
    assert "There is no letter yet" in stream.drawing(empty, stream.values(**empty))[0]
