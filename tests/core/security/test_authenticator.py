from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import core
from core.errors import InvalidOption
from core.runtime import cold_files
from core.security import authenticator, zap_client
from core.security.authenticator import Authenticator, ZapHandler, curve_keypair, curve_public, parse_authorized_keys
from core.zmtp import z85
from core.zmtp.zap import ZAP_ENDPOINT, ZapReply, ZapRequest

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC, SECRET = curve_keypair()
OTHER, _ = curve_keypair()


def null(address: bytes = b"127.0.0.1") -> ZapRequest:
    return ZapRequest(b"NULL", address=address)


def plain(user: bytes, password: bytes) -> ZapRequest:
    return ZapRequest(b"PLAIN", address=b"127.0.0.1", credentials=(user, password))


def curve(key: bytes, address: bytes = b"127.0.0.1") -> ZapRequest:
    return ZapRequest(b"CURVE", address=address, credentials=(z85.decode(key),))


def write(path: Path, text: str) -> None:
    """Replace a file as an editor does, with a new time stamp even if the disk's clock is coarse."""
    serial = path.stat().st_mtime_ns + 1_000_000_000 if path.exists() else 1_000_000_000
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    os.utime(fresh, ns=(serial, serial))
    fresh.replace(path)


def test_key_pairs_are_z85_and_belong_together() -> None:
    public, secret = curve_keypair()
    assert len(public) == len(secret) == 40
    assert curve_public(secret) == curve_public(z85.decode(secret)) == curve_public(secret.decode()) == public


@pytest.mark.parametrize("key", [b"", b"short", bytes(31), "x" * 39, "\\" * 40, "#" * 40])
def test_what_is_no_key(key: bytes | str) -> None:
    with pytest.raises(InvalidOption):
        curve_public(key)


def test_authorized_keys_files() -> None:
    hash_key = "#" + PUBLIC.decode()[1:]  # "#" is a character of Z85
    text = f"""
# the night shift
{PUBLIC.decode()} alice smith
   {OTHER.decode()}
{hash_key} bob
#{PUBLIC.decode()} taken out
no key
{PUBLIC.decode()}x mallory
"""
    keys, wrong = parse_authorized_keys(text)
    assert keys[z85.decode(PUBLIC)] == "alice smith"
    assert keys[z85.decode(OTHER)] == OTHER.decode()
    assert "taken out" not in keys.values()
    assert wrong == [7, 8]


@pytest.mark.parametrize("request_", [null(), plain(b"admin", b"secret"), curve(PUBLIC)], ids=["NULL", "PLAIN", "CURVE"])
async def test_deny_by_default(request_: ZapRequest) -> None:
    judge = Authenticator()
    assert (await judge(request_)).status_code == b"400"
    assert (judge.accepted, judge.refused) == (0, 1)


@pytest.mark.parametrize(
    "user,password,status",
    [
        (b"admin", b"secret", b"200"),
        (b"admin", b"secre", b"400"),
        (b"admin", b"", b"400"),
        (b"Admin", b"secret", b"400"),
        (b"", b"", b"400"),
        (b"nobody", b"secret", b"400"),
        (b"\xff\xfe", b"\x00", b"400"),
        ("jürgen".encode(), "größe".encode(), b"200"),
    ],
)
async def test_passwords(user: bytes, password: bytes, status: bytes) -> None:
    judge = Authenticator(passwords={"admin": "secret", "jürgen": "größe"})
    reply = await judge(plain(user, password))
    assert reply.status_code == status
    assert reply.user_id == (user if status == b"200" else b"")


@pytest.mark.parametrize("key", [PUBLIC, PUBLIC.decode(), z85.decode(PUBLIC)], ids=["z85 octets", "z85 text", "raw"])
async def test_keys(key: bytes | str) -> None:
    judge = Authenticator(keys={key: "alice"})
    assert await judge(curve(PUBLIC)) == ZapReply(b"200", b"OK", b"alice")
    assert (await judge(curve(OTHER))).status_code == b"400"


