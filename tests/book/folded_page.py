"""A small good page with a cell of every kind, so that each can be damaged on its own."""

from __future__ import annotations

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.notebooks.fold import dress

# id -> tag, source. The title of the set-up cell is generated.
CELLS = {
    "colab": ("remove-cell", '# @title Set-up for Colab\nimport os\n\nREPOSITORY = ""'),
    "imports": (
        "set-up",
        "import math\nimport random\n\nimport torch\n\n"
        "torch.set_printoptions(precision=3)\ntorch.manual_seed(0)\nseed = 0",
    ),
    "words": (
        "fold",
        "# @title The words that are counted: words, longest\n"
        'words = ["a", "bc", "abc"]\nlongest = max(words, key=len)\nspare = 1\n'
        "print(len(words))",
    ),
    "count": (
        "",
        "def count(letter):\n    return sum(letter in word for word in words)\n\n\n"
        'print(count("a"), longest)',
    ),
    "guess": ("predict", 'print(math.sqrt(count("b")))'),
    "yours": ("", "def your_count(letter): ..."),
    "solution": (
        "solution",
        "# @title Solution\ndef solved_count(letter):\n"
        "    return len([word for word in words if letter in word])\n\n\n"
        'print(solved_count("a"))',
    ),
    "second": ("solution", '# @title Solution\nprint(your_count("a"))'),
    "end": ("", 'print(count("c"), random.Random(seed).random())'),
}
PRINTS = {
    "words": "3\n",
    "count": "2 abc\n",
    "guess": "1.41\n",
    "solution": "2\n",
    "second": "None\n",
}


def undressed() -> NotebookNode:
    """The page as its author writes it, with some outputs."""
    cells = [new_markdown_cell("# A page", id="title")]
    for name, (tag, source) in CELLS.items():
        cell = new_code_cell(source, id=name, metadata={"tags": [tag]} if tag else {})
        cell.execution_count = len(cells)
        if name in PRINTS:
            cell.outputs = [new_output("stream", name="stdout", text=PRINTS[name])]
        cells.append(cell)
    return new_notebook(cells=cells, metadata={"page": {"kind": "core"}})


def dressed() -> NotebookNode:
    """The page as the tools store it."""
    notebook = undressed()
    dress(notebook)
    return notebook
