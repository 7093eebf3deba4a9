"""`mdp broker --bstar`: two brokers in separate processes, with signals and operators' commands."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.programs import first_to_end

if TYPE_CHECKING:
    from tests.scenes.programs import Program, Programs

pytestmark = pytest.mark.timeout(240)  # many processes, on a machine that may be busy

BEAT = ("--bstar-heartbeat-ms", "200")
FRONTS = ("--broker", "ipc://p.front", "--broker", "ipc://b.front")
CALL = ("mdp", "call", *FRONTS, "--timeout", "20", "--attempts", "1", "--wait")


def broker(programs: Programs, role: str, *more: str) -> Program:
    mine, its = ("p", "b") if role == "primary" else ("b", "p")
    ends = ("--bstar-local", f"ipc://{mine}.state", "--bstar-remote", f"ipc://{its}.state", "--bstar-control", f"ipc://{mine}.control")
    program = programs.start("mdp", "broker", "--bind", f"ipc://{mine}.front", "--bstar", role, *ends, *BEAT, *more)
    program.said("broker serves")
    return program


def pair(programs: Programs, *more: str) -> tuple[Program, Program]:
    primary, backup = broker(programs, "primary", *more), broker(programs, "backup", *more)
    primary.said("active")
    backup.said("passive")
    programs.start("mdp", "worker", *FRONTS, "--service", "echo", "--heartbeat-ms", "200").said("registered")
    return primary, backup


def ask(programs: Programs, body: str) -> None:
    ended = programs.run(*CALL, "echo", body)
    assert (ended.code, ended.lines) == (0, [body]), ended.err


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=lambda s: s.name)
def test_the_other_broker_takes_over_and_keeps_the_role(programs: Programs, stop: signal.Signals) -> None:
    primary, backup = pair(programs)
    ask(programs, "before")
    primary.signal(stop)
    ask(programs, "after")
    backup.said("active")
    if stop is signal.SIGSTOP:
        primary.signal(signal.SIGCONT)
        primary.said("passive")
    else:
        assert primary.end().code == (0 if stop is signal.SIGTERM else -stop)
        broker(programs, "primary").said("passive")
    ask(programs, "at last")


def test_status_and_switchover_of_brokers_with_a_witness(programs: Programs) -> None:
    """BST-36, BST-37, BEY-12, BST-43."""
    # Nobody is killed here: with intervals so long a busy machine does not make the backup take over by itself.
    programs.start("bstar", "witness", "--bind", "ipc://w", "--heartbeat-ms", "1000").said("witness runs")
    primary, backup = pair(programs, "--bstar-witness", "ipc://w", "--bstar-heartbeat-ms", "1000")
    ask(programs, "before")
    status = json.loads(programs.run("bstar", "status", "--control", "ipc://p.control", "--json").out)
    assert {"state": "active", "serving": True, "guard": "witness", "safe": True}.items() <= status.items()
    assert status["lease_left_s"] > 0
    assert status["peer"]["age_s"] >= 0
    done = programs.run("bstar", "switchover", "--control", "ipc://p.control", "--json")
    assert json.loads(done.out)["state"] == "passive"
    primary.said("passive")
    backup.said("active")
    ask(programs, "after")
    assert [program.stop().code for program in (primary, backup)] == [0, 0]


def test_titanic_follows_a_pair_of_brokers(programs: Programs) -> None:
    """Requests acknowledged before the broker was killed are answered and fetched afterwards."""
    primary, backup = pair(programs)
    programs.start("titanic", "serve", *FRONTS, "--memory", "--heartbeat-ms", "200").said("titanic serves")
    patient = (*FRONTS, "--timeout", "10")
    early = programs.run("titanic", "submit", *patient, "echo", "before")
    assert early.code == 0, early.err
    primary.signal(signal.SIGKILL)
    late = programs.run("titanic", "submit", *patient, "echo", "after")
    assert late.code == 0, late.err
    backup.said("active")
    for ended, body in ((early, "before"), (late, "after")):
        reply = programs.run("titanic", "wait", *patient, *ended.lines)
        assert (reply.code, reply.lines) == (0, [body]), reply.err


@pytest.mark.parametrize(
    "options, words",
    [
        (("--bstar-local", "ipc://a"), "--bstar-local needs --bstar primary or backup"),
        (("--bstar", "primary", "--bstar-local", "ipc://a"), "one of a pair needs --bstar-remote"),
        (("--bstar", "both"), "'both' is not one of"),
    ],
)
def test_half_a_pair_is_2(programs: Programs, options: tuple[str, ...], words: str) -> None:
    ended = programs.run("mdp", "broker", "--bind", "ipc://f", *options)
    assert ended.code == 2
    assert words in ended.err


def test_two_primaries_are_78(programs: Programs) -> None:
    """BST-08."""
    names = (("a", "b"), ("b", "a"))
    started = [
        programs.start(
            "mdp",
            "broker",
            "--bind",
            f"ipc://{mine}.f",
            "--bstar",
            "primary",
            "--bstar-local",
            f"ipc://{mine}",
            "--bstar-remote",
            f"ipc://{its}",
            *BEAT,
        )
        for mine, its in names
    ]
    code, err = next((ended.code, ended.err) for ended in [first_to_end(*started).end()])
    assert code == 78
    assert "both servers are configured as primary: start one of them as backup" in err


async def test_user_without_rights_deposes_nobody_at_a_secured_pair(programs: Programs) -> None:
    """BST-45, BST-46: CURVE, rules, a witness, a pair key; hundreds of ballots named by a user without rights: no fail-over."""
    keys = {name: [key.decode() for key in core.curve_keypair()] for name in ("pair", "witness", "desk", "web", "mallory", "key")}
    for name, (_, secret) in keys.items():
        (programs.folder / f"{name}.key").write_text(secret)
        (programs.folder / f"{name}.key").chmod(0o600)
    (programs.folder / "clients").write_text("".join(f"{public} {name}\n" for name, (public, _) in keys.items()))
    (programs.folder / "rules.toml").write_text('[[allow]]\nwho = ["web"]\ncall = ["echo"]\n[[allow]]\nwho = ["desk"]\nserve = ["echo"]\n')
    listens = ("--curve-authorized", "clients")
    witness = programs.start(
        "bstar", "witness", "--bind", "ipc://w", "--heartbeat-ms", "1000", "--store", "w.ballot", "--pair-key-file", "key.key",
        "--curve-secret", "witness.key", *listens,
    )  # fmt: skip
    witness.said("witness runs")
    secured = (
        "--bstar-witness", "ipc://w", "--bstar-heartbeat-ms", "1000", "--bstar-pair-key-file", "key.key", "--rules", "rules.toml",
        "--curve-secret", "pair.key", *listens, "--curve-server-key", keys["pair"][0], "--curve-server-key", f"ipc://w={keys['witness'][0]}",
    )  # fmt: skip
    primary = broker(programs, "primary", *secured, "--bstar-store", "p.ballot")
    backup = broker(programs, "backup", *secured, "--bstar-store", "b.ballot")
    primary.said("active")
    backup.said("passive")
    mine = {name: ("--curve-secret", f"{name}.key", "--curve-server-key", keys["pair"][0]) for name in ("desk", "web")}
    programs.start("mdp", "worker", *FRONTS, "--service", "echo", *mine["desk"]).said("registered")
    assert programs.run(*CALL, *mine["web"], "echo", "before").lines == ["before"]
    mallory = core.Curve(secret_key=keys["mallory"][1], server_key=keys["pair"][0], server_keys={"ipc://w": keys["witness"][0]})
    control = ("bstar", "status", "--control", "ipc://p.control", "--json", *mine["web"])
    before = json.loads(programs.run(*control).out)
    async with core.Context(security=mallory) as context:
        names = [b"%d.%016x" % (counter, 0xBAD) for counter in (*range(2, 280), 1 << 16, 1 << 40, (1 << 48) - 1)]
        for front in ("p", "b"):
            async with context.socket(core.DEALER, linger=0) as socket:
                socket.connect(f"ipc://{programs.folder}/{front}.front")
                for ballot in names:
                    await socket.send_multipart([b"", b"MDPC01", b"mmi.pair", ballot])
                    assert (await socket.recv_multipart())[3] == b"300"
        async with core.Context(security=core.Curve(secret_key=keys["mallory"][1], server_key=keys["witness"][0])) as other:
            async with other.socket(core.DEALER, linger=0) as socket:
                socket.connect(f"ipc://{programs.folder}/w")
                for kind in (1, 2, 3):  # ask, keep, release
                    above: int = before["highest"] + 1
                    await socket.send(
                        b"BSTARW\x01" + bytes([kind]) + bytes(8) + above.to_bytes(8, "big") + bytes(7) + b"\x01" + (2000).to_bytes(4, "big")
                    )
                    assert (await socket.recv())[7] == 18
    after = json.loads(programs.run(*control).out)
    assert (after["ballot"], after["state"], after["serving"]) == (before["ballot"], "active", True)
    assert len(after["changes"]) == len(before["changes"])
    assert after["highest"] == before["highest"]
    assert after["counters"]["ballots_named"] == len(names)
    assert after["counters"]["ballots_asked_about"] <= len(names) / 10
    assert programs.run(*CALL, *mine["web"], "echo", "after").lines == ["after"]
    assert "user=mallory" in primary.said("a ballot named by a client is not believed")
    assert "asker=0000000000000001" in witness.said("not signed with the pair key")
