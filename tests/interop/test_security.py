"""PLAIN, CURVE and ZAP through sockets, ours against libzmq in both roles."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.security.authenticator import Authenticator
from core.zmtp import z85
from core.zmtp.zap import ZAP_ENDPOINT, ZapReply, ZapRequest
from tests.interop.credentials import (
    BODIES,
    CLIENT,
    CLIENT_PUBLIC,
    CLIENT_SECRET,
    OTHER_PUBLIC,
    OTHER_SECRET,
    SERVER,
    SERVER_PUBLIC,
    Watch,
    converse,
    join,
    welcome,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.ends import End, Foreign, Ours

CREDENTIALS = {"PLAIN": (b"admin", b"secret"), "CURVE": (z85.decode(CLIENT_PUBLIC),), "NULL": ()}
FAILED = core.EVENT_HANDSHAKE_FAILED_NO_DETAIL | core.EVENT_HANDSHAKE_FAILED_AUTH | core.EVENT_HANDSHAKE_FAILED_PROTOCOL


@pytest.fixture
def zap(foreign: Foreign) -> End:
    """The ZAP handler of libzmq's context; each test answers what it expects to be asked."""
    handler = foreign("ROUTER")
    handler.bind(ZAP_ENDPOINT)
    return handler


async def let_in(zap: End) -> ZapRequest:
    """Answer one question of libzmq's with yes."""
    request = ZapRequest.decode(await zap.recv())
    await zap.send(*ZapReply(b"200", b"OK", b"somebody").encode(request))
    return request


@pytest.mark.parametrize("server_binds", [True, False], ids=["server binds", "client binds"])
async def test_zap_08_zap_10_our_server_and_libzmq(ours: Ours, foreign: Foreign, mechanism: str, anywhere: str, server_binds: bool) -> None:
    asked: list[ZapRequest] = []

    async def judge(request: ZapRequest) -> ZapReply:
        asked.append(request)
        return await welcome(request)

    ours.context.authenticator = judge
    server = ours("ROUTER", **SERVER[mechanism])
    client = foreign("DEALER", identity=b"the dealer", **CLIENT[mechanism])
    join(server, client, anywhere, server_binds)
    await converse(client, server, BODIES)
    address = b"127.0.0.1" if anywhere.startswith("tcp") else b":%d:%d:%d" % (os.getuid(), os.getgid(), os.getpid())
    assert asked == [ZapRequest(mechanism.encode(), b"", address, credentials=CREDENTIALS[mechanism])]


@pytest.mark.parametrize("server_binds", [True, False], ids=["server binds", "client binds"])
async def test_plain_01_libzmq_server_and_our_client(
    ours: Ours, foreign: Foreign, zap: End, mechanism: str, anywhere: str, server_binds: bool
) -> None:
    server = foreign("ROUTER", zap_domain=b"global", **SERVER[mechanism])
    client = ours("DEALER", identity=b"the dealer", **CLIENT[mechanism])
    join(server, client, anywhere, server_binds)
    request = await let_in(zap)
    assert request.credentials == CREDENTIALS[mechanism]
    await converse(client, server, BODIES)


async def test_ours_and_ours(ours: Ours, mechanism: str, anywhere: str) -> None:
    ours.context.authenticator = welcome
    server = ours("ROUTER", **SERVER[mechanism])
    client = ours("DEALER", identity=b"the dealer", **CLIENT[mechanism])
    join(server, client, anywhere, True)
    await converse(client, server, BODIES)


@pytest.mark.parametrize("publisher_is", ["ours", "libzmq"])
async def test_curve_12_plain_05_subscriptions_reach_the_publisher(
    ours: Ours, foreign: Foreign, mechanism: str, anywhere: str, publisher_is: str
) -> None:
    ours.context.authenticator = welcome
    make, make_other = (ours, foreign) if publisher_is == "ours" else (foreign, ours)
    if publisher_is == "ours":
        publisher = make("XPUB", **SERVER[mechanism])
        subscriber = make_other("SUB", **CLIENT[mechanism])
    else:  # the subscriber is the server, so that nobody of libzmq's has to be asked
        publisher = make("XPUB", **CLIENT[mechanism])
        subscriber = make_other("SUB", **SERVER[mechanism])
    long_topic = b"t" * 300
    for topic in (b"news", long_topic):
        subscriber.subscribe(topic)
    join(publisher, subscriber, anywhere, True)
    assert {(await publisher.recv())[0] for _ in range(2)} == {b"\x01news", b"\x01" + long_topic}
    await publisher.send(b"weather", b"not asked for")
    await publisher.send(b"newsflash", b"body")
    assert await subscriber.recv() == [b"newsflash", b"body"]
    subscriber.unsubscribe(b"news")
    assert await publisher.recv() == [b"\x00news"]


