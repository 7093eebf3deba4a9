from __future__ import annotations

import asyncio
import errno
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.runtime import supervision
from core.runtime.supervision import Supervisor
from mdp.client.client import Client
from mdp.errors import Busy, ClientClosed, DeadlineExceeded, HandlerError, NoService, RequestError, Timeout, Unreachable
from mdp.wire.commands import CLIENT_CANCEL_03, CLIENT_ERROR_03, CLIENT_FINAL_03, CLIENT_REQUEST_03, HEAD_BYTES
from mdp.wire.options import decode_request_options
from mdp.worker.worker import Worker
from tests.scenes.mdp_handlers import NO_LISTENER, echo
from tests.scenes.mdp_scripted_broker import StandIn, number, sent_together
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.request import Request


# -------------------------------------------------------------------------------------------------------------------------------- requests


async def test_a_request_and_its_reply(endpoint: str) -> None:
    async with Worker(endpoint, "echo", handler=echo), Client(endpoint) as client:
        assert await client.request("echo", b"a", b"", b"c", wait=True) == [b"a", b"", b"c"]
        assert (client.dialect, client.connected, client.endpoint) == ("0.3", True, endpoint)


async def test_a_thousand_in_flight_get_their_own_replies(endpoint: str) -> None:
    """MDP-12."""

    async def slowly(request: Request) -> bytes:
        await asyncio.sleep(0.001 * (request.body[0][-1] % 3))
        return request.body[0]

    bodies = [b"%d" % n for n in range(1000)]
    async with Worker(endpoint, "echo", handler=slowly, concurrency=50) as worker, Client(endpoint) as client:
        await eventually(lambda: worker.connected)
        replies = await asyncio.gather(*(client.request("echo", body, wait=True) for body in bodies))
        assert replies == [[body] for body in bodies]
        assert client.counters.sent == client.counters.replied == 1000


async def test_a_callback_is_called_once(endpoint: str) -> None:
    told: list[tuple[str, list[bytes] | None, RequestError | None]] = []
    heard = asyncio.Event()

    def done(about: str, reply: list[bytes] | None, error: RequestError | None) -> None:
        told.append((about, reply, error))
        heard.set()

    async with Worker(endpoint, "echo", handler=echo) as worker, Client(endpoint) as client:
        await eventually(lambda: worker.connected)
        client.ask("echo", [b"a", b"b"], done, "first")
        await asyncio.wait_for(heard.wait(), 100)
        assert told == [("first", [b"a", b"b"], None)]
        heard.clear()
        client.ask("nobody", [b"a"], done, "second")
        await asyncio.wait_for(heard.wait(), 100)
        assert told[1][:2] == ("second", None)
        assert type(told[1][2]) is NoService
        assert len(told) == 2


@pytest.mark.faults
async def test_a_callback_that_fails_harms_no_other_request(endpoint: str) -> None:
    """All of one batch: callbacks, futures and a window; and the connection goes on."""
    told: list[list[bytes] | None] = []

    def fails(*_: object) -> None:
        raise ValueError

    supervisor = Supervisor()
    with supervision.scope(supervisor):
        async with Worker(endpoint, "echo", handler=echo) as worker, Client(endpoint) as client:
            await eventually(lambda: worker.connected)
            window = client.open_window("echo", fails)
            window.send([b"w"])
            for number in range(6):
                client.ask("echo", [b"a"], fails if number % 2 else lambda _, reply, error: told.append(reply), None)
            replies = [client.request("echo", b"%d" % number) for number in range(3)]
            async with asyncio.timeout(100):
                assert await asyncio.gather(*replies) == [[b"0"], [b"1"], [b"2"]]
                await eventually(lambda: supervisor.faults == {"mdp client callback": 4})
            assert told == [[b"a"]] * 3
            assert [outcome.reply for outcome in window.take()] == [[b"w"]]
            assert client.connections == 1


