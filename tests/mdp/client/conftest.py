"""Ways in which the machine of a client gets its messages."""

from __future__ import annotations

import pytest

from mdp.client.requester import Requester
from tests.scenes.mdp_requester import as_octets


@pytest.fixture(params=["frames", "octets"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test twice: messages come decoded, and as octets the machine looks at first, as on a socket."""
    if request.param == "octets":
        monkeypatch.setattr(Requester, "receive", as_octets)
