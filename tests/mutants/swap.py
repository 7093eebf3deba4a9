"""Puts changed code into functions that exist: every holder of such a function runs the change, without a new import."""

from __future__ import annotations

import ast
import gc
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from tests.mutants.operators import functions, statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

__all__ = ["NotInFunctions", "functions_of", "mark", "swap"]

MARK = "__mutants_seen__"


class NotInFunctions(Exception):
    """The change is outside of functions, or makes of one what cannot take its place."""


def functions_of(path: Path) -> list[FunctionType]:
    """Return the functions of a file that exist by now."""
    gc.unfreeze()  # the tests freeze all modules, and frozen objects are not returned
    found = [some for some in gc.get_objects() if isinstance(some, FunctionType) and some.__code__.co_filename == str(path)]
    gc.freeze()
    return found


def swap(path: Path, changed: ast.Module | str, existing: Iterable[FunctionType]) -> None:
    """Give all functions of a file their changed code.

    Raises:
        NotInFunctions: When none has changed, or one cannot be changed.
    """
    before = dict(codes(compile(path.read_text(encoding="utf-8"), str(path), "exec")))
    after = dict(codes(compile(changed, str(path), "exec")))
    different = {key: code for key, code in after.items() if key in before and code != before[key]}
    if not different or after.keys() != before.keys():
        raise NotInFunctions(f"no function of {path} would run the change")
    new = {(code.co_qualname, before[key].co_firstlineno): code for key, code in different.items()}
    live = [function for function in existing if (function.__code__.co_qualname, function.__code__.co_firstlineno) in new]
    if not live:
        raise NotInFunctions(f"{path} is not imported by the tests")
    for function in live:
        code = new[function.__code__.co_qualname, function.__code__.co_firstlineno]
        try:
            function.__code__ = code
        except ValueError as error:
            raise NotInFunctions(f"{code.co_qualname}: {error}") from error


def codes(module: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Yield ((qualified name, number among its namesakes), code) of the functions of a module and of its classes."""
    counts: dict[str, int] = {}
    pending = [module]
    while pending:
        outer = pending.pop()
        for code in outer.co_consts:
            if not isinstance(code, CodeType):
                continue
            if code.co_flags & 2:  # CO_NEWLOCALS: a function; the body of a class has none
                counts[code.co_qualname] = counts.get(code.co_qualname, 0) + 1
                yield (code.co_qualname, counts[code.co_qualname]), code
            else:
                pending.append(code)


def mark(path: Path, seen: Callable[[int], None], existing: Iterable[FunctionType]) -> None:
    """Have each statement of a file's functions say its line before it runs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for function in functions(tree):
        for block, place in sorted(statements(function), key=lambda where: where[1], reverse=True):
            saying = ast.parse(f"{MARK}({block[place].lineno})").body[0]
            block.insert(place, ast.copy_location(saying, block[place]))
    swap(path, ast.fix_missing_locations(tree), existing)
    for live in existing:
        live.__globals__[MARK] = seen  # each file has its own
