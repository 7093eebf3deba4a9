"""BEY-05: programs that look for each other connect anew, whatever back-off the system has, and after a refusal too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from core.rpc.connect_times import CONNECT_TIMEOUT_MS, REFUSED_IVL_MS, with_connect_times

ROOT = Path(__file__).parents[3]
CONNECTS = re.compile(r"(socket|_in|_router|_cloud|_state|dealer)\.connect\(")
PACKAGES = ("bstar", "freelance", "mdp", "peering", "pirate", "titanic")
# Sockets that connect within one machine.
DOCUMENTED = {"freelance/names/resolver.py"}  # in its docstring
NEAR = {"mdp/shards/shard_connection.py", "peering/simulation.py"}


def _connecting() -> dict[str, str]:
    texts = {file.relative_to(ROOT).as_posix(): file.read_text() for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    return {name: text for name, text in texts.items() if CONNECTS.search(text) and name not in DOCUMENTED}


def test_times_are_set_unless_they_are_given_or_a_proxy_may_need_longer() -> None:
    assert with_connect_times({"linger": 0}) == {"linger": 0, "connect_timeout": CONNECT_TIMEOUT_MS, "refused_ivl": REFUSED_IVL_MS}
    assert with_connect_times({"refused_ivl": 0})["refused_ivl"] == 0
    assert with_connect_times({"connect_timeout": 7})["connect_timeout"] == 7
    assert with_connect_times({"socks_proxy": b"127.0.0.1:1080"})["connect_timeout"] == 0


def test_the_programs_that_connect_are_found() -> None:
    assert {"bstar/net/lease_client.py", "bstar/net/state_channel.py", "mdp/session/connection.py", *NEAR} <= set(_connecting())


@pytest.mark.parametrize("name", sorted(set(_connecting()) - NEAR))
def test_a_program_that_connects_over_the_network_does_not_wait_for_the_system(name: str) -> None:
    assert any(call in _connecting()[name] for call in ("with_connect_times(", "self.new_socket("))
    assert "with_connect_times(" in (ROOT / "core/rpc/client_engine.py").read_text()  # has `new_socket`
