"""Possible mistakes in a line: every small change of a source file that its tests should see.

Only bodies of functions are changed. What a module or a class says while it is imported (constants, defaults, decorators) stays.
"""

from __future__ import annotations

import ast
from copy import deepcopy
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["REMOVED", "Mutant", "mutants", "statements"]

REMOVED = "removed"
Function = ast.FunctionDef | ast.AsyncFunctionDef
SWAPPED: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}
SWAPPED_NAMES = {"min": "max", "max": "min"}
# Printed for people: its text is no behaviour.
LEFT_ALONE = frozenset({"__repr__", "__str__"})


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: where it is, and what takes the place of what in the tree it was found in."""

    number: int  # in its file
    line: int  # where its statement begins
    text: str  # the first line of that statement
    change: str
    parent: ast.AST
    field: str
    place: int | None  # in the list that the field is, if it is one
    replacement: ast.AST

    def apply(self) -> None:
        """Change the tree."""
        new = ast.fix_missing_locations(ast.copy_location(self.replacement, self.replaced))
        if self.place is None:
            setattr(self.parent, self.field, new)
        else:
            getattr(self.parent, self.field)[self.place] = new

    @property
    def replaced(self) -> ast.AST:
        """Return what stands there."""
        there = getattr(self.parent, self.field)
        old: ast.AST = there if self.place is None else there[self.place]
        return old


def mutants(tree: ast.Module, source: str) -> list[Mutant]:
    """List every mutant of a file, in the order of its lines."""
    lines = source.splitlines()
    found = [
        (statement.lineno, lines[statement.lineno - 1].strip(), change, parent, field, place, new)
        for function in functions(tree)
        for statement, parent, field, place, old in parts(function)
        for change, new in changes(old, function)
    ]
    return [Mutant(number, *parts) for number, parts in enumerate(sorted(found, key=itemgetter(0)))]


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield the functions of a file that are not within another one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            if node.name not in LEFT_ALONE:
                yield node
        else:
            yield from functions(node)


def statements(function: Function) -> Iterator[tuple[list[ast.stmt], int]]:
    """Yield (list, place) of each statement of a function and of those within it, documentation left out."""
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            for place, statement in enumerate(block):
                documents = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                if isinstance(statement, ast.stmt) and not documents:
                    yield block, place


def parts(function: Function) -> Iterator[tuple[ast.stmt, ast.AST, str, int | None, ast.AST]]:
    """Yield (statement, parent, field, place, node) of what stands in a function, each once."""
    pending: list[tuple[ast.AST, ast.stmt | None]] = [(function, None)]
    while pending:
        node, statement = pending.pop()
        for field, value in ast.iter_fields(node):
            if field in {"annotation", "returns", "args", "decorator_list", "type_comment"} and not isinstance(node, ast.Call):
                continue  # said while the function is made, or for readers
            inner = value if isinstance(value, list) else [value]
            for place, child in enumerate(inner):
                if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                    continue
                within = child if isinstance(child, ast.stmt) else statement
                if within is not None:
                    yield within, node, field, place if isinstance(value, list) else None, child
                pending.append((child, within))


def changes(node: ast.AST, function: Function) -> Iterator[tuple[str, ast.AST]]:
    """Yield (description, replacement) for one node."""
    if isinstance(node, ast.stmt):
        yield from of_statement(node, function)
    elif isinstance(node, ast.expr):
        for expression in of_expression(node):
            yield f"{ast.unparse(node)} -> {ast.unparse(expression)}", expression


def of_statement(node: ast.stmt, function: Function) -> Iterator[tuple[str, ast.stmt]]:
    """Yield (description, replacement) for a statement as a whole."""
    if isinstance(node, ast.If | ast.While) and not says_its_opposite(node.test):
        negated = deepcopy(node)
        negated.test = ast.UnaryOp(ast.Not(), node.test)
        yield "condition negated", negated
    elif isinstance(node, ast.Continue):
        yield "continue -> break", ast.Break()
        yield REMOVED, ast.Pass()
    elif isinstance(node, ast.Break):
        yield "break -> continue", ast.Continue()
        yield REMOVED, ast.Pass()
    elif isinstance(node, ast.AugAssign) and type(node.op) in SWAPPED:
        swapped = deepcopy(node)
        swapped.op = SWAPPED[type(node.op)][0]()  # type: ignore[assignment]
        yield f"{ast.unparse(node)} -> {ast.unparse(swapped)}", swapped
        yield REMOVED, ast.Pass()
    elif removable(node, function):
        yield REMOVED, ast.Pass()


def says_its_opposite(test: ast.expr) -> bool:
    """Tell whether the opposite of a condition is among the changes of its expression."""
    return (isinstance(test, ast.Compare) and len(test.ops) == 1) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def removable(node: ast.stmt, function: Function) -> bool:
    """Tell whether a function without this statement can still be run."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) or (isinstance(node.value, ast.Await) and isinstance(node.value.value, ast.Call))
    if isinstance(node, ast.Return):
        return node is not function.body[-1]
    if isinstance(node, ast.Assign):
        return all(set_elsewhere(target, function) for target in node.targets)
    return isinstance(node, ast.Delete | ast.Raise | ast.AugAssign)


def set_elsewhere(target: ast.expr, function: Function) -> bool:
    """Tell whether what is assigned has a value without this assignment.

    A local name without one would be an error anywhere.
    """
    if isinstance(target, ast.Attribute | ast.Subscript):
        return True
    if not isinstance(target, ast.Name):
        return False
    taken = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    stores = [
        node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == target.id
    ]
    return target.id in taken or len(stores) > 1


def of_expression(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what may stand in an expression's place."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for op in SWAPPED[type(node.ops[0])]:
            yield ast.Compare(node.left, [op()], node.comparators)  # type: ignore[list-item]
    elif isinstance(node, ast.Compare):
        for place, old in enumerate(node.ops):
            swapped = deepcopy(node)
            swapped.ops[place] = SWAPPED[type(old)][0]()  # type: ignore[call-overload]
            yield swapped
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPPED[type(node.op)][0](), node.values)  # type: ignore[arg-type]
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        yield ast.BinOp(node.left, SWAPPED[type(node.op)][0](), node.right)  # type: ignore[arg-type]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SWAPPED_NAMES:
        yield ast.Call(ast.Name(SWAPPED_NAMES[node.func.id], ast.Load()), node.args, node.keywords)
    elif isinstance(node, ast.Constant):
        yield from (ast.Constant(value) for value in of_value(node.value))


def of_value(value: object) -> Iterator[bool | int | float]:
    """Yield what is next to a number, and the other truth."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
        yield value - 1
