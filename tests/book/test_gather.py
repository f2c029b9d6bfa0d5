"""The file that the reader writes: gathered from cells, and refused where a cell breaks its rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from specimens import write

from tools.notebooks.gather import Piece, all_pieces, gather, problems, stale, state_at, write_file
from tools.notebooks.model import NotebookError
from tools.notebooks.stubs import emptied, typed

FIRST = '''def attention(q, k, v):
    """What each query finds: a weighted mean of the values."""
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
    return weights @ v'''
SECOND = '''# replaces attention: now with a mask
def attention(q, k, v, mask=None):
    """What each query finds among the keys that it may see."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ v


# True where a position may look.
def causal_mask(T):
    """Each position sees itself and those before."""
    return torch.ones(T, T).tril().bool()'''
THIRD = '''class Head(nn.Module):
    """One head."""

    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)

    def forward(self, x):
        return attention(self.query(x), x, x, causal_mask(len(x)))'''


def piece(source: str, page: str = "03_attention") -> Piece:
    return Piece(page, page.replace("_", " · "), "cell", source)


PIECES = [piece(FIRST), piece(SECOND, "05_masks"), piece(THIRD, "06_heads")]


def notebook(title: str, *cells: str) -> NotebookNode:
    code = [new_code_cell(source, metadata={"tags": ["your-file"]}) for source in cells]
    return new_notebook(cells=[new_markdown_cell(f"# {title}"), *code, new_code_cell("1 + 1")])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "book").mkdir()
    pages = {"03_attention": FIRST, "05_masks": SECOND, "06_heads": THIRD}
    for name, source in pages.items():
        write(notebook(name, source), tmp_path / "book" / f"{name}.ipynb")
    names = [{"file": f"book/{name}"} for name in ("03_attention", "05_masks", "06_heads")]
    contents = {"root": "book/index", "parts": [{"caption": "One", "chapters": names}]}
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump(contents), encoding="utf-8")
    return tmp_path


# --- gathering --------------------------------------------------------------------------------


def test_a_later_page_replaces_what_an_earlier_one_wrote_in_its_place() -> None:
    text = gather(PIECES)
    assert text.count("def attention") == 1
    assert "mask=None" in text
    assert text.index("def attention") < text.index("def causal_mask") < text.index("class Head")
    assert "# replaces" not in text
    assert "# True where a position may look.\ndef causal_mask" in text


def test_the_file_runs_by_itself() -> None:
    names: dict[str, object] = {}
    exec(compile(gather(PIECES), "transformer.py", "exec"), names)
    assert {"attention", "causal_mask", "Head", "math", "torch", "nn"} <= names.keys()
    assert "F" not in names, "what no part uses is not imported"


def test_imports_of_a_cell_come_to_the_top_once() -> None:
    text = gather([piece("from collections import Counter\n\n\ndef count(x):\n    return Counter(x)")] * 2)
    assert text.count("from collections import Counter") == 1
    assert text.index("import Counter") < text.index("def count")


def test_what_runs_comes_last() -> None:
    main = piece('if __name__ == "__main__":\n    print(attention)', "04_scaling")
    text = gather([PIECES[0], main, *PIECES[1:]])
    assert text.rstrip().endswith("print(attention)")


def test_the_state_at_a_page(root: Path) -> None:
    assert "mask=None" not in state_at("03_attention", root)
    assert "causal_mask" in state_at("05_masks", root)
    assert "class Head" not in state_at("05_masks", root)
    assert state_at("06_heads", root) == gather(all_pieces(root))
    with pytest.raises(NotebookError, match="07_none: expected a page of the book"):
        state_at("07_none", root)


def test_both_places_hold_what_the_cells_say(root: Path) -> None:
    targets = [root / "book" / "transformer.py", root / "lib" / "__init__.py"]
    assert len(stale(targets, root)) == 2
    text = write_file(root, targets)
    assert [path.read_text(encoding="utf-8") for path in targets] == [text] * 2
    assert stale(targets, root) == []
    targets[0].write_text(text + "\n# by hand\n", encoding="utf-8")
    assert len(stale(targets, root)) == 1


# --- the guard --------------------------------------------------------------------------------


def test_nothing_is_wrong_with_these() -> None:
    assert list(problems(PIECES)) == []


@pytest.mark.parametrize(
    ("pieces", "trouble"),
    [
        ([piece(THIRD)], "uses attention, causal_mask, which no page before wrote"),
        ([piece(FIRST), piece(FIRST, "04_scaling")], "defines attention, as 03_attention does"),
        ([piece(SECOND)], "says that it replaces attention, and does not"),
        ([piece(f"{FIRST}\n\n\nprint(attention)")], "does something besides defining"),
        ([piece(f"import numpy\n\n\n{FIRST}")], "imports numpy"),
        ([piece(f"from transformer_lib import Block\n\n\n{FIRST}")], "imports transformer_lib"),
    ],
)
def test_a_cell_that_breaks_the_rules_is_refused(pieces: list[Piece], trouble: str) -> None:
    assert any(trouble in what for _, what, _ in problems(pieces))


def test_what_is_wrong_is_not_written(root: Path) -> None:
    write(notebook("06", "def late():\n    return unknown"), root / "book" / "06_heads.ipynb")
    target = root / "transformer.py"
    with pytest.raises(NotebookError, match="06_heads: cell .*: uses unknown"):
        write_file(root, [target])
    assert not target.exists()


# --- what the learner's edition shows ---------------------------------------------------------


def test_an_emptied_cell_keeps_signatures_and_sentences() -> None:
    assert emptied(FIRST) == (
        "def attention(q, k, v):\n"
        '    """What each query finds: a weighted mean of the values."""\n'
        "    ...\n\n\n"
        'attention = pick("file.attention", attention)'
    )
    left = emptied(THIRD)
    assert "nn.Linear" not in left
    assert "def __init__(self, width):\n        ..." in left
    assert "def forward(self, x):\n        ..." in left
    assert left.endswith('Head = pick("file.Head", Head)')


def test_what_a_learner_typed_is_found_again() -> None:
    mine = emptied(FIRST).replace("...", "return v.mean(dim=-2)")
    assert "pick" not in typed(mine)
    assert typed(mine).endswith("return v.mean(dim=-2)")
