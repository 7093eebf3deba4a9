from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.errors import HandshakeError
from core.security import zap_client
from core.security.authenticator import Authenticator, ZapHandler
from core.security.zap_client import Authentication, Revoking
from core.sockets.monitor import recv_monitor_message
from core.zmtp import z85
from core.zmtp.zap import ZAP_ENDPOINT, ZapReply, ZapRequest
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

QUESTION = ZapRequest(b"PLAIN", credentials=(b"admin", b"secret"))


class Asker:
    """One connection: the answers it got."""

    def __init__(self) -> None:
        self.verdicts: list[ZapReply | HandshakeError] = []
        self.revoked: list[str] = []
        self._told = asyncio.Event()

    def answer(self, verdict: ZapReply | HandshakeError) -> None:
        self.verdicts.append(verdict)
        self._told.set()

    def revoke(self, reason: str) -> None:
        self.revoked.append(reason)
        self._told.set()

    async def told(self) -> None:
        async with asyncio.timeout(100):
            await self._told.wait()
        self._told.clear()

    def ask(self, subject: Authentication, request: ZapRequest = QUESTION, **options: Any) -> Callable[[], None]:
        settings = {"enforce_domain": False, **options}
        return subject.ask(request, answer=self.answer, revoke=self.revoke, **settings)


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as context:
        yield context


@pytest.mark.parametrize("enforce,status", [(False, b"200"), (True, b"300")])
async def test_with_nobody_to_ask_the_answer_comes_at_once(context: core.Context, enforce: bool, status: bytes) -> None:
    asker = Asker()
    forget = asker.ask(context.authentication, ZapRequest(b"CURVE"), enforce_domain=enforce)
    assert [verdict.status_code for verdict in asker.verdicts if isinstance(verdict, ZapReply)] == [status]
    forget()


async def test_the_judge_goes_before_a_handler(context: core.Context) -> None:
    handler = context.socket(core.REP)
    handler.bind(ZAP_ENDPOINT)

    async def judge(request: ZapRequest) -> ZapReply:
        assert request == QUESTION
        return ZapReply(b"200", user_id=b"judge")

    context.authenticator = judge
    asker = Asker()
    asker.ask(context.authentication)
    await asker.told()
    assert asker.verdicts == [ZapReply(b"200", user_id=b"judge")]
    assert not handler.readable()


async def test_a_handler_is_asked_on_a_socket_for_each_question(context: core.Context) -> None:
    handler = context.socket(core.ROUTER, rcvtimeo=60_000)
    handler.bind(ZAP_ENDPOINT)
    askers = [Asker(), Asker()]
    for asker in askers:
        asker.ask(context.authentication)
    requests = [ZapRequest.decode(await handler.recv_multipart()) for _ in askers]
    assert requests[0].envelope != requests[1].envelope
    for number in (1, 0):  # answered in the other order
        await handler.send_multipart(ZapReply(b"200", user_id=b"%d" % number).encode(requests[number]))
        await askers[number].told()
    assert [asker.verdicts for asker in askers] == [[ZapReply(b"200", user_id=b"0")], [ZapReply(b"200", user_id=b"1")]]


@pytest.mark.parametrize("name,value", [("identity", b"name"), ("hello_msg", b"hello"), ("probe_router", 1)])
async def test_defaults_of_the_context_are_not_for_its_own_sockets(context: core.Context, name: str, value: bytes | int) -> None:
    setattr(context, name, value)
    begun, gate = [], asyncio.Event()

    async def judge(request: ZapRequest) -> ZapReply:
        begun.append(request)
        await gate.wait()
        return ZapReply(b"200")

    async with ZapHandler(context, judge) as handler:
        askers = [Asker(), Asker()]
        for asker in askers:
            asker.ask(context.authentication)
        await eventually(lambda: len(begun) == 2)
        gate.set()
        for asker in askers:
            await asker.told()
    assert [asker.verdicts for asker in askers] == [[ZapReply(b"200")]] * 2
    assert handler.malformed == 0
    with context.socket(core.PAIR) as watched:
        events = watched.get_monitor_socket()
        watched.bind("tcp://127.0.0.1:*")
        assert (await recv_monitor_message(events))["event"] == core.Event.LISTENING
        events.close()


