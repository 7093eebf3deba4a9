"""Options from the configuration of a session; no Java."""

from __future__ import annotations

from typing import Any

import pytest

from mdp.spark.flow.session_options import read_bounds, read_broker, settings_of
from mdp.spark.rows.options import Bounds


class Session:
    """A session with a configuration."""

    def __init__(self, **settings: str) -> None:
        self._settings = {f"spark.mdp.{name}": value for name, value in settings.items()}
        self.conf: Any = self

    def get(self, name: str, default: str | None = None) -> str | None:
        return self._settings.get(name, default)

    @property
    def getAll(self) -> dict[str, str]:
        return {"spark.app.name": "tests", **self._settings}


def bounds(options: dict[str, Any], **settings: str) -> Bounds:
    return read_bounds(settings_of(Session(**settings)), options)  # type: ignore[arg-type]  # all that is asked of a session


def test_own_options_go_before_those_of_the_session_and_these_before_defaults() -> None:
    assert bounds({}) == Bounds()
    settings = {"window": "17", "timeout": "1.5", "ordered": "FALSE", "batch_ms": "20", "key_scope": "service"}
    assert bounds({"timeout": 2.0}, **settings) == Bounds(window=17, timeout=2.0, ordered=False, batch_ms=20.0, key_scope="service")


@pytest.mark.parametrize(("name", "text"), [("window", "many"), ("ordered", "perhaps"), ("timeout", "")])
def test_a_setting_that_cannot_be_read_is_named(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"spark.mdp.{name} is '{text}'"):
        bounds({}, **{name: text})


def test_a_setting_that_is_unknown_is_named() -> None:
    everything = {"broker": "tcp://a:1", "via": "titanic", "names": "tcp://n:1", "names_environment": "test", "window": "9"}
    assert bounds({}, **everything).requests == 9
    with pytest.raises(ValueError, match=r"there is no setting spark.mdp.timout; there are spark.mdp.attempts, .*spark.mdp.timeout, "):
        bounds({"timeout": 3}, timout="7")


def test_the_broker_is_that_of_the_session() -> None:
    session: Any = Session(broker="tcp://a:1, tcp://b:2")
    assert read_broker(settings_of(session)) == ("tcp://a:1", "tcp://b:2")
    nothing: Any = Session()
    with pytest.raises(ValueError, match=r"neither as broker= nor as spark.mdp.broker"):
        read_broker(settings_of(nothing))