async def test_any_key_is_known_by_itself() -> None:
    reply = await Authenticator(any_key=True)(curve(OTHER))
    assert (reply.status_code, reply.user_id) == (b"200", OTHER)


@pytest.mark.parametrize(
    "request_",
    [
        ZapRequest(b"PLAIN", credentials=(b"admin",)),
        ZapRequest(b"PLAIN", credentials=()),
        ZapRequest(b"CURVE", credentials=()),
        ZapRequest(b"CURVE", credentials=(b"short",)),
        ZapRequest(b"GSSAPI", credentials=(b"principal",)),
        ZapRequest(b"", credentials=()),
    ],
)
async def test_credentials_that_are_none(request_: ZapRequest) -> None:
    judge = Authenticator(passwords={"admin": "secret"}, keys={PUBLIC: "alice"}, any_key=True)
    assert (await judge(request_)).status_code == b"400"


@pytest.mark.parametrize(
    "allow,deny,address,status",
    [
        (["127.0.0.1"], [], b"127.0.0.1", b"200"),
        (["127.0.0.0/8"], [], b"127.1.2.3", b"200"),
        (["127.0.0.0/8"], ["127.0.0.1"], b"127.0.0.1", b"400"),
        (["10.0.0.0/8"], [], b"127.0.0.1", b"400"),
        (["::1"], [], b"::1", b"200"),
        (["fe80::/10"], [], b"fe80::1%eth0", b"200"),
        (["127.0.0.1"], [], b"::ffff:127.0.0.1", b"200"),
        ([], ["127.0.0.1"], b"::ffff:127.0.0.1", b"400"),
        (["uid:0"], [], b":0:0:4711", b"200"),
        (["uid:0"], [], b":1000:0:4711", b"400"),
        (["ipc"], [], b":1000:0:4711", b"200"),
        (["ipc"], [], b"", b"200"),
        (["ipc"], ["uid:1000"], b":1000:0:4711", b"400"),
        (["uid:0"], [], b"", b"400"),
        (["0.0.0.0/0", "::/0"], [], b":0:0:4711", b"400"),
        (["0.0.0.0/0"], [], b"no address", b"400"),
        (["0.0.0.0/0"], [], b"\xff\xff", b"400"),
    ],
)
async def test_addresses(allow: list[str], deny: list[str], address: bytes, status: bytes) -> None:
    assert (await Authenticator(allow=allow, deny=deny)(null(address))).status_code == status


async def test_an_address_that_may_not_makes_the_best_credentials_worthless() -> None:
    judge = Authenticator(deny=["127.0.0.1"], keys={PUBLIC: "alice"}, passwords={"admin": "secret"})
    assert (await judge(curve(PUBLIC))).status_code == b"400"
    assert (await judge(plain(b"admin", b"secret"))).status_code == b"400"
    assert (await judge(curve(PUBLIC, b"127.0.0.2"))).status_code == b"200"


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3", "uid:", "uid:root", "10.0.0.0/33"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidOption):
        Authenticator(deny=[text])


async def test_changes_in_a_program_change_verdicts_and_notify_watchers() -> None:
    judge = Authenticator()
    first = await judge.generation()
    judge.authorize(PUBLIC, "alice")
    judge.authorize(OTHER)
    assert (await judge(curve(PUBLIC))).user_id == b"alice"
    assert (await judge(curve(OTHER))).user_id == OTHER
    assert await judge.generation() == first  # no connected peer is affected
    judge.revoke(PUBLIC)
    assert (await judge(curve(PUBLIC))).status_code == b"400"
    second = await judge.generation()
    assert second != first
    judge.set_password("admin", "secret")
    assert (await judge(plain(b"admin", b"secret"))).accepted
    judge.set_password("admin", None)
    assert not (await judge(plain(b"admin", b"secret"))).accepted
    assert await judge.generation() != second


