"""C3: a flood of CURVE handshakes takes its turns, and honest peers theirs. Strangers in raw octets, at sockets."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.security.authenticator import curve_keypair
from core.security.curve import CurveClient, CurveServer
from core.security.handshake_budget import WORK_PER_ITERATION
from core.zmtp import z85
from core.zmtp.commands import encode_metadata
from tests.scenes.raw_octets import COMMAND, WirePeer, frame, greeting
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from core.net.listener import Listener

PUBLIC, SECRET = curve_keypair()
CLIENT_PUBLIC, CLIENT_SECRET = curve_keypair()
HELLO, INITIATE = 2, 3  # key agreements
GREETING = greeting(mechanism=b"CURVE")
random_bytes = random.Random(3).randbytes
ELSEWHERE = "127.0.0.2"


class Stranger(WirePeer):
    """A peer that knows how to shake hands, from an address of its choice."""

    def __init__(self) -> None:
        super().__init__()
        self.client = CurveClient(
            encode_metadata([(b"Socket-Type", b"DEALER")]),
            secret_key=z85.decode(CLIENT_SECRET),
            server_key=z85.decode(PUBLIC),
            random_bytes=random_bytes,
            metadata_bytes_max=8192,
        )

    @classmethod
    async def arrive(cls, endpoint: str, address: str = "127.0.0.1") -> Stranger:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        _, peer = await asyncio.get_running_loop().create_connection(cls, host, int(port), local_addr=(address, 0))
        return peer

    def say(self, *bodies: bytes) -> None:
        """Send commands at once."""
        self._transport.write(b"".join(frame(body, COMMAND) for body in bodies))

    async def hello(self) -> bytes:
        """Greet; returns HELLO, which is not sent."""
        await self.send(GREETING)
        await self.receive(64)
        return self.client.start()[0]

    async def initiate(self) -> bytes:
        """Wait for WELCOME; returns INITIATE, which is not sent."""
        _, welcome = await self.frame()
        return self.client.receive(welcome)[0]


class Work:
    """Key agreements the server has spent, in each event-loop iteration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = [0]
        self._loop = asyncio.get_running_loop()
        receive = CurveServer.receive

        def counted(server: CurveServer, body: bytes) -> list[bytes]:
            self.turns[-1] += HELLO if body.startswith(b"\x05HELLO") else INITIATE
            return receive(server, body)

        monkeypatch.setattr(CurveServer, "receive", counted)
        self._tick()

    def _tick(self) -> None:
        self.turns.append(0)
        self.ticking = self._loop.call_soon(self._tick)

    @property
    def all(self) -> int:
        return sum(self.turns)


@pytest.fixture
async def work(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Work]:
    counting = Work(monkeypatch)
    yield counting
    counting.ticking.cancel()


@asynccontextmanager
async def listening(**options: Any) -> AsyncIterator[core.Socket]:
    """A CURVE server that lets every key in."""
    async with core.Context() as context:
        router = context.socket(core.ROUTER, linger=0, rcvtimeo=60_000, curve_server=1, curve_secretkey=SECRET, **options)
        router.bind("tcp://127.0.0.1:*")
        yield router


@asynccontextmanager
async def strangers(router: core.Socket, count: int, address: str = ELSEWHERE) -> AsyncIterator[list[Stranger]]:
    """So many connections from one address."""
    peers = [await Stranger.arrive(router.last_endpoint, address) for _ in range(count)]
    try:
        yield peers
    finally:
        for peer in peers:
            await peer.close()


def honest(router: core.Socket) -> core.Socket:
    """A client on its way in."""
    keys: dict[str, Any] = {"curve_secretkey": CLIENT_SECRET, "curve_publickey": CLIENT_PUBLIC, "curve_serverkey": PUBLIC}
    dealer = router.context.socket(core.DEALER, linger=0, rcvtimeo=60_000, **keys)
    dealer.connect(router.last_endpoint)
    return dealer


async def exchange(dealer: core.Socket, router: core.Socket) -> None:
    """One message there and one back."""
    await dealer.send(b"x")
    await router.send_multipart(await router.recv_multipart())
    assert await dealer.recv() == b"x"


def waiting(router: core.Socket) -> int:
    """Steps that wait at the listener."""
    return listener_of(router)._budget.waiting


def listener_of(router: core.Socket) -> Listener:
    """Endpoint it is bound to."""
    return router._endpoints._listeners[router.last_endpoint]


async def test_c3_an_iteration_of_the_loop_spends_at_most_so_much_on_unknown_peers(work: Work) -> None:
    async with listening() as router, strangers(router, 60) as flood:
        hellos = [await peer.hello() for peer in flood]
        for peer, hello in zip(flood, hellos, strict=True):
            peer.say(hello)  # all of them are there to be read in the next turn
        initiates = [await peer.initiate() for peer in flood]
        assert work.all == 60 * HELLO
        for peer, initiate in zip(flood, initiates, strict=True):
            peer.say(initiate)
        for peer in flood:
            assert (await peer.frame())[1].startswith(b"\x05READY")
        assert work.all == 60 * (HELLO + INITIATE)
        assert max(work.turns) <= WORK_PER_ITERATION + INITIATE - 1
        assert router.counters.handshakes_deferred > 0
        assert len(router.pattern.pipes) == 60


