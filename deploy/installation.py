"""The installation of deploy/example, started for real on loopback: one part after another is killed, and every request is answered.

    python deploy/installation.py [--rounds 1] [--keep FOLDER] [--upgrade]

Two brokers as a Binary Star with a witness, a Titanic with its mirror, two workers; CURVE between all of them and rules at the brokers.
The files of the example are used as they are, with addresses and folders replaced by free ports and a temporary folder. A steady client
asks `echo` and a second one stores requests with Titanic, while each part is killed (SIGKILL) and started again. At the end each request
must have had its own answer: exit code 0 if it had, 1 if not. With --upgrade nothing is killed: one part after another is stopped
and started again, in the order of an upgrade, the broker that serves after handing over to the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import click

import core
import mdp
import titanic

EXAMPLE = Path(__file__).parent / "example"
# Part: (program, command, file of the example, machine it is on, what it says when it serves)
PARTS = {
    "witness": ("bstar", "witness", "witness.toml", "c", "witness runs"),
    "broker-a": ("mdp", "broker", "broker-a.toml", "a", "broker serves"),
    "broker-b": ("mdp", "broker", "broker-b.toml", "b", "broker serves"),
    "mirror": ("titanic", "mirror", "mirror.toml", "b", "titanic mirrors"),
    "titanic": ("titanic", "serve", "titanic.toml", "a", "titanic serves"),
    "worker-1": ("mdp", "worker", "worker.toml", "d", "worker serves"),
    "worker-2": ("mdp", "worker", "worker.toml", "d", "worker serves"),
}
OWNERS = ("broker-a", "broker-b", "witness", "titanic", "mirror", "worker", "client", "operator", "pair")
AUTHORIZED = {
    "clients": ("client", "worker", "titanic", "operator", "broker-a", "broker-b"),
    "servers": ("broker-a", "broker-b", "operator"),
    "stores": ("titanic",),
}
ADDRESS = re.compile(r"10\.0\.0\.\d:\d+")
# How long a part may take to come up, and a request to be answered, whatever is killed meanwhile.
PORTS = (15_000, 32_000)  # below those the system gives to outgoing connections
PATIENCE_S = 60.0
ASK_EVERY_S = 0.01
LOOK_EVERY_S = 0.02
STORE_EVERY_S = 0.2


def free_port() -> int:
    """Return a port nobody listens on now, and that no outgoing connection is given while its part is down."""
    while True:
        port = random.randrange(*PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@dataclass
class Tally:
    """Results of the requests.

    Attributes:
        answered: with their own body.
        wrong: with another.
        failed: why the others failed.
        slowest_s: the longest wait for an answer.
    """

    answered: int = 0
    wrong: int = 0
    failed: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def note(self, right: bool, began: float) -> None:
        """Take note of an answer."""
        self.answered += right
        self.wrong += not right
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)


class Installation:
    """Keys, files and processes in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = {owner: core.curve_keypair() for owner in OWNERS}
        self._ports: dict[str, str] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._write_keys()
        for name in {part[2] for part in PARTS.values()} | {"rules.toml"}:
            machine = next((part[3] for part in PARTS.values() if part[2] == name), "")
            (folder / name).write_text(self.adapted((EXAMPLE / name).read_text(encoding="utf-8"), machine))

    def _write_keys(self) -> None:
        for owner, (public, secret) in self.keys.items():
            (self.folder / f"{owner}.pub").write_bytes(public + b"\n")
            path = self.folder / f"{owner}.key"
            path.touch(mode=0o600)
            path.write_bytes(secret + b"\n")
        for name, owners in AUTHORIZED.items():
            lines = [f"{self.keys[owner][0].decode()} {owner}\n" for owner in owners]
            (self.folder / name).write_text("".join(lines))
            (self.folder / name).chmod(0o644)

    def adapted(self, text: str, machine: str) -> str:
        """Return a file of the example for this machine."""
        home = self.folder / machine
        home.mkdir(exist_ok=True)
        text = ADDRESS.sub(lambda found: self.address(found[0]), text)
        text = text.replace("/etc/majordomo", str(self.folder))
        for place in ("/run/majordomo", "/var/lib/majordomo", "/var/lib/titanic"):
            text = text.replace(place, str(home))
        return text

    def address(self, of_example: str) -> str:
        """Return the loopback address that stands for one of the example."""
        if of_example not in self._ports:
            self._ports[of_example] = f"127.0.0.1:{free_port()}"
        return self._ports[of_example]

    def security(self, owner: str) -> core.Curve:
        """Return what one of our own clients has."""
        servers = {
            f"tcp://{self.address(f'10.0.0.{number}:5555')}": self.keys[f"broker-{name}"][0] for number, name in ((1, "a"), (2, "b"))
        }
        return core.Curve(secret_key=self.keys[owner][1], server_keys=servers)

    @property
    def brokers(self) -> list[str]:
        """Endpoints of both brokers."""
        return [f"tcp://{self.address(f'10.0.0.{number}:5555')}" for number in (1, 2)]

    def log_of(self, part: str) -> Path:
        """Return where a part writes what it has to say."""
        return self.folder / f"{part}.log"

    async def start(self, part: str) -> None:
        """Start a part and wait until it serves."""
        ready, log = PARTS[part][4], self.log_of(part)
        said = log.read_text().count(ready) if log.exists() else 0
        process = self._running[part] = self._spawn(part)
        async with asyncio.timeout(PATIENCE_S):
            while log.read_text().count(ready) == said:
                if process.poll() is not None:
                    raise RuntimeError(f"{part} ended: {log.read_text()[-500:]}")
                await asyncio.sleep(LOOK_EVERY_S)

    def _spawn(self, part: str) -> subprocess.Popen[bytes]:
        program, command, name, *_ = PARTS[part]
        with self.log_of(part).open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", program, command, "--config", str(self.folder / name)],
                stderr=out,
                stdout=out,
                env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])},
            )

    def kill(self, part: str) -> None:
        """End a part as a power cut would."""
        process = self._running.pop(part)
        process.kill()
        process.wait()

    async def restart(self, part: str) -> None:
        """End a part as systemd does, and start it again.

        Raises:
            RuntimeError: it did not end with 0.
        """
        process = self._running.pop(part)
        process.terminate()
        code = await asyncio.to_thread(process.wait)
        if code:
            raise RuntimeError(f"{part} ended with {code}")
        await self.start(part)

    async def bstar(self, verb: str, machine: str, *more: str) -> str:
        """Ask or order the broker of a machine as an operator does, and return what is printed."""
        command = [sys.executable, "-m", "bstar", verb, "--control", f"ipc://{self.folder / machine / 'control'}", *more]
        keys = ["--curve-secret", str(self.folder / "operator.key"), "--curve-server-key", str(self.folder / f"broker-{machine}.pub")]
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, *keys],
            env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"bstar {verb} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    async def serving(self) -> tuple[str, str]:
        """Return the machine whose broker serves, and the other."""
        status = json.loads(await self.bstar("status", "a", "--json"))
        return ("a", "b") if status["serving"] else ("b", "a")

    def stop(self) -> dict[str, int]:
        """Tell every part to end, those that serve last; return their exit codes."""
        codes = {}
        for part in [*PARTS][::-1]:
            process = self._running.pop(part, None)
            if process is not None:
                process.terminate()
                codes[part] = process.wait()
        return codes

    def end(self) -> None:
        """Leave nothing running, whatever happened."""
        for part in [*self._running]:
            self.kill(part)


