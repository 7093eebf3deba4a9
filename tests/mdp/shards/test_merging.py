"""Answers of several shards in one.

Rules of specs/mdp.md: SHD-11.
"""

from __future__ import annotations

import json

from core.zmtp.frames import encode_message
from mdp.shards.merging import body_of, merged, silence_in_words, silent_shards
from mdp.wire.commands import DIALECTS, client_final
from tests.scenes.mdp_messages import client_error, client_partial


def test_numbers_are_added_and_lists_follow_each_other() -> None:
    code, stats = merged(b"mmi.stats", [[b"200", b'{"a":1,"b":2}'], [b"200", b'{"a":10}']], {"shards": 2}, 1000)
    assert (code, json.loads(stats)) == (b"200", {"a": 11, "b": 2, "shards": 2})
    assert merged(b"mmi.services", [[b"200", b'[{"n":1}]'], [b"200", b"[]"], [b"200", b'[{"n":2}]']], {}, 1000) == [
        b"200",
        b'[{"n":1},{"n":2}]',
    ]
    assert merged(b"mmi.services", [], {}, 1000) == [b"200", b"[]"]


def test_a_truncated_list_ends_with_null_once() -> None:
    assert merged(b"mmi.dlq", [[b"200", b"[1,null]"], [b"200", b"[2,null]"]], {}, 1000) == [b"200", b"[1,2,null]"]
    _, cut = merged(b"mmi.dlq", [[b"200", json.dumps([*range(100)]).encode()]], {}, 50)
    assert len(cut) <= 50
    assert json.loads(cut)[-1] is None
    assert json.loads(cut)[:-1] == [*range(len(json.loads(cut)) - 1)]
    for limit, rows in ((12, b"[1,2,3]"), (11, b"[1,2,null]")):  # each may be followed by null
        assert merged(b"mmi.dlq", [[b"200", b"[1,2]"], [b"200", b"[3]"]], {}, limit) == [b"200", rows]


def test_shards_without_an_answer_are_named_and_their_list_is_not_whole() -> None:
    rows = merged(b"mmi.services", [[b"200", b'[{"n":1}]']], {}, 1000, [0, 2])
    assert rows == [b"200", b'[{"n":1},null]', b"[0,2]"]
    assert silent_shards(rows) == [0, 2]
    assert merged(b"mmi.stats", [[b"200", b'{"a":1}']], {}, 1000, [3]) == [b"200", b'{"a":1}', b"[3]"]
    assert silence_in_words([3]) == "shard 3 does not answer: what it serves is missing"
    assert silence_in_words([0, 2]) == "shards 0, 2 do not answer: what they serve is missing"
    for nothing in ([], [b"200"], [b"200", b"[]"], [b"200", b"[]", b"no json"], [b"200", b"[]", b'["x"]'], [b"200", b"[]", b"{}"]):
        assert silent_shards(nothing) == []


def test_a_refusal_is_the_answer_and_garbage_is_left_out() -> None:
    assert merged(b"mmi.stats", [[b"200", b"{}"], [b"403"]], {}, 1000) == [b"403"]
    assert merged(b"mmi.services", [[b"200", b"no json"], [b"200"], [b"200", b"[1]"]], {}, 1000) == [b"200", b"[1]"]


def test_bodies_of_replies_in_all_dialects() -> None:
    number = b"\x01" * 8
    for dialect in DIALECTS:
        assert body_of(encode_message(client_final(dialect, b"mmi.stats", number, [b"200", b"{}"]))) == [b"200", b"{}"]
    assert body_of(encode_message([b"", b"MDPC01", b"mmi.stats", b"404"])) == [b"404"]
    assert body_of(encode_message(client_partial("0.2", b"x", number, [b"200"]))) is None
    assert body_of(encode_message(client_error(number, "BUSY", "x"))) is None
    for frames in ([b""], [b"", b"MDPC01", b"x"], [b"MDPC02"], [b"MDPC03"], [b"MDPW03\x06"]):
        assert body_of(encode_message(frames)) is None
