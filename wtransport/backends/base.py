"""The backend seam: what every backend offers, and the rules that hold behind it.

The member that connects is the *initiator*: it writes into, and reads from, memory that the other
one, the *owner*, granted. Reads and writes need no call and no free event loop on the owner's side.

Rules, which the conformance suite in ``wtransport.testing`` checks on every backend:

1. A work settles exactly once. Settling gives the buffers back; before that nobody frees or reuses
   them.
2. A timeout or a cancel asks the backend to stop and keeps memory pinned until it has. If it does
   not stop within the grace, its endpoint is aborted, and the error says whether bytes may still
   land.
3. After a peer is lost its endpoint stays broken; recovery is a new endpoint at a higher epoch.
   Frames and grants of older epochs or other incarnations are refused, and counted.
4. Bounds are checked in native code against the grant: by the initiator for what it stores or reads
   itself, by the owner for whatever the owner executes.
5. No method blocks the event loop; anything over 1 ms of CPU runs native, without the GIL.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wtransport.backends.native_errors import Where, fresh
from wtransport.backends.regions import Ledger as Ledger
from wtransport.backends.regions import MemoryRegion as MemoryRegion
from wtransport.backends.regions import RemoteRegion as RemoteRegion
from wtransport.errors import ClosedError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from wtransport._native import LocalRegion, SharedRegion
    from wtransport.backends.deadline import Deadline
    from wtransport.backends.driver import EngineDriver
    from wtransport.backends.work import Work
    from wtransport.config import TransportConfig

TOKEN_NBYTES = 32


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do on this machine.

    Attributes:
        name: The backend.
        one_sided: Neither side's Python takes part while bytes move.
        reads_private: A peer may read memory that is private to its owner (granted as a
            ``LocalRegion``).
        same_host_only: Both ends must be on one host.
        detail: A sentence for people: the path the bytes take.
    """

    name: str
    one_sided: bool
    reads_private: bool
    same_host_only: bool
    detail: str


@dataclass(frozen=True)
class Unavailable:
    """A backend cannot be used on this machine, and why."""

    reason: str


class Endpoint(ABC):
    """One end of an established channel to one peer.

    Attributes:
        backend: Name of the backend.
        peer: The other member's name.
        epoch: The attempt that both sides agreed on.
        broken: Why the endpoint can move nothing any more; None while it can. Never reset.
        refused: Uses of grants, keys and frames that were refused here (stale, revoked, unknown,
            out of bounds).
        on_broken: Called once with the endpoint and the reason, on the event loop, when it breaks;
            not by :meth:`close`.
    """

    def __init__(self, backend: str, peer: str, epoch: int) -> None:
        self.backend = backend
        self.peer = peer
        self.epoch = epoch
        self.broken: TransportError | None = None
        self.on_broken: Callable[[Endpoint, TransportError], None] | None = None
        self._refused = 0
        self._closing: asyncio.Task[None] | None = None

    @property
    def refused(self) -> int:
        """How often something was refused here."""
        return self._refused

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called, or the endpoint broke."""
        return self._closing is not None or self.broken is not None

    async def close(self) -> None:
        """Let the works under way settle, then give everything back.

        Idempotent, also after :meth:`abort`; cancelling the call stops the wait only. Starting
        something on a closed endpoint raises ``ClosedError``.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    @abstractmethod
    async def _close(self) -> None:
        """Drain and give back; called once."""

    @abstractmethod
    def abort(self, reason: TransportError) -> None:
        """Break the endpoint at once: every unsettled work is stopped and settles with *reason*.

        Never waits, never raises, idempotent.
        """

    def where(self, phase: str) -> Where:
        """Fields for the errors of one *phase* on this endpoint."""
        return Where(self.backend, self.peer, self.epoch, phase)

    def check_usable(self) -> None:
        """Raise why nothing can be started here, if so."""
        if self.broken is not None:
            raise fresh(self.broken)
        if self.closed:
            raise ClosedError("this endpoint is closed", peer=self.peer, backend=self.backend, epoch=self.epoch)

    def _break(self, reason: TransportError) -> bool:
        """Note the first *reason*, tell the owner of this object.

        False if the endpoint was broken already.
        """
        if self.broken is not None:
            return False
        self.broken = reason.with_fields(peer=self.peer, backend=self.backend, epoch=self.epoch)
        if self.on_broken is not None:
            self.on_broken(self, self.broken)
        return True


