"""CURVE and PLAIN on the command line, the same flags for every command that opens a socket.

    @group.command()
    @security_options(listens=True)
    @daemon_options
    def serve(security: Secured | None, settings: DaemonSettings) -> None:
        async with Something(security=security) as thing: ...

Secrets are in files, never in the value of a flag, so that neither `ps` nor `--show-config` shows them. The function gets one object for
all its sockets (`core.security.credentials`), or None when no flag is given. In a daemon SIGHUP reads the files again (`SecurityFiles`).
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Final

import click

from core.address import parse_connect
from core.daemon.exit_codes import BadConfig
from core.daemon.option_fields import options
from core.errors import InvalidEndpoint
from core.security.credentials import Curve, Plain
from core.security.curve_keys import parse_key
from core.security.key_files import KeyFileError, check_authorized_keys, read_key, read_password, read_secret_key, read_users

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.daemon.option_fields import Decorator
    from core.security.credentials import Secured

_META: Final = "core.daemon.security_flags"
_FILE: Final = click.Path(dir_okay=False)

_FLAGS: Final = {
    "curve_secret": click.option("--curve-secret", type=_FILE, help="CURVE: file with the own secret key, readable by its owner only."),
    "curve_server_keys": click.option(
        "--curve-server-key",
        "curve_server_keys",
        multiple=True,
        metavar="[ENDPOINT=]KEY",
        help="CURVE: public key of the server to connect to, or a file with it; for one endpoint if named. May be repeated.",
    ),
    "curve_authorized": click.option(
        "--curve-authorized", type=_FILE, help="CURVE: file of the clients that may connect, one per line: public key, name."
    ),
    "curve_any_key": click.option("--curve-any-key", is_flag=True, help="CURVE: accept every client that knows the public key."),
    "plain_user": click.option("--plain-user", metavar="NAME", help="PLAIN: own name at the servers to connect to."),
    "plain_password": click.option("--plain-password", type=_FILE, help="PLAIN: file with the own password, readable by its owner only."),
    "plain_users": click.option(
        "--plain-users", type=_FILE, help="PLAIN: file of the clients that may connect, one per line: name, password."
    ),
}
NAMES: Final = frozenset(_FLAGS)
_OF_LISTENING: Final = frozenset(("curve_authorized", "curve_any_key", "plain_users"))
_OF_CONNECTING: Final = frozenset(("curve_server_keys", "plain_user", "plain_password"))


def security_options(*, listens: bool = False, connects: bool = False, required: bool = True) -> Decorator:
    """Add the flags of a command that binds (`listens`) or connects; the decorated function gets `security`.

    With `required` it certainly does both, so that incomplete security is refused at the start.
    """
    names = [name for name in _FLAGS if (listens or name not in _OF_LISTENING) and (connects or name not in _OF_CONNECTING)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*args: Any, **kwargs: Any) -> Any:
            files = SecurityFiles({name: kwargs.pop(name) for name in names}, listens=listens, connects=connects, required=required)
            click.get_current_context().meta[_META] = files
            return function(*args, security=files.security, **kwargs)

        return options(*(_FLAGS[name] for name in names))(command)

    return decorate


def security_files(context: click.Context) -> SecurityFiles | None:
    files: SecurityFiles | None = context.meta.get(_META)
    return files


class SecurityFiles:
    """Security of a command, and its files; raises click.UsageError or BadConfig."""

    def __init__(self, values: Mapping[str, Any], *, listens: bool, connects: bool, required: bool = True) -> None:
        self._values = dict(values)  # of the flags, by parameter name
        self._listens, self._connects, self._required = listens, connects, required
        curve = [name for name, value in values.items() if name.startswith("curve_") and value]
        plain = [name for name, value in values.items() if name.startswith("plain_") and value]
        if curve and plain:
            raise click.UsageError(f"CURVE or PLAIN? {_flag(curve[0])} and {_flag(plain[0])} do not go together")
        self._own: bytes | str | None = None  # own key or password; a change needs a restart
        self._users: dict[str, str] | None = None
        self.security: Secured | None = None  # of its sockets, or None
        try:
            if curve:
                self.security = self._curve()
            elif plain:
                self.security = self._plain()
        except KeyFileError as error:
            raise BadConfig(str(error)) from None

    def _curve(self) -> Curve:
        secret, authorized, any_key = (self._values.get(name) for name in ("curve_secret", "curve_authorized", "curve_any_key"))
        if self._listens and (authorized or any_key) and not secret:
            raise click.UsageError("a CURVE server needs a key: give --curve-secret FILE; zmtp keygen --secret-file FILE makes one")
        if self._listens and self._required and not (authorized or any_key):
            raise click.UsageError("a CURVE server needs its clients: give --curve-authorized FILE, or --curve-any-key")
        if self._connects and self._required and not self._values.get("curve_server_keys"):
            raise click.UsageError("a CURVE client needs its server: give --curve-server-key KEY, the public key of the server")
        if authorized:
            check_authorized_keys(authorized)
        self._own = own = read_secret_key(secret) if secret else None
        key, keys = _server_keys(self._values.get("curve_server_keys") or ())
        return Curve(secret_key=own, server_key=key, server_keys=keys, authorized_keys=authorized, any_key=bool(any_key))

    def _plain(self) -> Plain:
        user, password, users = (self._values.get(name) for name in ("plain_user", "plain_password", "plain_users"))
        if (user is None) != (password is None):
            raise click.UsageError("PLAIN needs both --plain-user NAME and --plain-password FILE")
        if self._connects and self._required and user is None:
            raise click.UsageError("a PLAIN client needs --plain-user NAME and --plain-password FILE")
        if self._listens and self._required and users is None:
            raise click.UsageError("a PLAIN server needs --plain-users FILE")
        self._own = own = read_password(password) if password else None
        self._users = read_users(users) if users else None
        return Plain(user=user, password=own or "", users=self._users)

    def prepare(self) -> Callable[[], list[str]]:
        """Read the files again, see `Daemon.on_reload`; raises BadConfig if one cannot be used."""
        try:
            fresh = SecurityFiles(self._values, listens=self._listens, connects=self._connects, required=self._required)
        except BadConfig as error:
            authorized, cause = self._values.get("curve_authorized"), error.__context__
            if authorized and isinstance(cause, KeyFileError) and cause.path == os.fspath(authorized):
                raise BadConfig(f"{error}; the keys in it count as soon as they are there, without a reload") from None
            raise

        def apply() -> list[str]:
            if fresh._users is not None and self.security is not None and self.security.authenticator is not None:
                self.security.authenticator.set_passwords(fresh._users)
            if fresh._own == self._own:
                return []
            return [name for name in ("curve_secret", "plain_password") if self._values.get(name)]

        return apply


def _flag(name: str) -> str:
    return f"--{name.removesuffix('s') if name == 'curve_server_keys' else name}".replace("_", "-")


def _server_keys(values: tuple[str, ...]) -> tuple[bytes | None, dict[str, bytes]]:
    common: bytes | None = None
    single: dict[str, bytes] = {}
    for value in values:
        whole = parse_key(value)
        endpoint, equals, text = value.partition("=")
        if whole is not None or not equals or "://" not in endpoint:
            if common is not None:
                raise click.UsageError("--curve-server-key was given twice without ENDPOINT=")
            common = whole or read_key(value)
            continue
        try:
            parse_connect(endpoint)
        except InvalidEndpoint as error:
            raise click.UsageError(f"--curve-server-key: {error}") from None
        single[endpoint] = parse_key(text) or read_key(text)
    return common, single
