"""Proxies in the background, under their names in ZeroMQ's Python binding: `core.devices` in place of `zmq.devices`."""

from core.blocking.poll import device, proxy, proxy_steerable
from core.devices.basedevice import Device, ProcessDevice, ThreadDevice
from core.devices.monitoredqueue import MonitoredQueue, ProcessMonitoredQueue, ThreadMonitoredQueue, monitored_queue
from core.devices.proxydevice import ProcessProxy, ProcessProxySteerable, Proxy, ProxySteerable, ThreadProxy, ThreadProxySteerable

__all__ = ["Device", "MonitoredQueue", "ProcessDevice", "ProcessMonitoredQueue", "ProcessProxy", "ProcessProxySteerable", "Proxy"]
__all__ += ["ProxySteerable", "ThreadDevice", "ThreadMonitoredQueue", "ThreadProxy", "ThreadProxySteerable", "device", "monitored_queue"]
__all__ += ["proxy", "proxy_steerable"]
