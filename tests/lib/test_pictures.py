"""Pictures: well-formed, the same on every run, described, and changed when the data change."""

import math
import re
import xml.etree.ElementTree as ET
from typing import get_args

import matplotlib as mpl
import pytest
import torch

from transformer_book.figures import (
    bus,
    diagrams,
    landscapes,
    networks,
    panels,
    plot_style,
    plots,
    sketches,
    unrolled,
)
from transformer_book.figures.pictures import INK, finish_svg
from transformer_lib.core.config import Position, TransformerConfig

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ["the", "cat"]


def heatmap(corner=0.25):
    return plots.heatmap([[corner, 0.75], [0.5, 0.5]], rows=NAMES, columns=NAMES, title="Weights")


def curve(middle=2.0):
    return plots.lines(
        {"a": ([1, 2, 3], [1, middle, 3]), "b": ([1, 3], [3, 1])},
        title="Curves",
        x_label="x",
        y_label="y",
    )


PICTURES = {
    "heatmap": heatmap,
    "two heat maps": lambda: plots.heatmap(
        {"left": [[0.1, -0.2]], "right": [[0.3, 0.4]]},
        rows=["cat"],
        columns=NAMES,
        title="Two",
        signed=True,
    ),
    "lines": curve,
    "log lines": lambda: plots.lines(
        {"a": ([1, 10], [1e-3, 1])}, title="L", x_label="x", y_label="y", log_x=True, log_y=True
    ),
    "bars": lambda: plots.bars({"a": [0.5, 0.5]}, names=NAMES, title="Bars", y_label="w"),
    "dots": lambda: plots.dots(
        {"a": [[0.5, 0.1], [-1, 2]], "b": [[1, 1], [2, 3]]}, names=NAMES, title="Dots", y_label="w"
    ),
    "name_map": lambda: plots.name_map(
        {"a": (0.5, 0.3, "query"), "e": (0.5, 0.3, "query"), "b": (-0.4, 0.0, "key")}, title="M"
    ),
    "plane": lambda: plots.plane(
        {"q": (1.0, 2.0, "query")},
        {"o": (-1.0, -0.5, "weight")},
        title="Plane",
        hull=[(0, 0), (1, 0), (0, 1)],
    ),
    "grid": lambda: panels.heatmap_grid(
        {f"head {n}": [[n / 9, -0.2], [0.3, 0.4]] for n in range(6)},
        rows=NAMES,
        columns=NAMES,
        title="Grid",
        n_columns=4,
        signed=True,
    ),
    "hatched grid": lambda: panels.heatmap_grid(
        {"one": [[0.1, 0.9]], "two": [[0.2, 0.3]]},
        rows=["a"],
        columns=["b", "c"],
        title="Hatched",
        hatched={"one": [[False, True]]},
    ),
    "grid of many": lambda: panels.heatmap_grid(
        {"one": torch.eye(20)}, rows=["a"] * 20, columns=["b"] * 20, title="Many"
    ),
    "masks": lambda: panels.mask_grid(
        {f"mask {n}": [[True, False], [False, False]] for n in range(5)},
        rows=NAMES,
        columns=NAMES,
        title="Masks",
    ),
    "levels": lambda: landscapes.level_maps(
        {f"bowl {n}": [[2 * n, n, 2 * n], [n, 0, n], [9_999, n, 2 * n]] for n in (1, 2, 3, 4)},
        reach=1,
        levels=[0.5, 1.5],
        title="Levels",
    ),
    "thinned": lambda: sketches.thinned_network(
        [3, 2], [[True, False, True], [True, True]], title="Thinned"
    ),
    "panels": lambda: panels.line_panels(
        {"up": {"a": ([1, 2], [1, 9])}, "down": {"a": ([1, 2], [3, 1]), "b": ([1], [2])}},
        title="Panels",
        x_label="x",
        y_label=["y", "z"],
        log_x=True,
        log_y=[True, False],
        y_from_zero=True,
    ),
    "ranges": lambda: panels.sorted_ranges(
        {"m": {"a": [(1, 0, 2), (-3, -4, -2)], "b": [(9, 8, 30), (0, 0, 0)]}},
        title="Ranges",
        x_label="x",
        y_label="y",
    ),
    "heads": lambda: sketches.heads_in_colour(n_tokens=3, d_model=8, n_heads=4),
    "split": lambda: sketches.split_right_and_wrong(n_tokens=3, n_heads=4),
    "positions": sketches.where_positions_enter,
    "block": sketches.inside_a_block,
    "two vectors": lambda: sketches.one_word_two_vectors(
        "bank", before=[2, 0], after={"river bank": [2, 1.5]}, names=["bank", "water"]
    ),
    "bus": bus.residual_bus,
    "routing": lambda: networks.routing(
        ["the", "cat", "the"], [0, 1, 0], n_experts=3, capacity=1, title="Routing"
    ),
    "histograms": lambda: panels.histograms(
        {"a": [0.0, 0.5, 2.0], "b": [1.0]}, bins=(0, 4, 8), title="Shares", x_label="x"
    ),
    "timeline": lambda: sketches.timeline([(1997, "LSTM"), (2017, "T")], title="Time"),
    "tokens": lambda: sketches.token_rows(
        {"a": [" word"] * 20, "b": ["x", "<pad>"]}, title="Tokens"
    ),
    "words": lambda: sketches.token_rows({"a": ["x", "y"]}, title="Words", unit="words"),
    "across": lambda: sketches.looking_across(["a"], ["x", "y"], [[0.25, 0.75]], title="Across"),
    "two stacks": lambda: sketches.two_stacks([1, 1]),
    "the loop": lambda: sketches.two_stacks([1, 1], writes=True),
    "storyboard": lambda: sketches.storyboard("ab", [("", "B", [0.1, 0.9])], title="Story"),
    "chains": lambda: unrolled.word_chains(
        ["a", "b", "c"], {"RNN": (True, False), "attention": (False, True)}, title="Chains"
    ),
    "one vector": lambda: unrolled.encoder_decoder("ab", "BA", attention=False, title="One"),
    "all states": lambda: unrolled.encoder_decoder("ab", "BA", attention=True, title="All"),
    "LSTM": unrolled.lstm_cell,
    "attention": lambda: diagrams.attention_diagram(n_queries=3, n_keys=5, d_head=4, d_value=2),
    "path": lambda: diagrams.tensor_path([("ids", "B T", (2, 6))], title="Path"),
    "encoder block": lambda: diagrams.block_diagram(TransformerConfig()),
    "decoder block": lambda: diagrams.block_diagram(
        TransformerConfig(norm_position="pre", n_kv_heads=2), decoder=True
    ),
    "architecture": lambda: diagrams.architecture_diagram(TransformerConfig()),
}


