"""The live figure of chapter 8: its numbers are the library's, and its claims are true."""

import itertools
import json
import math
import re
from typing import Any

import pytest
from live_v8 import (
    Engine,
    agree,
    caught,
    difference,
    engine,
    library,
    on_paper,
    settings,
    tried,
)

from transformer_book.live import FIGURES, complete
from transformer_book.live.fold import MOST, PHRASES, values

NAME, FILE = "fold", "fold.js"
BEFORE = "to[0] * (a - at[0]) + to[1] * (b - at[1])"
SLOPE = "(shares[i] - wanted[i]) * input[j])"
DAMAGES = {
    "no ReLU": ("relu ? Math.max(0, before) : before", "before"),
    "always ReLU": ("relu ? Math.max(0, before) : before", "Math.max(0, before)"),
    "ReLU's mirror": ("Math.max(0, before) : before", "Math.min(0, before) : before"),
    "absolute values": ("Math.max(0, before) : before", "Math.abs(before) : before"),
    "lines through the origin": (BEFORE, "to[0] * a + to[1] * b"),
    "the line on the other side": (BEFORE, BEFORE.replace("- at", "+ at")),
    "axes swapped": (BEFORE, "to[1] * (a - at[0]) + to[0] * (b - at[1])"),
    "a unit too few": (
        "KS.slice(0, state.width).map((k) => ({ at",
        "KS.slice(1, state.width).map((k) => ({ at",
    ),
    "no bias": ("[...h, 1]", "[...h, 0]"),
    "the bias as a weight": (
        "layer.slice(0, -1), bias: layer.at(-1)",
        "layer.slice(1), bias: layer[0]",
    ),
    "labels swapped": ("xor: [1, 0, 0, 1], and", "xor: [0, 1, 1, 0], and"),
    "OR for AND": ("and: [1, 0, 0, 0]", "and: [1, 1, 1, 0]"),
    "a slope that points up": (
        SLOPE,
        SLOPE.replace("shares[i] - wanted[i]", "wanted[i] - shares[i]"),
    ),
    "squared errors": (
        SLOPE,
        SLOPE.replace(" * input[j]", " * shares[i] * (1 - shares[i]) * input[j]"),
    ),
    "no decay": ("DECAY * each + over", "0 * each + over"),
    "ten times the decay": ("[1e-3, 0.05]", "[1e-2, 0.05]"),
    "three steps are enough": ("step < 60", "step < 3"),
    "a wide doubt": ("[1e-3, 0.05]", "[1e-3, 0.2]"),
    "no sigmoid": ("1 / (1 + Math.exp(-score))", "score"),
    "elimination that adds": ("-= factor * rows", "+= factor * rows"),
    "the field on its side": (
        "[middle(at % cells), middle(Math.floor(at / cells))]",
        "[middle(Math.floor(at / cells)), middle(at % cells)]",
    ),
    "corners for middles": ("(2 * at + 1) / cells", "(2 * at) / cells"),
    "a right answer too many": ("!isOpen(share) && share > 0.5", "share > 0.5"),
    "all are right": ("share > 0.5 === Boolean(wanted[i])", "share > 0.5"),
    "asleep is on": ("> 1e-9", ">= 0"),
}


@pytest.fixture(scope="module")
def v8() -> Engine:
    return engine(NAME)


def test_numbers_and_words_are_the_librarys(v8: Engine) -> None:
    agree(NAME, 60, v8)


def test_at_the_edges(v8: Engine) -> None:
    """Units that are nothing, or alike: then only the decay says which layer it is."""
    silent = {"to_1": [0, 0], "to_2": [0, 0]}
    lines = {f"at_{k}": [0, 0] for k in range(1, MOST + 1)}
    alike = lines | {f"to_{k}": [2, 2] for k in range(1, MOST + 1)}
    for given in (silent, alike | {"width": MOST}, alike | {"width": MOST, "relu": False}):
        for task in ("xor", "and"):
            state = complete(FIGURES[NAME], given | {"task": task})
            assert difference(v8.values(NAME, state), values(**state)) == ""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_is_caught(damage: str) -> None:
    old, new = DAMAGES[damage]
    caught(NAME, FILE, old, new, count=12)


# --- what readers are told to see -----------------------------------------------------------------


def on(found: dict[str, Any], unit: int) -> list[str]:
    return [name for name, h in zip(PHRASES, found["hidden"], strict=True) if h[unit - 1] > 0]


def test_two_units_fold_the_two_others_onto_one_point() -> None:
    found = library(NAME)
    assert found["right"] == 4
    assert found["hidden"][1] == pytest.approx([0, 0])
    assert found["hidden"][2] == pytest.approx([0, 0])
    assert found["hidden"][0] == pytest.approx([1.4, 0])
    assert found["hidden"][3] == pytest.approx([0, 1.4])