async def test_curve_heartbeats_travel_in_boxes(ours: Ours, foreign: Foreign) -> None:
    """Each side would cut the other within two seconds if its PINGs or PONGs did not open."""
    server = ours("ROUTER", heartbeat_ivl=20, heartbeat_timeout=2000, heartbeat_ttl=2000, **SERVER["CURVE"])
    gone = Watch(server.socket, core.EVENT_DISCONNECTED)
    client = foreign("DEALER", identity=b"the dealer", heartbeat_ivl=20, heartbeat_timeout=2000, heartbeat_ttl=2000, **CLIENT["CURVE"])
    client.connect(server.bind("tcp://127.0.0.1:*"))
    await converse(client, server, BODIES[:1])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5):
            await gone.next()
    await converse(client, server, BODIES[:1])


# -- who is let in


@pytest.mark.parametrize("name", ["NULL", "PLAIN", "CURVE"])
async def test_zap_01_zap_04_a_rep_handler_of_our_own_context_decides(ours: Ours, foreign: Foreign, name: str) -> None:
    handler = ours("REP")
    handler.bind(ZAP_ENDPOINT)
    server = ours("ROUTER", zap_domain=b"global", **SERVER[name])
    client = foreign("DEALER", identity=b"the dealer", **CLIENT[name])
    client.connect(server.bind("tcp://127.0.0.1:*"))
    version, request_id, domain, address, _, asked_mechanism, *credentials = await handler.recv()
    assert (version, domain, address, asked_mechanism) == (b"1.0", b"global", b"127.0.0.1", name.encode())
    assert tuple(credentials) == CREDENTIALS[name]
    await handler.send(b"1.0", request_id, b"200", b"OK", b"alice", b"\x05Shift\x00\x00\x00\x05night")
    await converse(client, server, BODIES[:1])


@pytest.mark.parametrize(
    "reply,code",
    [
        ([b"1.1", b"1", b"200", b"OK", b"", b""], 0x20000003),
        ([b"1.0", b"2", b"200", b"OK", b"", b""], 0x20000002),
        ([b"1.0", b"1", b"200", b"OK", b""], 0x20000001),
        ([b"1.0", b"1", b"200", b"OK", b"", b"", b""], 0x20000001),
        ([b"1.0", b"1", b"201", b"OK", b"", b""], 0x20000004),
        ([b"1.0", b"1", b"", b"OK", b"", b""], 0x20000004),
        ([b"1.0", b"1", b"200", b"OK", b"", b"\x05Shift"], 0x20000005),
    ],
)
async def test_zap_02_zap_03_a_malformed_reply_costs_the_connection(ours: Ours, reply: list[bytes], code: int) -> None:
    handler = ours("REP")
    handler.bind(ZAP_ENDPOINT)
    server = ours("ROUTER", **SERVER["PLAIN"])
    failed = Watch(server.socket, FAILED)
    client = ours("DEALER", reconnect_ivl=-1, **CLIENT["PLAIN"])
    client.connect(server.bind("tcp://127.0.0.1:*"))
    await handler.recv()
    await handler.send(*reply)
    event = await failed.next()
    assert (event.event, event.value) == (core.EVENT_HANDSHAKE_FAILED_PROTOCOL, code)


