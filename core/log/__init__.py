"""Logging over PUB sockets: `core.log.handlers` in place of `zmq.log.handlers`."""