async def test_c3_an_address_that_has_spent_its_share_waits_and_an_honest_peer_elsewhere_does_not(work: Work) -> None:
    """The share is three HELLOs and then one every 0.4 seconds.

    Sixty come, and an honest peer is let in meanwhile.
    """
    async with listening(max_key_agreements_per_ip=5, handshake_ivl=60_000) as router, strangers(router, 60) as flood:
        for peer in flood:
            peer.say(await peer.hello())
        await eventually(lambda: waiting(router) >= 30)
        before = work.all
        await exchange(honest(router), router)
        assert work.all - before < 30 * HELLO
        assert waiting(router) > 0


async def test_c3_while_addresses_flood_an_honest_peer_is_served_within_a_few_turns(work: Work) -> None:
    """Eight addresses with thirty HELLOs each are in front of it; it waits for one of each, twice."""
    async with listening(max_key_agreements=0, max_key_agreements_per_ip=0) as router:
        peers = [await Stranger.arrive(router.last_endpoint, f"127.0.0.{10 + number % 8}") for number in range(240)]
        hellos = [await peer.hello() for peer in peers]
        newcomer = await Stranger.arrive(router.last_endpoint)
        hello = await newcomer.hello()
        for peer, its in zip(peers, hellos, strict=True):
            peer.say(its)
        newcomer.say(hello)
        newcomer.say(await newcomer.initiate())
        assert (await newcomer.frame())[1].startswith(b"\x05READY")
        # Of the 480 key agreements of the flood those of two rounds come first, and what was done before the newcomer was read.
        assert work.all < 240
        for peer in (*peers, newcomer):
            await peer.close()


async def test_c3_what_comes_while_a_step_waits_is_held_only_so_far() -> None:
    async with listening(max_key_agreements=1, handshake_ivl=60_000) as router, strangers(router, 4) as flood:
        watch = Watch(router)
        for peer in flood:
            peer.say(await peer.hello())
        await eventually(lambda: waiting(router) >= 1)
        greedy = next(peer for peer in reversed(flood) if not peer._came)
        await greedy.send(bytes(200_000))
        assert await greedy.rest() == b""
        (failed,) = (event for event in watch.events if event.event == core.Event.HANDSHAKE_FAILED_PROTOCOL)
        assert "65536 bytes before the handshake" in failed.reason


async def test_c3_who_leaves_while_it_waits_leaves_nothing_and_who_waits_too_long_is_closed() -> None:
    # Each with its own interval: the time of the second is none in which ten strangers must have come, on a machine that is busy.
    async with listening(max_key_agreements=1, handshake_ivl=60_000) as router:
        async with strangers(router, 10) as flood:
            for peer in flood:
                peer.say(await peer.hello())
            await eventually(lambda: waiting(router) >= 6)
        await eventually(lambda: not router._endpoints.sessions)
        assert waiting(router) == 0
    async with listening(max_key_agreements=1, handshake_ivl=1000) as router:
        async with strangers(router, 3) as late:
            for peer in late:
                peer.say(await peer.hello())
            for peer in late:
                await peer.rest()  # HANDSHAKE_IVL
        assert router.counters.handshakes_failed == 3
        assert listener_of(router)._permit_clock.when is None


async def test_c3_handshakes_that_wait_go_on_when_the_listener_is_gone() -> None:
    """TRN-07: accepted peers stay."""
    async with listening(max_key_agreements=40) as router:
        async with strangers(router, 30) as flood:
            for peer in flood:
                peer.say(await peer.hello())
            await eventually(lambda: waiting(router) >= 1)
            router.unbind(router.last_endpoint)
            for peer in flood[:25]:
                assert await peer.initiate()


async def test_c3_a_command_of_a_wrong_size_is_refused_and_does_not_wait() -> None:
    async with listening(max_key_agreements=1, handshake_ivl=60_000) as router, strangers(router, 5) as flood:
        for peer in flood[:4]:
            peer.say(await peer.hello())
        await eventually(lambda: waiting(router) >= 1)
        await flood[4].hello()
        flood[4].say(b"\x05HELLO\x01\x00" + bytes(100))
        assert await flood[4].rest() == b""
        assert router.counters.handshakes_failed == 1


async def test_c3_peers_that_are_here_are_served_between_any_two_steps(work: Work) -> None:
    """A known peer exchanges while sixty HELLOs and what follows them wait.

    No exchange sees more than some turns' worth of work.
    """
    async with listening(max_key_agreements=0, max_key_agreements_per_ip=0) as router, strangers(router, 60) as flood:
        known = honest(router)
        await exchange(known, router)
        hellos = [await peer.hello() for peer in flood]
        for peer, hello in zip(flood, hellos, strict=True):
            peer.say(hello)
        exchanges, most = 0, 0
        while waiting(router) or not exchanges:
            before = work.all, len(work.turns)
            await exchange(known, router)
            exchanges += 1
            most = max(most, (work.all - before[0]) - (len(work.turns) - before[1] + 1) * WORK_PER_ITERATION)
        assert most <= INITIATE
        assert exchanges >= 2
