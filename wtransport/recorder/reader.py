"""Reads flight rings, of running, closed and killed processes alike, without the native module.

Nothing in a file is believed unchecked.
"""

from __future__ import annotations

import contextlib
import os
import stat
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack
import numpy as np

from wtransport.errors import TransportError
from wtransport.recorder.format import (
    DETAIL_NBYTES,
    FORMAT_VERSION,
    HEADER,
    HEADER_NBYTES,
    MAGIC,
    MAX_RECORDS,
    NO_VERSION,
    RECORD,
    RECORD_NBYTES,
    FlightBackend,
    FlightState,
    Op,
    Phase,
    RingMeta,
)
from wtransport.recorder.process import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_BLOCK_RECORDS = 4096
_NUM_READINGS = 8
_E = TypeVar("_E", Op, FlightBackend)


class RingFormatError(TransportError):
    """The file is not a flight ring this version can read."""

    code = "ring_format"


@dataclass(frozen=True, slots=True)
class RingHeader:
    """Who wrote a ring and how it stands.

    Attributes:
        path: The file.
        meta: What the writer said about itself.
        pid: The writer.
        num_records: Records the ring keeps.
        wall_open_ns: Wall-clock time when it was made.
        mono_open_ns: Monotonic time at the same moment.
        next_seq: Operations begun so far.
        num_dropped: Operations that were not recorded.
        mono_closed_ns: Monotonic time of an orderly close, None if there was none.
        alive: Whether the writer runs now; None where that cannot be known from here.
    """

    path: Path
    meta: RingMeta
    pid: int
    num_records: int
    wall_open_ns: int
    mono_open_ns: int
    next_seq: int
    num_dropped: int
    mono_closed_ns: int | None
    alive: bool | None

    @property
    def closed(self) -> bool:
        """Whether the writer closed it in good order."""
        return self.mono_closed_ns is not None

    @property
    def killed(self) -> bool:
        """Whether the writer is gone without having closed it."""
        return not self.closed and self.alive is False

    @property
    def status(self) -> str:
        """``closed``, ``killed``, ``running`` or ``unknown``."""
        if self.closed:
            return "closed"
        return "unknown" if self.alive is None else "running" if self.alive else "killed"

    def wall_ns(self, mono_ns: int) -> int:
        """Wall-clock time of a monotonic time of this ring."""
        return self.wall_open_ns + mono_ns - self.mono_open_ns