def test_without_relu_nothing_is_decided() -> None:
    found, see = tried(NAME, 0)
    assert found["undecided"] == 4
    assert re.findall(r"\d\.\d\d", see) == [f"{share:.2f}" for share in set(found["shares"][:1])]
    assert "between" in see
    one = [h[0] for h in found["hidden"]]
    assert min(one[0], one[3]) < one[1] < max(one[0], one[3])


def test_no_six_units_without_relu_know_xor() -> None:
    for state in settings(FIGURES[NAME], 20, seed=7):
        full = {**state, "width": MOST, "relu": False, "task": "xor"}
        assert values(**full)["shares"] == pytest.approx([0.5] * 4, abs=1e-6)


def test_a_unit_that_was_dragged_away_is_missed() -> None:
    found, see = tried(NAME, 1)
    assert on(found, 1) == []
    assert found["hidden"][0] == pytest.approx(found["hidden"][1])
    assert f"{found['right']} of 4 right" in see
    assert found["right"] == 3


def test_another_unit_does_its_work() -> None:
    found, see = tried(NAME, 2)
    assert on(found, 3) == ["very good"]
    assert on(found, 1) == []
    assert f"{found['right']} of 4 right" in see
    assert found["right"] == 4


def test_and_needs_no_fold() -> None:
    found, see = tried(NAME, 3)
    assert FIGURES[NAME]["tries"][3]["set"]["relu"] is False
    assert f"{found['right']} of 4 right" in see
    assert found["right"] == 4


def test_no_two_units_begin_on_one_line(v8: Engine) -> None:
    units = range(1, MOST + 1)
    state = v8.eval(f'Live.start(Live.figures["{NAME}"])')
    for one, other in itertools.combinations(units, 2):
        (a, to), (b, towards) = ((state[f"at_{k}"], state[f"to_{k}"]) for k in (one, other))
        sine = to[0] * towards[1] - to[1] * towards[0]
        away = to[0] * (b[0] - a[0]) + to[1] * (b[1] - a[1])
        sizes = math.hypot(*to) * math.hypot(*towards)
        assert abs(sine) > 0.2 * sizes or abs(away) > 0.4 * math.hypot(*to), (one, other)


@pytest.mark.parametrize(
    ("before", "changes", "shown"),
    [
        ({"width": 6, "across": 4, "up": 6}, {"width": 1}, [1, 2]),
        ({"width": 6, "across": 4, "up": 6}, {"width": 3}, [3, 2]),
        ({"width": 6, "across": 4, "up": 6}, {"width": 5}, [4, 5]),
        ({"width": 4, "across": 4, "up": 1}, {"up": 4}, [1, 4]),  # the two change places
        ({"width": 4, "across": 4, "up": 1}, {"across": 1}, [1, 4]),
        ({"width": 1}, {"width": 2}, [1, 2]),
        ({}, {"across": 3, "up": 3, "width": 3}, [3, 1]),  # as an address may ask
    ],
)
def test_the_picture_shows_two_units_that_are_there(
    v8: Engine, before: dict[str, int], changes: dict[str, int], shown: list[int]
) -> None:
    start = complete(FIGURES[NAME], before)
    given = json.dumps([start | changes, start])
    found = v8.eval(f'Live.figures["{NAME}"].settled(...{given})')
    assert [found["across"], found["up"]] == shown


def test_the_picture_for_paper() -> None:
    given: list[dict[str, Any]] = [
        {},
        {"relu": False},
        {"width": MOST},
        {"width": 1},
        {"to_1": [0, 0]},
        {"up": 1},
        {"width": 1, "across": 4, "up": 6},
    ]
    for body in on_paper(NAME, given):
        assert body.count("<circle") >= 4


def test_the_still_shows_two_lines_where_two_units_share_one() -> None:
    def lines(given: dict[str, Any]) -> list[tuple[float, ...]]:
        (body,) = on_paper(NAME, [given])
        found = re.findall(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)" fill="none"', body)
        ends = [tuple(map(float, each)) for each in found]
        return [each for each in ends if math.dist(each[:2], each[2:]) > 300 and each[2] < 320]

    shared = {"at_1": [0.6, -0.6], "at_2": [-0.6, 0.6]}
    one, other = lines(shared)
    assert 4 < abs(one[0] - one[1] - other[0] + other[1]) / math.sqrt(2) < 8
    (alone,) = lines(shared | {"width": 1})
    assert alone[0] - alone[1] == -16  # through the middle of the plane, as it is
