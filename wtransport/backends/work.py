"""A submitted transfer as Python sees it: awaitable, settles once, pins its memory until it has."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wtransport.backends.native_errors import CODES, code_name, fresh, native_error
from wtransport.errors import CancelledWorkError, DeadlineError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    import numpy.typing as npt

    from wtransport.backends.base import MemoryRegion
    from wtransport.backends.deadline import Deadline
    from wtransport.backends.native_errors import Where

_STOPPED = ("CANCELLED", "ABORTED")


class Mover(Protocol):
    """What carries a work out: a native work, or something that looks like one."""

    @property
    def id(self) -> int:
        """Drawn from the engine, never reused."""

    def progress(self) -> int:
        """Bytes done so far."""

    def settled(self) -> bool:
        """Whether it ended; from then on it touches no memory."""

    def code(self) -> int:
        """Native error code, 0 when done well."""

    def detail(self) -> str:
        """A sentence about the code."""

    def cancel(self) -> None:
        """Drop what has not started; what is in flight settles."""

    def digests(self) -> npt.NDArray[np.uint64]:
        """Per tensor, of the bytes moved."""


class Work:
    """One submitted transfer.

    Any number of tasks may await it; cancelling such an await stops that wait and nothing else.
    Until it settles, it keeps its memory region, and through it the memory's owner, referenced. All
    methods belong to the event loop's thread.

    Attributes:
        id: Rises with each work of one driver.
        nbytes: Bytes expected to move.
        where: Backend, peer, epoch and phase, for errors.
    """

    def __init__(
        self,
        work_id: int,
        region: MemoryRegion,
        *,
        nbytes: int,
        num_digests: int,
        deadline: Deadline,
        where: Where,
        clock: Callable[[], float],
    ) -> None:
        self.id = work_id
        self.nbytes = nbytes
        self.where = where
        self.deadline = deadline
        self._region: MemoryRegion | None = region
        self._num_digests = num_digests
        self._clock = clock
        self._mover: Mover | None = None
        self._verify: Callable[[], TransportError | None] | None = None
        self._reason: TransportError | None = None
        self._settled = False
        self._error: TransportError | None = None
        self._nbytes_done = 0
        self._nbytes_seen = 0
        self._digests: npt.NDArray[np.uint64] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[Work], None]] = []
        # The driver's marks: when it was asked to stop, and when its endpoint was aborted for it.
        self.stopping_since: float | None = None
        self.aborted_at: float | None = None

    # ---- for everybody

    @property
    def settled(self) -> bool:
        """Whether it ended, well or not."""
        return self._settled

    @property
    def error(self) -> TransportError | None:
        """Why it failed; None while running and when done well."""
        return self._error

    def progress(self) -> int:
        """Bytes done so far."""
        return self._nbytes_done if self._mover is None else self._mover.progress()

    def digests(self) -> npt.NDArray[np.uint64]:
        """uint64 ``[num_digests]``.

        Digests of the bytes that this side loaded, sent or received so far.
        """
        if self._digests is not None:
            return self._digests
        return np.zeros(self._num_digests, np.uint64) if self._mover is None else self._mover.digests()

    def cancel(self) -> None:
        """Drop what has not started.

        What is in flight settles, then the awaiters get ``CancelledWorkError``. No effect once
        settled.
        """
        self.stop(CancelledWorkError("the transfer was cancelled"))

    def on_settled(self, callback: Callable[[Work], None]) -> None:
        """Call *callback* with this work once it has settled (at once if it has)."""
        if self._settled:
            callback(self)
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[object, None, None]:
        """Wait until settled.

        Raises:
            TransportError: Why it failed; each awaiter gets an error of its own.
        """
        if not self._settled:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                yield from waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        if self._error is not None:
            raise fresh(self._error)

    def __repr__(self) -> str:
        where, state = self.where, "running" if self._mover else "waiting"
        if self._settled or self._reason:
            state = "settled" if self._settled else "stopping"
        moved = f"{self.progress()}/{self.nbytes} bytes"
        return f"Work({where.phase} {where.backend} {where.peer}, {moved}, {state})"

    # ---- for backends and the driver

    @property
    def mover(self) -> Mover | None:
        """What carries it out; None while it waits for something, and once it has settled."""
        return self._mover

    @property
    def region(self) -> MemoryRegion | None:
        """The memory it pins; None once settled."""
        return self._region

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop and has not settled yet."""
        return self._reason is not None and not self._settled

    def begin(self, mover: Mover, verify: Callable[[], TransportError | None] | None = None) -> None:
        """*mover* carries it out from now on; *verify* looks once more when that ended well.

        For the driver.
        """
        self._mover = mover
        self._verify = verify

    def note_progress(self, now: float) -> None:
        """Renew the deadline if bytes moved since the last look."""
        nbytes_done = self.progress()
        if nbytes_done != self._nbytes_seen:
            self._nbytes_seen = nbytes_done
            self.deadline.renew(now)

    def stop(self, reason: TransportError) -> None:
        """Ask it to stop; when it has, it fails with *reason*, unless every byte was moved already.

        The first reason stays.
        """
        if self._settled:
            return
        if self._reason is None:
            self._reason = reason
            self.stopping_since = self._clock()
        if self._mover is None:
            self.settle(reason)
        else:
            self._mover.cancel()

    def replace_reason(self, reason: TransportError) -> None:
        """It did not stop in time: it fails with *reason* instead."""
        self._reason = reason

    def finish(self) -> None:
        """The mover settled: settle accordingly."""
        mover = self._mover
        if mover is None or self._settled:
            return
        self._nbytes_done = mover.progress()
        self.settle(self._outcome(mover))

    def settle(self, error: TransportError | None) -> None:
        """Settle; only the first call counts.

        Gives the memory back, then wakes the awaiters and calls the callbacks.
        """
        if self._settled:
            return
        if error is not None and error is not self._error:
            error = self.where.complete(fresh(error), self.progress(), self.nbytes)
        self._nbytes_done = self.progress()
        self._digests = self.digests()
        self._settled, self._error = True, error
        self._mover = self._verify = self._region = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _wake(waiter, self)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def _outcome(self, mover: Mover) -> TransportError | None:
        code = mover.code()
        if code == CODES["OK"]:
            return self._verify() if self._verify is not None else None
        if self._reason is not None and code_name(code) in _STOPPED:
            if isinstance(self._reason, DeadlineError) and code_name(code) == "ABORTED":
                self._reason.in_flight = True
            return self._reason
        return native_error(code, mover.detail(), self.where)


async def wait_settled(works: Collection[Work]) -> None:
    """Wait until every one of *works* has settled, well or not; new ones are not waited for."""
    if works:
        loop = asyncio.get_running_loop()
        waiters: list[asyncio.Future[None]] = []
        for work in list(works):
            waiter = loop.create_future()
            waiters.append(waiter)
            work.on_settled(functools.partial(_wake, waiter))
        await asyncio.wait(waiters)


def _wake(waiter: asyncio.Future[None], _work: Work) -> None:
    if not waiter.done():
        waiter.set_result(None)
