"""One page of all shards: numbers are added, series and rows follow each other.

Rules of specs/mdp.md: SHD-15.
"""

from __future__ import annotations

import json

import pytest

from core.daemon.metrics import SERIES_MAX, Family, Histogram, MetricsPage, Snapshot, Table
from core.processes.children import LINE_BYTES_MAX
from mdp.observe.broker_metrics import ERROR_COLUMNS
from mdp.shards.metrics_page import FrontPage, encode_page


def shard_page(queued: int, service: str, not_ready: str = "", event_log: str | None = "written") -> MetricsPage:
    took = Family("mdp_request_seconds", "histogram", "Time.", ("service",), [((service,), Histogram([0.1, float("inf")], [1, 2], 0.5))])
    done = Family("mdp_service_done", "counter", "Done.", ("service",), [((service,), 7)])
    failed = Family("mdp_requests_failed", "counter", "Failed.", ("code",), [(("TIMEOUT",), queued), ((f"OF {service}",), 1)])

    def families() -> list[Family]:
        return [Family.single("mdp_queued", "gauge", "Waiting.", queued), done, took, failed]

    rate = 0.1231 if service == "a" else 0.111
    table = Table("Services", ("service", "queued"), [[service, queued]], 1)
    figures = {"queued": queued, "event_log": event_log, "replies_per_s": rate}
    return MetricsPage("shard", lambda: not_ready, families, lambda: Snapshot(figures, (table,), {"replies": 3}))


def sent(page: MetricsPage) -> dict[str, object]:
    found: dict[str, object] = json.loads(json.dumps(encode_page(page)))
    return found


def test_two_shards_are_shown_as_one_broker() -> None:
    front = FrontPage(2, lambda: {"shards_ready": 2}, lambda: "")
    front.received(0, sent(shard_page(2, "a")))
    front.received(1, sent(shard_page(5, "b")))
    page = front.page("mdp broker")
    families = {family.name: family for family in page.families()}
    assert families["mdp_queued"].samples == [((), 7)]
    assert families["mdp_service_done"].samples == [(("a",), 7), (("b",), 7)]
    assert families["mdp_requests_failed"].samples == [(("TIMEOUT",), 7), (("OF a",), 1), (("OF b",), 1)]
    assert [labels for labels, _ in families["mdp_request_seconds"].samples] == [("a",), ("b",)]
    assert families["mdp_request_seconds"].samples[0][1] == Histogram([0.1, float("inf")], [1, 2], 0.5)
    assert families["mdp_shard_up"].samples == [(("0",), 1.0), (("1",), 1.0)]
    assert families["mdp_shards_ready"].samples == [((), 2)]
    shown = page.snapshot()
    assert shown.figures == {"shards": "2 of 2", "queued": 7, "event_log": "written", "replies_per_s": 0.234}
    assert shown.counters == {"shards_ready": 2, "replies": 6}
    assert shown.tables == (Table("Services", ["service", "queued"], [["a", 2], ["b", 5]], 2),)
    assert page.not_ready() == ""


def test_a_shard_that_is_away_is_shown_as_down() -> None:
    why = [""]
    front = FrontPage(2, dict, lambda: why[0])
    front.received(0, sent(shard_page(2, "a", "draining")))
    front.received(1, sent(shard_page(5, "b")))
    front.forget(1)
    page = front.page("mdp broker")
    assert {family.name: family.samples for family in page.families()}["mdp_shard_up"] == [(("0",), 1.0), (("1",), 0.0)]
    assert page.snapshot().figures["shards"] == "1 of 2"
    assert page.not_ready() == "draining"
    why[0] = "shards that do not serve: 1"
    assert page.not_ready() == why[0]


