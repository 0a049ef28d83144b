from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING

import pytest

from wtransport._native import SharedRegion
from wtransport.backends.deadline import Deadline
from wtransport.backends.inproc.backend import InprocBackend, InprocFabric
from wtransport.config import TransportConfig
from wtransport.errors import ConnectError
from wtransport.testing.conformance.pair import TIMEOUT_S, local_region, lost, open_driver, random_bytes, whole
from wtransport.testing.conformance.suite import BackendConformance

if TYPE_CHECKING:
    from wtransport.backends.base import RemoteRegion
    from wtransport.backends.driver import EngineDriver


class TestInproc(BackendConformance):
    factory = "wtransport.backends.inproc.backend:InprocBackend"
    crosses_processes = False
    needs_peer_running = False

    @pytest.fixture(autouse=True)
    def _fabric(self) -> None:
        self.fabric = InprocFabric()

    def make_backend(self, driver: EngineDriver, config: TransportConfig) -> InprocBackend:
        return InprocBackend(driver, config, self.fabric)


async def test_transports_in_two_threads() -> None:
    """Each transport has an event loop of its own; neither blocks, and the end of one is news to the other."""
    config, fabric = TransportConfig(copy_threads=1), InprocFabric()
    addresses: queue.Queue[str] = queue.Queue()
    token, data = bytes(range(32)), random_bytes(1 << 20)
    remotes: queue.Queue[RemoteRegion] = queue.Queue()
    got: queue.Queue[bytes] = queue.Queue()

    async def own() -> None:
        async with open_driver(config) as driver:
            backend = InprocBackend(driver, config, fabric)
            listener = await backend.listen("")
            admission = listener.admit(token, 1, "initiator")
            addresses.put(listener.address)
            owner = await admission
            memory = SharedRegion.create(data.nbytes)
            remotes.put(owner.grant(backend.register(memory, None), generation=1, writable=True, num_digests=1))
            await lost(owner)
            got.put(memory.view().tobytes())
            await owner.close()
            await listener.close()
            memory.close()

    thread = threading.Thread(target=asyncio.run, args=(own(),))
    thread.start()
    try:
        async with open_driver(config) as driver:
            backend = InprocBackend(driver, config, fabric)
            address = await asyncio.to_thread(addresses.get, timeout=TIMEOUT_S)
            initiator = await backend.connect(address, token=token, epoch=1, peer="owner", timeout_s=TIMEOUT_S)
            remote = await asyncio.to_thread(remotes.get, timeout=TIMEOUT_S)
            region = backend.register(local_region(data), data)
            deadline = Deadline(TIMEOUT_S)
            await initiator.write(region, whole(data.nbytes), remote, num_digests=1, digest=False, deadline=deadline)
            await initiator.close()
            assert await asyncio.to_thread(got.get, timeout=TIMEOUT_S) == data.tobytes()
    finally:
        await asyncio.to_thread(thread.join)


async def test_fabrics_do_not_meet() -> None:
    config = TransportConfig(copy_threads=1)
    async with open_driver(config) as driver:
        listener = await InprocBackend(driver, config, InprocFabric()).listen("")
        with pytest.raises(ConnectError, match="nobody listens"):
            await InprocBackend(driver, config).connect(listener.address, token=bytes(32), epoch=1, peer="x", timeout_s=1.0)
        await listener.close()
