"""Link: the bytes of one authenticated connection, as an asyncio protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from wtransport.control.auth import HANDSHAKE_CAP_NBYTES, INFO_CAP_NBYTES
from wtransport.control.frames import FrameDecoder, encode_frame
from wtransport.errors import InternalError, PeerLostError, TransportError

if TYPE_CHECKING:
    from wtransport.control.auth import Handshake

# With more queued than this writers are to wait, until a quarter of it is left.
_HIGH_WATER_NBYTES = 1 << 20


class LinkOwner(Protocol):
    """Who is told what happens on a link; called in the event loop, never from within a write."""

    def link_opened(self, peer_hello: dict[str, object]) -> None:
        """Both sides have proven themselves; frames may come from now on."""

    def link_frame(self, payload: bytes) -> None:
        """One frame came."""

    def link_lost(self, error: TransportError | None) -> None:
        """The end, exactly once; None where this side asked for it with `Link.finish`."""


class Link(asyncio.Protocol):
    """Handshake first, then frames each way, decoded where they arrive: no task in between.

    Args:
        handshake: This side of the handshake, not started.
        owner: Who is told.
        peer: Name of the other side for errors.
        max_frame_nbytes: Cap of one payload once both sides have proven themselves.
        max_queued_nbytes: Where the owner's queue ends; `writable` never lets it get there.
    """

    def __init__(self, handshake: Handshake, owner: LinkOwner, peer: str, max_frame_nbytes: int, max_queued_nbytes: int) -> None:
        self._handshake = handshake
        self._owner = owner
        self._peer = peer
        self._max_frame_nbytes = max_frame_nbytes
        self._max_queued_nbytes = max_queued_nbytes
        self._decoder = FrameDecoder(handshake.max_frame_nbytes)
        self._transport: asyncio.Transport | None = None
        self._error: TransportError | None = None
        self._finishing = False
        self._lost = False
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def queued_nbytes(self) -> int:
        """Bytes written that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport and not self._lost else 0

    def write(self, payload: bytes) -> None:
        """Queue one frame; the caller bounds the queue.

        Raises:
            ProtocolError: If the payload is over the cap.
        """
        self._put(encode_frame(payload, self._max_frame_nbytes))

    async def writable(self) -> None:
        """Wait until the queue is short, or the link has ended."""
        await self._writable.wait()

    def pause_reading(self) -> None:
        """Take no more frames: the peer is held up once the kernel's buffers are full."""
        if self._transport is not None and not self._ended:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take frames again."""
        if self._transport is not None and not self._ended:
            self._transport.resume_reading()

    def finish(self) -> None:
        """Flush, say that no more comes, and end once the peer has ended too."""
        if self._transport is not None and not self._ended:
            self._finishing = True
            self._writable.set()
            self._transport.resume_reading()
            self._transport.write_eof()

    def abort(self, error: TransportError) -> None:
        """End now; *error* is what the owner is told, unless another came first."""
        if self._error is None:
            self._error = error
        self._writable.set()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(min(_HIGH_WATER_NBYTES, self._max_queued_nbytes))
        if self._error is not None:
            self._transport.abort()
            return
        for payload in self._handshake.start():
            self._put(encode_frame(payload, HANDSHAKE_CAP_NBYTES))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._finishing:
            return
        self._decoder.push(data)
        try:
            while not self._ended and (payload := self._decoder.pop()) is not None:
                if self._handshake.done:
                    self._owner.link_frame(payload)
                else:
                    self._shake(payload)
        except TransportError as error:
            self.abort(error)
        except Exception as error:
            failure = InternalError(f"a message could not be handled: {error!r}")
            failure.__cause__ = error
            self.abort(failure)
            asyncio.get_running_loop().call_exception_handler({"message": f"{failure} from {self._peer}", "exception": error})

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`."""
        if not self._finishing:
            self.abort(self._closed_by_peer())
        elif self.queued_nbytes:
            # Whoever has closed reads no more: what is queued for it would wait for ever.
            self.abort(PeerLostError("the peer closed while this side did", peer=self._peer))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._lost = True
        self._writable.set()
        error = self._error
        if error is None and exc is not None:
            error = PeerLostError(f"the connection broke: {exc}", peer=self._peer)
            error.__cause__ = exc
        elif error is None and not self._finishing:
            error = self._closed_by_peer()
        self._owner.link_lost(error)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        if not self._ended:
            self._writable.clear()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._writable.set()

    @property
    def _ended(self) -> bool:
        return self._lost or self._finishing or self._error is not None

    def _put(self, frame: bytes) -> None:
        if self._transport is not None and not self._ended:
            self._transport.write(frame)

    def _shake(self, payload: bytes) -> None:
        for answer in self._handshake.receive(payload):
            self._put(encode_frame(answer, INFO_CAP_NBYTES))
        if self._handshake.error is not None:
            self._refuse(self._handshake.error.with_fields(peer=self._peer))
            return
        self._decoder.max_frame_nbytes = self._handshake.max_frame_nbytes
        if self._handshake.done:
            self._decoder.max_frame_nbytes = self._max_frame_nbytes
            self._owner.link_opened(self._handshake.peer_hello)

    def _refuse(self, error: TransportError) -> None:
        self._error = error
        if self._transport is not None:
            # Not abort: the peer is to read why. What it waits for is a few bytes, sent already.
            self._transport.close()

    def _closed_by_peer(self) -> PeerLostError:
        where = "" if not self._decoder.pending_nbytes else " in the middle of a frame"
        during = "" if self._handshake.done else " during the handshake"
        return PeerLostError(f"the peer closed the connection{where}{during}", peer=self._peer)
