"""The live figure of the whole model: its formulas count what the library's models hold and do."""

import math
import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from live_v8 import ROOT, SCRIPTS, Engine, agree, caught, damaged, difference, engine

from tools import live_journey
from transformer_book.counting import forward_flops
from transformer_book.live import journey, translate
from transformer_book.live.journey_number import SOURCE, WRITTEN, told
from transformer_book.live.journey_parts import (
    FEW,
    MODELS,
    NAMES,
    NUMBERS,
    evaluate,
    length_of,
    parts_at,
    parts_of,
    sizes_of,
)
from transformer_book.live.wording import number, percent
from transformer_lib.models.language_models import Seq2SeqLM, VisionTransformer
from transformer_lib.models.presets import PRESETS, build_preset
from transformer_lib.tracing.watch import trace

pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # checks of shapes make a trace slow

NAME, FILE, DATA = "journey", "journey.js", "journey_data.js"
ADDED = "(all, one) => all * factor(one, sizes), 1"
DIGITS = "3 - String(Math.trunc(value)).length"
ATTENTION = "decoder.attention"
GATED, OUTPUT = "|3·D·F|6·B·T·D·F|13 B T F;28 B T F;22", 'B T V||2·B·T·D·V|18 B T V"'
DAMAGES = {
    "squares forgotten": (FILE, "sizes[text.slice(0, -1)] ** 2", "sizes[text.slice(0, -1)]"),
    "terms multiplied": (FILE, "sum + product(term, sizes), 0", "sum * product(term, sizes), 1"),
    "factors added": (FILE, ADDED, ADDED.replace("*", "+")),
    "sizes shifted": (FILE, "[letter, numbers[at]]", "[letter, numbers[at + 1]]"),
    "too long a text": (FILE, "Math.min(T, sizes.M)", "T"),
    "one layer": (FILE, 'part.stage === "block" ? sizes.L : 1', "1"),
    "all boxes repeated": (FILE, 'part.stage === "block" ? sizes.L : 1', "sizes.L"),
    "share of one layer": (FILE, "(copies[at] * each[at]) / totals", "each[at] / totals"),
    "total of one layer": (FILE, "sum + copies[at] * one, 0", "sum + one, 0"),
    "source of length 1": (FILE, "T: length, S: length", "T: length, S: 1"),
    "in and out swapped": (FILE, "`${part.from} → ${part.to}`", "`${part.to} → ${part.from}`"),
    "FLOPs as parameters": (FILE, '["parameters", "flops"].map', '["flops", "flops"].map'),
    "no twin in the other tower": (FILE, "part.name === box.split", "part.id === box.split"),
    "the number as long as a text": (FILE, "S: travelling.source.length }", "S: length }"),
    "the layer after": (
        FILE,
        "Math.min(state.layer, told.length) - 1",
        "state.layer % told.length",
    ),
    "a number for every model": (
        FILE,
        "told = isNumber ? travelling",
        "told = travelling",
    ),
    "always the first layer drawn": (
        FILE,
        "travelling.drawn[id][layer]",
        "travelling.drawn[id][0]",
    ),
    "sums of the first layer": (FILE, "travelling.sums[id][layer]", "travelling.sums[id][0]"),
    "sums of the step after": (FILE, "filled(sums[n] ||", "filled(sums[n + 1] ||"),
    "a minus lost": (FILE, 'replace(/^-(?=[ \\d])/, "−")', 'replace(/^-(?=[ \\d])/, "")'),
    "a letter without its second half": (FILE, "used.match(/[A-Z]k?/g)", "used.match(/[A-Z]/g)"),
    "letters of formulas alone": (FILE, "[from, to, parameters, flops,", "[parameters, flops,"),
    "rounding": (FILE, DIGITS, DIGITS.replace("3", "4")),
    "a bias too many": (DATA, "|4·D·H·Dk|8·B·S·D", "|4·D·H·Dk + D|8·B·S·D"),
    "the gate not counted": (DATA, GATED, GATED.replace("3·D·F", "2·D·F")),
    "GQA as MHA": (DATA, "|2·D·H·Dk + 2·D·G·Dk + 2·Dk|", "|4·D·H·Dk + 2·Dk|"),
    "a multiply-add as one": (DATA, OUTPUT, OUTPUT.replace("2·B", "B")),
    "a tied table counted twice": (DATA, OUTPUT, OUTPUT.replace("||", "|D·V|")),
    "two boxes swapped": (DATA, "[2,14,15,10,8,9,10", "[2,14,15,8,10,9,10"),
}


