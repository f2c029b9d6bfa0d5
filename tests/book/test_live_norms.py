"""The live figure of chapter 9: its numbers are the library's, and its claims are true."""

import json
import math
from typing import Any

import pytest
from live_v8 import Engine, agree, caught, engine, library, on_paper, tried

from transformer_book.live.wording import short

NAME, FILE = "norms", "norms.js"
BACK = "return path ? plus(ofSum, ofBranch) : ofBranch"
THROUGH = "gradient[i] - mean - hat[i] * along"
RELU = "Live.tensor.relu(Live.tensor.matmulT(read.hat, up, TOKENS, D, F))"
AFTER = "const after = order"
AROUND = "const after = order === 'post' && path ? { hat: plus(x, norm(found).hat) } : order"
DAMAGES = {
    "mean not subtracted": (
        "hat[start + i] = (x[start + i] - mean)",
        "hat[start + i] = x[start + i]",
    ),
    "another eps": ("EPS = 1e-5", "EPS = 1e-6"),
    "eps outside the root": ("Math.sqrt(variance + EPS)", "(Math.sqrt(variance) + EPS)"),
    "the root forgotten": ("Math.sqrt(variance + EPS)", "(variance + EPS)"),
    "divided by D - 1": (
        "(x[start + i] - mean) ** 2 / D;",
        "(x[start + i] - mean) ** 2 / (D - 1);",
    ),
    "norm on the wrong side": ('order === "pre" ? norm(x)', 'order === "post" ? norm(x)'),
    "pre-norm after the sum, too": ('order === "post" ? norm(sum)', 'order !== "none" ? norm(sum)'),
    "post-norm on the branch": (AFTER, AROUND),
    "the stream goes on normalised": ("path ? plus(x, found)", "path ? plus(read.hat, found)"),
    "always a residual path": ("path ? plus(x, found) : found", "plus(x, found)"),
    "gradient without the skip": (BACK, "return ofBranch"),
    "gradient of the straight path alone": (BACK, "return path ? ofSum : ofBranch"),
    "no norm on the way back": ("after.by ? normBack(after, gradient) : gradient", "gradient"),
    "pre-norm's branch not divided": ("read.by ? normBack(read, ofRead) : ofRead", "ofRead"),
    "a norm that only divides gradients": (THROUGH, "gradient[i]"),
    "the mean's direction kept": (THROUGH, "gradient[i] - hat[i] * along"),
    "ReLU passes everything back": ("hidden[i] > 0 ? own * each : 0", "own * each"),
    "no ReLU": (RELU, "Live.tensor.matmulT(read.hat, up, TOKENS, D, F)"),
    "shares that do not add up": ("Math.sqrt(1 - share ** 2)", "(1 - share)"),
    "alike by token": ("alike[i % D]);", "alike[Math.floor(i / TOKENS)]);"),
    "the final norm forgotten": (
        "last.by ? normBack(last, direction) : direction",
        "direction",
    ),
    "the end before its norm": ("written, last.hat]", "written, stream.at(-1)]"),
    "f reads the stream": ("[steps.at(-1).read.hat,", "[stream.at(-2),"),
    "the first write": ("written = found;", "written ??= found;"),
    "a block too few": ("blocks.slice(0, state.depth)", "blocks.slice(0, state.depth - 1)"),
    "blocks upside down": ("steps.toReversed()", "steps"),
    "length and not rms": (
        "Math.sqrt(Live.tensor.dot(x, x) / x.length)",
        "Math.sqrt(Live.tensor.dot(x, x))",
    ),
    "weights half as large": ("Math.sqrt(2 / D)", "Math.sqrt(1 / D)"),
    "one draw for all": ("Live.tensor.normals(draw,", "Live.tensor.normals(1,"),
    "own part with the mean": ("each - mean[i % D]", "each"),
    "another order in words": (
        "stream, gradient, end, own } = found[order]",
        "stream, gradient, end, own } = found.pre",
    ),
}


@pytest.fixture(scope="module")
def v8() -> Engine:
    return engine(NAME)


def test_numbers_and_words_are_the_librarys(v8: Engine) -> None:
    agree(NAME, 40, v8)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_is_caught(damage: str) -> None:
    old, new = DAMAGES[damage]
    caught(NAME, FILE, old, new, count=8)


# --- what readers are told to see -----------------------------------------------------------------


def ends(found: dict[str, Any], order: str) -> tuple[str, str]:
    """The stream's length at the end, and the gradient's at the bottom."""
    return short(10 ** found[order]["stream"][-1]), short(10 ** found[order]["gradient"][0])


def test_without_a_norm_the_stream_explodes() -> None:
    for draw in range(1, 10):
        found = library(NAME, draw=draw)["none"]
        assert found["stream"][-1] > 3  # a thousand times as long
        assert found["gradient"][0] > 3


