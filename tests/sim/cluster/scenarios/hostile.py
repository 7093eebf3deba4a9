"""Peers that lie: bytes that are no ZMTP, malformed messages, claims of ballots, replies and requests of others, floods.

Whatever they do, all others are served as if they were not there, and nothing of what they claim is believed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bstar.machine.ballot import COUNTER_MAX, WITNESS_JUMP_MAX, Ballot
from bstar.machine.signing import PairKey
from bstar.machine.wire import Question, QuestionKind, encode_question
from mdp.wire.failover import PAIR_SERVICE, ballot_text
from tests.sim.cluster.raw_peer import RawPeer, connect
from tests.sim.cluster.scenario import scenario
from tests.sim.cluster.scenarios.majordomo import PORT, broker, client, endpoint, worker
from tests.sim.cluster.scenarios.promises import STARTED_S, answers, in_time, one_serves, watch_brokers
from tests.sim.cluster.scenarios.redundancy import HALVES, STORES
from tests.sim.cluster.scenarios.stock import CLIENT, DISCONNECT, HEARTBEAT, READY, REPLY, WORKER
from tests.sim.cluster.scenarios.titanic_stores import (
    MIRROR_PORT,
    STATE_PORT,
    STORE_STATE_PORT,
    STORE_WITNESS_PORT,
    WITNESS_PORT,
    collector,
    nothing_is_lost,
    paired_broker,
    paired_store,
    store,
    submitter,
    witness,
)
from titanic.journal.ownership import Mark
from titanic.mirror.succession import Lineage, LineageKind
from titanic.wire.mirror_frames import EPOCH_JUMP_MAX, EPOCH_MAX, Call, Hello, Swap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.sim.cluster.process import Body, Process
    from tests.sim.cluster.scenario import Play

    Lie = Callable[[Play], list[bytes]]

NEXT_S = 0.3  # mean time between two lies
SOON_S = 2.0  # in which honest clients are answered all the same
KINDS = (b"DEALER", b"REQ", b"PUB", b"SUB", b"ROUTER")
CLIENT_03, WORKER_03 = b"MDPC03", b"MDPW03"


def _junk(play: Play, most: int = 40) -> bytes:
    return play.random.randbytes(play.random.randrange(most))


def _peer_of(play: Play) -> bytes:
    """Return the routing id of some connection of a broker: they are counted."""
    return b"\0" + play.random.randrange(2000).to_bytes(4, "big")


def _reply(play: Play) -> list[bytes]:
    """Return a reply to somebody else's request, of a worker that is none."""
    return [b"", WORKER, REPLY, _peer_of(play), b"", b"forged 1.1"]


def _reply_03(play: Play) -> list[bytes]:
    return [WORKER_03 + bytes([play.random.randrange(12)]), play.random.randrange(5000).to_bytes(8, "big"), b"forged 1.1"]


def _ready(play: Play) -> list[bytes]:
    """Register for a service of the broker, one without a name, or one that breaks a log line."""
    return [b"", WORKER, READY, play.random.choice((b"mmi.echo", b"mmi.service", b"", b"\n\x1b[2J", b"x" * 300, _junk(play)))]


def _request(play: Play) -> list[bytes]:
    """Return a request with parts that are missing, too long, or not what they claim to be."""
    frames = [b"", CLIENT, b"echo-of-nobody", *(_junk(play) for _ in range(play.random.randrange(4)))]
    del frames[play.random.randrange(len(frames))]
    return frames


def _request_03(play: Play) -> list[bytes]:
    """Return options that claim more than is there, or do not end."""
    options = play.random.choice((b"\xdf\xff\xff\xff\xff", b"\x81" * 600, b"\x81\xa8deadline\xff", b"\xc1", _junk(play)))
    return [CLIENT_03 + bytes([play.random.randrange(12)]) + _junk(play, 12), b"nobody", options, _junk(play)]


def _anything(play: Play) -> list[bytes]:
    return [_junk(play) for _ in range(1 + play.random.randrange(6))]


