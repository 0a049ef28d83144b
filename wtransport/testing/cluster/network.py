"""Hosts of a test, each a network namespace with an address of its own, behind a router that can do to their packets what networks do.

Nothing has a name in the file system: the kernel takes all of it back with the last descriptor. Needs root and ``/dev/net/tun``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self, TypeVar

from wtransport.testing.cluster.router import Router, Shape

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
# linux/if_tun.h and linux/sockios.h
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8913, 0x8914, 0x8916, 0x891C, 0x8922
_IFF_UP = 0x1
_DEVICE, _LOOPBACK = b"net0", b"lo"
_DROP = Shape(drop=True)


class Host:
    """One host: start processes there with ``Cluster(...).member(..., host=host)``.

    Attributes:
        address: Its IPv4 address.
        netns: Descriptor of its network namespace.
    """

    def __init__(self, network: Network, address: str, mtu_nbytes: int) -> None:
        self.address = address
        self._network = network
        self.netns, tun = _in_new_network(lambda: _device(address, mtu_nbytes))
        network.router.add(socket.inet_aton(address), tun)

    def cut(self, *, joined: bool = False) -> None:
        """Take the link down: the host's own kernel knows. *joined*: take it up again."""
        _in_network(self.netns, lambda: _flags(_DEVICE, up=joined))

    def shape(self, shape: Shape, *, to: Host | None = None) -> None:
        """What happens to packets that this host sends, to one other or to all."""
        self._network.router.shape(socket.inet_aton(self.address), socket.inet_aton(to.address) if to is not None else None, shape)

    def blackhole(self, *, sends: bool = True, receives: bool = True) -> None:
        """Packets vanish and nobody is told; either direction alone."""
        if sends:
            self.shape(_DROP)
        if receives:
            for other in self._network.hosts:
                if other is not self:
                    other.shape(_DROP, to=self)

    def restore(self) -> None:
        """Undo ``shape`` and ``blackhole``."""
        for other in self._network.hosts:
            self.shape(Shape(), to=other)
            other.shape(Shape(), to=self)
        self.shape(Shape())

    def close(self) -> None:
        """Let go of the namespace; it ends with the last process in it."""
        os.close(self.netns)


class Network:
    """Hosts and what lies between them.

    Args:
        mtu_nbytes: Of every link.
        seed: Of the router's draws.

    Raises:
        OSError: Where network namespaces or TUN devices may not be made.
    """

    def __init__(self, *, mtu_nbytes: int = 9000, seed: int = 0) -> None:
        self.router = Router(seed)
        self.hosts: list[Host] = []
        self._mtu_nbytes = mtu_nbytes

    @staticmethod
    def unavailable() -> str | None:
        """Why there can be no such network here; None if there can."""
        try:
            with Network() as network:
                network.host()
        except OSError as error:
            return f"network namespaces with TUN devices need root and /dev/net/tun: {error}"
        return None

    def host(self) -> Host:
        """A new host."""
        self.hosts.append(Host(self, f"10.77.0.{len(self.hosts) + 1}", self._mtu_nbytes))
        return self.hosts[-1]

    def close(self) -> None:
        """End the router and let go of every namespace."""
        self.router.close()
        for host in self.hosts:
            host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()


def _device(address: str, mtu_nbytes: int) -> tuple[int, int]:
    """In a new namespace: its descriptor, and that of its TUN device, which is up."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", _DEVICE, _IFF_TUN | _IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
                fcntl.ioctl(control, request, struct.pack("16sHH4s8x", _DEVICE, socket.AF_INET, 0, socket.inet_aton(value)))
            fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", _DEVICE, mtu_nbytes))
        _flags(_LOOPBACK, up=True)
        _flags(_DEVICE, up=True)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), tun
    except BaseException:
        os.close(tun)
        raise


def _flags(device: bytes, *, up: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH22x", device, 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, _SIOCGIFFLAGS, request), 16)
        flags = flags | _IFF_UP if up else flags & ~_IFF_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device, flags))


def _in_new_network(call: Callable[[], T]) -> T:
    return _on_a_thread(lambda libc: libc.unshare(_CLONE_NEWNET), call)


def _in_network(netns: int, call: Callable[[], T]) -> T:
    return _on_a_thread(lambda libc: libc.setns(netns, _CLONE_NEWNET), call)


def _on_a_thread(enter: Callable[[ctypes.CDLL], int], call: Callable[[], T]) -> T:
    """A namespace is a thread's own: *call* runs in another, and no other thread of this process notices."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            if enter(ctypes.CDLL(None, use_errno=True)):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="test-network")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
