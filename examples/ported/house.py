"""Certificates, an authenticator in a thread, a monitor, and a REQ that tries again: a program of pyzmq."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import core.blocking as zmq
from core.auth import create_certificates, load_certificate
from core.auth.thread import ThreadAuthenticator
from core.utils.monitor import recv_monitor_message

ATTEMPTS = 3


def server(context: Any, keys: Path, ready: threading.Event, places: list[str]) -> None:
    """Answer every second request, like a service that loses some."""
    socket = context.socket(zmq.ROUTER)
    socket.curve_publickey, socket.curve_secretkey = load_certificate(keys / "server.key_secret")
    socket.curve_server = True
    places.append(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
    ready.set()
    socket.recv_multipart()  # lost
    peer, empty, body = socket.recv_multipart()
    socket.send_multipart([peer, empty, body + b", answered at attempt 2"])
    socket.close(linger=1000)


def ask(context: Any, keys: Path, place: str) -> str:
    """Ask with a new socket each time the server is silent."""
    public, secret = load_certificate(keys / "client.key_secret")
    server_key, _ = load_certificate(keys / "server.key")
    for _ in range(ATTEMPTS):
        socket = context.socket(zmq.REQ)
        socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = public, secret, server_key
        socket.linger = 0
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        socket.connect(place)
        socket.send_string("hello")
        recv_monitor_message(monitor)
        socket.disable_monitor()
        answer: str | None = socket.recv_string() if socket.poll(500, zmq.POLLIN) else None
        socket.close()
        if answer is not None:
            return answer
    return "no answer"


def main() -> None:
    """Make keys, serve and ask; print the answer."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder)
        for name in ("server", "client"):
            create_certificates(keys, name)
        context = zmq.Context()
        authenticator = ThreadAuthenticator(context)
        authenticator.start()
        authenticator.allow("127.0.0.1")
        authenticator.configure_curve(domain="*", location=str(keys))
        ready = threading.Event()
        places: list[str] = []
        thread = threading.Thread(target=server, args=(context, keys, ready, places))
        thread.start()
        ready.wait()
        print(ask(context, keys, places[0]))
        thread.join()
        authenticator.stop()
        context.term()


if __name__ == "__main__":
    main()
