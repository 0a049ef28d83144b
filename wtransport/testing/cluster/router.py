"""What lies between hosts in a test: packets are dropped, lost, delayed and held to a rate, each direction by itself."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import random
import select
import threading
import time
from dataclasses import dataclass

_MAX_PACKET_NBYTES = 65535
_MAX_WAIT_S = 3600.0


@dataclass(frozen=True)
class Shape:
    """What happens to packets of one direction.

    Attributes:
        drop: All vanish, and nobody is told.
        loss: Share of the packets that vanish, drawn at random.
        delay_s: Seconds each is on its way.
        rate_nbytes_s: Bytes a second that pass; None for no limit.
        queue_nbytes: Bytes that may wait for the rate; what comes on top vanishes, as in any router.
    """

    drop: bool = False
    loss: float = 0.0
    delay_s: float = 0.0
    rate_nbytes_s: float | None = None
    queue_nbytes: int = 256 << 10


class Router:
    """Carries IPv4 packets between TUN devices on a thread of its own.

    Args:
        seed: Of the draws that ``loss`` makes.
    """

    def __init__(self, seed: int = 0) -> None:
        self._ports: dict[bytes, int] = {}
        self._addresses: dict[int, bytes] = {}
        self._shapes: dict[tuple[bytes | None, bytes | None], Shape] = {}
        self._busy_until: dict[tuple[bytes, bytes], float] = {}
        self._late: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._draw = random.Random(seed)
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="test-router", daemon=True)
        self._thread.start()

    def add(self, address: bytes, tun: int) -> None:
        """Serve the host at *address* (4 bytes), whose device is *tun*: owned from now on, and not blocking."""
        self._ports[address] = tun
        self._addresses[tun] = address
        self._epoll.register(tun, select.EPOLLIN)

    def shape(self, source: bytes | None, sink: bytes | None, shape: Shape) -> None:
        """What happens from now on between two addresses; None stands for any, and a pair that is named goes before that."""
        self._shapes[source, sink] = shape

    def close(self) -> None:
        """Stop, and close the devices."""
        self._closed = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(10)
        for tun in self._addresses:
            os.close(tun)
        self._epoll.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._closed:
            wait_s = self._late[0][0] - time.monotonic() if self._late else _MAX_WAIT_S
            for fd, _ in self._epoll.poll(max(0.0, wait_s)):
                # A shape that was set while all was quiet holds for the next packet: nothing else is to be done on waking.
                if fd != self._wake:
                    self._read(fd)
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                _, _, tun, packet = heapq.heappop(self._late)
                self._deliver(tun, packet)

    def _read(self, tun: int) -> None:
        source = self._addresses[tun]
        with contextlib.suppress(OSError):  # no more packets, or the device is down
            for _ in range(64):
                packet = os.read(tun, _MAX_PACKET_NBYTES)
                sink = packet[16:20]
                if packet[0] >> 4 == 4 and sink in self._ports:
                    self._carry(source, sink, packet)

    def _carry(self, source: bytes, sink: bytes, packet: bytes) -> None:
        for pair in ((source, sink), (source, None), (None, sink)):
            if (shape := self._shapes.get(pair)) is not None:
                break
        else:
            shape = Shape()
        if shape.drop or (shape.loss and self._draw.random() < shape.loss):
            return
        now = time.monotonic()
        at = now + shape.delay_s
        if shape.rate_nbytes_s is not None:
            begin = max(now, self._busy_until.get((source, sink), now))
            if (begin - now) * shape.rate_nbytes_s > shape.queue_nbytes:
                return
            self._busy_until[source, sink] = begin + len(packet) / shape.rate_nbytes_s
            at += self._busy_until[source, sink] - now
        if at > now:
            heapq.heappush(self._late, (at, next(self._numbers), self._ports[sink], packet))
        else:
            self._deliver(self._ports[sink], packet)

    @staticmethod
    def _deliver(tun: int, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # its queue is full, or the device is down: so it is on a real network
            os.write(tun, packet)