@pytest.fixture(scope="module")
def v8() -> Engine:
    return engine(NAME)


def test_numbers_and_words_are_the_librarys(v8: Engine) -> None:
    agree(NAME, 60, v8)


@pytest.mark.parametrize("preset", MODELS)
def test_every_preset_to_the_last_unit(v8: Engine, preset: str) -> None:
    random = Random(preset)
    length = random.choice(v8.definition(NAME)["state"]["T"]["steps"])
    box = random.choice([part.box for part in parts_at(preset, length)])
    state = {"preset": preset, "T": length, "box": box}
    found, expected = v8.values(NAME, state), journey.values(**state)
    assert not difference(found, expected)
    assert expected["totals"][0] == MODELS[preset].parameters
    for exact in ("parameters", "flops", "totals", "copies", "steps"):
        assert found[exact] == expected[exact]  # to the last unit, not to five places


# One preset of each kind of block; the others have the same formulas.
@pytest.mark.parametrize(
    "preset",
    [
        "transformer-big",
        "bert-base",
        "gpt2-xl",
        "llama-3.1-8b",
        "qwen2.5-7b",
        "gemma-3-1b",
        "olmo-2-1b",
    ],
)
def test_a_trace_of_the_true_length_says_the_same(preset: str) -> None:
    length = Random(preset).choice((16, 64, 1024, 4096))
    assert parts_at(preset, length) == parts_of(preset, length)  # shapes, steps, all numbers


@pytest.mark.parametrize("preset", ["transformer-base", "vit-b-16"])
def test_the_whole_model_traced_layer_by_layer(v8: Engine, preset: str) -> None:
    model = build_preset(preset, device="meta")
    ids = torch.zeros(1, 16, dtype=torch.long, device="meta")
    images = torch.zeros(1, 3, 224, 224, device="meta")
    inputs = [ids, ids] if isinstance(model, Seq2SeqLM) else [ids]
    total = trace(model, *([images] if isinstance(model, VisionTransformer) else inputs)).total
    found = v8.values(NAME, {"preset": preset, "T": 16})
    assert found["totals"] == [total.parameters, total.flops]
    assert found["totals"][0] == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("preset", ["transformer-base", "gemma-3-270m"])
def test_all_blocks_are_alike(preset: str) -> None:
    """The figure draws one block and multiplies."""
    config = PRESETS[preset].config
    config = replace(config, n_layers=6, vocab_size=50, d_model=8, n_heads=2, n_kv_heads=None)
    config = replace(config, head_width=4, d_ff=8)
    with torch.device("meta"):
        model = PRESETS[preset].build(config)
    ids = torch.zeros(1, 3, dtype=torch.long, device="meta")
    blocks: dict[str, list[tuple[str, str, int]]] = {}
    for step in trace(model, *([ids, ids] if isinstance(model, Seq2SeqLM) else [ids])):
        match = re.match(r"(.*blocks)\.(\d+)(.*)", step.module)
        if match:
            row = (match[3] + step.what, step.output, step.flops)
            blocks.setdefault(f"{match[1]} {match[2]}", []).append(row)
    for name, rows in blocks.items():
        assert rows == blocks[name.rpartition(" ")[0] + " 0"]


def test_formulas_hold_for_other_lengths_than_they_were_written_for() -> None:
    sizes = {**sizes_of("t5-small"), "B": 1, "T": 40, "S": 9}
    written, others = parts_of("t5-small", *FEW), parts_of("t5-small", 40, 9)
    for part, other in zip(written, others, strict=True):
        assert (part.parameters, part.flops) == (other.parameters, other.flops)
        counts = evaluate(part.parameters, sizes), evaluate(part.flops, sizes)
        assert counts == other.counts


