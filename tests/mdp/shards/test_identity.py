"""Users of peers behind the front, and the name that only the front has.

Rules of specs/mdp.md: SHD-13.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from core.security.authenticator import curve_keypair
from mdp.shards.identity import FRONT, FrontIdentity
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_shards import Sharded
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

USERS = ("web", "worker", "root", "front-1")
KEYS = {user: curve_keypair() for user in (*USERS, "broker")}
RULES = {
    "allow": [
        {"who": ["web"], "call": ["*"]},
        {"who": ["worker", "front-1"], "serve": ["*"]},
        {"who": ["root"], "manage": ["*"]},
    ]
}


def own(mechanism: str) -> core.Plain | core.Curve:
    """Return the security of the front and of each shard."""
    if mechanism == "PLAIN":
        return core.Plain(users={user: f"{user}'s password" for user in USERS})
    return core.Curve(secret_key=KEYS["broker"][1], keys={KEYS[user][0]: user for user in USERS})


def of_user(mechanism: str, user: str) -> core.Plain | core.Curve:
    if mechanism == "PLAIN":
        return core.Plain(user=user, password=f"{user}'s password")
    return core.Curve(secret_key=KEYS[user][1], server_key=KEYS["broker"][0])


@pytest.mark.parametrize("dialect", ["auto", "0.3"], ids=["direct", "forwarded"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "CURVE"])
async def test_a_shard_knows_the_users_of_peers_that_are_forwarded_and_of_those_that_are_not(
    mechanism: str, dialect: str, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(PATIENCE_S),
        Sharded(f"ipc://{tmp_path}/b", security=lambda: own(mechanism), rules=mdp.Rules(RULES)) as sharded,
    ):
        name = sharded.names(1)[0]

        def client(user: str) -> mdp.Client:
            return mdp.Client(sharded.endpoint, dialect=dialect, timeout=PATIENCE_S, security=of_user(mechanism, user))

        worker = mdp.Worker(sharded.endpoint, name, handler=echo, dialect=dialect, security=of_user(mechanism, "worker"))
        async with worker, client("web") as web, client("root") as root, client("front-1") as other:
            assert await web.request(name, b"x", wait=True) == [b"x"]
            with pytest.raises(mdp.Forbidden):
                await other.request(name, b"x")
            _, found = await root.request("mmi.workers", b"")
            assert [row["user"] for row in json.loads(found)] == ["worker"]


def test_what_a_shard_is_given_is_in_no_environment_of_its_own_programs() -> None:
    identity, security = FrontIdentity.made_for(own("PLAIN"))
    environment = {FRONT: identity.encode(3), "HOME": "/"}
    found = FrontIdentity.found_in(environment)
    assert environment == {"HOME": "/"}
    assert security is not None
    assert (found.user, found.key, found.password, found.shard) == (identity.user, "", identity.password, 3)
    assert len(found.password) >= 32


@pytest.mark.parametrize("given", [{}, {FRONT: "null"}, {FRONT: "{"}, {FRONT: "7"}, {FRONT: '["front"]'}])
def test_a_broker_that_no_front_has_started_is_no_shard(given: dict[str, str]) -> None:
    found = FrontIdentity.found_in(given)
    assert (found.user, found.key, found.password, found.shard) == ("", "", "", None)
    assert given == {}


def test_each_front_has_a_name_and_a_secret_of_its_own() -> None:
    plain = [FrontIdentity.made_for(own("PLAIN"))[0] for _ in range(2)]
    curve = [FrontIdentity.made_for(own("CURVE"))[0] for _ in range(2)]
    assert len({one.user for one in (*plain, *curve)}) == 4
    assert plain[0].password != plain[1].password
    assert curve[0].key != curve[1].key
    assert [FrontIdentity.made_for(None)[0].user, FrontIdentity.made_for(None)[1]] == ["", None]


def test_a_front_admits_itself_only_where_peers_are_checked() -> None:
    identity, _ = FrontIdentity.made_for(own("PLAIN"))
    unchecked = core.Plain(user="web", password="secret")
    identity.admit(unchecked)
    identity.admit(None)
    assert unchecked.authenticator is None
    checked = core.Plain(users={})
    FrontIdentity().admit(checked)
    assert checked.lasting_secret is None  # it has no users
    identity.admit(checked)
    assert checked.lasting_secret is not None
