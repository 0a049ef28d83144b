"""A TCP proxy that delays, stalls, slows down or cuts the connections that run through it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_CHUNK_NBYTES = 64 << 10
# Kernel buffers are kept small, so that what the proxy holds back is felt at the other end soon.
_SOCKET_BUFFER_NBYTES = 64 << 10


class FaultProxy:
    """Listens on loopback and forwards every connection; use it as ``async with``.

    The attributes may be changed while connections are open.

    Args:
        address: Where to forward to, ``tcp://host:port``.

    Attributes:
        delay_s: Every piece of a stream is held back so long.
        rate_nbytes_s: Bytes per second of each direction of a connection; None is no limit.
        cut_after_nbytes: All connections are reset once so many bytes came through; None is never.
        forwarded: Bytes that came through.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self.delay_s = 0.0
        self.rate_nbytes_s: float | None = None
        self.cut_after_nbytes: int | None = None
        self.forwarded = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._accepting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_NBYTES)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cut()
        tasks = [*self._tasks, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._listener.close()

    @property
    def address(self) -> str:
        """What to dial instead of the target."""
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._links)

    def stall(self) -> None:
        """Let nothing through, both ways, without closing anything: a black hole."""
        self._flowing.clear()

    def resume(self) -> None:
        """Let bytes through again, those held back first."""
        self._flowing.set()

    def cut(self) -> None:
        """Reset every open connection; new ones are served."""
        for link in list(self._links):
            link.reset()
        self._links.clear()

    def half_close(self) -> None:
        """End the stream towards the target, on every connection; the way back stays open."""
        for link in self._links:
            with contextlib.suppress(OSError):
                link.far.shutdown(socket.SHUT_WR)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            near, _ = await loop.sock_accept(self._listener)
            task = loop.create_task(self._serve(near))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, near: socket.socket) -> None:
        family = socket.AF_INET6 if ":" in self._target[0] else socket.AF_INET
        far = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        link = _Link(near, far, asyncio.current_task())
        self._links.add(link)
        try:
            near.setblocking(False)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_NBYTES)
            await asyncio.get_running_loop().sock_connect(far, self._target)
            await asyncio.gather(self._pump(near, far), self._pump(far, near))
        except OSError:
            link.linger_no_more()
        finally:
            self._links.discard(link)
            link.close()

    async def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, _CHUNK_NBYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.rate_nbytes_s is not None:
                await asyncio.sleep(len(data) / self.rate_nbytes_s)
            await self._flowing.wait()
            await loop.sock_sendall(sink, data)
            self.forwarded += len(data)
            if self.cut_after_nbytes is not None and self.forwarded >= self.cut_after_nbytes:
                self.cut()
                return
        await self._flowing.wait()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class _Link:
    """One forwarded connection and the task that serves it."""

    def __init__(self, near: socket.socket, far: socket.socket, task: asyncio.Task[None] | None) -> None:
        self.near = near
        self.far = far
        self._task = task

    def reset(self) -> None:
        """Both ends get a reset, whatever is still buffered."""
        self.linger_no_more()
        if self._task is not None:
            self._task.cancel()

    def linger_no_more(self) -> None:
        """Turn the close that follows into a reset."""
        for sock in (self.near, self.far):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close(self) -> None:
        self.near.close()
        self.far.close()