@pytest.mark.parametrize("status", [b"400", b"500"])
async def test_zap_05_a_refused_client_gets_the_status_and_gives_up(ours: Ours, mechanism: str, status: bytes) -> None:
    """ZMTP-47, PLAIN-07, CURVE-14."""
    asked = 0

    async def judge(request: ZapRequest) -> ZapReply:
        nonlocal asked
        asked += 1
        return ZapReply(status, b"No")

    ours.context.authenticator = judge
    server = ours("ROUTER", **SERVER[mechanism])
    client = ours("DEALER", reconnect_ivl=1, **CLIENT[mechanism])
    at_server, at_client = Watch(server.socket, FAILED), Watch(client.socket, FAILED | core.EVENT_CONNECT_RETRIED)
    client.connect(server.bind("tcp://127.0.0.1:*"))
    for watch in (at_server, at_client):
        event = await watch.next()
        assert (event.event, event.value) == (core.EVENT_HANDSHAKE_FAILED_AUTH, int(status))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await at_client.next()
    assert asked == 1


async def test_zap_05_a_client_that_is_put_off_is_not_told_and_comes_again(ours: Ours, mechanism: str) -> None:
    """ZMTP-48, PLAIN-07."""
    statuses = iter([b"300", b"300", b"200"])

    async def judge(request: ZapRequest) -> ZapReply:
        return ZapReply(next(statuses))

    ours.context.authenticator = judge
    server = ours("ROUTER", **SERVER[mechanism])
    client = ours("DEALER", reconnect_ivl=1, identity=b"the dealer", **CLIENT[mechanism])
    at_client = Watch(client.socket, FAILED)
    client.connect(server.bind("tcp://127.0.0.1:*"))
    await converse(client, server, BODIES[:1])
    assert [(await at_client.next()).event for _ in range(2)] == [core.EVENT_HANDSHAKE_FAILED_NO_DETAIL] * 2


@pytest.mark.parametrize("status", [b"400", b"500"])
async def test_plain_08_our_client_takes_the_misspelt_error_of_libzmq_for_a_refusal(
    ours: Ours, foreign: Foreign, zap: End, mechanism: str, status: bytes
) -> None:
    server = foreign("ROUTER", **SERVER[mechanism])
    client = ours("DEALER", reconnect_ivl=1, **CLIENT[mechanism])
    failed = Watch(client.socket, FAILED)
    client.connect(server.bind("tcp://127.0.0.1:*"))
    request = ZapRequest.decode(await zap.recv())
    await zap.send(*ZapReply(status, b"No").encode(request))
    event = await failed.next()
    assert (event.event, event.value) == (core.EVENT_HANDSHAKE_FAILED_AUTH, int(status))


@pytest.mark.parametrize(
    "name,options,let_in",
    [
        ("NULL", {}, True),
        ("NULL", {"zap_domain": b"global"}, True),
        ("NULL", {"zap_domain": b"global", "zap_enforce_domain": 1}, False),
        ("CURVE", {}, True),
        ("CURVE", {"zap_domain": b"global"}, True),
        ("CURVE", {"zap_domain": b"global", "zap_enforce_domain": 1}, False),
        ("CURVE", {"zap_enforce_domain": 1}, True),
        ("PLAIN", {}, False),
        ("PLAIN", {"zap_domain": b"global"}, False),
    ],
)
@pytest.mark.parametrize("server_is", ["ours", "libzmq"])
async def test_zap_06_curve_15_plain_06_nobody_there_to_ask(
    ours: Ours, foreign: Foreign, name: str, options: dict[str, Any], let_in: bool, server_is: str
) -> None:
    """libzmq stands beside ours, so that both show the same."""
    make_server, make_client = (ours, foreign) if server_is == "ours" else (foreign, ours)
    server = make_server("PULL", **{**SERVER[name], **options})
    client = make_client("PUSH", **CLIENT[name])
    endpoint = server.bind("tcp://127.0.0.1:*")
    if let_in:
        client.connect(endpoint)
        await client.send(b"in")
        assert await server.recv() == [b"in"]
    elif server_is == "ours":
        failed = Watch(server.socket, FAILED)  # type: ignore[arg-type]
        client.connect(endpoint)
        assert (await failed.next()).event == core.EVENT_HANDSHAKE_FAILED_AUTH
    else:  # libzmq closes, or with NULL says nothing more
        client.set(handshake_ivl=200)
        ended = Watch(client.socket, FAILED | core.EVENT_HANDSHAKE_SUCCEEDED)  # type: ignore[arg-type]
        client.connect(endpoint)
        assert (await ended.next()).event != core.EVENT_HANDSHAKE_SUCCEEDED


