"""Formulas are set when the book is built, and one that cannot be set fails the build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "book" / "_ext"
sys.path.insert(0, str(EXTENSIONS))

import book_math  # noqa: E402

CONFIGURATION = f"""
import sys
sys.path.insert(0, {str(EXTENSIONS)!r})
extensions = ["myst_parser", "book_math"]
myst_enable_extensions = ["dollarmath", "amsmath"]
html_math_renderer = "katex"
math_numfig = False
"""

PAGE = r"""# The root, $\sqrt{d_k}$

Scores are $q \cdot k$, divided by ($\sqrt{d_k}$). And $x$ alone.

Take **one**. The $y$. The *end*.

$$
\operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V
$$ (eq-attention)

$$
a &= b + c \\
  &= d
$$

\begin{align*}
e &= f \\
g &= h
\end{align*}

See {eq}`eq-attention`.
"""


def build(folder: Path, page: str) -> tuple[BeautifulSoup, str]:
    """Build a site of one page; returns the page and what Sphinx said."""
    (folder / "index.md").write_text(page, encoding="utf-8")
    (folder / "conf.py").write_text(CONFIGURATION, encoding="utf-8")
    command = ["sphinx", "-b", "html", "-W", "--keep-going", "-q", str(folder), str(folder / "out")]
    run = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, timeout=120
    )
    assert (run.returncode == 0) == (run.stderr == ""), run.stderr
    html = (folder / "out" / "index.html").read_text(encoding="utf-8")
    return BeautifulSoup(html, "html.parser"), run.stderr


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> BeautifulSoup:
    html, said = build(tmp_path_factory.mktemp("math"), PAGE)
    assert said == ""
    return html


def formulas(page: BeautifulSoup, selector: str) -> list[str]:
    """The TeX that MathML carries along, formula by formula."""
    return [note.get_text() for note in page.select(f"{selector} annotation")]


def test_every_formula_is_set_with_mathml_inside(page: BeautifulSoup) -> None:
    for place in page.select(".math"):
        assert place.select(".katex > .katex-mathml math")
        hidden = place.select_one(".katex > .katex-html")
        assert isinstance(hidden, Tag)
        assert hidden["aria-hidden"] == "true"  # who listens hears the MathML, once
    assert formulas(page, "h1") == [r"\sqrt{d_k}"]
    assert formulas(page, "p") == [r"q \cdot k", r"\sqrt{d_k}", "x", "y"]
    first, second, third = formulas(page, "div.math")
    assert first.startswith(r"\operatorname{softmax}")
    assert second.startswith(r"\begin{aligned}")
    assert third.startswith(r"\begin{align*}")


def test_no_script_is_needed(page: BeautifulSoup) -> None:
    scripts = "".join(str(script) for script in page.select("script")).lower()
    assert "mathjax" not in scripts
    assert "katex" not in scripts


def test_numbers_and_references_of_equations(page: BeautifulSoup) -> None:
    (number,) = page.select("div.math .eqno")
    assert number.get_text().startswith("(1)")
    block = number.parent
    assert isinstance(block, Tag)
    assert block["id"] == "equation-eq-attention"
    (reference,) = page.select("p a.internal")
    assert (reference.get_text(), reference["href"]) == ("(1)", "#equation-eq-attention")


def test_a_sign_stays_with_its_formula(page: BeautifulSoup) -> None:
    bound = [
        place.find_all(string=True, recursive=False) for place in page.select(".formula-and-sign")
    ]
    assert bound == [[","], [")."], ["."]]


def test_an_equal_piece_of_text_keeps_its_sign(page: BeautifulSoup) -> None:
    (text,) = [p for p in page.select("p") if p.get_text().startswith("Take")]
    assert text.find_all(string=True, recursive=False) == ["Take ", ". The ", " The ", "."]


@pytest.mark.parametrize(
    ("formula", "trouble"),
    [
        (r"\sqrt{d", "Expected '}'"),
        (r"\nonsense{x}", r"Undefined control sequence: \nonsense"),
        ("x é y", "Accented Unicode"),
        (r"\begin{matrix} a \end{pmatrix}", "Mismatch"),
    ],
)
def test_what_cannot_be_set_fails_the_build(tmp_path: Path, formula: str, trouble: str) -> None:
    _, said = build(tmp_path, f"# A page\n\nBefore ${formula}$ after.\n")
    assert "index.md" in said
    assert formula in said.replace("\\\\", "\\")
    assert trouble in said.replace("\\\\", "\\")


@pytest.mark.parametrize(
    ("formula", "joined"),
    [
        ("a = b", "a = b"),
        ("a \\\\ b", r"\begin{aligned}a \\ b\end{aligned}"),
        ("a\n\nb", r"\begin{aligned}a\\b\end{aligned}"),
        ("X = \\begin{bmatrix} 1 \\\\ 2 \\end{bmatrix}", None),
    ],
)
def test_lines_of_a_formula_are_aligned(formula: str, joined: str | None) -> None:
    assert book_math.joined(formula) == (formula if joined is None else joined)


def test_python_ends_although_v8_has_threads() -> None:
    source = f"import sys; sys.path.insert(0, {str(EXTENSIONS)!r})\nimport book_math\n"
    command = [sys.executable, "-c", source + "book_math.typeset('x')"]
    subprocess.run(command, check=True, timeout=60)
