"""One delivery's native work: buckets, their digests, and the proof that the source did not change meanwhile."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from wtransport.backends.deadline import Deadline
from wtransport.errors import InternalError, PeerLostError, SourceChangedError, StaleEpochError, TransportError
from wtransport.recorder.format import FlightBackend, Op
from wtransport.service import local

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.backends.base import InitiatorEndpoint, RemoteRegion
    from wtransport.backends.work import Work
    from wtransport.service.context import Context
    from wtransport.service.source.driver import SourceDriver
    from wtransport.service.source.plans import Digests, SinkPlan
    from wtransport.service.source.putrecord import PutRecord
    from wtransport.session import actions as act


class Writing:
    """Runs one StartWrite.

    Attributes:
        plan: What is written.
        digests: uint64 per wanted tensor, of the bytes the copier loaded.
    """

    def __init__(self, context: Context, driver: SourceDriver, action: act.StartWrite) -> None:
        self._context = context
        self._driver = driver
        self._action = action
        self._record = driver.records[action.put]
        self._unpin: Callable[[], None] | None = None
        self._flight = 0
        self._todo: deque[Callable[[], TransportError | None]] = deque()
        self._works: deque[Work] = deque()
        self._cancelled = False
        self._reread = False
        self.plan: SinkPlan | None = None
        self.digests: Digests = np.zeros(0, np.uint64)
        self.nbytes_done = 0

    def cancel(self) -> None:
        """Drop what has not started; what is in flight settles."""
        self._cancelled = True
        for work in self._works:
            work.cancel()

    def start(self, report: Callable[[TransportError | None, int], None]) -> None:
        """Begin at once; *report* is called once, from a later turn of the loop, when nothing is in flight any more."""
        self._unpin = self._record.pin() if self._record.pin is not None else None
        self._record_begin()
        failure: TransportError | None = None
        try:
            self._open()
            failure = self._fill()
        except Exception as caught:
            failure = self._as_error(caught)
        self._context.spawn(self._run(failure, report))

    async def _run(self, failure: TransportError | None, report: Callable[[TransportError | None, int], None]) -> None:
        error: TransportError | None = None
        try:
            await self._finish(failure)
            await self._check(self._record)
        except Exception as caught:
            error = self._as_error(caught)
        finally:
            if self._unpin is not None:
                self._unpin()
        recorder = self._context.recorder
        if recorder is not None and error is None:
            recorder.end(self._flight, nbytes_done=self.nbytes_done)
        elif recorder is not None and error is not None:
            recorder.fail(self._flight, error, nbytes_done=self.nbytes_done)
        report(error, self.nbytes_done)

    def _as_error(self, caught: Exception) -> TransportError:
        if isinstance(caught, TransportError):
            return caught
        error = InternalError(f"the delivery failed: {caught!r}", version=self._record.version, phase="write")
        error.__cause__ = caught
        return error

    def _record_begin(self) -> None:
        recorder, link, record = self._context.recorder, self._driver.links.links.get(self._action.sink), self._record
        if recorder is None:
            return
        name, backend = (link.name, link.backend) if link is not None else ("", "")
        kind = FlightBackend[backend.upper()] if backend.upper() in FlightBackend.__members__ else FlightBackend.NONE
        self._flight = recorder.begin(Op.DELIVER, backend=kind, peer=name, version=record.version, nbytes=record.manifest.nbytes)

    def _open(self) -> None:
        action, config, record = self._action, self._context.config, self._record
        feed = self._driver.machine.puts[action.put].feed
        plan = self.plan = self._driver.plans.get((action.sink, feed))
        link = self._driver.links.links.get(action.sink)
        remote = self._driver.remotes.get((action.sink, action.slot))
        if link is None or link.endpoint is None or plan is None:
            raise PeerLostError("the link to the sink ended before the write began")
        if remote is None or remote.generation != action.generation:
            raise StaleEpochError("the slot was granted anew before the write began")
        if record.done.done() and record.weights is not None and (changed := record.weights.changed()):
            # Held by reference for late joiners, and trained on since: found before a byte moves.
            raise _changed(changed)
        self.digests = np.zeros(plan.plan.num_tensors, np.uint64)
        tables = plan.private_buckets(config.bucket_nbytes) if record.private else plan.shared_buckets(config.bucket_nbytes)
        deadline = Deadline(config.stall_timeout_s)
        region = record.region(self._context.backends[link.backend])
        self._todo = deque(partial(self._submit, link.endpoint, region, table, remote, plan, deadline) for table in tables)

    def _fill(self) -> TransportError | None:
        while self._todo and len(self._works) < self._context.config.inflight_buckets:
            error = self._todo.popleft()()
            if error is not None:
                return error
        return None

    async def _finish(self, failure: TransportError | None) -> None:
        while True:
            if failure is not None:
                self.cancel()
            elif not self._cancelled:
                failure = self._fill()
            if not self._works:
                break
            failure = await self._settle_first() or failure
        if failure is not None:
            raise failure
        if self._cancelled:
            raise StaleEpochError("the delivery was cancelled", phase="write")

    def _submit(
        self, endpoint: InitiatorEndpoint, region: object, table: object, remote: RemoteRegion, plan: SinkPlan, deadline: Deadline
    ) -> TransportError | None:
        # With "full" the source is read again after the last byte was copied: those digests count, a sink compares its own cells with them.
        reread = self._reread = self._context.config.verify == "full" and self._record.private and not endpoint.owner_digests
        digesting = self._context.config.verify != "off" and not reread
        try:
            work = endpoint.write(region, table, remote, num_digests=plan.plan.num_tensors, digest=digesting, deadline=deadline)  # type: ignore[arg-type]
        except TransportError as error:
            return error
        self._works.append(work)
        return None

    async def _settle_first(self) -> TransportError | None:
        work = self._works[0]
        try:
            if not work.settled:
                await work
        except TransportError:
            pass
        self._works.popleft()
        self.nbytes_done += work.progress()
        if work.error is None:
            self.digests += work.digests()
        return work.error

    async def _check(self, record: PutRecord) -> None:
        """A source that was written to while it was read makes no version (DESIGN: verify)."""
        plan = self.plan
        assert plan is not None
        if self._context.config.verify == "off":
            return
        names = [meta.name for meta in plan.wanted.canonical]
        if record.recheck and record.private:
            work = local.digest(self._context, record.local_region(), plan.plan.spans, plan.plan.num_tensors, "recheck")
            await work
            if self._reread:
                self.digests = work.digests()
            self._compare(names, self.digests, work.digests())
            changed = record.weights.changed() if record.weights is not None else []
            if changed:
                raise _changed(changed)
        own = plan.own_digests(self.digests)
        if own is None:
            if record.own is not None and record.private:
                self._compare([meta.name for meta in record.manifest.canonical], record.own, await self._driver.own_digests(record))
        elif record.own is None:
            record.own = own
        else:
            self._compare([meta.name for meta in record.manifest.canonical], record.own, own)

    @staticmethod
    def _compare(names: list[str], expected: Digests, found: Digests) -> None:
        wrong = np.flatnonzero(expected != found)
        if len(wrong):
            raise _changed([names[index] for index in wrong])


def _changed(names: list[str]) -> SourceChangedError:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return SourceChangedError(
        f"the weights were written to during the put: {', '.join(names[:5])}{more}",
        tensor=names[0],
        phase="verify",
        hint="put before the optimizer's step, await source_free, or use snapshot=True",
    )
