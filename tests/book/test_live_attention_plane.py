"""The live figure of chapter 3: its numbers are the library's, and its claims are true."""

import math

import pytest
from live_v8 import agree, caught

from transformer_book.live import FIGURES, complete
from transformer_book.live.attention_plane import values

NAME, FILE = "attention-plane", "attention_plane.js"
SCORE = "Live.tensor.dot(key, state.query) / Math.sqrt(2)"
VALUES = "valueNames.map((name) => state[name]); //"
PUSH = "query.map((each) => (p * each) / root)"
DAMAGES = {
    "no scale": (SCORE, "Live.tensor.dot(key, state.query)"),
    "wrong scale": (SCORE, SCORE.replace("Math.sqrt(2)", "2")),
    "keys as values": (VALUES, VALUES.replace("value", "key")),
    "axes swapped": ("sum + w * theirs[j][axis]", "sum + w * theirs[j][1 - axis]"),
    "one key left out": ("weights.reduce((sum, w, j)", "weights.slice(1).reduce((sum, w, j)"),
    "gradient without its mean": ("value.map((v, axis) => v - answer[axis])", "value"),
    "gradient without weights": ("(weights[j] * Live.tensor.dot", "(Live.tensor.dot"),
    "gradient unscaled": ("sum + (p * keys[j][axis]) / root", "sum + p * keys[j][axis]"),
    "key's gradient from keys": (PUSH, PUSH.replace("query", "keys[0]")),
    "length zero": ("length === 0 ? 0 :", "length > 1 ? 0 :"),
}


def at(**settings: object) -> dict[str, list[float]]:
    return values(**complete(FIGURES[NAME], settings))


def test_numbers_and_words_are_the_librarys() -> None:
    agree(NAME, 60)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_caught(damage: str) -> None:
    caught(NAME, FILE, *DAMAGES[damage])


def test_what_readers_are_told_to_see() -> None:
    nothing, noun, better, won = (at(**one["set"]) for one in FIGURES[NAME]["tries"])
    assert nothing["weights"] == pytest.approx([0.2] * 5)
    assert nothing["scores"] == [0] * 5
    assert noun["weights"][3] == pytest.approx(0.68, abs=0.005)
    assert math.hypot(*noun["answer"]) < math.hypot(*at()["answer"])
    assert better["weights"][2] == pytest.approx(0.98, abs=0.005)
    assert math.dist(better["answer"], (0, 1)) < 0.05
    assert won["weights"][0] > 0.999
    assert math.hypot(*won["answer"]) < 0.002
    assert math.hypot(*won["query"]) < 0.002
    assert max(math.hypot(*key) for key in won["keys"]) < 0.002
