"""What a reader gets for a mistake in the book's own tools: the exact message, row by row."""

import math

import pytest
import torch

from transformer_book import counting, laws, objectives, tasks
from transformer_book.figures import diagrams, networks, panels, plots, sketches
from transformer_lib.core.config import TransformerConfig

NAN, INF = math.nan, math.inf
LAW = laws.Law(E=1.0, A=100.0, B=400.0, alpha=0.5, beta=0.5)
RUNS = [1.0, 2.0, 3.0, 4.0, 5.0]
IDS = torch.tensor([[3, 4]])


def lines(x, y, **options):
    return lambda: plots.lines({"loss": (x, y)}, title="t", x_label="x", y_label="y", **options)


def bars(groups, names=("a", "b")):
    return lambda: plots.bars(groups, names=list(names), title="t", y_label="y")


def dots(series, names=("a", "b")):
    return lambda: plots.dots(series, names=list(names), title="t", y_label="y")


def heatmap(values, rows=("r",), columns=("c",)):
    return lambda: plots.heatmap(values, rows=list(rows), columns=list(columns), title="W")


def grid(values, **options):
    return lambda: panels.heatmap_grid(
        {"head": values}, rows=["r"], columns=["c"], title="t", **options
    )


def mask_grid(masks):
    return lambda: panels.mask_grid(masks, rows=["r"], columns=["c"], title="t")


def line_panels(found, **options):
    return lambda: panels.line_panels(found, title="t", x_label="x", y_label="y", **options)


def histograms(samples, bins=(0, 1, 2)):
    return lambda: panels.histograms(samples, bins=bins, title="t", x_label="x")


def plane(arrows, **options):
    return lambda: plots.plane(arrows, title="t", **options)


def storyboard(weights, columns="ab"):
    return lambda: sketches.storyboard(columns, [("", "B", weights)], title="t")


def attention_diagram(**sizes):
    usual = {"n_queries": 3, "n_keys": 3, "d_head": 4, "d_value": 4}
    return lambda: diagrams.attention_diagram(**usual | sizes)


def mask_tokens(ids=IDS, symbols=(3, 4), **options):
    return lambda: objectives.mask_tokens(ids, 2, symbols, **options)


def corrupt(spans, sentinels=(9, 8, 7)):
    return lambda: objectives.corrupt_spans([1, 2, 3], spans, sentinels)


def draw_spans(n=20, rate=0.3, mean_length=3.0):
    return lambda: objectives.draw_spans(n, rate=rate, mean_length=mean_length, seed=0)


