"""Options of a socket as attributes and through setsockopt and getsockopt, under ZeroMQ's names (conformance 5.9)."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from core import constants as c
from core.errors import EINVAL, InvalidOption, OperationNotSupported, ZMQError
from core.option_table import TABLE, OptionValue, row_of
from core.options import Options, OptionValues, UpperCase
from core.zmtp.limits import UNTOLD

if TYPE_CHECKING:
    from core.pattern.base import Pattern
    from core.zmtp.limits import PeerLimits


# Lowest limit that connected peers have announced, -1 for none; read-only.
PEER_OPTIONS = {"peer_max_parts": "parts", "peer_max_message_bytes": "message_bytes", "peer_maxmsgsize": "frame_bytes"}


class SocketOptions(OptionValues, UpperCase):
    """Options of a socket; attributes are those of `core.option_table.TABLE`, made below."""

    options: Options
    pattern: Pattern
    socket_type: c.SocketType

    if TYPE_CHECKING:
        hwm: int
        identity: bytes
        mechanism: int  # read-only
        type: int  # read-only
        peer_max_parts: int
        peer_max_message_bytes: int
        peer_maxmsgsize: int

    if not TYPE_CHECKING:  # see `SocketBase`
        __slots__ = ()

    @abstractmethod
    def check_open(self) -> None:
        """Raise SocketClosed (ENOTSOCK) or ContextTerminated (ETERM) after the end."""

    @abstractmethod
    def check_loop(self) -> None:
        """Raise WrongOwner while the loop of the socket runs on another thread."""

    @abstractmethod
    def options_changed(self, name: str) -> None: ...  # apply the new value of an option, if it acts at once
    @abstractmethod
    def peer_limits(self, routing_id: bytes | None = None) -> PeerLimits | None:
        """Return the limits that peers have announced."""

    @abstractmethod
    def live_option(self, option: int) -> Any: ...  # only a live socket knows EVENTS, RCVMORE, LAST_ENDPOINT, TYPE; None for any other

    def setsockopt(self, option: int | str, value: OptionValue | str) -> None:
        """Set an option by number or name; SUBSCRIBE and UNSUBSCRIBE act on the topics.

        Raises:
            ZMQError: EINVAL with option, value and range.
            WrongOwner: another thread runs the event loop of this socket.
        """
        self.check_open()
        self.check_loop()
        if option in (c.SUBSCRIBE, c.UNSUBSCRIBE):
            topic = value.encode() if isinstance(value, str) else value
            if isinstance(topic, int):
                raise ZMQError(EINVAL, "a topic is bytes or text")
            if option == c.SUBSCRIBE:
                self.subscribe(topic)
            else:
                self.unsubscribe(topic)
            return
        if isinstance(option, str) and option.lower() in PEER_OPTIONS:
            raise InvalidOption(msg=f"{option} is announced by peers and read-only", option=option)
        self.options.set(option, value)
        if option == c.HWM or option == "hwm":
            self.options_changed("sndhwm")
        else:
            self.options_changed(row_of(option).name)

    def getsockopt(self, option: int | str) -> Any:
        """Return an option by number or name. Raises ZMQError (EINVAL) if there is none."""
        self.check_open()
        if isinstance(option, int):
            live = self.live_option(option)
            if live is not None:
                return live
        elif option.lower() in PEER_OPTIONS:
            return self._peer_option(option.lower())
        return self.options.get(option)

    def _peer_option(self, name: str) -> int:
        limits = self.peer_limits()
        value: int = UNTOLD if limits is None else getattr(limits, PEER_OPTIONS[name])
        return -1 if value == UNTOLD else value

    set = setsockopt
    get = getsockopt

    def setsockopt_string(self, option: int, optval: str, encoding: str = "utf-8") -> None:
        """Set a bytes option from text."""
        self.setsockopt(option, optval.encode(encoding))

    def getsockopt_string(self, option: int, encoding: str = "utf-8") -> str:
        """Return a bytes option as text."""
        value = self.getsockopt(option)
        return value.decode(encoding) if isinstance(value, bytes) else str(value)

    set_string = setsockopt_unicode = setsockopt_string
    get_string = getsockopt_unicode = getsockopt_string

    def set_hwm(self, value: int) -> None:
        """Set both high-water marks, in messages per peer."""
        self.setsockopt("hwm", value)

    def get_hwm(self) -> int:
        """Return the lower of both high-water marks."""
        return int(self.options.get("hwm"))

    def subscribe(self, topic: bytes | str) -> None:
        """Subscribe to messages whose first frame begins with `topic` (SUB, XSUB; XPUB with XPUB_MANUAL)."""
        self._topic(topic, True)

    def unsubscribe(self, topic: bytes | str) -> None:
        """End one subscription."""
        self._topic(topic, False)

    def _topic(self, topic: Any, subscribe: bool) -> None:
        from core.pattern.pubsub import Pub, XPub, XSub

        self.check_open()
        octets = topic.encode() if isinstance(topic, str) else topic if isinstance(topic, bytes) else memoryview(topic).tobytes()
        pattern = self.pattern
        if isinstance(pattern, XSub):
            (pattern.subscribe if subscribe else pattern.unsubscribe)(octets)
        elif isinstance(pattern, XPub) and not isinstance(pattern, Pub):
            pattern.apply(octets, subscribe)
        else:
            raise OperationNotSupported(msg=f"a {pattern.type_name.decode()} socket has no subscriptions")


def _attribute(name: str) -> property:
    def get(self: SocketOptions) -> OptionValue:
        self.check_open()
        return self.options.get(name)

    def put(self: SocketOptions, value: OptionValue | str) -> None:
        self.setsockopt(name, value)

    return property(get, put, doc=f"Option {name}; see `core.option_table.TABLE`.")


def _peer_attribute(name: str) -> property:
    def get(self: SocketOptions) -> OptionValue:
        return self._peer_option(name)

    def put(self: SocketOptions, value: OptionValue | str) -> None:
        self.setsockopt(name, value)

    return property(get, put, doc=f"{name}: lowest limit that peers have announced, -1 for none; read-only.")


def _mechanism() -> property:
    def get(self: SocketOptions) -> int:
        self.check_open()
        return self.options.mechanism

    return property(get, doc="The security mechanism that the options have selected, a `SecurityMechanism`; read-only.")


def _answer(number: int) -> property:
    def get(self: SocketOptions) -> Any:
        self.check_open()
        return self.live_option(number)

    return property(get, doc="State of a live socket; see `getsockopt`.")


for _name in (*(row.name for row in TABLE), "identity", "hwm"):
    setattr(SocketOptions, _name, _attribute(_name))
    setattr(SocketOptions, _name.upper(), _attribute(_name))  # both spellings are in use
for _name in ("mechanism", "MECHANISM"):
    setattr(SocketOptions, _name, _mechanism())
for _name in PEER_OPTIONS:
    setattr(SocketOptions, _name, _peer_attribute(_name))
    setattr(SocketOptions, _name.upper(), _peer_attribute(_name))
for _name, _number in (
    ("EVENTS", c.EVENTS),
    ("RCVMORE", c.RCVMORE),
    ("LAST_ENDPOINT", c.LAST_ENDPOINT),
    ("TYPE", c.TYPE),
    ("type", c.TYPE),
):
    setattr(SocketOptions, _name, _answer(_number))
