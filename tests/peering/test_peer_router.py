from __future__ import annotations

import pytest

from peering.errors import BadName, DuplicateName, UnknownPeer
from peering.peer_router import CAPACITY_MAX, PeerRouter, check_name

ECHO = b"echo"


def router(*peers: bytes, hops_max: int = 1) -> PeerRouter:
    made = PeerRouter(b"DC1", hops_max=hops_max)
    for peer in peers:
        made.add(peer)
        made.joined(peer)
    return made


@pytest.mark.parametrize("name", [b"", b"\x00abc", b"x" * 256])
def test_peer_06_names_that_generated_ids_could_be_are_refused(name: bytes) -> None:
    with pytest.raises(BadName):
        check_name(name)
    with pytest.raises(BadName):
        PeerRouter(name)
    with pytest.raises(BadName):
        router().add(name)


def test_peer_06_a_name_has_up_to_255_bytes() -> None:
    assert check_name(b"x" * 255) == b"x" * 255


@pytest.mark.parametrize("name", [b"DC1", b"DC2"])
def test_n8_a_name_is_that_of_one_broker(name: bytes) -> None:
    with pytest.raises(DuplicateName) as caught:
        router(b"DC2").add(name)
    assert caught.value.name == name


def test_peers_are_bounded() -> None:
    full = PeerRouter(b"DC1", peers_max=1)
    full.add(b"DC2")
    with pytest.raises(ValueError, match="at most 1 peers are allowed"):
        full.add(b"DC3")


