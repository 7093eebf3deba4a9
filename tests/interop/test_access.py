"""Rules (BEY-11) tried by libzmq's PLAIN and CURVE peers, each frame written out.

Rights of each peer, and the answer to peers without the right.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
from core.daemon.logs import JsonFormatter, TextFormatter
from core.security.authenticator import curve_keypair
from mdp.wire.commands import is_service_name
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.interop.ends import Foreign, ForeignEnd

USERS = ("web", "worker", "root", "guest")
KEYS = {user: curve_keypair() for user in ("broker", *USERS)}
PASSWORDS = {user: f"{user}'s password" for user in USERS}
RULES = {
    "allow": [
        {"who": ["web"], "call": ["ec?o", "orders.*"]},
        {"who": ["worker"], "serve": ["echo", "orders.*"]},
        {"who": ["root"], "call": ["*"], "manage": ["*"]},
        {"who": ["w*"], "call": ["common"]},
    ]
}
NUMBERS = count(1)


def security(mechanism: str, user: str) -> core.Curve | core.Plain:
    """Return what one of our own clients or workers has."""
    if mechanism == "PLAIN":
        return core.Plain(user=user, password=PASSWORDS[user])
    return core.Curve(secret_key=KEYS[user][1], server_key=KEYS["broker"][0])


def credentials(mechanism: str, user: str) -> dict[str, Any]:
    """Return the options of one of libzmq's."""
    if mechanism == "PLAIN":
        return {"plain_username": user.encode(), "plain_password": PASSWORDS[user].encode()}
    public, secret = KEYS[user]
    return {"curve_serverkey": KEYS["broker"][0], "curve_publickey": public, "curve_secretkey": secret}


