"""A backend around another one that does, on purpose, what networks, peers and processes do by accident."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wtransport._native import LocalRegion
from wtransport.backends.base import Backend, Capabilities, InitiatorEndpoint, Listener, Unavailable
from wtransport.backends.deadline import Deadline
from wtransport.backends.native_errors import CODES
from wtransport.backends.regions import MemoryRegion, RemoteRegion
from wtransport.backends.spans import NBYTES, check_table, table_nbytes
from wtransport.backends.work import wait_settled
from wtransport.errors import PeerLostError, TransportError

if TYPE_CHECKING:
    import numpy.typing as npt

    from wtransport._native import SharedRegion
    from wtransport.backends.base import Endpoint
    from wtransport.backends.work import Work


@dataclass
class Faults:
    """What goes wrong with the transfers of a :class:`FaultyBackend`; may be changed while it is used.

    Attributes:
        after: So many transfers go well first.
        count: So many are disturbed then; None is all.
        drop: The transfer never moves a byte.
        delay_s: It starts so much later.
        duplicate: It is carried out twice.
        truncate_nbytes: Only so many bytes move, and yet it ends well.
        corrupt_at: After it, the byte at this offset of its destination is inverted.
        fail_after_nbytes: So many bytes move, then the endpoint breaks.
        stale: It uses a generation that the memory does not have.
        raise_signal: This process gets the signal when it starts: ``SIGKILL``, ``SIGSTOP``.
        exit_status: This process exits, at once, when it starts.
    """

    after: int = 0
    count: int | None = None
    drop: bool = False
    delay_s: float = 0.0
    duplicate: bool = False
    truncate_nbytes: int | None = None
    corrupt_at: int | None = None
    fail_after_nbytes: int | None = None
    stale: bool = False
    raise_signal: signal.Signals | None = None
    exit_status: int | None = None

    def strike(self) -> Faults | None:
        """What the next transfer suffers; None when it goes well."""
        if self.after > 0:
            self.after -= 1
            return None
        if self.count is not None:
            if self.count <= 0:
                return None
            self.count -= 1
        now = dataclasses.replace(self, after=0, count=None)
        return None if now == Faults() else now


class FaultyBackend(Backend):
    """Passes everything on to *inner*, apart from the faults; those strike on the initiator's side.

    Args:
        inner: The backend that does the work, whose name this one takes.
        faults: What goes wrong.
    """

    def __init__(self, inner: Backend, faults: Faults | None = None) -> None:
        super().__init__(inner.driver, inner.config)
        self.name = inner.name
        self.faults = faults if faults is not None else Faults()
        self._inner = inner

    def probe(self) -> Capabilities | Unavailable:
        """As the inner backend."""
        return self._inner.probe()

    async def listen(self, addr: str) -> Listener:
        """As the inner backend."""
        return await self._inner.listen(addr)

    async def connect(self, addr: str, *, token: bytes, epoch: int, peer: str, timeout_s: float) -> FaultyInitiator:
        """Connect the inner backend."""
        inner = await self._inner.connect(addr, token=token, epoch=epoch, peer=peer, timeout_s=timeout_s)
        return FaultyInitiator(self, inner)

    def register(self, memory: LocalRegion | SharedRegion, owner: object) -> MemoryRegion:
        """As the inner backend."""
        return self._inner.register(memory, owner)


class FaultyInitiator(InitiatorEndpoint):
    """An endpoint whose transfers suffer what its backend's :class:`Faults` say."""

    def __init__(self, backend: FaultyBackend, inner: InitiatorEndpoint) -> None:
        super().__init__(inner.backend, inner.peer, inner.epoch)
        self.owner_digests = inner.owner_digests
        self._faults = backend.faults
        self._driver = backend.driver
        self._inner = inner
        self._works: set[Work] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        inner.on_broken = self._inner_broke

    @property
    def refused(self) -> int:
        """As the inner endpoint."""
        return self._inner.refused

    def write(
        self,
        region: MemoryRegion,
        spans: npt.NDArray[np.int64],
        remote: RemoteRegion,
        *,
        num_digests: int,
        digest: bool,
        deadline: Deadline,
    ) -> Work:
        """Write, with whatever goes wrong."""
        return self._submit(_Call(self._inner, False, region, remote, num_digests, digest, deadline), spans)

    def read(
        self,
        region: MemoryRegion,
        spans: npt.NDArray[np.int64],
        remote: RemoteRegion,
        *,
        num_digests: int,
        digest: bool,
        deadline: Deadline,
    ) -> Work:
        """Read, with whatever goes wrong."""
        return self._submit(_Call(self._inner, True, region, remote, num_digests, digest, deadline), spans)

    def abort(self, reason: TransportError) -> None:
        """Abort the inner endpoint."""
        self._inner.abort(reason)
        for work in list(self._works):
            work.stop(reason)

    async def _close(self) -> None:
        await wait_settled(self._works)
        await self._inner.close()

    def _inner_broke(self, _inner: Endpoint, reason: TransportError) -> None:
        self._break(reason)
        for work in list(self._works):
            work.stop(reason)

    def _submit(self, call: _Call, spans: npt.NDArray[np.int64]) -> Work:
        self.check_usable()
        fault = self._faults.strike()
        if fault is None:
            return call.start(spans)
        spans = check_table(spans, call.num_digests)
        work = self._driver.open(
            call.region,
            nbytes=table_nbytes(spans),
            num_digests=call.num_digests,
            deadline=call.deadline,
            where=self.where("read" if call.reading else "write"),
            abort=self.abort,
        )
        self._works.add(work)
        work.on_settled(self._works.discard)
        relay = _Relay(self._driver.draw_id(), call.num_digests)
        self._driver.start(work, relay)
        task = self._driver.loop.create_task(self._suffer(fault, relay, work, call, spans))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return work

    async def _suffer(self, fault: Faults, relay: _Relay, work: Work, call: _Call, spans: npt.NDArray[np.int64]) -> None:
        try:
            await self._carry_out(fault, relay, call, spans)
        except TransportError as error:
            if relay.cancelled:
                relay.end("CANCELLED")
            else:
                work.settle(error)
        self._driver.mover_settled(relay.id)

    async def _carry_out(self, fault: Faults, relay: _Relay, call: _Call, spans: npt.NDArray[np.int64]) -> None:
        if fault.raise_signal is not None:
            os.kill(os.getpid(), fault.raise_signal)
        if fault.exit_status is not None:
            os._exit(fault.exit_status)
        if fault.drop or fault.delay_s:
            await relay.wait_cancelled(None if fault.drop else fault.delay_s)
        if relay.cancelled:
            relay.end("CANCELLED")
            return
        if fault.stale:
            call = dataclasses.replace(call, remote=dataclasses.replace(call.remote, generation=call.remote.generation ^ 1))
        for limit in (fault.truncate_nbytes, fault.fail_after_nbytes):
            if limit is not None:
                spans = first_bytes(spans, limit)
        for _ in range(2 if fault.duplicate else 1):
            await relay.follow(call.start(spans))
        if fault.corrupt_at is not None:
            await self._corrupt(call, fault.corrupt_at)
        if fault.fail_after_nbytes is not None:
            reason = PeerLostError(f"a fault that was asked for: the endpoint breaks after {fault.fail_after_nbytes} bytes")
            self._inner.abort(reason)
            raise reason
        relay.end("OK")

    async def _corrupt(self, call: _Call, offset: int) -> None:
        byte = np.zeros(1, np.uint8)
        scratch = LocalRegion([(byte.ctypes.data, 1, (1,), (1,))])
        row = np.array([[0, 0, offset, 1, 0, offset]], np.int64)
        if call.reading:
            # One byte is copied on this thread: it is there when the call returns.
            self._driver.engine.copy_from(call.region.memory, scratch, row, 1, 0)
            byte ^= 0xFF
            self._driver.engine.copy(scratch, call.region.memory, row, 1, 0)
            return
        one = dataclasses.replace(call, region=MemoryRegion(self.backend, scratch, byte), num_digests=max(1, call.num_digests))
        await dataclasses.replace(one, reading=True).start(row)
        byte ^= 0xFF
        await one.start(row)