async def test_a_peer_that_cannot_be_asked_about_may_come_again(context: core.Context) -> None:
    handler = context.socket(core.ROUTER)
    handler.bind(ZAP_ENDPOINT)
    context.max_sockets = 1
    asker = Asker()
    forget = asker.ask(context.authentication)
    assert [verdict.status_code for verdict in asker.verdicts if isinstance(verdict, ZapReply)] == [b"300"]
    forget()


async def test_a_handlers_nonsense_is_an_error_and_only_its_first_word_counts(context: core.Context) -> None:
    handler = context.socket(core.ROUTER, rcvtimeo=60_000)
    handler.bind(ZAP_ENDPOINT)
    asker = Asker()
    asker.ask(context.authentication)
    request = ZapRequest.decode(await handler.recv_multipart())
    await handler.send_multipart([*request.envelope, b"", b"nonsense"])
    await asker.told()
    (verdict,) = asker.verdicts
    assert isinstance(verdict, HandshakeError)
    await handler.send_multipart(ZapReply(b"200").encode(request))
    await asyncio.sleep(0)
    assert len(asker.verdicts) == 1


async def test_a_handler_that_leaves_lets_a_peer_try_again(context: core.Context) -> None:
    handler = context.socket(core.ROUTER, linger=0)
    handler.bind(ZAP_ENDPOINT)
    asker = Asker()
    asker.ask(context.authentication)
    assert await handler.recv_multipart()
    handler.close()
    await asker.told()
    assert [verdict.status_code for verdict in asker.verdicts if isinstance(verdict, ZapReply)] == [b"300"]


async def test_a_question_taken_back_is_not_answered(context: core.Context) -> None:
    handler = context.socket(core.ROUTER, rcvtimeo=60_000)
    handler.bind(ZAP_ENDPOINT)
    asker = Asker()
    forget = asker.ask(context.authentication)
    request = ZapRequest.decode(await handler.recv_multipart())
    forget()
    forget()
    await handler.send_multipart(ZapReply(b"200").encode(request))
    await asyncio.sleep(0)
    assert asker.verdicts == []


async def test_a_judgement_taken_back_is_cancelled(context: core.Context) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def judge(request: ZapRequest) -> ZapReply:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return ZapReply(b"200")

    context.authenticator = judge
    asker = Asker()
    forget = asker.ask(context.authentication)
    await begun.wait()
    forget()
    await ended.wait()
    assert asker.verdicts == []


