"""Side by side measurements of this toolkit and of the same work written on pyzmq (see README.md)."""
