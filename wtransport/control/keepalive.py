"""Keepalive: the kernel ends a connection whose other end acknowledges nothing any more."""

from __future__ import annotations

import math
import socket

# Linux takes no more, for the idle time and for the interval (tcp(7)).
_MOST_S = 32767
_PROBES = 3


def end_when_unreachable(sock: socket.socket, within_s: float) -> None:
    """Have the kernel end *sock* once its peer's kernel has answered nothing for *within_s*.

    A host that lost its power or its link sends neither FIN nor reset, and one of two members that cannot reach
    each other may be in the best of health for everybody else. The peer's process is not asked: one that is stopped,
    or whose loop is held up, stays. One that leaves its receive buffer full for so long goes as well.

    Does nothing to a connection of one host over a Unix socket.
    """
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(math.ceil(within_s * 1e3), 2**31 - 1))
    every_s = min(max(math.ceil(within_s / (_PROBES + 1)), 1), _MOST_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