FIGURES = [
    (lines([1, 2], [1, NAN]), "'loss' holds nan; expected finite numbers"),
    (lines([1, -INF], [1, 2]), "'loss' holds -inf; expected finite numbers"),
    (
        lines([0, 1], [1, 2], log_x=True),
        "'loss' holds x=0; expected numbers greater than 0 on a logarithmic axis",
    ),
    (
        lines([1, 2], [-0.5, 2], log_y=True),
        "'loss' holds y=-0.5; expected numbers greater than 0 on a logarithmic axis",
    ),
    (
        lambda: plots.lines({}, title="t", x_label="x", y_label="y"),
        "series is empty; expected at least one curve",
    ),
    (bars({}), "groups is empty; expected at least one group of bars"),
    (bars({"g": []}, names=()), "names is empty; expected at least one bar"),
    (bars({"g": [1, INF]}), "'g' holds inf; expected finite numbers"),
    (dots({}), "series is empty; expected at least one series"),
    (dots({"g": [[1], [INF]]}), "'g' holds inf; expected finite numbers"),
    (dots({"g": [[1, 2]]}), "'g' has shape (1, 2); expected 2 rows"),
    (
        bars({"g": [1, 2, 3]}),
        "'g' has shape (1, 3); expected one value for each name: (1, 2)",
    ),
    (heatmap({}), "values is empty; expected at least one panel"),
    (heatmap([], rows=()), "rows is empty; expected at least one name"),
    (heatmap([[]], columns=()), "columns is empty; expected at least one name"),
    (heatmap([[-1.0]]), "'W' holds -1; expected no negative values, or signed=True"),
    (grid([[-1.0]]), "'head' holds -1; expected no negative values, or signed=True"),
    (grid([[NAN]]), "'head' holds nan; expected finite numbers"),
    (grid([[1.0]], n_columns=0), "n_columns=0 must be a whole number of at least 1"),
    (mask_grid({}), "masks is empty; expected at least one panel"),
    (mask_grid({"causal": [[0.5]]}), "'causal' holds 0.5; expected True or False, or 1 or 0"),
    (mask_grid({"causal": [[-1e9]]}), "'causal' holds -1e+09; expected True or False, or 1 or 0"),
    (line_panels({}), "panels is empty; expected at least one panel"),
    (line_panels({"left": {}}), "panels['left'] is empty; expected at least one curve"),
    (line_panels({"left": {"a": ([1], [NAN])}}), "'a' holds nan; expected finite numbers"),
    (
        line_panels({"left": {"a": ([1], [1])}}, log_y=[True, False]),
        "log_y has 2 values; expected one for each of 1 panels",
    ),
    (
        line_panels({"left": {"a": ([1], [0])}}, log_y=True),
        "'a' holds y=0; expected numbers greater than 0 on a logarithmic axis",
    ),
    (histograms({}), "samples is empty; expected at least one sample"),
    (histograms({"a": []}), "samples['a'] is empty; expected at least one value"),
    (histograms({"a": [1, NAN]}), "'a' holds nan; expected finite numbers"),
    (
        histograms({"a": [1]}, bins=(0, INF, 2)),
        "bins=(0, inf, 2) must be (low, high, n) with low < high and n > 0",
    ),
    (plane({}), "arrows is empty; expected at least one arrow or point"),
    (
        lambda: plots.name_map({"a": (NAN, 1.0, "key")}, title="t"),
        "'a' holds nan; expected finite numbers",
    ),
    (plane({"k": (NAN, 1.0, "key")}), "'k' holds nan; expected finite numbers"),
    (
        plane({"k": (1.0, 1.0, "keys")}),
        "role='keys' must be one of 'query', 'key', 'value', 'weight', 'plain'",
    ),
    (
        plane({"k": (1.0, 1.0, "key")}, hull=[(0.0, INF)]),
        "'hull' holds inf; expected finite numbers",
    ),
]

DRAWINGS = [
    (attention_diagram(n_keys=-3), "n_keys=-3 must be a whole number of at least 1"),
    (
        lambda: diagrams.Canvas().box(0, 0, ["softmax"], role="weights"),
        "role='weights' must be one of 'query', 'key', 'value', 'weight', 'plain'",
    ),
    (lambda: diagrams.Canvas().arrow((0, 0)), "points=((0, 0),) must hold two points or more"),
    (
        lambda: sketches.timeline([], title="t"),
        "events is empty; expected at least one event",
    ),
    (lambda: sketches.token_rows({}, title="t"), "rows is empty; expected at least one row"),
    (
        lambda: sketches.token_rows({"ids": []}, title="t"),
        "rows['ids'] is empty; expected at least one token",
    ),
    (
        lambda: sketches.heads_in_colour(n_tokens=6, d_model=10, n_heads=4),
        "n_heads=4 must divide d_model=10",
    ),
    (
        lambda: networks.routing(["a", "b"], [0, 2], n_experts=2, capacity=1, title="t"),
        "chosen=[0, 2] must hold an expert from 0 to 1 for each of 2 tokens",
    ),
    (
        lambda: sketches.split_right_and_wrong(n_tokens=0, n_heads=4),
        "n_tokens=0 must be a whole number of at least 1",
    ),
    (
        lambda: panels.sorted_ranges({}, title="t", x_label="x", y_label="y"),
        "panels is empty; expected at least one panel",
    ),
    (
        lambda: panels.sorted_ranges({"m": {}}, title="t", x_label="x", y_label="y"),
        "panels['m'] is empty; expected at least one series",
    ),
    (lambda: sketches.two_stacks([]), "reads is empty; expected at least one layer"),
    (storyboard([], columns=""), "columns is empty; expected at least one token"),
    (
        lambda: sketches.storyboard("ab", [], title="t"),
        "steps is empty; expected at least one step",
    ),
    (storyboard([1.0]), "steps[0] has 1 weights; expected one for each of 2 columns"),
    (storyboard([NAN, 1.0]), "steps[0] has the weight nan; expected numbers from 0 to 1"),
    (storyboard([-1.0, 5.0]), "steps[0] has the weight -1; expected numbers from 0 to 1"),
]

