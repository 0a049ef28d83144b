from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from wtransport._native import SharedRegion
from wtransport.backends.handshake import Preamble, Verdict
from wtransport.backends.shm import backend as shm
from wtransport.backends.shm.backend import ShmBackend, check_same_user, reopen_read_only
from wtransport.config import TransportConfig
from wtransport.errors import AuthError, ConfigError, ProtocolError, RegistrationError
from wtransport.testing.conformance.pair import EPOCH, Pair, lost, open_driver, open_pair, random_bytes, whole
from wtransport.testing.conformance.suite import BackendConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wtransport.backends.base import OwnerEndpoint

CONFIG = TransportConfig(copy_threads=1, connect_timeout_s=1.0)
PAGE = 4096
MESSAGE = struct.Struct("<BBxxxxxxQQQ")


class TestShm(BackendConformance):
    factory = "wtransport.backends.shm.backend:ShmBackend"
    needs_peer_running = False


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with open_pair(ShmBackend, CONFIG) as pair:
        yield pair


async def _shake_hands(sock: socket.socket, token: bytes) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, Preamble(b"WTP1SHM\0", token, EPOCH, 0, 1).encode())
    assert await loop.sock_recv(sock, 1) == bytes([Verdict.ADMITTED])


async def _raw_initiator(pair: Pair) -> tuple[socket.socket, OwnerEndpoint]:
    """Play the initiator by hand."""
    token = os.urandom(32)
    admission = pair.listener.admit(token, EPOCH, "raw")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    sock.connect("\0" + pair.listener.address.removeprefix("unix://@"))
    await _shake_hands(sock, token)
    return sock, await admission


async def _raw_owner(pair: Pair) -> tuple[socket.socket, object]:
    """Play the owner by hand."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as listening:
        listening.bind("\0wtransport-test-" + os.urandom(8).hex())
        listening.listen(1)
        address = "unix://@" + listening.getsockname()[1:].decode()
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(pair.near.connect(address, token=bytes(32), epoch=EPOCH, peer="raw", timeout_s=5.0))
        sock, _ = await loop.sock_accept(listening)
        sock.setblocking(False)
        assert Preamble.decode(await loop.sock_recv(sock, 100)).token == bytes(32)
        await loop.sock_sendall(sock, bytes([Verdict.ADMITTED]))
        return sock, await connecting


async def test_grant_for_reading_cannot_be_mapped_for_writing(pair: Pair) -> None:
    sock, owner = await _raw_initiator(pair)
    memory = SharedRegion.create(PAGE)
    remote = owner.grant(pair.far.register(memory, None), generation=1, writable=False, num_digests=1)
    data, fds, _, _ = socket.recv_fds(sock, 256, 4)
    assert MESSAGE.unpack(data) == (1, 0, remote.key, 1, PAGE)
    with pytest.raises(PermissionError):
        mmap.mmap(fds[0], 2 * PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(fds[0], PAGE)
    os.close(fds[0])
    sock.close()
    await lost(owner)
    await owner.close()
    memory.close()


@pytest.mark.parametrize("message", [b"x", bytes(32), bytes(31), b"\x01" + bytes(31), os.urandom(256), os.urandom(1000)])
async def test_initiator_that_babbles_is_lost(pair: Pair, message: bytes) -> None:
    sock, owner = await _raw_initiator(pair)
    sock.send(message)
    await lost(owner)
    await owner.close()
    sock.close()
    assert pair.owner.broken is None


async def test_descriptors_from_the_initiator_are_closed(pair: Pair) -> None:
    sock, owner = await _raw_initiator(pair)
    before = len(os.listdir("/proc/self/fd"))
    with open("/dev/null", "rb") as file:
        socket.send_fds(sock, [bytes(32)], [file.fileno()] * 3)
    await lost(owner)
    await owner.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    sock.close()


@pytest.mark.parametrize("message", [b"x", bytes(32), b"\x09" + bytes(31), os.urandom(1000)])
async def test_owner_that_babbles_is_lost(pair: Pair, message: bytes) -> None:
    sock, initiator = await _raw_owner(pair)
    sock.send(message)
    await lost(initiator)  # type: ignore[arg-type]
    await initiator.close()  # type: ignore[attr-defined]
    sock.close()


@pytest.mark.parametrize("flaw", ["unsealed", "short", "no memfd"])
async def test_memory_that_could_fault_is_refused(pair: Pair, flaw: str) -> None:
    sock, initiator = await _raw_owner(pair)
    if flaw == "no memfd":
        fd = os.open("/dev/zero", os.O_RDWR)
    else:
        fd = os.memfd_create("flawed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 2 * PAGE if flaw == "unsealed" else PAGE)
    if flaw == "short":
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    socket.send_fds(sock, [MESSAGE.pack(1, 1, 5, 1, PAGE)], [fd])
    os.close(fd)
    await lost(initiator)  # type: ignore[arg-type]
    assert isinstance(initiator.broken, ProtocolError | RegistrationError)  # type: ignore[attr-defined]
    await initiator.close()  # type: ignore[attr-defined]
    sock.close()


async def test_write_that_comes_before_its_grant_waits_for_it(pair: Pair) -> None:
    data, landing = random_bytes(1000), pair.landing(1000)
    # No turn of the loop lies between the grant and the write: its message has not been read.
    work = pair.write(pair.source(data), whole(1000), landing.remote)
    assert not work.settled
    await work
    assert landing.bytes.tobytes() == data.tobytes()


async def test_other_users_are_refused(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    monkeypatch.setattr(shm.os, "geteuid", lambda: os.getuid() + 1)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there, pytest.raises(AuthError, match="uid"):
        check_same_user(here)
    with pytest.raises(AuthError):
        await pair.near.connect(pair.listener.address, token=bytes(32), epoch=1, peer="owner", timeout_s=1.0)


async def test_address_of_something_else() -> None:
    async with open_driver(CONFIG) as driver:
        with pytest.raises(ConfigError, match="not an address of shm"):
            await ShmBackend(driver, CONFIG).connect("tcp://x:1", token=bytes(32), epoch=1, peer="x", timeout_s=1.0)


def test_reopened_descriptor_is_read_only() -> None:
    memory = SharedRegion.create(PAGE)
    fd = reopen_read_only(memory.fileno())
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    assert not os.get_inheritable(fd)
    os.close(fd)
    memory.close()
