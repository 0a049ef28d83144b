"""
Native core of wtransport: copies, digests, shared memory, completions.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
import numpy.typing
from numpy.typing import NDArray


def error_codes() -> dict[str, int]:
    """Name and value of every native error code."""

def error_texts() -> dict[int, str]:
    """What each native error code means, by value."""

class LocalRegion:
    """
    Private memory by reference, one block per tensor. Keeps nothing alive: its maker does.
    """

    def __init__(self, blocks: Sequence[tuple[int, int, Sequence[int], Sequence[int]]]) -> None:
        """
        blocks: (address, item size in bytes, shape, strides in bytes) of each. ValueError for a negative stride or size, an
        item size outside 1..16, or more than 16 dimensions.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, serialised one after another."""

    @property
    def num_blocks(self) -> int: ...

class SharedRegion:
    """
    One sealed memfd: a header page with the generation, then the data. Mapped until closed (or collected)
    and no work and no view uses it any more.
    """

    @staticmethod
    def create(nbytes: int) -> SharedRegion:
        """
        New memory of zeros, mapped writable. MemoryError or OSError if there is none.
        """

    @staticmethod
    def attach(fd: int, nbytes: int, writable: bool) -> SharedRegion:
        """
        Map a peer's region through a dup of fd. ValueError unless it is a memfd of ordinary pages, sealed against
        shrinking and growing, of exactly nbytes of data; so reading it can never fault.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of data, without the header page."""

    @property
    def address(self) -> int:
        """Address of the first data byte; ValueError once closed."""

    @property
    def writable(self) -> bool:
        """Whether this process mapped it writable; ValueError once closed."""

    @property
    def generation(self) -> int:
        """
        The header's generation word (acquire and release); ValueError once closed, or on setting it read-only.
        """

    @generation.setter
    def generation(self, arg: int, /) -> None: ...

    def fileno(self) -> int:
        """The memfd, which stays the region's; ValueError once closed."""

    def view(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        The data as a byte array that shares memory and keeps it mapped; read-only where the mapping is.
        """

    def punch(self) -> None:
        """
        Move the generation on by one, then give all data pages back though others still map them: they read as zeros.
        """

    def close(self) -> None:
        """
        Let go of the mapping; it goes when the last running work and view over it do. Idempotent.
        """

DIGEST: int = 1

class Work:
    """A submitted transfer; settles exactly once."""

    @property
    def id(self) -> int:
        """Number of the work in its engine; never reused."""

    @property
    def nbytes(self) -> int:
        """Bytes that are to move."""

    def progress(self) -> int:
        """Bytes done so far."""

    def code(self) -> int:
        """The error code it settled with; 0 while running and when done well."""

    def settled(self) -> bool: ...

    def detail(self) -> str:
        """What went wrong, in words; empty while running and when done well."""

    def cancel(self) -> None:
        """
        Drop what has not started; the work settles (CANCELLED, if bytes are then missing) when what is in flight has.
        """

    def digests(self) -> numpy.typing.NDArray[numpy.uint64]:
        """
        uint64[num_digests]: per tensor, the digest of the bytes this side loaded, sent or received.
        """

class Engine:
    """
    Copy threads, and the queue on which all native works report that they settled.
    """

    def __init__(self, copy_threads: int) -> None:
        """
        copy_threads: 1 to 256, else ValueError. OSError if there is no descriptor, MemoryError if there is no thread to be had.
        """

    def fileno(self) -> int:
        """An eventfd, readable while events wait."""

    def drain(self) -> list[tuple[int, int, int, int]]:
        """
        The waiting events, oldest first: (0, work id, error code, bytes done), (1, peer handle, LIVENESS_*, age in ns) and
        (2, endpoint id, error code, 0).
        """

    def copy(self, src: LocalRegion | SharedRegion, dst: LocalRegion | SharedRegion, spans: Annotated[NDArray, dict(writable=False)], num_digests: int, flags: int) -> Work:
        """
        Copy to mapped memory; src is the local side of the span table. Up to 256 KiB it is done, and settled without an event,
        on return. Both regions must live until the work settles.
        """

    def copy_from(self, src: LocalRegion | SharedRegion, dst: LocalRegion | SharedRegion, spans: Annotated[NDArray, dict(writable=False)], num_digests: int, flags: int) -> Work:
        """
        Copy from mapped memory; dst is the local side of the span table. Otherwise as copy().
        """

    def digest(self, region: LocalRegion | SharedRegion, spans: Annotated[NDArray, dict(writable=False)], num_digests: int) -> Work:
        """
        Digest memory where it lies: a LocalRegion by columns 0 and 1, a SharedRegion by column 2.
        """

    def populate(self, region: SharedRegion) -> Work:
        """
        Fault in every page of a region, so that the first copy runs at full speed.
        """

    def close(self) -> None:
        """
        Cancel what is queued, wait for chunks that run, join the threads; later calls settle with CLOSED. Idempotent.
        """

class FlightRing:
    """
    A preallocated, mapped file of flight records (wtransport/recorder/format.py).
    """

    def __init__(self, path: str, num_records: int, meta: bytes) -> None: ...

    def begin(self, op: int, backend: int, peer: bytes, version: int, term: int, publication: int, rank: int, nbytes: int, detail: bytes, t_start_ns: int = 0) -> int:
        """Record a start; returns the seq that end() takes."""

    def end(self, seq: int, state: int, code: int, nbytes_done: int, detail: bytes) -> bool:
        """
        Record an end; False if it had ended before or its record was overwritten meanwhile.
        """

    def close(self) -> None:
        """Mark the file as closed in good order; idempotent."""

def flight_format() -> dict[str, object]:
    """The layout of the ring's file as this module writes it."""

class TcpSender:
    """The initiator's side of one TCP endpoint."""

    def __init__(self, engine: Engine, fds: Sequence[int], epoch: int) -> None:
        """
        Takes ownership of connected stream sockets, whether or not it succeeds.
        """

    @property
    def id(self) -> int:
        """
        Number in the engine; the event (2, id, error code, 0) says that the endpoint broke.
        """

    def write(self, src: LocalRegion | SharedRegion, key: int, generation: int, spans: Annotated[NDArray, dict(writable=False)], num_digests: int, flags: int) -> Work:
        """
        Store local spans in what the peer granted under (key, generation). Settles OK once the owner has stored every byte.
        The caller keeps the memory until then.
        """

    def read(self, dst: LocalRegion | SharedRegion, key: int, generation: int, spans: Annotated[NDArray, dict(writable=False)], num_digests: int, flags: int) -> Work:
        """
        Fetch spans of what the peer granted; columns 0 and 1 say where they go. STALE if the grant ended before the last byte.
        """

    def alive(self) -> bool: ...

    def status(self) -> tuple[int, str]:
        """(error code, detail) of the endpoint's end; (0, '') while it is alive."""

    def abort(self) -> None:
        """
        Shut the sockets down; never waits. Works settle with ABORTED as soon as nothing touches their memory.
        """

    def close(self) -> None:
        """
        Wait until every work has settled, then close. Idempotent; abort() from another thread ends the wait.
        """

class TcpReceiver:
    """The owner's side of one TCP endpoint."""

    def __init__(self, engine: Engine, fds: Sequence[int], epoch: int) -> None:
        """
        Takes ownership of connected stream sockets, whether or not it succeeds.
        """

    @property
    def id(self) -> int:
        """
        Number in the engine; the event (2, id, error code, 0) says that the endpoint broke.
        """

    def grant(self, key: int, region: LocalRegion | SharedRegion, generation: int, writable: bool, num_digests: int) -> None:
        """
        Let the peer write (if writable) and read a region. An older grant of the key is revoked. The grant is over once the
        generation word of a shared region moves. The caller keeps a LocalRegion's memory until revoke() or close() returned.
        """

    def revoke(self, key: int) -> None:
        """
        When it returns nobody touches the region through this endpoint; later frames are refused with STALE and counted.
        """

    def ledger(self, key: int) -> tuple[numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.int64]]:
        """
        (uint64 digests, int64 bytes stored) per tensor, since the grant or the last reset. KeyError without a grant.
        """

    def reset_ledger(self, key: int) -> None:
        """Begin a new account. KeyError without a grant."""

    def refused(self) -> int:
        """
        Frames refused so far: older epochs and generations, unknown keys, out of bounds.
        """

    def alive(self) -> bool: ...

    def status(self) -> tuple[int, str]:
        """(error code, detail) of the endpoint's end; (0, '') while it is alive."""

    def abort(self) -> None:
        """Shut the sockets down; never waits."""

    def close(self) -> None:
        """
        Wait until no frame is under way, then close and revoke every grant. Idempotent; abort() ends the wait.
        """

