"""Endpoints whose initiator maps the owner's memory and moves the bytes with its own engine."""

from __future__ import annotations

import asyncio
import secrets
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wtransport._native import DIGEST, LocalRegion, SharedRegion
from wtransport.backends.base import InitiatorEndpoint, MemoryRegion, OwnerEndpoint
from wtransport.backends.native_errors import native_call
from wtransport.backends.regions import RemoteRegion
from wtransport.backends.spans import check_table, table_nbytes
from wtransport.backends.work import Work, wait_settled
from wtransport.errors import (
    ConfigError,
    PeerLostError,
    StaleEpochError,
    TransportError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from wtransport.backends.base import Ledger
    from wtransport.backends.deadline import Deadline
    from wtransport.backends.driver import EngineDriver

# The grant itself travels beside the control channel that names it, so it may be a moment behind.
_GRANT_WAIT_S = 2.0
_REMEMBERED_KEYS = 4096
_UNKNOWN = "this endpoint has no such grant, and none came"
_REVOKED = "the owner revoked the grant"
_REFUSALS = (StaleEpochError, ConfigError, UnsupportedError)


@dataclass(frozen=True, eq=False)
class MappedGrant:
    """A grant as the initiator holds it; *release* gives the mapping back and may block."""

    memory: LocalRegion | SharedRegion
    generation: int
    nbytes: int
    writable: bool
    release: Callable[[], None]

    def stale(self, remote: RemoteRegion) -> str | None:
        """Why *remote* does not describe this grant any more; None while it does."""
        if remote.nbytes != self.nbytes:
            return "the grant is of another size than the one used"
        # Shared memory says its own generation: one mapping serves every generation that is granted
        # of it.
        now = self.memory.generation if isinstance(self.memory, SharedRegion) else self.generation
        return None if now == remote.generation else f"the memory is at generation {now}, not {remote.generation}"


@dataclass(frozen=True, eq=False)
class _Transfer:
    """Everything needed to start a work once its grant is there."""

    work: Work
    region: MemoryRegion
    spans: npt.NDArray[np.int64]
    remote: RemoteRegion
    num_digests: int
    flags: int
    reading: bool


class MappedInitiator(InitiatorEndpoint):
    """Moves bytes between its own memory and mappings of the owner's."""

    def __init__(self, backend: str, peer: str, epoch: int, driver: EngineDriver) -> None:
        super().__init__(backend, peer, epoch)
        self._driver = driver
        self._grants: dict[int, MappedGrant] = {}
        # Grants that ended, by key up to a generation, with their mapping kept; and keys whose memory is withdrawn.
        self._revoked: dict[int, int] = {}
        self._withdrawn: dict[int, None] = {}
        self._waiting: dict[Work, tuple[_Transfer, asyncio.TimerHandle]] = {}
        self._hung_up = False
        self._works: dict[Work, RemoteRegion] = {}

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
        """Start storing; waits at most 2 s for a grant that is still on its way."""
        return self._submit(region, spans, remote, num_digests, digest, deadline, False)

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
        """Start loading; the generation is checked before the first and after the last byte."""
        return self._submit(region, spans, remote, num_digests, digest, deadline, True)

    def abort(self, reason: TransportError) -> None:
        """Stop every work with *reason*, drop the mappings, end the channel."""
        if not self._break(reason):
            return
        for work in list(self._works):
            work.stop(reason)
        self._end()

    def granted(self, key: int, grant: MappedGrant) -> None:
        """The owner granted memory: works that wait for it start."""
        if self._hung_up:
            self._driver.offload(grant.release)
            return
        self._grants[key] = grant
        waiting = [pair for pair in self._waiting.values() if pair[0].remote.key == key]
        for transfer, timer in waiting:
            timer.cancel()
            del self._waiting[transfer.work]
            self._start(transfer, grant)

    def revoked(self, key: int, generation: int) -> None:
        """The owner ended its grants up to *generation*: their works stop, later uses are refused; the mapping stays for grants to come."""
        self._revoked[key] = max(generation, self._revoked.get(key, -1))
        self._stop([work for work, used in self._works.items() if used.key == key and used.generation <= generation])

    def withdrawn(self, key: int) -> None:
        """The owner gives the memory back: works over it stop, and the mapping goes."""
        self._revoked.pop(key, None)
        self._withdrawn[key] = None
        if len(self._withdrawn) > _REMEMBERED_KEYS:
            del self._withdrawn[next(iter(self._withdrawn))]
        self._stop([work for work, used in self._works.items() if used.key == key])
        grant = self._grants.pop(key, None)
        if grant is not None:
            self._driver.offload(grant.release)

    @staticmethod
    def _stop(works: list[Work]) -> None:
        for work in works:
            work.stop(StaleEpochError(_REVOKED))

    def lost(self, detail: str) -> None:
        """The owner is gone; no news to an endpoint that has hung up itself."""
        if self._hung_up:
            return
        self.abort(PeerLostError(detail, hint="connect again at a higher epoch"))

    async def _close(self) -> None:
        await wait_settled(self._works)
        releases = self._end()
        if releases:
            await asyncio.wait(releases)

    @abstractmethod
    def _hang_up(self) -> None:
        """End the channel to the owner; never waits, idempotent."""

    def _end(self) -> list[asyncio.Future[None]]:
        self._hung_up = True
        self._hang_up()
        grants, self._grants = self._grants, {}
        return [self._driver.offload(grant.release) for grant in grants.values()]

    def _submit(
        self,
        region: MemoryRegion,
        spans: npt.NDArray[np.int64],
        remote: RemoteRegion,
        num_digests: int,
        digest: bool,
        deadline: Deadline,
        reading: bool,
    ) -> Work:
        self.check_usable()
        spans = check_table(spans, num_digests)
        work = self._driver.open(
            region,
            nbytes=table_nbytes(spans),
            num_digests=num_digests,
            deadline=deadline,
            where=self.where("read" if reading else "write"),
            abort=self.abort,
        )
        self._works[work] = remote
        work.on_settled(self._settled)
        flags = DIGEST if digest else 0
        transfer = _Transfer(work, region, spans, remote, num_digests, flags, reading)
        grant = self._grants.get(remote.key)
        if remote.backend != self.backend:
            work.settle(ConfigError(f"the grant is one of backend {remote.backend}"))
        elif remote.key in self._withdrawn or remote.generation <= self._revoked.get(remote.key, -1):
            work.settle(StaleEpochError(_REVOKED))
        elif grant is not None:
            self._start(transfer, grant)
        else:
            timer = self._driver.loop.call_later(_GRANT_WAIT_S, work.settle, StaleEpochError(_UNKNOWN))
            self._waiting[work] = (transfer, timer)
        return work

    def _start(self, transfer: _Transfer, grant: MappedGrant) -> None:
        work, remote = transfer.work, transfer.remote
        if (stale := grant.stale(remote)) is not None:
            work.settle(StaleEpochError(stale))
            return
        if not transfer.reading and not grant.writable:
            work.settle(UnsupportedError("the owner granted this memory for reading only"))
            return
        engine, spans, flags = self._driver.engine, transfer.spans, transfer.flags
        local, mapped, count = transfer.region.memory, grant.memory, transfer.num_digests
        try:
            with native_call("starting a copy"):
                if transfer.reading:
                    mover = engine.copy_from(mapped, local, spans, count, flags)
                else:
                    mover = engine.copy(local, mapped, spans, count, flags)
        except TransportError as error:
            work.settle(error)
            return

        def verify() -> TransportError | None:
            if self.broken is not None:
                return self.broken
            if self._grants.get(remote.key) is not grant:
                return StaleEpochError("the grant ended while bytes moved")
            moved = grant.stale(remote)
            return None if moved is None else StaleEpochError(moved)

        self._driver.start(work, mover, verify)

    def _settled(self, work: Work) -> None:
        self._works.pop(work, None)
        waited = self._waiting.pop(work, None)
        if waited is not None:
            waited[1].cancel()
        if isinstance(work.error, _REFUSALS):
            self._refused += 1


@dataclass(frozen=True)
class _Passed:
    """Memory that the peer has, or is about to have, mapped, and the last generation granted of it; not *live* once that grant ended."""

    region: MemoryRegion
    generation: int
    writable: bool
    live: bool = True


class MappedOwner(OwnerEndpoint):
    """Grants mappings of its memory; its CPU never sees the bytes."""

    def __init__(self, backend: str, peer: str, epoch: int) -> None:
        super().__init__(backend, peer, epoch)
        self._granted: dict[int, _Passed] = {}
        self._hung_up = False

    def grant(self, region: MemoryRegion, *, generation: int, writable: bool, num_digests: int) -> RemoteRegion:
        """Let the peer map *region*."""
        self.check_usable()
        if region.backend != self.backend:
            raise ConfigError(f"the region was registered with backend {region.backend}")
        if isinstance(region.memory, SharedRegion):
            raise_generation(region.memory, generation)
        return self._pass(region, generation, writable)

    def prepare(self, region: MemoryRegion) -> None:
        """Pass the memory ahead, so that the first grant of it finds it mapped."""
        self.check_usable()
        if isinstance(region.memory, SharedRegion):
            self._pass(region, region.memory.generation, True)

    def _pass(self, region: MemoryRegion, generation: int, writable: bool) -> RemoteRegion:
        key = self._key_of(region, generation, writable)
        remote = RemoteRegion(self.backend, secrets.randbits(63) if key is None else key, generation, region.nbytes)
        if key is None:
            self._announce(remote, region, writable)
        self._granted[remote.key] = _Passed(region, generation, writable)
        return remote

    def _key_of(self, region: MemoryRegion, generation: int, writable: bool) -> int | None:
        """The key under which the peer has shared memory mapped already.

        Mapping it anew would cost it every page fault again.
        """
        if not isinstance(region.memory, SharedRegion):
            return None
        for key, passed in self._granted.items():
            if passed.region is region and passed.writable == writable and (passed.live or passed.generation < generation):
                return key
        return None

    def revoke(self, remote: RemoteRegion) -> None:
        """End the grant; the peer keeps its mapping, which the next grant of the same memory finds.

        A grant that a later generation replaced is over already.
        """
        passed = self._granted.get(remote.key)
        if passed is None or not passed.live or passed.generation != remote.generation:
            return
        if not isinstance(passed.region.memory, SharedRegion):
            self._drop(remote.key)
        else:
            self._granted[remote.key] = replace(passed, live=False)
            if self.broken is None:
                self._end_grant(remote.key, remote.generation)

    def retire(self, region: MemoryRegion) -> None:
        """Tell the peer to unmap; one that is stopped keeps its mapping until it wakes."""
        for key in [key for key, passed in self._granted.items() if passed.region is region]:
            self._drop(key)

    def _drop(self, key: int) -> None:
        del self._granted[key]
        if self.broken is None:
            self._withdraw(key)

    def ledger(self, remote: RemoteRegion) -> Ledger | None:
        """None: the initiator's CPU stored the bytes; re-read the memory to check it."""
        return None

    def abort(self, reason: TransportError) -> None:
        """End the channel at once."""
        if self._break(reason):
            self._end()

    def lost(self, detail: str) -> None:
        """The initiator is gone; no news to an endpoint that has hung up itself."""
        if self._hung_up:
            return
        self.abort(PeerLostError(detail, hint="expect it again at a higher epoch"))

    async def _close(self) -> None:
        self._end()

    def _end(self) -> None:
        self._hung_up = True
        self._granted.clear()
        self._hang_up()

    @abstractmethod
    def _announce(self, remote: RemoteRegion, region: MemoryRegion, writable: bool) -> None:
        """Pass the memory to the peer."""

    @abstractmethod
    def _end_grant(self, key: int, generation: int) -> None:
        """Tell the peer that a grant, and those before it, ended."""

    @abstractmethod
    def _withdraw(self, key: int) -> None:
        """Tell the peer that the memory is given back."""

    @abstractmethod
    def _hang_up(self) -> None:
        """End the channel to the initiator; never waits, idempotent."""


def raise_generation(memory: SharedRegion, generation: int) -> None:
    """Write *generation* to the memory's header.

    Raises:
        StaleEpochError: If the header has a higher one already.
    """
    if memory.generation > generation:
        raise StaleEpochError(f"the memory is at generation {memory.generation}, it cannot be granted at {generation}")
    memory.generation = generation
