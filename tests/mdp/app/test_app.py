"""mdp.App: several services of one program, their lifespan, middleware and dependencies, over a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator  # noqa: TC003  # annotations of services are needed at run time
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Annotated, Any

import pytest

import mdp
import mdp.testing


class Pool:
    """A resource that notes what happens to it."""

    def __init__(self) -> None:
        self.events: list[str] = []


POOL = Pool()


async def get_pool() -> AsyncIterator[Pool]:
    POOL.events.append("taken")
    try:
        yield POOL
    finally:
        POOL.events.append("given back")


def get_number(request: mdp.Request) -> Iterator[int]:
    yield len(request.service)


async def get_both(pool: Annotated[Pool, mdp.Depends(get_pool)], number: Annotated[int, mdp.Depends(get_number)]) -> tuple[Pool, int]:
    return pool, number


@asynccontextmanager
async def serving(app: mdp.App, **options: Any) -> AsyncIterator[mdp.testing.Local]:
    async with mdp.testing.broker() as local, app.serve(local.endpoint, context=local.context, **options) as workers:
        async with asyncio.timeout(60):
            while not all(worker.connected for worker in workers):
                await asyncio.sleep(0.001)
        yield local


async def test_several_services_with_one_credit_each_and_their_lifespan() -> None:
    app = mdp.App()
    order: list[str] = []

    @app.lifespan
    async def first(given: mdp.App) -> AsyncIterator[str]:
        assert given is app
        order.append("opened")
        yield "pool"
        order.append("closed")

    @app.lifespan
    @asynccontextmanager
    async def second() -> AsyncIterator[str]:
        order.append(f"after {app.state}")
        yield "second"
        order.append("second closed")

    @app.service("double", concurrency=3)
    async def double(value: int) -> int:
        order.append("called")
        return 2 * value

    @app.service("raw", inline=True)
    def raw(request: mdp.Request) -> bytes:
        return request.body[0] + b"!"

    assert app.services == ["double", "raw"]
    assert await double(4) == 8  # the function itself stays as it is
    async with serving(app) as local:
        assert app.state == "second"
        assert await local.client.call("double", 21, result=int) == 42
        assert await local.client.request("raw", b"x") == [b"x!"]
        assert (await mdp.describe(local.client, "double")).signature == "(value: int) -> int"
    assert order == ["called", "opened", "after pool", "called", "second closed", "closed"]
    assert app.state is None


async def test_a_lifespan_that_fails_serves_nothing() -> None:
    app = mdp.App()

    @app.service("echo")
    async def echo(request: mdp.Request) -> list[bytes]:
        return request.body

    @app.lifespan
    async def broken() -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    async with mdp.testing.broker() as local:
        with pytest.raises(ValueError, match="no database"):
            async with app.serve(local.endpoint, context=local.context):
                raise AssertionError("not reached")
        with pytest.raises(mdp.NoService):
            await local.client.request("echo", b"x", timeout=1)


async def test_middleware_sees_requests_replies_errors_and_streams() -> None:
    app = mdp.App()
    seen: list[str] = []

    @app.middleware
    async def outer(request: mdp.Request, call_next: Any) -> Any:
        seen.append(f"> {request.service}")
        try:
            reply = await call_next(request)
        except KeyError as error:
            seen.append("error")
            raise mdp.HandlerError(code="NOT_FOUND", text=str(error)) from None
        seen.append(f"< {request.service}")
        return reply

    @app.middleware
    async def inner(request: mdp.Request, call_next: Any) -> Any:
        if request.service == "closed":
            return b"by the middleware"
        reply = await call_next(request)
        if request.service == "stream":

            async def louder() -> AsyncIterator[bytes]:
                async for part in reply:
                    yield part.upper()

            return louder()
        return reply

    @app.service("plain")
    def plain(value: int) -> int:
        return value + 1

    @app.service("inline", inline=True)
    def inline(value: int) -> int:
        return value + 2

    @app.service("missing")
    async def missing(request: mdp.Request) -> bytes:
        raise KeyError("order 17")

    @app.service("stream")
    async def stream(request: mdp.Request) -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    @app.service("closed")
    async def closed(request: mdp.Request) -> bytes:
        raise AssertionError("not reached")

    async with serving(app) as local:
        client = local.client
        assert await client.call("plain", 1, result=int) == 2
        assert await client.call("inline", 1, result=int) == 3
        with pytest.raises(mdp.HandlerError) as failed:
            await client.request("missing", b"")
        assert failed.value.code == "NOT_FOUND"
        assert [part async for part in client.stream("stream", b"")][:2] == [[b"A"], [b"B"]]
        assert await client.request("closed", b"") == [b"by the middleware"]
    assert seen == ["> plain", "< plain", "> inline", "< inline", "> missing", "error", "> stream", "< stream", "> closed", "< closed"]


async def test_dependencies_are_no_arguments_and_end_with_the_request() -> None:
    app = mdp.App()
    POOL.events.clear()

    @app.service("order")
    async def order(number: int, both: Annotated[tuple[Pool, int], mdp.Depends(get_both)], extra: int = 1) -> int:
        both[0].events.append("used")
        return number + both[1] + extra

    @app.service("items")
    async def items(request: mdp.Request, pool: Annotated[Pool, mdp.Depends(get_pool)]) -> AsyncIterator[bytes]:
        pool.events.append("streamed")
        yield request.body[0]

    @app.service("bytes")
    async def plain_bytes(request, pool: Annotated[Pool, mdp.Depends(get_pool)]):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return request.body[0] + b"!"

    @app.service("plain")
    def plain(value: int, number: Annotated[int, mdp.Depends(get_number)]) -> int:
        return value * number

    @app.service("fails")
    async def fails(pool: Annotated[Pool, mdp.Depends(get_pool)]) -> int:
        raise ValueError(pool.events[-1])

    async with serving(app) as local:
        client = local.client
        assert await client.call("order", 10, extra=2, result=int) == 10 + len("order") + 2
        with pytest.raises(mdp.BadArguments):
            await client.call("order", 10, both=1)
        assert await client.request("items", b"x") == [b"x"]
        assert await client.call("plain", 3, result=int) == 3 * len("plain")
        assert await client.request("bytes", b"x") == [b"x!"]
        with pytest.raises(mdp.HandlerError):
            await client.call("fails")
        assert (await mdp.describe(client, "order")).signature == "(number: int, extra: int = 1) -> int"
    assert POOL.events == ["taken", "used", "given back", "taken", "streamed", "given back", "taken", "given back", "taken", "given back"]


async def test_functions_of_an_app_have_stubs_without_their_dependencies() -> None:
    app, again = mdp.App(), mdp.App()

    @again.service("second")
    @app.service("first", inline=True)
    def double(number: int, factor: Annotated[int, mdp.Depends(get_number)] = 0) -> int:
        return number * factor

    @app.service("count")
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    async with serving(app) as local:
        module = ModuleType("shop")
        vars(module).update(double=double, count=count, other=3)
        stubs = local.client.stub(module)
        assert [number async for number in stubs.count(3)] == [0, 1, 2]
        assert [number async for number in local.client.stub(count)(3)] == [0, 1, 2]
        with pytest.raises(mdp.NoService):
            await stubs.double(3)  # asks the app that it was added to last
        assert double(3, 4) == 12  # called as it is, by tests for example
    assert [*again.services] == ["second"]


def unknown(number: int) -> int:
    return number


def test_what_is_wrong_is_said_when_it_is_decorated() -> None:
    app = mdp.App()
    with pytest.raises(ValueError, match="no services"):
        app.workers("tcp://127.0.0.1:1")

    @app.service("one")
    async def one() -> int:
        return 1

    with pytest.raises(ValueError, match="already"):
        app.service("one")(one)

    with pytest.raises(TypeError, match="neither"):

        @app.service("two")
        async def two(value: Annotated[int, mdp.Depends(unknown)]) -> int:
            return value

    with pytest.raises(TypeError, match="async def"):

        @app.service("three")
        def three(pool: Annotated[Pool, mdp.Depends(get_pool)]) -> int:
            return 3

    with pytest.raises(TypeError, match="no such option"):
        app.workers("tcp://127.0.0.1:1", no_such=1)  # type: ignore[call-arg]
    assert app.services == ["one"]