@pytest.mark.parametrize("name", PICTURES)
class TestEveryPicture:
    def test_is_well_formed_and_described(self, name):
        picture = PICTURES[name]()
        root = ET.fromstring(picture.svg)
        assert root.get("role") == "img"
        assert root.find(f"{SVG}title").text == picture.title
        assert root.find(f"{SVG}desc").text == picture.summary
        assert len(picture.summary) > len(picture.title)
        assert picture._repr_mimebundle_() == {
            "image/svg+xml": picture.svg,
            "text/plain": picture.summary,
        }

    def test_is_the_same_every_time_whatever_the_readers_settings(self, name):
        first = PICTURES[name]().svg
        with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
            assert PICTURES[name]().svg == first

    def test_has_real_text_in_the_books_font_and_rounded_numbers(self, name):
        svg = PICTURES[name]().svg
        texts = ET.fromstring(svg).iter(f"{SVG}text")
        assert any(INK in ET.tostring(text, encoding="unicode") for text in texts)
        assert "DejaVu Sans" not in svg.split("viewBox")[1].split(">", 1)[1]
        assert not re.search(r'="[^"]*\d\.\d{3,}', svg)

    def test_does_not_restyle_the_page_or_load_anything(self, name):
        svg = PICTURES[name]().svg
        assert "<style" not in svg
        assert "<image" not in svg
        assert not re.search(r'href="(?!#)', svg)


def test_more_series_of_dots_than_styles_begin_again():
    series = {f"s{n}": [[n, n]] for n in range(len(plots.SERIES_STYLES) + 1)}
    found = plots.dots(series, names=["x"], title="T", y_label="y", decimals=0)
    assert found.summary.endswith(f"s{len(series) - 1}: x {len(series) - 1} to {len(series) - 1}.")


def test_changed_data_change_the_summary_or_the_drawing():
    assert heatmap(0.25).summary != heatmap(0.35).summary
    assert curve(2.0).summary == curve(2.5).summary  # neither an end nor an extreme ...
    assert curve(2.0).svg != curve(2.5).svg  # ... but the drawing shows it