def test_the_data_are_what_the_trace_says_today() -> None:
    written = (SCRIPTS / DATA).read_text(encoding="utf-8")
    assert written == live_journey.text(), "run: python -m tools.live_journey"
    assert len(written.encode()) <= 12_000
    travelling = (SCRIPTS / "journey_number.js").read_text(encoding="utf-8")
    assert travelling == live_journey.number(), "run: python -m tools.live_journey"


# The number that travels --------------------------------------------------------------------------


def numbers(**changes: object) -> dict[str, Any]:
    return journey.values(**{"preset": NUMBERS, "T": 64, "box": "", "layer": 1, **changes})


def test_the_number_is_told_of_by_every_box(v8: Engine) -> None:
    boxes = numbers()["boxes"]
    assert list(told()) == boxes
    assert [len(told()[box]) for box in boxes] == numbers()["copies"]
    for box in boxes:
        for layer in (1, 2, 3):
            state = {"preset": NUMBERS, "T": 64, "box": box, "layer": layer}
            expected = journey.values(**state)
            assert v8.values(NAME, state)["told"] == expected["told"]
            assert v8.say(NAME, state) == journey.say(state, expected)
    assert journey.values(preset="gpt2", T=64, box="")["told"] == ""


def test_the_sentences_are_those_of_the_translator() -> None:
    """Beside what the module itself checks: the weights as another figure reads them."""
    for layer in (1, 2, 3):
        row = [
            translate.values(SOURCE, WRITTEN, str(layer), str(head), "")["weights"][-1]
            for head in (1, 2, 3, 4)
        ]
        found = [
            f"“{SOURCE[max(range(9), key=one.__getitem__)]}” {number(max(one))}" for one in row
        ]
        now = numbers(box="decoder.cross_attention", layer=layer)
        words = now["told"]
        assert now["drawn"] == [[round(100 * share) for share in one] for one in row]
        assert words.endswith(f"its heads look most at {', '.join(found)}.")
    last = translate.values(SOURCE, WRITTEN, "1", "1", "")["candidates"]
    assert f"“{last[0][0]}” gets {percent(last[0][1])}" in numbers(box="decoder.output")["told"]


def summed(box: str, step: str, layer: int) -> str:
    """The sum that stands below a step, and `-` for every minus."""
    steps = {what: text for what, _, _, text in numbers(box=box, layer=layer)["steps"]}
    return str(steps[step]).replace("−", "-")


def read(text: str) -> list[float]:
    """The decimal numbers of a sum, each with its sign."""
    return [float(one.replace(" ", "")) for one in re.findall(r"(?:[-+] )?-?\d+\.\d+", text)]


def near(one: float, other: float) -> bool:
    return abs(one - other) < 0.0051  # both are rounded to hundredths


