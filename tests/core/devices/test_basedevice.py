"""core.devices: devices with three and four sockets, in the background and in processes; wrong descriptions."""

from __future__ import annotations

import logging

import pytest

import core.blocking as zmq
from core import devices
from tests.scenes.waiting import PATIENCE_S


def test_types_must_be_given() -> None:
    with pytest.raises(TypeError):
        devices.Device(zmq.QUEUE, zmq.PULL)
    with pytest.raises(TypeError):
        devices.ProxySteerable(zmq.PULL, zmq.PUSH)
    device = devices.ThreadDevice(zmq.STREAMER, zmq.PULL, zmq.PUSH)
    assert (device.device_type, device.in_type, device.out_type, device.daemon, device.done) == (
        zmq.STREAMER,
        zmq.PULL,
        zmq.PUSH,
        True,
        False,
    )


def test_a_steerable_proxy_ends_on_command() -> None:
    with (
        zmq.Context() as context,
        context.socket(zmq.PUSH) as source,
        context.socket(zmq.PULL) as drain,
        context.socket(zmq.PAIR) as control,
    ):
        device = devices.ThreadProxySteerable(zmq.PULL, zmq.PUSH, zmq.PUB, zmq.PAIR)
        source.connect(f"tcp://127.0.0.1:{device.bind_in_to_random_port('tcp://127.0.0.1')}")
        drain.connect(f"tcp://127.0.0.1:{device.bind_out_to_random_port('tcp://127.0.0.1')}")
        device.bind_mon_to_random_port("tcp://127.0.0.1")
        device.setsockopt_ctrl(zmq.LINGER, 0)
        control.connect(f"tcp://127.0.0.1:{device.bind_ctrl_to_random_port('tcp://127.0.0.1')}")
        device.start()
        source.send_multipart([b"a", b"b"])
        assert drain.recv_multipart() == [b"a", b"b"]
        control.send(b"TERMINATE")
        device.join(PATIENCE_S)
        assert device.done
        device._context.term()


def test_a_device_in_a_process() -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as source, context.socket(zmq.PULL) as drain:
        device = devices.ProcessDevice(zmq.STREAMER, zmq.PULL, zmq.PUSH)
        device.connect_in(f"tcp://127.0.0.1:{source.bind_to_random_port('tcp://127.0.0.1')}")
        device.connect_out(f"tcp://127.0.0.1:{drain.bind_to_random_port('tcp://127.0.0.1')}")
        device.setsockopt_out(zmq.LINGER, 0)
        device.start()
        source.send(b"x")
        assert drain.recv() == b"x"
        assert device.launcher is not None
        device.launcher.terminate()
        device.join(PATIENCE_S)


def test_what_cannot_be_is_said_where_it_is_started(caplog: pytest.LogCaptureFixture) -> None:
    taken = devices.ThreadDevice(zmq.QUEUE, zmq.PULL, zmq.PUSH)
    with zmq.Context() as context, context.socket(zmq.PULL) as holder:
        port = holder.bind_to_random_port("tcp://127.0.0.1")
        taken.bind_in(f"tcp://127.0.0.1:{port}")
        with pytest.raises(zmq.AddressInUse):
            taken.start()
    wrong = devices.ThreadDevice(zmq.QUEUE, zmq.REQ, zmq.REP)
    with caplog.at_level(logging.ERROR, "core.devices"):
        wrong.start()
        wrong.join(PATIENCE_S)
    assert wrong.done
    assert "by turns" in caplog.text
    taken._context.term()


def test_two_routers_are_joined_by_a_monitored_queue() -> None:
    device = devices.ThreadMonitoredQueue(zmq.ROUTER, zmq.ROUTER, zmq.PUSH)
    ports = [device.bind_in_to_random_port("tcp://127.0.0.1"), device.bind_out_to_random_port("tcp://127.0.0.1")]
    monitor_port = device.bind_mon_to_random_port("tcp://127.0.0.1")
    device.start()
    with zmq.Context() as context, context.socket(zmq.DEALER) as a, context.socket(zmq.DEALER) as b, context.socket(zmq.PULL) as monitor:
        for peer, name, port in ((a, b"a", ports[0]), (b, b"b", ports[1])):
            peer.identity = name
            peer.probe_router = 1
            peer.connect(f"tcp://127.0.0.1:{port}")
        monitor.connect(f"tcp://127.0.0.1:{monitor_port}")
        b.rcvtimeo = 50
        while True:  # until the device knows both
            a.send_multipart([b"b", b"hello"])
            try:
                message = b.recv_multipart()
                break
            except zmq.Again:
                continue
        assert message == [b"a", b"hello"]
        seen = monitor.recv_multipart()
        while len(seen) < 4:  # the probes are seen too
            seen = monitor.recv_multipart()
        assert seen == [b"in", b"b", b"a", b"hello"]
    device._context.term()
    device.join(PATIENCE_S)
