"""Wrong versions of a reference answer, made by machine from its source.

One small change at a time: another axis, a missing scale, off by one, a missing clone, the other
comparison, `or` for `and`, a missing `~`, a missing call. Only expressions that a test really
evaluates are changed, in the reference and in the functions of its module that it calls. The parts
of the reader's file, which a module imports, count as its own.
"""

import ast
import copy
import inspect
import pickle
import sys
from dataclasses import dataclass
from functools import cache

from transformer_book import file
from transformer_book.exercises.grading.checking import Exercise

SKIPPED_CALLS = {
    "clone", "abs", "softmax", "sqrt", "exp", "log", "square", "relu", "tril", "triu", "activation",
}  # fmt: skip
OTHER_COMPARISON = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}  # fmt: skip
OTHER_OPERATOR = {ast.Add: ast.Sub, ast.Sub: ast.Add}
OTHER_LOGIC = {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}


@dataclass(frozen=True)
class Mutant:
    what: str
    answer: object


@cache
def _tree(module):
    return ast.parse(inspect.getsource(module))


def mutants(exercise: Exercise):
    """All wrong versions of an exercise's reference."""
    module, reference, functions = _sources(exercise)
    live = _evaluated(exercise, module, reference, functions)
    for number, what in live.items():
        yield Mutant(what, _build(module, reference, functions, _Changer(number)))


def count_mutants(exercise: Exercise) -> int:
    """The number of wrong versions."""
    return len(_evaluated(exercise, *_sources(exercise)))


def _sources(exercise):
    """The module of an exercise, the expression of its reference, and its module's functions."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("transformer_book.exercises."):
            continue
        for variable, value in vars(module).items():
            if value is exercise:
                return module, _reference(_tree(module), variable), _definitions(module)
    where = "a variable of a module in transformer_book/exercises, such as NEW = Exercise(...)"
    raise LookupError(f"the exercise with {exercise.reference} must be {where}")


def _reference(tree, variable):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == variable:
            for keyword in node.value.keywords:
                if keyword.arg == "reference":
                    return keyword.value
            why = "the tests change the reference by machine, and find it by that name"
            raise LookupError(f"write {variable} = Exercise(reference=..., ...): {why}")
    raise LookupError(f"{variable} is not assigned at the margin of its module")


def _definitions(module):
    """The functions and classes of a module, and the parts of the reader's file that it imports."""
    own, parts = (_top_level(_tree(source)) for source in (module, file))
    return {n: part for n, part in parts.items() if vars(module).get(n) is vars(file)[n]} | own


def _top_level(tree):
    kinds = ast.FunctionDef | ast.ClassDef
    return {node.name: node for node in tree.body if isinstance(node, kinds)}


@cache
def _pickled(node):
    return pickle.dumps(node)


def _copy(node):
    """A copy of a part of a module, several times faster than copy.deepcopy."""
    return pickle.loads(_pickled(node))


def _needed(reference, functions):
    """The reference's expression and every function that it may call, in the order of the file."""
    found, waiting = set(), [reference]
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.Name) and node.id in functions and node.id not in found:
                found.add(node.id)
                waiting.append(functions[node.id])
    return [functions[name] for name in functions if name in found]


def _build(module, reference, functions, changer):
    """Run the functions and the reference's expression, changed, in a copy of their module."""
    body = [changer.visit(_copy(node)) for node in _needed(reference, functions)]
    expression = ast.Expression(changer.visit(_copy(reference)))
    code = ast.Module(body=body, type_ignores=[])
    scope = {**vars(file), **vars(module), "_hit": changer.hit}
    exec(compile(ast.fix_missing_locations(code), "<mutant>", "exec"), scope)
    return eval(compile(ast.fix_missing_locations(expression), "<mutant>", "eval"), scope)


def _evaluated(exercise, module, reference, functions):
    """The numbers of the changes that a right answer passes on its way, and what they are."""
    changer = _Changer(None)
    answer = _build(module, reference, functions, changer)
    for i in range(len(exercise.inputs)):
        try:
            exercise.measure(answer(*exercise.arguments(i)))
        except Exception:
            continue
    return {number: what for number, what in changer.all.items() if number in changer.hits}