NUMBERS = [
    (
        lambda: laws.fit_line([1, 1], [1, 2]),
        "x is 1 throughout; expected two different values or more",
    ),
    (lambda: laws.fit_line([1, NAN], [1, 2]), "x holds nan; expected finite numbers"),
    (lambda: laws.fit_line([1, 2], [1, INF]), "y holds inf; expected finite numbers"),
    (
        lambda: laws.fit_law(RUNS, RUNS, [*RUNS[:4], NAN]),
        "losses holds nan; expected finite numbers",
    ),
    (
        lambda: laws.fit_law([*RUNS[:4], 0], RUNS, RUNS),
        "parameters holds 0; expected numbers greater than 0",
    ),
    (
        lambda: laws.fit_law(RUNS, [7.0] * 5, RUNS),
        "tokens is 7 throughout; expected runs with two different values or more",
    ),
    (lambda: laws.fit_law(RUNS, RUNS, RUNS, huber=0), "huber=0 must be greater than 0"),
    (
        lambda: laws.resampled_laws(RUNS, RUNS, RUNS, n=0),
        "n=0 must be a whole number of at least 1",
    ),
    (lambda: laws.spread([]), "values is empty; expected at least one number"),
    (lambda: laws.spread([1, NAN]), "values holds nan; expected finite numbers"),
    (lambda: laws.spread([1, 2], part=90), "part=90 must be a number from 0 to 1"),
    (lambda: LAW.loss(0, 10), "parameters=0 must be greater than 0"),
    (lambda: LAW.loss(10, -1), "tokens=-1 must be greater than 0"),
    (lambda: LAW.best_size(0), "flops=0 must be greater than 0"),
    (
        lambda: counting.parameter_count(TransformerConfig(), "classifier", n_classes=-3),
        "n_classes=-3 must be a whole number of at least 0",
    ),
    (
        lambda: counting.kv_cache_bytes(TransformerConfig(), 1, -5),
        "length=-5 must be a whole number of at least 0",
    ),
    (
        lambda: counting.attention_matrix_bytes(TransformerConfig(), 1, -4),
        "n_queries=-4 must be a whole number of at least 1",
    ),
]

TASKS = [
    (lambda: tasks.copy_task(-2, 3, 3), "n_examples=-2 must be a whole number of at least 1"),
    (lambda: tasks.recall_task(0, 3, 3), "n_examples=0 must be a whole number of at least 1"),
    (
        lambda: tasks.answer_batch([]),
        "pairs is empty; expected at least one prompt with its answer",
    ),
    (
        lambda: tasks.answer_batch([([1], [2]), ([1, 2, 3], [])]),
        "pairs[1] has 3 tokens of prompt and 0 of answer; "
        "expected an answer, and two tokens or more in all",
    ),
    (corrupt([]), "spans is empty; expected at least one span to cut out"),
    (
        corrupt([(1, 1), (2, 3)]),
        "spans=[(1, 1), (2, 3)] must be in order, none of them empty, within 3 tokens",
    ),
    (
        corrupt([(2, 4)]),
        "spans=[(2, 4)] must be in order, none of them empty, within 3 tokens",
    ),
    (
        corrupt([(0, 1)], sentinels=(9, 9)),
        "sentinels holds 1 different tokens; 1 spans need 2 sentinels or more",
    ),
    (mask_tokens(symbols=()), "symbols is empty; expected at least one ordinary token"),
    (mask_tokens(shares=(1.5, -0.5)), "shares[0]=1.5 must be a number from 0 to 1"),
    (
        mask_tokens(ids=IDS.float()),
        "ids has dtype torch.float32; expected whole numbers such as torch.long",
    ),
    (draw_spans(mean_length=0), "mean_length=0 must be a number greater than 0"),
    (draw_spans(rate=0), "rate=0 must be a number greater than 0 and less than 1"),
]

TABLE = [
    pytest.param(call, message, id=message[:60])
    for call, message in FIGURES + DRAWINGS + NUMBERS + TASKS
]


def test_the_table_has_at_least_fifty_different_messages():
    assert len({row.values[1] for row in TABLE}) >= 50


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("call", "message"), TABLE)
def test_misuse_of_the_books_tools_gets_exactly_this_message(call, message):
    error = TypeError if "has dtype" in message else ValueError
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    assert str(raised.value) == message


@pytest.mark.usefixtures("unchecked_shapes")
def test_answers_with_a_fraction_are_refused_as_everywhere():
    with pytest.raises(TypeError, match="numbers with a fraction"):
        tasks.answer_batch([([1, 2], [1.5])])
