"""mdp.access.audit_log: a line for each refusal, at a bounded rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdp.access.audit_log import LINES_PER_S, AuditLog
from mdp.broker.authorization import Refusal

if TYPE_CHECKING:
    import pytest

REFUSAL = Refusal(b"\x00\x01", "guest", "call", b"echo")


def test_each_refusal_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog()
    audit.refused(REFUSAL, 1.0)
    audit.refused(REFUSAL._replace(user=None), 1.0)
    assert [vars(record)["user"] for record in caplog.records] == ["guest", None]
    assert {(vars(record)["peer"], vars(record)["verb"], vars(record)["service"]) for record in caplog.records} == {
        ("0001", "call", "echo")
    }
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_ballot_that_is_not_believed_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    AuditLog().ballot_named(b"\x00\x01", "guest", "7.1", "4.2", 1.0)
    (record,) = map(vars, caplog.records)
    assert {name: record[name] for name in ("peer", "user", "named", "ours")} == {
        "peer": "0001",
        "user": "guest",
        "named": "7.1",
        "ours": "4.2",
    }


def test_a_flood_writes_so_many_lines_a_second_and_says_how_many_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Fault X3: a peer decides how often it is refused, not how much is written."""
    audit = AuditLog()
    for second in range(3):
        for number in range(5 * LINES_PER_S):
            audit.refused(REFUSAL, second + number / (5 * LINES_PER_S))
    assert len(caplog.records) == 3 * LINES_PER_S
    told = [vars(record).get("left_out", 0) for record in caplog.records]
    assert sum(told) + audit.left_out == 3 * 4 * LINES_PER_S