@pytest.mark.parametrize("numbers", [{"state_s": 0}, {"missed_max": 0}, {"hops_max": 0}, {"peers_max": 0}])
def test_numbers_are_positive(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        PeerRouter(b"DC1", **numbers)


def test_peer_08_capacity_is_kept_for_each_peer_and_ends_after_three_intervals() -> None:
    one = router(b"DC2", b"DC3")
    one.heard(b"DC2", {ECHO: 2}, 10.0)
    one.heard(b"DC3", {ECHO: 5}, 11.0)
    assert [one.capacity(name, ECHO, 12.9) for name in (b"DC2", b"DC3")] == [2, 5]
    assert [one.capacity(name, ECHO, 13.0) for name in (b"DC2", b"DC3")] == [0, 5]
    assert one.deadline(12.0) == 13.0
    assert one.deadline(13.0) == 14.0
    assert one.deadline(14.0) is None
    assert [one.capacity(name, ECHO, 14.0) for name in (b"DC2", b"DC3")] == [0, 0]


def test_peer_08_the_smallest_numbers_are_valid() -> None:
    one = PeerRouter(b"DC1", state_s=0.5, missed_max=1, hops_max=1, peers_max=1)
    one.add(b"DC2")
    one.joined(b"DC2")
    one.heard(b"DC2", {ECHO: 1}, 0.0)
    assert [one.capacity(b"DC2", ECHO, now) for now in (0.4, 0.5)] == [1, 0]
    with pytest.raises(ValueError, match="positive"):
        PeerRouter(b"DC1", state_s=-1.0)


def test_peer_08_a_peer_with_nothing_to_lend_has_no_capacity_that_becomes_too_old() -> None:
    one = router(b"DC2")
    one.heard(b"DC2", {ECHO: 0}, 0.0)
    assert one.deadline(0.0) is None
    one.heard(b"DC2", {ECHO: 1}, 0.0)
    assert one.deadline(0.0) == 3.0
    one.exhausted(b"DC2", ECHO)
    assert one.deadline(0.0) is None


def test_peer_08_capacity_ends_with_the_connection() -> None:
    one = router(b"DC2")
    one.heard(b"DC2", {ECHO: 2}, 0.0)
    one.lost(b"DC2")
    one.heard(b"DC2", {ECHO: 2}, 0.0)
    assert one.capacity(b"DC2", ECHO, 0.0) == 0  # nothing can be sent to it
    one.lost(b"DC2")
    one.joined(b"DC2")
    assert one.capacity(b"DC2", ECHO, 0.0) == 0


def test_capacity_of_a_peer_that_cannot_be_sent_anything_does_not_count() -> None:
    one = PeerRouter(b"DC1")
    one.add(b"DC2")
    assert one.heard(b"DC2", {ECHO: 2}, 0.0)
    assert one.capacity(b"DC2", ECHO, 0.0) == 0
    one.joined(b"DC2")
    assert one.capacity(b"DC2", ECHO, 0.0) == 2


def test_peer_09_what_is_lent_lowers_what_is_remembered_until_the_next_state() -> None:
    one = router(b"DC2")
    one.heard(b"DC2", {ECHO: 2, b"sum": 1}, 0.0)
    one.lend(b"DC2", ECHO)
    assert one.capacity(b"DC2", ECHO, 0.0) == 1
    assert one.capacity(b"DC2", b"sum", 0.0) == 1
    one.lend(b"DC2", ECHO)
    one.lend(b"DC2", ECHO)
    assert one.capacity(b"DC2", ECHO, 0.0) == 0
    one.heard(b"DC2", {ECHO: 2}, 0.5)
    assert one.capacity(b"DC2", ECHO, 0.5) == 2
    assert one.capacity(b"DC2", b"sum", 0.5) == 0


def test_peer_10_of_the_peers_with_capacity_the_one_not_asked_for_longest_is_chosen() -> None:
    one = router(b"DC2", b"DC3", b"DC4")
    for name, count in ((b"DC2", 2), (b"DC3", 0), (b"DC4", 2)):
        one.heard(name, {ECHO: count}, 0.0)
    asked = []
    while (chosen := one.choose(ECHO, 0.0)) is not None:
        one.lend(chosen, ECHO)
        asked.append(chosen)
    assert asked == [b"DC2", b"DC4", b"DC2", b"DC4"]


def test_refused_and_exhausted_peers_are_passed_over() -> None:
    one = router(b"DC2", b"DC3")
    for name in (b"DC2", b"DC3"):
        one.heard(name, {ECHO: 1}, 0.0)
    assert one.choose(ECHO, 0.0, refuse=[b"DC2"]) == b"DC3"
    one.exhausted(b"DC3", ECHO)
    assert one.choose(ECHO, 0.0, refuse=[b"DC2"]) is None


def test_a_peer_that_has_answered_is_free_again_unless_nothing_is_known_of_it() -> None:
    one = router(b"DC2", b"DC3")
    one.heard(b"DC2", {ECHO: 1}, 0.0)
    one.lend(b"DC2", ECHO)
    for name in (b"DC2", b"DC3", b"DC9"):
        one.returned(name, ECHO)
    assert [one.capacity(name, ECHO, 0.0) for name in (b"DC2", b"DC3")] == [1, 0]
    one.lost(b"DC2")
    one.joined(b"DC2")
    one.returned(b"DC2", ECHO)
    one.heard(b"DC2", {}, 0.0)
    one.returned(b"DC2", ECHO)
    one.returned(b"DC2", ECHO)
    assert one.capacity(b"DC2", ECHO, 0.0) == 2


def test_a_peer_whose_connection_was_lost_is_free_only_after_its_next_state() -> None:
    one = router(b"DC2")
    one.heard(b"DC2", {ECHO: 1}, 0.0)
    one.lost(b"DC2")
    one.joined(b"DC2")
    one.returned(b"DC2", ECHO)
    assert one.capacity(b"DC2", ECHO, 0.0) == 0
    assert one.deadline(0.0) is None


def test_what_a_peer_claims_is_believed_up_to_a_limit() -> None:
    one = router(b"DC2")
    one.heard(b"DC2", {ECHO: 10**9}, 0.0)
    assert one.capacity(b"DC2", ECHO, 0.0) == CAPACITY_MAX
    one.returned(b"DC2", ECHO)
    assert one.capacity(b"DC2", ECHO, 0.0) == CAPACITY_MAX


def test_strangers_change_nothing() -> None:
    one = router(b"DC2")
    assert not one.heard(b"DC9", {ECHO: 1}, 0.0)
    for verb in (one.joined, one.lost):
        verb(b"DC9")
    one.lend(b"DC9", ECHO)
    one.exhausted(b"DC9", ECHO)
    assert one.choose(ECHO, 0.0) is None
    assert [peer.name for peer in one] == [b"DC2"]
    with pytest.raises(UnknownPeer):
        one.remove(b"DC9")


def test_bey_15_a_peer_is_removed_with_what_it_said() -> None:
    one = router(b"DC2")
    one.heard(b"DC2", {ECHO: 1}, 0.0)
    one.remove(b"DC2")
    assert b"DC2" not in one
    assert len(one) == 0
    assert one.choose(ECHO, 0.0) is None
    one.add(b"DC2")
    assert b"DC2" in one
    assert one.capacity(b"DC2", ECHO, 0.0) == 0


@pytest.mark.parametrize(
    ("hops_max", "via", "refused"),
    [
        (1, [], frozenset()),
        (1, [b"DC2"], None),  # PEER-03
        (2, [b"DC2"], frozenset([b"DC2"])),
        (2, [b"DC2", b"DC3"], None),
        (9, [b"DC2", b"DC1"], None),  # it has been here
    ],
)
def test_n8_hops_are_counted_and_loops_refused(hops_max: int, via: list[bytes], refused: frozenset[bytes] | None) -> None:
    assert router(b"DC2", hops_max=hops_max).passed(via) == refused
