"""Rings of several members merged into one line of time, and the choice of what to see of it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wtransport.recorder.format import FlightState, Op
from wtransport.recorder.reader import Record, Ring, RingFormatError, RingHeader, read_ring

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation of one member.

    Attributes:
        header: The ring it stands in.
        record: The operation.
        wall_start_ns: Wall-clock time of its start.
        age_ns: For one that has not ended: its age when its member recorded last. None for one that
            has.
    """

    header: RingHeader
    record: Record
    wall_start_ns: int
    age_ns: int | None

    @property
    def failed(self) -> bool:
        """Whether it failed, was cancelled, or was cut short by the death of its process."""
        cut_short = self.age_ns is not None and self.header.killed
        return cut_short or self.record.state in (FlightState.FAILED, FlightState.CANCELLED)

    @property
    def gb_per_s(self) -> float | None:
        """Rate in 10**9 bytes a second; None where nothing was moved or no time was measured."""
        duration_ns = self.record.duration_ns
        return self.record.nbytes_done / duration_ns if duration_ns and duration_ns > 0 and self.record.nbytes_done else None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is no ring, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """What some rings tell.

    Attributes:
        rings: The rings read.
        entries: Their operations by wall-clock time of their start.
        unreadable: Files that could not be read.
    """

    rings: Sequence[Ring]
    entries: Sequence[Entry]
    unreadable: Sequence[Unreadable]

    def select(self, *, ops: Collection[Op] = (), failed: bool = False, last: int | None = None) -> Sequence[Entry]:
        """The last *last* operations of the kinds *ops* (empty: all) that failed (if *failed*)."""
        chosen = [entry for entry in self.entries if (not ops or entry.record.op in ops) and (not failed or entry.failed)]
        return chosen if last is None else chosen[max(0, len(chosen) - last) :]


def find_rings(path: Path) -> list[Path]:
    """The ring *path* itself, or those in it: a job's folder, or a state directory of jobs."""
    if not path.is_dir():
        return [path]
    return sorted(path.glob("*.ring")) or sorted(path.glob("*/*.ring"))


def read_timeline(paths: Sequence[Path]) -> Timeline:
    """Read and merge the rings at *paths*; what cannot be read is listed, never raised."""
    rings: list[Ring] = []
    entries: list[Entry] = []
    unreadable: list[Unreadable] = []
    for path in paths:
        try:
            ring = read_ring(path)
        except RingFormatError as error:
            unreadable.append(Unreadable(path, error.message))
            continue
        except OSError as error:
            unreadable.append(Unreadable(path, f"{path}: {error.strerror}"))
            continue
        rings.append(ring)
        t_last_ns = ring.t_last_ns
        for record in ring.records:
            age_ns = t_last_ns - record.t_start_ns if record.t_end_ns is None else None
            entries.append(Entry(ring.header, record, ring.header.wall_ns(record.t_start_ns), age_ns))
    entries.sort(key=lambda entry: entry.wall_start_ns)
    return Timeline(rings, entries, unreadable)


def wall_text(wall_ns: int) -> str:
    """A wall-clock time as ISO 8601 in UTC with microseconds; what no calendar can say, in ns."""
    try:
        moment = datetime.datetime.fromtimestamp(wall_ns // 10**9, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{wall_ns} ns"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ns % 10**9 // 1000:06d}Z"
