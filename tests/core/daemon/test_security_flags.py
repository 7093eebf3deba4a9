"""core.daemon.security_flags: flags to one security, and what reading the files again changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import core
from core.daemon.config import ConfigFile
from core.daemon.exit_codes import BadConfig
from core.daemon.security_flags import NAMES, SecurityFiles
from core.security.authenticator import curve_keypair
from core.zmtp import z85

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC, SECRET = (key.decode() for key in curve_keypair())
OTHER = curve_keypair()[0].decode()
WHERE = "tcp://10.0.0.1:5555"


def put(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def files(*, listens: bool = False, connects: bool = False, **values: Any) -> SecurityFiles:
    assert set(values) <= NAMES
    return SecurityFiles(values, listens=listens, connects=connects)


def key_for(security: object, endpoint: str) -> str:
    assert isinstance(security, core.Curve)
    options = core.Options()
    security.for_connecting(options, endpoint)
    return z85.encode(options.curve_serverkey).decode()


def test_no_flag_is_no_security() -> None:
    assert files(listens=True, connects=True).security is None


def test_keys_are_given_as_text_or_file_for_all_or_one(tmp_path: Path) -> None:
    security = files(connects=True, curve_server_keys=(f"{WHERE}={OTHER}", put(tmp_path / "server.pub", PUBLIC + "\n"))).security
    assert key_for(security, WHERE) == OTHER
    assert key_for(security, "tcp://10.0.0.2:5555") == PUBLIC
    security = files(connects=True, curve_server_keys=(f"{WHERE}={put(tmp_path / 'one.pub', OTHER)}",)).security
    assert key_for(security, WHERE) == OTHER
    with pytest.raises(core.InvalidOption):
        key_for(security, "tcp://10.0.0.2:5555")


@pytest.mark.parametrize("keys", [(PUBLIC, OTHER), (f"nonsense://x={PUBLIC}",)])
def test_keys_that_are_nobodys(keys: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        files(connects=True, curve_server_keys=keys)


def test_reading_again_changes_users_and_tells_of_what_needs_a_restart(tmp_path: Path) -> None:
    users, password = put(tmp_path / "users", "ann a\n"), put(tmp_path / "password", "mine\n")
    both = files(listens=True, connects=True, plain_users=users, plain_user="me", plain_password=password)
    assert both.prepare()() == []
    put(tmp_path / "users", "bob b\n")
    put(tmp_path / "password", "another\n")
    apply = both.prepare()
    assert isinstance(both.security, core.Plain)
    judge = both.security.authenticator
    assert judge is not None
    ann, bob = (core.ZapRequest(mechanism=b"PLAIN", credentials=(name, name[:1])) for name in (b"ann", b"bob"))
    assert [judge.verdict(ann).accepted, judge.verdict(bob).accepted] == [True, False]  # read, and not yet in force
    assert apply() == ["plain_password"]
    assert [judge.verdict(ann).accepted, judge.verdict(bob).accepted] == [False, True]


@pytest.mark.parametrize("broken", ["clients", "key"])
def test_a_file_that_cannot_be_used_any_more_changes_nothing(tmp_path: Path, broken: str) -> None:
    key, clients = put(tmp_path / "key", SECRET), put(tmp_path / "clients", f"{PUBLIC} ann\n")
    loaded = files(listens=True, curve_secret=key, curve_authorized=clients)
    before = loaded.security
    put(tmp_path / broken, "nonsense\n")
    with pytest.raises(BadConfig, match=broken) as caught:
        loaded.prepare()
    assert str(caught.value).endswith("the keys in it count as soon as they are there, without a reload") == (broken == "clients")
    assert loaded.security is before


def test_a_new_secret_key_needs_a_restart(tmp_path: Path) -> None:
    key = put(tmp_path / "key", SECRET)
    loaded = files(listens=True, curve_secret=key, curve_any_key=True)
    put(tmp_path / "key", curve_keypair()[1].decode())
    assert loaded.prepare()() == ["curve_secret"]


TOML = st.lists(
    st.sampled_from(
        ["[broker]", "[call]", "bind", "=", '"tcp://x:1"', "[", "]", "{", "}", "\n", "#", "\x1b[31m", "1e999", "'''", "a.b", ","]
    )
    | st.text(max_size=4),
    max_size=30,
).map(" ".join)


@given(TOML)
def test_whatever_a_configuration_file_is_it_has_values_or_is_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    """Faults X1 and X3."""
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_bytes(text.encode("utf-8", "replace"))
    complaint = ""
    try:
        values = ConfigFile(str(path)).table("broker", ["broker", "call"], ["bind"])
    except BadConfig as error:
        values, complaint = {}, error.message
    assert set(values) <= {"bind"}
    assert complaint.isprintable()
