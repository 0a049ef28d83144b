"""Two transports in one process: the memory itself is passed, the copy engine moves the bytes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import secrets
import threading
from typing import TYPE_CHECKING

from wtransport.backends.admissions import Admissions
from wtransport.backends.base import Backend, Capabilities, Listener, OwnerEndpoint, Unavailable
from wtransport.backends.mapped import MappedGrant, MappedInitiator, MappedOwner
from wtransport.errors import ConnectError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.backends.driver import EngineDriver
    from wtransport.backends.regions import MemoryRegion, RemoteRegion
    from wtransport.config import TransportConfig


class InprocFabric:
    """The address book that the transports of one process share; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, InprocListener] = {}

    def add(self, listener: InprocListener) -> str:
        """Give *listener* an address."""
        with self._lock:
            address = f"inproc://{secrets.token_hex(8)}"
            self._listeners[address] = listener
        return address

    def remove(self, address: str) -> None:
        """Forget an address; idempotent."""
        with self._lock:
            self._listeners.pop(address, None)

    def find(self, address: str) -> InprocListener | None:
        """The listener at *address*."""
        with self._lock:
            return self._listeners.get(address)


@functools.cache
def process_fabric() -> InprocFabric:
    """The address book of this process, made on first use: what a port number is to a host, so no transport can own it."""
    return InprocFabric()


class _Link:
    """Calls the other end of an endpoint on that end's own event loop, in order."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, method: Callable[..., None], *args: object) -> bool:
        """False if the other end's loop is gone."""
        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(method, *args)
        except RuntimeError:
            return False
        return True

    def cut(self) -> None:
        self._loop = None


class InprocInitiator(MappedInitiator):
    """The connecting end of an endpoint within one process."""

    def __init__(self, peer: str, epoch: int, driver: EngineDriver) -> None:
        super().__init__(InprocBackend.name, peer, epoch, driver)
        self.loop = driver.loop
        self.owner: InprocOwner | None = None
        self._link = _Link()

    def connected(self, owner: InprocOwner) -> None:
        """The listener made the other end."""
        self.owner = owner
        self._link.attach(owner.loop)

    def _hang_up(self) -> None:
        if self.owner is not None:
            self._link.call(self.owner.lost, "the peer closed or aborted the endpoint")
        self._link.cut()


class InprocOwner(MappedOwner):
    """The accepting end of an endpoint within one process."""

    def __init__(self, peer: str, epoch: int, loop: asyncio.AbstractEventLoop, initiator: InprocInitiator) -> None:
        super().__init__(InprocBackend.name, peer, epoch)
        self.loop = loop
        self._initiator = initiator
        self._link = _Link()
        self._link.attach(initiator.loop)

    def _announce(self, remote: RemoteRegion, region: MemoryRegion, writable: bool) -> None:
        # The grant holds the region, so that the memory outlives the owner's interest in it.
        pinned = [region]
        grant = MappedGrant(region.memory, remote.generation, remote.nbytes, writable, release=pinned.clear)
        self._tell(self._initiator.granted, remote.key, grant)

    def _end_grant(self, key: int, generation: int) -> None:
        self._tell(self._initiator.revoked, key, generation)

    def _withdraw(self, key: int) -> None:
        self._tell(self._initiator.withdrawn, key)

    def _tell(self, method: Callable[..., None], *args: object) -> None:
        if not self._link.call(method, *args):
            self.lost("the peer's event loop ended")

    def _hang_up(self) -> None:
        self._link.call(self._initiator.lost, "the peer closed or aborted the endpoint")
        self._link.cut()


class InprocListener(Listener):
    """Accepts transports of the same process."""

    def __init__(self, fabric: InprocFabric, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.refused = 0
        self._fabric = fabric
        self._admissions = Admissions()
        self.address = fabric.add(self)

    def admit(self, token: bytes, epoch: int, peer: str) -> asyncio.Future[OwnerEndpoint]:
        """Expect one peer."""
        return self._admissions.expect(token, epoch, peer)

    def knock(
        self,
        token: bytes,
        epoch: int,
        initiator: InprocInitiator,
        answer: concurrent.futures.Future[InprocOwner],
    ) -> None:
        """A transport of this process asks to be admitted; runs on the listener's loop."""
        if not answer.set_running_or_notify_cancel():
            return
        try:
            admission = self._admissions.claim(token, epoch)
        except TransportError as error:
            self.refused += 1
            answer.set_exception(error)
            return
        owner = InprocOwner(admission.peer, epoch, self.loop, initiator)
        admission.future.set_result(owner)
        answer.set_result(owner)

    async def close(self) -> None:
        """Leave the fabric."""
        self._fabric.remove(self.address)
        self._admissions.close()


class InprocBackend(Backend):
    """Moves bytes between transports of one process.

    Args:
        driver: The transport's native engine on its event loop.
        config: Settings.
        fabric: Shared with the other transports that are to be reached; the process's own if None.
    """

    name = "inproc"

    def __init__(self, driver: EngineDriver, config: TransportConfig, fabric: InprocFabric | None = None) -> None:
        super().__init__(driver, config)
        self._fabric = fabric if fabric is not None else process_fabric()

    def probe(self) -> Capabilities | Unavailable:
        """Always there."""
        return Capabilities(
            name=self.name,
            one_sided=True,
            reads_private=True,
            same_host_only=True,
            detail="memory of the same process, copied by the native engine",
        )

    async def listen(self, addr: str) -> InprocListener:
        """Take an address of the fabric; *addr* is ignored."""
        return InprocListener(self._fabric, self.driver.loop)

    async def connect(self, addr: str, *, token: bytes, epoch: int, peer: str, timeout_s: float) -> InprocInitiator:
        """Connect to a listener of the same fabric."""
        listener = self._fabric.find(addr)
        if listener is None:
            raise ConnectError(f"nobody listens at {addr} in this process", peer=peer)
        initiator = InprocInitiator(peer, epoch, self.driver)
        answer: concurrent.futures.Future[InprocOwner] = concurrent.futures.Future()
        try:
            listener.loop.call_soon_threadsafe(listener.knock, token, epoch, initiator, answer)
            owner = await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s)
        except RuntimeError as error:
            raise ConnectError(f"the event loop behind {addr} ended", peer=peer) from error
        except TimeoutError as error:
            raise ConnectError(f"the event loop behind {addr} did not answer in {timeout_s:g} s", peer=peer) from error
        except TransportError as error:
            error.with_fields(backend=self.name, peer=peer, epoch=epoch, phase="connect")
            raise
        initiator.connected(owner)
        return initiator