@pytest.fixture(params=["PLAIN", "CURVE"])
def mechanism(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """An authorized-keys file of everybody."""
    path = tmp_path / "clients"
    path.write_text("".join(f"{KEYS[user][0].decode()} {user}\n" for user in USERS))
    return path


@pytest.fixture
async def broker(mechanism: str, keys: Path) -> AsyncIterator[mdp.Broker]:
    """A broker with rules, and workers of echo, common and orders.new that it lets in."""
    own: core.Curve | core.Plain
    own = core.Plain(users=PASSWORDS) if mechanism == "PLAIN" else core.Curve(secret_key=KEYS["broker"][1], authorized_keys=keys)
    async with AsyncExitStack() as stack:
        serving = await stack.enter_async_context(mdp.Broker(security=own, rules=mdp.Rules(RULES), manage=True))
        where = serving.bind("tcp://127.0.0.1:*")
        for service in ("echo", "orders.new"):
            worker = mdp.Worker(where, service, handler=echo, security=security(mechanism, "worker"))
            await stack.enter_async_context(worker)
            while not worker.connected:
                await asyncio.sleep(0.005)
        yield serving


async def ask(end: ForeignEnd, dialect: str, service: bytes, *body: bytes) -> str:
    """Send a request and then one that everybody may.

    Return what came for the first: its reply, its error, or nothing.
    """
    number = next(NUMBERS).to_bytes(8, "big")
    heads = {"0.1": (b"", b"MDPC01", service), "0.2": (b"MDPC02", b"\x01", service), "0.3": (b"MDPC03\x01" + number, service, b"")}
    await end.send(*heads[dialect], *body)
    await end.send(b"", b"MDPC01", b"mmi.protocol", b"0.1")
    said = ""
    while (frames := await end.recv()) != [b"", b"MDPC01", b"mmi.protocol", b"200"]:
        if frames[0] == b"MDPC03\x04" + number:
            said = frames[1].decode()
        else:
            assert frames[0] in (b"", b"MDPC02", b"MDPC03\x03" + number)
            said = frames[-1].decode()
    return said


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
@pytest.mark.parametrize(
    "user,service,allowed",
    [
        ("web", b"echo", True),
        ("web", b"orders.new", True),
        ("web", b"ordersXnew", False),
        ("web", b"secret", False),
        ("worker", b"echo", False),
        ("root", b"echo", True),
        ("guest", b"echo", False),
        ("guest", b"common", False),
    ],
)
async def test_who_may_call(
    user: str, service: bytes, allowed: bool, dialect: str, mechanism: str, broker: mdp.Broker, foreign: Foreign
) -> None:
    end = foreign("DEALER", **credentials(mechanism, user))
    end.connect(broker.endpoints[0])
    for _ in range(3):  # the first answer is looked up, the others are remembered
        if allowed:
            assert await reply(end, dialect, service) == b"hello"
        else:
            assert await ask(end, dialect, service, b"hello") == ("FORBIDDEN" if dialect == "0.3" else "")
    refused = broker.counters["error_forbidden"] + broker.counters["silent_forbidden"]
    assert refused == (0 if allowed else 3)


async def reply(end: ForeignEnd, dialect: str, service: bytes) -> bytes:
    number = next(NUMBERS).to_bytes(8, "big")
    heads = {"0.1": (b"", b"MDPC01", service), "0.2": (b"MDPC02", b"\x01", service), "0.3": (b"MDPC03\x01" + number, service, b"")}
    await end.send(*heads[dialect], b"hello")
    return (await end.recv())[-1]


@pytest.mark.parametrize(
    "user,question,about,code",
    [
        ("web", b"mmi.service", b"echo", b"200"),
        ("web", b"mmi.service", b"secret", b"403"),
        ("worker", b"mmi.service", b"echo", b"200"),
        ("guest", b"mmi.service", b"echo", b"403"),
        ("web", b"mmi.stats", b"", b"403"),
        ("root", b"mmi.stats", b"", b"200"),
        ("web", b"mmi.disable", b"echo", b"403"),
        ("worker", b"mmi.drain", b"echo", b"403"),
        ("root", b"mmi.drain", b"orders.new", b"200"),
        ("web", b"mmi.dlq.drop", b"7", b"403"),
        ("root", b"mmi.dlq.drop", b"7", b"404"),
        ("guest", b"mmi.nothing", b"", b"403"),
        ("root", b"mmi.nothing", b"", b"501"),
        ("guest", b"mmi.lending", b"", b"403"),
        ("guest", b"mmi.protocol", b"0.3", b"200"),
    ],
)
async def test_who_may_manage(
    user: str, question: bytes, about: bytes, code: bytes, mechanism: str, broker: mdp.Broker, foreign: Foreign
) -> None:
    end = foreign("REQ", **credentials(mechanism, user))
    end.connect(broker.endpoints[0])
    await end.send(b"MDPC01", question, about)
    assert (await end.recv())[:3] == [b"MDPC01", question, code]
    assert broker.counters["forbidden_mmi"] == (code == b"403")


READY = {"0.1": [b"", b"MDPW01", b"\x01"], "0.2": [b"MDPW02", b"\x01"], "0.3": [b"MDPW03\x01"]}
DISCONNECT = {"0.1": [b"", b"MDPW01", b"\x05"], "0.2": [b"MDPW02", b"\x06"], "0.3": [b"MDPW03\x07"]}


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
@pytest.mark.parametrize("user,service,allowed", [("worker", b"orders.old", True), ("worker", b"common", False), ("web", b"echo", False)])
async def test_who_may_serve(
    user: str, service: bytes, allowed: bool, dialect: str, mechanism: str, broker: mdp.Broker, foreign: Foreign
) -> None:
    end = foreign("DEALER", **credentials(mechanism, user))
    end.connect(broker.endpoints[0])
    await end.send(*READY[dialect], service, *([b""] if dialect == "0.3" else []))
    if allowed:
        while service not in broker.machine.directory.services:
            await asyncio.sleep(0.005)
        assert broker.counters["forbidden_serve"] == 0
    else:
        assert await end.recv() == DISCONNECT[dialect]
        assert broker.counters["forbidden_serve"] == 1


async def test_new_rules_hold_from_the_next_request_on_and_lose_none(mechanism: str, broker: mdp.Broker, foreign: Foreign) -> None:
    end = foreign("DEALER", **credentials(mechanism, "web"))
    end.connect(broker.endpoints[0])
    answers: list[bytes] = []
    for number in range(300):
        if number == 100:
            broker.set_rules(mdp.Rules({"allow": [{"who": ["worker"], "serve": ["*"]}]}))
        if number == 200:
            broker.set_rules(mdp.Rules(RULES))
        await end.send(b"MDPC03\x01" + number.to_bytes(8, "big"), b"echo", b"", b"%d" % number)
        frames = await end.recv()
        assert frames[0][7:] == number.to_bytes(8, "big")
        answers.append(frames[1])
    assert answers[:100] == [b"%d" % number for number in range(100)]
    assert answers[100:200] == [b"FORBIDDEN"] * 100
    assert answers[200:] == [b"%d" % number for number in range(200, 300)]


async def test_new_rules_disconnect_workers_and_end_waiting_requests(mechanism: str, broker: mdp.Broker, foreign: Foreign) -> None:
    worker, client = (foreign("DEALER", **credentials(mechanism, user)) for user in ("worker", "web"))
    for end in (worker, client):
        end.connect(broker.endpoints[0])
    await worker.send(b"", b"MDPW01", b"\x01", b"orders.slow")
    while b"orders.slow" not in broker.machine.directory.routes:
        await asyncio.sleep(0.005)
    for number in range(2):  # the worker takes one, the other waits
        await client.send(b"MDPC03\x01" + number.to_bytes(8, "big"), b"orders.slow", b"", b"x")
    assert (await worker.recv())[:3] == [b"", b"MDPW01", b"\x02"]
    while broker.stats["queued"] != 1:
        await asyncio.sleep(0.005)
    broker.set_rules(mdp.Rules({"allow": [{"who": ["root"], "call": ["*"]}]}))
    assert await worker.recv() == [b"", b"MDPW01", b"\x05"]
    # What the worker held went back to the queue, and is judged there with the rest.
    assert {(await client.recv())[1] for _ in range(2)} == {b"FORBIDDEN"}
    assert broker.stats["queued"] == broker.stats["workers"] == 0


async def test_a_revoked_key_is_cut_in_the_middle_of_its_requests(keys: Path, foreign: Foreign) -> None:
    """Fault C5: the file changes, nobody restarts anything."""
    own = core.Curve(secret_key=KEYS["broker"][1], authorized_keys=keys)
    async with mdp.Broker(security=own, rules=mdp.Rules(RULES)) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "echo", handler=echo, security=security("CURVE", "worker")) as worker:
            while not worker.connected:
                await asyncio.sleep(0.005)
            cut, kept = (foreign("DEALER", **credentials("CURVE", user)) for user in ("web", "root"))
            for end in (cut, kept):
                end.connect(where)
                assert await reply(end, "0.3", b"echo") == b"hello"
            keys.write_text("".join(f"{KEYS[user][0].decode()} {user}\n" for user in USERS if user != "web"))
            async with asyncio.timeout(100):
                while len(broker.machine.directory.workers) + broker.stats["clients"] > 2:
                    assert await reply(kept, "0.3", b"echo") == b"hello"
                    await asyncio.sleep(0.01)
            assert await reply(kept, "0.3", b"echo") == b"hello"
            assert own.authenticator is not None
            assert own.authenticator.accepted >= 3


