"""Conformance: a peer in another process that dies, stops, leaves or is replaced."""
# ruff: noqa: D102 (the tests' names say what they check)

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest

from wtransport.backends.base import TOKEN_NBYTES, OwnerEndpoint, RemoteRegion
from wtransport.errors import DeadlineError, PeerLostError, TransportError
from wtransport.testing.conformance.pair import (
    EPOCH,
    TIMEOUT_S,
    Pair,
    lost,
    open_driver,
    random_bytes,
    until,
    whole,
)
from wtransport.testing.conformance.process import PeerProcess, peer_process
from wtransport.weights.digest import digest_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wtransport.backends.base import Backend
    from wtransport.backends.driver import EngineDriver
    from wtransport.config import TransportConfig

_NBYTES = 64 << 20


class PeerTests:
    """What one end sees when the other end's process misbehaves."""

    if TYPE_CHECKING:
        factory: ClassVar[str]
        crosses_processes: ClassVar[bool]
        needs_peer_running: ClassVar[bool]
        config: ClassVar[TransportConfig]

        def make_backend(self, driver: EngineDriver, config: TransportConfig) -> Backend: ...

    @contextlib.asynccontextmanager
    async def _child(self) -> AsyncIterator[PeerProcess]:
        if not self.crosses_processes:
            pytest.skip("this backend stays within one process")
        async with peer_process(self.factory, self.config) as child:
            yield child

    @contextlib.asynccontextmanager
    async def _owner_in_child(self, nbytes: int = _NBYTES) -> AsyncIterator[tuple[PeerProcess, Pair, RemoteRegion]]:
        """The child owns memory that this process may write and read."""
        async with self._child() as child, open_driver(self.config) as driver:
            backend = self.make_backend(driver, self.config)
            pair = Pair(backend, backend, await backend.listen(""))
            address = (await child.call("listen"))["address"]
            token = os.urandom(TOKEN_NBYTES)
            await child.call("admit", token=token.hex(), epoch=EPOCH)
            pair.initiator = await backend.connect(address, token=token, epoch=EPOCH, peer="owner", timeout_s=TIMEOUT_S)
            answer = await child.call("grant", nbytes=nbytes, writable=True, seed=0)
            try:
                yield child, pair, RemoteRegion.from_wire(answer["remote"])
            finally:
                child.signal(signal.SIGCONT)
                await pair.close()

    async def _initiator_in_child(self, pair: Pair, child: PeerProcess) -> OwnerEndpoint:
        """Connect the child to this process's listener; returns the end that is here."""
        token = os.urandom(TOKEN_NBYTES)
        admission = pair.listener.admit(token, EPOCH, "child")
        await child.call("connect", address=pair.listener.address, token=token.hex(), epoch=EPOCH)
        return await admission

    async def _write_until_it_fails(self, pair: Pair, remote: RemoteRegion, timeout_s: float) -> TransportError:
        """Write over and over; a write that was under way may still end well."""
        source = pair.source(random_bytes(_NBYTES))
        while True:
            try:
                await pair.write(source, whole(_NBYTES), remote, timeout_s=timeout_s)
            except TransportError as error:
                return error

    async def test_bytes_cross_processes(self) -> None:
        data = random_bytes(_NBYTES)
        async with self._owner_in_child() as (child, pair, remote):
            work = pair.write(pair.source(data), whole(_NBYTES), remote)
            await work
            assert (await child.call("digest"))["digest"] == digest_bytes(data, 0)
            got = np.zeros(_NBYTES, np.uint8)
            await pair.read(pair.source(got), whole(_NBYTES), remote)
            np.testing.assert_array_equal(got, data)

    async def test_killed_owner_is_lost_while_bytes_move(self) -> None:
        async with self._owner_in_child() as (child, pair, remote):
            await pair.write(pair.source(random_bytes(_NBYTES)), whole(_NBYTES), remote)
            child.signal(signal.SIGKILL)
            error = await self._write_until_it_fails(pair, remote, TIMEOUT_S)
            assert isinstance(error, PeerLostError)
            assert error.peer == "owner"
            assert isinstance(pair.initiator.broken, PeerLostError)

    async def test_killed_owner_is_lost_while_nothing_moves(self) -> None:
        async with self._owner_in_child(4096) as (child, pair, _):
            heard: list[TransportError] = []
            pair.initiator.on_broken = lambda _endpoint, reason: heard.append(reason)
            child.signal(signal.SIGKILL)
            await until(lambda: bool(heard))
            assert isinstance(heard[0], PeerLostError)

    async def test_owner_that_leaves_is_lost(self) -> None:
        async with self._owner_in_child(4096) as (child, pair, remote):
            await child.call("close")
            await lost(pair.initiator)
            with pytest.raises(PeerLostError):
                await pair.write(pair.source(random_bytes(4096)), whole(4096), remote)

    async def test_stopped_owner(self) -> None:
        data = random_bytes(_NBYTES)
        async with self._owner_in_child() as (child, pair, remote):
            source = pair.source(data)
            await pair.write(source, whole(_NBYTES), remote)
            child.signal(signal.SIGSTOP)
            if self.needs_peer_running:
                error = await self._write_until_it_fails(pair, remote, 0.5)
                assert isinstance(error, DeadlineError)
                assert error.in_flight
                assert pair.initiator.broken is not None
                assert pair.near.driver.quarantined == (0, 0)
                return
            work = pair.write(source, whole(_NBYTES), remote, timeout_s=5.0)
            await work
            child.signal(signal.SIGCONT)
            assert (await child.call("digest"))["digest"] == digest_bytes(data, 0)

    async def test_killed_initiator_is_lost_and_can_be_replaced(self, pair: Pair) -> None:
        for _ in range(2):
            async with self._child() as child:
                owner = await self._initiator_in_child(pair, child)
                pair.owner, mine = owner, pair.owner
                landing = pair.landing(_NBYTES)
                pair.owner = mine
                await child.call("start_writing", remote=landing.remote.to_wire(), nbytes=_NBYTES)
                child.signal(signal.SIGKILL)
                await lost(owner)
                assert isinstance(owner.broken, PeerLostError)
                await owner.close()

    async def test_consumer_exits_and_a_fresh_one_reads(self, pair: Pair) -> None:
        data, first = random_bytes(1 << 20), pair.owner
        for _ in range(3):
            async with self._child() as child:
                pair.owner = await self._initiator_in_child(pair, child)
                landing = pair.landing(1 << 20, writable=False, fill=data)
                wire = landing.remote.to_wire()
                answer = await child.call("read", remote=wire, nbytes=1 << 20)
                assert answer == {"digest": digest_bytes(data, 0)}
            await lost(pair.owner)
            await pair.owner.close()
        pair.owner = first

    async def test_stopped_initiator_does_not_hold_up_closing(self, pair: Pair) -> None:
        async with self._child() as child:
            owner = await self._initiator_in_child(pair, child)
            child.signal(signal.SIGSTOP)
            await owner.close()
            assert owner.closed
            child.signal(signal.SIGCONT)
