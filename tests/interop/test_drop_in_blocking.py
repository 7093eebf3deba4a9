"""Blocking programs written for ZeroMQ's Python binding print the same on `core.blocking` when only their import lines are changed.

Each program is run twice: as it stands on libzmq, and with the name of the package replaced. It defines `main()`, which returns what it has
to show.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = {
    "a client and a server thread": """
        import threading
        import zmq

        def serve(context, endpoint):
            rep = context.socket(zmq.REP)
            rep.connect(endpoint)
            while True:
                try:
                    rep.send(rep.recv().upper())
                except zmq.ContextTerminated:
                    rep.close(linger=0)
                    return

        def main():
            context = zmq.Context.instance()
            req = context.socket(zmq.REQ)
            port = req.bind_to_random_port("tcp://127.0.0.1")
            server = threading.Thread(target=serve, args=(context, f"tcp://127.0.0.1:{port}"))
            server.start()
            shown = []
            for word in (b"one", b"two"):
                req.send(word)
                shown.append(req.recv())
            try:
                req.recv(zmq.NOBLOCK)
            except zmq.ZMQError as error:
                shown.append(error.errno == zmq.EFSM)
            req.close(linger=0)
            context.term()
            server.join()
            shown.append((context.closed, req.closed, zmq.Context.instance() is context))
            zmq.Context.instance().term()
            return shown
    """,
    "pollers, select and files": """
        import os
        import zmq

        def main():
            with zmq.Context() as context:
                pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
                pull.bind("inproc://poll")
                push.connect("inproc://poll")
                reader, writer = os.pipe()
                poller = zmq.Poller()
                poller.register(pull, zmq.POLLIN)
                poller.register(reader, zmq.POLLIN)
                shown = [poller.poll(5), pull.poll(5), zmq.select([pull], [], [], 0.005)]
                push.send_string("text")
                os.write(writer, b"x")
                found = dict(poller.poll(5000))
                while len(found) < 2:
                    found = dict(poller.poll(5000))
                shown += [found[pull] == zmq.POLLIN, found[reader] == zmq.POLLIN, pull in poller, reader in poller]
                shown.append(zmq.select([pull], [push], [], 5)[0] == [pull])
                shown.append(pull.recv_string())
                poller.unregister(reader)
                os.close(reader), os.close(writer)
                shown.append(dict(poller.poll(5)))
                pull.close(0), push.close(0)
            return shown
    """,
    "defaults, options and blocks": """
        import errno
        import zmq

        def main():
            context = zmq.Context()
            context.linger = 0
            context.setsockopt(zmq.SNDHWM, 7)
            context.subscribe = b"a"
            shown = [context.linger, context.getsockopt(zmq.SNDHWM), context.IO_THREADS, context.get(zmq.MAX_SOCKETS) > 100]
            context.set(zmq.MAX_SOCKETS, 300)
            shown.append((context.max_sockets, context.get(zmq.MAX_SOCKETS)))
            with context.socket(zmq.PUB) as pub, context.socket(zmq.SUB) as sub:
                shown += [pub.linger, pub.sndhwm, sub.getsockopt(zmq.LINGER)]
                with pub.bind("inproc://block"):
                    with sub.connect("inproc://block"):
                        pub.send_multipart([b"abc", b"x"])
                        shown.append(sub.recv_multipart())
                    for leave in (lambda: sub.disconnect("inproc://block"), lambda: sub.setsockopt(zmq.SNDHWM, -5)):
                        try:
                            leave()
                        except zmq.ZMQError as error:
                            shown.append(error.errno in (errno.ENOENT, zmq.EINVAL))
                try:
                    sub.no_such_option = 1
                except AttributeError:
                    shown.append("AttributeError")
                for name in ("no_such_option", "no_such_method"):
                    shown.append(hasattr(sub, name))
            shown.append((pub.closed, sub.closed))
            context.term()
            try:
                context.socket(zmq.PUB)
            except zmq.ZMQError:
                shown.append("no socket of an ended context")
            return shown
    """,
    "forms of messages": """
        import zmq
        from zmq.utils import jsonapi, z85
        from zmq.utils.monitor import recv_monitor_message

        def main():
            with zmq.Context() as context:
                a, b = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
                monitor = b.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_MONITOR_STOPPED)
                a.bind("tcp://127.0.0.1:*")
                b.connect(a.getsockopt(zmq.LAST_ENDPOINT))
                shown = [recv_monitor_message(monitor)["event"] == zmq.EVENT_CONNECTED, b.get_monitor_socket() is monitor]
                b.disable_monitor()
                shown.append(recv_monitor_message(monitor)["event"] == zmq.EVENT_MONITOR_STOPPED)
                monitor.close()
                a.send_json({"a": [1, None]})
                shown.append(b.recv_json())
                a.send_unicode("gr\\u00fc\\u00dfe", encoding="latin-1")
                shown.append(b.recv_unicode(encoding="latin-1"))
                a.send(b"head", zmq.SNDMORE)
                a.send(jsonapi.dumps({"x": 1}))
                buffer = bytearray(6)
                shown += [b.recv_into(buffer, nbytes=2), bytes(buffer), b.rcvmore, jsonapi.loads(b.recv())]
                a.send_multipart([b"x", b"y"], copy=False)
                frames = b.recv_multipart(copy=False)
                shown.append([(frame.bytes, bool(frame.more), isinstance(frame, zmq.Frame)) for frame in frames])
                a.send_serialized((3, "x"), lambda pair: [str(pair[0]).encode(), pair[1].encode()])
                shown.append(b.recv_serialized(lambda parts: (int(parts[0]), parts[1].decode())))
                b.rcvtimeo = 5
                for wrong in (b.recv, lambda: b.recv(zmq.NOBLOCK), lambda: a.send("text"), lambda: b.recv_into(b"constant")):
                    try:
                        wrong()
                    except (zmq.Again, TypeError, BufferError) as error:
                        shown.append(type(error).__name__)
                public, secret = zmq.curve_keypair()
                shown += [len(public), zmq.curve_public(secret) == public, len(z85.decode(public))]
                a.close(0), b.close(0)
            return shown
    """,
    "a context ends the calls that wait": """
        import threading
        import zmq

        def main():
            context = zmq.Context()
            pull = context.socket(zmq.PULL)
            shown = []

            def wait():
                try:
                    pull.recv()
                except zmq.ContextTerminated as error:
                    shown.append(error.errno == zmq.ETERM)
                pull.close()

            waiting = threading.Thread(target=wait)
            waiting.start()
            context.term()
            waiting.join()
            return shown
    """,
    "a proxy and a device thread": """
        import threading
        import zmq
        from zmq import devices

        def main():
            context = zmq.Context()
            front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
            front.bind("inproc://front"), back.bind("inproc://back")

            def forward():
                try:
                    zmq.proxy(front, back)
                except zmq.ContextTerminated:
                    front.close(0), back.close(0)

            thread = threading.Thread(target=forward)
            thread.start()
            req, rep = context.socket(zmq.REQ), context.socket(zmq.REP)
            req.connect("inproc://front"), rep.connect("inproc://back")
            req.send(b"question")
            rep.send(rep.recv() + b"!")
            shown = [req.recv()]
            req.close(0), rep.close(0)
            context.term()
            thread.join()

            device = devices.ThreadMonitoredQueue(zmq.PULL, zmq.PUSH, zmq.PUSH, b"in", b"out")
            shared = zmq.Context.instance()
            source, drain, monitor = shared.socket(zmq.PUSH), shared.socket(zmq.PULL), shared.socket(zmq.PULL)
            for socket, connect in ((source, device.connect_in), (drain, device.connect_out), (monitor, device.connect_mon)):
                port = socket.bind_to_random_port("tcp://127.0.0.1")
                connect(f"tcp://127.0.0.1:{port}")
            device.setsockopt_in(zmq.LINGER, 0)
            device.start()
            source.send_multipart([b"a", b"b"])
            shown += [drain.recv_multipart(), monitor.recv_multipart()]
            for socket in (source, drain, monitor):
                socket.close(0)
            shared.term()
            device.join(60)
            shown.append(device.done)
            return shown
    """,
    "decorators": """
        import zmq
        from zmq.decorators import context, socket

        @context()
        @socket(zmq.PUSH)
        @socket("pull", zmq.PULL, context_name="ctx")
        def work(word, ctx, push, pull):
            pull.bind("inproc://decorated")
            push.connect("inproc://decorated")
            push.send(word)
            return [pull.recv(), ctx.closed, push.context is ctx, push, pull]

        def main():
            *shown, push, pull = work(b"word")
            shown += [push.closed, pull.closed]
            try:
                work(b"word", pull=1)
            except TypeError:
                shown.append("TypeError")
            return shown
    """,
    "subclasses with attributes of their own": """
        import zmq

        def main():
            class Socket(zmq.Socket):
                colour: str

                def __init__(self, context, socket_type, colour="red"):
                    super().__init__(context, socket_type)
                    self.colour = colour

            assert zmq.Socket[bytes].__origin__ is zmq.Socket

            class Context(zmq.Context[Socket]):
                purpose: str
                size = 3
                _socket_class = Socket

                def __init__(self, purpose="none"):
                    super().__init__()
                    self.purpose, self.size = purpose, 4

            with Context("test") as ctx, ctx.socket(zmq.PAIR, colour="blue") as a:
                ctx.linger = 0
                shown = [ctx.purpose, ctx.size, a.colour, ctx.linger, a.context is ctx]
                for one in (ctx, a):
                    try:
                        one.never_named = 1
                    except AttributeError:
                        shown.append("AttributeError")
                return shown

    """,
    "log records": """
        import logging
        import zmq
        from zmq.log.handlers import PUBHandler

        def main():
            with zmq.Context() as context:
                sub = context.socket(zmq.SUB)
                sub.subscribe("root")
                handler = PUBHandler("inproc://log", context=context, root_topic="root")
                sub.connect("inproc://log")
                handler.setFormatter(logging.Formatter("late: %(message)s"), logging.WARNING)
                logger = logging.Logger("orders")
                logger.addHandler(handler)
                logger.info("order %d", 17)
                logger.warning("late::order %d", 18)
                shown = [sub.recv_multipart(), sub.recv_multipart(), handler.ctx is context, handler.root_topic]
                handler.socket.close(0)
                sub.close(0)
            return shown
    """,
    "certificates": """
        import os
        import zmq, zmq.auth
        from zmq.auth.thread import ThreadAuthenticator

        def attempt(context, client_key, server_key, known):
            server, client = context.socket(zmq.PULL), context.socket(zmq.PUSH)
            server.curve_publickey, server.curve_secretkey = server_key
            server.curve_server = True
            client.curve_publickey, client.curve_secretkey = client_key
            client.curve_serverkey = server_key[0]
            client.linger = 0
            port = server.bind_to_random_port("tcp://127.0.0.1")
            client.connect(f"tcp://127.0.0.1:{port}")
            client.sndtimeo = 30000 if known else 300  # a refused client has no peer to send to
            try:
                client.send(b"hello")
            except zmq.Again:
                assert not known
            heard = bool(server.poll(30000 if known else 300))
            user = server.recv(copy=False).get("User-Id") if heard else None
            client.close(), server.close()
            return user

        def main():
            public, secret = zmq.auth.create_certificates(FOLDER, "client", {"owner": "ann"})
            names = sorted(os.path.basename(path) for path in (public, secret))
            shown = [names, zmq.auth.load_certificate(public)[1], sorted(zmq.auth.load_certificates(FOLDER).values())]
            client_key = zmq.auth.load_certificate(secret)
            server_key = zmq.curve_keypair()
            with zmq.Context() as context:
                keeper = ThreadAuthenticator(context)
                keeper.start()
                keeper.allow("127.0.0.1")
                keeper.configure_curve(domain="*", location=FOLDER)
                shown.append(attempt(context, client_key, server_key, True) == client_key[0].decode())
                shown.append(attempt(context, zmq.curve_keypair(), server_key, False))
                keeper.stop()
            for wrong in (FOLDER + "/none", __file__ if "__file__" in globals() else os.devnull):
                try:
                    zmq.auth.load_certificate(wrong)
                except (OSError, ValueError) as error:
                    shown.append(type(error).__name__)
            return shown
    """,
}


def outcome(program: str, package: str, folder: Path) -> Any:
    """Run a program; what its `main` returns."""
    text = textwrap.dedent(program)
    if package != "zmq":
        text = text.replace("import zmq, zmq.auth", "import core.blocking as zmq, core.auth\nzmq.auth = core.auth")
        text = text.replace("import zmq\n", "import core.blocking as zmq\n").replace("from zmq import devices", "from core import devices")
        text = re.sub(r"from zmq\.(\w+)", r"from core.\1", text)
    folder.mkdir()
    names: dict[str, Any] = {"FOLDER": str(folder)}
    exec(compile(text, f"<{package}>", "exec"), names)
    return names["main"]()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_shows_the_same_with_its_import_changed(name: str, tmp_path: Path) -> None:
    theirs, ours = (outcome(PROGRAMS[name], package, tmp_path / package) for package in ("zmq", "core"))
    assert ours == theirs
    assert ours
