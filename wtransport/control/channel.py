"""Channel: one authenticated, ordered stream of typed messages to one peer."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from wtransport.control.auth import Handshake, Role
from wtransport.control.codec import DEFAULT_MAX_FRAME_NBYTES
from wtransport.control.keepalive import end_when_unreachable
from wtransport.control.link import Link
from wtransport.errors import (
    BusyError,
    ClosedError,
    DeadlineError,
    PeerLostError,
    TransportError,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from wtransport.control.codec import Codec
    from wtransport.control.secret import Secret


@dataclass(frozen=True, kw_only=True)
class ChannelLimits:
    """How much one channel may hold, and for how long.

    Attributes:
        max_frame_nbytes: Cap of one message.
        max_send_nbytes: Bytes queued for the peer with which no further message is taken: the channel breaks. So at
            most one message more than this is ever held.
        max_receive_nbytes: Bytes of messages not yet iterated over; with more the peer is held up.
        stall_timeout_s: A `Channel.send` held up by a peer that takes nothing for so long breaks
            the channel, and so does a host that acknowledges nothing for so long.
    """

    max_frame_nbytes: int = DEFAULT_MAX_FRAME_NBYTES
    max_send_nbytes: int = DEFAULT_MAX_FRAME_NBYTES
    max_receive_nbytes: int = 8 << 20
    stall_timeout_s: float = 30.0


DEFAULT_LIMITS = ChannelLimits()


class Channel:
    """Typed messages both ways, in order; made by `connect` or a `Listener`.

    Messages that come are given either to ``on_message`` (see `attach`), in the event loop with no
    task in between, or to one ``async for``, which ends when this side closes and raises when the
    channel broke. All methods belong to the event loop that made it.

    Attributes:
        peer: Name of the other end's address.
        hello: What this side's owner said about itself.
        peer_hello: What the peer's owner said.
        error: Why the channel ended; None while it is open or after an orderly `close`.
        messages_sent: Messages given to the connection.
        messages_received: Messages decoded.
        nbytes_sent: Bytes of the messages sent.
        nbytes_received: Bytes of the messages received.
    """

    def __init__(
        self,
        codec: Codec,
        secret: Secret,
        role: Role,
        hello: Mapping[str, object],
        peer: str,
        limits: ChannelLimits,
    ) -> None:
        self.peer = peer
        self.hello = dict(hello)
        self.peer_hello: dict[str, object] = {}
        self.error: TransportError | None = None
        self.messages_sent = self.messages_received = 0
        self.nbytes_sent = self.nbytes_received = 0
        self._codec = codec
        self._limits = limits
        self._link = Link(Handshake(role, secret, hello), self, peer, limits.max_frame_nbytes, limits.max_send_nbytes)
        self._opened = self._closing = self._told_closed = False
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._sending = asyncio.Lock()
        self._on_opened: Callable[[Channel], None] | None = None
        self._on_message: Callable[[Any], None] | None = None
        self._on_closed: Callable[[TransportError | None], None] | None = None
        self._received: deque[tuple[Any, int]] = deque()
        self._received_nbytes = 0
        self._paused = self._iterating = False
        self._arrived = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether the channel has ended or is about to, for whatever reason."""
        return self._closing or self._ended.is_set() or self.error is not None

    @property
    def queued_nbytes(self) -> int:
        """Bytes sent that the kernel has not taken yet."""
        return self._link.queued_nbytes

    def attach(
        self,
        on_message: Callable[[Any], None] | None = None,
        on_closed: Callable[[TransportError | None], None] | None = None,
    ) -> None:
        """Give every message to *on_message* from now on, and the end to *on_closed*, once.

        What came before is given at once, from within this call. An exception out of *on_message*
        breaks the channel. *on_closed* gets None after an orderly close, else the error.
        """
        if on_closed is not None:
            self._on_closed = on_closed
        if on_message is not None:
            self._on_message = on_message
            before = self.error
            while self._received and self.error is before:
                on_message(self._take())
        if self._ended.is_set():
            self._tell_closed()

    def send_nowait(self, message: object) -> None:
        """Queue *message*.

        Raises:
            ProtocolError: If the message does not fit its own annotations or the cap; nothing was
                sent and the channel stays open.
            ClosedError: If this side has closed.
            PeerLostError: If the channel is broken, or breaks now because the queue is full.
        """
        payload = self._codec.encode(message)
        self._check_open()
        self._write(payload)

    async def send(self, message: object) -> None:
        """Queue *message* once the queue is short: a fast sender is held to the peer's pace.

        Cancelling it before it returns sends nothing. Errors are those of `send_nowait`; a peer
        that takes nothing for ``stall_timeout_s`` breaks the channel.
        """
        payload = self._codec.encode(message)
        async with self._sending:
            await self._wait_writable()
            self._check_open()
            self._write(payload)

    def abort(self, reason: TransportError) -> None:
        """End the channel now, never waiting; what is queued may or may not arrive.

        *reason* becomes `error` and reaches ``on_closed`` in the loop's next turn.
        """
        if self.error is None and not self._ended.is_set():
            self.error = reason
            self._link.abort(reason)
            self._arrived.set()

    async def close(self, timeout_s: float = 2.0) -> None:
        """Send what is queued, wait until the peer has read it and closed too, and end.

        Idempotent. After *timeout_s* seconds the rest is dropped and `error` says so.
        """
        if not self.closed:
            self._closing = True
            self._link.finish()
            self._arrived.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            pass
        finally:
            self.abort(DeadlineError(f"not everything was read within {timeout_s} s", peer=self.peer))
        await self._ended.wait()

    async def wait_closed(self) -> None:
        """Wait until the channel has ended, however that came about."""
        await self._ended.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._iterating or self._on_message is not None:
            raise BusyError("the messages of this channel go somewhere else", peer=self.peer)
        self._iterating = True
        try:
            while not self._received:
                if self.closed:
                    self._raise_end()
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            self._iterating = False
        return self._take()

    # What the link tells (see LinkOwner).

    def link_opened(self, peer_hello: dict[str, object]) -> None:
        """See `LinkOwner`."""
        self.peer_hello = peer_hello
        self._opened = True
        self._settled.set()
        if self._on_opened is not None:
            self._on_opened(self)

    def link_frame(self, payload: bytes) -> None:
        """See `LinkOwner`."""
        try:
            message = self._codec.decode(payload)
            self.messages_received += 1
            self.nbytes_received += len(payload)
            if self._on_message is not None:
                self._on_message(message)
                return
        except TransportError as error:
            raise error.with_fields(peer=self.peer) from error.__cause__
        self._received.append((message, len(payload)))
        self._received_nbytes += len(payload)
        self._arrived.set()
        if self._received_nbytes > self._limits.max_receive_nbytes and not self._paused:
            self._paused = True
            self._link.pause_reading()

    def link_lost(self, error: TransportError | None) -> None:
        """See `LinkOwner`."""
        if self.error is None:
            self.error = error
        self._ended.set()
        self._settled.set()
        self._arrived.set()
        if self._opened:
            self._tell_closed()

    def _take(self) -> Any:
        message, nbytes = self._received.popleft()
        self._received_nbytes -= nbytes
        if self._paused and self._received_nbytes <= self._limits.max_receive_nbytes // 2:
            self._paused = False
            self._link.resume_reading()
        return message

    def _tell_closed(self) -> None:
        if self._on_closed is not None and not self._told_closed:
            self._told_closed = True
            self._on_closed(self.error)

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError("this side has closed the channel", peer=self.peer)
        if self.error is not None or self._ended.is_set():
            reason = "closed" if self.error is None else self.error.message
            raise PeerLostError(f"the channel has ended: {reason}", peer=self.peer) from self.error

    def _raise_end(self) -> None:
        if self.error is None or self._closing:
            raise StopAsyncIteration
        self._check_open()

    def _write(self, payload: bytes) -> None:
        queued = self._link.queued_nbytes
        if queued > self._limits.max_send_nbytes:
            full = self._full(f"is full: {queued} bytes, at most {self._limits.max_send_nbytes}")
            self.abort(full)
            raise full
        self._link.write(payload)
        self.messages_sent += 1
        self.nbytes_sent += len(payload)

    async def _wait_writable(self) -> None:
        queued = self.queued_nbytes
        while not self.closed:
            try:
                async with asyncio.timeout(self._limits.stall_timeout_s):
                    await self._link.writable()
                return
            except TimeoutError:
                if self.queued_nbytes >= queued:
                    self.abort(self._full(f"has not moved for {self._limits.stall_timeout_s} s"))
                queued = self.queued_nbytes

    def _full(self, what: str) -> PeerLostError:
        return PeerLostError(f"the send queue to the peer {what}", peer=self.peer)