class _Changer(ast.NodeTransformer):
    """Numbers the possible changes and makes one of them, or marks all of them."""

    def __init__(self, chosen):
        self.chosen, self.n, self.all, self.hits = chosen, 0, {}, set()

    def hit(self, numbers, value):
        self.hits.update(numbers)
        return value

    def visit_FunctionDef(self, node):
        node.returns = None
        for argument in [*node.args.args, *node.args.kwonlyargs]:
            argument.annotation = None
        node.body = [self.visit(part) for part in node.body if not _is_docstring(part)] or [
            ast.Pass()
        ]
        return node  # defaults stay as they are

    def visit_Lambda(self, node):
        node.body = self.visit(node.body)
        return node

    def visit_AnnAssign(self, node):
        node.value = node.value and self.visit(node.value)
        node.annotation = ast.Constant(None)
        return node

    def visit_JoinedStr(self, node):
        return node

    def visit_Raise(self, node):
        return node

    def generic_visit(self, node):
        changes = list(_changes(node)) if isinstance(node, ast.expr) else []
        numbers = []
        for what, make in changes:
            self.all[self.n] = f"{what}: {ast.unparse(node)}"
            numbers.append(self.n)
            if self.n == self.chosen:
                self.n += 1
                return ast.copy_location(make(copy.deepcopy(node)), node)
            self.n += 1
        node = super().generic_visit(node)
        if self.chosen is None and numbers and _is_a_value(node):
            mark = ast.Tuple([ast.Constant(number) for number in numbers], ast.Load())
            return ast.Call(ast.Name("_hit", ast.Load()), [mark, node], [])
        return node


def _is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_a_value(node):
    return not isinstance(getattr(node, "ctx", ast.Load()), ast.Store | ast.Del)


def _changes(node):
    """What can go wrong in one expression: a description, and a function that does it."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off by one", lambda n: ast.Constant(n.value + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
        yield "missing scale", lambda n: n.left
    if isinstance(node, ast.BinOp) and type(node.op) in OTHER_OPERATOR:
        yield "wrong sign", lambda n: ast.BinOp(n.left, OTHER_OPERATOR[type(n.op)](), n.right)
    if isinstance(node, ast.BinOp) and type(node.op) in OTHER_LOGIC:
        yield "other logic", lambda n: ast.BinOp(n.left, OTHER_LOGIC[type(n.op)](), n.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        yield "missing ~", lambda n: n.operand
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER_COMPARISON:
        yield (
            "other comparison",
            lambda n: ast.Compare(n.left, [OTHER_COMPARISON[type(n.ops[0])]()], n.comparators),
        )
    if isinstance(node, ast.Attribute) and node.attr in ("mT", "T"):
        yield "missing transpose", lambda n: n.value
    if isinstance(node, ast.Call):
        yield from _changed_calls(node)


def _changed_calls(node):
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    owner = getattr(getattr(node.func, "value", None), "id", "")
    if method in SKIPPED_CALLS and owner in ("math", "torch", "np", "self"):
        yield f"missing {method}", lambda n: n.args[0]
    elif method in SKIPPED_CALLS:
        yield f"missing {method}", lambda n: n.func.value
    if method in ("transpose", "mean", "flip"):
        yield f"missing {method}", lambda n: n.func.value
    for keyword in node.keywords:
        axis = _axis(keyword.value)
        if keyword.arg in ("dim", "axis") and axis is not None:
            yield "swapped axis", _other_axis(keyword.arg, -3 - axis if axis < 0 else 1 - axis)


def _axis(node):
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if value in (-2, -1, 0, 1) and type(value) is int else None


def _other_axis(argument, axis):
    def change(node):
        for keyword in node.keywords:
            if keyword.arg == argument:
                keyword.value = ast.Constant(axis)
        return node

    return change
