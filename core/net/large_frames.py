"""Messages that are incomplete, and reading large frames into a buffer of their own.

A transport that reads for a plain `asyncio.Protocol` copies what it has read into a `bytes` per read, and joining those copies
it again: three copies and twice the memory of a frame. When a large frame has begun, `LargeFrameReader` replaces the session as
the transport's protocol and has the frame read to where it belongs; it steps back when no other large frame follows. For small
frames it would cost a microsecond more per read. Measured: 0.4 of the time at 1 MiB.

The buffers are few and belong to the loop: while all are used by frames that make progress, other frames are put together as
small ones are. A frame that is larger than a buffer is read into memory of its own, which becomes the frame. New memory of the largest
costs a third of such a message, because the system clears it; so that of one to which nothing refers is used for the next of its size.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from asyncio.protocols import BufferedProtocol  # not as `asyncio.BufferedProtocol`: mypyc wants the place of a base class
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from mypy_extensions import mypyc_attr

from core.errors import LimitExceeded, RemoteProtocolError
from core.zmtp.decoder import Decoder

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from core.options import Options
    from core.pattern.pipe import Pipe
    from core.runtime.supervision import Supervisor
    from core.zmtp.scan import Batch

NO_DECODER: Final = Decoder(on_command=lambda _: None)  # stands in where nothing is decoded
PROGRESS_BYTES_MIN: Final = 1024  # minimum progress of an incomplete message per `frame_ivl`; slower peers are disconnected
HEADER_BYTES: Final = 9
LARGE_BYTES_MIN: Final = 64 * 1024  # bytes of a frame, header included, for which a buffer pays
AFTER_BYTES: Final = 1024  # bytes read beyond a frame: the next header, and short frames before a large one
BUFFER_BYTES: Final = 1024 * 1024 + HEADER_BYTES + AFTER_BYTES
BUFFERS_MAX: Final = 8  # 8 MiB per loop, while large frames come
TURN_BYTES: Final = 512 * 1024  # then, after a whole frame, others are read: the application takes the frames while they are in the caches
IDLE_S: Final = 1.0  # a buffer unused for so long is given back
# A larger frame gets memory of its own when a part of it has come: so what a peer can make us reserve is bounded by what it sends. Until
# then its bytes are copied twice; with a sixteenth in place of this part, a message of 100 MB cost 15 % more.
OWN_PART: Final = 64
OWN_BYTES_MAX: Final = 256 * 1024 * 1024  # reserved by all such frames of a loop, unless there is only one
# From this size on the C library maps memory for one object, and unmaps it: all its pages are new. Of large pages there are few.
MAPPED_BYTES_MIN: Final = 32 * 1024 * 1024
OWN_MEMORY: Final = sys.platform == "linux" and sys.implementation.name == "cpython"  # elsewhere larger frames are put together
PAGE_BYTES: Final = 4096  # or a multiple; what is not aligned is not advised
MADV_HUGEPAGE: Final = 14
PY_BUF_WRITE: Final = 0x200
SPARE_MAX: Final = 2  # frames whose memory may be used again: a program often has the last one while the next is read
_HASH_BYTES: Final = 8
_NO_HASH: Final = (-1).to_bytes(_HASH_BYTES, sys.byteorder, signed=True)


class SharedReading(Protocol):
    """State shared by all connections of a loop; see `core.runtime.write_scheduler.WriteScheduler`."""

    partial: int
    large_frames: LargeFramePool

    # start a timer of a connection
    def later(self, session: FrameReading, delay_s: float, call: Callable[[], object]) -> asyncio.TimerHandle: ...


class FrameReading:
    """Base of a session: messages that have begun, their frames and their progress; `Session` sets the attributes.

    It has the methods of an `asyncio.Protocol` without inheriting from it, so that it compiles; see CONTRIBUTING.md.
    """

    __slots__ = ("_decoder", "_partial", "_progress", "_progress_timer", "_shared", "_whole", "options", "pipe", "transport")

    # Compiled, attributes are kept in this order: what each message needs is together, in as few lines of memory as possible.
    options: Options
    _progress: int  # bytes of the message that has begun, when the timer was started
    _progress_timer: asyncio.TimerHandle | None
    _shared: SharedReading  # of the loop
    pipe: Pipe
    transport: asyncio.Transport | None
    _decoder: Decoder
    _partial: int  # bytes of the message that has begun, as counted in `WriteScheduler.partial`
    _whole: bool  # a whole message has come since the timer was started

    # -- callbacks of the transport
    @abstractmethod
    def eof_received(self) -> bool: ...
    @abstractmethod
    def connection_lost(self, exc: Exception | None) -> None: ...
    @abstractmethod
    def pause_writing(self) -> None: ...
    @abstractmethod
    def resume_writing(self) -> None: ...

    @abstractmethod
    def is_reading(self) -> bool: ...
    @abstractmethod
    def deliver(self, batch: Batch, octets: int) -> None: ...
    @abstractmethod
    def read_in_turn(self) -> None: ...  # read no more in this loop iteration
    @abstractmethod
    def _reads_clear(self) -> bool: ...  # whether frames come in clear
    @abstractmethod
    def _fail(self, error: RemoteProtocolError | None) -> None: ...

    def _check_partial(self, decoder: Decoder) -> None:
        """Check an incomplete message: failure, limits, progress (W7); read a large frame with few copies."""
        if decoder.failure is not None:
            self._fail(decoder.failure)
        elif self.count_partial(decoder.progress):
            pool = self._shared.large_frames
            if pool.takes(decoder) and self._reads_clear() and self.transport is not None:
                pool.read(self, self.transport, decoder)
            if self._progress_timer is None and self.options.frame_ivl:
                self._whole = False
                self._progress = decoder.progress
                self._progress_timer = self._shared.later(self, self.options.frame_ivl / 1000, self._progress_over)

    def count_partial(self, octets: int) -> bool:
        """Count the bytes of a message that has begun; fails the connection when all peers together hold too many (P4)."""
        scheduler, limit = self._shared, self.options.max_partial_bytes
        scheduler.partial += octets - self._partial
        self._partial = octets
        if scheduler.partial <= limit or not octets:
            return True
        text = f"all peers have brought {scheduler.partial} bytes of messages that are not whole, at most {limit} are taken"
        self._fail(LimitExceeded(text, kind="partial_bytes", size=scheduler.partial, limit=limit))
        return False

    def _progress_over(self) -> None:
        """Disconnect a peer that has sent less than a KiB of a message that has begun."""
        self._progress_timer, decoder = None, self._decoder
        if not decoder.begun:
            return
        came, least = decoder.progress - self._progress, PROGRESS_BYTES_MIN
        if self.pipe.throttled or self._whole or came >= least:  # throttled: reading was stopped on this side
            self._check_partial(decoder)
        else:
            text = f"{came} bytes of a message in {self.options.frame_ivl} ms, at least {least} are expected"
            self._fail(LimitExceeded(text, kind="progress", size=came, limit=least))


class LargeFramePool:
    """The buffers of one loop."""

    __slots__ = ("_clock", "free", "own_bytes", "readers", "spare")

    def __init__(self, supervisor: Supervisor) -> None:
        self.free: list[bytearray] = []  # unused buffers
        self.readers: dict[LargeFrameReader, None] = {}  # each uses one buffer
        self.own_bytes = 0  # of frames that are read into memory of their own
        self.spare = SpareFrames()
        self._clock = supervisor.timer("core large frames clock", self._clear_up)

    def takes(self, decoder: Decoder) -> bool:
        """Whether the frame that has begun is read into a buffer, or into memory of its own."""
        octets = decoder.begun_frame
        if octets <= BUFFER_BYTES - AFTER_BYTES:
            return octets >= LARGE_BYTES_MIN
        came = octets - decoder.wanted
        return OWN_MEMORY and came * OWN_PART >= octets and (not self.own_bytes or self.own_bytes + octets <= OWN_BYTES_MAX)

    def read(self, session: FrameReading, transport: asyncio.Transport, decoder: Decoder) -> None:
        """Read the rest of the frame that has begun into a buffer, if one is free."""
        if len(self.readers) >= BUFFERS_MAX:
            idle = next((reader for reader in self.readers if reader.between), None)
            if idle is None:
                return
            idle.leave()
        buffer = self.free.pop() if self.free else bytearray(BUFFER_BYTES)
        reader = LargeFrameReader(self, session, transport, decoder, buffer)  # there may be no memory for the frame
        self.readers[reader] = None
        switch(transport, reader)
        if self._clock.when is None:
            self._clock.after(IDLE_S)

    def left(self, reader: LargeFrameReader, buffer: bytearray) -> None:
        if reader in self.readers:
            del self.readers[reader]
            self.free.append(buffer)

    def _clear_up(self) -> None:
        """Free the buffers when no large frames have come for a while."""
        self.free.clear()
        self.spare.clear_up()
        for reader in list(self.readers):
            reader.check()
        if self.readers or self.free or self.spare.frames:
            self._clock.after(IDLE_S)


@mypyc_attr(native_class=False)
class LargeFrameReader(BufferedProtocol):
    """Reads for a session while its peer sends large frames."""

    _at: int  # bytes in the buffer
    _end: int  # where the frame ends, 0 between two of them
    _heard: bool  # since `check`; set where anything was read

    __slots__ = (
        "_at", "_buffer", "_bytes", "_decoder", "_end", "_heard", "_own", "_pool", "_session", "_transport", "_view",
    )  # fmt: skip

    def __init__(
        self,
        pool: LargeFramePool,
        session: FrameReading,
        transport: asyncio.Transport,
        decoder: Decoder,
        buffer: bytearray,
    ) -> None:
        self._pool = pool  # takes the buffer back
        self._session = session
        self._transport = transport
        self._decoder = decoder  # of the session, in which a frame has begun
        self._buffer = buffer  # is read into
        self._own: bytes | None = None  # memory of the frame without its header, if it is larger than a buffer
        self._view = memoryview(buffer)  # of the buffer or of that memory
        self._bytes = 0  # read since others were
        self._begin()

    @property
    def between(self) -> bool:
        return not self._end

    def _begin(self) -> None:
        """Read on in the frame that has begun."""
        self._end = self._decoder.begun_frame
        if self._end > BUFFER_BYTES - AFTER_BYTES:
            self._end -= HEADER_BYTES
            self._own, self._view = self._pool.spare.frame(self._end)
            self._pool.own_bytes += self._end
        chunks = self._decoder.detach_frame()
        if self._own is not None:
            chunks[0] = chunks[0][HEADER_BYTES:]
        at = 0
        for chunk in chunks:
            self._view[at : at + len(chunk)] = chunk
            at += len(chunk)
        self._at = at

    def _end_own(self) -> None:
        """Go back to the buffer; the memory belongs to the frame alone."""
        if self._own is not None:
            self._pool.own_bytes -= len(self._view)
            self._own, self._view = None, memoryview(self._buffer)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read: the rest of the frame and, in a buffer, a little more."""
        return self._view[self._at : self._end + AFTER_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        session, decoder, view = self._session, self._decoder, self._view
        self._heard = True
        self._bytes += nbytes
        if not session.is_reading():
            self.leave()
            return
        end = self._end
        at = self._at = self._at + nbytes
        if at < end:
            decoder.received(nbytes)
            if not session.count_partial(decoder.progress):
                self.leave()
            return
        self._end = self._at = 0
        own = self._own
        if own is not None:
            self._end_own()
            self._pool.spare.keep(own)
            batch = decoder.end_frame(own, b"")
        elif end:
            batch = decoder.end_frame(bytes(view[HEADER_BYTES:end]), bytes(view[end:at]))
        else:
            batch = decoder.feed(bytes(view[:at]))
        if decoder.failure is None and self._pool.takes(decoder):
            self._begin()
        elif not end or at > end:
            self.leave()  # something else follows
        session.deliver(batch, nbytes)
        if self._bytes >= TURN_BYTES:
            self._bytes = 0
            session.read_in_turn()

    def leave(self) -> None:
        self._end_own()
        self._pool.left(self, self._buffer)
        switch(self._transport, cast("asyncio.BaseProtocol", self._session))

    def check(self) -> None:
        """Leave if nothing was read since the last check and no frame has begun."""
        if self.between and not self._heard:
            self.leave()
        self._heard = False

    def eof_received(self) -> bool | None:
        return self._session.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.connection_lost(exc)  # it may read the rest into this buffer
        self._end_own()
        self._pool.left(self, self._buffer)

    def pause_writing(self) -> None:
        self._session.pause_writing()

    def resume_writing(self) -> None:
        self._session.resume_writing()


class SpareFrames:
    """The last of the largest frames; the memory of one to which nothing else refers is used again."""

    __slots__ = ("_asked", "frames")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._asked = False  # for a frame, since `clear_up`

    def frame(self, octets: int) -> tuple[bytes, memoryview]:
        """Return a frame of unknown content, and a view to fill it, before anything else has it."""
        frames = self.frames
        self._asked = True
        for at in range(len(frames)):
            if len(frames[at]) == octets and _references(frames, at) == _alone():
                return _as_new(frames.pop(at))
        return new_frame(octets)

    def keep(self, frame: bytes) -> None:
        if len(frame) >= MAPPED_BYTES_MIN and _alone():
            self.frames.append(frame)
            while len(self.frames) > SPARE_MAX or sum(map(len, self.frames)) > OWN_BYTES_MAX:
                del self.frames[0]

    def clear_up(self) -> None:
        """Give the memory back when no such frame has come since the last call."""
        if not self._asked:
            self.frames.clear()
        self._asked = False


def _references(frames: list[bytes], at: int) -> int:
    """Return how many references to one of these frames there are, with those of this call."""
    return sys.getrefcount(frames[at])


@cache
def _alone() -> int:
    """Return what `_references` is where only the list refers to a frame; 0 where no memory may be used again.

    `bytes` keep their hash, once they were asked for it, right before their content. It is looked at here whether this Python's do.
    """
    frames = [new_frame(_HASH_BYTES)[0]]
    kept = hash(frames[0]).to_bytes(_HASH_BYTES, sys.byteorder, signed=True)
    _, address_of, view_of, _ = _c_functions()
    found = bytes(view_of(address_of(frames[0]) - _HASH_BYTES, _HASH_BYTES, PY_BUF_WRITE))
    counted = "t" not in sys.abiflags  # with free threads, references of each thread are counted apart
    return _references(frames, 0) if counted and found == kept else 0


def _as_new(frame: bytes) -> tuple[bytes, memoryview]:
    """Return a frame to which nothing else refers, and a view to fill it anew; it forgets its hash."""
    _, address_of, view_of, _ = _c_functions()
    start = address_of(frame)
    view_of(start - _HASH_BYTES, _HASH_BYTES, PY_BUF_WRITE)[:] = _NO_HASH
    return frame, view_of(start, len(frame), PY_BUF_WRITE)


def new_frame(octets: int) -> tuple[bytes, memoryview]:
    """Return a frame of unknown content in new memory, and a view to fill it, before anything else has it."""
    make, address_of, view_of, advise = _c_functions()
    frame = make(None, octets)
    start = address_of(frame)
    if octets >= MAPPED_BYTES_MIN:
        begin = -(-start // PAGE_BYTES) * PAGE_BYTES
        advise(begin, (start + octets) // PAGE_BYTES * PAGE_BYTES - begin, MADV_HUGEPAGE)  # where there are none, nothing changes
    return frame, view_of(start, octets, PY_BUF_WRITE)


@cache
def _c_functions() -> tuple[Any, Any, Any, Any]:
    """Return functions of C: `PyBytes_FromStringAndSize`, `PyBytes_AsString`, `PyMemoryView_FromMemory`, `madvise`."""
    import ctypes  # here: few programs receive such frames

    library = ctypes.PyDLL(None)  # of our own: what its functions take and return is set here
    make, address_of, view_of = library.PyBytes_FromStringAndSize, library.PyBytes_AsString, library.PyMemoryView_FromMemory
    make.argtypes, make.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object
    address_of.argtypes, address_of.restype = (ctypes.py_object,), ctypes.c_void_p
    view_of.argtypes, view_of.restype = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int), ctypes.py_object
    advise = library.madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return make, address_of, view_of, advise


def switch(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Replace the protocol of a transport; uvloop checks its kind when reading begins."""
    reading = transport.is_reading()
    transport.pause_reading()
    transport.set_protocol(protocol)
    if reading:
        transport.resume_reading()
