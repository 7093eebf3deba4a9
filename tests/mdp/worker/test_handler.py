from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import pytest

from mdp.worker.handler import BadReply, HandlerKind, kind_of, mark_of, reply_frames, service, services_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def coroutine(request: Any) -> bytes:
    return b""


async def generator(request: Any) -> AsyncIterator[bytes]:
    yield b""


def plain(request: Any) -> bytes:
    return b""


class Objects:
    async def method(self, request: Any) -> bytes:
        return b""

    async def __call__(self, request: Any) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (coroutine, HandlerKind.COROUTINE),
        (generator, HandlerKind.GENERATOR),
        (plain, HandlerKind.THREAD),
        (functools.partial(coroutine), HandlerKind.COROUTINE),
        (functools.partial(functools.partial(generator)), HandlerKind.GENERATOR),
        (functools.partial(plain), HandlerKind.THREAD),
        (Objects(), HandlerKind.COROUTINE),
        (Objects().method, HandlerKind.COROUTINE),
        (lambda request: b"", HandlerKind.THREAD),
        (len, HandlerKind.THREAD),
    ],
)
def test_the_kind_of_a_wrapped_handler_is_recognized(handler: Any, kind: HandlerKind) -> None:
    assert kind_of(handler) is kind


def test_only_plain_functions_can_be_called_inline() -> None:
    assert kind_of(plain, inline=True) is HandlerKind.INLINE
    assert kind_of(coroutine, inline=True) is HandlerKind.COROUTINE


def test_what_cannot_be_called_is_no_handler() -> None:
    with pytest.raises(TypeError):
        kind_of("echo")  # type: ignore[arg-type]


@pytest.mark.parametrize("handler", [lambda: b"", lambda a, b: b"", lambda *, request: b"", functools.partial(plain, None), str.join])
def test_a_handler_takes_one_argument(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"one argument, an mdp\.Request"):
        kind_of(handler)


@pytest.mark.parametrize("handler", [lambda request, more=0: b"", lambda *requests: b"", lambda request, **more: b"", bytes, type])
def test_further_parameters_with_defaults_are_allowed(handler: Any) -> None:
    assert kind_of(handler) is HandlerKind.THREAD


def test_the_decorator_notes_service_and_options_on_the_function_and_nowhere_else() -> None:
    @service("echo", inline=True, concurrency=3)
    def echo(request: Any) -> bytes:
        return b""

    mark = mark_of(echo)
    assert mark is not None
    assert (mark.name, mark.inline, mark.options) == ("echo", True, {"concurrency": 3})
    assert echo(None) == b""
    assert mark_of(plain) is None
    assert mark_of(None) is None


def test_services_of_a_module_in_order_of_definition() -> None:
    module = types.ModuleType("app")
    first, second = service("b")(lambda request: b""), service("a")(lambda request: b"")
    vars(module).update(second_name=first, alias=first, other=plain, text="x", first_name=second)
    assert services_of(module) == [first, second]


def test_two_handlers_of_a_module_cannot_serve_one_name() -> None:
    """Each would get some of the requests."""

    def first(request: Any) -> bytes:
        return b""

    def second(request: Any) -> bytes:
        return b""

    module = types.ModuleType("app")
    vars(module).update(first=service("echo")(first), second=service("echo")(second))
    with pytest.raises(ValueError, match=r"module app has two handlers of the service 'echo': .*first and .*second"):
        services_of(module)


@pytest.mark.parametrize(("value", "frames"), [(b"x", [b"x"]), (b"", [b""]), ([b"a", b""], [b"a", b""]), ((b"a",), [b"a"])])
def test_bytes_and_lists_of_bytes_are_replies(value: Any, frames: list[bytes]) -> None:
    assert [*reply_frames(value)] == frames


@pytest.mark.parametrize("value", [None, "text", 1, [], (), ["text"], [b"x", None], bytearray(b"x"), {b"x"}, iter([b"x"])])
def test_anything_else_is_not(value: Any) -> None:
    """MDP-07: one frame at least; a forgotten return must not pass for an empty reply."""
    with pytest.raises(BadReply):
        reply_frames(value)


def test_what_cannot_be_marked_is_a_type_error() -> None:
    class Shop:
        async def sell(self, request: object) -> bytes:
            return b""

    with pytest.raises(TypeError, match="sell cannot be marked; give it to"):
        service("shop")(Shop().sell)
