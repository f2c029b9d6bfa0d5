"""Which names a cell defines and needs: Python's own rules, one case each."""

from __future__ import annotations

import pytest

from tools.notebooks.names import names_of

# source -> what it defines, what it reads at once, what its functions read when they are called
CASES: dict[str, tuple[str, str, str]] = {
    # assignments
    "x = y": ("x", "y", ""),
    "a, (b, *c) = d": ("a b c", "d", ""),
    "x = 1\ny = x": ("x y", "", ""),
    "y = x\nx = 1": ("x y", "x", ""),
    "x = x + 1": ("x", "x", ""),
    "x: int = 3": ("x", "int", ""),
    "x += 1": ("x", "x", ""),
    "x = 1\nx += 1": ("x", "", ""),
    "rows[i] = 1": ("", "rows i", ""),
    "rows[i] += 1": ("", "rows i", ""),
    "model.rate = 1": ("", "model", ""),
    'f"{a:{b}}"': ("", "a b", ""),
    # deletions
    "del x": ("", "x", ""),
    "x = 1\ndel x": ("", "", ""),
    "x = 1\ndel x\nx": ("", "x", ""),
    "rows = [1]\ndel rows[0]": ("rows", "", ""),
    # imports
    "import a.b": ("a", "", ""),
    "import a.b as c, d": ("c d", "", ""),
    "from a import b as c, d": ("c d", "", ""),
    "from a import *": ("", "", ""),  # nobody knows; the linter refuses it
    # comprehensions run at once, and their variables stay inside
    "[a * b for a in c]": ("", "b c", ""),
    "x = [x for x in y]": ("x", "y", ""),
    "rows = [row for row in rows]": ("rows", "rows", ""),
    "{k: v for k, v in z.items() if k in w}": ("", "z w", ""),
    "any(x in y for x in z)": ("", "any y z", ""),
    "x = [n * scale for n in y]\nscale = 2": ("x scale", "y scale", ""),
    "[[f(a, b) for a in c] for b in d]": ("", "f c d", ""),
    # names bound on the way
    "(n := len(a)) + n": ("n", "len a", ""),
    "x = [(y := f(a)) for a in b]": ("x y", "f b", ""),
    "def f():\n    return (n := 3)": ("f", "", ""),
    # functions read when they are called
    "def f(a, b=c):\n    return a + b + d": ("f", "c", "d"),
    "def f(n):\n    return f(n - 1)": ("f", "", ""),
    "def f():\n    return g()\ndef g(): ...": ("f g", "", ""),
    "def f(x: T) -> U: ...": ("f", "T U", ""),
    "@wrap(a)\ndef f(): ...": ("f", "wrap a", ""),
    "def f():\n    x = 1\n    return x": ("f", "", ""),
    "def f():\n    return [a for b in c]": ("f", "", "a c"),
    "def f():\n    def g():\n        return a\n    return g": ("f", "", "a"),
    "def f():\n    global best\n    best = score": ("f best", "", "score"),
    "async def f():\n    await g()": ("f", "", "g"),
    "f = lambda x: x + y": ("f", "", "y"),
    "sorted(xs, key=lambda i: ys[i])": ("", "sorted xs", "ys"),
    "def f():\n    return y\nprint(y)": ("f", "print y", ""),
    # classes are made at once, their methods are called
    "class A(B):\n    x = y\n    z = x\n    def f(self):\n        return w": ("A", "B y", "w"),
    "class A:\n    def f(self):\n        return A()": ("A", "", ""),
    # statements that hold others
    "for a in b:\n    print(a, c)": ("a", "b print c", ""),
    "for a in a:\n    pass": ("a", "a", ""),
    "for a in b:\n    total = total + a": ("a total", "b total", ""),
    "for a in b:\n    best = a\n    print(best)": ("a best", "b print", ""),
    "for a in b:\n    total += a": ("a total", "b total", ""),
    "for a in b:\n    def f():\n        return a + c": ("a f", "b", "c"),
    "for a in b:\n    break\nelse:\n    c": ("a", "b c", ""),
    "while (line := get()):\n    use(line)": ("line", "get use", ""),
    "if a:\n    b = 1\nelif c:\n    b = 2\nelse:\n    d\nb": ("b", "a c d", ""),
    "with open(p) as f, g():\n    t = f.read()": ("f t", "open p g", ""),
    "try:\n    a = b\nexcept E as e:\n    print(e)\nfinally:\n    c": ("a e", "b E print c", ""),
    "match p:\n    case {'k': v, **rest} if v > w:\n        v": ("v rest", "p w", ""),
    "match p:\n    case A([x, *y]) | q.B:\n        x": ("x y", "p A q", ""),
}


@pytest.mark.parametrize("source", CASES)
def test_names_are_pythons(source: str) -> None:
    defines, reads, calls = CASES[source]
    found = names_of(source)
    assert found.error == ""
    assert sorted(found.defines) == sorted(defines.split())
    assert found.reads == set(reads.split())
    assert found.calls == set(calls.split())
    assert found.needs == found.reads | found.calls


def test_definitions_come_in_the_order_of_the_source() -> None:
    source = "import math\nfrom torch import nn, Tensor\nz = a = 1\ndef f(): ...\nz = 2"
    assert names_of(source).defines == ["math", "nn", "Tensor", "z", "a", "f"]


@pytest.mark.parametrize(
    ("source", "error"),
    [("x = 1\ny = (2", "line 2: '(' was never closed"), ("%time x", "line 1: invalid syntax")],
)
def test_what_is_no_python_is_told(source: str, error: str) -> None:
    found = names_of(source)
    assert found.error == error
    assert found.defines == []
    assert found.needs == set()