@pytest.mark.parametrize("status", [b"", b"201", b"yes"])
async def test_a_judge_without_a_status_has_failed(context: core.Context, status: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def judge(request: ZapRequest) -> ZapReply:
        return ZapReply(status)

    context.authenticator = judge
    asker = Asker()
    asker.ask(context.authentication)
    await asker.told()
    assert asker.verdicts == [ZapReply(b"500")]
    assert "the authenticator gave no status" in caplog.text


async def test_zap_12_a_judge_that_never_ends_has_failed(
    context: core.Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zap_client, "VERDICT_S", 0.01)

    async def judge(request: ZapRequest) -> ZapReply:
        await asyncio.sleep(3600)
        return ZapReply(b"200")

    context.authenticator = judge
    asker = Asker()
    asker.ask(context.authentication)
    await asker.told()
    assert asker.verdicts == [ZapReply(b"500")]
    assert "the authenticator gave no verdict in time" in caplog.text


async def test_c5_every_peer_that_is_no_longer_allowed_is_revoked_and_no_other(
    context: core.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zap_client, "RECHECK_S", 0.01)
    judge = Authenticator(passwords={"admin": "secret", "other": "word"})
    assert isinstance(judge, Revoking)
    context.authenticator = judge
    admin, other, gone = Asker(), Asker(), Asker()
    admin.ask(context.authentication)
    other.ask(context.authentication, ZapRequest(b"PLAIN", credentials=(b"other", b"word")))
    forget = gone.ask(context.authentication)
    for asker in (admin, other, gone):
        await asker.told()
    forget()
    judge.set_password("admin", None)
    await admin.told()
    assert len(admin.revoked) == 1
    assert other.revoked == gone.revoked == []
    judge.set_password("other", "another word")
    await other.told()
    assert len(other.revoked) == 1


class Rules:
    """Refuses the domains in `refused`; a slow one waits for `gate`. Each change has a number."""

    def __init__(self) -> None:
        self.refused: set[bytes] = set()
        self.status = b"400"
        self.number = 0
        self.asked: list[bytes] = []
        self.looks = 0
        self.gate = asyncio.Event()

    def refuse(self, *domains: bytes) -> None:
        self.refused = {*domains}
        self.number += 1

    async def generation(self) -> int:
        self.looks += 1
        return self.number

    async def __call__(self, request: ZapRequest) -> ZapReply:
        self.asked.append(request.domain)
        if request.domain == b"slow" and len(self.asked) == 1:
            await self.gate.wait()
        return ZapReply(self.status if request.domain in self.refused else b"200")

    async def looked(self) -> None:
        """Wait until a whole check has passed."""
        looks = self.looks
        await eventually(lambda: self.looks >= looks + 2)


@pytest.fixture
def rules(context: core.Context, monkeypatch: pytest.MonkeyPatch) -> Rules:
    monkeypatch.setattr(zap_client, "RECHECK_S", 0.001)
    made = Rules()
    context.authenticator = made
    return made


async def ask(context: core.Context, domain: bytes) -> tuple[Asker, Callable[[], None]]:
    asker = Asker()
    forget = asker.ask(context.authentication, ZapRequest(domain=domain))
    await asker.told()
    return asker, forget


async def test_c5_peers_are_checked_once_a_change_and_revoked_once(context: core.Context, rules: Rules) -> None:
    one, _ = await ask(context, b"one")
    two, _ = await ask(context, b"two")
    gone, forget = await ask(context, b"gone")
    forget()
    rules.refuse(b"three")
    three, _ = await ask(context, b"three")
    await rules.looked()
    await rules.looked()
    assert sorted(rules.asked) == sorted([b"one", b"two", b"gone", b"three", b"one", b"two"])
    for refused in ((b"one",), (b"one", b"gone"), ()):
        rules.refuse(*refused)
        await rules.looked()
    assert [len(asker.revoked) for asker in (one, two, gone, three)] == [1, 0, 0, 0]
    assert one.revoked == ["authentication was revoked"]
    assert [rules.asked.count(domain) for domain in (b"one", b"two", b"gone", b"three")] == [3, 5, 1, 1]


async def test_c5_a_peer_of_which_nothing_can_be_said_now_stays_and_is_asked_about_again(context: core.Context, rules: Rules) -> None:
    """300 is a temporary failure of the authenticator, and disconnected every peer."""
    one, _ = await ask(context, b"one")
    two, _ = await ask(context, b"two")
    rules.status = b"300"
    rules.refuse(b"one", b"two")
    await eventually(lambda: rules.asked.count(b"two") > 3)
    assert one.revoked == two.revoked == []
    rules.refused, rules.status = {b"two"}, b"400"
    await two.told()
    await rules.looked()
    asked = len(rules.asked)
    await rules.looked()
    assert (len(one.revoked), len(two.revoked), len(rules.asked)) == (0, 1, asked)


@pytest.mark.faults
async def test_c5_a_peer_for_which_the_authenticator_fails_leaves(context: core.Context, rules: Rules) -> None:
    """Its user may be gone from the records, which an authenticator takes for granted."""
    one, _ = await ask(context, b"one")
    rules.status = b"500"
    rules.refuse(b"one")
    await one.told()
    assert one.revoked == ["authentication was revoked"]


async def test_c5_a_verdict_of_older_rules_is_checked_behind_one_of_newer(context: core.Context, rules: Rules) -> None:
    slow = Asker()
    slow.ask(context.authentication, ZapRequest(domain=b"slow"))
    await eventually(lambda: rules.asked == [b"slow"])
    rules.refuse()
    quick, _ = await ask(context, b"quick")
    rules.gate.set()
    await slow.told()
    rules.refused = {b"slow"}
    await slow.told()
    assert (slow.revoked, quick.revoked) == (["authentication was revoked"], [])


async def test_c5_who_comes_after_all_have_gone_is_watched_too(context: core.Context, rules: Rules) -> None:
    _, forget = await ask(context, b"one")
    forget()
    watch = context.authentication._watch
    assert watch is not None
    await eventually(lambda: watch.task is None)
    two, _ = await ask(context, b"two")
    rules.refuse(b"two")
    await two.told()
    assert len(two.revoked) == 1


async def test_c5_each_authenticator_revokes_the_peers_that_it_has_accepted(context: core.Context, rules: Rules) -> None:
    old, _ = await ask(context, b"old")
    newer = context.authenticator = Rules()
    new, _ = await ask(context, b"new")
    newer.refuse(b"old", b"new")
    await new.told()
    assert (len(new.revoked), old.revoked) == (1, [])
    rules.refuse(b"old")
    await old.told()
    assert (len(new.revoked), len(old.revoked)) == (1, 1)


async def test_c5_only_a_revoked_key_leaves_while_the_file_of_keys_cannot_be_read(
    context: core.Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zap_client, "RECHECK_S", 0.001)
    keys = [core.curve_keypair()[0] for _ in range(2)]
    path = tmp_path / "keys"
    path.write_text(keys[0].decode())
    judge = context.authenticator = Authenticator(authorized_keys=path, keys={keys[1]: "guest"})
    of_the_file, guest = Asker(), Asker()
    for asker, key in ((of_the_file, keys[0]), (guest, keys[1])):
        asker.ask(context.authentication, ZapRequest(b"CURVE", credentials=(z85.decode(key),)))
        await asker.told()
    path.unlink()
    await judge.generation()
    judge.revoke(keys[1])
    await guest.told()
    # The other one was checked before it, and neither is a peer that connects.
    assert (len(guest.revoked), of_the_file.revoked, judge.accepted, judge.refused) == (1, [], 2, 1)


async def test_c5_the_check_of_connected_peers_has_no_part_in_the_guesses_of_their_address(
    context: core.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zap_client, "RECHECK_S", 0.001)
    judge = context.authenticator = Authenticator(passwords={"admin": "secret", "other": "word"}, guesses_max=2)
    others = [Asker() for _ in range(3)]
    for asker in others:
        asker.ask(context.authentication, ZapRequest(b"PLAIN", credentials=(b"other", b"word")))
        await asker.told()
    admin = Asker()
    admin.ask(context.authentication)
    await admin.told()
    judge.set_password("other", None)
    for asker in others:
        await asker.told()
        assert len(asker.revoked) == 1
    again = Asker()
    again.ask(context.authentication)
    await again.told()
    assert [reply.status_code for reply in again.verdicts if isinstance(reply, ZapReply)] == [b"200"], "three old passwords were no guesses"
    for _ in range(2):
        guess = Asker()
        guess.ask(context.authentication, ZapRequest(b"PLAIN", credentials=(b"admin", b"?")))
        await guess.told()
    judge.set_password("third", "word")
    judge.set_password("admin", None)
    await admin.told()
    await again.told()
    assert (len(admin.revoked), len(again.revoked), judge.guesses_refused) == (1, 1, 0)


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_an_authenticator_that_fails_is_a_500_and_logged(
    context: core.Context, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    async def judge(request: ZapRequest) -> ZapReply:
        raise error

    context.authenticator = judge
    asker, _ = await ask(context, b"")
    assert asker.verdicts == [ZapReply(b"500")]
    assert "the authenticator failed" in caplog.text


@pytest.mark.faults
async def test_an_authenticator_without_rules_to_compare_is_a_500(context: core.Context, rules: Rules) -> None:
    async def broken() -> int:
        raise ZeroDivisionError

    rules.generation = broken  # type: ignore[method-assign]
    asker, _ = await ask(context, b"")
    assert asker.verdicts == [ZapReply(b"500")]
    assert rules.asked == []


async def test_c5_a_change_of_mind_during_the_verdict_is_noticed(context: core.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zap_client, "RECHECK_S", 0.01)

    class Fickle:
        """Lets in once, and changes its mind while it says so."""

        minds = 0

        async def generation(self) -> int:
            return self.minds

        async def __call__(self, request: ZapRequest) -> ZapReply:
            self.minds += 1
            return ZapReply(b"200" if self.minds == 1 else b"400")

    context.authenticator = Fickle()
    asker = Asker()
    asker.ask(context.authentication)
    await asker.told()
    await asker.told()
    assert len(asker.revoked) == 1


async def test_the_end_of_a_context_is_the_end_of_its_questions() -> None:
    begun = asyncio.Event()

    async def judge(request: ZapRequest) -> ZapReply:
        begun.set()
        await asyncio.sleep(3600)
        return ZapReply(b"200")

    async with core.Context(authenticator=judge) as context:
        asker = Asker()
        asker.ask(context.authentication)
        await begun.wait()
    assert asker.verdicts == []
