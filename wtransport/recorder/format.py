"""The flight ring's file, version 1: layout, units, tables of operations, states and backends.

A ring is one file of ``4096 + 256 * num_records`` bytes, allocated in full when it is made and
mapped by the one process that writes it. All integers are little-endian, all times nanoseconds, all
texts utf-8, cut at a character where they are too long.

Header page (4096 bytes)::

    offset  size  field
         0     8  magic            "WTRING" and two zero bytes; written last
         8     4  format_version   u32, 1
        12     4  header_nbytes    u32, 4096
        16     4  record_nbytes    u32, 256
        20     4  pid              u32, the writer
        24     8  num_records      u64, at most 2**18
        32     8  wall_open_ns     u64, CLOCK_REALTIME when the ring was made
        40     8  mono_open_ns     u64, CLOCK_MONOTONIC then: it dates every other time
        48     4  meta_nbytes      u32
       128     8  next_seq         u64, sequence numbers given out so far
       136     8  num_dropped      u64, operations lost: their record was still being written
       144     8  mono_closed_ns   u64, CLOCK_MONOTONIC of an orderly close; 0 if there was none
       192  3904  meta             msgpack map, see ``RingMeta``

Record ``seq % num_records`` (256 bytes each, from byte 4096)::

    offset  size  field            written by begin
         0     8  stamp            u64, (seq + 1) << 2 | phase; 0: never used
         8     8  t_start_ns       u64, CLOCK_MONOTONIC
        16     8  version          i64, the weights' version; -2**63: none
        24     8  term             u64, of the publication; 0: none
        32     8  nbytes_total     u64, bytes the operation is to move
        40     4  publication      u32, n of the publication
        44     4  rank             i32, the trainer or generator rank concerned; -1: none
        48     4  thread_id        u32, kernel thread id of the caller
        52     2  op               u16, see ``Op``
        54     1  backend          u8, see ``FlightBackend``
        55     1  peer_nbytes      u8
        56     1  detail_nbytes    u8, at most 48
        64    40  peer             the other member's name
                                   written by end
       104     8  t_end_ns         u64, CLOCK_MONOTONIC
       112     8  nbytes_done      u64
       120     4  code             i32, native error code (0: none)
       124     1  state            u8, see ``FlightState``
       125     1  outcome_nbytes   u8
       126   130  text             detail (of begin) from byte 0, then the outcome (of end)

The phase in the stamp says what may be believed: 0 ended (all of it), 1 begin in progress (nothing:
torn, if the writer is dead), 2 started and 3 end in progress (the fields of begin). A live record
is to be read twice and believed when both readings agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

MAGIC: Final = b"WTRING\0\0"
FORMAT_VERSION: Final = 1
HEADER_NBYTES: Final = 4096
RECORD_NBYTES: Final = 256
MAX_RECORDS: Final = 1 << 18
DETAIL_NBYTES: Final = 48
NO_VERSION: Final = -(2**63)

HEADER: Final = np.dtype(
    {
        "names": [
            "magic",
            "format_version",
            "header_nbytes",
            "record_nbytes",
            "pid",
            "num_records",
            "wall_open_ns",
            "mono_open_ns",
            "meta_nbytes",
            "next_seq",
            "num_dropped",
            "mono_closed_ns",
            "meta",
        ],
        "formats": [
            "V8",
            "<u4",
            "<u4",
            "<u4",
            "<u4",
            "<u8",
            "<u8",
            "<u8",
            "<u4",
            "<u8",
            "<u8",
            "<u8",
            "V3904",
        ],
        "offsets": [0, 8, 12, 16, 20, 24, 32, 40, 48, 128, 136, 144, 192],
        "itemsize": HEADER_NBYTES,
    }
)

RECORD: Final = np.dtype(
    {
        "names": [
            "stamp",
            "t_start_ns",
            "version",
            "term",
            "nbytes_total",
            "publication",
            "rank",
            "thread_id",
            "op",
            "backend",
            "peer_nbytes",
            "detail_nbytes",
            "peer",
            "t_end_ns",
            "nbytes_done",
            "code",
            "state",
            "outcome_nbytes",
            "text",
        ],
        "formats": [
            *(
                "<u8",
                "<u8",
                "<i8",
                "<u8",
                "<u8",
                "<u4",
                "<i4",
                "<u4",
                "<u2",
                "u1",
                "u1",
                "u1",
                "V40",
            ),
            *("<u8", "<u8", "<i4", "u1", "u1", "V130"),
        ],
        "offsets": [0, 8, 16, 24, 32, 40, 44, 48, 52, 54, 55, 56, 64, 104, 112, 120, 124, 125, 126],
        "itemsize": RECORD_NBYTES,
    }
)


class Phase(IntEnum):
    """The low two bits of a record's stamp."""

    ENDED = 0
    BEGINNING = 1
    STARTED = 2
    ENDING = 3