async def ask_steadily(place: Installation, tally: Tally, stop: asyncio.Event) -> None:
    """Ask echo every few milliseconds; each request may be sent again, for it has a key."""
    async with mdp.Client(place.brokers, timeout=2.0, attempts=int(PATIENCE_S / 2), security=place.security("client")) as client:
        number = 0
        while not stop.is_set():
            number += 1
            await ask_once(client, b"%d" % number, tally)
            await asyncio.sleep(ASK_EVERY_S)


async def ask_once(client: mdp.Client, body: bytes, tally: Tally) -> None:
    """Ask until there is an answer: a broker that has just taken over knows no workers yet, and says so."""
    began = time.monotonic()
    key = secrets.token_hex(8)
    while True:
        try:
            reply = await client.request("echo", body, key=key, wait=True)
        except (mdp.NoService, mdp.Busy, mdp.WorkerLost, mdp.Unreachable) as error:
            if time.monotonic() - began > PATIENCE_S:
                tally.failed.append(str(error))
                return
            await asyncio.sleep(0.1)
        except mdp.RequestError as error:
            tally.failed.append(str(error))
            return
        else:
            tally.note(reply == [body], began)
            return


async def store_steadily(place: Installation, tally: Tally, stop: asyncio.Event) -> None:
    """Store requests, and fetch every answer at the end."""
    tickets: list[tuple[bytes, titanic.Ticket]] = []
    async with titanic.Client(place.brokers, timeout=2.0, attempts=5, security=place.security("client")) as client:
        number = 0
        while not stop.is_set():
            number += 1
            body, began = b"stored %d" % number, time.monotonic()
            ticket = await store_once(client, body, began, tally)
            if ticket is not None:
                tickets.append((body, ticket))
            await asyncio.sleep(STORE_EVERY_S)
        for body, ticket in tickets:
            began = time.monotonic()
            try:
                tally.note(await ticket.result(timeout=PATIENCE_S) == [body], began)
            except (titanic.TitanicError, mdp.RequestError) as error:
                tally.failed.append(f"{ticket.uuid}: {error}")


