"""Any two processes that reach each other over TCP.

Several sockets, native threads at both ends.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import secrets
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from wtransport._native import DIGEST, SharedRegion, TcpReceiver, TcpSender
from wtransport.backends.base import (
    Backend,
    Capabilities,
    InitiatorEndpoint,
    OwnerEndpoint,
    Unavailable,
)
from wtransport.backends.handshake import dial
from wtransport.backends.listening import MAX_HANDSHAKE_S, SocketListener
from wtransport.backends.mapped import raise_generation
from wtransport.backends.native_errors import native_call, native_error
from wtransport.backends.regions import Ledger, RemoteRegion
from wtransport.backends.spans import check_bounds, check_table, table_nbytes
from wtransport.backends.work import wait_settled
from wtransport.errors import ClosedError, ConfigError, ConnectError, TransportError, exhausted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wtransport.backends.admissions import Admission
    from wtransport.backends.base import Listener
    from wtransport.backends.deadline import Deadline
    from wtransport.backends.driver import EngineDriver
    from wtransport.backends.regions import MemoryRegion
    from wtransport.backends.work import Work

_MAGIC = b"WTP1DATA"
_MAX_STREAMS = 64
_BACKLOG = 128
_GOODBYE_S = 5.0


class TcpInitiator(InitiatorEndpoint):
    """The connecting end: its threads send what is written and store what is read."""

    owner_digests = True

    def __init__(self, peer: str, epoch: int, driver: EngineDriver, socks: list[socket.socket]) -> None:
        super().__init__(TcpBackend.name, peer, epoch)
        self._driver = driver
        self._works: set[Work] = set()
        with native_call("starting the sender's threads"):
            sender = TcpSender(driver.engine, _descriptors(socks), epoch)
        # None once closed: it keeps the engine, and so its descriptor, alive.
        self._sender: TcpSender | None = sender
        driver.watch(sender.id, self._broke)

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
        """Start sending; settles when the owner has stored every byte."""
        return self._submit(region, spans, remote, num_digests, digest, deadline, "write")

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
        """Ask for bytes; the owner checks the generation around what it sends."""
        return self._submit(region, spans, remote, num_digests, digest, deadline, "read")

    def abort(self, reason: TransportError) -> None:
        """Shut the sockets down; works settle as soon as the threads are off their memory."""
        if not self._break(reason):
            return
        for work in list(self._works):
            work.stop(reason)
        sender, self._sender = self._sender, None
        if sender is not None:
            self._driver.unwatch(sender.id)
            sender.abort()
            self._driver.offload(sender.close)

    def _submit(
        self,
        region: MemoryRegion,
        spans: npt.NDArray[np.int64],
        remote: RemoteRegion,
        num_digests: int,
        digest: bool,
        deadline: Deadline,
        phase: str,
    ) -> Work:
        self.check_usable()
        sender = self._sender
        if sender is None:
            raise ClosedError("this endpoint is closed", peer=self.peer)
        spans = check_table(spans, num_digests)
        work = self._driver.open(
            region,
            nbytes=table_nbytes(spans),
            num_digests=num_digests,
            deadline=deadline,
            where=self.where(phase),
            abort=self.abort,
        )
        self._works.add(work)
        work.on_settled(self._settled)
        submit = sender.read if phase == "read" else sender.write
        try:
            if remote.backend != self.backend:
                raise ConfigError(f"the grant is one of backend {remote.backend}")
            check_bounds(spans, remote.nbytes)
            with native_call("starting a transfer"):
                mover = submit(
                    region.memory,
                    remote.key,
                    remote.generation,
                    spans,
                    num_digests,
                    DIGEST if digest else 0,
                )
        except ConfigError as error:
            self._refused += 1
            work.settle(error)
        except TransportError as error:
            work.settle(error)
        else:
            self._driver.start(work, mover)
        return work

    async def _close(self) -> None:
        await wait_settled(self._works)
        sender, self._sender = self._sender, None
        if sender is not None:
            self._driver.unwatch(sender.id)
            await _say_goodbye(self._driver, sender)

    def _settled(self, work: Work) -> None:
        self._works.discard(work)
        # The work's event may come before the endpoint's own.
        if self._sender is not None and not self._sender.alive():
            self._broke(self._sender.status()[0])

    def _broke(self, code: int) -> None:
        if self._sender is not None:
            self.abort(native_error(code, self._sender.status()[1]))


class TcpOwner(OwnerEndpoint):
    """The accepting end: its threads store what arrives and send what is asked for."""

    def __init__(self, driver: EngineDriver, socks: list[socket.socket], admission: Admission) -> None:
        super().__init__(TcpBackend.name, admission.peer, admission.epoch)
        self._driver = driver
        self._granted: dict[int, MemoryRegion] = {}
        with native_call("starting the receiver's threads"):
            receiver = TcpReceiver(driver.engine, _descriptors(socks), admission.epoch)
        self._receiver: TcpReceiver | None = receiver
        driver.watch(receiver.id, self._broke)

    @property
    def refused(self) -> int:
        """Frames refused by the native threads, and uses refused here."""
        return self._refused + (self._receiver.refused() if self._receiver is not None else 0)

    def grant(self, region: MemoryRegion, *, generation: int, writable: bool, num_digests: int) -> RemoteRegion:
        """Let the peer's frames reach *region*."""
        self.check_usable()
        receiver = self._receiver
        if receiver is None:
            raise ClosedError("this endpoint is closed", peer=self.peer)
        if region.backend != self.backend:
            raise ConfigError(f"the region was registered with backend {region.backend}")
        if isinstance(region.memory, SharedRegion):
            raise_generation(region.memory, generation)
        remote = RemoteRegion(self.backend, secrets.randbits(63), generation, region.nbytes)
        try:
            with native_call("granting memory"):
                receiver.grant(remote.key, region.memory, generation, writable, num_digests)
        except TransportError:
            if not receiver.alive():
                # The call came before the endpoint's own event: what ended it is the reason, not the grant.
                self._broke(receiver.status()[0])
                self.check_usable()
            raise
        self._granted[remote.key] = region
        return remote

    def revoke(self, remote: RemoteRegion) -> None:
        """Refuse later frames; when it returns, no thread touches the memory any more."""
        self._revoke(remote.key)

    def retire(self, region: MemoryRegion) -> None:
        """Refuse later frames; when it returns, no thread touches the memory any more."""
        for key in [key for key, granted in self._granted.items() if granted is region]:
            self._revoke(key)

    def _revoke(self, key: int) -> None:
        if self._receiver is not None and key in self._granted:
            self._receiver.revoke(key)
            del self._granted[key]

    def ledger(self, remote: RemoteRegion) -> Ledger | None:
        """Digests and bytes that were stored through this grant; None once it ended."""
        if self._receiver is None or remote.key not in self._granted:
            return None
        return Ledger(*self._receiver.ledger(remote.key))

    def abort(self, reason: TransportError) -> None:
        """Shut the sockets down; memory is given back when the threads have ended."""
        if not self._break(reason):
            return
        receiver = self._detach()
        if receiver is not None:
            receiver.abort()
            self._driver.offload(receiver.close).add_done_callback(self._release)

    async def _close(self) -> None:
        receiver = self._detach()
        if receiver is not None:
            await _say_goodbye(self._driver, receiver)
            self._granted.clear()

    def _detach(self) -> TcpReceiver | None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            self._driver.unwatch(receiver.id)
            self._refused += receiver.refused()
        return receiver

    def _release(self, _ended: asyncio.Future[None]) -> None:
        self._granted.clear()

    def _broke(self, code: int) -> None:
        if self._receiver is not None:
            self.abort(native_error(code, self._receiver.status()[1]))