class FlightState(IntEnum):
    """What became of an operation."""

    STARTED = 1
    DONE = 2
    FAILED = 3
    CANCELLED = 4


class FlightBackend(IntEnum):
    """What moved the bytes."""

    NONE = 0
    INPROC = 1
    SHM = 2
    TCP = 3
    UCX = 4
    NCCL = 5


class Op(IntEnum):
    """What was done. The numbers are part of the format: never reused, new ones are appended."""

    PUT = 1  # one version, from the call to its receipt
    DELIVER = 2  # one version to one generator
    WRITE = 3  # one bucket, written to a peer
    READ = 4  # one bucket, read from a peer
    VERIFY = 5  # digests and coverage of a version
    INSTALL = 6  # a complete version becomes the one that is seen here
    PULL = 7  # one version, fetched from its holders
    GET = 8
    BIND = 9
    SNAPSHOT = 10  # a version's bytes are copied aside
    POPULATE = 11  # pages of a slot or snapshot are faulted in
    LEASE = 12
    WITHDRAW = 13
    OVERTAKEN = 14
    BEHIND = 15
    SHOW = 16  # a group's version becomes visible on every rank
    UNAVAILABLE = 17
    JOIN = 18
    LEAVE = 19
    LOST = 20  # a member was found dead or silent
    ISOLATED = 21  # and nothing waits for it any more
    RESUMED = 22  # and what it had held up goes on
    REJOINED = 23  # and its next incarnation is ready
    EXCLUDED = 24
    ADMITTED = 25
    FENCED = 26  # a newer incarnation took the place, or a stale frame was refused
    STALLED = 27  # beats arrive, but Python made no progress
    CONNECT = 28
    ABORT = 29  # an endpoint was aborted
    ABANDON = 30  # memory a fenced writer may still write to was given up
    QUARANTINE = 31  # memory under a work that does not settle was set aside
    TERM = 32
    PUBLICATION = 33
    CLOSE = 34


@dataclass(frozen=True, slots=True)
class RingMeta:
    """Who wrote a ring; the msgpack map in its header has exactly these keys.

    Attributes:
        job: The job's name.
        member: The member's name.
        role: ``trainer``, ``generator`` or ``coordinator``.
        rank: Rank in its group; -1 if it has none.
        incarnation: 128 random bits as 32 hex digits.
        library: Version of this library.
        hostname: Host the process ran on.
        boot_id: Kernel boot id of the host, to tell an earlier boot; empty if it could not be read.
        pid_namespace: Inode of the PID namespace in which ``pid`` is meant; 0 if unknown.
        start_ticks: Start time of the process (clock ticks since boot), to tell a reused pid; 0 if
            unknown.
    """

    job: str
    member: str
    role: str
    rank: int
    incarnation: str
    library: str
    hostname: str
    boot_id: str
    pid_namespace: int
    start_ticks: int
