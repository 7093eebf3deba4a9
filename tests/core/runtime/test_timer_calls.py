"""Find timers that their own call cancels before its last line.

A timer whose call fails is set again, unless it was cancelled in that call: to cancel first and fail
afterwards would end the timer for good.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def cancels_of(statements: list[ast.stmt], cancels: set[str], rest: bool) -> list[int]:
    """Return the lines that cancel and do not end their method; `rest`: more statements follow these."""
    found = []
    for place, statement in enumerate(statements):
        follows = place + 1 < len(statements) and not isinstance(statements[place + 1], ast.Return)
        more = follows or (rest and not isinstance(statements[-1], ast.Return))
        if isinstance(statement, ast.Expr) and ast.unparse(statement.value).partition("(")[0] in cancels and more:
            found.append(statement.lineno)
        for inner in ("body", "orelse", "finalbody"):
            found += cancels_of(getattr(statement, inner, []), cancels, more or isinstance(statement, ast.For | ast.While))
    return found


def test_a_timer_is_not_cancelled_by_its_own_call_before_the_end_of_it() -> None:
    """After a fault of the call it would not be called again."""
    found: list[str] = []
    seen = 0
    packages = ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering")
    for path in (path for package in packages for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
            for node in ast.walk(owner):
                if not (isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call) and len(node.value.args) == 2):
                    continue
                call = ast.unparse(node.value.args[1])
                if not ast.unparse(node.value.func).endswith(".timer") or call.removeprefix("self.") not in methods:
                    continue
                seen += 1
                timer = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
                cancels = {f"{timer}.cancel"}
                cancels |= {f"self.{name}" for name, method in methods.items() if f"{timer}.cancel()" in ast.unparse(method)} - {call}
                lines = cancels_of(methods[call.removeprefix("self.")].body, cancels, rest=False)
                found.extend(f"{path.relative_to(ROOT)}:{line}: {timer}" for line in lines)
    assert seen > 15
    assert found == []
