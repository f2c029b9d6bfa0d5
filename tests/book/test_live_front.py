"""The live figure of the front page: its numbers are the library's, and its claims are true."""

import math
import re
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import live_v8
import pytest
from live_v8 import SCRIPTS, Engine, _plain, agree, difference, engine, read_anew
from py_mini_racer import JSEvalException

import transformer_lib
from tools.live_front import pictures
from transformer_book.live import FIGURES, complete, front

NAME, FILE = "front", "front.js"
LIBRARY = Path(transformer_lib.__file__).parent
LINE = "Speak, spe"
# One line after the other, so that what was read before is used again, cut off, or forgotten.
STATES: list[dict[str, Any]] = [
    {"text": LINE, "stage": 0},
    {"text": LINE, "stage": 1},
    {"text": LINE, "stage": 2, "back": 3},
    {"text": LINE, "stage": 7},
    {"text": LINE, "stage": 10, "back": 4},
    {"text": LINE, "stage": 11},
    {"text": LINE, "stage": 11, "back": 2},
    {"text": LINE, "stage": 8, "written": 2},
    {"text": LINE, "stage": 3, "written": 12, "back": 17},
    {"text": LINE, "stage": 11, "written": 1},
    {"text": "Speak, do", "stage": 9},
    {"text": "Speak", "stage": 4},
    {"text": LINE, "stage": 6, "written": 3, "pick": "drawn"},
    {"text": LINE, "stage": 11, "written": 2, "pick": "warm", "draw": 7},
    {"text": LINE, "stage": 0, "written": 3, "pick": "warm", "draw": 9, "fixed": "78,68"},
    {"text": LINE, "stage": 11, "pick": "cool", "fixed": "68,9999"},  # it is written already
    {"text": LINE, "stage": 11, "pick": "warm", "fixed": "9999,"},
    {"text": "To be, or not to b", "stage": 11, "pick": "warm", "draw": 15},  # a rare letter
    {"text": "To be, or not to b", "stage": 2, "zoom": 5, "head": 3},  # the 1st of two
    {"text": LINE, "stage": 4, "zoom": 3, "head": 0, "back": 4},  # a letter ahead fits better
    {"text": LINE, "stage": 11, "written": 4, "pick": "drawn"},
    {"text": "né", "stage": 5, "back": 1},
    {"text": "", "stage": 5},
    *({"text": LINE, "stage": 4, "zoom": zoom} for zoom in (1, 2, 3, 4, 5, 6, 7, 8)),
    {"text": LINE, "stage": 2, "zoom": 8, "head": 0, "back": 3},
    {"text": LINE, "stage": 2, "zoom": 7, "head": 5, "back": 3, "written": 1},
    {
        "text": "To be, or not to b",
        "stage": 8,
        "zoom": 7,
    },
    {"text": "To be, or not to b", "stage": 2, "zoom": 7},
    *({"text": LINE, "stage": 2, "zoom": zoom, "head": 5, "back": 4} for zoom in (1, 2, 4, 5, 6)),
    {"text": LINE, "stage": 8, "zoom": 4, "head": 7, "back": 1},
    {"text": LINE, "stage": 8, "zoom": 6, "head": 0, "written": 14},
    {"text": LINE, "stage": 8, "zoom": 2, "head": 4, "written": 12, "back": 9},
    {"text": "b", "stage": 6, "zoom": 5},
    *({"text": LINE, "stage": stage, "zoom": zoom} for stage, zoom in ((3, 1), (3, 4), (7, 2))),
    {"text": LINE, "stage": 9, "zoom": 1, "back": 3, "written": 2},
    {"text": "To be, or not to b", "stage": 9, "zoom": 2},  # its answer becomes less likely
    {"text": "To be, or not to b", "stage": 6, "zoom": 7},  # the same: u is lifted by more
    {"text": "My lord, the ki", "stage": 8, "zoom": 7},  # here its rival is
    {"text": "O", "stage": 7, "zoom": 2},  # lowered, and it falls
    {"text": "To be, or not to b", "stage": 3, "zoom": 2, "back": 3},  # it falls by nearly nothing
    {"text": "Speak, spe", "stage": 4, "zoom": 7},  # the rival leads
    {"text": LINE, "stage": 5, "zoom": 3, "back": 2},
    {"text": LINE, "stage": 10, "zoom": 2},
    *({"text": LINE, "stage": 11, "pick": pick, "written": 3} for pick in ("cool", "warm")),
    {"text": LINE, "stage": 10, "pick": "warm"},
    {"text": "Zürich 東 is a", "stage": 0},
    {"text": "東" * 14, "stage": 11},  # 42 bytes: the last letter does not fit
    {"text": "x" * 41, "stage": 10, "back": 17},
]
DAMAGES = {
    "one letter too many kept": ("const n = this.known(ids);", "const n = this.known(ids) + 1;"),
    "keys not forgotten": ("self.keys.length = self.values.length = n", "self.values.length = n"),
    "an old line": ("id !== this.ids[t]", "t >= this.ids.length"),
    "the write of the stage before": (
        "write: isLayer ? numbers(own.writes[stage - 2]",
        "write: isLayer ? numbers(own.writes[Math.max(0, stage - 3)]",
    ),
    "the lane after the stage": ("Math.min(stage, ANSWER) - 2]", "Math.min(stage, ANSWER) - 1]"),
    "one head for the mean": (
        "heads.reduce((sum, w) => sum + (w[s] ?? 0), 0) / heads.length",
        "heads[0][s]",
    ),
    "the sum of the heads": ("(w[s] ?? 0), 0) / heads.length", "(w[s] ?? 0), 0)"),
    "the layer before": (
        "Math.floor(stage / 2) - 1 : -1",
        "Math.max(0, Math.floor(stage / 2) - 2) : -1",
    ),
    "heads of a feed-forward": ("heads: looks ?", "heads: isLayer ?"),
    "the answer always": (
        "const place = Math.min(stage, ANSWER - 1) - 1",
        "const place = stage && ANSWER - 2",
    ),
    "no final norm": ("model.logits(at.stream[n])", "at.stream[n]"),
    "the probability after": ("after(Math.max(0, place - 1))", "after(place)"),
    "the least likely": ("list[b] - list[a]", "list[a] - list[b]"),
    "no bar for the rival": ("isLayer ? pair : stage", "stage"),
    "no bar for the letter that was drawn": ("stage === WRITE ? [next] : []", "[]"),
    "a bar too many": ("BEST - must.length", "BEST"),
    "a size without its root": (
        "Math.sqrt(Live.tensor.dot(final, final)",
        "(Live.tensor.dot(final, final)",
    ),
    "the sizes of the writes": (
        "sizes = shown.map(({ stream })",
        "sizes = shown.map(({ writes: stream })",
    ),
    "guesses of the last letter": (
        "guesses: guesses(model, own, stage",
        "guesses: guesses(model, letters[T - 1], stage",
    ),
    "the next letter of the one that is watched": (
        "nextOf(letters[T - 1].logits, written)",
        "nextOf(own.logits, written)",
    ),
    "one draw for all": ("FIRST_SEED + n + (MOST", "FIRST_SEED + (MOST"),
    "the same draw again": (" + (MOST + 1) * draw)()", ")()"),
    "a draw that is that of the next letter": ("(MOST + 1) * draw", "draw"),
    "letters that stay are drawn again": ("stays[n] ?? choose", "choose"),
    "letters that nobody has": ("id < tokenizer.tokens.length", "id >= 0"),
    "a letter that stays was drawn": ("isFixed: written < stays.length", "isFixed: false"),
    "always the likeliest": ('if (pick === "likeliest") return', "return"),
    "too long a line": ("let [room, read] = [TYPED,", "let [room, read] = [99,"),
    "half of a letter": ("encode(readOf(text, model))", "encode(text).slice(0, TYPED)"),
    "letters counted, not tokens": (
        "the line has ${counted(T)}",
        "the line has ${counted([...found.read].length)}",
    ),
    "lanes for all": ("Math.max(0, T - ROWS)", "0"),
    "a letter further back": ("first, T - 1 - back", "first, T - 2 - back"),
    "the two weakest": ("b[1] - a[1] || a[0] - b[0]", "a[1] - b[1] || a[0] - b[0]"),
    "layers from 0": ("`Layer ${layer + 1}, attention", "`Layer ${layer}, attention"),
    "counted from the end": ("ordinal(until(s))", "ordinal(until(at))"),
    "a number for any letter": ("until(at) > 1 ?", "until(at) > 0 ?"),
    "a letter that comes later": ("slice(0, end + 1).filter", "filter"),
    "the 2th": ('["", "st", "nd", "rd"]', "[]"),
    "nothing for a little": ('text === "0" ? "<1%"', 'text === "0" ? "0%"'),
    "a share that knows what comes later": ("look.raw.slice(0, at + 1)", "look.raw"),
    "a share that is scaled already": (
        "softmax(look.raw.slice(0, at + 1))",
        "softmax(look.scores.slice(0, at + 1))",
    ),
    "the scale forgotten": ("score / Math.sqrt(width))", "score)"),
    "the scale of all heads": ("score / Math.sqrt(width))", "score / Math.sqrt(D))"),
    "the head before": (
        "row = ({ data }, s) => data.subarray(s * D + head * width, s * D + (head + 1) * width)",
        "row = ({ data }, s) => data.subarray(s * D + (head ? head - 1 : 7) * width,"
        " s * D + (head ? head : 8) * width)",
    ),
    "the weights of one head for all": (
        "shares.reduce((sum, w, s)",
        "heads[0].reduce((sum, w, s)",
    ),
    "the layer after": ("cache.memories[layer].self;", "cache.memories[(layer + 1) % 4].self;"),
    "a query that is not turned": (
        "rotate(made[0], at,",
        "rotate(made[0], 0,",
    ),
    "a query without its norm": ("matmulT(x, attention[name]", "matmulT(stream, attention[name]"),
    "keys for queries": (
        '["query", "key", "value"].map((name)',
        '["key", "key", "value"].map((name)',
    ),
    "values for keys": ("few(keys)", "few(values)"),
    "a mixture of keys": ("memories[layer].self.values;", "memories[layer].self.keys;"),
    "the values of the first head": ("data[s * D + head * Dk + i]", "data[s * D + i]"),
    "the output table of the first head": ("table[i * D + head * Dk + j]", "table[i * D + j]"),
    "columns of the output table for rows": (
        "table[i * D + head * Dk + j]",
        "table[(head * Dk + j) * D + i]",
    ),
    "the norm of the lane before": ("isLayer ? stage - 1 : 0]", "isLayer ? stage - 2 : 0]"),
    "the norm of the finished lane": ("own.stream[isLayer ? stage - 1 : 0]", "own.stream.at(-1)"),
    "a sum for the mean of the squares": (" / final.length + norm_eps", " + norm_eps"),
    "what the lane holds now": (
        "dot(own.stream[stage - 2], way)",
        "dot(own.stream[stage - 1], way)",
    ),
    "no gain of the final norm": ("* gain[i]) / size", ") / size"),
    "effects that are not above the mean": ("data[id * D + i] - each)", "data[id * D + i])"),
    "the rival of this stage": (
        "ranked(own.logits).slice(0, 2)",
        "ranked(model.logits(own.stream[isLayer ? stage - 1 : 8])).slice(0, 2)",
    ),
    "the third for the rival": ("ranked(own.logits).slice(0, 2)", "ranked(own.logits).slice(0, 3)"),
    "a score before by the new norm": ("map((one) => one * grown)", "map((one) => one)"),
    "a lane that grew the other way": (
        "size(now) / size(own.stream[stage - 2])",
        "size(own.stream[stage - 2]) / size(now)",
    ),
    "what was held before, for what is held": ("now = above(held)", "now = above(before)"),
    "the sum of two scores": ("([one, other]) => one - other", "([one, other]) => one + other"),
    "the sizes of the stage after": ("slice(stage - 2, stage)", "slice(stage - 1, stage + 1)"),
    "always for the answer": ("lead = now < 0 ? ", "lead = now < -99 ? "),
    "the layer that ends highest": ("chances[2 * n + 1] - chances[2 * n]", "chances[2 * n + 1]"),
    "what the feed-forward raises": (
        "chances[2 * n + 1] - chances[2 * n]",
        "chances[2 * n + 2] - chances[2 * n + 1]",
    ),
    "the head that lifts the rival": ("one - rivals[n]", "rivals[n] - one"),
    "the head that lifts the answer, and the rival": ("one - rivals[n]", "one"),
    "odds for a lead": ("times = Math.exp(far)", "times = far"),
    "a fall that the write meant": ("sums[0] > 0 ? fallen", "true ? fallen"),
    "a fall that nobody sees": ("|| percent(now) === percent(before)", ""),
    "a fall that is a rise": ("now > before ||", ""),
    "always the final norm": ("isWrite = Math.log(now / gained) <", "isWrite = Infinity <"),
    "never the final norm": ("isWrite = Math.log(now / gained) <", "isWrite = -Infinity <"),
    "the letter that leads, not the one that gains": (
        "one[2] - one[3] > most[2] - most[3]",
        "one[2] > most[2]",
    ),
    "the draw before": ("`draw ${draw}: `", "`draw ${draw - 1}: `"),
    "no head of its own": ("looks && head === HEADS ?", "looks && head > HEADS ?"),
    "the answer of another lane": (
        "writesOf(kept, own, layer, ways)",
        "writesOf(kept, letters[0], layer, ways)",
    ),
    "the sum without its sign": ('.replace(/^(?!−)/, "+")', ""),
    "the stream after": (
        "lookOf(kept, own.stream[stage - 2]",
        "lookOf(kept, own.stream[stage - 1]",
    ),
    "a mask that is off by one": ("later = tokens.length - 1 - at", "later = tokens.length - at"),
    "a fourth step of a feed-forward": ("Math.min(zoom, stepsOf(stage))", "Math.min(zoom, ZOOMS)"),
    "an open answer": ("zoom: isLayer ? Math.min(", "zoom: true ? Math.min("),
    "the table of another head": ("(head * width + i) * D, (head", "(i) * D, (head"),
    "gate and up swapped": ("const [g, u] = [gate, up]", "const [g, u] = [up, gate]"),
    "a gate that is always open": ("silu(g), (one, n) => one * u[n]", "g, (one, n) => one * u[n]"),
    "units of the lane before": (
        "unitsOf(model, own.stream[stage - 2]",
        "unitsOf(model, own.stream[stage - 3]",
    ),
    "rows of the table for its columns": (
        "sum + one * vectors[i * F + n]",
        "sum + one * vectors[n * D + i]",
    ),
    "the units that do least": (
        "Math.abs(effects[0][b]) - Math.abs(effects[0][a])",
        "Math.abs(effects[0][a]) - Math.abs(effects[0][b])",
    ),
    "the units that lift": (
        "Math.abs(effects[0][b]) - Math.abs(effects[0][a])",
        "effects[0][b] - effects[0][a]",
    ),
    "the units that lift the rival": (
        "Math.abs(effects[0][b]) - Math.abs(effects[0][a])",
        "Math.abs(effects[1][b]) - Math.abs(effects[1][a])",
    ),
    "a yes for a no": ("score < 0).length", "score > 0).length"),
    "vectors of units that say nothing": ("=> answers[n] * vectors[", "=> vectors["),
    "a letter's vector that is divided already": ("one * size)); // (2, D)", "one)); // (2, D)"),
    "the largest products that lift": (
        "Math.abs(b[3]) - Math.abs(a[3])",
        "b[3] - a[3]",
    ),
    "the sum of the write": ("sum + one[3], 0)", "sum + one[1], 0)"),
    "products counted from 0": ("[i + 1, one, vector[i]", "[i, one, vector[i]"),
    "the write of the first head": ("wrote.writes[chosen]", "wrote.writes[0]"),
    "a sum that is not divided": ("signed(sum / size)", "signed(sum)"),
    "products without brackets": ('"($&)"', '"$&"'),
    "scores times the temperature": ("score / (TEMPERATURES", "score * (TEMPERATURES"),
    "a draw without its temperature": (
        "chances = chancesOf(logits, pick);",
        "chances = softmax(logits);",
    ),
    "a temperature before a letter is chosen": (
        "isLast ? chancesOf(logits, pick) : softmax(logits)",
        "chancesOf(logits, pick)",
    ),
    "bars before that know the temperature": (
        "softmax(isLast ? logits : ",
        "softmax(isLast ? logits.map((one) => one / (TEMPERATURES[pick] || 1)) : ",
    ),
    "a probability without its temperature": (
        "chancesOf(letters[T - 1].logits, pick)[next]",
        "softmax(letters[T - 1].logits)[next]",
    ),
    "one head's weights for the mean": (
        "looksAt(found, found.attention[layer][at - first])",
        "looksAt(found, found.heads[found.head])",
    ),
}


