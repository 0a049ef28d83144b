"""What the machine can do at most, measured in the same run: raw copies into shared memory, raw sockets, a bare round trip."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import socket
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from wtransport import _native

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    import torch

_CHUNK_NBYTES = 4 << 20


class RawCopy:
    """Copies of one state dict into one prefaulted shared region by two threads, in two ways; the better way is the limit.

    Args:
        tensors: The source.
        threads: Threads that copy.
    """

    def __init__(self, tensors: dict[str, torch.Tensor], threads: int) -> None:
        self._tensors = list(tensors.values())
        self._threads = threads
        offsets, at = [], 0
        for tensor in self._tensors:
            offsets.append(at)
            at += -(-tensor.numel() * tensor.element_size() // 256) * 256
        self._region = _native.SharedRegion.create(at)
        self._engine = _native.Engine(threads)
        self._wait(self._engine.populate(self._region))
        sizes = [tensor.numel() * tensor.element_size() for tensor in self._tensors]
        rows = [(index, 0, offset, size, index, 0) for index, (offset, size) in enumerate(zip(offsets, sizes, strict=True))]
        self._spans = np.array(rows, np.int64)
        self._source = _native.LocalRegion([(t.data_ptr(), t.element_size(), tuple(t.shape), _strides(t)) for t in self._tensors])
        self._pieces = [
            (self._region.address + offset + start, tensor.data_ptr() + start, min(_CHUNK_NBYTES, size - start))
            for tensor, offset, size in zip(self._tensors, offsets, sizes, strict=True)
            for start in range(0, size, _CHUNK_NBYTES)
        ]

    def memcpy(self) -> float:
        """Seconds of the C library's memcpy, pieces shared out among the threads."""
        return self._timed(lambda dst, src, size: ctypes.memmove(dst, src, size))

    def streaming(self) -> float:
        """Seconds of non-temporal stores by the native engine alone, with no transport around it."""
        start = time.perf_counter()
        self._wait(self._engine.copy(self._source, self._region, self._spans, len(self._tensors), 0))
        return time.perf_counter() - start

    def once(self) -> tuple[float, float]:
        """Seconds of one copy in each way."""
        return self.memcpy(), self.streaming()

    def reading(self) -> float:
        """Seconds of one pass of the native engine that only reads the destination."""
        start = time.perf_counter()
        self._wait(self._engine.digest(self._region, self._spans, len(self._tensors)))
        return time.perf_counter() - start

    def close(self) -> None:
        """Give memory and threads back."""
        self._engine.close()
        self._region.close()

    def _timed(self, copy: Callable[[int, int, int], object]) -> float:
        def run(mine: list[tuple[int, int, int]]) -> None:
            for dst, src, size in mine:
                copy(dst, src, size)

        threads = [threading.Thread(target=run, args=(self._pieces[i :: self._threads],)) for i in range(self._threads)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start

    def _wait(self, work: _native.Work) -> None:
        while not work.settled():
            time.sleep(0.0002)
        self._engine.drain()


class RawSockets:
    """A raw multi-stream transfer over loopback TCP into prefaulted memory of another process.

    Args:
        nbytes: Bytes a transfer moves.
        streams: Sockets.
    """

    def __init__(self, nbytes: int, streams: int) -> None:
        self._streams = streams
        self._share = nbytes // streams
        listener = socket.create_server(("127.0.0.1", 0))
        self._control, theirs = mp.Pipe()
        address = listener.getsockname()
        self._process = mp.get_context("spawn").Process(target=_receive, args=(address, streams, self._share, theirs))
        self._process.start()
        self._socks = []
        for _ in range(streams):
            sock, _ = listener.accept()
            _tune(sock)
            self._socks.append(sock)
        listener.close()
        self._payload = np.ones(self._share, np.uint8)
        self._control.recv()

    def once(self) -> tuple[float]:
        """Seconds from the first byte sent to the receiver's word that all are stored."""
        threads = [threading.Thread(target=sock.sendall, args=(memoryview(self._payload),)) for sock in self._socks]
        start = time.perf_counter()
        self._control.send("go")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._control.recv()
        return (time.perf_counter() - start,)

    def close(self) -> None:
        """End the receiver."""
        self._control.send("end")
        self._process.join(10)
        for sock in self._socks:
            sock.close()


def round_trip_us(rounds: int = 2000) -> float:
    """Median microseconds of 4 KiB there and back over a bare loopback TCP connection between two processes."""
    listener = socket.create_server(("127.0.0.1", 0))
    process = mp.get_context("spawn").Process(target=_echo, args=(listener.getsockname(), rounds))
    process.start()
    sock, _ = listener.accept()
    _tune(sock)
    payload, buffer, times = bytes(4096), bytearray(4096), []
    for _ in range(rounds):
        start = time.perf_counter()
        sock.sendall(payload)
        _fill(sock, memoryview(buffer))
        times.append(time.perf_counter() - start)
    sock.close()
    listener.close()
    process.join(10)
    return sorted(times)[rounds // 2] * 1e6


def _echo(address: tuple[str, int], rounds: int) -> None:
    sock = socket.create_connection(address)
    _tune(sock)
    buffer = bytearray(4096)
    for _ in range(rounds):
        _fill(sock, memoryview(buffer))
        sock.sendall(buffer)


def _receive(address: tuple[str, int], streams: int, share: int, control: Connection) -> None:
    socks = [socket.create_connection(address) for _ in range(streams)]
    buffers = [np.zeros(share, np.uint8) for _ in range(streams)]
    for sock in socks:
        _tune(sock)
    control.send("ready")
    while control.recv() == "go":
        threads = [threading.Thread(target=_fill, args=(sock, memoryview(buffer))) for sock, buffer in zip(socks, buffers, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        control.send("done")


def _fill(sock: socket.socket, view: memoryview) -> None:
    at = 0
    while at < len(view):
        got = sock.recv_into(view[at:], min(len(view) - at, 4 << 20), socket.MSG_WAITALL)
        if not got:
            raise ConnectionError("the other side closed")
        at += got


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 4 << 20)


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(stride * tensor.element_size() for stride in tensor.stride())