@dataclass(frozen=True, slots=True)
class Record:
    """One operation.

    Attributes:
        seq: Its number in this ring.
        op: What was done (a bare int if a newer library wrote it).
        state: What became of it.
        backend: What moved the bytes (a bare int if a newer library wrote it).
        peer: The other member, or empty.
        version: The weights' version.
        term: Term of the publication, 0 for none.
        publication: Its n.
        rank: The rank concerned.
        nbytes_total: Bytes to move.
        nbytes_done: Bytes moved; 0 while it has not ended.
        code: Native error code, 0 for none.
        thread_id: Kernel thread id of the caller.
        detail: What was said at its start.
        outcome: What was said at its end.
        t_start_ns: Monotonic.
        t_end_ns: Monotonic; None while it has not ended.
    """

    seq: int
    op: Op | int
    state: FlightState
    backend: FlightBackend | int
    peer: str
    version: int | None
    term: int
    publication: int
    rank: int | None
    nbytes_total: int
    nbytes_done: int
    code: int
    thread_id: int
    detail: str
    outcome: str
    t_start_ns: int
    t_end_ns: int | None

    @property
    def duration_ns(self) -> int | None:
        """From start to end; None while it has not ended."""
        return None if self.t_end_ns is None else self.t_end_ns - self.t_start_ns


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring as it was read.

    Attributes:
        header: Who wrote it.
        records: Its records in the order of their start.
        num_torn: Records that could not be believed (being written while they were read, or when
            the process was killed).
        truncated: Whether the file is shorter than its header says.
    """

    header: RingHeader
    records: list[Record]
    num_torn: int
    truncated: bool

    @property
    def t_last_ns(self) -> int:
        """Monotonic time of the last thing recorded."""
        times = [record.t_end_ns or record.t_start_ns for record in self.records]
        return max([self.header.mono_open_ns, *times])


def read_header(path: Path) -> RingHeader:
    """Read who wrote the ring at *path*.

    Raises:
        OSError: If the file cannot be opened.
        RingFormatError: If it is not a ring.
    """
    with _opened(path) as fd:
        return _header(path, fd)


def read_ring(path: Path) -> Ring:
    """Read the ring at *path*, whether or not its process still writes to it.

    Memory is bounded by the file's size, at most 64 MiB of records, whatever its header claims.

    Raises:
        OSError: If the file cannot be opened.
        RingFormatError: If it is not a ring.
    """
    with _opened(path) as fd:
        header = _header(path, fd)
        whole = (os.fstat(fd).st_size - HEADER_NBYTES) // RECORD_NBYTES
        num_records = min(header.num_records, whole)
        records: list[Record] = []
        num_torn = 0
        for first in range(0, num_records, _BLOCK_RECORDS):
            block = _stable_block(fd, first, min(_BLOCK_RECORDS, num_records - first))
            for i in np.flatnonzero(block["stamp"]):
                record = _record(block[i], first + int(i), header.num_records)
                if record is None:
                    num_torn += 1
                else:
                    records.append(record)
    records.sort(key=lambda record: (record.t_start_ns, record.seq))
    return Ring(header, records, num_torn, truncated=num_records < header.num_records)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    # Non-blocking, so that a named pipe in the folder cannot hang its reader.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RingFormatError(f"{path} is not a regular file")
        yield fd
    finally:
        os.close(fd)


def _header(path: Path, fd: int) -> RingHeader:
    page = os.pread(fd, HEADER_NBYTES, 0)
    if len(page) < HEADER_NBYTES or not page.startswith(MAGIC):
        raise RingFormatError(f"{path} is not a flight ring")
    fields: dict[str, Any] = dict(zip(HEADER.names or (), np.frombuffer(page, HEADER)[0].item(), strict=True))
    if fields["format_version"] != FORMAT_VERSION:
        raise RingFormatError(f"{path} is a flight ring of format {fields['format_version']}; this library reads {FORMAT_VERSION}")
    sizes = (fields["header_nbytes"], fields["record_nbytes"])
    if sizes != (HEADER_NBYTES, RECORD_NBYTES) or not 1 <= fields["num_records"] <= MAX_RECORDS:
        raise RingFormatError(f"the header of {path} is damaged: sizes {sizes}, {fields['num_records']} records")
    meta = _meta(path, bytes(fields["meta"])[: fields["meta_nbytes"]])
    identity = ProcessIdentity(fields["pid"], meta.start_ticks, meta.boot_id, meta.pid_namespace, meta.hostname)
    return RingHeader(
        path=path,
        meta=meta,
        pid=fields["pid"],
        num_records=fields["num_records"],
        wall_open_ns=fields["wall_open_ns"],
        mono_open_ns=fields["mono_open_ns"],
        next_seq=fields["next_seq"],
        num_dropped=fields["num_dropped"],
        mono_closed_ns=fields["mono_closed_ns"] or None,
        alive=identity.alive(),
    )


def _meta(path: Path, packed: bytes) -> RingMeta:
    try:
        found = msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException) as error:
        raise RingFormatError(f"the description in {path} is damaged: {error}") from error
    kinds = typing.get_type_hints(RingMeta)
    if not isinstance(found, dict) or {name: type(item) for name, item in found.items()} != kinds:
        raise RingFormatError(f"the description in {path} is damaged: not the fields it must have")
    return RingMeta(**found)


def _read_block(fd: int, first: int, num_records: int) -> NDArray[np.uint8]:
    """Bytes of some records, [num_records, 256]."""
    raw = os.pread(fd, num_records * RECORD_NBYTES, HEADER_NBYTES + first * RECORD_NBYTES)
    # Shorter if the file was cut meanwhile: what is missing reads as never used.
    padded = bytearray(raw.ljust(num_records * RECORD_NBYTES, b"\0"))
    return np.frombuffer(padded, np.uint8).reshape(num_records, RECORD_NBYTES)


def _stable_block(fd: int, first: int, num_records: int) -> NDArray[np.void]:
    """Records that read the same twice in a row; the others are given the phase of a torn one."""
    block = _read_block(fd, first, num_records)
    unstable = np.ones(num_records, bool)
    for _ in range(_NUM_READINGS):
        again = _read_block(fd, first, num_records)
        same = (block == again).all(axis=1)
        block[unstable] = again[unstable]
        unstable &= ~same
        if not unstable.any():
            break
    records = block.view(RECORD)[:, 0]
    records["stamp"][unstable] = Phase.BEGINNING
    return records


def _record(raw: np.void, slot: int, num_records: int) -> Record | None:
    """One used record; None if it is torn or makes no sense."""
    fields: dict[str, Any] = dict(zip(RECORD.names or (), raw.item(), strict=True))
    seq, phase = (fields["stamp"] >> 2) - 1, Phase(fields["stamp"] & 3)
    detail_nbytes, outcome_nbytes = fields["detail_nbytes"], fields["outcome_nbytes"]
    if phase is Phase.BEGINNING or seq < 0 or seq % num_records != slot:
        return None
    if fields["peer_nbytes"] > RECORD["peer"].itemsize or detail_nbytes > DETAIL_NBYTES:
        return None
    ended = phase is Phase.ENDED
    if ended and detail_nbytes + outcome_nbytes > RECORD["text"].itemsize:
        return None
    if ended and fields["state"] not in (
        FlightState.DONE,
        FlightState.FAILED,
        FlightState.CANCELLED,
    ):
        return None
    text = bytes(fields["text"])
    return Record(
        seq=seq,
        op=_member(Op, fields["op"]),
        state=FlightState(fields["state"]) if ended else FlightState.STARTED,
        backend=_member(FlightBackend, fields["backend"]),
        peer=_text(bytes(fields["peer"])[: fields["peer_nbytes"]]),
        version=None if fields["version"] == NO_VERSION else fields["version"],
        term=fields["term"],
        publication=fields["publication"],
        rank=None if fields["rank"] < 0 else fields["rank"],
        nbytes_total=fields["nbytes_total"],
        nbytes_done=fields["nbytes_done"] if ended else 0,
        code=fields["code"] if ended else 0,
        thread_id=fields["thread_id"],
        detail=_text(text[:detail_nbytes]),
        outcome=_text(text[detail_nbytes : detail_nbytes + outcome_nbytes]) if ended else "",
        t_start_ns=fields["t_start_ns"],
        t_end_ns=fields["t_end_ns"] if ended else None,
    )


def _member(kind: type[_E], value: int) -> _E | int:
    return kind(value) if value in kind.__members__.values() else value


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
