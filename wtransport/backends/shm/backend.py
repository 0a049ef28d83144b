"""Two processes of one host.

Sealed memory is passed over a Unix socket, its user moves the bytes.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import socket
import struct
from typing import TYPE_CHECKING

from wtransport._native import SharedRegion
from wtransport.backends.base import Backend, Capabilities, Unavailable
from wtransport.backends.handshake import dial
from wtransport.backends.listening import MAX_HANDSHAKE_S, SocketListener
from wtransport.backends.mapped import MappedGrant, MappedInitiator, MappedOwner
from wtransport.backends.native_errors import native_call
from wtransport.backends.shm.fdchannel import FdChannel
from wtransport.errors import (
    AuthError,
    ConfigError,
    ProtocolError,
    TransportError,
    UnsupportedError,
    exhausted,
)

if TYPE_CHECKING:
    from wtransport.backends.admissions import Admission
    from wtransport.backends.base import Listener
    from wtransport.backends.driver import EngineDriver
    from wtransport.backends.regions import MemoryRegion, RemoteRegion

_MAGIC = b"WTP1SHM\0"
_PREFIX = "unix://@"
# op, writable, key, generation, nbytes
_MESSAGE = struct.Struct("<BBxxxxxxQQQ")
_GRANT, _REVOKE, _WITHDRAW, _BYE = 1, 2, 3, 4
_GONE = "the peer died, or closed its end without a word"
_LEFT = "the peer closed the endpoint"


class ShmInitiator(MappedInitiator):
    """The connecting end: maps what the owner grants."""

    def __init__(self, peer: str, epoch: int, driver: EngineDriver, sock: socket.socket) -> None:
        super().__init__(ShmBackend.name, peer, epoch, driver)
        self._channel = FdChannel(driver.loop, sock, self._received, self._ended)

    def _received(self, message: bytes, fds: list[int]) -> None:
        try:
            if len(message) != _MESSAGE.size:
                raise ProtocolError(f"the peer sent a message of {len(message)} bytes")
            op, writable, key, generation, nbytes = _MESSAGE.unpack(message)
            if op == _GRANT and len(fds) == 1:
                self._map(fds[0], bool(writable), key, generation, nbytes)
            elif op == _REVOKE:
                self.revoked(key, generation)
            elif op == _WITHDRAW:
                self.withdrawn(key)
            elif op == _BYE:
                self.lost(_LEFT)
            else:
                raise ProtocolError(f"the peer sent an unknown message {op}")
        except TransportError as error:
            # Kept as the reason, it must not keep what its frames held.
            self.abort(error.with_traceback(None))
        finally:
            for fd in fds:
                os.close(fd)

    def _map(self, fd: int, writable: bool, key: int, generation: int, nbytes: int) -> None:
        try:
            with native_call("mapping the peer's memory"):
                memory = SharedRegion.attach(fd, nbytes, writable)
        except ConfigError as error:
            self._refused += 1
            raise ProtocolError(error.message, hint="the peer's memory is not sealed as agreed") from error
        if writable and not self._driver.closed:
            # The pages are there; what is missing is this process's page table. Faulting it in now keeps the first write at full speed.
            self._driver.engine.populate(memory)
        self.granted(key, MappedGrant(memory, generation, nbytes, writable, memory.close))

    def _ended(self, reason: str) -> None:
        self.lost(f"{_GONE} ({reason})")

    def _hang_up(self) -> None:
        self._channel.send(_MESSAGE.pack(_BYE, 0, 0, 0, 0))
        self._channel.close()


class ShmOwner(MappedOwner):
    """The accepting end: passes descriptors of its sealed memory."""

    def __init__(self, driver: EngineDriver, socks: list[socket.socket], admission: Admission) -> None:
        super().__init__(ShmBackend.name, admission.peer, admission.epoch)
        self._channel = FdChannel(driver.loop, socks[0], self._received, self._ended)

    def _announce(self, remote: RemoteRegion, region: MemoryRegion, writable: bool) -> None:
        memory = region.memory
        if not isinstance(memory, SharedRegion):
            raise UnsupportedError(
                "private memory cannot be granted over shm",
                backend=self.backend,
                peer=self.peer,
                hint="land in a slot, or use a backend that reads private memory",
            )
        fd = os.dup(memory.fileno()) if writable else reopen_read_only(memory.fileno())
        os.set_inheritable(fd, False)
        message = _MESSAGE.pack(_GRANT, writable, remote.key, remote.generation, remote.nbytes)
        self._channel.send(message, fd)

    def _end_grant(self, key: int, generation: int) -> None:
        self._channel.send(_MESSAGE.pack(_REVOKE, 0, key, generation, 0))

    def _withdraw(self, key: int) -> None:
        self._channel.send(_MESSAGE.pack(_WITHDRAW, 0, key, 0, 0))

    def _received(self, message: bytes, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        if len(message) == _MESSAGE.size and message[0] == _BYE:
            self.lost(_LEFT)
        else:
            self._refused += 1
            self.lost("the peer sent a message that only an owner may send")

    def _ended(self, reason: str) -> None:
        self.lost(f"{_GONE} ({reason})")

    def _hang_up(self) -> None:
        self._channel.send(_MESSAGE.pack(_BYE, 0, 0, 0, 0))
        self._channel.close()


class ShmBackend(Backend):
    """Moves bytes between processes of one user on one host."""

    name = "shm"

    def probe(self) -> Capabilities | Unavailable:
        """Needs sealed memfds, abstract Unix sockets, and ``/proc`` for read-only grants."""
        try:
            with native_call("making a memfd"):
                memory = SharedRegion.create(1)
        except TransportError as error:
            return Unavailable(f"no sealed memory can be made: {error.message}")
        try:
            os.close(reopen_read_only(memory.fileno()))
        except UnsupportedError as error:
            return Unavailable(error.message)
        finally:
            memory.close()
        return Capabilities(
            name=self.name,
            one_sided=True,
            reads_private=False,
            same_host_only=True,
            detail="sealed memfd, mapped by the peer, copied by the native engine",
        )

    async def listen(self, addr: str) -> Listener:
        """Listen on an abstract Unix socket with a random name; *addr* is ignored."""
        name = f"wtransport-{secrets.token_hex(16)}"
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        sock.bind(f"\0{name}")
        sock.listen(64)
        return SocketListener(
            sock,
            f"{_PREFIX}{name}",
            magic=_MAGIC,
            max_streams=1,
            timeout_s=min(MAX_HANDSHAKE_S, self.config.connect_timeout_s),
            check=check_same_user,
            build=functools.partial(ShmOwner, self.driver),
        )

    async def connect(self, addr: str, *, token: bytes, epoch: int, peer: str, timeout_s: float) -> ShmInitiator:
        """Connect to a listener's abstract socket."""
        if not addr.startswith(_PREFIX):
            raise ConfigError(f"{addr!r} is not an address of shm", peer=peer, backend=self.name)

        async def opening() -> socket.socket:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                await asyncio.get_running_loop().sock_connect(sock, f"\0{addr[len(_PREFIX) :]}")
                check_same_user(sock)
            except BaseException:
                sock.close()
                raise
            return sock

        try:
            socks = await dial(
                addr,
                opening,
                magic=_MAGIC,
                token=token,
                epoch=epoch,
                streams=1,
                timeout_s=timeout_s,
            )
        except TransportError as error:
            error.with_fields(backend=self.name, peer=peer, epoch=epoch, phase="connect")
            raise
        return ShmInitiator(peer, epoch, self.driver, socks[0])


def check_same_user(sock: socket.socket) -> None:
    """Raise ``AuthError`` unless the other end of a Unix socket belongs to this process's user."""
    credentials = struct.Struct("3i")
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    _, uid, _ = credentials.unpack(raw)
    if uid != os.geteuid():
        raise AuthError(f"the peer runs as uid {uid}, this process as {os.geteuid()}")


def reopen_read_only(fd: int) -> int:
    """Open a memfd once more, for reading only; the caller owns the result.

    Raises:
        UnsupportedError: If ``/proc`` bars it. The memory cannot be sealed against writing instead:
            its owner goes on writing through mappings that it makes later.
    """
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        refused = UnsupportedError(f"shared memory cannot be granted for reading only: {error}", hint="mount /proc in this container")
        raise exhausted(error, "grant shared memory") or refused from error