def test_without_the_residual_path_it_dies() -> None:
    found, see = tried(NAME, 0)
    assert f": {ends(found, 'none')[0]} of it" in see
    for draw in range(1, 10):
        assert library(NAME, path=False, draw=draw)["none"]["stream"][-1] < -8
        assert library(NAME, path=False, draw=draw)["none"]["gradient"][0] < -7
        large = library(NAME, path=False, write=1.5, draw=draw)["none"]
        assert large["stream"][-1] > 5
        assert large["gradient"][0] > 5


def test_post_norm_holds_the_stream() -> None:
    found, see = tried(NAME, 1)
    assert f"{ends(found, 'post')[1]} of it arrives" in see
    assert found["post"]["stream"] == pytest.approx([0] * 49, abs=1e-4)


def test_pre_norm_grows_slowly() -> None:
    found, see = tried(NAME, 2)
    stream, gradient = ends(found, "pre")
    assert f"grows slowly, to {stream}." in see
    assert f"as well, to {gradient}:" in see
    law = math.log10(math.sqrt(1 + 48 * 0.7**2))
    assert found["pre"]["stream"][-1] == pytest.approx(law, abs=0.15)


def test_writes_that_are_alike_kill_post_norms_gradient() -> None:
    found, see = tried(NAME, 3)
    assert f"only {ends(found, 'post')[1]} of the gradient" in see
    assert f"With pre-norm {ends(found, 'pre')[1]} arrives" in see
    for draw in range(1, 10):
        alike = library(NAME, order="post", alike=0.9, draw=draw)
        assert alike["post"]["gradient"][0] < -2.5
        assert alike["post"]["own"] < 0.02
        assert alike["pre"]["gradient"][0] > 0


def test_a_norm_at_the_end_gives_the_length_that_leaves_the_stack(v8: Engine) -> None:
    state = {"order": "pre", "final": True}
    found = library(NAME, **state)["pre"]
    assert short(10 ** found["stream"][-1]) == "5.10"  # the stream before it stays as it is
    assert short(10 ** found["end"]) == "1.00"
    said = v8.say(NAME, state)
    assert "from 1 to 5.10 in 48 blocks, the norm at the end makes it 1.00, and" in said
    assert "the norm at the end" not in v8.say(NAME, {"order": "pre"})
    (body,) = on_paper(NAME, [state])
    assert "length of the stream: 1.00 → 5.10 → 1.00" in body


def test_only_with_norms_does_f_read_length_1() -> None:
    for draw in range(1, 10):
        for depth in (2, 16, 64):
            found = library(NAME, depth=depth, draw=draw)
            for order in ("post", "pre"):
                assert found[order]["reads"] == pytest.approx(0, abs=1e-4)
            assert found["none"]["reads"] == pytest.approx(found["none"]["stream"][-2])
        assert found["none"]["reads"] > 4


def aside(v8: Engine, before: dict[str, Any], now: dict[str, Any]) -> str:
    """What stands beside the picture after a change."""
    given = ", ".join(f"_state({json.dumps(NAME)}, {json.dumps(each)})" for each in (before, now))
    v8.run(f"var [_before, _now] = [{given}], _norms = Live.figures[{json.dumps(NAME)}];")
    return str(
        v8.eval(
            "_norms.aside(_now, _norms.values(_now), "
            "{ state: _before, values: _norms.values(_before) })"
        )
    )


def test_what_a_switch_of_the_order_changed_is_said_with_the_librarys_numbers(v8: Engine) -> None:
    orders = {"none": "no norm", "post": "post-norm", "pre": "pre-norm"}
    for settings in ({}, {"alike": 0.9}, {"path": False, "depth": 20, "draw": 3}):
        found = library(NAME, **settings)
        for before, old in orders.items():
            for now, new in orders.items():
                if now == before:
                    continue
                said = aside(v8, {**settings, "order": before}, {**settings, "order": now})
                numbers = [ends(found, each) for each in (now, before)]
                assert said.startswith(
                    f"{new.capitalize()} instead of {old}: "
                    f"length {numbers[0][0]} at the end (before: {numbers[1][0]}), "
                    f"gradient {numbers[0][1]} at the bottom (before: {numbers[1][1]}). "
                )
    said = aside(v8, {"order": "pre"}, {"order": "pre", "final": True})
    assert said.startswith("Length 1.00 at the end (before: 5.10), gradient 0.923")
    assert said.endswith("The new norm divides the stream, and the gradient as well.")


def test_the_picture_for_paper() -> None:
    given: list[dict[str, Any]] = [
        {}, {"path": False}, {"write": 2, "depth": 64}, {"depth": 2, "order": "pre", "final": True},
    ]  # fmt: skip
    for body in on_paper(NAME, given):
        assert body.count("<path") >= 6 + 10