async def test_a_callback_is_called_when_the_client_closes(stand_in: StandIn) -> None:
    told: list[RequestError | None] = []
    async with Client(stand_in.endpoint) as client:
        client.ask(b"echo", [b"a"], lambda _, reply, error: told.append(error), None)
        await stand_in.next()
        assert told == []
    assert [type(error) for error in told] == [ClientClosed]


async def test_a_request_without_frames_has_one_empty_frame(stand_in: StandIn) -> None:
    """MDP-07: a body has one frame at least."""
    async with Client(stand_in.endpoint) as client:
        reply = client.request("echo")
        peer, frames = await stand_in.next()
        assert frames[1:] == [b"echo", b"", b""]
        stand_in.send(peer, CLIENT_FINAL_03 + number(frames), b"ok")
        assert await reply == [b"ok"]


async def test_other_buffers_than_bytes_are_copied_and_other_types_refused(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        buffer = bytearray(b"abc")
        client.request("echo", buffer, memoryview(b"def"))  # type: ignore[arg-type]
        buffer[:] = b"xyz"
        assert (await stand_in.next())[1][3:] == [b"abc", b"def"]
        for wrong in ("text", 1, None, [b"x"]):
            with pytest.raises(TypeError):
                client.request("echo", wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                client.request("echo", b"x", bytearray(b"y"), wrong)  # type: ignore[arg-type]
        assert client.in_flight == 1


async def test_options_of_a_request_are_sent_along(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        client.request("echo", b"x", key="order-17", once=True, wait=True, deadline=5.0, trace={"traceparent": "00-1"})
        options = decode_request_options((await stand_in.next())[1][2])
        assert (options.key, options.once, options.wait, options.trace) == (b"order-17", True, True, {"traceparent": "00-1"})
        assert options.deadline_ms is not None
        assert 0 < options.deadline_ms <= 5000


async def test_typed_errors_come_with_their_numbers(endpoint: str) -> None:
    async def fail(request: Request) -> bytes:
        raise ValueError("secret payload")

    async with Worker(endpoint, "fail", handler=fail), Client(endpoint) as client:
        with pytest.raises(NoService) as caught:
            await client.request("nobody", b"x")
        assert (caught.value.service, caught.value.code, caught.value.attempts) == ("nobody", "NO_SERVICE", 1)
        with pytest.raises(HandlerError) as failed:
            await client.request("fail", b"x", wait=True)
        assert "ValueError" in failed.value.text
        assert "secret" not in str(failed.value)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb"])
async def test_a_name_no_service_can_have_is_refused_at_the_call(stand_in: StandIn, name: str) -> None:
    async with Client(stand_in.endpoint) as client:
        with pytest.raises(core.LocalProtocolError):
            client.request(name, b"x")


async def test_services_are_prepared_for_a_bounded_number_of_names(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        for n in range(3000):
            client.request(f"service-{n}", b"x")
        assert len(client._calls) <= 1024


def test_wrong_arguments_are_refused_when_the_client_is_made() -> None:
    wrong: list[dict[str, Any]] = [{"timeout": 0}, {"attempts": 0}, {"window": 0}, {"heartbeat_ms": 0}, {"dialect": "0.4"}]
    for options in wrong:
        with pytest.raises(ValueError):
            Client(NO_LISTENER, **options)
    for endpoint in ("nonsense", "tcp://", "tcp://host:notaport"):
        with pytest.raises(core.ZMQError):
            Client(endpoint)
    with pytest.raises(ValueError):
        Client([])


async def test_more_waiting_requests_than_the_limit_are_refused_at_the_call() -> None:
    async with Client(NO_LISTENER, waiting_max=3) as client:
        for _ in range(3):
            client.request("echo", b"x")
        with pytest.raises(Busy):
            client.request("echo", b"x")


async def test_the_first_request_of_an_iteration_is_sent_at_once_and_the_others_in_one_batch(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(stand_in.endpoint) as client:
        await eventually(lambda: client.connected)
        batches = sent_together(monkeypatch)
        for _ in range(50):
            client.request("echo", b"x")
        assert batches == [1]
        for _ in range(50):
            await stand_in.next()
        assert batches == [1, 49]


async def test_an_answered_request_leaves_no_reference_cycle(endpoint: str) -> None:
    async with Worker(endpoint, "echo", handler=echo), Client(endpoint) as client:
        await client.request("echo", b"x", wait=True)
        gc.disable()
        try:
            reply = client.request("echo", b"x")
            trace = weakref.ref(reply)
            assert await reply == [b"x"]
            del reply
            await asyncio.sleep(0)  # the loop drops its reference to the event that woke this task
            assert trace() is None
        finally:
            gc.enable()


# ------------------------------------------------------------------------------------------------------------------ timeouts, cancellation


async def test_no_broker_is_unreachable_after_all_attempts() -> None:
    async with Client(NO_LISTENER, timeout=0.02, attempts=3) as client:
        with pytest.raises(Unreachable) as caught:
            await client.request("echo", b"x")
        assert NO_LISTENER in str(caught.value)
        assert str(errno.ECONNREFUSED) in caught.value.text  # the reason the system gave
        assert caught.value.attempts == 3
        assert caught.value.after_s >= 0.06
        assert isinstance(caught.value, TimeoutError)


async def test_a_silent_broker_is_a_timeout_after_sending_as_often_as_there_are_attempts(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint, timeout=0.03, attempts=3) as client:
        await eventually(lambda: client.connected)
        with pytest.raises(Timeout) as caught:
            await client.request("echo", b"x")
        assert type(caught.value) is Timeout
        assert (caught.value.attempts, caught.value.service) == (3, "echo")
        kinds = [(await stand_in.next())[1][0] for _ in range(4)]
        assert [kind[:HEAD_BYTES] for kind in kinds] == [CLIENT_REQUEST_03] * 3 + [CLIENT_CANCEL_03]
        assert len({kind[HEAD_BYTES:] for kind in kinds}) == 1


async def test_a_deadline_ends_a_request_before_its_attempts_do(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint, timeout=100) as client:
        with pytest.raises(DeadlineExceeded):
            await client.request("echo", b"x", deadline=0.05)


async def test_timeouts_of_one_request_in_place_of_the_clients(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        with pytest.raises(Timeout):
            await client.request("echo", b"x", timeout=0.02, attempts=1)


async def test_cancelling_removes_the_request_and_sends_cancel(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        reply = client.request("echo", b"x")
        peer, frames = await stand_in.next()
        assert reply.cancel()
        assert not reply.cancel()
        assert await stand_in.next() == (peer, [CLIENT_CANCEL_03 + number(frames)])
        assert (client.in_flight, client.counters.cancelled) == (0, 1)
        stand_in.send(peer, CLIENT_FINAL_03 + number(frames), b"late")
        await eventually(lambda: client.counters.late)


async def test_cancelling_the_awaiting_task_cancels_the_request(stand_in: StandIn) -> None:
    """Nothing is lost and nothing left behind: by a timeout, by a cancelled task, by a cancelled gather."""
    async with Client(stand_in.endpoint) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await client.request("echo", b"1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.request("echo", b"2"), 0.02)
        gathering = asyncio.gather(*(client.request("echo", b"3") for _ in range(10)))
        gathering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gathering
        assert (client.in_flight, client.counters.cancelled) == (0, 12)


async def test_a_cancelled_request_cancels_its_handler(endpoint: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> bytes:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise
        return b""

    async with Worker(endpoint, "wait", handler=wait) as worker, Client(endpoint) as client:
        reply = client.request("wait", b"x", wait=True)
        await begun.wait()
        reply.cancel()
        await ended.wait()
        await eventually(lambda: worker.running == 0)


# --------------------------------------------------------------------------------------------------------------------- the end of a client


async def test_closing_fails_what_is_open_and_leaves_nothing_behind(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        await eventually(lambda: client.connected)
        replies = [client.request("echo", b"x") for _ in range(10)]
    for reply in replies[:5]:
        with pytest.raises(ClientClosed):
            await reply
    del replies, reply  # not awaited ones log nothing: conftest checks the loop's exception handler
    with pytest.raises(ClientClosed):
        client.request("echo", b"x")
    await client.close()


@pytest.mark.parametrize("target", [NO_LISTENER, "stand-in"])
async def test_closing_while_connecting_leaves_nothing_behind(stand_in: StandIn, target: str) -> None:
    for turns in range(6):
        client = Client(stand_in.endpoint if target == "stand-in" else target)
        reply = client.request("echo", b"x")
        for _ in range(turns):
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClientClosed):
            await reply


async def test_a_client_that_never_did_anything_can_be_closed() -> None:
    client = Client(NO_LISTENER)
    await client.close()
    with pytest.raises(ClientClosed):
        client.request("echo", b"x")


async def test_a_client_in_a_context_of_others_leaves_the_context_alone(stand_in: StandIn) -> None:
    async with core.Context() as context:
        async with Client(stand_in.endpoint, context=context) as client:
            client.request("echo", b"x")
            await stand_in.next()
        assert not context.closed
        await stand_in.gone()


async def test_a_client_belongs_to_one_loop(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:

        def elsewhere() -> None:
            async def ask() -> None:
                client.request("echo", b"x")

            asyncio.run(ask())

        with pytest.raises(RuntimeError, match="SyncClient"):
            await asyncio.to_thread(elsewhere)


# ---------------------------------------------------------------------------------------------------------------------------------- others


async def test_mmi_answers_codes(endpoint: str) -> None:
    async with Worker(endpoint, "echo", handler=echo) as worker, Client(endpoint) as client:
        await eventually(lambda: worker.connected)
        await client.request("echo", b"x", wait=True)
        assert await client.mmi("service", "echo") == "200"
        assert await client.mmi("mmi.service", b"nobody") == "404"
        assert await client.mmi("no-such-thing") == "501"


async def test_mmi_shows_bytes_that_are_not_text(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        asking = asyncio.ensure_future(client.mmi("odd"))
        peer, frames = await stand_in.next()
        assert frames[1:] == [b"mmi.odd", b"", b""]
        stand_in.send(peer, CLIENT_FINAL_03 + number(frames), b"\xff")
        assert await asking == "\ufffd"


@pytest.mark.parametrize(
    "garbage",
    [
        lambda number: [b""],
        lambda number: [b"\xff" * 20, b"x"],
        lambda number: [CLIENT_FINAL_03 + number],
        lambda number: [CLIENT_ERROR_03 + number, b"lower case", b""],
        lambda number: [b"", b"MDPC01", b"echo", b"x"],
    ],
)
async def test_garbage_of_the_broker_changes_nothing(stand_in: StandIn, garbage: Callable[[bytes], list[bytes]]) -> None:
    """MDP-03, MDP-11."""
    async with Client(stand_in.endpoint) as client:
        reply = client.request("echo", b"x")
        peer, frames = await stand_in.next()
        stand_in.send(peer, *garbage(number(frames)))
        stand_in.send(peer, CLIENT_FINAL_03 + number(frames), b"ok")
        assert await reply == [b"ok"]
        assert client.counters.malformed == 1


async def test_errors_of_one_client_do_not_touch_another(endpoint: str) -> None:
    async with Worker(endpoint, "echo", handler=echo), Client(endpoint) as one, Client(endpoint) as two:
        await one.request("echo", b"x", wait=True)
        asked = [one.request("nobody", b"x"), two.request("echo", b"y"), one.request("echo", b"z")]
        failed, *answered = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(failed, RequestError)
        assert answered == [[b"y"], [b"z"]]
