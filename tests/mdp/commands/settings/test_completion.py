"""Completion in a shell: names of services come from the broker, and nothing from one that is away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scenes.programs import Programs


def completed(programs: Programs, *words: str) -> list[str]:
    """Return what bash would propose for the last word."""
    line = " ".join(("mdp", *words))
    done = programs.run("mdp", _MDP_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words)))
    assert (done.code, done.err) == (0, "")
    return [entry.partition(",")[2] for entry in done.lines if entry]


@pytest.fixture
def broker(programs: Programs) -> str:
    endpoint = "ipc://completion.sock"
    programs.start("mdp", "broker", "--bind", endpoint).said("broker serves")
    for service in ("echo", "sleep"):
        programs.start("mdp", "worker", "--broker", endpoint, "--service", service).said("registered")
    return endpoint


def test_services_of_the_broker_are_proposed(programs: Programs, broker: str) -> None:
    """A shell waits half a second for them.

    A busy machine may pause for longer: asked again, they are there.
    """
    for words, names in ((("workers", ""), ["echo", "sleep"]), (("call", "e"), ["echo"]), (("bench", "--service", "sl"), ["sleep"])):
        while (found := completed(programs, words[0], "--broker", broker, *words[1:])) != names:
            assert set(found) < set(names)


def test_a_broker_that_is_away_proposes_nothing(programs: Programs) -> None:
    assert completed(programs, "call", "--broker", "ipc://nowhere.sock", "e") == []