def test_heatmap_lists_every_value_and_large_ones_their_range():
    assert heatmap().summary == (
        "Weights: heat map, query by key. the: the 0.25, cat 0.75. cat: the 0.50, cat 0.50."
    )
    names = [str(i) for i in range(9)]
    big = plots.heatmap(
        [[i + j for i in range(9)] for j in range(9)], rows=names, columns=names, title="Sum"
    )
    assert big.summary == (
        "Sum: heat map, query by key. 9 by 9 values from 0.00 to 16.00, mean 8.00."
    )


def test_a_marked_place_is_drawn_in_every_panel_and_told():
    curves = {"up": {"a": ([1, 3], [1, 2])}, "down": {"a": ([1, 3], [2, 1])}}
    plain, marked = (
        panels.line_panels(curves, title="t", x_label="x", y_label="y", x_mark=mark)
        for mark in (None, 2)
    )
    assert marked.summary == f"{plain.summary} A vertical line at 2."
    assert marked.svg.count("<path") == plain.svg.count("<path") + 2


def test_text_on_a_cell_contrasts_with_the_cell():
    svg = plots.heatmap([[0.0, 1.0]], rows=["r"], columns=["a", "b"], title="W").svg
    assert re.search(rf"fill: {plot_style.ON_LIGHT}[^>]*>0.00<", svg)
    assert re.search(rf"fill: {plot_style.ON_DARK}[^>]*>1.00<", svg)


def test_tensors_with_gradients_and_low_precision_can_be_drawn():
    values = torch.tensor([[0.25, 0.75]], dtype=torch.bfloat16, requires_grad=True)
    picture = plots.heatmap(values, rows=["cat"], columns=NAMES, title="W")
    assert picture.summary == "W: heat map, query by key. cat: the 0.25, cat 0.75."


def test_minus_zero_is_never_written():
    svg = plots.heatmap([[-0.0001]], rows=["r"], columns=["c"], title="W", signed=True).svg
    assert ">0.00<" in svg


def drawn_axes(monkeypatch, values, names):
    """The axes of a figure of bars, as they were drawn."""
    figures = []
    picture_of = plots.picture_of
    monkeypatch.setattr(
        plots, "picture_of", lambda f, *a: (figures.append(f), picture_of(f, *a))[1]
    )
    plots.bars({"g": values}, names=names, title="Bars", y_label="w")
    return figures[0].axes[0]


@pytest.mark.parametrize("values", [[1.0, -2.0], [-1.0, -3.0], [0.0, 0.0], [2.0, 1.0]])
def test_bars_are_drawn_whole_whatever_their_sign(monkeypatch, values):
    low, high = drawn_axes(monkeypatch, values, NAMES).get_ylim()
    assert low <= min(0, *values)
    assert high >= max(0, *values)
    assert (low < 0) == (min(values) < 0)


def test_bars_of_one_name_stand_side_by_side(monkeypatch):
    axis = drawn_axes(monkeypatch, [1.0, 2.0], ["the", "the"])
    places = [bar.get_x() for bar in axis.patches]
    assert places[1] - places[0] == pytest.approx(1)
    assert [label.get_text() for label in axis.get_xticklabels()] == ["the", "the"]


def test_a_vector_of_zeros_can_be_drawn():
    assert plots.plane({"k": (0.0, 0.0, "key")}, title="P").summary == "P: arrows k (0.00, 0.00)."


def test_what_a_rounding_error_left_below_zero_is_drawn_as_zero():
    picture = plots.heatmap([[1.0, -1e-9]], rows=["r"], columns=NAMES, title="W")
    assert picture.summary == "W: heat map, query by key. r: the 1.00, cat 0.00."


def test_block_diagram_follows_the_configuration():
    post = diagrams.block_diagram(TransformerConfig()).summary
    pre = diagrams.block_diagram(TransformerConfig(norm_position="pre")).summary
    assert "self-attention, add, LayerNorm" in post
    assert "LayerNorm, self-attention, add" in pre
    svg = diagrams.block_diagram(TransformerConfig(d_ff=999, norm="rms")).svg
    assert "999" in svg
    assert "RMSNorm" in svg