LIVENESS_SILENT: int = 1

LIVENESS_RESUMED: int = 2

LIVENESS_EOF: int = 3

LIVENESS_EXITED: int = 4

LIVENESS_STALLED: int = 5

LIVENESS_UNSTALLED: int = 6

class Heart:
    """
    A native thread that beats whatever Python does, and watches the beats of peers.
    """

    def __init__(self, engine: Engine, interval_s: float, silent_after_s: float) -> None:
        """
        Events (1, peer, LIVENESS_*, age in ns) go to the engine. ValueError unless 0 < interval_s < silent_after_s.
        """

    def add(self, peer: int, fd: int) -> None:
        """
        Beat to, and expect beats from, a connected stream socket, which belongs to the heart from now on.
        """

    def watch_pid(self, peer: int, pidfd: int) -> None:
        """
        Report LIVENESS_EXITED when the process of a pidfd ends; the pidfd belongs to the heart from now on.
        """

    def remove(self, peer: int) -> None:
        """
        Close what is held for the peer; no event about it is queued after this returns.
        """

    def touch(self) -> None:
        """Python made progress."""

    def stats(self, peer: int) -> tuple[int, int]:
        """
        (age of the last beat, Python age it carried), in ns. KeyError for a peer without a socket.
        """

    def close(self) -> None:
        """Join the thread, close every descriptor. Idempotent."""
