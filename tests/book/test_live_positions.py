"""The live figure of chapter 7: its numbers are the library's, and its claims are true."""

import re
from typing import Any

import pytest
from live_v8 import Engine, agree, caught, difference, engine, on_paper

from transformer_book.live import FIGURES, complete
from transformer_book.live.positions import FARTHEST, PLACES, SCHEMES, drawing, values
from transformer_lib.layers.positions import alibi_slopes

NAME, FILE = "positions", "positions.js"
ENGINE = "tensor.js"
PAIR = """for (let i = 2 * pair; i < x.length; i += width) {
      turned[i] = x[i] * cos - x[i + 1] * sin;
      turned[i + 1] = x[i] * sin + x[i + 1] * cos;"""
FAR = "near + Math.floor(far * (BUCKETS - near))"
DAMAGES = {
    "pairs of the halves": (
        ENGINE,
        PAIR,
        PAIR.replace("i = 2 * pair", "i = pair").replace("i + 1", "i + width / 2"),
    ),
    "turned the other way": (ENGINE, "x[i] * cos - x[i + 1] * sin", "x[i] * cos + x[i + 1] * sin"),
    "half the exponent": (ENGINE, "(-2 * pair) / width", "-pair / width"),
    "sines for cosines": (
        ENGINE,
        "added[2 * pair + 1] = Math.cos(angle)",
        "added[2 * pair + 1] = Math.sin(angle)",
    ),
    "stretched the other way": (FILE, "place / stretch, WIDTH", "place * stretch, WIDTH"),
    "no stretch": (FILE, "place / stretch, WIDTH", "place, WIDTH"),
    "no base": (FILE, "WIDTH, theta)", "WIDTH)"),
    "the key where the query is": (
        FILE,
        "placed(drawn().key, state.key, state)",
        "placed(drawn().key, state.key + distance, state)",
    ),
    "the key left as it is": (FILE, "placed(drawn().key, state.key, state)", "drawn().key"),
    "the query one place late": (
        FILE,
        "state.key + distance, state)",
        "state.key + distance + 1, state)",
    ),
    "the query before the key": (
        FILE,
        "state.key + distance, state)",
        "state.key - distance + 24, state)",
    ),
    "the query as the key": (FILE, "key: all.slice(WIDTH, 2 * WIDTH)", "key: all.slice(0, WIDTH)"),
    "the row below in the table": (
        FILE,
        "(place * WIDTH, (place + 1) * WIDTH)",
        "((place + 1) % ROWS * WIDTH, ((place + 1) % ROWS + 1) * WIDTH)",
    ),
    "a column of the table": (FILE, "each + y[i]", "each + y[0]"),
    "a penalty that rewards": (FILE, "-SLOPE * distance", "SLOPE * distance"),
    "another head's slope": (FILE, "2 ** -4", "2 ** -3"),
    "a bucket too many for the near": (FILE, "distance < near", "distance <= near + 2"),
    "a bucket late": (FILE, FAR, FAR.replace("near +", "near + 1 +")),
    "rounded, not cut": (FILE, "Math.floor(far", "Math.round(far"),
    "another farthest distance": (FILE, "[16, 128]", "[16, 64]"),
    "natural logarithm alone": (FILE, " / Math.log(MOST_DISTANCE / near)", ""),
    "no root": (
        FILE,
        "Live.tensor.dot(query, key) / Math.sqrt(WIDTH) + bias",
        "Live.tensor.dot(query, key) + bias",
    ),
    "no bias": (
        FILE,
        "Live.tensor.dot(query, key) / Math.sqrt(WIDTH) + bias",
        "Live.tensor.dot(query, key) / Math.sqrt(WIDTH)",
    ),
    "parts without the root": (
        FILE,
        "Live.tensor.dot(hand, key[pair]) / Math.sqrt(WIDTH)",
        "Live.tensor.dot(hand, key[pair])",
    ),
    "half turns": (FILE, "/ (2 * Math.PI);", "/ Math.PI;"),
    "an angle that points the other way": (FILE, "Math.abs(x * v - y * u)", "x * v - y * u"),
    "a distance too few": (FILE, "length: FARTHEST + 1", "length: FARTHEST"),
    "less spread in what is learned": (FILE, "[4874, 0.5]", "[4874, 0.4]"),
}


@pytest.fixture(scope="module")
def v8() -> Engine:
    return engine(NAME)


def at(**settings: Any) -> dict[str, Any]:
    return values(**complete(FIGURES[NAME], settings))


