"""The live figure "mask-lab": equal to the library's masks and attention, and its claims hold."""

import json
import re
from contextlib import nullcontext

import pytest
import torch
from live_v8 import agree, caught, difference, engine

from transformer_book.live.mask_lab import N, drawing, say, values
from transformer_book.mistakes import mistake
from transformer_lib.layers import attention, masks

NAME = "mask-lab"
START = {
    "causal": True, "window": 0, "prefix": 0, "padding": "end", "pads": 2,
    "mistake": "none", "layers": 2, "cells": "",
}  # fmt: skip
BARE = START | {"padding": "none"}


def test_the_figure_computes_what_the_library_does():
    agree(NAME, 60)


EDGES = [
    {"padding": "start"},  # rows without a key
    {"padding": "start", "pads": 6, "window": 1, "layers": 6},
    {"prefix": 3, "layers": 3},
    {"prefix": 8, "padding": "none"},
    {"causal": False, "prefix": 4},
    {"causal": False, "padding": "none"},
    {"mistake": "next"},
    {"mistake": "next", "causal": False},  # changes nothing
    {"mistake": "next", "prefix": 3, "window": 2, "layers": 1},
    {"mistake": "late"},
    {"mistake": "late", "causal": False, "padding": "none"},  # changes nothing
    {"mistake": "late", "padding": "start"},
    {"mistake": "late", "causal": False, "padding": "none", "cells": "2" * N},
    {"mistake": "queries"},
    {"mistake": "queries", "padding": "start"},
    {"mistake": "queries", "padding": "none"},  # changes nothing
    {"cells": "01"},  # one cell of the future
    {"cells": "1" * N * N},
    {"causal": False, "padding": "none", "cells": "2" * N * N, "layers": 6},
    {"cells": "21" * 32},
]


def test_at_the_edges():
    v8 = engine(NAME)
    for edge in EDGES:
        state = START | edge
        expected = values(**state)
        assert not difference(v8.values(NAME, state), expected), state
        assert v8.say(NAME, state) == say(state, expected), state


def test_masks_are_those_of_the_chapter():
    for n in range(1, 7):
        padded = masks.padding_mask(torch.tensor([N - n]), N)[0, 0] & masks.causal_mask(N)
        assert values(**START | {"pads": n})["mask"] == padded.int().tolist()
    for n in range(N + 1):
        prefix = masks.prefix_mask(torch.tensor([n]), N)[0, 0].int().tolist()
        assert values(**BARE | {"prefix": n})["mask"] == prefix
    full = torch.ones(N, N, dtype=torch.int)
    assert values(**BARE | {"causal": False, "prefix": 5})["mask"] == full.tolist()
    turned = values(**BARE | {"cells": "01"})
    assert turned["mask"][0] == [1, 1, 0, 0, 0, 0, 0, 0]
    assert sum(map(sum, turned["wrong"])) == 1


@pytest.mark.parametrize("edge", EDGES)
def test_what_is_heard_is_what_gradients_reach(edge):
    """Layers of attention with a residual connection, from the library, and their derivatives."""
    state = START | edge
    found = values(**state)
    mask, late = torch.tensor(found["mask"]) > 0, state["mistake"] == "late"
    torch.manual_seed(0)
    width = 6
    maps = torch.randn(state["layers"], 3, width, width, dtype=torch.float64) / width**0.5

    def stack(x):
        with mistake("mask-after-softmax") if late else nullcontext():
            for q, k, v in maps:
                x = x + attention.attention(x @ q, x @ k, x @ v, mask)[0]
        return x

    slopes = torch.func.jacrev(stack)(torch.randn(N, width, dtype=torch.float64))  # T D T D
    moved = slopes.abs().amax(dim=(1, 3))
    assert (moved > 1e-12).int().tolist() == found["heard"]


def test_layers_multiply():
    for layers in range(1, 7):
        deep = BARE | {"layers": layers}
        assert values(**deep)["heard"] == masks.causal_mask(N).int().tolist()
        for window in range(1, N + 1):
            far = values(**deep | {"window": window})["counts"][-1]
            assert far == min(N, layers * (window - 1) + 1)
        slip = values(**deep | {"mistake": "next"})
        assert slip["counts"][0] == 1 + layers
        assert slip["leaks"] == sum(min(layers, N - 1 - i) for i in range(N))


def test_a_prefix_is_no_leak():
    found = values(**BARE | {"prefix": 3})
    assert found["ahead"] == 3
    assert found["leaks"] == 0
    assert "only the prefix hears ahead" in say(BARE | {"prefix": 3}, found)


def test_rows_without_a_key_are_zero():
    found = values(**START | {"padding": "start"})
    assert found["empty"] == [0, 1]
    assert found["sums"] == pytest.approx([0, 0] + 6 * [1])
    assert "rows 0, 1 have no key" in say(START | {"padding": "start"}, found)


@pytest.mark.parametrize("change", ["next", "late", "queries"])
def test_a_mistake_with_nothing_to_spoil_says_so(change):
    state = BARE | {"causal": False, "mistake": change}
    found = values(**state)
    assert found == values(**state | {"mistake": "none"})
    assert "the mistake changes nothing here" in say(state, found)


