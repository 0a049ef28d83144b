"""The wrapper without faults keeps every rule, also when each transfer is carried out by its relay; each fault does what it says."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wtransport.backends.inproc.backend import InprocBackend, InprocFabric
from wtransport.backends.shm.backend import ShmBackend
from wtransport.config import TransportConfig
from wtransport.errors import CancelledWorkError, DeadlineError, PeerLostError, StaleEpochError
from wtransport.testing.conformance.faults import Faults, FaultyBackend, first_bytes
from wtransport.testing.conformance.pair import Pair, cut, open_pair, outcome, random_bytes, whole
from wtransport.testing.conformance.suite import BackendConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.helpers.scripts import Outcome
    from wtransport.backends.driver import EngineDriver

SIZE = 100_000


class TestWithoutFaults(BackendConformance):
    factory = "wtransport.backends.shm.backend:ShmBackend"
    needs_peer_running = False

    def make_backend(self, driver: EngineDriver, config: TransportConfig) -> FaultyBackend:
        return FaultyBackend(ShmBackend(driver, config))


class TestRelayed(BackendConformance):
    factory = "wtransport.backends.inproc.backend:InprocBackend"
    crosses_processes = False

    @pytest.fixture(autouse=True)
    def _fabric(self) -> None:
        self.fabric = InprocFabric()

    def make_backend(self, driver: EngineDriver, config: TransportConfig) -> FaultyBackend:
        return FaultyBackend(InprocBackend(driver, config, self.fabric), Faults(delay_s=1e-6))


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def pair(faults: Faults) -> AsyncIterator[Pair]:
    def make(driver: EngineDriver, config: TransportConfig) -> FaultyBackend:
        return FaultyBackend(ShmBackend(driver, config), faults)

    async with open_pair(make, TransportConfig(copy_threads=1, abort_grace_s=0.5)) as pair:
        yield pair


async def test_dropped_transfer_ends_at_its_deadline(pair: Pair, faults: Faults) -> None:
    faults.drop = True
    landing = pair.landing(SIZE)
    error = await outcome(pair.write(pair.source(random_bytes(SIZE)), whole(SIZE), landing.remote, timeout_s=0.2))
    assert isinstance(error, DeadlineError)
    assert not error.in_flight
    assert error.nbytes_done == 0
    assert not landing.bytes.any()
    assert pair.initiator.broken is None


async def test_dropped_transfer_can_be_cancelled(pair: Pair, faults: Faults) -> None:
    faults.drop = True
    landing = pair.landing(SIZE)
    work = pair.write(pair.source(random_bytes(SIZE)), whole(SIZE), landing.remote)
    work.cancel()
    assert isinstance(await outcome(work), CancelledWorkError)


async def test_only_the_named_transfers_are_disturbed(pair: Pair, faults: Faults) -> None:
    faults.after, faults.count, faults.stale = 1, 2, True
    landing, source = pair.landing(SIZE), pair.source(random_bytes(SIZE))
    errors = [await outcome(pair.write(source, whole(SIZE), landing.remote)) for _ in range(4)]
    assert [type(error) for error in errors] == [type(None), StaleEpochError, StaleEpochError, type(None)]


async def test_duplicate_is_harmless(pair: Pair, faults: Faults) -> None:
    faults.duplicate = True
    data, landing = random_bytes(SIZE), pair.landing(SIZE)
    await pair.write(pair.source(data), cut(SIZE, 20), landing.remote)
    np.testing.assert_array_equal(landing.bytes, data)


async def test_truncated_write_reports_success(pair: Pair, faults: Faults) -> None:
    faults.truncate_nbytes = 1000
    data, landing = random_bytes(SIZE) | 1, pair.landing(SIZE)
    await pair.write(pair.source(data), whole(SIZE), landing.remote)
    np.testing.assert_array_equal(landing.bytes[:1000], data[:1000])
    assert not landing.bytes[1000:].any()


@pytest.mark.parametrize("direction", ["write", "read"])
async def test_one_byte_is_corrupted(pair: Pair, faults: Faults, direction: str) -> None:
    faults.corrupt_at = 777
    data = random_bytes(SIZE)
    if direction == "write":
        landing = pair.landing(SIZE)
        await pair.write(pair.source(data), whole(SIZE), landing.remote)
        got = landing.bytes
    else:
        landing, got = pair.landing(SIZE, fill=data, writable=False), np.zeros(SIZE, np.uint8)
        await pair.read(pair.source(got), whole(SIZE), landing.remote)
    assert np.flatnonzero(got != data).tolist() == [777]
    assert got[777] == data[777] ^ 0xFF


async def test_endpoint_breaks_after_some_bytes(pair: Pair, faults: Faults) -> None:
    faults.fail_after_nbytes = 5000
    data, landing = random_bytes(SIZE) | 1, pair.landing(SIZE)
    error = await outcome(pair.write(pair.source(data), cut(SIZE, 7), landing.remote))
    assert isinstance(error, PeerLostError)
    assert error.nbytes_done == 5000
    assert int(np.count_nonzero(landing.bytes)) == 5000
    assert pair.initiator.broken is not None


def test_first_bytes_of_a_table() -> None:
    spans = cut(1000, 30)
    for nbytes in (0, 1, 500, 1000, 2000):
        assert int(first_bytes(spans, nbytes)[:, 3].sum()) == min(nbytes, 1000)


def _write_with_a_fault(name: str, value: int) -> None:
    import asyncio
    import signal

    from wtransport.backends.shm.backend import ShmBackend
    from wtransport.config import TransportConfig
    from wtransport.testing.conformance.faults import Faults, FaultyBackend
    from wtransport.testing.conformance.pair import open_pair, random_bytes, whole

    async def write() -> None:
        faults = Faults(exit_status=value) if name == "exit" else Faults(raise_signal=signal.Signals(value))
        async with open_pair(lambda driver, config: FaultyBackend(ShmBackend(driver, config), faults), TransportConfig()) as pair:
            landing = pair.landing(64)
            print("writing", flush=True)
            await pair.write(pair.source(random_bytes(64)), whole(64), landing.remote)
            print("written", flush=True)

    asyncio.run(write())


@pytest.mark.parametrize(("name", "value", "status"), [("exit", 7, 7), ("signal", int(signal.SIGKILL), -signal.SIGKILL)])
def test_process_ends(run_python: Callable[..., Outcome], name: str, value: int, status: int) -> None:
    ended = run_python(_write_with_a_fault, name, value)
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == "writing\n"


def test_process_stops_and_goes_on(start_python: Callable[..., object]) -> None:
    script = start_python(_write_with_a_fault, "signal", int(signal.SIGSTOP))
    script.line("writing")  # type: ignore[attr-defined]
    os.waitid(os.P_PID, script.pid, os.WSTOPPED | os.WNOWAIT)  # type: ignore[attr-defined]
    script.send_signal(signal.SIGCONT)  # type: ignore[attr-defined]
    assert "written" in script.wait().stdout  # type: ignore[attr-defined]
