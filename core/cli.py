"""The `zmtp` command: sends, receives, forwards and watches messages, and makes CURVE keys."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from core import constants, errors
from core.daemon.command import BIND, CONNECT, Group
from core.daemon.exit_codes import DiskFailed, RequestFailed, Unreachable, exits, file_problem
from core.daemon.logs import printable
from core.daemon.option_fields import FiniteRange, WholeRange, options
from core.daemon.run import Daemon, DaemonSettings, daemon_options, listen_problem, log_options, loop_option, run_daemon
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_frame, json_option, read_frames, write_frames, write_json
from core.runtime import runtime
from core.runtime.event_loop import run
from core.security.curve_keys import key_pair
from core.sockets.context import Context
from core.sockets.proxy import proxy
from core.zmtp import z85

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from core.daemon.option_fields import Decorator
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured
    from core.sockets.monitor import MonitorEvent
    from core.sockets.socket import Socket

log = logging.getLogger(__name__)

TYPES = [kind.name.lower() for kind in constants.SocketType]


# A command line for the help of each command.
EXAMPLES: Final = {
    "send": "zmtp send --type push --connect tcp://127.0.0.1:5557 job 17",
    "recv": "zmtp recv --type sub --connect tcp://127.0.0.1:5556 --topic weather",
    "monitor": "zmtp monitor --connect tcp://127.0.0.1:5555",
    "keygen": "zmtp keygen --secret-file server.key",
    "proxy": "zmtp proxy --frontend tcp://*:5559 --backend tcp://*:5560",
}


@click.group(cls=Group, name="zmtp", examples=EXAMPLES)
def main() -> None:
    """Send, receive, forward and watch ZeroMQ messages; make CURVE keys."""


def _options(text: tuple[str, ...]) -> dict[str, int | str]:
    """Parse `name=value` settings; numbers are integers, the rest is text."""
    settings: dict[str, int | str] = {}
    for item in text:
        name, equals, value = item.partition("=")
        if not equals:
            raise click.UsageError(f"--option {item!r} is not NAME=VALUE")
        settings[name] = int(value) if value.lstrip("-").isdigit() else value
    return settings


@dataclass(frozen=True, slots=True, repr=False)  # settings may hold keys
class SocketFlags:
    """Socket of a command, as its flags describe it."""

    kind: str
    bind: tuple[str, ...]
    connect: tuple[str, ...]
    settings: dict[str, int | str]
    security: Secured | None


def socket_options(kinds: list[str], default: str) -> Decorator:
    """Return the options of a socket and its endpoints; the decorated function gets `flags`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(
            *args: Any,
            kind: str,
            bind: tuple[str, ...],
            connect: tuple[str, ...],
            option: tuple[str, ...],
            security: Secured | None,
            **kwargs: Any,
        ) -> Any:
            if not bind and not connect:
                raise click.UsageError("give --bind or --connect")
            return function(*args, flags=SocketFlags(kind, bind, connect, _options(option), security), **kwargs)

        return options(
            click.option("--type", "kind", type=click.Choice(kinds), default=default, help="Socket type."),
            click.option("--bind", type=BIND, multiple=True, help="Endpoint to listen on; may be repeated."),
            security_options(listens=True, connects=True, required=False),
            click.option("--connect", type=CONNECT, multiple=True, help="Endpoint to connect to; may be repeated."),
            click.option("--option", multiple=True, metavar="NAME=VALUE", help="Any socket option: rcvhwm=10."),
        )(command)

    return decorate


@asynccontextmanager
async def open_socket(flags: SocketFlags) -> AsyncIterator[Socket]:
    """Make a socket with its endpoints; leaving waits for LINGER."""
    async with Context(security=flags.security) as context:
        with exits({errors.InvalidOption: click.UsageError}):
            socket = context.socket(constants.SocketType[flags.kind.upper()], **flags.settings)
        attach(socket, flags.bind, flags.connect)
        yield socket


