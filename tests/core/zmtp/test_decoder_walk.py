"""Walks over the decoder: streams of messages and commands, cut anywhere, against a model that reads byte by byte.

The model says after each read which messages must have come, what is known of the one that has begun, and when a limit is broken
(ZMTP-22 to ZMTP-29, ZMTP-72, ZMTP-73, ZMTP-86).
"""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from core.errors import LimitExceeded
from core.zmtp.decoder import Decoder
from core.zmtp.frames import decode_frames, encode_message
from core.zmtp.scan import COMMAND_BYTES_MAX
from tests.scenes.raw_octets import COMMAND, LONG, MORE, frame

if TYPE_CHECKING:
    from core.zmtp.scan import Batch

SIZES = (0, 0, 1, 2, 3, 5, 30, 254, 255, 256, 257, 1000)
LARGE = (8182, 8183, 8184, 9000, 20_000)
RESERVED = (0, 0, 0, 8, 0xF8)
NEVER = 10**9


@dataclass
class Expected:
    """Meaning of the bytes so far."""

    head: list[bytes]
    messages: list[list[bytes]] = field(default_factory=list)
    commands: list[bytes] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)  # of the message that has begun
    failure: tuple[str, int, int] | None = None
    at: int = 0  # where the first frame begins that is not whole


