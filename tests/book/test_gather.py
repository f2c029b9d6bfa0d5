"""The file that the reader writes: gathered from cells, refused where a cell breaks its rules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from specimens import write

from tools.notebooks.__main__ import check_command, main
from tools.notebooks.gather import inspect_file, problems, targets, write_file
from tools.notebooks.model import BOOK, ROOT, NotebookError
from tools.site import toc_pages
from transformer_book.exercises import EXERCISES
from transformer_book.your_file import Piece, all_pieces, emptied, gather, parts_of, pieces_of

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
        # the queries first
        q = self.query(x)
        return attention(q, x, x, causal_mask(len(x)))'''
COUNT = '''from collections import Counter


def count(x):
    """How often each thing occurs."""
    return Counter(x)'''


def piece(source: str, page: str = "03_attention") -> Piece:
    return Piece(page, page.replace("_", " · "), "cell", 1, source)


PIECES = [piece(FIRST), piece(SECOND, "05_masks"), piece(THIRD, "06_heads")]


def notebook(title: str, *cells: str) -> NotebookNode:
    code = [new_code_cell(source, metadata={"tags": ["your-file"]}) for source in cells]
    return new_notebook(cells=[new_markdown_cell(f"# {title}"), *code, new_code_cell("1 + 1")])


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Three pages with a cell each."""
    folder = tmp_path / "book"
    folder.mkdir()
    for page, source in {"03_attention": FIRST, "05_masks": SECOND, "06_heads": THIRD}.items():
        write(notebook(page, source), folder / f"{page}.ipynb")
    return folder


# --- gathering --------------------------------------------------------------------------------


def test_a_later_page_replaces_what_an_earlier_one_wrote_in_its_place() -> None:
    text = gather(PIECES)
    assert text.count("def attention") == 1
    assert "# page 5: now with a mask\ndef attention(q, k, v, mask=None):" in text
    assert text.index("def attention") < text.index("def causal_mask") < text.index("class Head")
    assert "# replaces" not in text
    assert "# True where a position may look.\ndef causal_mask" in text


def test_parts_stand_below_the_title_of_their_first_page() -> None:
    titles = [line for line in gather(PIECES).splitlines() if line.startswith("# ---")]
    assert titles == ["# --- 03 · attention", "# --- 05 · masks", "# --- 06 · heads"]


def test_the_gathered_text_runs() -> None:
    names: dict[str, object] = {}
    exec(compile(gather(PIECES), "transformer.py", "exec"), names)
    assert {"attention", "causal_mask", "Head", "math", "torch", "nn"} <= names.keys()
    assert "F" not in names, "what no part uses is not imported"


def test_imports_of_a_cell_come_to_the_top_once() -> None:
    text = gather([piece(COUNT), piece(COUNT.replace("count", "tally"))])
    assert text.count("from collections import Counter") == 1
    assert text.index("import Counter") < text.index("def count") < text.index("def tally")


def test_what_runs_comes_last() -> None:
    run = piece('if __name__ == "__main__":\n    print(attention)', "04_scaling")
    text = gather([PIECES[0], run, *PIECES[1:]])
    assert text.rstrip().endswith("print(attention)")


def test_pieces_are_read_off_the_pages_in_order(book: Path) -> None:
    found = all_pieces(book)
    assert [p.page for p in found] == ["03_attention", "05_masks", "06_heads"]
    assert [(p.title, p.number) for p in found[:2]] == [("03_attention", 2), ("05_masks", 2)]
    assert [p.source for p in found] == [FIRST, SECOND, THIRD]


def test_a_file_that_is_no_notebook_is_named(tmp_path: Path) -> None:
    path = tmp_path / "05_masks.ipynb"
    for text in ("no JSON", "[]", "{}"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"05_masks\.ipynb: expected a notebook"):
            pieces_of(path)


def test_the_order_of_names_is_the_order_of_the_contents() -> None:
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [Path(page).name for page in toc_pages(contents) if Path(page).name[0].isdigit()]
    assert len(chapters) > 50
    assert chapters == sorted(chapters)
    assert {piece.page for piece in all_pieces(BOOK)} <= {*chapters}


