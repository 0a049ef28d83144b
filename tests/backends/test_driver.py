"""What the driver does with works that will not end, and with events that go wrong."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from wtransport import _native
from wtransport.backends.base import MemoryRegion
from wtransport.backends.deadline import Deadline
from wtransport.backends.driver import EngineDriver
from wtransport.backends.native_errors import CODES, Where
from wtransport.errors import CancelledWorkError, ClosedError, DeadlineError, PeerLostError, RegistrationError, TransportError
from wtransport.testing.conformance.pair import local_region, outcome, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wtransport.backends.work import Work

GRACE_S = 0.15


class Stubborn:
    """A mover that does only what the test says."""

    def __init__(self, driver: EngineDriver, *, settles_on_cancel: bool = False) -> None:
        self.id = driver.draw_id()
        self.done = 0
        self.result = ""
        self.cancels = 0
        self._driver = driver
        self._settles_on_cancel = settles_on_cancel

    def progress(self) -> int:
        return self.done

    def settled(self) -> bool:
        return bool(self.result)

    def code(self) -> int:
        return CODES[self.result or "OK"]

    def detail(self) -> str:
        return ""

    def cancel(self) -> None:
        self.cancels += 1
        if self._settles_on_cancel:
            self.settle("CANCELLED")

    def digests(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.zeros(1, np.uint64)

    def settle(self, result: str) -> None:
        self.result = result
        self._driver.mover_settled(self.id)


class Bench:
    """A driver, and the endpoint that it would abort."""

    def __init__(self, driver: EngineDriver) -> None:
        self.driver = driver
        self.aborted: list[TransportError] = []

    def start(self, mover: Stubborn, timeout_s: float = 0.1, nbytes: int = 1000) -> Work:
        array = np.zeros(nbytes, np.uint8)
        self.owner = weakref.ref(array)
        work = self.driver.open(
            MemoryRegion("fake", local_region(array), array),
            nbytes=nbytes,
            num_digests=1,
            deadline=Deadline(timeout_s),
            where=Where("fake", "peer", 1, "write"),
            abort=self.aborted.append,
        )
        self.driver.start(work, mover)
        return work


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    driver = EngineDriver(copy_threads=1, abort_grace_s=GRACE_S)
    yield Bench(driver)
    await driver.close()


async def test_silence_is_asked_to_stop_and_does(bench: Bench) -> None:
    error = await outcome(bench.start(Stubborn(bench.driver, settles_on_cancel=True)))
    assert isinstance(error, DeadlineError)
    assert not error.in_flight
    assert (error.peer, error.backend, error.epoch, error.phase) == ("peer", "fake", 1, "write")
    assert (error.nbytes_done, error.nbytes_expected) == (0, 1000)
    assert bench.aborted == []


async def test_progress_keeps_it_alive(bench: Bench) -> None:
    mover = Stubborn(bench.driver)
    work = bench.start(mover, timeout_s=0.2)
    for _ in range(8):
        await asyncio.sleep(0.06)
        mover.done += 1
    assert not work.settled
    assert mover.cancels == 0
    mover.settle("OK")
    await work


async def test_what_does_not_stop_has_its_endpoint_aborted(bench: Bench) -> None:
    mover = Stubborn(bench.driver)
    work = bench.start(mover)
    await until(lambda: bool(bench.aborted))
    assert not work.settled
    mover.settle("ABORTED")
    error = await outcome(work)
    assert isinstance(error, DeadlineError)
    assert error.in_flight
    assert len(bench.aborted) == 1
    assert bench.driver.quarantined == (0, 0)


async def test_what_abort_does_not_stop_is_quarantined_until_it_settles(bench: Bench) -> None:
    mover = Stubborn(bench.driver)
    error = await outcome(bench.start(mover))
    assert isinstance(error, DeadlineError)
    assert error.in_flight
    assert bench.driver.quarantined == (1, 1000)
    gc.collect()
    assert bench.owner() is not None
    mover.settle("OK")
    assert bench.driver.quarantined == (0, 0)
    del error
    gc.collect()
    assert bench.owner() is None


async def test_quarantined_memory_is_limited(bench: Bench) -> None:
    movers = [Stubborn(bench.driver) for _ in range(16)]
    await asyncio.gather(*(outcome(bench.start(mover)) for mover in movers))
    assert bench.driver.quarantined == (16, 16_000)
    with pytest.raises(RegistrationError, match="16 transfers hang"):
        bench.start(Stubborn(bench.driver))
    for mover in movers:
        mover.settle("OK")
    more = Stubborn(bench.driver)
    work = bench.start(more)
    more.settle("OK")
    assert await outcome(work) is None


async def test_closing_does_not_wait_for_quarantined_memory(bench: Bench) -> None:
    mover = Stubborn(bench.driver)
    await outcome(bench.start(mover))
    await bench.driver.close()
    assert bench.driver.quarantined == (1, 1000)
    mover.settle("OK")


async def test_cancel_of_what_does_not_stop(bench: Bench) -> None:
    work = bench.start(Stubborn(bench.driver, settles_on_cancel=True), timeout_s=60.0)
    work.cancel()
    assert isinstance(await outcome(work), CancelledWorkError)
    mover = Stubborn(bench.driver)
    work = bench.start(mover, timeout_s=60.0)
    work.cancel()
    await until(lambda: bool(bench.aborted))
    mover.settle("ABORTED")
    assert isinstance(await outcome(work), DeadlineError)


async def test_bytes_that_were_all_moved_count_though_stop_was_asked(bench: Bench) -> None:
    mover = Stubborn(bench.driver)
    work = bench.start(mover, timeout_s=60.0)
    work.cancel()
    mover.settle("OK")
    await work


async def test_native_failure_outranks_the_reason_to_stop(bench: Bench) -> None:
    mover = Stubborn(bench.driver)
    work = bench.start(mover, timeout_s=60.0)
    work.cancel()
    mover.settle("PEER_LOST")
    assert isinstance(await outcome(work), PeerLostError)


async def test_nothing_starts_once_closed(bench: Bench) -> None:
    await bench.driver.close()
    await bench.driver.close()
    with pytest.raises(ClosedError):
        bench.start(Stubborn(bench.driver))
    with pytest.raises(ClosedError):
        _ = bench.driver.engine


async def test_closing_settles_everything(bench: Bench) -> None:
    works = [bench.start(Stubborn(bench.driver, settles_on_cancel=True), timeout_s=60.0) for _ in range(3)]
    await bench.driver.close()
    assert [type(work.error) for work in works] == [ClosedError] * 3
    assert bench.driver.unsettled == 0


async def test_callback_of_a_settled_work_may_fail(bench: Bench) -> None:
    caught: list[dict[str, Any]] = []
    bench.driver.loop.set_exception_handler(lambda _loop, context: caught.append(context))
    heard: list[tuple[int, int]] = []

    def hear(peer: int, code: int, _age_ns: int) -> None:
        heard.append((peer, code))
        if peer == 1:
            raise RuntimeError("a bug of this listener")

    bench.driver.on_liveness = hear
    heart = _native.Heart(bench.driver.engine, 0.05, 5.0)
    try:
        for peer in (1, 2):
            here, there = socket.socketpair()
            heart.add(peer, here.detach())
            there.close()
        await until(lambda: {peer for peer, _ in heard} == {1, 2})
    finally:
        heart.close()
    assert {code for _, code in heard} == {_native.LIVENESS_EOF}
    assert isinstance(caught[0]["exception"], RuntimeError)


async def test_offloaded_call_reports_its_error(bench: Bench) -> None:
    def fail() -> None:
        raise ValueError("as asked for")

    with pytest.raises(ValueError, match="as asked for"):
        await bench.driver.offload(fail)
