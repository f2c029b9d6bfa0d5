"""Formulas, set when the book is built: KaTeX runs here, in V8, and pages need no script for them.

Each formula becomes HTML with MathML inside, for those who listen. What KaTeX cannot read is a
warning that names the page and the formula, and a warning fails the build.
"""

from __future__ import annotations

import atexit
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from py_mini_racer import MiniRacer
from sphinx.application import Sphinx
from sphinx.locale import _
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html import HTML5Translator

KATEX = Path(__file__).parent / "vendor" / "katex.min.js"
_SET_FORMULA = """
function setFormula(formula, displayMode) {
  const options = {displayMode, output: "htmlAndMathml", strict: "error"};
  try {
    return JSON.stringify({html: katex.renderToString(formula, options)});
  } catch (error) {
    return JSON.stringify({failed: error.message});
  }
}
"""
_BREAK = r"\\"
_SIGN = re.compile(r"[.,;:!?)\]’”]+")
_log = logging.getLogger(__name__)


class FormulaError(ValueError):
    """A formula that KaTeX cannot read."""


@cache
def _engine() -> MiniRacer:
    """V8 with KaTeX in it, one for each process."""
    engine = MiniRacer()
    atexit.register(engine.close)  # its thread would keep Python from ending
    engine.eval(KATEX.read_text(encoding="utf-8") + _SET_FORMULA)
    return engine


@cache
def typeset(formula: str, *, display: bool = False) -> str:
    r"""Set a formula.

    Args:
        formula: TeX.
        display: whether it stands on a line of its own.

    Returns:
        HTML with MathML inside.

    Raises:
        FormulaError: if KaTeX cannot read it.

    >>> "<annotation" in typeset(r"\sqrt{d_k}")
    True
    >>> typeset(r"\sqrt{d_k")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    book_math.FormulaError: KaTeX parse error: Expected '}', got 'EOF' at end of input: ...
    """
    answer = json.loads(_engine().call("setFormula", formula, display))
    if "failed" in answer:
        raise FormulaError(answer["failed"])
    html: str = answer["html"]
    return html


def joined(formula: str) -> str:
    r"""Put the parts of a displayed formula below each other, aligned at their ``&``.

    >>> joined("a = b")
    'a = b'
    >>> joined("a &= b \\\\ &= c")
    '\\begin{aligned}a &= b \\\\ &= c\\end{aligned}'
    >>> joined("a = b\n\nc = d")
    '\\begin{aligned}a = b\\\\c = d\\end{aligned}'
    """
    parts = [part.strip() for part in formula.split("\n\n") if part.strip()]
    if len(parts) == 1 and (_BREAK not in formula or _has_environment(formula)):
        return parts[0]
    return rf"\begin{{aligned}}{_BREAK.join(parts)}\end{{aligned}}"


def _has_environment(formula: str) -> bool:
    """Whether all line breaks stand inside an environment, such as a matrix."""
    inside = re.sub(r"\\begin\{(\w+\*?)\}.*?\\end\{\1\}", "", formula, flags=re.DOTALL)
    return _BREAK not in inside


class BindSigns(SphinxPostTransform):
    """Keeps the punctuation mark behind an inline formula on the formula's line."""

    default_priority = 800
    formats = ("html",)

    def run(self, **_options: Any) -> None:
        """Put each formula with a mark behind it into one element."""
        for formula in list(self.document.findall(nodes.math)):
            after = formula.next_node(descend=False, siblings=True)
            sign = _SIGN.match(after.astext()) if isinstance(after, nodes.Text) else None
            if sign is None:
                continue
            parent = formula.parent
            where = next(i for i, child in enumerate(parent) if child is after)  # not an equal text
            parent[where] = nodes.Text(after.astext()[sign.end() :])
            bound = nodes.inline(classes=["formula-and-sign"])
            parent.replace(formula, bound)
            bound += [formula, nodes.Text(sign.group())]


def _visit_math(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(writer.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    writer.body.append(_checked(node.astext(), node, display=False) + "</span>")
    raise nodes.SkipNode


def _visit_math_block(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(writer.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        writer.body.append(f'<span class="eqno">({get_node_equation_number(writer, node)})')
        writer.add_permalink_ref(node, _("Link to this equation"))
        writer.body.append("</span>")
    formula = node.astext() if node["nowrap"] else joined(node.astext())
    writer.body.append(_checked(formula, node, display=True) + "</div>\n")
    raise nodes.SkipNode


def _checked(formula: str, node: nodes.Node, *, display: bool) -> str:
    """Set a formula; what cannot be set is a warning, and the TeX stands in its place."""
    try:
        return typeset(formula, display=display)
    except FormulaError as error:
        _log.warning("the formula %r cannot be set: %s", formula, error, location=node)
        return nodes.Text(formula).astext().replace("<", "&lt;")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_html_math_renderer("katex", (_visit_math, None), (_visit_math_block, None))
    app.add_post_transform(BindSigns)
    # V8 has threads, which a forked process would wait for in vain.
    return {"parallel_read_safe": True, "parallel_write_safe": False}
