"""The asyncio shells of the socket layer: connections, listeners, inproc."""