def attach(socket: Socket, bind: tuple[str, ...], connect: tuple[str, ...]) -> None:
    with exits({errors.InvalidOption: click.UsageError}):
        for endpoint in bind:
            try:
                socket.bind(endpoint)
            except errors.InvalidOption:
                raise
            except errors.ZMQError as error:
                raise Unreachable(listen_problem(error) or f"cannot listen on {endpoint}: {error.strerror}") from None
        for endpoint in connect:
            socket.connect(endpoint)


@main.command()
@socket_options(["push", "dealer", "req", "pub", "pair"], "push")
@click.option("--timeout", type=FiniteRange(min=0), default=5.0, help="Seconds to find a peer.")
@json_option("Print the reply (REQ) as JSON.")
@click.argument("frames", nargs=-1, required=True)
@loop_option
@log_options("warning")
def send(flags: SocketFlags, timeout: float, as_json: bool, frames: tuple[str, ...], uvloop: bool | None) -> None:
    """Send one message of FRAMES ('-': standard input). REQ prints the reply, PUB waits for a matching subscriber."""
    message = read_frames(frames)
    # PUB does not report subscriptions and would drop the message; on the wire XPUB is the same.
    is_pub, kind = flags.kind == "pub", "xpub" if flags.kind == "pub" else flags.kind
    # IMMEDIATE: a message counts as sent when there is a peer, not when it waits for a connection.
    chosen = replace(flags, kind=kind, settings={"immediate": 1, "linger": int(timeout * 1000), **flags.settings})

    async def talk() -> list[bytes] | None:
        async with open_socket(chosen) as socket:
            async with asyncio.timeout(timeout):
                if is_pub:
                    await _subscribed(socket, message[0])
                await socket.send_multipart(message)
                return await socket.recv_multipart() if kind == "req" else None

    try:
        reply = run(talk(), uvloop=uvloop)
    except TimeoutError:
        raise Unreachable(f"no peer took the message within {timeout:g} s") from None
    if reply is not None:
        _show(reply, as_json)


async def _subscribed(socket: Socket, topic: bytes) -> None:
    subscription = b""
    while subscription[:1] != b"\x01" or not topic.startswith(subscription[1:]):
        subscription = await socket.recv()


def _show(message: list[bytes], as_json: bool) -> None:
    if as_json:
        write_json([json_frame(frame) for frame in message])
    else:
        write_frames(message)


@main.command()
@socket_options(["pull", "sub", "dealer", "router", "pair", "xsub"], "pull")
@click.option("--topic", "topics", multiple=True, help="SUB: prefix to subscribe to.  [default: everything]")
@click.option("--count", type=WholeRange(min=1), help="Messages to receive.  [default: no limit]")
@click.option("--timeout", type=FiniteRange(min=0), help="Seconds to wait for each message.  [default: no limit]")
@json_option("Print each message as a JSON list.")
@loop_option
@log_options("warning")
def recv(flags: SocketFlags, topics: tuple[str, ...], count: int | None, timeout: float | None, as_json: bool, uvloop: bool | None) -> None:
    """Print messages as they come, one frame per line."""

    async def listen() -> None:
        async with open_socket(flags) as socket:
            if flags.kind == "sub":
                for topic in topics or ("",):
                    socket.subscribe(os.fsencode(topic))
            received = 0
            while count is None or received < count:
                async with asyncio.timeout(timeout):
                    message = await socket.recv_multipart()
                _show(message, as_json)
                received += 1

    try:
        run(listen(), uvloop=uvloop)
    except TimeoutError:
        raise RequestFailed(f"no message within {timeout:g} s") from None


KINDS = {"queue": ("router", "dealer"), "forwarder": ("xsub", "xpub"), "streamer": ("pull", "push")}


@main.command("proxy")
@click.option("--kind", type=click.Choice(list(KINDS)), default="queue", help="Pair of sockets.")
@click.option("--frontend", type=BIND, required=True, help="Endpoint of clients (queue), publishers (forwarder) or PUSH (streamer).")
@click.option("--backend", type=BIND, required=True, help="Endpoint of services (queue), subscribers (forwarder) or PULL (streamer).")
@click.option("--capture", type=BIND, help="Endpoint of a PUB socket with a copy of every message.")
@security_options(listens=True)
@daemon_options
def proxy_command(kind: str, frontend: str, backend: str, capture: str | None, security: Secured | None, settings: DaemonSettings) -> None:
    """Listen on two endpoints and forward between them: router/dealer, xsub/xpub or pull/push."""
    run_daemon(functools.partial(serve_proxy, ProxyOptions(kind, frontend, backend, capture, security)), settings)