class InitiatorEndpoint(Endpoint):
    """The end that moves bytes; what :meth:`Backend.connect` returns.

    Attributes:
        owner_digests: Whether the owner's CPU receives the bytes, and digests them in turn where digests are asked for.
    """

    owner_digests: bool = False

    @abstractmethod
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
        """Start storing bytes of *region* into *remote*; returns at once.

        Args:
            region: Where to load; stays referenced until the work settles.
            spans: int64 ``[n, 6]`` (block, offset in the block, offset in the remote region,
                nbytes, tensor, global position).
            remote: Grant of the owner, for this endpoint.
            num_digests: Number of tensors that the table names.
            digest: Take each tensor's digest in the same pass.
            deadline: Renewed by every byte of progress; may be shared by works that belong
                together.

        Raises:
            TransportError: If the endpoint is broken or closed. Whatever is wrong with the
                arguments settles the work instead.
        """

    @abstractmethod
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
        """Start loading bytes of *remote* into *region*.

        The table's columns mean the same as for :meth:`write`.

        The work fails with ``StaleEpochError`` if the memory's generation moved before its last
        byte was read.
        """


class OwnerEndpoint(Endpoint):
    """The end that grants memory; what :meth:`Listener.admit` resolves to."""

    @abstractmethod
    def grant(self, region: MemoryRegion, *, generation: int, writable: bool, num_digests: int) -> RemoteRegion:
        """Let the peer use *region*.

        Which stays referenced until retired or until the endpoint is gone.

        Args:
            region: Memory registered with this backend.
            generation: Written to the header of shared memory; it never goes down.
            writable: Whether the peer may write, too.
            num_digests: Number of tensors counted in the ledger.

        Raises:
            UnsupportedError: If this backend cannot grant such memory.
            StaleEpochError: If the memory has a higher generation already.
        """

    def prepare(self, region: MemoryRegion) -> None:
        """Let the peer set itself up for grants of *region* to come (map it, fault it in); grants nothing by itself."""

    @abstractmethod
    def revoke(self, remote: RemoteRegion) -> None:
        """End the grant: later uses are refused.

        The peer may keep shared memory mapped, for grants to come. Idempotent.
        """

    @abstractmethod
    def retire(self, region: MemoryRegion) -> None:
        """End every grant of *region* for good: it is about to be given back.

        A peer that is stopped may still hold a mapping of shared memory. Idempotent.
        """

    @abstractmethod
    def ledger(self, remote: RemoteRegion) -> Ledger | None:
        """What was stored through this grant; None where the owner's CPU never saw the bytes."""


class Listener(ABC):
    """Accepts peers that present a token issued over the control channel.

    Attributes:
        address: What peers dial; bound before this object exists.
        refused: Connections turned away (garbage, unknown or used token, other epoch, too slow).
    """

    address: str
    refused: int

    @abstractmethod
    def admit(self, token: bytes, epoch: int, peer: str) -> asyncio.Future[OwnerEndpoint]:
        """Expect one peer.

        Args:
            token: 32 random bytes, good for one attempt.
            epoch: The peer must present the same.
            peer: The peer's name, for errors.

        Returns:
            Resolves when the peer has connected; cancel it to withdraw the token.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop listening; endpoints made stay.

        Pending admissions fail with ``ClosedError``. Idempotent.
        """


class Backend(ABC):
    """One way to move bytes, of one transport.

    Args:
        driver: The transport's native engine on its event loop.
        config: Settings.

    Attributes:
        name: What it is asked for by; a class attribute.
    """

    name: str

    def __init__(self, driver: EngineDriver, config: TransportConfig) -> None:
        self.driver = driver
        self.config = config

    @abstractmethod
    def probe(self) -> Capabilities | Unavailable:
        """What this backend can do here, or why it cannot. Cheap; starts nothing."""

    @abstractmethod
    async def listen(self, addr: str) -> Listener:
        """Open a listener.

        Args:
            addr: Host name or address of the interface; ignored by backends of one host.
        """

    @abstractmethod
    async def connect(self, addr: str, *, token: bytes, epoch: int, peer: str, timeout_s: float) -> InitiatorEndpoint:
        """Connect to a listener's address.

        Args:
            addr: The listener's ``address``.
            token: Issued by the listener's side for this attempt.
            epoch: Must equal what the listener's side expects.
            peer: The other member's name, for errors.
            timeout_s: Longest wait for the whole handshake.

        Raises:
            ConnectError: If nobody listens, or nobody answered in time.
            AuthError: If the token or this process's user was refused.
            StaleEpochError: If the other side expects another epoch.
        """

    def register(self, memory: LocalRegion | SharedRegion, owner: object) -> MemoryRegion:
        """Make memory known to the backend; *owner* is kept referenced as long as the region is."""
        return MemoryRegion(self.name, memory, owner)
