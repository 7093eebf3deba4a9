"""Public values and errors can be copied and pickled, as Spark does; both builds take the same arguments."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import deque
from dataclasses import is_dataclass
from enum import IntEnum, StrEnum
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGES = ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering")
# Values of parameters without default, by what their annotation contains.
BY_ANNOTATION: dict[str, Any] = {"float": 1.5, "int": 3, "bytes": b"300", "str": "text", "bool": True, "Mapping": {}, "Sequence": []}
# A program does not make these, or they refer to a connection.
NO_VALUES = frozenset({"core.ProtocolError", "mdp.Outcome", "mdp.Client"})


def offered() -> Iterator[tuple[str, type]]:
    """Yield the dataclasses and errors of all packages, once each."""
    seen = set[type]()
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            kind = getattr(module, name)
            if inspect.isclass(kind) and kind not in seen and (is_dataclass(kind) or issubclass(kind, BaseException)):
                seen.add(kind)
                if f"{package}.{name}" not in NO_VALUES:
                    yield f"{package}.{name}", kind


def made(kind: type) -> Any:
    """Return a value with the least arguments."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except ValueError:  # of a builtin
        return kind()
    required = [one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    values = {one.name: next((value for part, value in BY_ANNOTATION.items() if part in str(one.annotation)), None) for one in required}
    by_name = {one.name: values[one.name] for one in required if one.kind is one.KEYWORD_ONLY}
    return kind(*(values[one.name] for one in required if one.kind is not one.KEYWORD_ONLY), **by_name)


OFFERED = dict(offered())


@pytest.mark.parametrize("name", OFFERED)
def test_a_copy_is_the_same(name: str) -> None:
    value = made(OFFERED[name])
    protocols = [] if name == "mdp.ClientCall" else range(6)  # a call has the options of its caller, some functions
    for again in [
        copy.copy(value),
        copy.deepcopy(value),
        *(ForkingPickler.loads(ForkingPickler.dumps(value, protocol)) for protocol in protocols),
    ]:
        assert type(again) is type(value)
        assert str(again) == str(value)
        if isinstance(value, BaseException):
            assert (again.args, vars(again)) == (value.args, vars(value))
        else:
            assert again == value


def test_there_are_as_many_as_ever() -> None:
    assert len([kind for kind in OFFERED.values() if is_dataclass(kind)]) > 15
    assert len([kind for kind in OFFERED.values() if issubclass(kind, BaseException)]) > 80


class Number(IntEnum):
    TWO = 2


class Name(StrEnum):
    ECHO = "echo"


class Text(str):
    __slots__ = ()


class Octets(bytes):
    __slots__ = ()


class Frames(list[bytes]):
    __slots__ = ()


MESSAGES: dict[str, Any] = {
    "lists": [[b"a", b"b"], [b"c"]],
    "tuples": [(b"a", b"b"), (b"c",)],
    "both": [[b"a", b"b"], (b"c",)],
    "in a tuple": ((b"a", b"b"), [b"c"]),
    "in a deque": deque([(b"a", b"b"), (b"c",)]),
    "deques": [deque([b"a", b"b"]), deque([b"c"])],
    "subclasses": [Frames([b"a", b"b"]), (Octets(b"c"),)],
    "bytearrays": [(bytearray(b"a"), memoryview(b"b")), (bytearray(b"c"),)],
}


@pytest.mark.parametrize(("one", "other"), [("PAIR", "PAIR"), ("DEALER", "ROUTER"), ("PUSH", "PULL"), ("XPUB", "XSUB")])
@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("late", [False, True], ids=["connected", "queued"])
async def test_a_message_is_any_sequence_of_frames(one: str, other: str, kind: str, late: bool) -> None:
    async with core.Context() as context, asyncio.timeout(100):
        sender, receiver = context.socket(getattr(core, one)), context.socket(getattr(core, other))
        receiver.bind("inproc://messages" if late else "tcp://127.0.0.1:*")
        sender.connect(receiver.last_endpoint)
        if one == "XPUB":
            receiver.subscribe(memoryview(b""))  # type: ignore[arg-type]
            assert await sender.recv() == b"\1"
        else:
            await sender.send_multipart((b"first",))
            assert (await receiver.recv_multipart())[-1] == b"first"
        await sender.send_many(MESSAGES[kind])
        got = [(await receiver.recv_multipart())[-size:] for size in (2, 1)]
        assert got == [[b"a", b"b"], [b"c"]]


@pytest.mark.parametrize("bad", [[()], [[]], [None], [(b"a",), ()]])
async def test_a_message_without_frames_is_refused(bad: Any) -> None:
    async with core.Context() as context:
        sender, receiver = context.socket(core.PAIR), context.socket(core.PAIR)
        receiver.bind("inproc://none")
        sender.connect("inproc://none")
        with pytest.raises(core.ZMQError, match="at least one frame"):
            await sender.send_many(bad)


REQUESTS: dict[str, Callable[[mdp.Client], Any]] = {
    "enumeration": lambda client: client.request(Name.ECHO, b"x"),
    "subclass of str": lambda client: client.request(Text("echo"), b"x"),
    "service in a view": lambda client: client.request(memoryview(b"echo"), b"x"),  # type: ignore[arg-type]
    "key of an enumeration": lambda client: client.request("echo", b"x", key=Name.ECHO),
    "key in a bytearray": lambda client: client.with_options(key=bytearray(b"k")).request("echo", b"x"),  # type: ignore[arg-type]
    "attempts of an enumeration": lambda client: client.request("echo", b"x", attempts=Number.TWO, timeout=Number.TWO),
    "one attempt": lambda client: client.request("echo", b"x", attempts=True),
    "subclass of bytes": lambda client: client.request("echo", Octets(b"x")),
}
BAD_OPTIONS: list[dict[str, Any]] = [{"attempts": 2.0}, {"attempts": "2"}, {"once": 1}, {"once": "yes"}, {"wait": 1}, {"wait": "yes"}]


async def test_requests_take_what_is_text_or_a_number() -> None:
    async def echo(request: mdp.Request) -> list[bytes]:
        return request.body

    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with (
            mdp.Worker(Text(endpoint), Name.ECHO, handler=echo, concurrency=Number.TWO),
            mdp.Client((endpoint,)) as client,
            asyncio.timeout(100),
        ):
            await client.request("echo", wait=True)
            for name, send in REQUESTS.items():
                assert await send(client) == [b"x"], name
            assert [part async for part in client.stream(bytearray(b"echo"), b"x")] == [[b"x"]]  # type: ignore[arg-type]
            for options in BAD_OPTIONS:
                with pytest.raises(TypeError):
                    client.request("echo", **options)
                with pytest.raises(TypeError):
                    client.with_options(**options)


BAD_NUMBERS: dict[str, Callable[[], Any]] = {
    "attempts": lambda: mdp.Client("tcp://127.0.0.1:1", attempts=2.0),  # type: ignore[arg-type]
    "window": lambda: mdp.Client("tcp://127.0.0.1:1", window=2.0),  # type: ignore[arg-type]
    "concurrency": lambda: mdp.Worker("tcp://127.0.0.1:1", "echo", handler=print, concurrency=2.0),  # type: ignore[arg-type]
    "credit": lambda: mdp.Worker("tcp://127.0.0.1:1", "echo", handler=print, credit=2.0),  # type: ignore[arg-type]
    "retries": lambda: mdp.Retry(attempts=2.0),  # type: ignore[arg-type]
    "burst": lambda: mdp.Rate(5, burst=2.5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BAD_NUMBERS)
async def test_a_float_is_no_number_of_things(name: str) -> None:
    with pytest.raises(TypeError):
        BAD_NUMBERS[name]()