LOOKS = ("encoder.attention", "decoder.attention", "decoder.cross_attention")


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("box", LOOKS)
def test_what_one_head_computes_can_be_checked_by_hand(box: str, layer: int) -> None:
    *products, score = read(summed(box, "scores: queries · keys", layer))
    assert len(products) == 4
    assert sum(products) == pytest.approx(score, abs=1e-9)
    divided, scaled, *scores = read(summed(box, "scale", layer))
    assert divided == score
    assert near(score / 32**0.5, scaled)
    assert max(scores) == scaled
    told_of, _, alone = summed(box, "softmax", layer).partition(" in all; ")
    *weights, whole = read(told_of)
    assert sum(weights) == pytest.approx(whole, abs=1e-9)
    powers = [math.exp(one - max(scores)) for one in scores]
    for weight, power in zip(weights, sorted(powers, reverse=True)[:3], strict=False):
        assert abs(weight - power / sum(powers)) < 0.01  # from rounded scores
    shift, total, weight = read(alone)
    assert shift == -scaled
    assert weight == weights[0]
    assert near(1 / total, weight)
    assert weights[0] == max(weights[:3])


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_the_scores_are_those_of_the_translator(layer: int) -> None:
    """Scores that another figure's weights have: their logarithms differ by as much."""
    head = summed("decoder.cross_attention", "scores: queries · keys", layer)[len("head ")]
    row = translate.values(SOURCE, WRITTEN, str(layer), head, "")["weights"][-1]
    scores = read(summed("decoder.cross_attention", "scale", layer))[2:]
    assert len(scores) == len(SOURCE)
    for one, weight in zip(scores, row, strict=True):
        assert abs(one - max(scores) - math.log(weight / max(row))) < 0.0101


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_sums_and_norms_can_be_checked_by_hand(layer: int) -> None:
    adds, norms = 0, 0
    for box in numbers()["boxes"]:
        if box.endswith("_add"):
            stream, update, total = read(summed(box, "add to the stream", layer))
            assert stream + update == pytest.approx(total, abs=1e-9)
            adds += 1
        if box.endswith("_norm"):
            found = read(summed(box, "layer norm", layer))
            mean, spread, value, minus, divisor, gain, bias, result = found
            assert (minus, divisor) == (-mean, spread)
            assert near((value + minus) / divisor * gain + bias, result)
            norms += 1
        if box.endswith("feed_forward"):
            kept, shut, units = (
                int(re.findall(pattern, summed(box, "activate (ReLU)", layer))[0])
                for pattern in (r"^(\d+) above", r"(\d+) others", r"(\d+) units")
            )
            assert kept + shut == units == 512
            drawn = numbers(box=box, layer=layer)["drawn"]
            assert sum(int(four, 16).bit_count() for four in drawn[0]) == kept
            assert numbers(box=box, layer=layer)["told"].startswith(f"{kept} of 512")
    assert (adds, norms) == (5, 5)


def test_models_without_numbers_have_no_sums(v8: Engine) -> None:
    for preset in ("gpt2", "transformer-base"):
        steps = v8.values(NAME, {"preset": preset, "box": ATTENTION})["steps"]
        assert {text for *_, text in steps} == {""}


def test_the_number_counts_its_own_letters() -> None:
    found = numbers()
    assert (found["source"], found["length"]) == (9, 5)
    config = MODELS[NUMBERS].config
    expected = forward_flops(config, "encoder-decoder", 1, 5, 9)["total"]
    assert found["totals"] == [1_422_080, expected]


def test_every_preset_has_a_name(v8: Engine) -> None:
    assert NAMES.keys() == {*PRESETS, NUMBERS} == MODELS.keys()
    assert v8.definition(NAME)["state"]["preset"]["of"] == NAMES


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_caught(damage: str) -> None:
    caught(NAME, *DAMAGES[damage], count=40)


def test_an_image_as_long_as_the_slider_says_is_caught() -> None:
    """Random settings seldom give an image fewer tokens than it has."""
    broken = damaged(FILE, "sizes.I ? sizes.M :", "sizes.I < 0 ? sizes.M :")
    state = {"preset": "vit-b-16", "T": 16, "box": "encoder.attention"}
    found = engine(NAME, scripts=broken).values(NAME, state)
    assert difference(found, journey.values(**state))


def test_a_name_of_two_letters_is_one_size() -> None:
    """No formula has a square of ``Dk`` today; the script must not read one as that of ``D``."""
    own = "masked self-attention|B T D|B T D|"
    squared = damaged(DATA, f"{own}4·D·H·Dk + 3·H·Dk + D|", f"{own}2·Dk² + Dk|")
    found = engine(NAME, scripts=squared).values(NAME, {"preset": "gpt2", "box": ATTENTION})
    sizes = sizes_of("gpt2")
    assert sizes["D"] != sizes["Dk"] == 64
    assert found["parameters"][found["at"]] == evaluate("2·Dk² + Dk", sizes) == 2 * 64**2 + 64


