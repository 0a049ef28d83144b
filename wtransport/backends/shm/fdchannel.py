"""Small messages with file descriptors over a Unix socket that keeps message boundaries."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_MAX_MESSAGE_NBYTES = 256
_MAX_FDS = 1
_MSG_CMSG_CLOEXEC = 0x40000000
_ROOM_FOR_FDS = socket.CMSG_SPACE(8 * array.array("i").itemsize)


class FdChannel:
    """Sends and receives messages on a connected ``SOCK_SEQPACKET`` socket.

    Args:
        loop: The event loop.
        sock: Connected and non-blocking; ownership passes in.
        on_message: Called with the bytes and the descriptors of each message; owns the descriptors.
        on_end: Called once when the other side is gone or the socket broke, with the reason.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_message: Callable[[bytes, list[int]], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_message = on_message
        self._on_end = on_end
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self._writing = False
        self._open = True
        loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: bytes, fd: int | None = None) -> None:
        """Queue a message; ownership of *fd* passes in. Nothing is sent once closed."""
        if not self._open:
            if fd is not None:
                os.close(fd)
            return
        self._unsent.append((message, fd))
        self._flush()

    def close(self) -> None:
        """Close at once; what is queued is dropped. Idempotent, no callback."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock.fileno())
        if self._writing:
            self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        while self._unsent:
            _, fd = self._unsent.popleft()
            if fd is not None:
                os.close(fd)

    def _flush(self) -> None:
        try:
            while self._unsent:
                message, fd = self._unsent[0]
                if fd is None:
                    self._sock.send(message, socket.MSG_NOSIGNAL)
                else:
                    socket.send_fds(self._sock, [message], [fd], socket.MSG_NOSIGNAL)
                self._unsent.popleft()
                if fd is not None:
                    os.close(fd)
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._sock.fileno(), self._flush)
            return
        except OSError as error:
            self._end(f"sending to the peer failed: {error}")
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        # A bounded number per wake-up, so that a flood does not keep the loop from other work.
        for _ in range(64):
            if not self._open:
                return
            try:
                data, ancillary, flags, _ = self._sock.recvmsg(_MAX_MESSAGE_NBYTES, _ROOM_FOR_FDS, _MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError as error:
                self._end(f"receiving from the peer failed: {error}")
                return
            fds = _descriptors(ancillary)
            if not data:
                _close_all(fds)
                self._end("the peer closed its socket")
                return
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(fds) > _MAX_FDS:
                _close_all(fds)
                self._end("the peer sent an oversized message")
                return
            self._on_message(data, fds)

    def _end(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_end(reason)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
