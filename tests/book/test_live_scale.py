"""The live figure of chapter 4: its numbers are the library's, and its claims are true."""

import json
import re
from statistics import mean
from typing import Any

import pytest
from live_v8 import Engine, agree, caught, difference, engine

from transformer_book.live.scale import POINTS, WIDTHS, drawing, values

NAME, FILE = "scale", "scale.js"
START = {"width": 64, "keys": 32, "draw": 9}
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
    "the query after the median": ("(ROWS - 1) / 2", "(ROWS + 1) / 2"),
    "smallest first": (".sort().reverse()", ".sort()"),
    "the second weight as the largest": ("largest: weights[0]", "largest: weights[1]"),
    "one row twice": ('query(draw, width, keys, "none")', 'query(draw, width, keys, "root")'),
    "a walk of the last key": ("q = KEYS * WIDEST;", "q = 63 * WIDEST;"),
    "a walk with one step too few": (
        "for (; feature < end; feature++)",
        "for (; feature < end - 1; feature++)",
    ),
    "walks of all keys": (".slice(0, keys),", ","),
    "scaled ends": (
        'scoresOf(draw, width, keys, "none")[0]',
        'scoresOf(draw, width, keys, "root")[0]',
    ),
    "law of another number of keys": ("${draw}, ${keys} keys", "${draw}, keys"),
}


@pytest.fixture(scope="module")
def v8() -> Engine:
    return engine(NAME)


def at(**settings: Any) -> dict[str, Any]:
    return values(**{**START, **settings})


def test_the_numbers_are_the_librarys(v8: Engine) -> None:
    agree(NAME, 60, v8)


def test_every_width(v8: Engine) -> None:
    for width in WIDTHS:
        state = {**START, "width": width}
        ours, theirs = values(**state), v8.values(NAME, state)
        for by in ("none", "root"):
            for name in ("weights", "spread", "largest"):
                flat = [*_flat(theirs[by][name])]
                assert flat == pytest.approx([*_flat(ours[by][name])], rel=1e-7, abs=1e-7), name
        flat = [*_flat(theirs["typical"])]
        assert flat == pytest.approx([*_flat(ours["typical"])], rel=1e-7, abs=1e-7)


def _flat(numbers: Any) -> Any:
    for each in numbers if isinstance(numbers, list) else [numbers]:
        yield from _flat(each) if isinstance(each, list) else [each]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_is_caught(damage: str) -> None:
    caught(NAME, FILE, *DAMAGES[damage])


def test_it_starts_and_tries_what_is_claimed(v8: Engine) -> None:
    figure = v8.definition(NAME)
    assert {name: spec["start"] for name, spec in figure["state"].items()} == START
    tried = [{"width": 1}, {"width": 1024}, {"keys": 64}, {"draw": 1}]
    assert [one["set"] for one in figure["tries"]] == tried
    named = [re.findall(r"\d\.\d+", one["see"]) for one in figure["tries"]]
    assert named == [[], ["0.99", "0.09"], ["0.16", "0.08"], ["0.94"]]


def test_the_last_try_goes_on_to_all_draws(v8: Engine) -> None:
    (one,) = [each for each in v8.definition(NAME)["tries"] if "next" in each]
    assert (one["do"], one["next"]) == ("Draw other vectors", "draw")
    draws = v8.definition(NAME)["state"]["draw"]
    assert (draws["min"], draws["max"], draws["step"]) == (1, 9, 1)
    assert len({at(draw=draw)["none"]["spread"] for draw in range(1, 10)}) == 9


def test_what_other_vectors_changed_is_said_with_the_librarys_numbers(v8: Engine) -> None:
    for width in (1, 64, 1024):
        for draw in range(1, 10):
            states = [{**START, "width": width, "draw": each} for each in (draw % 9 + 1, draw)]
            before, now = [values(**state) for state in states]
            v8.run(f"var [_before, _now] = {json.dumps(states)}, _scale = Live.figures.scale;")
            said = v8.eval(
                "_scale.aside(_now, _scale.values(_now), "
                "{ state: _before, values: _scale.values(_before) })"
            )
            assert said == (
                f"Other vectors: the scores’ standard deviation is {now['none']['spread']:.1f} "
                f"(before: {before['none']['spread']:.1f}), and √{width} is {width**0.5:.1f}; "
                f"divided, it is {now['root']['spread']:.1f}."
            )