def test_only_a_decoder_block_is_drawn_with_a_memory():
    for decoder in (False, True):
        drawn = diagrams.block_diagram(TransformerConfig(), decoder=decoder)
        assert ("memory" in drawn.svg) == ("memory" in drawn.summary) == decoder


@pytest.mark.parametrize(("place", "first"), [("pre", "LayerNorm"), ("post", "self-attention")])
def test_block_diagram_draws_the_norm_where_it_stands(place, first):
    svg = diagrams.block_diagram(TransformerConfig(norm_position=place)).svg
    heights = {
        text.text: float(text.get("y"))
        for text in reversed(list(ET.fromstring(svg).iter(f"{SVG}text")))  # the first one counts
    }
    assert min(("LayerNorm", "self-attention", "add"), key=heights.get) == first


def test_architecture_diagram_follows_the_configuration():
    svg = diagrams.architecture_diagram(TransformerConfig(n_layers=3, vocab_size=1234)).svg
    assert "× 3" in svg
    assert "1,234" in svg


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: finish_svg("t", " ", "", 1, 1), "summary is empty"),
        (lambda: finish_svg("", "s", "", 1, 1), "title is empty"),
        (
            lambda: plots.heatmap([[1.0]], rows=["a", "b"], columns=["c"], title="W"),
            r"'W' has shape \(1, 1\); expected .*\(2, 1\)",
        ),
        (
            lambda: plots.heatmap([[float("nan")]], rows=["a"], columns=["c"], title="W"),
            "expected finite numbers",
        ),
        (
            lambda: plots.lines({"a": ([1, 2], [1])}, title="t", x_label="x", y_label="y"),
            "'a' has x of shape",
        ),
        (lambda: plots.lines({"a": ([], [])}, title="t", x_label="x", y_label="y"), "at least one"),
        (lambda: diagrams.tensor_path([], title="t"), "steps is empty"),
        (lambda: diagrams.tensor_path([("x", "B T", (1,))], title="t"), "names 'B T' but has"),
        (lambda: panels.heatmap_grid({}, rows=[], columns=[], title="t"), "panels is empty"),
        (lambda: panels.mask_grid({}, rows=[], columns=[], title="t"), "masks is empty"),
        (lambda: panels.line_panels({}, title="t", x_label="x", y_label="y"), "panels is empty"),
        (
            lambda: panels.line_panels(
                {"a": {"b": ([1], [1])}}, title="t", x_label=["x", "y"], y_label="y"
            ),
            "x_label has 2 values; expected one for each of 1 panels",
        ),
        (
            lambda: panels.histograms({"a": [1]}, bins=(1, 1, 3), title="t", x_label="x"),
            r"bins=\(1, 1, 3\) must be",
        ),
        (
            lambda: panels.histograms({"a": []}, bins=(0, 1, 3), title="t", x_label="x"),
            r"samples\['a'\] is empty",
        ),
        (
            lambda: landscapes.level_maps({"a": [[1, 2]]}, reach=1, levels=[1], title="t"),
            r"'a' has shape \(1, 2\)",
        ),
        (
            lambda: landscapes.level_maps({"a": [[math.inf]]}, reach=1, levels=[1], title="t"),
            "not finite",
        ),
        (
            lambda: landscapes.level_maps({"a": [[1]]}, reach=1, levels=[2, 1], title="t"),
            r"levels=\[2, 1\] must go upwards",
        ),
        (
            lambda: landscapes.level_maps({}, reach=1, levels=[1], title="t"),
            "panels is empty; expected at least one panel",
        ),
        (
            lambda: landscapes.level_maps({"a": [[1]]}, reach=0, levels=[1], title="t"),
            "reach=0 must be a number above 0",
        ),
        (
            lambda: landscapes.level_maps(
                {"a": [[1]]}, reach=1, levels=[1], title="t", n_columns=0
            ),
            "n_columns=0 must be",
        ),
        (
            lambda: sketches.thinned_network([], [], title="t"),
            "sizes is empty; expected at least one layer",
        ),
        (
            lambda: sketches.thinned_network([2, 0], [[True, True], []], title="t"),
            r"sizes=\[2, 0\] must be 1 or more in each layer",
        ),
        (
            lambda: sketches.thinned_network([2], [[True]], title="t"),
            r"kept has layers of \[1\]",
        ),
        (lambda: sketches.timeline([(2, "b"), (1, "a")], title="t"), r"the years are \[2, 1\]"),
        (lambda: sketches.token_rows({"a": []}, title="t"), "at least one token"),
        (lambda: sketches.two_stacks([2, 2]), "encoder layers 0 to 1"),
        (lambda: sketches.looking_across([], ["x"], [], title="t"), "at least one token"),
        (
            lambda: sketches.looking_across(["a"], ["x"], [], title="t"),
            "weights has 0 rows; expected 1",
        ),
        (
            lambda: sketches.looking_across(["a"], ["x"], [[2.0]], title="t"),
            "a has the weight 2; expected numbers from 0 to 1",
        ),
        (lambda: sketches.storyboard("ab", [], title="t"), "at least one step"),
        (lambda: unrolled.word_chains([], {"a": (True, True)}, title="t"), "at least one word"),
        (lambda: unrolled.word_chains(["a"], {}, title="t"), "at least one network"),
        (
            lambda: unrolled.encoder_decoder("ab", "B", attention=True, title="t"),
            "must have two words or more",
        ),
    ],
)
def test_bad_input_gets_a_clear_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_chain_hands_its_states_on_and_attention_looks_at_all_of_them():
    rows = {"RNN": (True, False), "both": (True, True), "attention": (False, True)}
    for name, (chain, looks) in rows.items():
        svg = unrolled.word_chains("abcd", {name: rows[name]}, title="Four").svg
        heads = svg.count("Z")  # of arrows: one a word, and one from each state to the next
        assert heads == 4 + 3 * chain
        assert svg.count("<circle") == 3 * looks


