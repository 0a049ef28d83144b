"""A connected pair of endpoints in one event loop, and the memory that tests move."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wtransport._native import LocalRegion, SharedRegion
from wtransport.backends.base import (
    TOKEN_NBYTES,
    Backend,
    Endpoint,
    InitiatorEndpoint,
    Listener,
    MemoryRegion,
    OwnerEndpoint,
    RemoteRegion,
)
from wtransport.backends.deadline import Deadline
from wtransport.backends.driver import EngineDriver
from wtransport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from wtransport.backends.work import Work
    from wtransport.config import TransportConfig

Bytes = npt.NDArray[np.uint8]
Table = npt.NDArray[np.int64]
# Long enough for a loaded machine; tests of deadlines choose their own.
TIMEOUT_S = 20.0
EPOCH = 7


@dataclass
class Landing:
    """Shared memory of the owner, granted to the initiator."""

    memory: SharedRegion
    region: MemoryRegion
    remote: RemoteRegion

    @property
    def bytes(self) -> Bytes:
        """The data, as the owner sees it."""
        return self.memory.view()


class Pair:
    """Two backends, each with an engine of its own, and one connected endpoint between them.

    Attributes:
        dial: What the initiator dials: the listener's address, unless changed.
    """

    def __init__(self, near: Backend, far: Backend, listener: Listener) -> None:
        self.near = near
        self.far = far
        self.listener = listener
        self.dial = listener.address
        self.initiator: InitiatorEndpoint
        self.owner: OwnerEndpoint
        self._memory: list[SharedRegion] = []

    async def connect(self, *, epoch: int = EPOCH, token: bytes | None = None) -> None:
        """Make the endpoint, or a new one in place of the last."""
        token = token or os.urandom(TOKEN_NBYTES)
        admission = self.listener.admit(token, epoch, "initiator")
        self.initiator = await self.near.connect(self.dial, token=token, epoch=epoch, peer="owner", timeout_s=TIMEOUT_S)
        self.owner = await asyncio.wait_for(admission, TIMEOUT_S)

    def source(self, *arrays: npt.NDArray[np.generic]) -> MemoryRegion:
        """Register the initiator's private memory, one block an array."""
        return self.near.register(local_region(*arrays), arrays)

    def landing(
        self,
        nbytes: int,
        *,
        writable: bool = True,
        generation: int = 1,
        num_digests: int = 1,
        fill: Bytes | None = None,
    ) -> Landing:
        """Grant fresh shared memory of the owner."""
        memory = SharedRegion.create(nbytes)
        self._memory.append(memory)
        if fill is not None:
            memory.view()[:] = fill
        region = self.far.register(memory, None)
        remote = self.owner.grant(region, generation=generation, writable=writable, num_digests=num_digests)
        return Landing(memory, region, remote)

    def write(
        self,
        region: MemoryRegion,
        spans: Table,
        remote: RemoteRegion,
        *,
        num_digests: int = 1,
        timeout_s: float = TIMEOUT_S,
    ) -> Work:
        """Write with digests."""
        return self.initiator.write(
            region,
            spans,
            remote,
            num_digests=num_digests,
            digest=True,
            deadline=Deadline(timeout_s),
        )

    def read(
        self,
        region: MemoryRegion,
        spans: Table,
        remote: RemoteRegion,
        *,
        num_digests: int = 1,
        timeout_s: float = TIMEOUT_S,
    ) -> Work:
        """Read with digests."""
        return self.initiator.read(
            region,
            spans,
            remote,
            num_digests=num_digests,
            digest=True,
            deadline=Deadline(timeout_s),
        )

    async def landed_digests(self, landing: Landing, spans: Table, num_digests: int) -> npt.NDArray[np.uint64]:
        """Digests at the owner's end: of its ledger, else of its memory read again."""
        ledger = self.owner.ledger(landing.remote)
        if ledger is not None:
            return ledger.digests
        work = self.far.driver.open(
            landing.region,
            nbytes=int(spans[:, 3].sum()),
            num_digests=num_digests,
            deadline=Deadline(TIMEOUT_S),
            where=self.owner.where("verify"),
            abort=self.owner.abort,
        )
        engine = self.far.driver.engine
        self.far.driver.start(work, engine.digest(landing.memory, spans, num_digests))
        await work
        return work.digests()

    @property
    def refused(self) -> int:
        """Refusals counted at both ends and by the listener."""
        return self.initiator.refused + self.owner.refused + self.listener.refused

    async def close(self) -> None:
        """Close everything; what broke before is closed as well."""
        for endpoint in (getattr(self, "initiator", None), getattr(self, "owner", None)):
            if endpoint is not None:
                await endpoint.close()
        await self.listener.close()
        for memory in self._memory:
            memory.close()


