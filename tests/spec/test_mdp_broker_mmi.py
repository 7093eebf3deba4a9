"""MMI in the broker (MMI-01 to MMI-10; conformance 9.7), in every dialect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mdp.wire.commands import worker_disconnect, worker_heartbeat, worker_ready
from mdp.wire.events import Final
from mdp.wire.options import encode_options
from tests.scenes.mdp_dispatcher import DIALECTS, ECHO, Scene

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect

pytestmark = pytest.mark.parametrize("dialect", DIALECTS)


def ask(scene: Scene, dialect: Dialect, name: bytes, *body: bytes) -> list[bytes]:
    """Return the body of the answer, having looked at its envelope (MMI-05)."""
    request_id = scene.ask(dialect, b"C1", *body, service=name)
    (event,) = scene.at_client(b"C1")
    assert isinstance(event, Final)
    assert (event.dialect, event.id) == (dialect, request_id)
    assert event.service == (b"" if dialect == "0.3" else name)
    return [*event.body]


def report(scene: Scene, dialect: Dialect, name: bytes, about: bytes = b"") -> Any:
    code, data = ask(scene, dialect, name, about)
    assert code == b"200"
    return json.loads(data)


@pytest.mark.parametrize("worker", DIALECTS)
def test_mmi_03_service_with_and_without_worker(dialect: Dialect, worker: Dialect) -> None:
    """MMI-03, MMI-05: one frame of ASCII digits."""
    scene = Scene()
    assert ask(scene, dialect, b"mmi.service", ECHO) == [b"404"]
    scene.ready(worker, b"W1")
    assert ask(scene, dialect, b"mmi.service", ECHO) == [b"200"]


@pytest.mark.parametrize("name", [b"mmi.", b"mmi.x", b"mmi.Service", b"mmi.service ", b"mmi.filter", b"mmi.servicex"])
def test_mmi_04_anything_else_is_not_offered(dialect: Dialect, name: bytes) -> None:
    scene = Scene()
    assert ask(scene, dialect, name, b"x") == [b"501"]
    assert ask(scene, dialect, name, b"x", b"y") == [b"501"]
    assert scene.machine.directory.services == {}


def test_mmi_01_and_02_nobody_can_offer_a_reserved_name(dialect: Dialect) -> None:
    """MMI-01, MMI-02: READY is refused, the broker goes on answering itself."""
    scene = Scene()
    for name in (b"mmi.service", b"mmi.mine", b"mmi."):
        scene.ready(dialect, b"W1", name)
        assert scene.got(b"W1") == [worker_disconnect(dialect)]
    assert scene.counters["ready_refused"] == 3
    assert ask(scene, dialect, b"mmi.mine", b"x") == [b"501"]


@pytest.mark.parametrize("name", [b"mmi2", b"immi.", b"my.mmi.x", b"i.love", b"mmi", b"MMI.service"])
def test_mmi_10_names_that_only_look_reserved(dialect: Dialect, name: bytes) -> None:
    scene = Scene()
    scene.ready(dialect, b"W1", name)
    scene.ask(dialect, b"C1", b"hello", service=name)
    assert scene.work(b"W1").body[0] == b"hello"


def test_mmi_06_one_body_frame(dialect: Dialect) -> None:
    scene = Scene()
    scene.ready(dialect, b"W1")
    assert ask(scene, dialect, b"mmi.service", ECHO, b"") == [b"400"]
    assert ask(scene, dialect, b"mmi.service", b"", ECHO) == [b"400"]
    assert ask(scene, dialect, b"mmi.service", b"") == [b"404"]


def test_mmi_07_asking_or_requesting_makes_no_service(dialect: Dialect) -> None:
    scene = Scene(queue_ms=5000, service_idle_ms=1000)
    ask(scene, dialect, b"mmi.service", ECHO)
    assert scene.machine.directory.services == {}
    scene.ask("0.1", b"C2", b"waits")
    assert ask(scene, dialect, b"mmi.service", ECHO) == [b"404"]
    scene.wait(9)
    assert scene.machine.directory.services == {}
    assert scene.counters["services_forgotten"] == 1


@pytest.mark.parametrize("how", ["disconnect", "expiry", "connection", "protocol error", "unexpected", "client header"])
@pytest.mark.parametrize("busy", [False, True])
def test_mmi_08_the_count_goes_down_however_a_worker_leaves(dialect: Dialect, how: str, busy: bool) -> None:
    scene = Scene(heartbeat_ms=1000, busy_ms=3000)
    scene.ready(dialect, b"W1")
    if busy:
        scene.ask("0.1", b"C2")
    match how:
        case "disconnect":
            scene.send(b"W1", worker_disconnect(dialect))
        case "expiry":
            scene.wait(3.1)
        case "connection":
            scene.lose(b"W1")
        case "protocol error":
            scene.send(b"W1", [b"", b"MDPW01"])
        case "client header":
            scene.send(b"W1", [b"MDPC02"])
        case _:
            scene.ready(dialect, b"W1")
    assert ask(scene, dialect, b"mmi.service", ECHO) == [b"404"]


def test_mmi_08_other_workers_of_the_service_still_count(dialect: Dialect) -> None:
    scene = Scene()
    scene.ready(dialect, b"W1")
    scene.ready(dialect, b"W2")
    scene.lose(b"W1")
    assert ask(scene, dialect, b"mmi.service", ECHO) == [b"200"]


def test_mmi_protocol(dialect: Dialect) -> None:
    """The draft: how our client and worker learn what a broker speaks."""
    scene = Scene()
    for known in (b"0.1", b"0.2", b"0.3"):
        assert ask(scene, dialect, b"mmi.protocol", known) == [b"200"]
    for unknown in (b"0.4", b"", b"MDPC03", b"\xff"):
        assert ask(scene, dialect, b"mmi.protocol", unknown) == [b"404"]
    assert ask(scene, dialect, b"mmi.protocol", b"0.3", b"0.3") == [b"400"]


def test_mmi_describe(dialect: Dialect) -> None:
    """§7: the text of the newest worker that announced one, and of others the name."""
    scene = Scene()
    assert ask(scene, dialect, b"mmi.describe", ECHO) == [b"404"]
    scene.ready("0.1", b"W1")
    assert report(scene, dialect, b"mmi.describe", ECHO) == {"service": "echo"}
    for peer, text in ((b"W2", '{"service":"echo","doc":"old"}'), (b"W3", '{"service":"echo","doc":"new"}'), (b"W4", 5), (b"W5", None)):
        metadata = {"zone": "a", "mdp-description": text}
        scene.send(peer, worker_ready("0.3", ECHO, options=encode_options({"metadata": metadata})))
    assert ask(scene, dialect, b"mmi.describe", ECHO) == [b"200", b'{"service":"echo","doc":"new"}']
    assert {str(row["metadata"]) for row in report(scene, dialect, b"mmi.workers")} == {"None", "{'zone': 'a'}"}
    scene.lose(b"W3")
    assert report(scene, dialect, b"mmi.describe", ECHO)["doc"] == "old"
    assert ask(scene, dialect, b"mmi.describe", ECHO, b"x") == [b"400"]


def test_mmi_09_services(dialect: Dialect) -> None:
    scene = Scene()
    assert report(scene, dialect, b"mmi.services") == []
    scene.ready("0.3", b"W1", credit=2)
    scene.ready("0.1", b"W2")
    for _ in range(4):
        scene.ask("0.3", b"C2", b"x" * 20)
    (described,) = report(scene, dialect, b"mmi.services")
    assert described == {
        "name": "echo",
        "enabled": True,
        "workers": 2,
        "credit": 3,
        "running": 3,
        "queued": 1,
        "queued_bytes": 24,
        "done": 0,
    }
    assert ask(scene, dialect, b"mmi.services", b"x") == [b"400"]
    assert ask(scene, dialect, b"mmi.services", b"", b"") == [b"400"]


def test_mmi_09_workers(dialect: Dialect) -> None:
    scene = Scene()
    scene.send(b"\x00W1", [b"MDPW03\x01", ECHO, b"\x83\xa6credit\x05\xa7version\xa31.0\xa8metadata\x81\xa4host\xc4\x02ab"])
    scene.ready("0.1", b"W2", b"other")
    scene.now += 0.25
    first, second = report(scene, dialect, b"mmi.workers")
    assert first == {
        "id": "005731",
        "service": "echo",
        "dialect": "0.3",
        "credit": 5,
        "running": 0,
        "done": 0,
        "silent_ms": 250,
        "stuck": False,
        "draining": False,
        "version": "1.0",
        "metadata": {"host": "6162"},
    }
    assert (second["service"], second["stuck"], second["draining"]) == ("other", None, None)
    assert report(scene, dialect, b"mmi.workers", b"other") == [second]
    scene.send(b"\x00W1", worker_heartbeat("0.3", draining=True))
    assert report(scene, dialect, b"mmi.workers", b"echo") == [first | {"draining": True, "silent_ms": 0}]
    assert ask(scene, dialect, b"mmi.workers", b"none") == [b"404"]


def test_mmi_09_stats(dialect: Dialect) -> None:
    scene = Scene()
    scene.ready("0.1", b"W1")
    scene.ask("0.1", b"C2")
    stats = report(scene, dialect, b"mmi.stats")
    assert (stats["accepted"], stats["running"], stats["workers"], stats["services"], stats["clients"]) == (1, 1, 1, 1, 1)
    assert ask(scene, dialect, b"mmi.stats", b"echo") == [b"400"]


def test_fault_b11_answers_are_truncated(dialect: Dialect) -> None:
    """Fault B11: a list longer than the limit ends with null and is still JSON."""
    scene = Scene(mmi_max_bytes=5000)
    for i in range(100):
        scene.ready("0.1", b"W%d" % i, b"service-%d" % i)
    for name in (b"mmi.services", b"mmi.workers"):
        code, data = ask(scene, dialect, name, b"")
        assert code == b"200"
        assert len(data) <= 5000
        items = json.loads(data)
        assert items[-1] is None
        assert len(items) > 10


def test_names_of_peers_are_safe_to_show(dialect: Dialect) -> None:
    """Fault X3: what is not printable never gets into a report."""
    scene = Scene()
    scene.ready("0.3", b"W1", "dienst-ä".encode())
    assert report(scene, dialect, b"mmi.services")[0]["name"] == "dienst-ä"


@pytest.mark.parametrize("name", [b"mmi.drain", b"mmi.disable", b"mmi.enable"])
def test_mmi_09_managing_is_not_offered_unless_the_operator_says_so(dialect: Dialect, name: bytes) -> None:
    scene = Scene()
    scene.ready("0.1", b"W1")
    assert ask(scene, dialect, name, ECHO) == [b"501"]
    scene = Scene(manage=True)
    assert ask(scene, dialect, name, ECHO) == [b"404"]
    assert ask(scene, dialect, name, ECHO, ECHO) == [b"400"]


def test_mmi_drain_serves_waiting_requests(dialect: Dialect) -> None:
    scene = Scene(manage=True)
    scene.ready("0.1", b"W1")
    scene.ask("0.3", b"C2", b"runs")
    scene.ask("0.3", b"C2", b"waits")
    assert ask(scene, dialect, b"mmi.drain", ECHO) == [b"200"]
    scene.check()
    scene.ask("0.3", b"C3")
    assert scene.failure(b"C3") == "BUSY"
    scene.answer(b"W1", scene.work(b"W1"))
    work = scene.work(b"W1")
    assert work.body[0] == b"waits"
    scene.answer(b"W1", work)
    scene.send(b"W1", worker_heartbeat("0.1"))
    assert report(scene, dialect, b"mmi.services")[0]["enabled"] is False
    assert ask(scene, dialect, b"mmi.enable", ECHO) == [b"200"]
    scene.ask("0.3", b"C3", b"again")
    assert scene.work(b"W1").body[0] == b"again"
    scene.check()


def test_mmi_disable_refuses_waiting_requests(dialect: Dialect) -> None:
    scene = Scene(manage=True)
    scene.ready("0.1", b"W1")
    scene.ask("0.3", b"C2", b"runs")
    scene.ask("0.3", b"C3", b"waits")
    assert ask(scene, dialect, b"mmi.disable", ECHO) == [b"200"]
    assert scene.failure(b"C3") == "BUSY"
    scene.answer(b"W1", scene.work(b"W1"))
    assert scene.reply(b"C2") == [b"y"]
    scene.check()
