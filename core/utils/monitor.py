"""Reading of monitor sockets: `core.utils.monitor` in place of `zmq.utils.monitor`."""

from __future__ import annotations

from core.sockets.monitor import parse_monitor_message, recv_monitor_message

__all__ = ["parse_monitor_message", "recv_monitor_message"]