async def open_channel(
    sock: socket.socket,
    *,
    role: Role,
    secret: Secret,
    hello: Mapping[str, object],
    codec: Codec,
    peer: str,
    limits: ChannelLimits = DEFAULT_LIMITS,
    on_message: Callable[[Any], None] | None = None,
    on_closed: Callable[[TransportError | None], None] | None = None,
    on_opened: Callable[[Channel], None] | None = None,
) -> Channel:
    """Shake hands on a connected non-blocking socket and return the channel; owns *sock* at once.

    Bounded only by the peer: put a timeout around it. *on_opened* runs before any message is
    looked at; messages may reach *on_message* before this returns.

    Raises:
        AuthError: If one side does not know the other's secret.
        ProtocolError: If the peer speaks something else.
        PeerLostError: If the connection ends before both sides have proven themselves.
    """
    loop = asyncio.get_running_loop()
    try:
        end_when_unreachable(sock, limits.stall_timeout_s)
        channel = Channel(codec, secret, role, hello, peer, limits)
        channel.attach(on_message, on_closed)
        channel._on_opened = on_opened
        # For both roles: it takes any connected socket, where uvloop's create_connection takes TCP ones only.
        await loop.connect_accepted_socket(lambda: channel._link, sock)
    except BaseException:
        sock.close()
        raise
    try:
        await channel._settled.wait()
    except asyncio.CancelledError:
        channel.abort(ClosedError("the wait for the handshake was given up", peer=peer))
        raise
    if not channel._opened:
        raise channel.error or PeerLostError("closed during the handshake", peer=peer)
    return channel
