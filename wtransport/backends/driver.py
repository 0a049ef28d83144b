"""The native engine on an event loop.

Settled works and liveness events come in, deadlines are kept, nothing is freed too early.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING

from wtransport import _native
from wtransport.backends.native_errors import native_call
from wtransport.backends.work import Work
from wtransport.errors import ClosedError, DeadlineError, RegistrationError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.backends.base import MemoryRegion
    from wtransport.backends.deadline import Deadline
    from wtransport.backends.native_errors import Where
    from wtransport.backends.work import Mover

_CHECK_INTERVAL_S = 0.05
# P10: memory that hanging transfers keep is counted, and limited: beyond this many nothing new is started.
_MOST_QUARANTINED = 16
_WORK_SETTLED = 0
_LIVENESS = 1
_ENDPOINT_BROKEN = 2


class EngineDriver:
    """Owns one native engine; made on the event loop that it serves, every method is called there.

    Args:
        copy_threads: Native copy threads.
        abort_grace_s: How long a work may take to stop before its endpoint is aborted, and then
            again before its memory is quarantined.

    Attributes:
        loop: The event loop.
        on_liveness: Called with (peer handle, liveness code, age in nanoseconds) for every event of
            a native heartbeat.
    """

    def __init__(self, *, copy_threads: int, abort_grace_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        with native_call("starting the engine"):
            self._engine: _native.Engine | None = _native.Engine(copy_threads)
        self.on_liveness: Callable[[int, int, int], None] | None = None
        self._abort_grace_s = abort_grace_s
        self._ids = itertools.count(1)
        self._works: dict[int, Work] = {}
        self._movers: dict[int, Work] = {}
        self._abort_of: dict[int, Callable[[TransportError], None]] = {}
        self._endpoints: dict[int, Callable[[int], None]] = {}
        self._quarantine: dict[int, tuple[MemoryRegion, Mover]] = {}
        self._offloaded: set[asyncio.Future[None]] = set()
        self._idle: asyncio.Future[None] | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self.loop.add_reader(self._engine.fileno(), self._drain)

    @property
    def engine(self) -> _native.Engine:
        """The native engine; ``ClosedError`` once closed."""
        if self._engine is None:
            raise ClosedError("the engine is closed")
        return self._engine

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closing is not None

    @property
    def unsettled(self) -> int:
        """Works that have not settled."""
        return len(self._works)

    @property
    def quarantined(self) -> tuple[int, int]:
        """Works given up on that never stopped.

        And the bytes of memory kept referenced because of them.
        """
        return len(self._quarantine), sum(region.nbytes for region, _ in self._quarantine.values())

    def open(
        self,
        region: MemoryRegion,
        *,
        nbytes: int,
        num_digests: int,
        deadline: Deadline,
        where: Where,
        abort: Callable[[TransportError], None],
    ) -> Work:
        """Make a work that waits to be started; its deadline runs already.

        Args:
            region: Memory to pin until it settles.
            nbytes: Bytes expected to move.
            num_digests: Number of digests it will have.
            deadline: Checked from now on.
            where: Fields for its errors.
            abort: Breaks its endpoint; called if it does not stop when asked.
        """
        if self._closing is not None:
            raise ClosedError("the engine is closed")
        if len(self._quarantine) >= _MOST_QUARANTINED:
            raise RegistrationError(
                f"{len(self._quarantine)} transfers hang though they were aborted, and hold {self.quarantined[1]} bytes of memory",
                hint="start this process anew; the flight recorder's dump tells what they hang in",
            )
        work = Work(
            next(self._ids),
            region,
            nbytes=nbytes,
            num_digests=num_digests,
            deadline=deadline,
            where=where,
            clock=self.loop.time,
        )
        deadline.remaining_s(self.loop.time())
        self._works[work.id] = work
        self._abort_of[work.id] = abort
        work.on_settled(self._forget)
        self._schedule_check()
        return work

    def start(self, work: Work, mover: Mover, verify: Callable[[], TransportError | None] | None = None) -> None:
        """Let *mover* carry *work* out; *verify* may still fail it when the mover ended well."""
        work.begin(mover, verify)
        if mover.settled():
            work.finish()
        else:
            self._movers[mover.id] = work

    def draw_id(self) -> int:
        """An id for a mover that is not native: never given before, and never the engine's."""
        return -next(self._ids)

    def mover_settled(self, mover_id: int) -> None:
        """A mover that is not native has settled."""
        work = self._movers.pop(mover_id, None)
        if work is not None:
            work.finish()
        self._quarantine.pop(mover_id, None)

    def watch(self, endpoint_id: int, on_broken: Callable[[int], None]) -> None:
        """Call *on_broken* with a native code once the native endpoint of that id broke."""
        self._endpoints[endpoint_id] = on_broken

    def unwatch(self, endpoint_id: int) -> None:
        """Forget a native endpoint; idempotent."""
        self._endpoints.pop(endpoint_id, None)

    def offload(self, call: Callable[[], None]) -> asyncio.Future[None]:
        """Run a call that may block (unmapping, joining native threads) on a thread of its own.

        :meth:`close` waits for it.
        """
        future: asyncio.Future[None] = self.loop.create_future()
        self._offloaded.add(future)
        future.add_done_callback(self._offloaded.discard)

        def settle(error: BaseException | None) -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        def run() -> None:
            error: BaseException | None = None
            try:
                call()
            except BaseException as caught:
                error = caught
            try:
                self.loop.call_soon_threadsafe(settle, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

        # The interpreter waits for it: a thread that comes back from native code into one that has ended would take the process down.
        # Only what may hang for good, with memory in quarantine, is not waited for.
        threading.Thread(target=run, name="wt-offload", daemon=bool(self._quarantine)).start()
        return future

    async def close(self) -> None:
        """Stop every work, wait until all have settled (or are in quarantine), close the engine.

        Idempotent; safe to cancel and call again.
        """
        if self._closing is None:
            self._closing = self.loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for work in list(self._works.values()):
            work.stop(ClosedError("the transport was closed before the transfer was complete"))
        if self._works:
            self._idle = self.loop.create_future()
            await self._idle
        if self._offloaded:
            await asyncio.wait(self._offloaded, timeout=self._abort_grace_s)
        closing = self.offload(self.engine.close)
        if not self._quarantine:
            await closing
            self._drain()
        # With memory in quarantine a native thread may still be inside it; then nobody waits for the engine, and the thread that closes it
        # keeps it alive for as long as that takes.
        self.loop.remove_reader(self.engine.fileno())
        # Its last reference here: the descriptor it waits on is closed with it.
        self._engine = None
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None

    def _forget(self, work: Work) -> None:
        self._works.pop(work.id, None)
        self._abort_of.pop(work.id, None)
        if not self._works and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _drain(self) -> None:
        for kind, ident, code, value in self.engine.drain():
            try:
                if kind == _WORK_SETTLED:
                    self.mover_settled(ident)
                elif kind == _ENDPOINT_BROKEN and ident in self._endpoints:
                    self._endpoints[ident](code)
                elif kind == _LIVENESS and self.on_liveness is not None:
                    self.on_liveness(ident, code, value)
            except Exception as error:
                # One listener's bug must not cost the works behind it their events.
                self.loop.call_exception_handler({"message": "a completion callback failed", "exception": error})

    def _schedule_check(self) -> None:
        if self._check_timer is None and self._works:
            self._check_timer = self.loop.call_later(_CHECK_INTERVAL_S, self._check)

    def _check(self) -> None:
        self._check_timer = None
        now = self.loop.time()
        for work in list(self._works.values()):
            work.note_progress(now)
        for work in list(self._works.values()):
            if work.settled:
                continue
            if work.stopping_since is None:
                if work.deadline.expired(now):
                    work.stop(DeadlineError(f"no byte moved for {work.deadline.timeout_s:g} s"))
            elif work.aborted_at is None:
                if now - work.stopping_since >= self._abort_grace_s:
                    self._abort(work, now)
            elif now - work.aborted_at >= self._abort_grace_s:
                self._give_up(work)
        self._schedule_check()

    def _abort(self, work: Work, now: float) -> None:
        work.aborted_at = now
        reason = DeadlineError(
            f"the transfer did not stop within {self._abort_grace_s:g} s of being asked, so its endpoint was aborted",
            in_flight=True,
        )
        work.replace_reason(reason)
        self._abort_of[work.id](reason)

    def _give_up(self, work: Work) -> None:
        mover, region = work.mover, work.region
        if mover is not None and region is not None:
            self._movers.pop(mover.id, None)
            self._quarantine[mover.id] = (region, mover)
        work.settle(
            DeadlineError(
                "the transfer did not stop though its endpoint was aborted: its memory is quarantined",
                in_flight=True,
                hint="see the flight recorder's dump for the call it hangs in",
            )
        )