async def test_zap_06_null_is_judged_by_address_before_ready(ours: Ours, foreign: Foreign) -> None:
    ours.context.authenticator = Authenticator(deny=["127.0.0.1"])
    server = ours("PULL", zap_domain=b"global")
    failed = Watch(server.socket, FAILED)
    client = foreign("PUSH")
    client.connect(server.bind("tcp://127.0.0.1:*"))
    assert (await failed.next()).value == 400
    ours.context.authenticator = Authenticator(allow=["127.0.0.1"])
    client = foreign("PUSH")
    client.connect(server.socket.last_endpoint)
    await client.send(b"in")
    assert await server.recv() == [b"in"]


async def test_zap_12_a_handler_that_never_answers_pins_nothing(ours: Ours, mechanism: str) -> None:
    handler = ours("ROUTER")
    handler.bind(ZAP_ENDPOINT)
    server = ours("PULL", handshake_ivl=100, **SERVER[mechanism])
    failed = Watch(server.socket, FAILED)
    client = ours("PUSH", reconnect_ivl=-1, **CLIENT[mechanism])
    client.connect(server.bind("tcp://127.0.0.1:*"))
    await handler.recv()
    assert "100 ms" in (await failed.next()).reason


async def test_zap_05_a_judge_that_fails_is_the_500_of_its_callers(ours: Ours, caplog: pytest.LogCaptureFixture) -> None:
    async def judge(request: ZapRequest) -> ZapReply:
        raise ZeroDivisionError

    ours.context.authenticator = judge
    server = ours("PULL", **SERVER["PLAIN"])
    client = ours("PUSH", **CLIENT["PLAIN"])
    failed = Watch(client.socket, FAILED)
    client.connect(server.bind("tcp://127.0.0.1:*"))
    assert (await failed.next()).value == 500
    assert "ZeroDivisionError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_handler_that_leaves_puts_its_askers_off(ours: Ours) -> None:
    handler = ours("ROUTER")
    handler.bind(ZAP_ENDPOINT)
    server = ours("PULL", **SERVER["PLAIN"])
    client = ours("PUSH", reconnect_ivl=-1, **CLIENT["PLAIN"])
    failed = Watch(server.socket, FAILED)
    client.connect(server.bind("tcp://127.0.0.1:*"))
    await handler.recv()
    handler.close()
    event = await failed.next()
    assert (event.event, event.value) == (core.EVENT_HANDSHAKE_FAILED_AUTH, 300)


