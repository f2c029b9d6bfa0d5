"""The live figure of four numbers: its norms are the library's, and its claims are true."""

import re
from typing import Any

import pytest
from live_v8 import Engine, agree, caught, engine, library, on_paper, tried

NAME = "four-numbers"
DAMAGES = {
    "mean not subtracted": (
        "tensor.js",
        "weight[i] * (x[start + i] - mean) * scale",
        "weight[i] * x[start + i] * scale",
    ),
    "RMSNorm subtracts too": (
        "four_numbers.js",
        "root: Live.tensor.rmsNorm(x, ones)",
        "root: Live.tensor.rmsNorm(x.map((each) => each - mean), ones)",
    ),
    "the root forgotten": (
        "tensor.js",
        "1 / Math.sqrt(variance + eps)",
        "1 / (variance + eps)",
    ),
    "RMSNorm's root forgotten": (
        "tensor.js",
        "1 / Math.sqrt(meanSquare + eps)",
        "1 / (meanSquare + eps)",
    ),
    "another eps": (
        "four_numbers.js",
        "layer: Live.tensor.layerNorm(x, ones)",
        "layer: Live.tensor.layerNorm(x, ones, null, 1e-3)",
    ),
    "divided by three": (
        "four_numbers.js",
        "(each - mean) ** 2 / x.length",
        "(each - mean) ** 2 / (x.length - 1)",
    ),
    "the two norms swapped": (
        "four_numbers.js",
        "layer: Live.tensor.layerNorm(x, ones), root: Live.tensor.rmsNorm(x, ones)",
        "root: Live.tensor.layerNorm(x, ones), layer: Live.tensor.rmsNorm(x, ones)",
    ),
    "added to none": ("four_numbers.js", "state[name] + state.add);\n\n", "state[name]);\n\n"),
    "a sum for a mean": ("four_numbers.js", "each ** 2 / x.length", "each ** 2"),
    "a number too few": (
        "four_numbers.js",
        "NAMES.map((name) => state[name] + state.add);",
        "NAMES.slice(1).map((name) => state[name] + state.add);",
    ),
}


@pytest.fixture(scope="module")
def v8() -> Engine:
    return engine(NAME)


def test_numbers_and_words_are_the_librarys(v8: Engine) -> None:
    agree(NAME, 60, v8)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_is_caught(damage: str) -> None:
    caught(NAME, *DAMAGES[damage], count=12)


def test_what_is_added_to_all_is_forgotten_by_layer_norm_alone() -> None:
    found, see = tried(NAME, 0)
    assert found["layer"] == pytest.approx(library(NAME)["layer"])
    assert found["mean"] == library(NAME)["mean"] + 5
    assert re.findall(r"\d\.\d\d", see) == [f"{each:.2f}" for each in found["root"]]
    assert f"{library(NAME)['root'][0]:.2f}" not in see


def test_the_scale_is_forgotten_by_both() -> None:
    found, _ = tried(NAME, 1)
    for name in ("layer", "root"):
        assert found[name] == pytest.approx(library(NAME)[name], abs=1e-4)


def test_four_equal_numbers() -> None:
    found, see = tried(NAME, 2)
    assert found["layer"] == [0, 0, 0, 0]
    assert "1.00 four times" in see
    assert found["root"] == pytest.approx([1, 1, 1, 1])


def test_one_large_number() -> None:
    found, see = tried(NAME, 3)
    assert f"gives it {found['layer'][3]:.2f}" in see
    assert max(found["layer"][:3]) - min(found["layer"][:3]) < 0.25


def test_the_picture_for_paper() -> None:
    given: list[dict[str, Any]] = [{}, {"first": -10, "fourth": 25}, {"first": 0, "second": 0}]
    for body in on_paper(NAME, given):
        assert body.count("Z") == 12
