"""The public names of the packages as a program sees them that is checked by mypy or pyright, strictly."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator, Iterator  # noqa: TC003  # annotations of services are needed at run time
from dataclasses import dataclass
from importlib import import_module
from inspect import getdoc, isclass, isroutine
from pathlib import Path
from typing import Any, assert_type

import pytest

import core
import mdp
import mdp.testing

PACKAGES = ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering")
# Whose errors can be imported from the package itself, and what else is taken over with a star.
STARS = {"core": ("constants", "errors"), "bstar": ("errors",), "freelance": ("errors",), "pirate": ("errors",), "peering": ("errors",)}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_that_is_offered_is_there(package: str) -> None:
    module = import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("package", STARS)
def test_what_is_taken_over_with_a_star_is_offered(package: str) -> None:
    """A type checker takes a name for private that comes with a star and is not in `__all__`.

    `core.DEALER` would be an error.
    """
    module = import_module(package)
    for part in STARS[package]:
        assert set(import_module(f"{package}.{part}").__all__) <= set(module.__all__)


# Folders whose modules programs import, and modules below other folders that pages name.
FOR_PROGRAMS = ("core/auth", "core/blocking", "core/devices", "core/log", "core/utils", "mdp/spark", "mdp/testing")
NAMED = (
    "mdp/eventlog/format.py",
    "mdp/spark/demo/demo.py",
    "mdp/spark/demo/processes.py",
    "titanic/journal/disk.py",
    "titanic/journal/group_commit.py",
    "titanic/store/service.py",
    "titanic/store/store.py",
)


def defined_in(tree: ast.Module) -> set[str]:
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    return names | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def test_inner_modules_list_no_names() -> None:
    """Their names without underscore are for other modules; a list would be a second place that no one reads.

    Where a module passes on names of others, the list says so to type checkers.
    """
    root = Path(core.__file__).resolve().parents[1]
    found = []
    for path in sorted(path for package in PACKAGES for path in (root / package).glob("*/**/*.py")):
        place = path.relative_to(root).as_posix()
        if path.name == "__init__.py" or path.parent.relative_to(root).as_posix() in FOR_PROGRAMS or place in NAMED:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        listed = {
            part.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AugAssign)
            if "__all__" in ast.unparse(node).partition("=")[0]
            for part in ast.walk(node.value)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        }
        if listed and listed <= defined_in(tree):
            found.append(place)
    assert found == []


def documented(name: str, value: object) -> Iterator[str]:
    """Yield the public parts without docstring of an offered class or function, as far as they are ours."""
    if not (getattr(value, "__module__", "") or "").startswith(PACKAGES) or not (isclass(value) or isroutine(value)):
        return
    if not getdoc(value):
        yield name
    if isclass(value):
        for inner, part in vars(value).items():
            own = part.fget if isinstance(part, property) else getattr(part, "__func__", part)
            if not inner.startswith("_") and isroutine(own) and not getdoc(getattr(value, inner)):
                yield f"{name}.{inner}"


@pytest.mark.parametrize("package", [*PACKAGES, "mdp.spark", "mdp.testing"])
def test_everything_that_is_offered_says_what_it_is(package: str) -> None:
    module = import_module(package)
    assert [lost for name in module.__all__ for lost in documented(f"{package}.{name}", getattr(module, name))] == []


@dataclass
class Line:
    item: str
    price: float


@mdp.service("total")
async def total(lines: list[Line], discount: float = 0.0) -> float:
    return sum(line.price for line in lines) * (1 - discount)


@mdp.service("items")
async def items(lines: list[Line]) -> AsyncIterator[str]:
    for line in lines:
        yield line.item


async def test_a_checker_knows_what_comes_back() -> None:
    lines = [Line("tea", 2.5), Line("milk", 1.0)]
    async with mdp.testing.broker(total, items) as local:
        client = local.client
        price = await client.call("total", lines, discount=0.5, result=float)
        assert_type(price, float)
        assert price == 1.75
        assert_type(await client.call("total", lines), Any)
        async for item in client.call_stream("items", lines, result=str):
            assert_type(item, str)
        async for part in client.stream("mmi.service", b"items"):
            assert_type(part, list[bytes])
            break
        assert_type(await client.mmi("service", "total"), str)
        assert_type(local.broker.counters, dict[str, int])
        assert_type([outcome async for outcome in client.map("mmi.service", [[b"total"]])], list[mdp.Outcome])


def threads_and_notebooks(client: mdp.SyncClient, socket: core.Socket) -> None:
    """Looked at by the checkers and not run."""
    assert_type(client.request("total", b"x"), list[bytes])
    assert_type(client.call("total", result=float), float)
    assert_type([*client.call_stream("items", result=str)], list[str])
    kinds: list[core.SocketType] = [core.DEALER, core.ROUTER]
    assert_type(kinds.pop(), core.SocketType)
    socket.set(core.LINGER, 0)


async def test_options_and_received_frames_have_their_types() -> None:
    async with core.Context() as context:
        socket, peer = context.socket(core.PAIR), context.socket(core.PAIR)
        socket.bind("inproc://types")
        peer.connect("inproc://types")
        socket.LINGER = socket.linger = 0
        assert_type(peer.LINGER, int)
        assert_type(socket.RCVTIMEO, int)
        assert_type(socket.ROUTING_ID, bytes)
        assert_type(socket.LAST_ENDPOINT, bytes)
        await peer.send_multipart([b"one", b"two"])
        assert_type(await socket.recv(copy=False), core.Frame)
        assert_type(await socket.recv(0, False), core.Frame)
        await peer.send_multipart([b"one", b"two"])
        assert_type(await socket.recv_multipart(0, False), list[core.Frame])
        await peer.send(b"three")
        assert_type(await socket.recv(), bytes)