@contextlib.asynccontextmanager
async def open_pair(make_backend: Callable[[EngineDriver, TransportConfig], Backend], config: TransportConfig) -> AsyncIterator[Pair]:
    """Connect two backends of this process; closes everything at the end."""
    async with open_driver(config) as near, open_driver(config) as far:
        far_backend = make_backend(far, config)
        listener = await far_backend.listen("")
        pair = Pair(make_backend(near, config), far_backend, listener)
        try:
            await pair.connect()
            yield pair
        finally:
            await pair.close()


@contextlib.asynccontextmanager
async def open_driver(config: TransportConfig) -> AsyncIterator[EngineDriver]:
    """An engine driver on the running loop."""
    driver = EngineDriver(copy_threads=config.copy_threads, abort_grace_s=config.abort_grace_s)
    try:
        yield driver
    finally:
        await driver.close()


def make_from(factory: str, driver: EngineDriver, config: TransportConfig) -> Backend:
    """Call ``module:callable`` with *driver* and *config*."""
    module, _, name = factory.partition(":")
    backend = getattr(importlib.import_module(module), name)(driver, config)
    if not isinstance(backend, Backend):
        raise TypeError(f"{factory} made {type(backend).__name__}, which is no backend")
    return backend


def local_region(*arrays: npt.NDArray[np.generic]) -> LocalRegion:
    """Describe arrays, strided ones too; they must outlive the region."""
    return LocalRegion([(a.ctypes.data, a.itemsize, a.shape, a.strides) for a in arrays])


def table(rows: Iterable[tuple[int, int, int, int, int, int]]) -> Table:
    """A span table of (block, local offset, remote offset, nbytes, tensor, position) rows."""
    return np.array(list(rows), np.int64).reshape(-1, 6)


def whole(nbytes: int) -> Table:
    """One span that moves everything."""
    return table([(0, 0, 0, nbytes, 0, 0)])


def random_bytes(nbytes: int, seed: int = 1) -> Bytes:
    """Reproducible bytes."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def cut(nbytes: int, count: int, seed: int = 1) -> Table:
    """Cut *nbytes* into *count* uneven spans, some of zero, shuffled.

    Offsets equal at both ends.
    """
    generator = np.random.default_rng(seed)
    edges = np.sort(generator.integers(0, nbytes + 1, max(0, count - 1)))
    edges = np.concatenate([[0], edges, [nbytes]]) if count else np.zeros(1, np.int64)
    spans = np.zeros((count, 6), np.int64)
    spans[:, 1] = spans[:, 2] = spans[:, 5] = edges[:-1]
    spans[:, 3] = np.diff(edges)
    return np.ascontiguousarray(generator.permutation(spans))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds; ``TimeoutError`` if it does not come to."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def lost(endpoint: Endpoint) -> None:
    """Wait until *endpoint* has noticed that it is broken."""
    await until(lambda: endpoint.broken is not None)


async def outcome(work: Work) -> TransportError | None:
    """Wait for *work*; its error, None when it was done well."""
    try:
        await work
    except TransportError as error:
        return error
    return None
