"""The live figure "recurrence": equal to the book's cells and to autograd, and its claims hold."""

import math
import re

import pytest
from live_v8 import agree, caught, difference, engine

from transformer_book.live.recurrence import LONGEST, drawing, say, values
from transformer_book.live.wording import short

NAME = "recurrence"
START = {"distance": 50, "weight": 0.9, "tanh": True, "gate": 0.95, "score": 4.0, "axis": "share"}
PLAIN = START | {"tanh": False}  # a power of w


def test_the_figure_computes_what_the_cells_do():
    agree(NAME, 50)


EDGES = [
    {"weight": 0.0},
    {"weight": 0.0, "tanh": True},
    {"weight": 1.0, "tanh": True, "gate": 1.0},
    {"weight": 1.5, "distance": 200, "gate": 0.5},
    {"weight": 0.02, "distance": 200, "score": 10.0},  # far below what float64 can hold
    {"weight": 0.5, "distance": 5},  # 0.03125: a tie between 0.0312 and 0.0313
    {"weight": 0.1, "distance": 4, "gate": 1.0, "score": 0.0},
    {"distance": 1},
]


def test_at_the_edges():
    v8 = engine(NAME)
    for edge in EDGES:
        state = PLAIN | edge
        expected = values(**state)
        assert not difference(v8.values(NAME, state), expected), state
        assert v8.say(NAME, state) == say(state, expected), state


def test_only_the_tanh_sets_input_and_gradient_apart():
    for tanh in (False, True):
        found = values(**START | {"tanh": tanh})
        assert found["gradient"][1:] == pytest.approx(found["input"][1:], rel=1e-12)
        assert (found["gradient"][0] == pytest.approx(found["input"][0])) is not tanh


def test_without_tanh_it_is_a_power():
    found = values(**PLAIN)
    for n in range(1, LONGEST + 1):
        left = [n * math.log10(0.9), n * math.log10(0.95), math.log10(1 / (1 + n * math.exp(-4)))]
        assert [curve[n - 1] for curve in found["inputs"]] == pytest.approx(left, rel=1e-12)
        assert found["gradients"][n - 1] == pytest.approx(left[0], rel=1e-12)


DAMAGES = {
    "the slope at the state before": (
        "state = next(state);\n    gradient *= slope(state);",
        "gradient *= slope(state);\n    state = next(state);",
    ),
    "the slope without its weight": ("w * (1 - h * h)", "1 - h * h"),
    "the slope without its square": ("w * (1 - h * h)", "w * (1 - h)"),
    "the weight outside the tanh": ("Math.tanh(w * h)", "w * Math.tanh(h)"),
    "one step late": ("known(input[distance - 1])", "known(input[distance])"),
    "one step late, backwards": ("known(gradient[distance - 1])", "known(gradient[distance])"),
    "the gate that lets in": ("(c) => f * c", "(c) => (1 - f) * c"),
    "no gate on the gradient": ("f * c, () => f", "f * c, () => 1"),
    "one token too few": ("new Float64Array(at + 2)", "new Float64Array(at + 1)"),
    "the score of the last token": ("scores[0] = score", "scores[at + 1] = -score"),
    "natural logarithms": ("Math.log10(x) : null", "Math.log(x) : null"),
    "a chain for attention": ("[distance, distance, 1]", "[distance, distance, distance]"),
    "the wrong one in words": ("the LSTM ${short(lstm_)}", "the LSTM ${short(rnn_)}"),
}
WRITTEN = {  # how numbers are written, by all charts
    "a digit less": ("2 - exponent", "1 - exponent"),
    "the sign of a power": ('exponent.replace("+", "")', 'exponent.replace(/[+-]/, "")'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damage_is_noticed(damage: tuple[str, str]):
    caught(NAME, "recurrence.js", *damage)


@pytest.mark.parametrize("damage", WRITTEN.values(), ids=WRITTEN)
def test_a_number_written_wrongly_is_noticed(damage: tuple[str, str]):
    caught(NAME, "drawings.js", *damage)


# --- what readers are told to see -----------------------------------------------------------------


def tried(number: int) -> tuple[dict, dict, str]:
    one = engine(NAME).definition(NAME)["tries"][number]
    return START | one["set"], values(**START | one["set"]), one["see"]


def test_the_open_gate():
    state, found, see = tried(0)
    assert f"The LSTM keeps {short(found['input'][1])}" in see
    assert state["distance"] == 100
    assert found["input"][1] == pytest.approx(1 / 3, abs=0.04)
    before = values(**START | {"distance": 100})["input"][1]
    assert see.endswith(f"At f = 0.95 only {short(before)} did.")


def test_the_switch():
    state, found, see = tried(1)
    assert f"stays at {short(found['input'][0])}" in see
    assert found["gradient"][0] < 1e-20
    assert 10 ** found["inputs"][0][-1] == pytest.approx(found["input"][0])
    without = values(**state | {"tanh": False})
    assert without["input"][0] == without["gradient"][0] > 1e8


def test_the_plain_mean():
    state, found, see = tried(2)
    assert found["input"][2] == pytest.approx(1 / (state["distance"] + 1))
    assert "1/201" in see
    assert short(found["input"][0]).replace("\N{NO-BREAK SPACE}", " ") in see


def test_the_static_picture():
    start = {name: spec["start"] for name, spec in engine(NAME).definition(NAME)["state"].items()}
    assert start == START
    body, width, height = drawing(START, values(**START))
    assert width <= 680
    assert height < 400
    assert "left at distance 50" in body
    assert "0.522" in body
    assert "the RNN’s gradient" in body
    assert "the RNN’s gradient" not in drawing(PLAIN, values(**PLAIN))[0]  # it is the same line


def test_the_static_picture_has_the_axis_of_the_live_one():
    share, tens = (
        drawing(START | {"axis": axis}, values(**START))[0] for axis in ("share", "tens")
    )
    assert all(f">{word}<" in share for word in ("nothing", "half", "all"))
    assert "10⁻⁸" in tens
    heights = [float(y) for y in re.findall(r"L\S+ (\d+\.\d+)", share)]
    assert max(heights) == 14 + 224  # on this axis no curve leaves the chart
    half = 14 + 224 / 2
    curves = [d for d in re.findall(r'<path d="(M[^"]+)"', share) if d.count("L") == LONGEST]
    attention = curves[-1]
    at_50 = float(re.split("[L ]", attention)[2 * 50 + 1])
    assert at_50 == pytest.approx(half - 224 * (values(**START)["input"][2] - 0.5), abs=0.01)


def test_at_the_start_the_state_and_its_gradient_are_two_curves():
    found = values(**START)
    assert found["input"][0] > 4 * found["gradient"][0]