class Walk:
    """One stream, its cuts, and the decoder that reads it."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.large = rng.random() < 0.3
        self.limits = {
            "frame_bytes": rng.choice((NEVER, NEVER, 0, 5, 255, 1000, 9000)),
            "message_parts": rng.choice((NEVER, NEVER, 1, 3)),
            "message_bytes": rng.choice((NEVER, NEVER, 10, 1000, 1300, 20_000)),
        }
        self.answers = rng.random() < 0.3  # commands that come out as messages
        head = [b"id"] if rng.random() < 0.4 else []
        self.expected = Expected(head)
        self.commands: list[bytes] = []
        self.decoder = Decoder(
            on_command=self.command,
            frame_bytes_max=-1 if self.limits["frame_bytes"] == NEVER else self.limits["frame_bytes"],
            message_bytes_max=self.limits["message_bytes"],
            parts_max=self.limits["message_parts"],
        )
        self.decoder.head = head
        self.octets = b"".join(self.message() for _ in range(rng.choice((3, 30))))
        self.seen = 0

    def command(self, body: bytes) -> list[bytes] | None:
        self.commands.append(body)
        return [b"made of", body] if self.answers else None

    def message(self) -> bytes:
        """Encode a message in some form that is allowed, with commands anywhere."""
        rng = self.rng
        bodies = [bytes(rng.choice(LARGE if self.large and rng.random() < 0.3 else SIZES)) for _ in range(rng.choice((1, 1, 2, 3, 5)))]
        pieces = []
        for number, body in enumerate(bodies):
            if rng.random() < 0.15:
                size = rng.choice(LARGE) if self.large and rng.random() < 0.3 else rng.choice(SIZES)
                pieces.append(frame(b"%d" % rng.randrange(100) + bytes(size), rng.choice((COMMAND, COMMAND | LONG, COMMAND | MORE))))
            flags = (MORE if number < len(bodies) - 1 else 0) | rng.choice((0, 0, 0, LONG))
            octets = frame(body[:-1] + b"%d" % number if body else b"", flags)
            pieces.append(bytes((octets[0] | rng.choice(RESERVED),)) + octets[1:])
        return b"".join(pieces)

    # -- the model

    def follow(self, data: bytes) -> list[list[bytes]]:
        """Read on, one frame after the other; returns the messages that are whole now."""
        model = self.expected
        self.seen += len(data)
        before = len(model.messages)
        octets = self.octets[: self.seen]
        while model.failure is None and model.at < self.seen:
            flags = octets[model.at]
            width = 8 if flags & LONG else 1
            body = model.at + 1 + width
            if body > self.seen:
                break
            end = body + int.from_bytes(octets[model.at + 1 : body], "big")
            if not flags & COMMAND:
                self.judge(end - body)
            if end > self.seen or model.failure is not None:
                break
            model.at = end
            if flags & COMMAND:
                model.commands.append(octets[body:end])
                if self.answers:
                    model.messages.append([*model.head, b"made of", octets[body:end]])
                continue
            model.frames.append(octets[body:end])
            if not flags & MORE:
                model.messages.append([*model.head, *model.frames])
                model.frames = []
        return model.messages[before:]

    def judge(self, size: int) -> None:
        frames = self.expected.frames
        numbers = {"frame_bytes": size, "message_parts": len(frames) + 1, "message_bytes": sum(map(len, frames)) + size}
        self.limits["frame_bytes"] = min(self.limits["frame_bytes"], self.limits["message_bytes"])
        for kind, limit in self.limits.items():
            if numbers[kind] > limit:
                self.expected.failure = (kind, numbers[kind], limit)
                return

    # -- the decoder

    def run(self) -> None:
        """Feed the stream in pieces of all sizes."""
        self.check_state()
        end = len(self.octets)
        step = self.rng.choice((1, 3, 50, 1000, 5000))
        while self.seen < end and self.expected.failure is None:
            data = self.octets[self.seen : self.seen + self.rng.choice((0, 1, self.rng.randint(1, step), self.rng.randint(1, 4 * step)))]
            way = self.rng.random()
            if way < 0.4 and self.decoder.begun_frame:
                shown, expected = self.lend()
            else:
                shown = self.whole(self.decoder.feed(data))
                expected = self.follow(data)
            if self.expected.failure is None:
                assert (shown, self.commands) == (expected, self.expected.commands)
            else:  # commands behind the frame beyond a limit may have been handled: limits are checked when the message is whole
                assert shown[: len(expected)] == expected
                assert all(message[-2] == b"made of" for message in shown[len(expected) :])
            self.check_state()

    def lend(self) -> tuple[list[list[bytes]], list[list[bytes]]]:
        """Complete a frame outside the decoder, in two reads."""
        made, model = self.decoder, self.expected
        held = self.octets[model.at : self.seen]
        whole = made.begun_frame
        assert whole == 9 + int.from_bytes(held[1:9], "big")
        progress = made.progress
        assert b"".join(made.detach_frame()) == held
        assert (made.begun_frame, made.wanted, made.progress) == (0, 0, progress)
        missing = whole - len(held)
        made.received(missing // 2)
        assert made.progress == progress + missing // 2
        made.received(missing - missing // 2)
        rest = self.octets[self.seen + missing :][: self.rng.choice((0, 1, 5, 300))]
        body = self.octets[model.at + 9 : model.at + whole]
        before = len(model.messages)
        self.follow(self.octets[self.seen : self.seen + missing])
        found = self.whole(made.end_frame(body, rest))
        self.follow(rest)
        return found, model.messages[before:]

    def whole(self, batch: Batch) -> list[list[bytes]]:
        """Return the messages of a batch, which are the same in whatever way they are asked for."""
        messages = [*batch]
        assert len(batch) == len(messages)
        assert [batch[number] for number in range(len(batch))] == messages
        encoded = batch.encode()
        assert (encoded.made, encoded.messages()) == ([], messages)
        first = len(batch.head)
        assert b"".join(encode_message(message, first) for message in messages) == b"".join(
            encode_message(decode_frames(encoded.octets[start:end])) for start, end in zip(encoded.starts, encoded.ends, strict=True)
        )
        return messages

    def check_state(self) -> None:
        """Check what the decoder says of the incomplete message."""
        made, model = self.decoder, self.expected
        assert (made.failure is None) is (model.failure is None)
        if model.failure is not None:
            assert isinstance(made.failure, LimitExceeded)
            assert (made.failure.kind, made.failure.size, made.failure.limit) == model.failure
            return
        held = self.octets[model.at : self.seen]
        assert made.begun is bool(held or model.frames)
        if not made.begun:
            assert (made.wanted, made.begun_frame) == (0, 0)
            return
        made.elsewhere = 7
        assert made.progress == sum(map(len, model.frames)) + len(held) + 7
        made.elsewhere = 0
        need, whole = 0, 0
        if held:
            header = 9 if held[0] & LONG else 2
            need = header
            if len(held) >= header:
                need += int.from_bytes(held[1:header], "big")
                whole = need if held[0] & (LONG | COMMAND) == LONG else 0
            need -= len(held)
        assert (made.wanted, made.begun_frame) == (need, whole)


@pytest.mark.parametrize("seed", range(150))
def test_a_stream_means_the_same_however_it_is_split(seed: int) -> None:
    Walk(seed).run()


def test_a_decoder_that_has_read_nothing_has_begun_nothing() -> None:
    made = Decoder(on_command=lambda _: None)
    assert (made.begun, made.wanted, made.progress, made.begun_frame, [*made.feed(b"")]) == (False, 0, 0, 0, [])


def test_octets_that_come_one_by_one_are_not_kept_one_by_one_and_large_reads_are_kept_as_they_are() -> None:
    octets = frame(bytes(range(256)) * 64)
    made = Decoder(on_command=lambda _: None)
    for at in range(len(octets) - 1):
        assert [*made.feed(octets[at : at + 1])] == []
    chunks = made.detach_frame()
    assert b"".join(chunks) == octets[:-1]
    assert [len(chunk) for chunk in chunks] == [9, 4096, 4096, 4096, 4095]
    for first in (20, 4096):
        reads = [octets[:first], *(octets[at : at + 4096] for at in range(first, first + 3 * 4096, 4096))]
        made = Decoder(on_command=lambda _: None)
        for read in reads:
            made.feed(read)
        assert all(chunk is read for chunk, read in zip(made.detach_frame(), reads, strict=True))


@pytest.mark.parametrize("more", [0, MORE])
@pytest.mark.parametrize("size", [8192 - 9, 1 << 22])
def test_the_body_of_a_large_frame_is_copied_once(size: int, more: int) -> None:
    """Beside the reads and the message itself there is never a second copy of it."""
    octets = frame(bytes(size), more) + (frame(b"end") if more else b"")
    step = max(2048, size // 16)
    reads = [octets[at : at + step] for at in range(0, len(octets), step)]
    made = Decoder(on_command=lambda _: None)
    for read in reads[:-1]:
        assert [*made.feed(read)] == []
    tracemalloc.start()
    (message,) = made.feed(reads[-1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message[0] == bytes(size)
    assert peak < 1.4 * size + 4000


def test_a_long_command_is_no_frame_however_it_comes() -> None:
    commands: list[bytes] = []
    made = Decoder(on_command=commands.append)
    body = b"\x01A" + bytes(COMMAND_BYTES_MAX - 2)
    octets = frame(b"a", MORE) + frame(body, COMMAND) + frame(b"b")
    found = [message for at in range(0, len(octets), 5000) for message in made.feed(octets[at : at + 5000])]
    assert (found, commands, made.failure) == ([[b"a", b"b"]], [body], None)
    made.feed(frame(bytes(COMMAND_BYTES_MAX + 1), COMMAND)[:9])
    assert isinstance(made.failure, LimitExceeded)
    assert (made.failure.kind, made.failure.size, made.failure.limit) == ("command_bytes", COMMAND_BYTES_MAX + 1, COMMAND_BYTES_MAX)
