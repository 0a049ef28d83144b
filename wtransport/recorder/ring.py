"""The flight recorder as the service uses it. Nothing here raises once it is open."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from typing import TYPE_CHECKING, Final, Self

import msgpack

from wtransport._native import FlightRing
from wtransport.errors import ConfigError, RegistrationError, TransportError, exhausted
from wtransport.recorder.format import (
    MAX_RECORDS,
    NO_VERSION,
    FlightBackend,
    FlightState,
    Op,
    RingMeta,
)
from wtransport.recorder.process import ProcessIdentity, library_version
from wtransport.recorder.prune import prune, prune_jobs

if TYPE_CHECKING:
    from pathlib import Path

#: What begin() returns once the recorder is closed; end() ignores it.
NO_SEQ: Final = 2**64 - 1

_Start = tuple[int, int, bytes, int, int, int, int, int, bytes, int]


class FlightRecorder:
    """The flight ring of one member's incarnation: a file of fixed size, readable at any time.

    begin, end, fail and event may be called from any thread and never raise. They make no system call that waits, but the kernel
    may hold a writer up while it writes the page back: where disks are busy, put the folder on a memory file system. An operation
    that lasts so long that its record is overwritten is recorded anew, with its first start time, when it ends. A forked child
    leaves the file alone when it closes its copy.

    Args:
        ring: The native ring.
        path: Its file.
        num_records: How many records it keeps.
    """

    def __init__(self, ring: FlightRing, path: Path, num_records: int) -> None:
        self.path = path
        self._ring = ring
        self._num_records = num_records
        self._open: dict[int, _Start] = {}
        self._closed = False

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        job: str,
        member: str,
        role: str,
        rank: int,
        incarnation: str,
        num_records: int = 4096,
    ) -> Self:
        """Make ``folder/<job>/<member>-<pid>-<incarnation>.ring``; remove old rings beside it.

        Args:
            folder: The state directory (``config.state_dir``); made with mode 0700 where missing.
            job: Name of the job; with *member*, reduced to characters that are safe in a file name.
            member: The member's name.
            role: ``trainer``, ``generator`` or ``coordinator``.
            rank: The member's rank, -1 if it has none.
            incarnation: Hex digits of the admission.
            num_records: Records to keep, 256 bytes each.

        Raises:
            RegistrationError: If the file cannot be made and allocated in full (a full disk, a
                read-only folder); none is left behind.
            ConfigError: If *num_records* is out of range.
        """
        if not 1 <= num_records <= MAX_RECORDS:
            raise ConfigError(f"a flight ring has between 1 and {MAX_RECORDS} records, not {num_records}")
        process = ProcessIdentity.current()
        about = RingMeta(
            job=job[:256],
            member=member[:256],
            role=role,
            rank=rank,
            incarnation=incarnation,
            library=library_version(),
            hostname=process.hostname,
            boot_id=process.boot_id,
            pid_namespace=process.pid_namespace,
            start_ticks=process.start_ticks,
        )
        path = folder / _safe(job) / f"{_safe(member)}-{process.pid}-{_safe(incarnation)}.ring"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            ring = FlightRing(str(path), num_records, msgpack.packb(dataclasses.asdict(about)))
        except (OSError, MemoryError) as error:
            hint = "free space there, or name another folder with recorder_dir"
            refused = RegistrationError(f"the flight ring {path} cannot be made: {error}", hint=hint)
            raise exhausted(error, f"make the flight ring {path}") or refused from error
        prune(path.parent)
        prune_jobs(path.parent.parent)
        return cls(ring, path, num_records)

    def begin(
        self,
        op: Op,
        *,
        backend: FlightBackend = FlightBackend.NONE,
        peer: str = "",
        version: int | None = None,
        term: int = 0,
        publication: int = 0,
        rank: int = -1,
        nbytes: int = 0,
        detail: str = "",
    ) -> int:
        """Record that an operation starts.

        Args:
            op: What is done.
            backend: What moves the bytes.
            peer: The other member's name (40 bytes of utf-8 are kept).
            version: The weights' version.
            term: Term of the publication.
            publication: Its n.
            rank: The rank concerned, -1 for none.
            nbytes: Bytes to move.
            detail: More about it (48 bytes of utf-8 are kept).

        Returns:
            The number that end and fail take.
        """
        start: _Start = (
            op,
            backend,
            peer.encode("utf-8", "replace"),
            version if version is not None and NO_VERSION < version < 2**63 else NO_VERSION,
            term & 2**64 - 1,
            publication & 2**32 - 1,
            rank,
            max(nbytes, 0),
            detail.encode("utf-8", "replace"),
            time.monotonic_ns(),
        )
        seq: int = self._ring.begin(*start)
        if seq != NO_SEQ:
            self._open[seq] = start
            if len(self._open) > self._num_records:
                self._forget_oldest()
        return seq

    def end(
        self,
        seq: int,
        state: FlightState = FlightState.DONE,
        *,
        nbytes_done: int = 0,
        code: int = 0,
        outcome: str = "",
    ) -> None:
        """Record how an operation ended; a second end of the same operation does nothing.

        Args:
            seq: What begin returned.
            state: What became of it.
            nbytes_done: Bytes moved.
            code: Native error code, 0 for none.
            outcome: Why it failed, or what came of it (82 bytes of utf-8 are kept, more where
                detail is short).
        """
        start = self._open.pop(seq, None)
        if start is None:
            return
        text = outcome.encode("utf-8", "replace")
        if not self._ring.end(seq, state, code, max(nbytes_done, 0), text):
            # Overwritten by later operations. How it ended is worth a record of its own.
            self._ring.end(self._ring.begin(*start), state, code, max(nbytes_done, 0), text)

    def fail(self, seq: int, error: BaseException, *, nbytes_done: int = 0, code: int = 0) -> None:
        """Record that an operation failed with *error*."""
        name = error.code if isinstance(error, TransportError) else type(error).__name__
        message = error.message if isinstance(error, TransportError) else str(error)
        outcome = f"{name}: {message}" if message else name
        self.end(seq, FlightState.FAILED, nbytes_done=nbytes_done, code=code, outcome=outcome)

    def event(
        self,
        op: Op,
        *,
        state: FlightState = FlightState.DONE,
        backend: FlightBackend = FlightBackend.NONE,
        peer: str = "",
        version: int | None = None,
        term: int = 0,
        publication: int = 0,
        rank: int = -1,
        nbytes: int = 0,
        detail: str = "",
        code: int = 0,
        outcome: str = "",
    ) -> None:
        """Record what has no duration; arguments as for begin and end, *nbytes* counts as done."""
        seq = self.begin(
            op,
            backend=backend,
            peer=peer,
            version=version,
            term=term,
            publication=publication,
            rank=rank,
            nbytes=nbytes,
            detail=detail,
        )
        self.end(seq, state, nbytes_done=nbytes, code=code, outcome=outcome)

    def close(self) -> None:
        """Mark the file as closed in good order. Idempotent; later begins and ends do nothing."""
        if not self._closed:
            self._closed = True
            self._ring.close()
            self._open.clear()

    def _forget_oldest(self) -> None:
        # An operation that never ends must not cost memory for ever; another thread may change the
        # table meanwhile.
        with contextlib.suppress(RuntimeError, StopIteration):
            self._open.pop(next(iter(self._open)), None)


def _safe(name: str) -> str:
    """*name* as one path component: never empty, hidden, a parent, or too long."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80].lstrip(".") or "_"