def test_what_readers_are_told_to_see(v8: Engine) -> None:
    real, table, long, norm = v8.definition(NAME)["tries"]
    found = journey.values(T=64, **real["set"])
    assert found["told"].count("“-”") == 3
    assert "Three heads look at the hyphen" in real["see"]
    joined = journey.values(T=64, **{**real["set"], "box": "decoder.cross_attention_add"})["told"]
    (length,) = re.findall(r"joins the stream, ([\d.]+) long", real["see"])
    assert joined.startswith(f"A write of length {length} joins the stream of “i”")
    found = journey.values(T=64, **table["set"])
    assert f"{100 * found['shares'][0]:.1f}%" in table["see"]
    assert found["shares"][1] == 0
    found = journey.values(**long["set"])
    few = journey.values(**{**long["set"], "T": 64})
    assert [f"{100 * each['shares'][1]:.1f}%" in long["see"] for each in (found, few)] == [True] * 2
    squares = [part.flops for part in parts_at("llama-3.1-8b", 8) if "T²" in part.flops]
    assert len(squares) == 1
    pre = journey.values(T=64, **norm["set"])["boxes"]
    assert pre.index("decoder.attention_norm") < pre.index("decoder.attention")
    assert "decoder.final_norm" in pre
    post = journey.values(preset="transformer-base", T=64, box="")["boxes"]
    assert post.index("decoder.attention_norm") == post.index("decoder.attention_add") + 1
    assert "decoder.final_norm" not in post


def test_a_box_that_the_model_lacks_gives_its_twin_or_the_first() -> None:
    def chosen(preset: str, box: str) -> str:
        found = journey.values(preset=preset, T=16, box=box)
        return str(found["boxes"][found["at"]])

    assert chosen("gpt2", "encoder.attention") == "decoder.attention"
    assert chosen("bert-base", "decoder.output") == "encoder.tokens"
    assert chosen("gpt2", "") == "decoder.tokens"


def test_lengths_that_a_model_can_read() -> None:
    assert length_of("gpt2", 32768) == 1024
    assert length_of("llama-3.1-8b", 32768) == 32768
    assert length_of("vit-b-16", 1) == length_of("vit-b-16", 4096) == 197


def about_boxes() -> str:
    script = (SCRIPTS / FILE).read_text(encoding="utf-8")
    return script[script.index("const ABOUT") : script.index("// Numbers")]


def test_links_lead_somewhere() -> None:
    rows = re.findall(r'"([\da-z_ ]+)", "(\w+\.\w+)"\]', about_boxes())
    assert len(rows) == 15
    for pages, module in rows:
        for page in pages.split():
            assert (ROOT / "book" / f"{page}.ipynb").exists()
        page = ROOT / "book" / "api" / f"{module.partition('.')[0]}.md"
        assert f"automodule:: transformer_lib.{module}\n" in page.read_text(encoding="utf-8")


def test_every_kind_of_box_has_words() -> None:
    kinds = set(re.findall(r"^  ([a-z_]+): \[", about_boxes(), re.MULTILINE))
    names = {part.name for preset in PRESETS for part in parts_of(preset, *FEW)}
    plain = {name for name in names if not name.endswith(("norm", "_add"))}
    assert plain | {"norm", "add", "masked"} == kinds


@pytest.mark.parametrize("preset", ["transformer-base", "gpt2", "t5-small", "vit-b-16"])
def test_the_static_picture_has_every_box_and_shape(preset: str) -> None:
    state = {"preset": preset, "T": 64, "box": ""}
    found = journey.values(**state)
    body, width, _ = journey.drawing(state, found)
    assert width <= 680
    parts = parts_at(preset, found["length"])
    for label in {part.label for part in parts} - {"add"}:
        shown = "bias" if label == "distance bias" else label
        drawn = sum(part.label == label for part in parts)
        assert body.count(f">{shown}</text>") == drawn
    legend = {"D": "width of the stream", "Dk": "width of a head"}
    for letter, meaning in legend.items():
        size = sizes_of(preset)[letter]
        assert re.search(f">{letter} =</text>\n.*>{size}  {meaning}</text>", body)
    sums = [part for part in parts if part.label == "add"]
    assert body.count(">+</text>") == body.count("<circle") == len(sums)
    for part in parts:
        assert f">{part.sizes[1].replace(' ', '')}</text>" in body
    sizes = map(float, re.findall(r'font-size="([\d.]+)"', body))
    assert min(sizes) >= 12