def scores(**settings: Any) -> dict[str, float]:
    """The score of each scheme where the words stand."""
    state = complete(FIGURES[NAME], settings)
    return {name: curve[state["distance"]] for name, curve in values(**state)["curves"].items()}


def test_numbers_and_words_are_the_librarys(v8: Engine) -> None:
    agree(NAME, 60, v8)


def test_at_the_edges(v8: Engine) -> None:
    """The farthest places, where an angle in float32 is coarsest."""
    for scheme in SCHEMES:
        for key, distance in ((0, 0), (PLACES - 1, 0), (0, FARTHEST), (PLACES - 1, FARTHEST)):
            for theta in (10, 100_000):
                state = {"scheme": scheme, "key": key, "distance": distance, "theta": theta}
                full = complete(FIGURES[NAME], state)
                assert difference(v8.values(NAME, full), values(**full)) == "", full


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_is_caught(damage: str) -> None:
    caught(NAME, *DAMAGES[damage])


# --- what readers are told to see -----------------------------------------------------------------


def seen(place: int) -> tuple[dict[str, Any], list[str]]:
    """What a Try sets, and the numbers that it names."""
    one = FIGURES[NAME]["tries"][place]
    return one["set"], re.findall(r"−?\d\.\d\d", one["see"])


def written(*numbers: float) -> list[str]:
    return [f"{each:.2f}".replace("-", "−") for each in numbers]


def test_whose_score_stays() -> None:
    changes, named = seen(0)
    before, after = scores(), scores(**changes)
    for scheme in ("none", "rope", "alibi", "t5"):
        assert after[scheme] == pytest.approx(before[scheme], abs=1e-5)
    assert named == written(before["sinusoidal"], after["sinusoidal"])
    assert abs(after["learned"] - before["learned"]) > 0.5


def test_only_what_is_added_knows_the_place() -> None:
    """The whole curve stays or changes, wherever the key stands."""
    curves = [at(key=key)["curves"] for key in range(PLACES)]
    for scheme in SCHEMES:
        spread = [max(each) - min(each) for each in zip(*(c[scheme] for c in curves), strict=True)]
        if scheme in ("learned", "sinusoidal"):
            assert min(spread) > 0.3
        else:
            assert max(spread) < 1e-5


def test_a_small_base() -> None:
    changes, named = seen(2)
    assert named == written(at()["score"], at(**changes)["score"])  # both are marked in the figure
    slow = [at(distance=distance)["turns"][2:] for distance in range(FARTHEST + 1)]
    for pair in zip(*slow, strict=True):
        assert max(pair) - min(pair) < 0.04  # of a full turn, in 24 places


def test_twice_as_long() -> None:
    changes, named = seen(3)
    short, long = at(), at(**changes)
    assert changes["distance"] == 2 * 4
    assert long["turns"] == pytest.approx(short["turns"], abs=1e-6)
    assert long["score"] == pytest.approx(short["score"], abs=1e-5)
    assert named == written(short["score"])
    assert abs(at(distance=8)["score"] - short["score"]) > 0.3  # the control: no stretch
    shown = [written(curve[changes["distance"]]) for curve in long["curves"].values()]
    assert shown.count(named) == 1  # no other scheme has this score by accident


def test_nothing_knows_a_distance_without_positions() -> None:
    changes, named = seen(1)
    flat = at(**changes)["curves"]["none"]
    assert max(flat) - min(flat) < 1e-12
    assert named == written(flat[0])


def test_the_slope_is_of_the_head_that_is_named() -> None:
    alibi = at()["curves"]["alibi"]
    assert alibi[0] - alibi[1] == pytest.approx(alibi_slopes(8)[3].item())


def test_pairs_and_bias_make_the_score() -> None:
    for scheme in SCHEMES:
        found = at(scheme=scheme, distance=9)
        assert sum(found["parts"]) + found["bias"] == pytest.approx(found["score"], abs=1e-6)


# --- the static picture ---------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_picture_for_paper(scheme: str) -> None:
    places = ((0, 0), (PLACES - 1 - FARTHEST, FARTHEST), (PLACES - 1, 0))
    given = [{"scheme": scheme, "key": key, "distance": distance} for key, distance in places]
    assert len(list(on_paper(NAME, given, high=520))) == 3


def test_no_word_is_drawn_beyond_the_text() -> None:
    state = complete(FIGURES[NAME], {"key": 30, "distance": 10})
    with pytest.raises(ValueError, match="distance=10; expected at most 9 with key=30"):
        drawing(state, values(**state))