def _many(play: Play) -> list[bytes]:
    return [b"", CLIENT, b"nobody", *(b"" for _ in range(play.random.choice((900, 1100))))]


def _command(play: Play) -> list[bytes]:
    return [b"", WORKER, play.random.choice((HEARTBEAT, DISCONNECT, b"\x02", b"\x07", b"")), _peer_of(play)]


def _close(play: Play) -> list[bytes]:
    """Close or fetch what others have stored, or a file outside of the store."""
    service = play.random.choice((b"titanic.close", b"titanic.reply", b"titanic.batch", b"titanic.look", b"titanic.request"))
    return [b"", CLIENT, service, play.random.choice((b"../victim", b"0" * 32, play.random.randbytes(16), _junk(play)))]


def _ballot(play: Play) -> list[bytes]:
    """Name a ballot that is higher than any."""
    claimed = Ballot(play.random.choice((COUNTER_MAX, play.random.randrange(1, 200))), play.random.randrange(1, 2**16))
    return [b"", CLIENT, PAIR_SERVICE, ballot_text(claimed)]


LIES: tuple[Lie, ...] = (_reply, _reply_03, _ready, _request, _request_03, _anything, _many, _command, _close, _ballot)


def _question(play: Play) -> list[bytes]:
    """Ask the witness for the highest ballot of all, or for nothing at all."""
    counter = play.random.choice((COUNTER_MAX, COUNTER_MAX // 2))
    claim = encode_question(Question(QuestionKind.ASK, 1, Ballot(counter, 7), 1000))
    return [play.random.choice((claim, claim[:-1], claim + b"\0", _junk(play)))]


PAIR_KEY = bytes(range(32))


def _far_claim(play: Play) -> list[bytes]:
    """Claim a lease under a ballot that no half can have drawn, with the key of the pair."""
    counter = play.random.choice((COUNTER_MAX, COUNTER_MAX - 1, play.random.randrange(2 * WITNESS_JUMP_MAX, COUNTER_MAX)))
    kind = play.random.choice((QuestionKind.ASK, QuestionKind.KEEP))
    return [encode_question(Question(kind, play.random.randrange(1, 2**32), Ballot(counter, 7), 2000), PairKey(PAIR_KEY))]


def _mark(play: Play) -> Mark:
    """Return the mark of a half that mirrors at present: a liar may know it."""
    for process in play.world.processes.values():
        mirror = getattr(process.things.get("half"), "mirror", None)
        if mirror is not None:
            found: Mark = mirror.replica.mark
            return found
    return Mark()


def _of_session(play: Play, *frames: bytes) -> list[bytes]:
    session, number = (play.random.choice((0, 1, 2, play.random.getrandbits(64))) for _ in range(2))
    return [session.to_bytes(8, "big"), number.to_bytes(8, "big"), *frames]


def _hello(play: Play) -> list[bytes]:
    """Claim to be another store, or the right one in a time that is over or far."""
    mark = _mark(play)
    far = mark.epoch + EPOCH_JUMP_MAX + 1 + play.random.randrange(2**40)
    other = Hello(play.random.randbytes(16), mark.epoch, play.random.random() < 0.5)
    right = Hello(mark.store or bytes(16), play.random.choice((far, EPOCH_MAX, mark.epoch - 1)), play.random.random() < 0.5)
    octets = play.random.choice((other, right)).encode()
    junk = (octets[: play.random.randrange(len(octets))], octets + b"\0", b"\x93\xc0\xc0\xc0", b"\x93" + b"\x91" * 60, _junk(play))
    return _of_session(play, Call.HELLO.value, *play.random.choice(([octets], [octets], [play.random.choice(junk)], [], [octets, octets])))


def _mirror_call(play: Play) -> list[bytes]:
    """Change files of the mirror without having been followed, among them those that are never mirrored."""
    mark = _mark(play)
    name = play.random.choice((b"mirror", b"lock", b"../victim", b"0000000000000001.seg", _junk(play)))
    number = play.random.choice((b"0", b"-1", b"9" * 18, b"9" * 40, _junk(play)))
    swap = Swap({}, [], mark.epoch, mark.store or bytes(16)).encode()
    calls: tuple[list[bytes], ...] = (
        [Call.SWAP.value, play.random.choice((swap, swap[:-3], b"\x94\xc0\xc0\xc0\xc0"))],
        [Call.COPY.value, name, number, _junk(play)],
        [Call.WRITE.value, name, number, _junk(play)],
        [Call.TRUNCATE.value, name, number],
        [Call.UNLINK.value, name],
        [Call.RENAME.value, name, b"0000000000000001.seg"],
        [Call.SYNC_DIRECTORY.value],
        [_junk(play)],
        [],
    )
    return _of_session(play, *play.random.choice(calls))[play.random.choice((0, 0, 0, 1)) :]


def _promise(play: Play) -> list[bytes]:
    """Ask whether a half of another age may lead, or extend the promise of the mirror."""
    mark = _mark(play)
    lineage = Lineage(play.random.choice((0, mark.epoch + 5, EPOCH_MAX)), play.random.choice([*LineageKind]), mark.store).encode()
    consult = [Call.CONSULT.value, play.random.choice((lineage, lineage[:-2], b"\x93\xc0\xc0\xc0", _junk(play)))]
    pulse = [Call.PULSE.value, play.random.choice((b"9999999", b"9" * 30, b"-5", b"", _junk(play)))]
    return _of_session(play, *play.random.choice((consult, pulse)))


MIRROR_LIES: tuple[Lie, ...] = (_hello, _hello, _mirror_call, _promise, _anything)


def liar(play: Play, hosts: Sequence[str], port: int = PORT, lies: Sequence[Lie] = LIES) -> Body:
    """Return the body of a peer that lies to these hosts, from when everything has started until everything is healed."""

    async def body(process: Process) -> None:
        ending = asyncio.ensure_future(play.forever(process))
        await asyncio.wait([ending], timeout=STARTED_S)
        while not ending.done():
            if play.healed_at is None:
                try:
                    async with await connect(play.ip(play.random.choice(hosts)), port, play.random.choice(KINDS)) as peer:
                        await _lie(play, peer, lies)
                except (TimeoutError, OSError):
                    pass
            await asyncio.wait([ending], timeout=play.random.expovariate(1 / NEXT_S))

    return body


async def _lie(play: Play, peer: RawPeer, lies: Sequence[Lie]) -> None:
    for _ in range(play.random.randrange(1, 8)):
        peer.send(*play.random.choice(lies)(play))
        if play.random.random() < 0.2:
            peer.write(play.random.choice((b"\x02\x7f" + b"\xff" * 7, b"\x03\xff", b"\x04\x05\x04PING", _junk(play))))
        await asyncio.sleep(play.random.expovariate(10.0))


@scenario(kinds=("crash", "reset"), spared=("liar-0", "liar-1", "collector", "asker"), minutes=5.0, every_s=20.0)
def lied_to(play: Play) -> None:
    """One broker and one Titanic, with two peers that lie to them."""
    there = [endpoint(play, "broker")]
    play.add("broker", broker(play))
    play.add("store", store(play, there))
    for number in range(2):
        play.add(f"worker-{number}", worker(play, there))
        play.add(f"client-{number}", submitter(play, there))
        play.add(f"liar-{number}", liar(play, ["broker"]))
    play.add("asker", client(play, there))
    play.add("collector", collector(play, there))
    watch_brokers(play)
    answers(play, "asker")
    nothing_is_lost(play)


@scenario(kinds=("skew", "jump"), minutes=5.0, every_s=20.0)
def lied_to_pair(play: Play) -> None:
    """A pair of brokers with a witness, to which peers lie in vain: no fail-over, and every request is answered."""
    brokers = [endpoint(play, host) for host in HALVES]
    play.add("witness", witness(play, WITNESS_PORT, "broker"))
    for n in (0, 1):
        play.add(HALVES[n], paired_broker(play, n, HALVES))
    for number in range(2):
        play.add(f"worker-{number}", worker(play, brokers))
        play.add(f"client-{number}", client(play, brokers))
    play.add("liar-0", liar(play, HALVES))
    play.add("liar-1", liar(play, HALVES, STATE_PORT))
    play.add("liar-2", liar(play, ["witness"], WITNESS_PORT, (_question, _anything)))
    watch_brokers(play, workers=2)
    one_serves(play, *HALVES)
    answers(play, "client-0", "client-1")
    in_time(play, SOON_S, modes=("plain", "once", "key", "wait", "deadline"))
    ballots: set[Ballot] = set()

    def check() -> None:
        for name in HALVES:
            pair = play.world.processes[name].things.get("pair")
            if pair is not None and pair.ballot().counter:
                ballots.add(pair.ballot())
        assert len(ballots) <= 1, f"a lie made the pair fail over: {sorted(ballots)}"

    play.world.checks.append(check)


@scenario(kinds=("crash", "stop", "isolate", "cut"), spared=("liar", "client-0", "worker-0"), minutes=5.0, every_s=15.0)
def far_claims(play: Play) -> None:
    """A pair whose halves fail; a peer with its key claims ballots that no half can have drawn, in vain."""
    brokers = [endpoint(play, host) for host in HALVES]
    play.add("witness", witness(play, WITNESS_PORT, "broker", PAIR_KEY))
    for n in (0, 1):
        play.add(HALVES[n], paired_broker(play, n, HALVES, PAIR_KEY))
    play.add("worker-0", worker(play, brokers))
    play.add("client-0", client(play, brokers))
    play.add("liar", liar(play, ["witness"], WITNESS_PORT, (_far_claim,)))
    watch_brokers(play, workers=1)
    one_serves(play, *HALVES)
    answers(play, "client-0")

    def check() -> None:
        for name in HALVES:
            pair = play.world.processes[name].things.get("pair")
            counter = 0 if pair is None else pair.ballot().counter
            assert counter < WITNESS_JUMP_MAX, f"{name} has learnt the counter {counter}"

    play.world.checks.append(check)


@scenario(kinds=("skew", "jump"), minutes=5.0, every_s=8.0)
def lied_to_mirrors(play: Play) -> None:
    """A pair of stores, to whose mirrors peers lie in vain: one session, and every request is accepted at once."""
    there = [endpoint(play, "broker")]
    play.add("broker", broker(play))
    play.add("witness", witness(play, STORE_WITNESS_PORT, "store"))
    for n in (0, 1):
        play.add(STORES[n], paired_store(play, n, STORES, there))
    play.add("worker-0", worker(play, there))
    for number in range(2):
        play.add(f"client-{number}", submitter(play, there))
        play.add(f"liar-{number}", liar(play, STORES, MIRROR_PORT, MIRROR_LIES))
    play.add("liar-2", liar(play, STORES, STORE_STATE_PORT))
    play.add("collector", collector(play, there))
    one_serves(play, *STORES)
    nothing_is_lost(play)

    def check() -> None:
        for name in STORES:
            half = play.world.processes[name].things.get("half")
            assert half is None or half.turns <= 1, f"{name} became active {half.turns} times"
            mirror = None if half is None else half.mirror
            assert mirror is None or mirror.sessions <= 1, f"a lie cost the store of {name} its session"

    def accepted() -> None:
        for one in play.history.operations:
            late_s = (one.ended or play.world.now if one.accepted is None else one.accepted) - one.begun
            if one.mode == "stored" and one.begun > 2 * STARTED_S and late_s > SOON_S and one.ended is not None:
                play.world.violated(f"request {one.number} of {one.client} was accepted after {late_s:.3f} s {one.error}")
                return

    play.world.checks.append(check)
    play.finals.append(accepted)
