"""A listening socket that admits endpoints of one or several sockets each."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from wtransport.backends.admissions import Admissions
from wtransport.backends.base import Listener, OwnerEndpoint
from wtransport.backends.handshake import PREAMBLE_NBYTES, Preamble, Verdict, receive_exactly
from wtransport.errors import ConnectError, ProtocolError, TransportError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from wtransport.backends.admissions import Admission

# Connections that have not proven anything yet; more are turned away at once.
_MAX_STRANGERS = 256
_ACCEPT_PAUSE_S = 0.1
MAX_HANDSHAKE_S = 5.0


class _Gathering:
    """The sockets of one endpoint that have arrived."""

    def __init__(self, admission: Admission, streams: int) -> None:
        self.admission = admission
        self.streams = streams
        self.socks: dict[int, socket.socket] = {}
        self.timer: asyncio.TimerHandle | None = None

    def accepts(self, preamble: Preamble) -> bool:
        return (
            preamble.epoch == self.admission.epoch
            and preamble.streams == self.streams
            and preamble.stream < self.streams
            and preamble.stream not in self.socks
        )


class SocketListener(Listener):
    """Accepts connections, reads their preambles, builds endpoints from complete sets.

    Args:
        sock: Bound and listening, non-blocking; ownership passes in.
        address: What peers dial.
        magic: What preambles must begin with.
        max_streams: Most sockets of one endpoint.
        timeout_s: Longest wait for a preamble, and for the rest of a set.
        check: Refuses a connection by raising, before a byte is read.
        build: Makes the endpoint of a complete set; ownership of the sockets passes in.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        *,
        magic: bytes,
        max_streams: int,
        timeout_s: float,
        check: Callable[[socket.socket], None],
        build: Callable[[list[socket.socket], Admission], OwnerEndpoint],
    ) -> None:
        self.address = address
        self.refused = 0
        self._sock = sock
        self._magic = magic
        self._max_streams = max_streams
        self._timeout_s = timeout_s
        self._check = check
        self._build = build
        self._admissions = Admissions()
        self._gatherings: dict[bytes, _Gathering] = {}
        self._loop = asyncio.get_running_loop()
        self._strangers: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = self._loop.create_task(self._accept())

    def admit(self, token: bytes, epoch: int, peer: str) -> asyncio.Future[OwnerEndpoint]:
        """Expect one peer."""
        return self._admissions.expect(token, epoch, peer)

    async def close(self) -> None:
        """Stop listening."""
        tasks = [*self._strangers, *([self._accepting] if self._accepting else [])]
        self._accepting = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._sock.close()
        self._admissions.close()
        for token in list(self._gatherings):
            self._disband(token, ConnectError("the listener was closed"))

    async def _accept(self) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(self._sock)
            except OSError:
                # Out of descriptors, or a connection that was reset while it waited: the next one
                # may do better, and the pause keeps this from turning into a busy loop.
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            sock.setblocking(False)
            if len(self._strangers) >= _MAX_STRANGERS:
                self._refuse(sock, Verdict.LATE)
                continue
            task = self._loop.create_task(self._meet(sock))
            self._strangers.add(task)
            task.add_done_callback(self._strangers.discard)

    async def _meet(self, sock: socket.socket) -> None:
        """Read one preamble and file the socket; whatever goes wrong costs this socket only."""
        try:
            self._check(sock)
            async with asyncio.timeout(self._timeout_s):
                preamble = Preamble.decode(await receive_exactly(sock, PREAMBLE_NBYTES))
            self._file(sock, preamble)
        except TransportError as error:
            self._refuse(sock, Verdict.of(error))
        except OSError:
            self._refuse(sock, Verdict.LATE)
        except BaseException:
            sock.close()
            raise

    def _file(self, sock: socket.socket, preamble: Preamble) -> None:
        if preamble.magic != self._magic:
            raise ProtocolError("the preamble does not begin as it should")
        gathering = self._gatherings.get(preamble.token)
        if gathering is None:
            if not 0 <= preamble.stream < preamble.streams <= self._max_streams:
                raise ProtocolError(f"an endpoint has at most {self._max_streams} streams")
            admission = self._admissions.claim(preamble.token, preamble.epoch)
            gathering = self._gather(preamble, admission)
        if not gathering.accepts(preamble):
            raise ProtocolError("this stream does not belong to its endpoint, or came twice")
        gathering.socks[preamble.stream] = sock
        if len(gathering.socks) == gathering.streams:
            self._complete(preamble.token)

    def _gather(self, preamble: Preamble, admission: Admission) -> _Gathering:
        gathering = _Gathering(admission, preamble.streams)
        self._gatherings[preamble.token] = gathering

        def late() -> None:
            came = len(gathering.socks)
            message = f"{came} of {gathering.streams} streams came in {self._timeout_s:g} s"
            self._disband(preamble.token, ConnectError(message, peer=admission.peer))

        def withdrawn(future: asyncio.Future[OwnerEndpoint]) -> None:
            if future.cancelled():
                self._disband(preamble.token, ConnectError("the admission was withdrawn"))

        gathering.timer = self._loop.call_later(self._timeout_s, late)
        admission.future.add_done_callback(withdrawn)
        return gathering

    def _complete(self, token: bytes) -> None:
        gathering = self._gatherings.pop(token)
        if gathering.timer is not None:
            gathering.timer.cancel()
        admission = gathering.admission
        socks = [gathering.socks[index] for index in range(gathering.streams)]
        try:
            for sock in socks:
                sock.send(bytes([Verdict.ADMITTED]))
            endpoint = self._build(socks, admission)
        except (OSError, TransportError) as error:
            for sock in socks:
                sock.close()
            failure = ConnectError(f"the peer left during the handshake: {error}")
            if not admission.future.done():
                admission.future.set_exception(failure.with_fields(peer=admission.peer))
            return
        if admission.future.done():
            endpoint.abort(ConnectError("the admission was withdrawn"))
        else:
            admission.future.set_result(endpoint)

    def _disband(self, token: bytes, error: ConnectError) -> None:
        gathering = self._gatherings.pop(token, None)
        if gathering is None:
            return
        if gathering.timer is not None:
            gathering.timer.cancel()
        for sock in gathering.socks.values():
            self._refuse(sock, Verdict.LATE)
        if not gathering.admission.future.done():
            gathering.admission.future.set_exception(error)

    def _refuse(self, sock: socket.socket, verdict: Verdict) -> None:
        self.refused += 1
        # The answer is a courtesy: whoever does not read it finds the socket closed.
        with contextlib.suppress(OSError):
            sock.send(bytes([verdict]))
        sock.close()