async def store_once(client: titanic.Client, body: bytes, began: float, tally: Tally) -> titanic.Ticket | None:
    """Store a request; the same key makes of several tries one request."""
    key = secrets.token_hex(8)
    while True:
        try:
            return await client.submit("echo", body, key=key)
        except (titanic.TitanicError, mdp.RequestError) as error:
            if time.monotonic() - began > PATIENCE_S:
                tally.failed.append(f"not stored: {error}")
                return None
            await asyncio.sleep(0.1)


async def answered(tally: Tally, more: int) -> None:
    """Wait until so many more requests were answered."""
    goal, until = tally.answered + more, time.monotonic() + 2 * PATIENCE_S
    while True:
        if tally.answered >= goal or tally.failed or time.monotonic() > until:
            return
        await asyncio.sleep(LOOK_EVERY_S)


def scrape(place: Installation) -> dict[str, int]:
    """Ask both brokers for metrics and the live page; return the number of samples by machine."""
    found = {}
    for machine, number in (("a", 1), ("b", 2)):
        where = f"http://{place.address(f'10.0.0.{number}:9100')}"
        with urlopen(f"{where}/metrics", timeout=PATIENCE_S) as answer:
            found[machine] = sum(not line.startswith(b"#") for line in answer)
        with urlopen(f"{where}/", timeout=PATIENCE_S) as answer:
            found[machine] *= b"<html" in answer.read()
    return found


async def upgrade(place: Installation, steady: Tally) -> None:
    """Restart every part in the order of an upgrade, each only when the one before serves."""

    async def again(part: str) -> None:
        await place.restart(part)
        await answered(steady, 20)
        click.echo(f"{part} restarted, {steady.answered} answered")

    await again("witness")
    active, passive = await place.serving()
    await again(f"broker-{passive}")
    if (await place.serving())[0] == active:  # on a busy machine they may have changed over by themselves
        await place.bstar("switchover", active)
        click.echo(f"broker-{active} has handed over to broker-{passive}")
    await again(f"broker-{active}")
    for part in ("mirror", "titanic", "worker-1", "worker-2"):
        await again(part)


async def run(place: Installation, victims: list[str], *, upgrading: bool = False) -> int:
    """Start everything, kill each victim and start it again, or upgrade; return the exit code."""
    for part in PARTS:
        await place.start(part)
        click.echo(f"{part} serves")
    steady, stored, stop = Tally(), Tally(), asyncio.Event()
    asking = [asyncio.ensure_future(ask_steadily(place, steady, stop)), asyncio.ensure_future(store_steadily(place, stored, stop))]
    await answered(steady, 50)
    for part in victims:
        before = steady.slowest_s
        steady.slowest_s = 0.0
        place.kill(part)
        await answered(steady, 20)
        await place.start(part)
        await answered(steady, 20)
        click.echo(f"{part} killed and back, longest wait {steady.slowest_s:.2f} s, {steady.answered} answered")
        steady.slowest_s = max(before, steady.slowest_s)
    if upgrading:
        await upgrade(place, steady)
    samples = await asyncio.to_thread(scrape, place)
    click.echo(f"metrics: {samples['a']} samples of broker-a, {samples['b']} of broker-b, and the page of both")
    stop.set()
    await asyncio.gather(*asking)
    codes = place.stop()
    for name, tally in (("asked", steady), ("stored", stored)):
        click.echo(f"{name}: {tally.answered} answered, {tally.wrong} wrong, {len(tally.failed)} failed, slowest {tally.slowest_s:.2f} s")
        for reason in tally.failed[:5]:
            click.echo(f"  {reason}")
    bad = {part: code for part, code in codes.items() if code}
    if bad:
        click.echo(f"exit codes that are not 0: {bad}")
    return int(
        bool(bad or not all(samples.values()) or any(tally.wrong or tally.failed or not tally.answered for tally in (steady, stored)))
    )


def main() -> int:
    """Parse, run, tidy up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=1, help="how often each part is killed")
    parser.add_argument("--only", action="append", choices=[*PARTS], help="kill only these")
    parser.add_argument("--keep", type=Path, help="folder for files and logs, kept afterwards")
    parser.add_argument("--upgrade", action="store_true", help="kill nothing, restart everything in the order of an upgrade")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="majordomo-")))
        folder.mkdir(parents=True, exist_ok=True)
        place = Installation(folder)
        stack.callback(place.end)
        victims = [] if given.upgrade else (given.only or [*PARTS]) * given.rounds
        return core.run(run(place, victims, upgrading=given.upgrade))


if __name__ == "__main__":
    sys.exit(main())
