"""Frames: a u32 big-endian length, then that many bytes; sans-IO."""

from __future__ import annotations

from wtransport.errors import ProtocolError

HEADER_NBYTES = 4


def encode_frame(payload: bytes, max_frame_nbytes: int) -> bytes:
    """Put the length in front of *payload*.

    Raises:
        ProtocolError: If the payload is longer than *max_frame_nbytes*; the peer would refuse it.
    """
    if len(payload) > max_frame_nbytes:
        raise ProtocolError(_over(len(payload), max_frame_nbytes))
    return len(payload).to_bytes(HEADER_NBYTES, "big") + payload


class FrameDecoder:
    """Cuts a stream of bytes, given in pieces of any size, into payloads.

    A length over the cap is refused as soon as its four bytes are there, before anything of that
    frame is kept. After an error the stream is lost: every later call raises again.

    Args:
        max_frame_nbytes: Cap of one payload. It may be changed between two frames and holds from
            the next one that is taken out (a peer that has proven itself may send longer ones).
    """

    def __init__(self, max_frame_nbytes: int) -> None:
        self.max_frame_nbytes = max_frame_nbytes
        self._buffer = bytearray()
        self._error: str | None = None

    @property
    def pending_nbytes(self) -> int:
        """Bytes given that no payload taken out so far accounts for."""
        return len(self._buffer)

    def push(self, data: bytes | bytearray | memoryview) -> None:
        """Append *data*; take the payloads out with `pop` until it returns None."""
        self._buffer += data

    def pop(self) -> bytes | None:
        """Take out the next whole payload, or None where more bytes are needed.

        Raises:
            ProtocolError: If the next frame announces more than the cap.
        """
        if self._error is not None:
            raise ProtocolError(self._error)
        if len(self._buffer) < HEADER_NBYTES:
            return None
        nbytes = int.from_bytes(self._buffer[:HEADER_NBYTES], "big")
        if nbytes > self.max_frame_nbytes:
            self._error = _over(nbytes, self.max_frame_nbytes)
            self._buffer.clear()
            raise ProtocolError(self._error)
        end = HEADER_NBYTES + nbytes
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            payload = bytes(view[HEADER_NBYTES:end])
        del self._buffer[:end]
        return payload

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Append *data* and take out every payload that is whole.

        Raises:
            ProtocolError: If a frame announces more than the cap.
        """
        self.push(data)
        payloads = []
        while (payload := self.pop()) is not None:
            payloads.append(payload)
        return payloads


def _over(nbytes: int, max_frame_nbytes: int) -> str:
    return f"a frame of {nbytes} bytes is over the cap of {max_frame_nbytes}"
