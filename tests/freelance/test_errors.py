"""freelance.errors: numbers are fields, and the text has them."""

from __future__ import annotations

import pytest

import core
from freelance.errors import CatalogFull, ClientClosed, FreelanceError, NamesRefused, NoServer, Overrun, TooLarge


@pytest.mark.parametrize(
    ("what", "size", "limit", "named"),
    [
        ("frames of a message", 12, 10, ("frames of the request", 10, 8)),
        ("bytes of a message", 120, 100, ("bytes of the request", 117, 97)),
        ("bytes of a frame", 120, 100, ("bytes of a frame of the request", 120, 100)),
        ("frames of a message", 3, 1, ("frames of the request", 1, 0)),
    ],
)
def test_the_limit_of_a_request_is_that_of_a_message_without_its_envelope(
    what: str, size: int, limit: int, named: tuple[str, int, int]
) -> None:
    error = TooLarge.of(core.MessageTooLarge(what, size, limit), parts=2, octets=3)
    assert (error.what, error.size, error.limit) == named
    assert isinstance(error, FreelanceError)


def test_numbers_are_fields_and_in_the_text() -> None:
    overrun, full, refused = Overrun(5), CatalogFull("names", 7), NamesRefused(507, "7 names are kept at most")
    assert overrun.outstanding_max == 5
    assert str(overrun) == "5 requests are outstanding already; wait for one of them, or raise outstanding_max"
    assert (full.what, full.limit, str(full)) == ("names", 7, "7 names are kept at most")
    assert (refused.code, refused.reason) == (507, "7 names are kept at most")
    assert str(refused) == "the name server refused: 507 7 names are kept at most"
    gone = NoServer(attempts=2, after_s=1.5)
    assert str(gone) == "no server answered within 1.500 s; the request was sent 2 times"
    assert str(ClientClosed()) == "the client was closed"
