"""The live figure "tokenizer": equal to the library's, with the merges that chapter 2 learns."""

import json
import re
from pathlib import Path

import pytest
from live_v8 import SCRIPTS, agree, caught, difference, engine

from tools.live_merges import TARGET, script
from transformer_book.live.tokenizer import drawing, learned, say, values
from transformer_lib.text.tokenizers import BPETokenizer

NAME = "tokenizer"
START = {"text": "The cats are sleeping while the dogs are running.", "merges": 1277}
CHAPTER = Path(__file__).resolve().parents[2] / "book" / "02_tokens.ipynb"


def test_the_figure_cuts_as_the_library_does():
    agree(NAME, 80)


EDGES = [
    "",
    " ",
    "  two  spaces ",
    "'ll I'll we've",
    "1984½Ⅷ²",
    "e\u0301 \u3000x\u2028y",
    "👩‍👩‍👧 ☃",
]


@pytest.mark.parametrize("text", EDGES)
def test_at_the_edges(text: str):
    v8 = engine(NAME)
    for merges in (0, 10, 1277):
        state = {"text": text, "merges": merges}
        expected = values(**state)
        assert not difference(v8.values(NAME, state), expected)
        assert v8.say(NAME, state) == say(state, expected)


@pytest.mark.parametrize("text", [START["text"], *EDGES])
def test_it_plays_every_merge_that_changes_the_text_and_no_other(text: str):
    v8 = engine(NAME)
    cut = "Live.text.bytePairs(Live.merges)"
    played = v8.eval(
        f"((t, all) => {{ for (let n = 0; n !== null; n = t.next({text!r}, n)) all.push(n); "
        f"return all; }})({cut}, [])"
    )
    ids = [values(text=text, merges=n)["ids"] for n in range(len(learned()) + 1)]
    changes = [n for n in range(1, len(ids)) if ids[n] != ids[n - 1]]
    assert played == [0, *changes]


# --- the merges -----------------------------------------------------------------------------------


def test_the_committed_merges_are_those_that_the_tokenizer_learns():
    assert TARGET == SCRIPTS / "merges.js"
    assert TARGET.read_text(encoding="utf-8") == script(learned())
    assert TARGET.stat().st_size <= 12_000
    assert engine(NAME).eval("Live.merges") == [list(pair) for pair in learned()]


def test_they_are_those_of_the_chapter():
    cells = CHAPTER.read_text(encoding="utf-8")
    assert "plays.train[:60_000]" in cells
    assert re.search(r"\bSIZE = 1_536\b", cells)
    assert "BPETokenizer.train([known], SIZE)" in cells
    steps = engine(NAME).definition(NAME)["state"]["merges"]["steps"]
    assert steps == sorted(set(steps))
    assert steps[-1] == len(learned()) == 1_536 - BPETokenizer().vocab_size


def test_a_number_of_three_digits_is_refused():
    with pytest.raises(ValueError, match="merges hold 3844; expected less than 3844"):
        script([(0, 62**2)])


DAMAGES = {
    "all merges": ("tokenizer.js", "encode(text, merges)", "encode(text)"),
    "one merge too many": ("tokenizer.js", "encode(text, merges)", "encode(text, merges + 1)"),
    "halves of letters": ("tokenizer.js", "[...text].length", "text.length"),
    "no square": ("tokenizer.js", "scores: ids.length ** 2", "scores: ids.length * 2"),
    "the square of the tokens": ("tokenizer.js", "letters ** 2", "ids.length ** 2"),
    "tokens a letter": ("tokenizer.js", "letters / ids.length", "ids.length / letters"),
    "no special tokens": ("tokenizer.js", "special.length + 256 + merges", "256 + merges"),
    "numbers as ids": ("tokenizer.js", "tokens[special.length + number]", "tokens[number]"),
    "the next merge": ("tokenizer.js", "merges[merges - 1]", "merges[merges]"),
    "ids that are shifted": ("tokenizer.js", "ids.map((id) => tokens[id])", "ids.map(String)"),
    "groups of two": ("tokenizer.js", "(\\d{3})+$", "(\\d{2})+$"),
    "1 letters": ("tokenizer.js", "count === 1", "count === 0"),
    "another base": ("merges.js", "62 * DIGITS", "61 * DIGITS"),
    "a merge turned round": ("merges.js", '"1l19', '"191l'),
    "another order of the bytes": ("text.js", "byte > 32 && byte !== 173", "byte > 31"),
    "the merge before": ("byte_pairs.js", "256 + best", "255 + best"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damage_is_noticed(damage: tuple[str, str, str]):
    caught(NAME, *damage, count=250)


# --- what readers are told to see -----------------------------------------------------------------


def tried(number: int) -> tuple[dict, str]:
    one = engine(NAME).definition(NAME)["tries"][number]
    return values(**START | one["set"]), one["see"]


def test_without_merges():
    found, see = tried(0)
    start = values(**START)
    assert found["tokens"] == list(START["text"])
    assert f"{found['length']} in place of {start['length']}" in see
    assert 9 < found["scores"] / start["scores"] < 10


def test_one_word_three_times():
    found, see = tried(1)
    assert found["tokens"] == ["The", " the", " The"]
    assert see.startswith("Three tokens")
    assert "{}, {} and {}".format(*found["ids"]) in see


def test_rain_in_russian():
    found, see = tried(2)
    assert found["letters"] == len("дождь".encode()) / 2
    assert see.startswith(f"{found['letters']} characters, {found['length']} tokens")
    assert found["scores"] == 4 * found["letterScores"]
    assert max(found["ids"]) < BPETokenizer().vocab_size  # bytes alone


def test_the_static_picture():
    definition = engine(NAME).definition(NAME)["state"]
    assert {name: spec["start"] for name, spec in definition.items()} == START
    body, width, height = drawing(START, values(**START))
    assert width <= 680
    assert height < 400
    assert body.count("<rect") == 16 + 2
    assert "␣cat" in body
    empty = {"text": "", "merges": 0}
    assert "characters a token: –" in drawing(empty, values(**empty))[0]


def test_the_tree_is_cut_where_the_text_is() -> None:
    """What the first m merges join in the tree is what the tokenizer joins with m merges."""
    v8 = engine(NAME)
    for text in ("The cats are sleeping while the dogs are running.", "The the The", "Hamlet, hth"):
        found = v8.eval(f"Live.figures.tokenizer.joins({json.dumps(text)})")
        for merges in (0, 1, 2, 5, 12, 40, 100, 300, 700, 1276, 1277):
            tokens = values(text=text, merges=merges)["tokens"]
            starts = {sum(map(len, tokens[:at])) for at in range(len(tokens))}
            joined = {one["right"]["start"] for one in found if one["rank"] <= merges}
            assert starts == set(range(len(text))) - joined, (text, merges)