class TcpBackend(Backend):
    """Moves bytes between any two members, over ``config.streams`` sockets each."""

    name = "tcp"

    def probe(self) -> Capabilities | Unavailable:
        """There wherever sockets are."""
        return Capabilities(
            name=self.name,
            one_sided=True,
            reads_private=True,
            same_host_only=False,
            detail=f"{self.config.streams} TCP sockets a link, served by native threads",
        )

    async def listen(self, addr: str) -> Listener:
        """Listen on a free port of the interface *addr*, else of the configured host.

        Raises:
            ConfigError: If the address names every interface, so that no peer could dial it.
            ConnectError: If it cannot be bound.
        """
        host = addr or self.config.host or "127.0.0.1"
        literal = _literal(host)
        if literal is not None and literal.is_unspecified:
            raise ConfigError(
                f"{host} names every interface, so no peer could dial it",
                hint="give the address of one interface as host",
            )
        try:
            family, target = (await _resolve(host, 0))[0]
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                sock.bind(target)
                sock.listen(_BACKLOG)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            refused = ConnectError(f"cannot listen on {host}: {error}", backend=self.name)
            raise exhausted(error, f"listen on {host}") or refused from error
        shown = f"[{host}]" if ":" in host else host
        return SocketListener(
            sock,
            f"tcp://{shown}:{sock.getsockname()[1]}",
            magic=_MAGIC,
            max_streams=_MAX_STREAMS,
            timeout_s=min(MAX_HANDSHAKE_S, self.config.connect_timeout_s),
            check=_no_check,
            build=functools.partial(TcpOwner, self.driver),
        )

    async def connect(self, addr: str, *, token: bytes, epoch: int, peer: str, timeout_s: float) -> TcpInitiator:
        """Connect every stream; host names are resolved, each address is tried in turn."""
        host, port = parse_address(addr)
        targets: list[tuple[socket.AddressFamily, tuple[str, int]]] = []

        async def opening() -> socket.socket:
            if not targets:
                targets.extend(await _resolve(host, port))
            while True:
                family, target = targets[0]
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                try:
                    await asyncio.get_running_loop().sock_connect(sock, target)
                except BaseException as error:
                    sock.close()
                    if not isinstance(error, OSError) or len(targets) == 1:
                        raise
                    targets.pop(0)
                else:
                    return sock

        try:
            socks = await dial(
                addr,
                opening,
                magic=_MAGIC,
                token=token,
                epoch=epoch,
                streams=self.config.streams,
                timeout_s=timeout_s,
            )
            return TcpInitiator(peer, epoch, self.driver, socks)
        except TransportError as error:
            error.with_fields(backend=self.name, peer=peer, epoch=epoch, phase="connect")
            raise


def parse_address(addr: str) -> tuple[str, int]:
    """Split ``tcp://host:port`` or ``tcp://[v6]:port``.

    Raises:
        ConfigError: If it is no such address.
    """
    try:
        parts = urlsplit(addr)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "tcp":
        raise ConfigError(f"{addr!r} is not an address of tcp", hint="write tcp://host:port")
    return host, port


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


async def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    literal = _literal(host)
    if literal is not None:
        family = socket.AF_INET if literal.version == 4 else socket.AF_INET6
        return [(family, (host, port))]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, (str(target[0]), int(target[1]))) for family, *_, target in found]


def _no_check(_sock: socket.socket) -> None:
    """The token is the only proof there is over TCP."""


def _descriptors(socks: list[socket.socket]) -> list[int]:
    """Hand the sockets over to native threads, which use them in blocking mode."""
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(True)
    return [sock.detach() for sock in socks]


async def _say_goodbye(driver: EngineDriver, native: TcpSender | TcpReceiver) -> None:
    """Close in an orderly way, but wait for a peer that does not take part only so long."""
    closed = driver.offload(native.close)
    await asyncio.wait([closed], timeout=_GOODBYE_S)
    if not closed.done():
        native.abort()
    await closed
