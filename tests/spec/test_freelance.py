"""FRL and FLP: both ends against bare sockets that say octet for octet what the rules say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import freelance
from freelance.models.server_list import Health
from tests.scenes.ports import kept_port
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from tests.spec.conftest import Make

ANY = "tcp://127.0.0.1:*"
NOBODY = "tcp://127.0.0.1:9"


def rule_server(make: Make, endpoint: str = "") -> core.Socket:
    """A ROUTER whose identity is its endpoint (FLP-01)."""
    if not endpoint:
        with kept_port() as port:
            return rule_server(make, f"tcp://127.0.0.1:{port}")
    return make(core.ROUTER, bind=endpoint, identity=endpoint.encode())


async def rule_client(make: Make, server: freelance.Server) -> core.Socket:
    """A ROUTER without identity, connected."""
    client = make(core.ROUTER)
    watch = Watch(client)
    client.connect(server.endpoint)
    await watch.peers()
    return client


# --- models 1 and 2


async def test_frl_01_a_lone_endpoint_is_tried_three_times_with_fresh_sockets(make: Make) -> None:
    rep = make(core.ROUTER, bind=ANY)
    async with freelance.Client([rep.last_endpoint], model=1, try_timeout=1.5) as client:
        with pytest.raises(freelance.NoServer) as caught:
            await client.request(b"x")
    messages = [await rep.recv_multipart() for _ in range(3)]
    assert [message[1:] for message in messages] == [[b"", b"x"]] * 3
    assert len({message[0] for message in messages}) == 3
    assert caught.value.attempts == 3


async def test_frl_01_frl_02_several_endpoints_are_tried_once_each_and_the_time_is_their_sum(make: Make) -> None:
    mutes = [make(core.ROUTER, bind=ANY) for _ in range(2)]
    async with freelance.Client([mute.last_endpoint for mute in mutes], model=1, try_timeout=1.5) as client:
        with pytest.raises(freelance.NoServer) as caught:
            await client.request(b"x")
    assert caught.value.attempts == 2
    assert caught.value.after_s >= 2.999
    for mute in mutes:
        assert (await mute.recv_multipart())[1:] == [b"", b"x"]


async def test_frl_02_any_rep_is_a_server_of_model_1(make: Make) -> None:
    rep = make(core.REP, bind=ANY)
    async with freelance.Client([NOBODY, rep.last_endpoint], model=1, try_timeout=2.0) as client:
        request = asyncio.ensure_future(client.request(b"x"))
        await rep.send_multipart(await rep.recv_multipart())
        assert await request == [b"x"]


async def test_frl_03_frl_05_every_server_gets_a_copy_and_the_first_matching_reply_wins(make: Make) -> None:
    servers = [make(core.ROUTER, bind=ANY) for _ in range(3)]
    async with freelance.Client([server.last_endpoint for server in servers], model=2, timeout=100) as client:
        for sequence in (b"1", b"2"):
            request = asyncio.ensure_future(client.request(b"x"))
            copies = [await server.recv_multipart() for server in servers]
            assert [copy[1:] for copy in copies] == [[b"", sequence, b"x"]] * 3
            await servers[0].send_multipart([copies[0][0], b"", b"77", b"BAD"])
            await servers[2].send_multipart([copies[2][0], b"", sequence, b"OK"])
            assert await request == [b"OK"]
            await servers[1].send_multipart([copies[1][0], b"", sequence, b"LATE"])
        await eventually(lambda: client.counters["reply_unknown"] == 4)


async def test_frl_04_a_server_of_model_2_answers_sequence_and_ok_and_drops_other_shapes(make: Make) -> None:
    async with freelance.Server(ANY, lambda body: b"OK", model=2) as server:
        dealer = make(core.DEALER, connect=server.endpoint)
        for frames in ([b"", b"1"], [b"", b"1", b"x", b"y"], [b"1"], [b"", b"9", b"x"]):
            await dealer.send_multipart(frames)
        assert await dealer.recv_multipart() == [b"", b"9", b"OK"]
        assert server.counters["request_malformed"] == 3


async def test_frl_06_with_one_of_three_down_requests_succeed(make: Make) -> None:
    reps = [make(core.REP, bind=ANY) for _ in range(2)]
    async with freelance.Client([reps[0].last_endpoint, NOBODY, reps[1].last_endpoint], model=2, timeout=100) as client:
        request = asyncio.ensure_future(client.request(b"x"))
        for rep in reps:
            assert await rep.recv_multipart() == [b"1", b"x"]
            await rep.send_multipart([b"1", b"OK"])
        assert await request == [b"OK"]


async def test_frl_07_a_returning_server_gets_no_stale_requests(make: Make, free_port: int) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port}"
    async with freelance.Client([endpoint], model=2, socket_options={"reconnect_ivl": 5}) as client:
        for _ in range(3):
            with pytest.raises(freelance.NoServer):
                await client.request(b"stale", timeout=0.02)
        server = make(core.ROUTER, bind=endpoint)
        request = asyncio.ensure_future(client.request(b"fresh", timeout=100))
        who, *frames = await server.recv_multipart()
        assert frames == [b"", b"4", b"fresh"]
        await server.send_multipart([who, b"", b"4", b"OK"])
        assert await request == [b"OK"]


# --- model 3: the server


async def test_flp_01_flp_04_the_server_announces_its_endpoint_and_speaks_when_spoken_to(make: Make) -> None:
    async with freelance.Server(ANY, lambda body: body) as server:
        client = await rule_client(make, server)
        name = server.endpoint.encode()
        assert client.peer_metadata(name)[b"identity"] == name
        assert not client.readable()
        await client.send_multipart([name, b"PING"])
        assert await client.recv_multipart() == [name, b"PONG"]
        assert not client.readable()


async def test_flp_02_pings_are_answered_while_a_request_is_processed(make: Make) -> None:
    finish = asyncio.Event()

    async def slow(body: list[bytes]) -> list[bytes]:
        await finish.wait()
        return body

    async with freelance.Server(ANY, slow) as server:
        client = await rule_client(make, server)
        name = server.endpoint.encode()
        await client.send_multipart([name, b"1", b"x"])
        await client.send_multipart([name, b"PING"])
        assert await client.recv_multipart() == [name, b"PONG"]
        finish.set()
        assert await client.recv_multipart() == [name, b"1", b"x"]


@pytest.mark.parametrize("control", [b"", b"PING", b"\0", b"PONG", b"\xff" * 1000])
async def test_flp_03_the_control_frame_comes_back_unchanged(make: Make, control: bytes) -> None:
    async with freelance.Server(ANY, lambda body: body) as server:
        client = await rule_client(make, server)
        name = server.endpoint.encode()
        await client.send_multipart([name, control, b"a", b""])
        assert await client.recv_multipart() == [name, control, b"a", b""]


async def test_flp_05_a_reply_has_a_body(make: Make) -> None:
    async with freelance.Server(ANY, lambda body: []) as server:
        client = await rule_client(make, server)
        name = server.endpoint.encode()
        await client.send_multipart([name, b"1", b"x"])
        assert await client.recv_multipart() == [name, b"1", b""]


async def test_a_single_frame_that_is_no_ping_is_dropped_and_counted(make: Make) -> None:
    async with freelance.Server(ANY, lambda body: body) as server:
        client = await rule_client(make, server)
        name = server.endpoint.encode()
        await client.send_multipart([name, b"HUGZ"])
        await client.send_multipart([name, b"PING"])
        assert await client.recv_multipart() == [name, b"PONG"]
        assert server.counters["request_malformed"] == 1


# --- model 3: the client


@pytest.mark.parametrize("alias", [True, False])
async def test_flp_01_flp_08_the_client_has_no_identity_and_counts_from_1(make: Make, alias: bool) -> None:
    server = rule_server(make)
    async with freelance.Client([server.last_endpoint], alias=alias, timeout=100) as client:
        for number in (b"1", b"2"):
            request = asyncio.ensure_future(client.request(b"x"))
            who, *frames = await server.recv_multipart()
            assert (who[:1], frames) == (b"\0", [number, b"x"])
            await server.send_multipart([who, number, b"y"])
            assert await request == [b"y"]


async def test_flp_06_flp_09_flp_11_silent_servers_are_pinged_and_pongs_change_nothing(make: Make) -> None:
    server = rule_server(make)
    health = Health(ping_s=0.05, dead_s=5.0)
    async with freelance.Client([server.last_endpoint], health=health, timeout=60) as client:
        who, *frames = await server.recv_multipart()
        assert frames == [b"PING"], "before the first request, and that is no reply to it"
        await server.send_multipart([who, b"PONG"])
        request = asyncio.ensure_future(client.request(b"x"))
        seen = [(await server.recv_multipart())[1:] for _ in range(2)]
        for _ in range(3):
            await server.send_multipart([who, b"PONG"])
            seen.append((await server.recv_multipart())[1:])
        assert sorted(seen) == [[b"1", b"x"], *[[b"PING"]] * 4]
        await server.send_multipart([who, b"1", b"y"])
        assert await request == [b"y"]


async def test_flp_06_flp_10_a_silent_server_is_left_and_taken_back_when_it_speaks(make: Make) -> None:
    server = rule_server(make)
    async with freelance.Client([server.last_endpoint], health=Health(ping_s=0.03, dead_s=0.1)) as client:
        who, _ = await server.recv_multipart()
        await eventually(lambda: client.live == [])
        await server.send_multipart([who, b"PONG"])
        await eventually(lambda: client.live == [server.last_endpoint])


async def test_flp_10_flp_14_requests_go_to_the_first_live_server_as_soon_as_it_is_there(make: Make) -> None:
    servers = [rule_server(make) for _ in range(2)]
    async with freelance.Client([NOBODY, *(server.last_endpoint for server in servers)], timeout=100) as client:
        await eventually(lambda: len(client.live) == 2)
        request = asyncio.ensure_future(client.request(b"x"))
        who, *frames = await servers[0].recv_multipart()
        await servers[0].send_multipart([who, *frames])
        assert await request == [b"x"]
        assert not servers[1].readable()


async def test_flp_11_bey_13_a_second_server_is_asked_and_the_first_answer_wins(make: Make) -> None:
    servers = [rule_server(make) for _ in range(2)]
    async with freelance.Client([server.last_endpoint for server in servers], timeout=60, try_timeout=30, hedge=0.001) as client:
        await eventually(lambda: len(client.live) == 2)
        request = asyncio.ensure_future(client.request(b"x"))
        assert (await servers[0].recv_multipart())[1:] == [b"1", b"x"]
        who, *frames = await servers[1].recv_multipart()
        await servers[1].send_multipart([who, *frames])
        assert await request == [b"x"]
        assert (client.counters["sent"], client.counters["hedged"]) == (2, 1)


async def test_flp_12_a_server_named_twice_is_one(make: Make) -> None:
    server = rule_server(make)
    watch = Watch(server)
    async with freelance.Client([server.last_endpoint] * 2, timeout=100) as client:
        await eventually(lambda: client.live == [server.last_endpoint])
        assert client.servers == [server.last_endpoint]
        request = asyncio.ensure_future(client.request(b"x"))
        await server.send_multipart(await server.recv_multipart())
        assert await request == [b"x"]
        assert watch.seen[core.EVENT_ACCEPTED] == 1


async def test_flp_13_who_is_not_on_the_list_is_ignored(make: Make) -> None:
    """`localhost` is not `127.0.0.1`: the identity is compared octet for octet."""
    server = rule_server(make)
    endpoint = server.last_endpoint.replace("127.0.0.1", "localhost")
    async with freelance.Client([endpoint], alias=False) as client:
        await eventually(lambda: client.counters["peer_unknown"] == 1)
        assert client.live == []


async def test_flp_15_several_requests_are_outstanding_and_answered_in_any_order(make: Make) -> None:
    server = rule_server(make)
    async with freelance.Client([server.last_endpoint], timeout=60) as client:
        requests = [asyncio.ensure_future(client.request(b"%d" % n)) for n in range(5)]
        taken = [await server.recv_multipart() for _ in requests]
        for message in reversed(taken):
            await server.send_multipart(message)
        assert await asyncio.gather(*requests) == [[b"%d" % n] for n in range(5)]


async def test_flp_16_without_a_live_server_a_request_fails_at_its_end() -> None:
    async with freelance.Client([NOBODY], timeout=0.2) as client:
        with pytest.raises(freelance.NoServer) as caught:
            await client.request(b"x")
        assert caught.value.after_s >= 0.199
        assert caught.value.attempts == 0


@pytest.mark.parametrize("alias", [True, False])
async def test_flp_17_a_restarted_server_is_used_again(make: Make, free_port: int, alias: bool) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port}"
    first = rule_server(make, endpoint)
    async with freelance.Client([endpoint], alias=alias, timeout=60, socket_options={"reconnect_ivl": 5}) as client:
        request = asyncio.ensure_future(client.request(b"x"))
        await first.recv_multipart()
        first.close()
        await first.wait_closed()
        await eventually(lambda: client.live == [])
        second = rule_server(make, endpoint)
        who, *frames = await second.recv_multipart()
        assert frames == [b"1", b"x"], "what the first took with it is asked again"
        await second.send_multipart([who, *frames])
        assert await request == [b"x"]
