"""What a learner typed is kept: gathered over all notebooks, and nobody's work is overwritten."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transformer_book import file
from transformer_book.file.__main__ import main, save
from transformer_book.your_file import TAG, emptied, pieces_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("03_attention", "05_masks", "06_heads", "07_positions")
PARTS = (
    "merge", "BytePairs", "attention", "causal_mask", "padding_mask", "MultiHeadAttention",
    "rotate", "sinusoids", "FeedForward", "RMSNorm", "Block", "Encoder", "DecoderBlock",
    "Transformer", "translate",
)  # fmt: skip
MINE = """from transformer_book.exercises import pick
import itertools


def root(x):
    return x.shape[-1] ** 0.5


# in my own words
def attention(q, k, v, mask=None):
    scores = q @ k.mT / root(q)
    if mask is not None:
        scores = scores.where(mask, -torch.inf)
    weights = scores.softmax(dim=-1)
    weights = weights if mask is None else weights.where(mask, 0.0)
    return weights @ v, weights


attention = pick("file.attention.5", attention)
print(attention)"""


def pieces(page):
    return pieces_of(ROOT / "book" / f"{page}.ipynb")


def write_page(folder, page, *sources):
    cells = [
        {"cell_type": "markdown", "source": f"# {page}"},
        {"cell_type": "code", "source": "1 + 1", "metadata": {}},
    ]
    cells += [
        {"cell_type": "code", "source": source, "id": f"part-{i}", "metadata": {"tags": [TAG]}}
        for i, source in enumerate(sources)
    ]
    (folder / f"{page}.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The pages of the learner's edition that have a cell of the file, as nobody has used them."""
    for page in PAGES:
        write_page(tmp_path, page, *map(emptied, pieces(page)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_empty_cells_give_the_books_file(folder, capsys):
    assert main(["save"]) == 0
    parts = [f"{name}: the book's" for name in PARTS]
    assert capsys.readouterr().out.splitlines() == [
        f"my_transformer.py: {len(parts)} parts", *(f"  {part}" for part in parts)
    ]  # fmt: skip
    text = Path("my_transformer.py").read_text(encoding="utf-8")
    assert "# the book's\ndef attention(q, k, v, mask=None):" in text
    assert "# ---" not in text
    layer = imported(folder / "my_transformer.py").MultiHeadAttention(6, 2)
    assert layer(torch.zeros(1, 4, 6)).shape == (1, 4, 6)


def test_what_was_typed_takes_the_place_of_the_books(folder):
    write_page(folder, "05_masks", MINE)
    assert save(folder, Path("mine.py")) == [
        "merge: the book's",
        "BytePairs: the book's",
        "root: yours, from 05_masks",
        "attention: yours, from 05_masks",
        *(f"{name}: the book's" for name in PARTS[3:]),
    ]
    text = Path("mine.py").read_text(encoding="utf-8")
    assert "# yours, from 05_masks\n# in my own words\ndef attention" in text
    assert text.index("def root") < text.index("def attention") < text.index("class MultiHead")
    assert "pick" not in text
    assert "import itertools" in text
    mine, x = imported(folder / "mine.py"), torch.randn(1, 4, 6)
    torch.testing.assert_close(mine.attention(x, x, x)[0], file.attention(x, x, x)[0])


def test_an_older_version_gives_way_to_the_page_that_replaces_it(folder):
    first = "def attention(q, k, v):\n    w = (q @ k.mT).softmax(-1)\n    return w @ v, w"
    write_page(folder, "03_attention", first)
    told = save(folder, Path("mine.py"))
    assert told[2] == (
        "attention: the book's, because 05_masks replaces yours of 03_attention and is empty"
    )
    write_page(folder, "05_masks", MINE)
    assert save(folder, Path("mine.py"))[3] == "attention: yours, from 05_masks"


def test_the_books_own_text_is_the_books(folder):
    for page in PAGES:
        write_page(folder, page, *(piece.source for piece in pieces(page)))
    assert save(folder, Path("mine.py")) == [f"{name}: the book's" for name in PARTS]


def test_it_can_be_saved_again_until_somebody_edits_the_file(folder, capsys):
    assert main(["save"]) == main(["save"]) == 0
    target = folder / "my_transformer.py"
    changed = target.read_text(encoding="utf-8") + "# and more\n"
    target.write_text(changed, encoding="utf-8")
    assert main(["save"]) == 2
    assert capsys.readouterr().err == (
        "my_transformer.py: expected no file there, or one as this command wrote it; "
        "move yours away first\n"
    )
    assert target.read_text(encoding="utf-8") == changed
    assert main(["save", "--to", "other.py"]) == 0


@pytest.mark.parametrize("text", ["", "def attention(): ...\n"])
def test_a_file_of_another_origin_is_refused(text, folder):
    (folder / "my_transformer.py").write_text(text, encoding="utf-8")
    assert main(["save"]) == 2
    assert (folder / "my_transformer.py").read_text(encoding="utf-8") == text


def test_a_cell_that_is_not_python_is_named(folder, capsys):
    write_page(folder, "06_heads", "class MultiHeadAttention(nn.Module:\n    pass")
    assert main(["save"]) == 2
    assert "06_heads.ipynb, cell part-0: line 1: " in (said := capsys.readouterr().err)
    assert said.endswith("; expected Python\n")
    assert not (folder / "my_transformer.py").exists()


def test_a_folder_without_cells_is_named(folder, capsys):
    (folder / "empty").mkdir()
    assert main(["save", "empty"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("empty: no notebook there has a cell tagged `your-file`; expected the ")
    (folder / "empty" / "07_positions.ipynb").write_text("no notebook", encoding="utf-8")
    assert main(["save", "empty"]) == 2
    assert "07_positions.ipynb: expected a notebook" in capsys.readouterr().err


def test_the_command_runs(folder):
    command = [sys.executable, "-m", "transformer_book.file", "save", str(folder)]
    target = folder / "out.py"
    done = subprocess.run([*command, "--to", str(target)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert target.is_file()
