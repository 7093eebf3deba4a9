"""Programs written for ZeroMQ's asyncio binding print the same on `core` when only their import line is changed.

Each program is run twice: as it stands on libzmq, and with `IMPORT` replaced by `OURS`. It defines `main()`, which returns
what it has to show; endpoints come from `ENDPOINT`, a free one for each run.
"""

from __future__ import annotations

import asyncio
import errno
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

IMPORT = "import zmq, zmq.asyncio"
OURS = "import core as zmq"

PROGRAMS = {
    "request and reply": """
        async def main():
            ctx = zmq.asyncio.Context()
            rep, req = ctx.socket(zmq.REP), ctx.socket(zmq.REQ)
            rep.bind(ENDPOINT)
            req.connect(rep.LAST_ENDPOINT)
            shown = []
            for number in range(3):
                await req.send(b"%d" % number)
                question = await rep.recv()
                await rep.send(question + b"!")
                shown.append(await req.recv())
            try:
                await req.recv(zmq.NOBLOCK)
            except zmq.ZMQError as error:
                shown.append(error.errno == zmq.EFSM)
            req.close(linger=0)
            rep.close(linger=0)
            ctx.term()
            return shown
    """,
    "router and dealers by identity": """
        async def main():
            with zmq.asyncio.Context() as ctx:
                router = ctx.socket(zmq.ROUTER)
                router.bind(ENDPOINT)
                dealers = []
                for name in (b"a", b"b"):
                    dealer = ctx.socket(zmq.DEALER)
                    dealer.setsockopt(zmq.IDENTITY, name)
                    dealer.connect(router.getsockopt(zmq.LAST_ENDPOINT))
                    await dealer.send_multipart([b"", b"from " + name])
                    dealers.append(dealer)
                shown = sorted([await router.recv_multipart() for _ in dealers])
                for name in (b"b", b"a"):
                    await router.send_multipart([name, b"", b"to " + name])
                for dealer in dealers:
                    shown.append(await dealer.recv_multipart())
                router.setsockopt(zmq.ROUTER_MANDATORY, 1)
                try:
                    await router.send_multipart([b"nobody", b""])
                except zmq.ZMQError as error:
                    shown.append(error.errno == zmq.EHOSTUNREACH)
                ctx.destroy(linger=0)
            return shown
    """,
    "publish and subscribe": """
        async def main():
            ctx = zmq.asyncio.Context()
            pub, sub = ctx.socket(zmq.XPUB), ctx.socket(zmq.SUB)
            pub.bind(ENDPOINT)
            sub.connect(pub.getsockopt(zmq.LAST_ENDPOINT))
            sub.subscribe("news.")
            sub.setsockopt_string(zmq.SUBSCRIBE, "sport.")
            shown = sorted([await pub.recv(), await pub.recv()])
            for topic in ("news.a", "weather", "sport.b"):
                await pub.send_multipart([topic.encode(), b"body"])
            shown += [await sub.recv_multipart(), await sub.recv_multipart()]
            sub.unsubscribe(b"news.")
            shown.append(await pub.recv())
            ctx.destroy(linger=0)
            return shown
    """,
    "pipeline of three stages": """
        async def main():
            ctx = zmq.asyncio.Context()
            vent, sink = ctx.socket(zmq.PUSH), ctx.socket(zmq.PULL)
            vent.bind("inproc://vent")
            sink.bind(ENDPOINT)

            async def worker():
                work, out = ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
                work.connect("inproc://vent")
                out.connect(sink.getsockopt(zmq.LAST_ENDPOINT))
                while True:
                    number = int(await work.recv())
                    await out.send_string(str(number * number))

            workers = [asyncio.ensure_future(worker()) for _ in range(3)]
            for number in range(30):
                await vent.send_string(str(number))
            shown = sorted([int(await sink.recv_string()) for _ in range(30)])
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            ctx.destroy(linger=0)
            return shown
    """,
    "poller": """
        async def main():
            ctx = zmq.asyncio.Context()
            a, b, push = ctx.socket(zmq.PULL), ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
            a.bind("inproc://a"); b.bind("inproc://b")
            push.connect("inproc://b")
            poller = zmq.asyncio.Poller()
            poller.register(a, zmq.POLLIN)
            poller.register(b, zmq.POLLIN)
            shown = [await poller.poll(5)]
            await push.send(b"x")
            found = dict(await poller.poll(5000))
            shown += [a in found, found[b] == zmq.POLLIN, await b.recv(), await b.poll(5)]
            shown += [await push.poll(100, zmq.POLLOUT) == zmq.POLLOUT, bool(push.getsockopt(zmq.EVENTS) & zmq.POLLOUT)]
            poller.unregister(b)
            shown.append(b in poller)
            ctx.destroy(linger=0)
            return shown
    """,
    "strings, JSON, parts and serialized objects": """
        async def main():
            ctx = zmq.asyncio.Context()
            a, b = ctx.socket(zmq.PAIR), ctx.socket(zmq.PAIR)
            import array

            a.bind(ENDPOINT)
            b.connect(a.getsockopt(zmq.LAST_ENDPOINT))
            await a.send_json({"b": [1, 2.5, None], "a": "\\u00fc"})
            shown = [await b.recv_json()]
            await a.send_string("gr\\u00fc\\u00dfe", encoding="latin-1")
            shown.append(await b.recv_string(encoding="latin-1"))
            await a.send(b"one", zmq.SNDMORE)
            await a.send(b"two", flags=zmq.SNDMORE)
            await a.send(b"")
            while True:
                shown.append(await b.recv())
                if not b.getsockopt(zmq.RCVMORE):
                    break
            await a.send_serialized((3, "x"), lambda pair: [str(pair[0]).encode(), pair[1].encode()])
            shown.append(await b.recv_serialized(lambda frames: (int(frames[0]), frames[1].decode())))
            await a.send_multipart((b"a", bytearray(b"b"), memoryview(b"c"), array.array("i", [7, 8])))
            shown.append(await b.recv_multipart())
            for data in (bytearray(b"d"), memoryview(b"ef"), array.array("i", [9])):
                await a.send(data, zmq.SNDMORE, copy=0)
                await a.send(data, track=None)
                shown += [await b.recv(copy=1), (await b.recv(copy=0)).bytes]
            try:
                await a.send("text is not bytes")
            except TypeError:
                shown.append("TypeError")
            ctx.destroy(linger=0)
            return shown
    """,
    "frames without copy": """
        async def main():
            ctx = zmq.asyncio.Context()
            rep, req = ctx.socket(zmq.REP), ctx.socket(zmq.REQ)
            rep.bind("tcp://127.0.0.1:*")
            req.connect(rep.getsockopt(zmq.LAST_ENDPOINT))
            waiting = rep.recv_multipart(copy=False)
            await req.send_multipart([b"head", b"body"], copy=False)
            frames = await waiting
            shown = [[frame.bytes for frame in frames], [bytes(frame.buffer) for frame in frames], [len(frame) for frame in frames]]
            shown.append([frames[0].get("Socket-Type"), frames[1]["Peer-Address"]])
            shown += [bool(frame.more) for frame in frames]
            for name in ("User-Id", "Nothing"):
                try:
                    frames[0].get(name)
                except zmq.ZMQError as error:
                    shown.append((name, error.errno == zmq.EINVAL))
            await rep.send_multipart(frames, copy=False)
            frame = await req.recv(copy=False)
            shown += [frame.bytes, frame.more, (await req.recv(copy=False)).bytes]
            ctx.destroy(linger=0)
            return shown
    """,
    "options": """
        async def main():
            ctx = zmq.asyncio.Context()
            sock = ctx.socket(zmq.DEALER)
            sock.linger = 0
            sock.rcvhwm = 7
            sock.identity = b"me"
            sock.setsockopt(zmq.SNDHWM, 9)
            sock.set(zmq.RCVTIMEO, 5)
            sock.set_hwm(11)
            sock.RECONNECT_IVL = 50
            shown = [sock.rcvhwm, sock.getsockopt(zmq.SNDHWM), sock.get(zmq.RCVTIMEO), sock.hwm, sock.identity, sock.LINGER]
            shown += [sock.getsockopt(zmq.RECONNECT_IVL), sock.type == zmq.DEALER, sock.getsockopt(zmq.TYPE) == zmq.DEALER]
            try:
                sock.setsockopt(zmq.SNDHWM, -2)
            except zmq.ZMQError as error:
                shown.append(error.errno == zmq.EINVAL)
            try:
                await sock.recv()
            except zmq.Again as error:
                shown.append(error.errno == zmq.EAGAIN)
            shown.append(sock.closed)
            sock.close()
            shown.append(sock.closed)
            try:
                sock.bind("inproc://x")
            except zmq.ZMQError as error:
                shown.append(error.errno == zmq.ENOTSOCK)
            ctx.term()
            return shown
    """,
    "waits that end early lose nothing": """
        async def main():
            ctx = zmq.asyncio.Context()
            pull, push = ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
            pull.bind(ENDPOINT)
            push.connect(pull.getsockopt(zmq.LAST_ENDPOINT))
            shown = []
            try:
                await asyncio.wait_for(pull.recv(), 0.01)
            except (TimeoutError, asyncio.TimeoutError):
                shown.append("timeout")
            await push.send(b"1")
            shown.append(await asyncio.wait_for(pull.recv(), 100))
            both = asyncio.gather(pull.recv(), pull.recv())
            await asyncio.gather(push.send(b"2"), push.send(b"3"))
            shown.append(await both)
            first = asyncio.ensure_future(pull.recv())
            done, pending = await asyncio.wait([first], timeout=0.01)
            shown.append((len(done), len(pending)))
            await push.send(b"4")
            done, pending = await asyncio.wait([first], return_when=asyncio.FIRST_COMPLETED)
            shown.append(done.pop().result())
            cancelled = asyncio.ensure_future(pull.recv())
            await asyncio.sleep(0)
            cancelled.cancel()
            await push.send(b"5")
            shown.append(await pull.recv())
            future = pull.recv()
            shown.append(future.done())
            await push.send(b"6")
            shown.append((await future, future.done(), future.result()))
            ctx.destroy(linger=0)
            return shown
    """,
    "without waiting": """
        async def main():
            ctx = zmq.asyncio.Context()
            pull, push = ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
            shown = []
            pull.bind("inproc://now")
            for operation in (lambda: pull.recv(zmq.NOBLOCK), lambda: push.send(b"x", flags=zmq.DONTWAIT)):
                try:
                    await operation()
                except zmq.Again:
                    shown.append("Again")
            push.connect("inproc://now")
            await push.send(b"x", zmq.NOBLOCK)
            shown.append(await pull.recv(flags=zmq.NOBLOCK))
            for wrong in (lambda: pull.send(b"x"), lambda: push.recv(zmq.NOBLOCK)):
                try:
                    await wrong()
                except zmq.ZMQError as error:
                    shown.append(error.errno == zmq.ENOTSUP)
            ctx.destroy(linger=0)
            return shown
    """,
    "a queue between two pollers": """
        async def main():
            ctx = zmq.asyncio.Context()
            front, back = ctx.socket(zmq.ROUTER), ctx.socket(zmq.DEALER)
            front.bind(ENDPOINT)
            back.bind("inproc://back")

            async def queue():
                poller = zmq.asyncio.Poller()
                poller.register(front, zmq.POLLIN)
                poller.register(back, zmq.POLLIN)
                while True:
                    events = dict(await poller.poll())
                    if front in events:
                        await back.send_multipart(await front.recv_multipart())
                    if back in events:
                        await front.send_multipart(await back.recv_multipart())

            async def service():
                rep = ctx.socket(zmq.REP)
                rep.connect("inproc://back")
                while True:
                    await rep.send((await rep.recv()).upper())

            tasks = [asyncio.ensure_future(queue()), asyncio.ensure_future(service())]
            req = ctx.socket(zmq.REQ)
            req.connect(front.getsockopt(zmq.LAST_ENDPOINT))
            shown = []
            for word in (b"one", b"two"):
                await req.send(word)
                shown.append(await req.recv())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            ctx.destroy(linger=0)
            return shown
    """,
    "bind where there is room, and leave": """
        async def main():
            ctx = zmq.asyncio.Context()
            pull, other, push = ctx.socket(zmq.PULL), ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
            port = pull.bind_to_random_port("tcp://127.0.0.1")
            address = f"tcp://127.0.0.1:{port}"
            shown = []
            try:
                other.bind(address)
            except zmq.ZMQError as error:
                shown.append(error.errno == zmq.EADDRINUSE)
            push.connect(address)
            await push.send(b"x")
            shown.append(await pull.recv())
            push.disconnect(address)
            pull.unbind(address)
            for leave in (push.disconnect, pull.unbind):
                try:
                    leave(address)
                except zmq.ZMQError as error:
                    shown.append(error.errno == errno.ENOENT)
            for wrong, number in (("127.0.0.1:1", zmq.EINVAL), ("no://x", zmq.EPROTONOSUPPORT)):
                try:
                    push.connect(wrong)
                except zmq.ZMQError as error:
                    shown.append(error.errno == number)
            ctx.destroy(linger=0)
            return shown
    """,
    "watching a socket": """
        async def main():
            ctx = zmq.asyncio.Context()
            rep, req = ctx.socket(zmq.REP), ctx.socket(zmq.REQ)
            monitor = req.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
            rep.bind("tcp://127.0.0.1:*")
            address = rep.getsockopt(zmq.LAST_ENDPOINT)
            req.connect(address)
            shown = []
            for _ in range(2):
                frames = await monitor.recv_multipart()
                shown.append((zmq.Event(int.from_bytes(frames[0][:2], "little")).name, len(frames[0]), frames[1] == bytes(address)))
            req.disable_monitor()
            ctx.destroy(linger=0)
            return shown
    """,
}


async def outcome(program: str, imports: str, endpoint: str) -> Any:
    """Run a program; what its `main` returns."""
    names: dict[str, Any] = {"asyncio": asyncio, "errno": errno, "ENDPOINT": endpoint}
    exec(compile(imports + "\n" + textwrap.dedent(program), f"<{imports}>", "exec"), names)
    async with asyncio.timeout(PATIENCE_S):
        return await names["main"]()


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc"])
@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_shows_the_same_with_its_import_changed(name: str, transport: str, tmp_path: Path) -> None:
    shown = []
    for imports in (IMPORT, OURS):
        place = tmp_path / imports.split()[1]
        endpoint = {"tcp": "tcp://127.0.0.1:*", "ipc": f"ipc://{place}", "inproc": "inproc://here"}[transport]
        shown.append(await outcome(PROGRAMS[name], imports, endpoint))
    theirs, ours = shown
    assert ours == theirs
    assert ours
