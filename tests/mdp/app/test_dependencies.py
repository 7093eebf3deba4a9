"""mdp.app.dependencies: order of ends, and failures on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator  # noqa: TC003  # annotations are needed at run time
from typing import Annotated, Any

import pytest

import mdp
from mdp.app.dependencies import injected

EVENTS: list[str] = []


def outer() -> Iterator[str]:
    EVENTS.append("outer")
    try:
        yield "outer"
    finally:
        EVENTS.append("outer ends")


async def inner(above: Annotated[str, mdp.Depends(outer)]) -> AsyncIterator[str]:
    EVENTS.append(f"inner of {above}")
    try:
        yield "inner"
    finally:
        EVENTS.append("inner ends")


async def broken() -> str:
    raise ValueError("no connection")


def a_request() -> mdp.Request:
    return mdp.Request("service", [b"x"], b"", b"", None)


def the_request(handler: Any) -> str:
    """Return the name of the parameter that gets the request."""
    return str(next(name for name, hint in handler.__annotations__.items() if hint is mdp.Request))


async def test_ends_run_in_the_opposite_order_and_see_the_error() -> None:
    EVENTS.clear()

    async def handler(value: int, dependency: Annotated[str, mdp.Depends(inner)]) -> str:
        raise KeyError(dependency)

    made = injected(handler)
    with pytest.raises(KeyError, match="inner"):
        await made(value=1, **{the_request(made): a_request()})
    assert EVENTS == ["outer", "inner of outer", "inner ends", "outer ends"]


async def test_what_was_taken_is_given_back_if_another_one_fails() -> None:
    EVENTS.clear()

    async def handler(first: Annotated[str, mdp.Depends(inner)], second: Annotated[str, mdp.Depends(broken)]) -> None:
        raise AssertionError("not reached")

    made = injected(handler)
    with pytest.raises(ValueError, match="no connection"):
        await made(**{the_request(made): a_request()})
    assert EVENTS[-2:] == ["inner ends", "outer ends"]


async def test_a_stream_that_is_left_early_ends_its_dependencies() -> None:
    EVENTS.clear()

    async def handler(request: mdp.Request, dependency: Annotated[str, mdp.Depends(outer)]) -> AsyncIterator[bytes]:
        yield dependency.encode()
        yield b"never asked for"

    parts = injected(handler)(a_request())
    assert await anext(parts) == b"outer"
    await parts.aclose()
    assert EVENTS == ["outer", "outer ends"]


def test_without_dependencies_the_function_is_the_same() -> None:
    async def handler(value: int) -> int:
        return value

    assert injected(handler) is handler