@pytest.mark.parametrize(("attention", "lines"), [(False, 1), (True, 3)])
def test_without_attention_one_state_is_handed_over(attention, lines):
    svg = unrolled.encoder_decoder("abc", "CBA", attention=attention, title="Three").svg
    context = svg.count('stroke="#00735a" stroke-width="1.8"')  # the lines to and from it
    assert context == lines + (1 if attention else 3)


@pytest.mark.parametrize("position", get_args(Position))
def test_every_position_scheme_is_drawn_where_it_acts(position):
    svg = diagrams.architecture_diagram(TransformerConfig(position=position)).svg
    added = position in ("sinusoidal", "learned")
    assert (f"+ {position} positions" in svg) == added
    assert (", in attention" in svg) == (position in ("rope", "alibi", "t5"))


def test_names_at_the_same_place_are_moved_apart_and_told_where_they_were():
    points = {"a": (0.5, 0.3, "query"), "e": (0.5, 0.3, "query"), "b": (-0.5, 0.0, "key")}
    picture = plots.name_map(points, title="M")
    found = re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>([aeb])</text>', picture.svg)
    (ax, ay), (ex, ey), _ = [(float(x), float(y)) for x, y, _ in found]
    assert [name for _, _, name in found] == ["a", "e", "b"]
    assert math.hypot(ax - ex, ay - ey) > 9
    assert picture.summary == "M: a (0.5, 0.3), e (0.5, 0.3), b (-0.5, 0.0)."


def test_the_drawn_split_is_what_tensors_do():
    n_tokens, n_heads = 6, 8
    blocks = torch.arange(n_tokens * n_heads).view(n_tokens, n_heads)  # one number a block
    right = blocks.view(n_tokens, n_heads, 1).transpose(0, 1)  # (H, T, 1)
    wrong = blocks.view(n_heads, n_tokens, 1)
    said = sketches.split_right_and_wrong(n_tokens=n_tokens, n_heads=n_heads).summary
    for name, heads in {"right": right, "wrong": wrong}.items():
        owner = torch.empty(n_tokens * n_heads, dtype=torch.long)
        for head, own in enumerate(heads):
            owner[own.flatten()] = head
        rows = ["".join(map(str, row)) for row in owner.view(n_tokens, n_heads).tolist()]
        assert f"{name}: {'/'.join(rows)}" in said


def test_ranges_are_sorted_by_the_first_series_and_counted():
    heads = {"zero": [(1, 0.5, 2), (5, 4, 6), (0.1, -1, 1)], "mean": [(7, 6, 8)] * 3}
    said = panels.sorted_ranges({"m": heads}, title="t", x_label="x", y_label="y").summary
    assert "zero: 5.0 down to 0.1; 2 of 3 intervals above 0." in said
    assert "mean: 7.0 down to 7.0; 3 of 3 intervals above 0." in said