# --- both places ------------------------------------------------------------------------------


def test_both_places_hold_what_the_cells_say(book: Path) -> None:
    paths = sorted(book.glob("*.ipynb"))
    assert len(list(inspect_file(paths))) == 2, "neither is written yet"
    text = write_file(book)
    assert [path.read_text(encoding="utf-8") for path in targets(book)] == [text] * 2
    assert list(inspect_file(paths)) == []
    targets(book)[0].write_text(text + "\n# by hand\n", encoding="utf-8")
    (found,) = inspect_file(paths[:1])
    assert str(found).endswith(
        "transformer.py: is not what the cells of the pages say; "
        "run `python -m tools.notebooks file`"
    )


def test_the_books_own_file_is_what_its_cells_say() -> None:
    text = gather(all_pieces(BOOK))
    for path in targets():
        assert path.read_text(encoding="utf-8") == text, "run python -m tools.notebooks file"
    assert list(inspect_file(sorted(BOOK.glob("*.ipynb")))) == []


def test_the_command_writes_it(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for function in (write_file, targets):
        monkeypatch.setattr(function, "__defaults__", (book,))
    assert main(["file"]) == 0
    assert "book/transformer.py and " in capsys.readouterr().out.replace("\\", "/")
    assert gather(all_pieces(book)) == targets(book)[0].read_text(encoding="utf-8")
    write(notebook("06", "def late():\n    return unknown"), book / "06_heads.ipynb")
    assert main(["file"]) == 2
    assert "06_heads.ipynb, cell" in capsys.readouterr().err


def test_it_imports_like_any_module() -> None:
    program = "from transformer_book.file import MultiHeadAttention, attention"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_every_part_has_a_check_that_its_page_calls() -> None:
    parts = [part for piece in all_pieces(BOOK) for part in parts_of(piece)]
    assert [part.exercise for part in parts][:7] == [
        *("file.merge", "file.BytePairs", "file.attention", "file.attention.5"),
        *("file.causal_mask", "file.padding_mask", "file.MultiHeadAttention"),
    ]
    for part in parts:
        cells = json.loads((BOOK / f"{part.piece.page}.ipynb").read_text(encoding="utf-8"))["cells"]
        below = "".join("".join(cell["source"]) for cell in cells[part.piece.number :])
        assert part.exercise in EXERCISES, "its learner's cell would fail"
        assert f'check("{part.exercise}", {part.name})' in below


# --- the guard --------------------------------------------------------------------------------


def test_nothing_is_wrong_with_these() -> None:
    assert list(problems([*PIECES, piece(COUNT, "07_positions")])) == []


ALONE = '    """Words."""\n'


@pytest.mark.parametrize(
    ("pieces", "trouble", "cure"),
    [
        (
            [piece(THIRD)],
            "uses `attention`, `causal_mask`, which no page before it wrote",
            "write it, or do without",
        ),
        (
            [PIECES[2], piece(SECOND.replace("# replaces attention: now with a mask\n", ""))],
            "uses `attention`, `causal_mask`, which no page before it wrote",
            "write it, or do without",
        ),
        (
            [piece(FIRST), piece(FIRST, "04_scaling")],
            "defines `attention`, as 03_attention.ipynb, cell cell does",
            "write `# replaces attention: what is new` as its first line",
        ),
        (
            [piece(SECOND)],
            "says that it replaces `attention`, and does not",
            "correct its first line",
        ),
        (
            [piece(f"{FIRST}\n\n\nprint(attention)")],
            "does more than define parts: `print(attention)`",
            "move that to the cell below",
        ),
        ([piece(f"import numpy\n\n\n{FIRST}")], "imports numpy", "only PyTorch and the standard"),
        (
            [piece(f"from transformer_lib import Block\n\n\n{FIRST}")],
            "imports transformer_lib",
            "only PyTorch and the standard",
        ),
        (
            [piece(f"def late():\n{ALONE}    import numpy as np\n    return np")],
            "imports numpy",
            "only PyTorch and the standard",
        ),
        (
            [piece("def bare(x):\n    return x")],
            "`bare` has no docstring of one line",
            "all that a learner sees",
        ),
        ([piece("def f(:\n    return 1")], "line 1: invalid syntax; expected Python", "correct it"),
    ],
)
def test_a_cell_that_breaks_a_rule_is_refused(pieces: list[Piece], trouble: str, cure: str) -> None:
    found = [(what, how) for _, what, how in problems(pieces)]
    assert any(trouble in what and cure in how for what, how in found), found


def test_the_guard_names_page_cell_and_cure(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_file(book)
    path = book / "06_heads.ipynb"
    page = notebook("06 · Heads", f"def late():\n{ALONE}    return unknown")
    page.cells[1].id = "06-file"
    write(page, path)
    (found,) = inspect_file([path])
    assert str(found).endswith(
        "06_heads.ipynb: cell 06-file (under “06 · Heads”): belongs to the file, but uses "
        "`unknown`, which no page before it wrote; write it, or do without"
    )
    assert list(inspect_file([book / "05_masks.ipynb"])) == [], "other pages are not blamed"
    assert check_command([path]) == 1
    assert "belongs to the file, but uses `unknown`" in capsys.readouterr().err


def test_what_is_wrong_is_not_written(book: Path) -> None:
    write(notebook("06", f"def late():\n{ALONE}    return unknown"), book / "06_heads.ipynb")
    with pytest.raises(NotebookError, match=r"06_heads\.ipynb, cell .*: uses `unknown`"):
        write_file(book)
    assert not any(path.exists() for path in targets(book))
    with pytest.raises(NotebookError, match="no cell is tagged `your-file`"):
        write_file(book.parent)


# --- what the learner's edition shows ---------------------------------------------------------


def test_an_emptied_cell_keeps_signatures_and_sentences() -> None:
    assert emptied(PIECES[0]) == (
        "from transformer_book.exercises import pick\n\n\n"
        "def attention(q, k, v):\n"
        '    """What each query finds: a weighted mean of the values."""\n'
        "    ...\n\n\n"
        'attention = pick("file.attention", attention)'
    )
    left = emptied(PIECES[2])
    assert "nn.Linear" not in left
    assert "the queries first" not in left
    assert "def __init__(self, width):\n        ..." in left
    assert "def forward(self, x):\n        ..." in left
    assert left.endswith('Head = pick("file.Head", Head)')


def test_an_emptied_replacement_asks_for_the_check_of_its_page() -> None:
    left = emptied(PIECES[1])
    assert left.startswith("# replaces attention: now with a mask\nfrom transformer_book")
    assert left.endswith(
        'attention = pick("file.attention.5", attention)\n'
        'causal_mask = pick("file.causal_mask", causal_mask)'
    )


def test_an_emptied_cell_keeps_its_imports_and_constants() -> None:
    source = f"{COUNT}\n\n\n# All there are.\nN = 3\n\n\n@torch.no_grad()\ndef g(x): return x"
    left = emptied(piece(source))
    assert left.startswith("from collections import Counter\nfrom transformer_book")
    assert "# All there are.\nN = 3" in left
    assert "@torch.no_grad()\ndef g(x):\n    ..." in left
    assert "N = pick" not in left


PATTERN = '''class Cut:
    """Cuts."""

    pattern = r"a+"
    pattern += r"|b"

    def cut(self, text):  # into words
        return re.findall(self.pattern, text)'''


def test_an_emptied_class_keeps_its_constants_and_is_empty_all_the_same() -> None:
    left = emptied(piece(PATTERN))
    kept = '    pattern = r"a+"\n    pattern += r"|b"\n\n    def cut(self, text):  # into words\n'
    assert '    """Cuts."""\n\n    pattern' in left
    assert kept in left
    assert "findall" not in left
    (part,) = parts_of(piece(left))
    assert part.is_empty
    assert emptied(piece(left)) == left
    (part,) = parts_of(piece(PATTERN))
    assert not part.is_empty


def test_an_emptied_cell_is_empty_and_the_same_when_emptied_again() -> None:
    for one in PIECES:
        left = piece(emptied(one), one.page)
        assert all(part.is_empty for part in parts_of(left))
        assert not any(part.is_empty for part in parts_of(one))
        assert emptied(left) == left.source