def test_counters_of_all_shards_do_not_fall_when_one_is_silent_or_is_started_again() -> None:
    """Counters that fall are taken for those of a new broker, all of which were counted just now."""
    front = FrontPage(2, dict, lambda: "")
    page = front.page("mdp broker")

    def failed() -> tuple[float, float]:
        samples = {family.name: family.samples for family in page.families()}
        return dict(samples["mdp_requests_failed"])["TIMEOUT",], dict(samples["mdp_queued"])[()]  # type: ignore[return-value]

    front.received(0, sent(shard_page(2, "a")))
    front.received(1, sent(shard_page(5, "b")))
    assert failed() == (7, 7)
    front.forget(1)  # silent
    assert failed() == (7, 2)
    front.received(1, sent(shard_page(6, "b")))
    assert failed() == (8, 8)
    front.forget(1)
    front.ended(1)
    assert failed() == (8, 2)
    front.received(1, sent(shard_page(1, "b")))
    assert failed() == (9, 3)
    front.ended(1)
    front.ended(1)  # before it had sent a page
    assert failed() == (9, 2)
    front.received(1, sent(shard_page(0, "b")))
    assert failed() == (9, 2)
    assert dict(next(family.samples for family in page.families() if family.name == "mdp_service_done")) == {("a",): 7, ("b",): 7}


def test_a_service_that_two_shards_know_has_one_series() -> None:
    front = FrontPage(2, dict, lambda: "")
    for shard in (0, 1):
        front.received(shard, sent(shard_page(2, "a")))
    families = {family.name: family.samples for family in front.page("mdp broker").families()}
    assert families["mdp_service_done"] == [(("a",), 14)]
    assert families["mdp_request_seconds"] == [(("a",), Histogram([0.1, float("inf")], [2, 4], 1.0))]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_trouble_of_one_shard_is_shown_beside_what_the_others_say(order: tuple[int, int]) -> None:
    front = FrontPage(3, dict, lambda: "")
    for shard, event_log in zip(order, ("disk full", "written"), strict=True):
        front.received(shard, sent(shard_page(2, "a", event_log=event_log)))
    front.received(2, sent(shard_page(0, "b", event_log="written")))
    assert set(str(front.page("mdp broker").snapshot().figures["event_log"]).split(", ")) == {"disk full", "written"}


def test_what_no_shard_can_say_is_shown_as_nothing() -> None:
    front = FrontPage(1, dict, lambda: "")
    front.received(0, sent(shard_page(0, "a", event_log=None)))
    assert front.page("mdp broker").snapshot().figures == {"shards": "1 of 1", "queued": 0, "event_log": None, "replies_per_s": 0.123}


def test_recent_errors_of_all_shards_are_in_the_order_of_their_time() -> None:
    """Their ages are those of the moment at which the shard sent them."""
    now = 100.0
    front = FrontPage(2, dict, lambda: "", lambda: now)

    def errors(*ages_s: float) -> dict[str, object]:
        rows: list[list[float | str | None]] = [[age_s, "failed", "a", "TIMEOUT", f"{age_s} ago"] for age_s in ages_s]
        return sent(MetricsPage("shard", str, list, lambda: Snapshot({}, (Table("Recent errors", ERROR_COLUMNS, rows),), {})))

    front.received(0, errors(0.1, 2.0))
    now = 101.0
    front.received(1, errors(0.5, 3.5))
    now = 101.25
    (table,) = front.page("mdp broker").snapshot().tables
    assert [row[0] for row in table.rows] == [0.8, 1.4, 3.2, 3.8]
    assert [row[4] for row in table.rows] == ["0.5 ago", "0.1 ago", "2.0 ago", "3.5 ago"]


def test_a_page_of_many_services_with_long_names_fits_a_message() -> None:
    names = [f"{number:04}".ljust(129, "é") for number in range(SERIES_MAX)]

    def families() -> list[Family]:
        done = [Family(f"mdp_{what}", "counter", "Done.", ("service",), [((name,), 7) for name in names]) for what in "abcdefgh"]
        return [Family.single("mdp_queued", "gauge", "Waiting.", 3), *done]

    page = sent(MetricsPage("shard", lambda: "", families, lambda: Snapshot({})))
    assert len(json.dumps(page)) < LINE_BYTES_MAX
    front = FrontPage(1, dict, lambda: "")
    front.received(0, page)
    samples = {family.name: len(family.samples) for family in front.page("mdp broker").families()}
    assert samples["mdp_queued"] == 1
    assert 100 < samples["mdp_a"] == samples["mdp_h"] < SERIES_MAX