@dataclass(frozen=True, slots=True, repr=False)  # security holds keys
class ProxyOptions:
    """Options of `zmtp proxy`."""

    kind: str
    frontend: str
    backend: str
    capture: str | None = None
    security: Secured | None = None


async def serve_proxy(options: ProxyOptions, lifetime: Lifetime) -> None:
    """Forward messages until the process is asked to stop; raises RequestFailed or Unreachable."""
    front, back = KINDS[options.kind]
    async with AsyncExitStack() as stack:
        sides = [
            await stack.enter_async_context(open_socket(SocketFlags(socket_type, (endpoint,), (), {}, options.security)))
            for socket_type, endpoint in ((front, options.frontend), (back, options.backend), ("pub", options.capture))
            if endpoint is not None
        ]
        lifetime.ready("proxy forwards", kind=options.kind, endpoints=[side.last_endpoint for side in sides])
        try:
            await lifetime.until_stopped_or(proxy(*sides))
        except Exception as error:
            log.exception("the proxy has failed")
            first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error  # of its two directions
            raise RequestFailed(f"the proxy has failed: {type(first).__name__}: {first}") from error


@main.command()
@click.option("--secret-file", type=click.Path(dir_okay=False), help="Write the secret key here, readable by its owner only.")
@json_option("Print the keys as JSON.")
def keygen(secret_file: str | None, as_json: bool) -> None:
    """Make a CURVE key pair, as Z85 text."""
    public, secret = (z85.encode(key).decode() for key in key_pair(runtime.current().random_bytes))
    if secret_file is not None:
        try:
            # Created with its mode and never overwritten: a key that was ever readable by others is not secret.
            descriptor = os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w") as file:
                file.write(secret + "\n")
        except OSError as error:
            raise DiskFailed(file_problem(error, secret_file)) from None
    shown = {"public": public} if secret_file is not None else {"public": public, "secret": secret}
    if as_json:
        write_json(shown)
    else:
        for name, key in shown.items():
            click.echo(f"{name} {key}")


@main.command()
@socket_options(TYPES, "dealer")
@click.option("--count", type=WholeRange(min=1), help="Events to print.  [default: until SIGTERM or SIGINT]")
@json_option("Print each event as a JSON object.")
@daemon_options
def monitor(flags: SocketFlags, count: int | None, as_json: bool, settings: DaemonSettings) -> None:
    """Print what happens to the connections of a socket: connects, handshakes, refusals, retries."""

    async def body(daemon: Daemon) -> None:
        left = count

        def show(event: MonitorEvent) -> None:
            nonlocal left
            if left == 0:
                return
            _show_event(event, as_json)
            if left is not None:
                left -= 1
                if left == 0:
                    daemon.stop()

        async with open_socket(replace(flags, bind=(), connect=())) as socket:
            # Before the first endpoint, or the first events would be missed.
            socket.on_event(show)
            attach(socket, flags.bind, flags.connect)
            daemon.ready("monitor runs")
            await daemon.until_stopped()

    run_daemon(body, settings)


def _show_event(event: MonitorEvent, as_json: bool) -> None:
    if as_json:
        shown = {"event": event.event.name, "endpoint": event.endpoint, "value": event.value, "reason": event.reason, "peer": event.peer}
        write_json({**shown, "identity": json_frame(event.identity)})
    else:
        words = [event.event.name or "", event.endpoint, str(event.value)]
        words += [f"peer={event.peer}"] * bool(event.peer)
        words += [f"identity={event.identity.decode('utf-8', 'backslashreplace')}"] * bool(event.identity)
        words += [event.reason] * bool(event.reason)
        click.echo(printable(" ".join(words)))
    sys.stdout.flush()  # into a pipe too: events are of interest at once
