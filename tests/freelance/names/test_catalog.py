"""freelance.names.catalog: times to live, stamps, tombstones, limits; and that merging needs no order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freelance.errors import CatalogFull, MalformedMessage
from freelance.names.catalog import STAMP_AHEAD_MS_MAX, TOMBSTONE_S, TTL_MS_MAX, Catalog, CatalogLimits, Entry, Key, digest

SHOP = Key("test", "shop", "connect", "tcp://a:1")
FIRST = Key("", "", "", "")


def other(endpoint: str, role: str = "connect", name: str = "shop", environment: str = "test") -> Key:
    return Key(environment, name, role, endpoint)


def listed(catalog: Catalog, now: float = 0.0) -> list[str]:
    return [entry.key.endpoint for entry in catalog.listing("test", "shop", now)]


def put(catalog: Catalog, *keys: Key, ttl_ms: int = 0, now: float = 0.0) -> None:
    for key in keys:
        catalog.put(key, ttl_ms, wall_ms=1000, now=now)


def test_nam_01_environments_are_separate_and_roles_are_distinguished() -> None:
    catalog = Catalog("a")
    put(catalog, other("tcp://b:1"), SHOP, other("tcp://*:1", "bind"), other("tcp://x:1", environment="production"))
    found = [(entry.key.role, entry.key.endpoint, entry.ttl_ms) for entry in catalog.listing("test", "shop", 0)]
    assert found == [("bind", "tcp://*:1", 0), ("connect", "tcp://a:1", 0), ("connect", "tcp://b:1", 0)]
    assert [entry.key.endpoint for entry in catalog.listing("production", "shop", 0)] == ["tcp://x:1"]
    assert catalog.names("test", "", 10, 0) == ["shop"]
    assert catalog.names("test", "shop", 10, 0) == []


def test_nam_02_an_endpoint_ends_with_its_time_to_live_and_a_refresh_puts_that_off() -> None:
    catalog = Catalog("a")
    put(catalog, SHOP, ttl_ms=1000)
    assert catalog.listing("test", "shop", 0.4)[0].ttl_ms == 600
    put(catalog, SHOP, ttl_ms=1000, now=0.9)
    assert catalog.tick(1.5) == set()
    assert listed(catalog, 1.5) == ["tcp://a:1"]
    assert catalog.deadline() == 1.9
    assert listed(catalog, 1.9) == []
    assert catalog.tick(1.9) == {("test", "shop")}
    assert len(catalog) == 0
    assert catalog.state() == Catalog("b").state()
    assert catalog.deadline() is None


def test_nam_02_the_time_that_is_left_has_whole_milliseconds_and_none_is_the_end() -> None:
    catalog = Catalog("a")
    put(catalog, SHOP, ttl_ms=TTL_MS_MAX)
    assert [entry.ttl_ms for entry in catalog.listing("test", "shop", 0)] == [TTL_MS_MAX]
    put(catalog, SHOP, ttl_ms=1000)
    assert [entry.ttl_ms for entry in catalog.listing("test", "shop", 0.9985)] == [1]
    assert catalog.listing("test", "shop", 0.9995) == []


def test_nam_02_without_a_time_to_live_it_stays() -> None:
    catalog = Catalog("a")
    put(catalog, SHOP, ttl_ms=1000)
    put(catalog, SHOP)
    assert catalog.deadline() is None
    assert catalog.tick(1e9) == set()
    assert listed(catalog, 1e9) == ["tcp://a:1"]


def test_nam_03_what_is_withdrawn_is_gone_and_a_late_copy_of_it_changes_nothing() -> None:
    catalog = Catalog("a")
    entry = catalog.put(SHOP, 0, wall_ms=1000, now=0)
    gone = catalog.withdraw(SHOP, wall_ms=1000, now=1)
    assert gone is not None
    assert (gone.alive, gone.stamp) == (False, (1001, "a"))
    assert catalog.withdraw(SHOP, wall_ms=1000, now=1) is None
    assert listed(catalog, 1) == []
    assert not catalog.merge(entry, wall_ms=1000, now=2)
    assert listed(catalog, 2) == []
    assert catalog.tick(1 + TOMBSTONE_S) == set(), "a tombstone that ends changes no listing"
    assert len(catalog) == 0


def test_a_tombstone_of_what_was_to_end_anyway_ends_soon_after() -> None:
    catalog = Catalog("a")
    put(catalog, SHOP, ttl_ms=30_000)
    gone = catalog.withdraw(SHOP, wall_ms=1000, now=10)
    assert gone is not None
    assert gone.ttl_ms == 80_000


def test_a_tombstone_of_what_has_ended_already_outlasts_a_message_on_its_way() -> None:
    catalog = Catalog("a")
    put(catalog, SHOP, ttl_ms=1000)
    gone = catalog.withdraw(SHOP, wall_ms=1000, now=2)
    assert gone is not None
    assert gone.ttl_ms == 60_000


def test_nam_03_numbers_of_stamps_begin_with_one_and_an_empty_catalog_is_zeros() -> None:
    catalog = Catalog("a")
    assert catalog.state() == b"0" * 32
    assert catalog.put(SHOP, 0, wall_ms=0, now=0).stamp == (1, "a")
    assert Catalog("b").merge(Entry(SHOP, (1, "a"), True, 0), wall_ms=0, now=0)


def test_nam_03_the_later_stamp_wins_also_over_a_clock_that_runs_ahead() -> None:
    ahead, behind = Catalog("ahead"), Catalog("behind")
    entry = ahead.put(SHOP, 0, wall_ms=500_000, now=0)
    assert behind.merge(entry, wall_ms=1000, now=0)
    gone = behind.withdraw(SHOP, wall_ms=1000, now=0)
    assert gone is not None
    assert gone.stamp == (500_001, "behind")
    assert ahead.merge(gone, wall_ms=500_000, now=0)
    assert listed(ahead) == []
    assert ahead.state() == behind.state()


def test_limits_are_kept_and_named() -> None:
    catalog = Catalog("a", CatalogLimits(names_max=1, endpoints_max=2))
    put(catalog, SHOP, other("tcp://b:1"), SHOP)
    with pytest.raises(CatalogFull) as caught:
        put(catalog, other("tcp://c:1"))
    assert (caught.value.what, caught.value.limit) == ("endpoints of one name", 2)
    with pytest.raises(CatalogFull) as caught:
        put(catalog, other("tcp://c:1", name="bank"))
    assert (caught.value.what, caught.value.limit) == ("names", 1)
    assert listed(catalog) == ["tcp://a:1", "tcp://b:1"]


@pytest.mark.parametrize(
    "key",
    [
        other("", name="shop"),
        other("tcp://a:1", role="client"),
        other("tcp://a:1", name=""),
        other("tcp://a:1", name="a b"),
        other("tcp://a:1", name="a" * 129),
        other("tcp://a:1", environment="ü"),
        other("tcp://a:\n1"),
        other("tcp://" + "a" * 507),
        other("\ud800"),
    ],
)
def test_what_does_not_fit_in_a_line_is_refused(key: Key) -> None:
    with pytest.raises(MalformedMessage):
        Catalog("a").put(key, 0, wall_ms=1, now=0)
    with pytest.raises(MalformedMessage):
        Catalog("a").merge(Entry(key, (1, "b"), True, 0), wall_ms=1, now=0)


def test_the_longest_endpoint_fits() -> None:
    longest = other("tcp://" + "a" * 506)
    assert Catalog("a").put(longest, 0, wall_ms=1, now=0).key == longest


@pytest.mark.parametrize(("number", "ttl_ms"), [(0, 0), (1000 + STAMP_AHEAD_MS_MAX + 1, 0), (1, -1), (1, TTL_MS_MAX + 1)])
def test_records_that_cannot_be_right_are_refused(number: int, ttl_ms: int) -> None:
    with pytest.raises(MalformedMessage):
        Catalog("a").merge(Entry(SHOP, (number, "b"), True, ttl_ms), wall_ms=1000, now=0)
    for refused in (-1, TTL_MS_MAX + 1):
        with pytest.raises(MalformedMessage):
            Catalog("a").put(SHOP, refused, wall_ms=1000, now=0)


def test_the_longest_time_to_live_and_the_stamp_farthest_ahead_are_taken() -> None:
    assert Catalog("a").put(SHOP, TTL_MS_MAX, wall_ms=1000, now=0).ttl_ms == TTL_MS_MAX
    assert Catalog("a").merge(Entry(SHOP, (1000 + STAMP_AHEAD_MS_MAX, "b"), True, TTL_MS_MAX), wall_ms=1000, now=0)


def test_dump_is_paged_in_the_order_of_keys() -> None:
    catalog = Catalog("a")
    keys = [other(f"tcp://{n:03}:1", name=f"shop-{n % 7}") for n in range(100)]
    put(catalog, *keys)
    catalog.withdraw(keys[5], wall_ms=1, now=0)
    found: list[Key] = []
    while page := catalog.dump(found[-1] if found else FIRST, 9, 0):
        found += [entry.key for entry in page]
    assert found == sorted(keys)


def test_the_digest_is_of_the_endpoints_and_not_of_their_times() -> None:
    one, two = Catalog("a"), Catalog("b")
    put(one, SHOP, ttl_ms=1000)
    put(two, SHOP, now=7)
    assert digest(one.listing("test", "shop", 0.5)) == digest(two.listing("test", "shop", 9))
    assert digest(one.listing("test", "shop", 2)) != digest(two.listing("test", "shop", 9))
    assert one.state() != two.state()


def test_nam_06_servers_of_every_version_have_the_same_digests() -> None:
    catalog = Catalog("a")
    put(catalog, SHOP)
    assert digest(catalog.listing("test", "shop", 0)) == b"9996a215e267bd3048fc3d6f8f009cc2"
    assert catalog.state() == b"6a3d278aa9f8f29bd4885887a3ad1e12"
    put(catalog, SHOP)
    assert catalog.state() != b"6a3d278aa9f8f29bd4885887a3ad1e12", "its stamp is another one"


CHANGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["tcp://a:1", "tcp://b:1", "tcp://c:1"]), st.booleans(), st.integers(1, 50)),
    max_size=12,
)


@given(changes=CHANGES, data=st.data())
def test_nam_03_servers_that_have_heard_the_same_know_the_same(changes: list[tuple[str, str, bool, int]], data: st.DataObject) -> None:
    servers = {name: Catalog(name) for name in "abc"}
    entries: list[Entry] = []
    for where, endpoint, alive, wall_ms in changes:
        change = servers[where].put if alive else None
        entry = (
            change(other(endpoint), 0, wall_ms=wall_ms, now=0)
            if change is not None
            else servers[where].withdraw(other(endpoint), wall_ms=wall_ms, now=0)
        )
        if entry is not None:
            entries.append(entry)
    for catalog in servers.values():
        for entry in data.draw(st.permutations(entries + entries)):
            catalog.merge(entry, wall_ms=100, now=0)
    assert len({catalog.state() for catalog in servers.values()}) == 1
    assert len({tuple(listed(catalog)) for catalog in servers.values()}) == 1
