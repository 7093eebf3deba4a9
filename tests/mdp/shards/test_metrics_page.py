"""One page of all shards: numbers are added, series and rows follow each other.

Rules of specs/mdp.md: SHD-15.
"""

from __future__ import annotations

import json

from core.daemon.metrics import Family, Histogram, MetricsPage, Snapshot, Table
from mdp.shards.metrics_page import FrontPage, encode_page


def shard_page(queued: int, service: str, not_ready: str = "") -> MetricsPage:
    took = Family("mdp_request_seconds", "histogram", "Time.", ("service",), [((service,), Histogram([0.1, float("inf")], [1, 2], 0.5))])
    done = Family("mdp_service_done", "counter", "Done.", ("service",), [((service,), 7)])

    def families() -> list[Family]:
        return [Family.single("mdp_queued", "gauge", "Waiting.", queued), done, took]

    table = Table("Services", ("service", "queued"), [[service, queued]], 1)
    return MetricsPage(
        "shard", lambda: not_ready, families, lambda: Snapshot({"queued": queued, "event_log": "written"}, (table,), {"replies": 3})
    )


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
    assert [labels for labels, _ in families["mdp_request_seconds"].samples] == [("a",), ("b",)]
    assert families["mdp_request_seconds"].samples[0][1] == Histogram([0.1, float("inf")], [1, 2], 0.5)
    assert families["mdp_shard_up"].samples == [(("0",), 1.0), (("1",), 1.0)]
    assert families["mdp_shards_ready"].samples == [((), 2)]
    shown = page.snapshot()
    assert shown.figures == {"shards": "2 of 2", "queued": 7, "event_log": "written"}
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