@dataclass(frozen=True)
class _Call:
    """The arguments of one read or write, all but the table."""

    inner: InitiatorEndpoint
    reading: bool
    region: MemoryRegion
    remote: RemoteRegion
    num_digests: int
    digest: bool
    deadline: Deadline

    def start(self, spans: npt.NDArray[np.int64]) -> Work:
        """Call the inner endpoint."""
        method = self.inner.read if self.reading else self.inner.write
        return method(self.region, spans, self.remote, num_digests=self.num_digests, digest=self.digest, deadline=self.deadline)


class _Relay:
    """The mover of a disturbed work: follows the works that carry it out."""

    def __init__(self, number: int, num_digests: int) -> None:
        self.id = number
        self.cancelled = False
        self._stop = asyncio.Event()
        self._inner: Work | None = None
        self._code = "OK"
        self._settled = False
        self._digests = np.zeros(num_digests, np.uint64)

    def progress(self) -> int:
        return self._inner.progress() if self._inner is not None else 0

    def settled(self) -> bool:
        return self._settled

    def code(self) -> int:
        return CODES[self._code]

    def detail(self) -> str:
        return ""

    def cancel(self) -> None:
        self.cancelled = True
        self._stop.set()
        if self._inner is not None:
            self._inner.cancel()

    def digests(self) -> npt.NDArray[np.uint64]:
        return self._inner.digests() if self._inner is not None else self._digests

    def end(self, code: str) -> None:
        self._code, self._settled = code, True

    async def wait_cancelled(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._stop.wait()
        except TimeoutError:
            return

    async def follow(self, inner: Work) -> None:
        self._inner = inner
        await inner


def first_bytes(spans: npt.NDArray[np.int64], nbytes: int) -> npt.NDArray[np.int64]:
    """The rows of a span table that move its first *nbytes*, the last one shortened."""
    before = np.cumsum(spans[:, NBYTES]) - spans[:, NBYTES]
    kept = spans[before < nbytes].copy()
    kept[:, NBYTES] = np.minimum(kept[:, NBYTES], nbytes - before[before < nbytes])
    return kept