NASTY = [b"\x1b[31mred\n", b"a\r\nFAKE refused by the rules peer=00", "‮gnirts".encode(), b"\xff\xfe", b'x" service="y', b"\x00"]


@pytest.mark.parametrize("nasty", NASTY)
async def test_a_refusal_is_one_line_that_nothing_can_break(nasty: bytes, caplog: pytest.LogCaptureFixture, foreign: Foreign) -> None:
    """Fault X3: what is asked about, who asks and its routing id are the peer's own words."""
    user = nasty.decode("utf-8", "backslashreplace")
    async with mdp.Broker(security=core.Plain(users={user: "pw"}), rules=mdp.Rules(RULES)) as broker:
        end = foreign("DEALER", plain_username=user.encode(), plain_password=b"pw", routing_id=b"\x1b]0;title\x07")
        end.connect(broker.bind("tcp://127.0.0.1:*"))
        await end.send(b"", b"MDPC01", b"mmi.service", nasty)
        assert await end.recv() == [b"", b"MDPC01", b"mmi.service", b"403"]
    (record,) = [record for record in caplog.records if record.name == "mdp.audit"]
    line = TextFormatter().format(record)
    assert line.isprintable()
    assert "refused by the rules peer=1b5d303b7469746c6507 user=" in line
    assert json.loads(JsonFormatter().format(record))["user"] == user


@pytest.mark.parametrize("service", [name for name in NASTY if not is_service_name(name)])
async def test_a_name_that_is_none_is_malformed_and_no_question_of_rules(service: bytes, foreign: Foreign) -> None:
    async with mdp.Broker(security=core.Plain(users=PASSWORDS), rules=mdp.Rules(RULES)) as broker:
        end = foreign("DEALER", **credentials("PLAIN", "root"))
        end.connect(broker.bind("tcp://127.0.0.1:*"))
        assert await ask(end, "0.3", service, b"x") == "BAD_REQUEST"


async def test_without_rules_nothing_is_checked(foreign: Foreign) -> None:
    """NULL and no rules: everything as before, and nobody is judged."""
    async with mdp.Broker(start_hold_ms=0) as broker:
        end = foreign("DEALER")
        end.connect(broker.bind("tcp://127.0.0.1:*"))
        assert await ask(end, "0.3", b"nobody", b"x") == "NO_SERVICE"
        with pytest.raises(core.LocalProtocolError):
            broker.set_rules(mdp.Rules(RULES))


async def test_a_peer_nobody_judged_has_the_rights_of_the_anonymous(foreign: Foreign) -> None:
    rules = mdp.Rules({"allow": [{"anonymous": True, "call": ["open"]}, {"who": ["*"], "call": ["*"]}]})
    async with mdp.Broker(start_hold_ms=0, rules=rules) as broker:
        end = foreign("DEALER")
        end.connect(broker.bind("tcp://127.0.0.1:*"))
        assert await ask(end, "0.3", b"open", b"x") == "NO_SERVICE"
        assert await ask(end, "0.3", b"shut", b"x") == "FORBIDDEN"


async def test_thousands_of_refusals_are_each_answered_and_counted(foreign: Foreign) -> None:
    async with mdp.Broker(security=core.Plain(users=PASSWORDS), rules=mdp.Rules(RULES)) as broker:
        end = foreign("DEALER", **credentials("PLAIN", "guest"), rcvhwm=0, sndhwm=0)
        end.connect(broker.bind("tcp://127.0.0.1:*"))

        def flood() -> int:
            for number in range(3000):
                end.socket.send_multipart([b"MDPC03\x01" + number.to_bytes(8, "big"), b"s%d" % number, b"", b"x"])
            return sum(end.socket.recv_multipart()[1] == b"FORBIDDEN" for _ in range(3000))

        assert await end.run(flood) == 3000
        assert broker.counters["error_forbidden"] == 3000
