"""Rules for compiled modules that mypyc does not check.

A module that breaks one fails at run time, or corrupts memory.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import core
import core.blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("compiled modules")  # one process parses them, not each

ROOT = Path(__file__).resolve().parents[1]
MODULES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["majordomo-toolkit"]["compiled"]
PLAIN_BASES = {"ABC", "Enum", "Generic", "IntEnum", "IntFlag", "NamedTuple", "Protocol", "TypedDict", "object"}
# Names of attributes that mean something else in C: `_thread` becomes `__thread`.
RESERVED_IN_C = {"_thread"}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))


@cache
def nodes(module: str) -> list[ast.AST]:
    return list(ast.walk(tree(module)))


@cache
def classes(module: str) -> list[ast.ClassDef]:
    return [node for node in nodes(module) if isinstance(node, ast.ClassDef)]


def name_of(node: ast.expr) -> str:
    """Return the last part of `Base`, `package.Base` or `Base[T]`."""
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


def is_native(node: ast.ClassDef) -> bool:
    return not any("native_class=False" in ast.unparse(decorator) for decorator in node.decorator_list)


def homes(module: str) -> dict[str, str]:
    """Return where the imported names of a module come from."""
    return {
        (alias.asname or alias.name): f"{node.module}.{alias.name}"
        for node in nodes(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def origin(name: str) -> str:
    """Return where a name is defined that its module may only have imported."""
    module, _, own = name.rpartition(".")
    further = homes(module).get(own) if (ROOT / module.replace(".", "/")).with_suffix(".py").exists() else None
    return origin(further) if further else name


@cache
def native_classes() -> dict[str, ast.ClassDef]:
    return {f"{module}.{node.name}": node for module in MODULES for node in classes(module) if is_native(node)}


def test_the_list_is_ordered_and_every_module_exists() -> None:
    assert sorted(set(MODULES)) == MODULES
    assert all(tree(module).body for module in MODULES)


def test_a_class_has_a_base_outside_of_the_compiled_modules_only_where_it_says_so() -> None:
    """Such a class has its own layout in memory; compiled code would write its fields into that of the base."""
    known = native_classes()
    foreign = [
        f"{module}.{node.name}({ast.unparse(base)})"
        for module in MODULES
        for imported in [homes(module)]
        for node in classes(module)
        if is_native(node)
        for base in node.bases
        if name_of(base) not in PLAIN_BASES and f"{module}.{name_of(base)}" not in known and imported.get(name_of(base)) not in known
    ]
    assert foreign == []


def imported_for_types(module: str) -> set[str]:
    return {
        alias.asname or alias.name
        for node in tree(module).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for each in node.body
        if isinstance(each, ast.Import | ast.ImportFrom)
        for alias in each.names
    }


def names_in_fields(module: str) -> set[str]:
    """Return the names in the annotations of dataclasses and named tuples."""
    return {
        name.id
        for node in classes(module)
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list) or "NamedTuple" in map(name_of, node.bases)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        for name in ast.walk(field.annotation)
        if isinstance(name, ast.Name)
    }


def test_names_of_dataclass_fields_are_imported_when_the_module_runs() -> None:
    """mypyc evaluates the annotations of the fields."""
    found = {module: names_in_fields(module) & imported_for_types(module) for module in MODULES}
    assert {module: names for module, names in found.items() if names} == {}


def test_nothing_is_stored_under_the_name_of_a_method_or_of_a_word_of_c() -> None:
    found = {}
    for module in MODULES:
        for node in classes(module):
            stored = {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
            }
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef) and not each.decorator_list}
            if wrong := stored & (methods | RESERVED_IN_C):
                found[f"{module}.{node.name}"] = wrong
    assert found == {}


def annotated(node: ast.ClassDef) -> set[str]:
    """Return the attributes of instances that a class annotates, in its body or in its methods."""
    every = [each for each in ast.walk(node) if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each.annotation)]
    in_body = {each.target.id for each in every if each in node.body and isinstance(each.target, ast.Name)}
    return in_body | {
        each.target.attr for each in every if isinstance(each.target, ast.Attribute) and ast.unparse(each.target.value) == "self"
    }


def ancestors(name: str) -> Iterator[str]:
    """Yield the native bases of a native class, and theirs."""
    module = name.rpartition(".")[0]
    for node in native_classes()[name].bases:
        base = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(base, ast.Attribute):  # `module.Base`, which may have the name of the class itself
            found = origin(f"{homes(module).get(ast.unparse(base.value), '')}.{base.attr}")
        else:
            local = f"{module}.{name_of(base)}"
            found = local if local in native_classes() and local != name else origin(homes(module).get(name_of(base), ""))
        if found in native_classes():
            yield found
            yield from ancestors(found)


def test_no_class_annotates_an_attribute_of_its_base_again() -> None:
    """The garbage collector would count the value twice.

    It takes what a cycle of garbage has and somebody else holds for garbage, and empties it; or never frees a cycle that goes through it.
    """
    assert "core.machine.requests.PendingRequest" in ancestors("mdp.client.calls.PendingRequest")
    twice = {
        f"{name} of {base}": both
        for name, node in native_classes().items()
        for base in ancestors(name)
        if (both := annotated(node) & annotated(native_classes()[base]))
    }
    assert twice == {}


def allows_interpreted_subclasses(name: str) -> bool:
    return any("allow_interpreted_subclasses=True" in ast.unparse(decorator) for decorator in native_classes()[name].decorator_list)


def has_init(name: str) -> bool:
    """Return whether a class has an `__init__` of its own, be it that of a dataclass."""
    node = native_classes()[name]
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(isinstance(each, ast.FunctionDef) and each.name == "__init__" for each in node.body) or any(
        "dataclass" in decorator and "init=False" not in decorator for decorator in decorators
    )


def test_an_init_is_inherited_from_no_class_that_allows_interpreted_subclasses() -> None:
    """Where interpreted code makes an object of a class that does not allow them, the `__init__` runs twice.

    The second time does not free what the first time stored: each request of such a class kept its body for ever.
    """
    twice = []
    for name in native_classes():
        if not allows_interpreted_subclasses(name) and not has_init(name):
            base = next((one for one in ancestors(name) if has_init(one)), "")
            if base and allows_interpreted_subclasses(base):
                twice.append(f"{name} of {base}")
    assert twice == []


def test_bounds_of_slices_call_nothing_but_len() -> None:
    """Calls there may run twice, and requests would be sent twice."""
    # mypyc knows better only where it sees that a list, a tuple, text or bytes is sliced.
    calls = {
        f"{module}: {ast.unparse(call)}"
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Slice)
        for bound in (node.lower, node.upper, node.step)
        if bound is not None
        for call in ast.walk(bound)
        if isinstance(call, ast.NamedExpr | ast.Await) or (isinstance(call, ast.Call) and ast.unparse(call.func) != "len")
    }
    assert calls == set()


def test_nothing_is_awaited_in_finally() -> None:
    """After a call that ended there with an error, each later call would raise that error again."""
    found = [
        f"{module}:{node.lineno}"
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Try)
        for statement in node.finalbody
        if any(isinstance(each, ast.Await | ast.Yield | ast.YieldFrom | ast.AsyncWith | ast.AsyncFor) for each in ast.walk(statement))
    ]
    assert found == []


def test_compiled_modules_do_not_call_get_of_a_dictionary_that_has_its_own() -> None:
    """mypyc takes every `get` of a subclass of `dict` for that of `dict`, which would return what the subclass hides."""
    own = [
        f"{module}.{node.name}"
        for module in MODULES
        for node in classes(module)
        if any(name_of(base) == "dict" for base in node.bases)
        and any(isinstance(each, ast.FunctionDef) and each.name == "get" for each in node.body)
    ]
    assert own == ["titanic.store.index.packed_requests.Requests"]  # `IndexTables.entries`, and `owned` by owner
    called = [
        f"{module}:{node.lineno}"
        for module in MODULES
        if module.startswith("titanic.")
        for node in nodes(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"
        if ast.unparse(node.func.value).rpartition(".")[2] in {"entries", "mine", "_every"}
    ]
    assert called == []


def test_the_modules_in_use_are_those_that_were_asked_for() -> None:
    """Either all listed modules are compiled or none is: half of a chain is slower than its source."""
    from importlib import import_module

    origins = {module: getattr(import_module(module).__spec__, "origin", None) for module in MODULES}
    assert [module for module, origin in origins.items() if not origin or (not origin.endswith(".py")) is not core.compiled] == []


# mypyc checks them at the call: a buffer is no `bytes`, 0 and None are no `bool`.
EXACT = {"bytes", "bool", "bytearray", "list", "tuple", "dict", "str", "float"}


def exact_types(annotation: ast.expr | None) -> set[str]:
    """Return the types of a parameter that compiled code takes to the letter."""
    if isinstance(annotation, ast.BinOp):
        return exact_types(annotation.left) | exact_types(annotation.right)
    return {name_of(annotation)} & EXACT if annotation is not None else set()


def test_verbs_of_pyzmq_take_what_those_of_pyzmq_take() -> None:
    """Any buffer is a frame, any truth value says whether to copy, whether the sockets are compiled or not."""
    verbs = {name for name in vars(core.blocking.Socket) if not name.startswith("_")}
    checked, strict = set(), []
    for module in MODULES:
        if not module.startswith("core.sockets."):
            continue
        for node in (node for each in classes(module) for node in each.body):
            if not isinstance(node, ast.FunctionDef) or node.name not in verbs or "overload" in map(name_of, node.decorator_list):
                continue
            checked.add(node.name)
            parameters = [*node.args.args, *node.args.kwonlyargs]
            internal = {"single"}
            strict += [f"{module}.{node.name}: {one.arg}" for one in parameters if one.arg not in internal and exact_types(one.annotation)]
    assert checked >= {"send", "send_multipart", "recv", "recv_multipart"}
    assert strict == []


PACKAGES = ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering")


def test_interpreted_classes_inherit_only_from_compiled_ones_that_allow_it() -> None:
    known = native_classes()
    files = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    refused = []
    for module in sorted({".".join(path.with_suffix("").parts) for path in files} - set(MODULES)):
        if module.endswith("__init__"):
            continue
        imported = homes(module)
        for node in classes(module):
            bases = [origin(imported.get(name_of(base), "")) for base in node.bases]
            refused += [
                f"{module}.{node.name}({base})"
                for base in bases
                if base in known and not allows_interpreted_subclasses(base) and "Protocol" not in map(name_of, known[base].bases)
            ]
    assert refused == []