def test_a_click_turns_a_cell_over():
    v8 = engine(NAME)
    v8.run("""
      var state = Live.start(Live.figures["mask-lab"]), pick = null;
      var part = {
        heat: (options) => { pick = pick || options.onpick; return {}; },
        html: () => ({}), columns: () => ({}), titled: () => ({ style: {} }),
        svg: () => ({}), drawing: () => ({ appendChild: (node) => node }), colour: () => "",
        isNarrow: () => false,
      };
      var figure = { state, set: (changes) => Object.assign(state, changes), released: () => {} };
      Live.figures["mask-lab"].build(part, figure);
      var after = (...cells) => { cells.forEach((cell) => pick(...cell)); return state.cells; };
    """)
    for cells in ([[0, 3]], [[1, 0]], [[0, 3], [1, 0]], [[7, 7]], [[7, 7]]):
        before = values(**BARE | {"cells": v8.eval("state.cells")})["mask"]
        after = values(**BARE | {"cells": v8.eval(f"after(...{json.dumps(cells)})")})["mask"]
        pairs = [[i, j] for i in range(N) for j in range(N) if before[i][j] != after[i][j]]
        assert pairs == cells
    assert v8.eval("state.cells") == ""
    v8.eval("after([2, 7], [7, 2])")  # allowed against the rule, and forbidden against it
    for causal in (False, True):
        v8.eval(f"state.causal = {json.dumps(causal)}")
        mask = v8.values(NAME, v8.eval("state"))["mask"]
        assert (mask[2][7], mask[7][2]) == (1, 0)  # what was set by hand stays as it was set


DAMAGES = {
    "off by one": ('=== "next" ? 1 : 0', '=== "next" ? 0 : -1'),
    "a triangle of the past without itself": ("j <= i + ahead", "j < i + ahead"),
    "queries and keys swapped": ("j <= i + ahead", "i <= j + ahead"),
    "the prefix one too long": ("j < prefix", "j <= prefix"),
    "the prefix by its queries": ("j < prefix", "i < prefix"),
    "the prefix without causal": ("!causal || j <= i + ahead", "j <= i + ahead"),
    "the window one too wide": ("Math.abs(i - j) < window", "Math.abs(i - j) <= window"),
    "the window to one side": ("Math.abs(i - j) < window", "i - j < window"),
    "padding one too short": ("at < N - pads", "at <= N - pads"),
    "padding at the wrong end": ("at >= pads", "at < N - pads"),
    "padding on the queries": ('mistake === "queries" ? i : j', "i"),
    "a mistake that is none": ('mistake === "queries" ? i : j', "j"),
    "cells by column": ("cells[N * i + j]", "cells[N * j + i]"),
    "zero in place of minus infinity": ("score : -Infinity", "score : 0"),
    "the scores of the row before": ("scores.slice(N * i, N * i + N)", "scores.slice(0, N)"),
    "always after the softmax": ("if (late) return", "if (true) return"),
    "no residual connection": ("mask[i][j] || i === j ||", "mask[i][j] ||"),
    "no leak through the denominator": (" || (late && mask[i].includes(1))", ""),
    "heard a layer late": ("step[i][j]) + 1),", "step[i][j]) + 2),"),
    "an empty row hears all": ("late && mask[i].includes(1)", "late"),
    "one layer too many": ("layer <= layers", "layer <= layers + 1"),
    "only neighbours of neighbours": ("seen && before[k][j]", "seen && once[k][j]"),
    "rows for columns": ("before[k][j]", "before[j][k]"),
    "the diagonal taken for the future": ("row.slice(i + 1)", "row.slice(i)"),
    "what was meant is forgotten": ("heard[i][j] && !wanted[i][j]", "heard[i][j]"),
    "padding asks too": ("const onPads = real.map", "const onPads = PLACES.map"),
    "other scores": ("const SEED = 5", "const SEED = 6"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_noticed(name):
    caught(NAME, "mask_lab.js", *DAMAGES[name])


def test_what_readers_are_told_to_see():
    definition = engine(NAME).definition(NAME)
    start = {name: one["start"] for name, one in definition["state"].items()}
    # The page asks for a cell and more layers, nothing else.
    assert start == BARE | {"layers": 1, "focus": "4"}
    tries = definition["tries"]
    cell, late, axis = (start | one["set"] for one in tries)
    _, n_tries, n_controls = definition["more"]
    shown = list(definition["state"])[:n_controls]
    assert (n_tries, shown) == (1, ["causal", "layers", "focus"])
    assert set(tries[0]["set"]) <= {*shown, "cells"}  # nothing that is folded is needed for it

    turned = {"cells": "0" * (N - 1) + "1"}  # "we" looks at "night"
    assert cell == start | turned | {"layers": 3, "focus": "3"}
    assert [values(**cell | {"layers": n})["leaks"] for n in (1, 2, 3)] == [1, 13, 28]
    assert values(**cell)["counts"] == [8] * 8

    found = values(**late)
    right = values(**late | {"mistake": "none"})
    assert found["mask"] == right["mask"]
    assert sum(map(sum, found["wrong"])) == 0
    hidden = torch.tensor(found["mask"]) == 0
    assert (torch.tensor(found["weights"])[hidden] == 0).all()
    assert max(found["sums"]) < 0.95
    assert late["layers"] == 1
    assert found["counts"] == [8] * 8

    found = values(**axis)
    assert not axis["causal"]
    assert found["empty"] == [6, 7]
    assert f"{found['onPads']:.2f} " in tries[2]["see"]  # as the words below say it
    assert values(**axis | {"mistake": "none"})["onPads"] == 0


def test_the_words_count_what_the_listener_hears():
    for focus, heard in (("0", "we 0 has heard of 1 of the 8"), ("4", "home 4 has heard of 5")):
        state = BARE | {"layers": 1, "focus": focus}
        assert heard in say(state, values(**state))


def test_the_static_picture_is_readable():
    for state in (START, START | {"mistake": "late"}):
        body, width, height = drawing(state, values(**state))
        assert width <= 680
        assert height < 300
        assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', body)) >= 12
    assert body.count('stroke-width="2.5"') == 29  # what is heard and not meant is outlined