def test_the_start_is_a_usual_row() -> None:
    assert at()["none"]["largest"] == pytest.approx(at()["typical"][0][6], abs=0.05)


def test_the_root_keeps_the_spread() -> None:
    none, root = at()["none"], at()["root"]
    assert (round(none["largest"], 2), round(root["largest"], 2)) == (0.82, 0.16)
    for width in WIDTHS[3:]:  # a query of few features may be short
        found = [at(width=width, draw=draw) for draw in range(1, 10)]
        assert mean(each["root"]["spread"] for each in found) == pytest.approx(1, abs=0.1)
        for each in found:
            assert each["none"]["spread"] == pytest.approx(each["root"]["spread"] * width**0.5)


def test_walks_grow_like_the_root() -> None:
    """What is typical after d steps is the root of d: that is why scores are divided by it."""
    found = [at(draw=draw, keys=64) for draw in range(1, 10)]
    for d in (16, 64, 256, 1024):
        place = POINTS.index(d)
        squares = [walk[place] ** 2 for each in found for walk in each["walks"]]
        assert mean(squares) ** 0.5 == pytest.approx(d**0.5, rel=0.2)
    for width in (16, 64, 1024):
        one = at(width=width)
        assert [walk[POINTS.index(width)] for walk in one["walks"]] == pytest.approx(one["ends"])


def test_a_wide_row_is_decided_without_the_root_alone() -> None:
    found = at(width=1024)
    assert round(found["none"]["largest"], 2) == 0.99
    assert found["typical"][0][-1] > 0.99
    assert round(found["root"]["largest"], 2) == 0.09


def test_one_feature_needs_no_root() -> None:
    found = at(width=1)
    assert difference(found["none"], found["root"]) == ""
    start = at()  # what the first Try starts from: there the rows differ much
    assert start["none"]["largest"] > 5 * start["root"]["largest"]


def test_a_row_may_be_undecided_without_the_root() -> None:
    weights = at(draw=1)["none"]["weights"]
    assert round(sum(weights[:4]), 2) == 0.94
    assert weights[3] > 5 * weights[4]


def test_the_root_does_not_know_the_number_of_keys() -> None:
    few, many = at()["root"], at(keys=64)["root"]
    assert (round(few["largest"], 2), round(many["largest"], 2)) == (0.16, 0.08)
    tops = [at(keys=n)["typical"][1][6] for n in (2, 4, 8, 16, 32, 64)]
    assert tops == sorted(tops, reverse=True)


def test_the_laws_say_what_the_chapter_says() -> None:
    for draw in range(1, 10):
        none, root = at(draw=draw)["typical"]
        assert none[-1] > 0.99, draw
        assert all(0.08 < top < 0.2 for top in root[2:]), draw


def test_it_opens_with_one_sentence(v8: Engine) -> None:
    (sentence,) = re.findall(r"[^.]+(?:\.\d+[^.]*)*\.(?: |$)", v8.say(NAME, START))
    assert len(re.findall(r"\d\.\d+", sentence)) == 2  # one number a row of weights


def test_the_picture_for_paper() -> None:
    for width in (1, 64, 1024):
        state = {**START, "width": width}
        body, wide, high = drawing(state, values(**state))
        assert wide <= 680
        assert not re.search("nan|inf", body)
        assert "four times as many, twice the spread" in body  # the law, beside its axis
        assert body.count("<text") > 25
        spots = [float(y) for y in re.findall(r'<text x="[^"]+" y="([^"]+)"', body)]
        assert max(spots) < high
        assert body.count('"M48 142L') == 32 + 1  # a walk for each key, and the best once more
