"""Small faults that are put into a module on purpose, one at a time."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Mutant(NamedTuple):
    """A module with one change."""

    line: int
    before: str
    """The changed piece of code, as ``ast.unparse`` writes it."""
    after: str
    function: str
    """Qualified name of the function around the change."""
    source: str
    """The whole module."""

    @property
    def name(self) -> str:
        """The change without its line, so that the name survives edits elsewhere."""
        return f"{self.function}: {self.before} -> {self.after}"


class _Change(NamedTuple):
    node: ast.AST
    function: str
    text: str
    """What stands in the place of the node."""


_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Div: "*",
}
_OTHER_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_Rule = Callable[[ast.AST], str | None]


def mutants_of(source: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its lines.

    >>> [(mutant.before, mutant.after) for mutant in mutants_of("def f(x):\\n    return x < 2\\n")]
    [('x < 2', 'x <= 2'), ('2', '3')]
    """
    tree = ast.parse(source)
    found = [_mutant(source, change) for change in _changes(tree, "")]
    return sorted(found, key=lambda mutant: mutant.line)


def choose(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return ``count`` of the mutants, drawn by a seed, in their order."""
    if count >= len(mutants):
        return mutants
    numbers = random.Random(seed).sample(range(len(mutants)), count)
    return [mutants[number] for number in sorted(numbers)]


def _changes(node: ast.AST, function: str, is_code: bool = False) -> Iterator[_Change]:
    for child in ast.iter_child_nodes(node):
        name, inside = function, is_code
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name, inside = f"{function}.{child.name}".lstrip("."), True
        elif isinstance(child, ast.ClassDef):
            name = f"{function}.{child.name}".lstrip(".")
        if is_code:
            for rule in _RULES:
                if (text := rule(child)) is not None:
                    yield _Change(child, function, text)
        if not _is_prose_or_type(child, node):
            yield from _changes(child, name, inside)


def _is_prose_or_type(child: ast.AST, parent: ast.AST) -> bool:
    """Whether a piece is a message, a docstring, a decorator or an annotation: no behaviour."""
    if isinstance(child, ast.Raise | ast.JoinedStr | ast.arg):
        return True
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
        return child is parent.returns or child in parent.decorator_list
    return isinstance(parent, ast.AnnAssign) and child is parent.annotation


def _comparison(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Compare) or len(node.ops) > 1:
        return None
    other = _COMPARISONS[type(node.ops[0])]
    return f"{ast.unparse(node.left)} {other} {ast.unparse(node.comparators[0])}"


def _sign(node: ast.AST) -> str | None:
    if isinstance(node, ast.BinOp) and (other := _OPERATORS.get(type(node.op))):
        if isinstance(node.left, ast.Constant | ast.JoinedStr) and not _is_number(node.left):
            return None
        return f"({ast.unparse(node.left)}) {other} ({ast.unparse(node.right)})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        return ast.unparse(node.operand)
    return None


def _guard(node: ast.AST) -> str | None:
    """Remove an ``if`` that only leaves: by an error, a return, ``continue`` or ``break``."""
    leaves = ast.Raise | ast.Return | ast.Continue | ast.Break
    if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], leaves):
        return "pass"
    return None


def _call(node: ast.AST) -> str | None:
    """Remove a call whose result is not used, or swap a function for its opposite."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return "pass"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        other = _OTHER_CALLS.get(node.func.id)
        return other and f"{other}{ast.unparse(node)[len(node.func.id) :]}"
    return None


def _constant(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Constant):
        return None
    if isinstance(node.value, bool):
        return str(not node.value)
    return str(node.value + 1) if _is_number(node) else None


def _logic(node: ast.AST) -> str | None:
    if not isinstance(node, ast.BoolOp):
        return None
    word = " or " if isinstance(node.op, ast.And) else " and "
    return word.join(f"({ast.unparse(value)})" for value in node.values)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


_RULES: tuple[_Rule, ...] = (_comparison, _sign, _guard, _call, _constant, _logic)


def _mutant(source: str, change: _Change) -> Mutant:
    node = change.node
    begin = _position(source, node.lineno, node.col_offset)  # type: ignore[attr-defined]
    end = _position(source, node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    text = change.text if isinstance(node, ast.stmt) else f"({change.text})"
    before = ast.unparse(node).splitlines()
    return Mutant(
        line=node.lineno,  # type: ignore[attr-defined]
        before=before[0],
        after=change.text,
        function=change.function,
        source=source[:begin] + text + source[end:],
    )


def _position(source: str, line: int, column: int) -> int:
    """Index of a character; columns of syntax trees count bytes."""
    lines = source.splitlines(keepends=True)
    before = sum(map(len, lines[: line - 1]))
    return before + len(lines[line - 1].encode()[:column].decode())
