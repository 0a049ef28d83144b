"""Conformance: works settle once, memory stays pinned until then, endings are clean."""
# ruff: noqa: D102 (the tests' names say what they check)

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest

from wtransport.errors import (
    CancelledWorkError,
    ClosedError,
    PeerLostError,
    TransportError,
)
from wtransport.testing.conformance.pair import (
    Bytes,
    Pair,
    lost,
    open_pair,
    outcome,
    random_bytes,
    table,
    until,
    whole,
)

if TYPE_CHECKING:
    from wtransport.backends.base import Backend
    from wtransport.backends.driver import EngineDriver
    from wtransport.backends.work import Work
    from wtransport.config import TransportConfig

_LARGE = 192 << 20


class _Owner:
    """Something that owns memory and can be watched."""

    def __init__(self, data: Bytes) -> None:
        self.data = data


class EndingTests:
    """Cancelling, aborting, closing, and what is left afterwards."""

    if TYPE_CHECKING:
        config: ClassVar[TransportConfig]

        def make_backend(self, driver: EngineDriver, config: TransportConfig) -> Backend: ...

    def _large_write(self, pair: Pair, nbytes: int = _LARGE) -> Work:
        landing = pair.landing(nbytes)
        return pair.write(pair.source(np.ones(nbytes, np.uint8)), whole(nbytes), landing.remote)

    async def test_cancel_settles_and_the_endpoint_stays(self, pair: Pair) -> None:
        works = [self._large_write(pair) for _ in range(3)]
        for work in works:
            work.cancel()
            work.cancel()
        for work in works:
            error = await outcome(work)
            if error is not None:
                assert isinstance(error, CancelledWorkError)
                assert error.nbytes_expected == _LARGE
                assert error.nbytes_done is not None
        # The last one cannot have been done when the first had hardly begun.
        assert isinstance(works[-1].error, CancelledWorkError)
        await self._large_write(pair, 1 << 20)
        assert pair.initiator.broken is None

    async def test_cancelling_an_await_stops_only_that_wait(self, pair: Pair) -> None:
        work = self._large_write(pair)

        async def wait() -> None:
            await work

        waiter = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await work
        assert work.progress() == _LARGE

    async def test_settles_once(self, pair: Pair) -> None:
        work = self._large_write(pair)
        settled: list[Work] = []
        work.on_settled(settled.append)
        await work
        work.cancel()
        await asyncio.sleep(0.05)
        await work
        work.on_settled(settled.append)
        assert settled == [work, work]
        assert work.error is None

    async def test_each_awaiter_gets_an_error_of_its_own(self, pair: Pair) -> None:
        work = self._large_write(pair)
        work.cancel()
        errors = []
        for _ in range(2):
            with pytest.raises(CancelledWorkError) as caught:
                await work
            errors.append(caught.value)
        assert errors[0] is not errors[1]

    async def test_memory_is_pinned_until_settled_and_not_longer(self, pair: Pair) -> None:
        owner = _Owner(np.ones(_LARGE, np.uint8))
        alive = weakref.ref(owner)
        landing = pair.landing(_LARGE)
        region = pair.near.register(pair.source(owner.data).memory, owner)
        work = pair.write(region, whole(_LARGE), landing.remote)
        pinned: list[bool] = []
        work.on_settled(lambda _work: pinned.append(alive() is not None))
        del owner, region
        gc.collect()
        assert alive() is not None or work.settled
        await work
        del pinned[1:]
        gc.collect()
        assert alive() is None
        assert landing.bytes[:: 1 << 20].all()

    async def test_abort_settles_every_work_once(self, pair: Pair) -> None:
        works = [self._large_write(pair, 64 << 20) for _ in range(4)]
        settled: list[int] = []
        for work in works:
            work.on_settled(lambda work: settled.append(work.id))
        reason = PeerLostError("the test said so")
        pair.initiator.abort(reason)
        pair.initiator.abort(PeerLostError("a second reason"))
        for work in works:
            error = await outcome(work)
            if error is not None:
                assert isinstance(error, PeerLostError)
                assert error.message == "the test said so"
                assert error.peer == "owner"
        assert sorted(settled) == [work.id for work in works]
        assert pair.initiator.broken is reason
        with pytest.raises(PeerLostError):
            self._large_write(pair, 4096)

    async def test_abort_of_the_owner_reaches_the_initiator(self, pair: Pair) -> None:
        heard: list[TransportError] = []
        pair.initiator.on_broken = lambda _endpoint, reason: heard.append(reason)
        pair.owner.abort(PeerLostError("the test said so"))
        await lost(pair.initiator)
        assert len(heard) == 1
        assert isinstance(heard[0], PeerLostError)
        with pytest.raises(PeerLostError):
            pair.initiator.check_usable()

    async def test_close_lets_works_settle(self, pair: Pair) -> None:
        works = [self._large_write(pair, 32 << 20) for _ in range(4)]
        await pair.initiator.close()
        assert all(work.settled for work in works)
        assert [work.error for work in works] == [None] * 4

    async def test_close_can_be_called_again_by_anyone(self, pair: Pair) -> None:
        await asyncio.gather(pair.initiator.close(), pair.initiator.close())
        await pair.initiator.close()
        await lost(pair.owner)
        await pair.owner.close()
        await pair.owner.close()
        with pytest.raises(ClosedError):
            pair.initiator.check_usable()

    async def test_closing_does_not_call_on_broken(self, pair: Pair) -> None:
        heard: list[TransportError] = []
        pair.initiator.on_broken = lambda _endpoint, reason: heard.append(reason)
        await pair.initiator.close()
        await lost(pair.owner)
        assert heard == []

    async def test_closed_driver_settles_what_was_left(self, pair: Pair) -> None:
        works = [self._large_write(pair) for _ in range(3)]
        await pair.near.driver.close()
        assert all(work.settled for work in works)
        assert pair.near.driver.quarantined == (0, 0)
        with pytest.raises(ClosedError):
            self._large_write(pair, 4096)

    async def test_a_new_epoch_works_after_a_break(self, pair: Pair) -> None:
        old = pair.initiator, pair.owner
        pair.initiator.abort(PeerLostError("the test said so"))
        await pair.connect(epoch=8)
        data, landing = random_bytes(100_000), pair.landing(100_000)
        await pair.write(pair.source(data), whole(100_000), landing.remote)
        np.testing.assert_array_equal(landing.bytes, data)
        for endpoint in old:
            await endpoint.close()

    async def test_owner_closing_while_bytes_move(self, pair: Pair) -> None:
        work = self._large_write(pair)
        await pair.owner.close()
        error = await outcome(work)
        assert error is None or isinstance(error, PeerLostError)
        await lost(pair.initiator)

    async def test_a_table_of_nothing_on_a_closed_endpoint(self, pair: Pair) -> None:
        landing = pair.landing(64)
        await pair.initiator.close()
        with pytest.raises(ClosedError):
            pair.write(pair.source(random_bytes(64)), table([]), landing.remote)

    async def test_nothing_is_left_after_hundred_connections(self) -> None:
        data = random_bytes(5000)

        async def one(pair: Pair, epoch: int) -> None:
            landing = pair.landing(5000)
            await pair.write(pair.source(data), whole(5000), landing.remote)
            await pair.initiator.close()
            await pair.owner.close()
            landing.memory.close()
            await pair.connect(epoch=epoch)

        async with open_pair(self.make_backend, self.config) as pair:
            await one(pair, 1000)
            gc.collect()
            before = _held()
            for epoch in range(1001, 1101):
                await one(pair, epoch)
            gc.collect()
            await until(lambda: _held() <= before)
            assert _held() == before


def _held() -> tuple[int, int, int]:
    """Descriptors, threads, and mappings of memfds of this process."""
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), threading.active_count(), maps.count("/memfd:")