async def test_c5_a_peer_whose_key_is_taken_out_of_the_file_is_disconnected(ours: Ours, foreign: Foreign, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{CLIENT_PUBLIC.decode()} alice\n{OTHER_PUBLIC.decode()} bob\n")
    ours.context.authenticator = Authenticator(authorized_keys=path)
    server = ours("ROUTER", **SERVER["CURVE"])
    endpoint = server.bind("tcp://127.0.0.1:*")
    gone, failed = Watch(server.socket, core.EVENT_DISCONNECTED), Watch(server.socket, FAILED)
    alice = foreign("DEALER", identity=b"alice", **CLIENT["CURVE"])
    keys = {"curve_serverkey": SERVER_PUBLIC, "curve_publickey": OTHER_PUBLIC, "curve_secretkey": OTHER_SECRET}
    bob = foreign("DEALER", identity=b"bob", **keys)
    for client in (alice, bob):
        client.connect(endpoint)
        await client.send(b"in")
        await server.recv()
    path.write_text(f"{OTHER_PUBLIC.decode()} bob\n")
    assert "revoked" in (await gone.next()).reason
    assert (await failed.next()).value == 400  # it reconnects, and gets the status
    await bob.send(b"still in")
    assert await server.recv() == [b"bob", b"still in"]


async def test_c5_an_unknown_key_is_refused(ours: Ours, foreign: Foreign) -> None:
    ours.context.authenticator = Authenticator(keys={OTHER_PUBLIC: "bob"})
    server = ours("PULL", **SERVER["CURVE"])
    failed = Watch(server.socket, FAILED)
    client = foreign("PUSH", **CLIENT["CURVE"])
    client.connect(server.bind("tcp://127.0.0.1:*"))
    event = await failed.next()
    assert (event.event, event.value) == (core.EVENT_HANDSHAKE_FAILED_AUTH, 400)


# -- configurations that do not fit


@pytest.mark.parametrize("client_is", ["ours", "libzmq"])
@pytest.mark.parametrize(
    "client_mechanism,server_mechanism", [("NULL", "CURVE"), ("PLAIN", "CURVE"), ("CURVE", "NULL"), ("CURVE", "PLAIN")]
)
async def test_c4_another_mechanism_is_refused(
    ours: Ours, foreign: Foreign, client_is: str, client_mechanism: str, server_mechanism: str
) -> None:
    ours.context.authenticator = welcome
    server = ours("PULL", **SERVER[server_mechanism])
    failed = Watch(server.socket, FAILED)
    client = (ours if client_is == "ours" else foreign)("PUSH", **CLIENT[client_mechanism])
    client.connect(server.bind("tcp://127.0.0.1:*"))
    event = await failed.next()
    if client_is == "ours":
        assert (event.event, event.value) == (core.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000002)
    else:  # libzmq may be the first to close, before it has sent all of its greeting
        assert event.value in (0, 0x11000002)


async def test_zmtp_10_two_servers_part_at_the_handshake_timer(ours: Ours, foreign: Foreign, mechanism: str) -> None:
    server = ours("PAIR", handshake_ivl=100, **SERVER[mechanism])
    failed = Watch(server.socket, FAILED)
    other = foreign("PAIR", **SERVER[mechanism])
    other.connect(server.bind("tcp://127.0.0.1:*"))
    assert "100 ms" in (await failed.next()).reason


async def test_zmtp_10_two_clients_part_at_once(ours: Ours, foreign: Foreign, mechanism: str) -> None:
    one = ours("PAIR", **CLIENT[mechanism])
    failed = Watch(one.socket, FAILED)
    other = foreign("PAIR", **CLIENT[mechanism])
    other.connect(one.bind("tcp://127.0.0.1:*"))
    event = await failed.next()
    assert (event.event, event.value) == (core.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x10000001)


@pytest.mark.parametrize(
    "options",
    [
        {"curve_server": 1},
        {"curve_serverkey": SERVER_PUBLIC},
        {"curve_secretkey": CLIENT_SECRET},
        {"curve_secretkey": CLIENT_SECRET, "curve_publickey": OTHER_PUBLIC, "curve_serverkey": SERVER_PUBLIC},
        {"curve_secretkey": CLIENT_SECRET, "curve_serverkey": bytes(32)},
    ],
)
@pytest.mark.parametrize("verb", ["bind", "connect"])
async def test_curve_17_keys_that_cannot_work_are_refused_where_they_are_used(ours: Ours, options: dict[str, Any], verb: str) -> None:
    end = ours("DEALER", **options)
    with pytest.raises(core.InvalidOption):
        getattr(end, verb)("tcp://127.0.0.1:5" if verb == "connect" else "tcp://127.0.0.1:*")


async def test_curve_the_wrong_server_key_gets_nobody_in(ours: Ours, foreign: Foreign) -> None:
    server = ours("PULL", **SERVER["CURVE"])
    failed = Watch(server.socket, FAILED)
    client = foreign("PUSH", **{**CLIENT["CURVE"], "curve_serverkey": OTHER_PUBLIC})
    client.connect(server.bind("tcp://127.0.0.1:*"))
    event = await failed.next()
    assert (event.event, event.value) == (core.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000001)


async def test_sock_07_each_endpoint_keeps_the_credentials_it_was_made_with(ours: Ours) -> None:
    """One socket, two servers, a key for each; after a reconnection too."""
    keys: dict[int, list[bytes]] = {1: [], 2: []}
    async with core.Context() as one, core.Context() as two:
        for number, context in enumerate((one, two), 1):

            async def judge(request: ZapRequest, number: int = number) -> ZapReply:
                keys[number].append(z85.encode(request.credentials[0]))
                return ZapReply(b"200")

            context.authenticator = judge
        servers = [context.socket(core.ROUTER, linger=0, rcvtimeo=60_000, **SERVER["CURVE"]) for context in (one, two)]
        for server in servers:
            server.bind("tcp://127.0.0.1:*")
        client = ours("DEALER", reconnect_ivl=1, **CLIENT["CURVE"])
        client.connect(servers[0].last_endpoint)
        client.set(curve_publickey=OTHER_PUBLIC, curve_secretkey=OTHER_SECRET)
        client.connect(servers[1].last_endpoint)
        for server in servers * 2:
            await client.send(b"in")
            await server.recv_multipart()
        endpoint = servers[0].last_endpoint
        servers[0].close()
        await servers[0].wait_closed()
        again = one.socket(core.ROUTER, linger=0, rcvtimeo=60_000, **SERVER["CURVE"])
        up = Watch(again, core.EVENT_HANDSHAKE_SUCCEEDED)
        again.bind(endpoint)
        await up.next()
    assert keys == {1: [CLIENT_PUBLIC] * 2, 2: [OTHER_PUBLIC]}


async def test_sock_07_a_listener_keeps_the_mechanism_it_was_bound_with(ours: Ours, foreign: Foreign) -> None:
    server = ours("PULL", **SERVER["CURVE"])
    secured = server.bind("tcp://127.0.0.1:*")
    server.set(curve_server=0)
    clear = server.bind("tcp://127.0.0.1:*")
    for endpoint, options in ((secured, CLIENT["CURVE"]), (clear, {})):
        client = foreign("PUSH", **options)
        client.connect(endpoint)
        await client.send(b"in")
        assert await server.recv() == [b"in"]


async def test_zmtp_75_finished_handshakes_over_ipc_leave_room_for_others(ours: Ours, foreign: Foreign, tmp_path: Path) -> None:
    server = ours("PULL", max_pending_handshakes=2)
    endpoint = server.bind(f"ipc://{tmp_path / 'socket'}")
    for _ in range(6):
        client = foreign("PUSH")
        client.connect(endpoint)
        await client.send(b"in")
        assert await server.recv() == [b"in"]
    assert server.socket.counters.refused_connections == 0


async def test_zmtp_12_a_mismatch_of_socket_types_is_not_visible_on_the_wire(ours: Ours) -> None:
    server = ours("ROUTER", **SERVER["CURVE"])
    client = ours("PULL", **CLIENT["CURVE"])
    at_server, at_client = Watch(server.socket, FAILED), Watch(client.socket, FAILED)
    client.connect(server.bind("tcp://127.0.0.1:*"))
    assert "a ROUTER socket does not talk to PULL" in (await at_server.next()).reason
    assert "ROUTER" not in (await at_client.next()).reason


async def test_zap_04_a_router_tells_who_its_peers_have_proved_to_be(ours: Ours, foreign: Foreign) -> None:
    ours.context.authenticator = Authenticator(keys={CLIENT_PUBLIC: "alice"})
    server = ours("ROUTER", **SERVER["CURVE"])
    client = foreign("DEALER", identity=b"the dealer", **CLIENT["CURVE"])
    client.connect(server.bind("tcp://127.0.0.1:*"))
    await converse(client, server, BODIES[:1])
    known = server.socket.peer_metadata(b"the dealer")
    assert (known[b"socket-type"], known[b"identity"]) == (b"DEALER", b"the dealer")
    assert (known[b"user-id"], known[b"curve-key"]) == (b"alice", z85.decode(CLIENT_PUBLIC))
    assert server.socket.peer_metadata(b"nobody") == {}


@pytest.mark.parametrize("same", [True, False], ids=["the same key", "another key"])
async def test_r1_a_routing_id_is_handed_over_to_the_same_key_only(ours: Ours, foreign: Foreign, same: bool) -> None:
    server = ours("ROUTER", router_handover=1, **SERVER["CURVE"])
    endpoint = server.bind("tcp://127.0.0.1:*")
    holder = foreign("DEALER", identity=b"the dealer", **CLIENT["CURVE"])
    holder.connect(endpoint)
    await converse(holder, server, BODIES[:1])
    failed = Watch(server.socket, FAILED)
    keys = CLIENT["CURVE"] if same else {**CLIENT["CURVE"], "curve_publickey": OTHER_PUBLIC, "curve_secretkey": OTHER_SECRET}
    newcomer = foreign("DEALER", identity=b"the dealer", **keys)
    newcomer.connect(endpoint)
    if same:
        await converse(newcomer, server, BODIES[:1])
    else:
        await failed.next()
        await converse(holder, server, BODIES[:1])
