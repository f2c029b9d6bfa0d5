"""The live figure of chapter 4: its numbers are the library's, and its claims are true."""

import re
from typing import Any

import pytest
from live_v8 import Engine, agree, caught, engine

from transformer_book.live.scale import WIDTHS, drawing, values

NAME, FILE = "scale", "scale.js"
START = {"width": 64, "keys": 32, "by": "none", "draw": 7}
SUM = "tables[at][pair] = sum;"
DAMAGES = {
    "the root forgotten": ("root: Math.sqrt", "root: () => 1"),
    "d for its root": ("root: Math.sqrt", "root: (d) => d"),
    "multiplied": ("product / divisor", "product * divisor"),
    "a feature too many": ("feature < WIDTHS[at]", "feature <= WIDTHS[at]"),
    "every width from zero": (SUM, f"{SUM} sum = 0;"),
    "keys as queries": ("(KEYS + Math.floor(pair / KEYS))", "Math.floor(pair / KEYS)"),
    "rows as long as n": ("table.slice(at * KEYS,", "table.slice(at * n,"),
    "a key left out": ("at * KEYS + n)", "at * KEYS + n - 1)"),
    "divided by n, not n - 1": ("/ (list.length - 1)", "/ list.length"),
    "bits, not nats": ("p * Math.log(p)", "p * Math.log2(p)"),
    "the diagonal alone": ("- 2 * cubes + squares ** 2", "- 2 * cubes"),
    "a square for a cube": ("- 2 * cubes", "- cubes"),
    "the query after the median": ("(ROWS - 1) / 2", "(ROWS + 1) / 2"),
    "smallest first": (".sort().reverse()", ".sort()"),
    "the second weight as the largest": ("largest: weights[0]", "largest: weights[1]"),
    "law of another number of keys": ("${draw}, ${keys} keys", "${draw}, keys"),
    "uneven": ("Math.sqrt(keys - 1)", "Math.sqrt(keys)"),
}


@pytest.fixture(scope="module")
def v8() -> Engine:
    return engine(NAME)


def at(**settings: Any) -> dict[str, Any]:
    return values(**{**START, **settings})


def test_the_numbers_are_the_librarys(v8: Engine) -> None:
    agree(NAME, 60, v8)


def test_every_width_and_divisor(v8: Engine) -> None:
    for width in WIDTHS:
        for by in ("none", "root", "width"):
            state = {**START, "width": width, "by": by}
            ours, theirs = values(**state), v8.values(NAME, state)
            for name in ("scores", "weights", "jacobian", "typical"):
                flat = [*_flat(theirs[name])]
                assert flat == pytest.approx([*_flat(ours[name])], rel=1e-7, abs=1e-7), name


def _flat(numbers: Any) -> Any:
    for each in numbers if isinstance(numbers, list) else [numbers]:
        yield from _flat(each) if isinstance(each, list) else [each]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_is_caught(damage: str) -> None:
    caught(NAME, FILE, *DAMAGES[damage])


def test_it_starts_and_tries_what_is_claimed(v8: Engine) -> None:
    figure = v8.definition(NAME)
    assert {name: spec["start"] for name, spec in figure["state"].items()} == START
    tried = [{"by": "root"}, {"width": 1024}, {"draw": 1}, {"by": "root", "keys": 64}]
    assert [one["set"] for one in figure["tries"]] == tried
    named = [re.findall(r"\d\.\d+", one["see"]) for one in figure["tries"]]
    assert named == [["0.11", "0.84"], [], [], ["0.07", "0.11"]]


def test_the_start_is_a_usual_row() -> None:
    assert at()["largest"] == pytest.approx(at()["typical"][0][6], abs=0.05)


def test_the_root_keeps_the_spread() -> None:
    assert (round(at()["largest"], 2), round(at(by="root")["largest"], 2)) == (0.84, 0.11)
    for width in WIDTHS:
        found = at(by="root", width=width)
        assert found["expected"] == pytest.approx(1)
        if width >= 8:  # a query of few features may be short
            assert found["spread"] == pytest.approx(1, abs=0.3)


def test_a_wide_row_is_decided() -> None:
    found = at(width=1024)
    assert found["largest"] > 0.995
    assert found["typical"][0][-1] > 0.99
    assert found["jacobian"] < 0.01


def test_an_undecided_row_lets_much_gradient_through() -> None:
    found = at(draw=1)
    assert found["scores"][0] - found["scores"][3] < 1 < found["scores"][0] - found["scores"][4]
    assert found["jacobian"] > 2 * found["even"]


def test_the_root_does_not_know_the_number_of_keys() -> None:
    few, many = at(by="root"), at(by="root", keys=64)
    assert few["expected"] == many["expected"] == pytest.approx(1)
    assert (round(few["largest"], 2), round(many["largest"], 2)) == (0.11, 0.07)
    tops = [at(by="root", keys=n)["typical"][1][6] for n in (2, 4, 8, 16, 32, 64)]
    assert tops == sorted(tops, reverse=True)


def test_the_laws_say_what_the_chapter_says() -> None:
    for draw in range(1, 10):
        none, root, width = at(draw=draw)["typical"]
        assert none[-1] > 0.99, draw
        assert all(0.08 < top < 0.2 for top in root[2:]), draw
        assert width[-1] < 1.2 / 32, draw


@pytest.mark.parametrize("by", ["none", "root", "width"])
def test_the_picture_for_paper(by: str) -> None:
    for width in (1, 1024):
        state = {**START, "by": by, "width": width}
        body, wide, high = drawing(state, values(**state))
        assert wide <= 680
        assert not re.search("nan|inf", body)
        assert body.count("<text") > 25
        spots = [float(y) for y in re.findall(r'<text x="[^"]+" y="([^"]+)"', body)]
        assert max(spots) < high
