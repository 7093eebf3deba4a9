"""The same works on pyzmq: straightforward programs, blocking and asyncio, written from the RFCs and pyzmq's manual."""