async def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write(path, f"{PUBLIC.decode()} alice\n")
    judge = Authenticator(authorized_keys=path)
    assert (await judge(curve(PUBLIC))).user_id == b"alice"
    first = await judge.generation()
    assert await judge.generation() == first
    write(path, f"{OTHER.decode()} bob\nrubbish\n")
    assert (await judge(curve(PUBLIC))).status_code == b"400"
    assert (await judge(curve(OTHER))).user_id == b"bob"
    second = await judge.generation()
    assert second != first
    write(path, f"# only a comment more\n{OTHER.decode()} bob\n")
    assert await judge.generation() == second


async def test_c5_a_key_that_is_revoked_while_the_file_is_looked_at_changes_the_generation(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write(path, "")
    judge = Authenticator(authorized_keys=path, keys={PUBLIC: "alice"})
    first = await judge.generation()
    looking = asyncio.ensure_future(judge.generation())
    await asyncio.sleep(0)
    judge.revoke(PUBLIC)
    await looking
    assert await judge.generation() != first


async def test_c5_a_change_of_the_file_that_several_see_at_once_changes_the_generation(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write(path, f"{PUBLIC.decode()} alice\n")
    judge = Authenticator(authorized_keys=path)
    first = await judge.generation()
    write(path, "")
    await asyncio.gather(*(judge.generation() for _ in range(3)))
    assert await judge.generation() != first


@pytest.mark.parametrize("damage", ["absent", "folder", "not text"])
async def test_a_file_that_cannot_be_read_lets_nobody_new_in_for_now(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "keys"
    write(path, f"{PUBLIC.decode()} alice\n")
    judge = Authenticator(authorized_keys=path, keys={OTHER: "bob"})
    await judge(curve(PUBLIC))
    first = await judge.generation()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "not text":
        path.write_bytes(b"\xff\xfe\x00")
    assert (await judge(curve(PUBLIC))).status_code == b"300"
    assert (await judge(curve(OTHER))).status_code == b"200"
    assert await judge.generation() == first  # connected peers stay


class Disk:
    """One file of keys: its text, and the stamps that it has, one a look; the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str = "", *stamps: int) -> None:
        self.text = text
        self.stamps = [*stamps] or [1]
        self.looks = self.reads = 0
        self.lost = False
        monkeypatch.setattr(cold_files, "status", self.status)
        monkeypatch.setattr(cold_files, "read_text", self.read_text)
        monkeypatch.setattr(authenticator, "_QUIET_S", 0.0)

    async def status(self, path: object) -> SimpleNamespace:
        self.looks += 1
        if self.lost:
            raise FileNotFoundError("keys")
        stamp = self.stamps.pop(0) if len(self.stamps) > 1 else self.stamps[0]
        return SimpleNamespace(st_mtime_ns=stamp, st_size=1, st_ino=1)

    async def read_text(self, path: object) -> str:
        self.reads += 1
        return self.text


async def test_a_file_is_read_once_until_it_changes_and_again_while_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, f"{PUBLIC.decode()} alice")
    judge = Authenticator(authorized_keys="keys")
    assert judge.verdict(curve(PUBLIC)).status_code == b"300", "not read yet"
    for _ in range(3):
        assert (await judge(curve(PUBLIC))).accepted
    assert (disk.reads, judge.accepted, judge.refused) == (1, 3, 0)
    disk.stamps = [2, 3, 4, 4]
    assert (await judge(curve(PUBLIC))).accepted
    assert disk.reads == 4, "three more, until it was the same before and after"


async def test_a_file_that_changes_for_ever_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, f"{PUBLIC.decode()} alice", *range(100))
    assert (await Authenticator(authorized_keys="keys")(curve(PUBLIC))).accepted
    assert (disk.reads, disk.looks) == (20, 21)


async def test_only_a_file_that_is_being_changed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    disk = Disk(monkeypatch, f"{PUBLIC.decode()} alice")
    monkeypatch.setattr(authenticator, "_QUIET_S", 0.05)
    monkeypatch.setattr(asyncio, "sleep", pause)
    judge = Authenticator(authorized_keys="keys")
    await judge.generation()
    assert pauses == []
    disk.stamps = [2]
    await judge.generation()
    assert pauses == [0.05]


async def test_faults_of_a_file_are_logged_once_each_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(monkeypatch, f"{PUBLIC.decode()} alice\nrubbish")
    disk.lost = True
    judge = Authenticator(authorized_keys="keys")
    for lost, lines in (
        (True, ["authorized keys cannot be read"]),
        (True, []),
        (False, ["line is no key"]),
        (False, []),
        (True, ["authorized keys cannot be read"]),
        (True, []),
    ):
        disk.lost = lost
        caplog.clear()
        await judge.generation()
        assert [record.getMessage() for record in caplog.records] == lines
        assert [(vars(record)["path"], vars(record).get("line")) for record in caplog.records] == [
            ("keys", 2 if line == "line is no key" else None) for line in lines
        ]


async def test_a_refused_peer_is_logged_with_what_it_claims_and_never_with_a_password(caplog: pytest.LogCaptureFixture) -> None:
    judge = Authenticator(passwords={"admin": "secret"}, keys={PUBLIC: "alice"})
    for request in (plain(b"admin", b"hunter2"), curve(OTHER), null(), ZapRequest(b"CURVE", credentials=(b"short",))):
        await judge(request)
    assert (judge.accepted, judge.refused) == (0, 4)
    shown = [(vars(record)["mechanism"], vars(record).get("user"), vars(record).get("key")) for record in caplog.records]
    assert shown == [("PLAIN", "admin", None), ("CURVE", None, OTHER.decode()), ("NULL", None, None), ("CURVE", None, None)]
    assert {record.getMessage() for record in caplog.records} == {"peer refused"}
    assert "hunter2" not in str([vars(record) for record in caplog.records])


def test_the_digest_of_passwords_is_the_same_in_every_version() -> None:
    judge = Authenticator(passwords={"b": "2", "a": "1"})
    assert judge.passwords_digest() == bytes.fromhex("90a772dc0f41db7738f088f3c84aa6e290fe7c149cac68d126a47c91741d343f")
    assert Authenticator(passwords={"a": "1b2"}).passwords_digest() != judge.passwords_digest()
    assert Authenticator().passwords_digest() is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b"2001:db8::1", b"2001:db8::2", True),
        (b"2001:db8::1", b"2001:db8:0:1::1", False),
        (b"10.0.0.1", b"10.0.0.2", False),
        (b":7:7:1", b":7:7:2", True),
        (b":7:7:1", b":8:7:1", False),
    ],
)
def test_wrong_passwords_count_for_an_address_or_a_user_of_this_machine(one: bytes, other: bytes, same: bool) -> None:
    judge = Authenticator(passwords={"admin": "secret"}, guesses_max=1)
    credentials = (b"admin", b"wrong")
    assert judge.verdict(ZapRequest(b"PLAIN", address=one, credentials=credentials)).status_code == b"400"
    second = judge.verdict(ZapRequest(b"PLAIN", address=other, credentials=credentials))
    assert second.status_code == (b"300" if same else b"400")


@pytest.mark.parametrize("address", [b"", b"nonsense", b"10.0.0", b"\xff"])
def test_what_is_no_address_is_on_no_list(address: bytes) -> None:
    assert not Authenticator(allow=["0.0.0.0/0", "::/0"]).verdict(null(address)).accepted
    question = ZapRequest(b"PLAIN", address=address, credentials=(b"admin", b"secret"))
    assert Authenticator(deny=["0.0.0.0/0", "::/0"], passwords={"admin": "secret"}).verdict(question).accepted
    assert Authenticator(allow=["10.0.0.7/8"]).verdict(null(b"10.1.2.3")).accepted, "bits of the host mean nothing"


async def test_a_handler_serves_several_sockets_at_once_and_drops_what_is_no_request() -> None:
    """ZAP-09."""
    gate = asyncio.Event()

    async def judge(request: ZapRequest) -> ZapReply:
        if request.domain == b"slow":
            await gate.wait()
        if request.domain == b"broken":
            raise ZeroDivisionError
        return ZapReply(b"200", b"OK", request.domain)

    async with core.Context() as context, ZapHandler(context, judge) as handler:
        asking = {name: context.socket(core.DEALER, linger=0, rcvtimeo=60_000) for name in (b"slow", b"quick", b"broken")}
        for name, socket in asking.items():
            socket.connect(ZAP_ENDPOINT)
            await socket.send_multipart([b"", b"no", b"request"])
            await socket.send_multipart(ZapRequest(domain=name, request_id=name).encode())
        answer = await asking[b"quick"].recv_multipart()
        assert ZapReply.decode(answer, ZapRequest(request_id=b"quick")).user_id == b"quick"
        answer = await asking[b"broken"].recv_multipart()
        assert ZapReply.decode(answer, ZapRequest(request_id=b"broken")).status_code == b"500"
        gate.set()
        answer = await asking[b"slow"].recv_multipart()
        assert ZapReply.decode(answer, ZapRequest(request_id=b"slow")).user_id == b"slow"
        assert handler.malformed == 3


@pytest.mark.parametrize("status", [None, b"", b"20", b"2000"])
async def test_a_handler_answers_500_for_an_authenticator_without_a_verdict(status: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In time, as a socket does that asks the authenticator itself; other libraries may be waiting."""
    if status is None:
        monkeypatch.setattr(zap_client, "VERDICT_S", 0.01)

    async def judge(request: ZapRequest) -> ZapReply:
        if status is None:
            await asyncio.sleep(3600)
        return ZapReply(status or b"")

    async with core.Context() as context, ZapHandler(context, judge):
        asking = context.socket(core.DEALER, linger=0, rcvtimeo=60_000)
        asking.connect(ZAP_ENDPOINT)
        request = ZapRequest(request_id=b"1")
        await asking.send_multipart(request.encode())
        assert ZapReply.decode(await asking.recv_multipart(), request).status_code == b"500"


async def test_a_handler_with_enough_questions_puts_others_off() -> None:
    """ZAP-09: status 300: the peer may connect again."""
    gate = asyncio.Event()

    async def judge(request: ZapRequest) -> ZapReply:
        await gate.wait()
        return ZapReply(b"200")

    async with core.Context() as context, ZapHandler(context, judge, questions_max=2) as handler:
        socket = context.socket(core.DEALER, linger=0, rcvtimeo=60_000)
        socket.connect(ZAP_ENDPOINT)
        for number in range(3):
            await socket.send_multipart(ZapRequest(request_id=b"%d" % number).encode())
        assert ZapReply.decode(await socket.recv_multipart(), ZapRequest(request_id=b"2")).status_code == b"300"
        assert handler.put_off == 1
        gate.set()
        assert {(await socket.recv_multipart())[3] for _ in range(2)} == {b"200"}
        await socket.send_multipart(ZapRequest(request_id=b"3").encode())
        assert ZapReply.decode(await socket.recv_multipart(), ZapRequest(request_id=b"3")).status_code == b"200"


async def test_a_handler_that_leaves_takes_its_unfinished_verdicts_with_it() -> None:
    asked = asyncio.Event()
    cancelled = []

    async def judge(request: ZapRequest) -> ZapReply:
        asked.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.append(request.domain)
        return ZapReply(b"200")

    async with core.Context() as context:
        async with ZapHandler(context, judge):
            socket = context.socket(core.DEALER, linger=0)
            socket.connect(ZAP_ENDPOINT)
            await socket.send_multipart(ZapRequest(domain=b"never").encode())
            await asked.wait()
        assert cancelled == [b"never"]
