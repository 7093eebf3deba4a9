"""mdp.typed.calls: functions as services, typed calls, and whose fault it is when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003 - annotations of services are read at run time
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mdp
import mdp.testing
from mdp.errors import BadArguments
from mdp.request import Request
from mdp.typed.calls import Signature, pack_call, typed_handler, unpack_result
from mdp.typed.schemas import Schema, TypeMismatch
from mdp.worker.handler import is_typed


@dataclass
class Item:
    name: str
    price: float


@dataclass
class Holder:
    item: Later  # type: ignore[name-defined]  # noqa: F821


@mdp.service("area")
async def area(width: float, height: float = 1.0) -> float:
    return width * height


@mdp.service("total")
def total(items: list[Item], *, rounded: bool = False) -> Item:
    found = sum(item.price for item in items)
    return Item("total", round(found) if rounded else found)


@mdp.service("count")
async def count(upto: int) -> AsyncIterator[int]:
    for number in range(upto):
        yield number
        await asyncio.sleep(0)  # as whatever makes numbers worth sending would


@mdp.service("liar", inline=True)
def liar() -> int:
    return "no number"  # type: ignore[return-value]


@mdp.service("fails")
async def fails(what: str) -> None:
    raise ValueError(what)


@mdp.service("sold-out")
async def sold_out(what: str) -> None:
    raise mdp.HandlerError(code="SOLD_OUT", text=what)


@mdp.service("odd-code")
async def odd_code(what: str) -> None:
    raise mdp.HandlerError(code=what, text="odd")


@mdp.service("left")
async def left(request: mdp.Request, word: str) -> list[str]:
    return [request.service, word]


@mdp.service("raw")
async def raw(request: mdp.Request) -> bytes:
    return b"\xc1"


HANDLERS = (area, total, count, liar, fails, sold_out, odd_code, left, raw)


def request_of(*frames: bytes) -> Request:
    return Request("any", list(frames), b"", b"", None)


async def test_calls_with_positional_and_named_arguments() -> None:
    async with mdp.testing.broker(*HANDLERS) as local:
        call = local.client.call
        assert await call("area", 2.0, height=3.0, result=float) == 6.0
        assert await call("area", 2) == 2.0
        assert await call(b"area", width=2, height=4) == 8.0
        items = [Item("a", 1.2), Item("b", 2.2)]
        assert await call("total", items, rounded=True, result=Item) == Item("total", 3.0)
        assert await call("total", [{"name": "a", "price": 1}]) == {"name": "total", "price": 1.0}
        assert await call("left", "word", result=list[str]) == ["left", "word"]
        assert await call("area", 1, options={"deadline": 10.0, "key": "k"}) == 1.0
        assert await area(2.0) == 2.0, "a service is still a function"


async def test_a_client_makes_the_schema_of_a_result_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Counted(Schema):
        def __init__(self, annotation: Any) -> None:
            made.append(annotation)
            super().__init__(annotation)

    async with mdp.testing.broker(area) as local:
        monkeypatch.setattr("mdp.typed.schemas.Schema", Counted)
        assert [await local.client.call("area", width, result=float) for width in (2.0, 3.0)] == [2.0, 3.0]
    assert made == [float]


async def test_the_callers_fault_is_named_and_nothing_is_called() -> None:
    async with mdp.testing.broker(area) as local:
        cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
            ((), {}, "missing a required argument: 'width'"),
            (("x",), {}, "$.width: expected float, got str"),
            ((1, 2, 3), {}, "too many positional arguments"),
            ((1,), {"depth": 1}, "unexpected keyword argument 'depth'"),
        ]
        for arguments, named, says in cases:
            with pytest.raises(mdp.BadArguments) as caught:
                await local.client.call("area", *arguments, **named)
            assert says in caught.value.text
            assert caught.value.code == "BAD_ARGUMENTS"
            assert isinstance(caught.value, mdp.BadRequest)
        for body in ([b""], [b"\xc1"], [b"a", b"b"], [msgpack.packb(1)], [msgpack.packb([[], {1: 1}])], [msgpack.packb([1, 2])]):
            with pytest.raises(mdp.BadArguments):
                await local.client.request("area", *body)
        with pytest.raises(TypeError):
            await local.client.call("area", object())
        with pytest.raises(TypeError):
            await local.client.call("area", 1, result=object().__class__.__mro__)


def test_each_way_to_give_arguments_and_each_mistake_with_its_place() -> None:
    def function(a: int, b: list[Item], c: str = "c", *, d: float | None = None, request: Request) -> None: ...

    def given(positional: list[Any], named: dict[str, Any]) -> Any:
        request = request_of(pack_call(positional, named))
        arguments = Signature(function).unpack_arguments(request)
        assert arguments.pop("request") is request
        return arguments

    items = [Item("x", 1.0)]
    whole = {"a": 1, "b": items}
    assert given([1, items], {}) == given([1], {"b": items}) == given([], whole) == whole
    assert given([1, items, "z"], {"d": None}) == {**whole, "c": "z", "d": None}
    assert given([1, [{"name": "x", "price": 1, "unknown": 0}]], {"d": 2}) == {**whole, "d": 2.0}
    mistakes: list[tuple[list[Any], dict[str, Any], str]] = [
        (["1", items], {}, "$.a: expected int, got str"),
        ([1, [{"name": "x"}]], {}, "$.b[0]: object missing required field price"),
        ([1], {"b": [{"name": "x", "price": ""}]}, "$.b[0].price: expected float, got str"),
        ([1, items], {"d": ""}, "$.d: expected float | null, got str"),
        ([1], {}, "missing a required argument: 'b'"),
        ([1, items], {"a": 1}, "multiple values for argument 'a'"),
        ([1, items], {"e" * 10: 1}, "got an unexpected keyword argument 'eeeeeeeeee'"),
        ([1, items, "", 2.0], {}, "too many positional arguments"),
        ([1, items, "", 2.0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], {}, "too many positional arguments"),
    ]
    for positional, named, says in mistakes:
        with pytest.raises(TypeMismatch) as caught:
            given(positional, named)
        assert str(caught.value).endswith(says)


@pytest.mark.parametrize("outer", [b"\x92", b"\xdc\x00\x02", b"\xdd\x00\x00\x00\x02"], ids=bytes.hex)
@pytest.mark.parametrize("inner", [b"\x91", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"], ids=bytes.hex)
def test_a_call_may_be_written_with_longer_headers(outer: bytes, inner: bytes) -> None:
    assert Signature(area).unpack_arguments(request_of(outer + inner + b"\x02\x80")) == {"width": 2.0}


def test_calls_of_the_codec_before_are_the_same_bytes() -> None:
    octets = bytes.fromhex("9291cb400000000000000081a6686569676874cb4008000000000000")
    assert pack_call([2.0], {"height": 3.0}) == octets
    assert Signature(area).unpack_arguments(request_of(octets)) == {"width": 2.0, "height": 3.0}


async def test_the_functions_fault_and_its_authors() -> None:
    async with mdp.testing.broker(*HANDLERS) as local:
        with pytest.raises(mdp.HandlerError) as failed:
            await local.client.call("fails", "secret")
        assert failed.value.text.startswith("ValueError, id ")
        with pytest.raises(mdp.BadResult) as lied:
            await local.client.call("liar")
        assert "expected int, got str" in lied.value.text
        with pytest.raises(mdp.BadResult) as other:
            await local.client.call("area", 1, result=str)
        assert (other.value.service, other.value.text) == ("area", "expected str, got float")
        with pytest.raises(mdp.BadResult):
            await local.client.call("raw", result=str)


async def test_codes_of_a_functions_own() -> None:
    async with mdp.testing.broker(sold_out, odd_code) as local:
        with pytest.raises(mdp.HandlerError) as caught:
            await local.client.call("sold-out", "tea")
        assert (caught.value.code, caught.value.text) == ("SOLD_OUT", "tea")
        with pytest.raises(mdp.HandlerError) as odd:
            await local.client.call("odd-code", "not a code")
        assert odd.value.code == "HANDLER_ERROR"


async def test_a_generators_values_are_parts() -> None:
    async with mdp.testing.broker(count) as local:
        parts = [part async for part in local.client.stream("count", pack_call([3], {}))]
        schema = Schema(int)
        assert [unpack_result(part, schema, "count") for part in parts] == [0, 1, 2]
        with pytest.raises(mdp.BadArguments):
            await anext(local.client.stream("count", pack_call(["x"], {})))


async def test_a_generator_is_called_as_a_function_is() -> None:
    async with mdp.testing.broker(count) as local:
        assert [number async for number in local.client.call_stream("count", 3, result=int)] == [0, 1, 2]
        assert [number async for number in local.client.call_stream("count", upto=0, result=int)] == []
        with pytest.raises(mdp.BadArguments):
            await anext(local.client.call_stream("count"))
        with pytest.raises(mdp.BadResult):
            await anext(local.client.call_stream(b"count", 1, result=str))
        endless = local.client.call_stream("count", 10**9)
        assert [await anext(endless), await anext(endless)] == [0, 1]
        await endless.aclose()
        assert [number async for number in local.client.call_stream("count", 1)] == [0]


async def test_from_threads() -> None:
    async with mdp.testing.broker(area, transport="tcp") as local:

        def ask() -> Any:
            with mdp.SyncClient(local.endpoint) as client:
                return client.call("area", 2, height=5, result=float)

        assert await asyncio.to_thread(ask) == 10.0


def test_which_functions_take_arguments() -> None:
    def plain(request): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202

    def annotated(request: mdp.Request) -> bytes: ...  # type: ignore[empty-body]

    def with_default(request: Request, prefix=b"") -> bytes: ...  # type: ignore[no-untyped-def, empty-body]  # noqa: ANN001

    def bare(request, x: int = 3) -> bytes: ...  # type: ignore[no-untyped-def, empty-body]  # noqa: ANN001

    def anything(request: Any, *more: Any) -> bytes: ...  # type: ignore[empty-body]

    def both(request: mdp.Request, x: int) -> int: ...  # type: ignore[empty-body]

    def typed(x: int) -> int: ...  # type: ignore[empty-body]

    def nothing() -> int: ...  # type: ignore[empty-body]

    assert [is_typed(function) for function in (plain, annotated, with_default, bare, anything)] == [False] * 5
    assert [is_typed(function) for function in (both, typed, nothing)] == [True] * 3


def test_a_default_does_not_change_how_a_function_is_called_but_is_refused() -> None:
    def one(request: mdp.Request, x: int = 3) -> bytes: ...  # type: ignore[empty-body]

    def two(request: Request, x: int = 3, *, y: str = "") -> bytes: ...  # type: ignore[empty-body]

    def any_first(value: Any, x: int = 3) -> bytes: ...  # type: ignore[empty-body]

    async def waits(request: mdp.Request, x: int = 3) -> bytes: ...  # type: ignore[empty-body]

    for function in (one, two, any_first, waits):
        with pytest.raises(TypeError, match=f"{function.__name__}.*may callers give x"):
            mdp.service("any")(function)

    def behind(x: int = 3, *, request: mdp.Request) -> int: ...  # type: ignore[empty-body]

    assert is_typed(behind)
    assert mdp.Worker("inproc://nowhere", mdp.service("any")(behind)).service == "any"
    assert mdp.Worker("inproc://nowhere", mdp.service("any")(partial(one, x=4))).service == "any"


def test_functions_that_cannot_be_services_are_refused_when_the_worker_is_made() -> None:
    def stars(*numbers: int) -> int: ...  # type: ignore[empty-body]

    def by_place(number: int, /) -> int: ...  # type: ignore[empty-body]

    def half(number: int, other) -> int: ...  # type: ignore[no-untyped-def, empty-body]  # noqa: ANN001

    def odd(number: type[int]) -> int: ...  # type: ignore[empty-body]

    def returns(number: int) -> list: ...  # type: ignore[type-arg, empty-body]

    for function in (stars, by_place, half, odd, returns):
        with pytest.raises(TypeError):
            typed_handler(function, "function")
        with pytest.raises(TypeError):
            mdp.Worker("inproc://nowhere", mdp.service("any")(function))


def test_what_cannot_be_resolved_or_sent_is_refused_when_it_is_decorated() -> None:
    def forward(item: Later) -> int: ...  # type: ignore[name-defined, empty-body]  # noqa: F821

    def inside(item: Holder) -> int: ...  # type: ignore[empty-body]

    def unclear(item: bytes | str) -> int: ...  # type: ignore[empty-body]

    def custom(item: int) -> Request: ...  # type: ignore[empty-body]

    for function, says in ((forward, "Later"), (inside, "item: .*Later"), (unclear, "item: .*bytes"), (custom, "its result: .*Request")):
        with pytest.raises(TypeError, match=f"{function.__name__}: .*{says}"):
            mdp.service("any")(function)


def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    @dataclass
    class Chain:
        next: Any = None

    deep: Any = None
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(TypeError):
        pack_call([deep], {})
    octets = b"\x92\x91" + b"\x91" * 5000 + b"\xc0" + b"\x80"
    with pytest.raises(TypeMismatch):
        Signature(lambda: None).unpack_arguments(request_of(octets))
    assert Chain().next is None


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_any_body_is_bad_arguments_at_worst(frames: list[bytes]) -> None:
    with pytest.raises(mdp.HandlerError) as caught:
        Signature(area).arguments_of(request_of(*frames))
    assert caught.value.code == BadArguments.default_code


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        (
            [b"hello"],
            "expected a call of area(width: float, height: float = 1.0) -> float, by client.call or mdp call --args, got other bytes",
        ),
        ([pack_call((), {"widht": 2.0})], "missing a required argument: 'width', and there is no 'widht'"),
        ([pack_call((1.0,), {"heigth": 2.0})], "got an unexpected keyword argument 'heigth'"),
    ],
)
def test_a_call_that_does_not_fit_is_explained(frames: list[bytes], text: str) -> None:
    with pytest.raises(mdp.HandlerError) as caught:
        Signature(area).arguments_of(request_of(*frames))
    assert caught.value.text.endswith(text)


async def test_an_option_given_as_an_argument_is_explained() -> None:
    @mdp.service("add")
    async def add(first: int, second: int = 1) -> int:
        return first + second

    async with mdp.testing.broker(add) as local:
        with pytest.raises(BadArguments) as caught:
            await local.client.call("add", 1, deadline=5.0)
        assert "add(first: int, second: int = 1) -> int, got another call: " in caught.value.text
        assert caught.value.text.endswith(
            "if deadline is an option of the request: options={'deadline': …}, or client.with_options(deadline=…)"
        )
        with pytest.raises(BadArguments) as other:
            await local.client.call("add", 1, third=5.0)
        assert "option of the request" not in other.value.text