@pytest.fixture(autouse=True)
def tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library turns queries and keys by angles in float32, JavaScript by angles in float64."""
    monkeypatch.setattr(live_v8, "RELATIVE", 1e-4)
    monkeypatch.setattr(live_v8, "ABSOLUTE", 1e-4)


@pytest.fixture(scope="module")
def v8() -> Engine:
    found = engine(NAME)
    found.register("shakespeare")
    return found


@pytest.fixture(scope="module")
def expected() -> list[tuple[dict[str, Any], dict[str, Any], str]]:
    """Each state with its values and words, by the library."""
    states = [complete(FIGURES[NAME], {**state, "text": state["text"][:40]}) for state in STATES]
    states[-1]["text"] = STATES[-1]["text"]  # longer than the box allows
    found = [(state, front.values(**state)) for state in states]
    return [(state, _plain(values), front.say(state, values)) for state, values in found]


def disagreement(v8: Engine, expected: list[tuple[dict[str, Any], dict[str, Any], str]]) -> str:
    for state, values, words in expected:
        found = difference(v8.values(NAME, state), values)
        if found or v8.say(NAME, state) != words:
            return found or "say"
    return ""


def test_numbers_and_words_are_the_librarys(v8: Engine, expected: Any) -> None:
    found = disagreement(v8, expected)
    assert not found, found
    agree(NAME, 3, v8)  # the start, the tries, texts of random letters


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_caught(damage: str, v8: Engine, expected: Any) -> None:
    read_anew(v8, ("reading.js", FILE), *DAMAGES[damage])  # the model stays
    try:
        found = disagreement(v8, expected)
    except JSEvalException as error:
        found = str(error)
    assert found


def test_a_letter_is_read_once(v8: Engine) -> None:
    run = "const found = this.model.run(fresh,"
    v8.run("var reads = []; Live.count = (fresh) => reads.push(fresh.length);")
    read_anew(v8, ("reading.js", FILE), run, f"Live.count(fresh); {run}")
    v8.values(NAME, {"text": LINE})
    v8.values(NAME, {"text": LINE, "stage": 4, "back": 2})  # a step, another letter: nothing
    v8.values(NAME, {"text": LINE, "written": 1})  # one letter more
    v8.values(NAME, {"text": LINE, "stage": 11})  # and back
    v8.values(NAME, {"text": LINE + "ll"})  # two typed
    assert v8.eval("reads") == [len(LINE), 1, 2]


def at(**changes: Any) -> dict[str, Any]:
    return front.values(**complete(FIGURES[NAME], changes))


def test_what_readers_are_told_to_see() -> None:
    tries = [at(**one["set"]) for one in FIGURES[NAME]["tries"]]
    be, speak, king = ([guess[0] for guess in found["best"]] for found in tries)
    assert be == ["b", "b", *"eeeeeee"]
    chances = [each[2] for each in at()["best"]]
    assert [round(chances[n], 2) for n in (6, 7)] == [0.43, 0.80]  # the attention of layer 4
    assert speak[2:] == ["r", "r", "r", "r", "a", "a", "a"]  # [6]: the feed-forward of layer 3
    assert at(text=LINE)["best"][8][2] > 0.97
    assert king[2:] == ["n"] * 7
    written = at(text="My lord, the ki", written=3)
    assert "".join(written["tokens"][written["typed"] :]) == "ng "
    assert tries[0]["opens"] == 8  # the tour looks into the attention that the first try praises


def test_the_next_letter_is_that_of_the_bars(v8: Engine) -> None:
    """Whichever letter was watched: what joins the line is the guess of the last lane."""
    found = v8.values(NAME, {"stage": 11, "back": 3})
    assert found["at"] == len(found["tokens"]) - 1
    token, _, chance, before = found["guesses"][0]
    assert found["next"] == pytest.approx([token, chance, before])


@pytest.mark.parametrize("text", [LINE, "To be, or not to b"])
def test_the_table_of_a_write_closes_and_adds_up_to_the_bars_beside_it(text: str) -> None:
    """Writes and what the lane held are the scores whose softmax the bars show.

    The next table begins with them, and says what the norm of the larger lane makes of them.
    """
    before: list[float] = []
    rivals = at(text=text, stage=2)["rivals"]
    for stage in range(2, 10):
        found = at(text=text, stage=stage, zoom=1)
        parts = found["look"] or found["units"]
        old, new = found["sizes"][found["at"] - found["first"]][stage - 2 : stage]
        assert found["held"] == pytest.approx([one * old / new for one in found["before"]])
        assert found["before"] == pytest.approx(before or found["before"])
        pairs = zip(parts["effects"], found["held"], strict=True)
        answer, rival = before = [sum(each) + held for each, held in pairs]
        assert found["rivals"] == rivals
        chances = {token: chance for token, _, chance, _ in found["guesses"]}
        assert len(chances) == front.BEST
        shares = [chances[token] for token in rivals]  # both have a bar, also when others lead
        assert answer - rival == pytest.approx(math.log(shares[0] / shares[1]))


def test_a_press_of_a_temperature_draws_anew_and_what_is_written_stays() -> None:
    drawn = [at(stage=11, pick="warm", draw=draw) for draw in range(20)]
    assert len({found["next"][0] for found in drawn}) > 2
    for found in drawn:
        assert found["next"][0] in [token for token, *_ in found["guesses"]]
        assert len(found["guesses"]) == front.BEST
    once = at(stage=11, pick="warm", draw=3)
    assert once["next"] == drawn[3]["next"]  # a reload draws the same letter
    word = at(stage=11, pick="warm", draw=3, written=2)
    fixed = ",".join(map(str, word["ids"][word["typed"] :]))
    for pick, draw in (("cool", 4), ("likeliest", 3)):
        again = at(stage=11, pick=pick, draw=draw, written=2, fixed=fixed)
        assert again["tokens"] == word["tokens"]


def test_the_stored_pictures_are_those_of_the_model() -> None:
    for path, drawn in pictures().items():
        stored = path.read_text(encoding="utf-8")
        (now, values), (then, kept) = split(drawn), split(stored)
        assert now == then, "run: python -m tools.live_front"
        worst = max(abs(a - b) for a, b in zip(values, kept, strict=True))
        assert worst <= 0.11, f"{path.name} differs by {worst}: run python -m tools.live_front"
        assert front.say(complete(FIGURES[NAME], {}), at()) in stored


def split(svg: str) -> tuple[str, list[float]]:
    """A drawing without its numbers, and the numbers: their last digits differ between CPUs."""
    number = re.compile(r"-?\d+(?:\.\d+)?")
    return number.sub("#", svg), [float(each) for each in number.findall(svg)]


def test_a_stored_picture_that_is_old_is_noticed() -> None:
    path, drawn = next(iter(pictures().items()))
    words, values = split(path.read_text(encoding="utf-8"))
    moved = split(drawn.replace('width="', 'width="1', 1))
    assert words == moved[0]
    assert max(abs(a - b) for a, b in zip(moved[1], values, strict=True)) > 0.11


def test_the_name_of_a_unit_stands_on_no_other(v8: Engine) -> None:
    """As boxes in px: a name is 9 wide and 11 high, its middle is what is given."""
    v8.run((SCRIPTS / "front_zoom.js").read_text(encoding="utf-8"))
    random, side = Random(0), 8
    for _ in range(300):
        cells = [
            [side * x, side * y]
            for x, y in (divmod(n, 16) for n in random.sample(range(320), front.BUSY))
        ]
        names = v8.eval(f"Live.front.besides({cells}, {side}, 160)")
        boxes = [(x, y, side, side) for x, y in cells]
        boxes += [(x - 4.5, y - 5.5, 9, 11) for x, y in names]
        for n, (x, y, wide, high) in enumerate(boxes):
            assert not [
                other
                for other in boxes[n + 1 :]
                if x < other[0] + other[2] and other[0] < x + wide
                if y < other[1] + other[3] and other[1] < y + high
            ]


def library_lines() -> list[tuple[str, str, str, str]]:
    """File, line, page of the API and name, as readers are shown them."""
    text = (SCRIPTS / "front_picture.js").read_text(encoding="utf-8")
    return re.findall(r'\["(\w+)", "([^"]+)",\s+"(\w+)", "([\w.]+)"\]', text)


def test_the_lines_of_the_library_are_its_own() -> None:
    found = library_lines()
    assert len(found) == 10
    for file, line, _page, name in found:
        (path,) = LIBRARY.glob(f"*/{file}.py")
        assert line in path.read_text(encoding="utf-8"), f"{path.name} has no line {line!r}"
        module, _, last = f"transformer_lib.{name}".rpartition(".")
        assert hasattr(import_module(module), last), name
