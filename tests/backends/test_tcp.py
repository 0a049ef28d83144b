from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from wtransport.backends.handshake import Preamble, Verdict
from wtransport.backends.tcp.backend import TcpBackend, parse_address
from wtransport.config import TransportConfig
from wtransport.errors import ConfigError, ConnectError, PeerLostError, ProtocolError
from wtransport.testing.conformance.pair import EPOCH, Pair, open_driver, open_pair, random_bytes, until, whole
from wtransport.testing.conformance.suite import BackendConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

CONFIG = TransportConfig(copy_threads=1, streams=2, connect_timeout_s=0.5)


class TestTcp(BackendConformance):
    factory = "wtransport.backends.tcp.backend:TcpBackend"


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with open_pair(TcpBackend, CONFIG) as pair:
        yield pair


@contextlib.contextmanager
def stream(pair: Pair, token: bytes, index: int, streams: int, epoch: int = EPOCH) -> Iterator[socket.socket]:
    """One socket that has sent its preamble."""
    with socket.create_connection(parse_address(pair.listener.address)) as sock:
        sock.sendall(Preamble(b"WTP1DATA", token, epoch, index, streams).encode())
        sock.setblocking(False)
        yield sock


async def verdict(sock: socket.socket) -> int:
    (answer,) = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1), 5.0)
    return answer


async def test_set_that_stays_incomplete_is_given_up(pair: Pair) -> None:
    token, before = os.urandom(32), pair.listener.refused
    admission = pair.listener.admit(token, EPOCH, "initiator")
    with stream(pair, token, 0, 3) as first, stream(pair, token, 2, 3):
        with pytest.raises(ConnectError, match="2 of 3 streams"):
            await admission
        assert await verdict(first) == Verdict.LATE
    assert pair.listener.refused == before + 2


async def test_stream_that_does_not_belong_costs_only_itself(pair: Pair) -> None:
    token = os.urandom(32)
    admission = pair.listener.admit(token, EPOCH, "initiator")
    with stream(pair, token, 0, 2) as first:
        await asyncio.sleep(0.05)
        for index, streams, epoch in ((0, 2, EPOCH), (2, 3, EPOCH), (1, 2, EPOCH + 1), (7, 2, EPOCH)):
            with stream(pair, token, index, streams, epoch) as other:
                assert await verdict(other) == Verdict.MALFORMED
        with stream(pair, token, 1, 2) as second:
            assert [await verdict(first), await verdict(second)] == [Verdict.ADMITTED] * 2
            owner = await admission
            await owner.close()


@pytest.mark.parametrize(("index", "streams"), [(0, 0), (0, 65), (64, 64), (3, 2)])
async def test_impossible_sets_do_not_spend_the_token(pair: Pair, index: int, streams: int) -> None:
    token = os.urandom(32)
    admission = pair.listener.admit(token, EPOCH, "initiator")
    with stream(pair, token, index, streams) as sock:
        assert await verdict(sock) == Verdict.MALFORMED
    assert not admission.done()
    admission.cancel()


async def test_preamble_in_pieces(pair: Pair) -> None:
    token = os.urandom(32)
    admission = pair.listener.admit(token, EPOCH, "initiator")
    with socket.create_connection(parse_address(pair.listener.address)) as sock:
        for byte in Preamble(b"WTP1DATA", token, EPOCH, 0, 1).encode():
            sock.send(bytes([byte]))
            await asyncio.sleep(0)
        owner = await admission
        await owner.close()


async def test_withdrawing_an_admission_that_has_begun(pair: Pair) -> None:
    token = os.urandom(32)
    admission = pair.listener.admit(token, EPOCH, "initiator")
    with stream(pair, token, 0, 2) as first:
        await asyncio.sleep(0.05)
        admission.cancel()
        assert await verdict(first) == Verdict.LATE


async def test_endpoint_whose_peer_speaks_another_language_breaks(pair: Pair) -> None:
    token = os.urandom(32)
    admission = pair.listener.admit(token, EPOCH, "initiator")
    with stream(pair, token, 0, 1) as sock:
        owner = await admission
        assert await verdict(sock) == Verdict.ADMITTED
        sock.send(os.urandom(4096))
        await until(lambda: owner.broken is not None)
        assert isinstance(owner.broken, ProtocolError)
        await owner.close()
    assert pair.owner.broken is None


@pytest.mark.parametrize("streams", [1, 3, 64])
async def test_any_number_of_streams(streams: int) -> None:
    async with open_pair(TcpBackend, CONFIG.replace(streams=streams, connect_timeout_s=5.0)) as pair:
        data, landing = random_bytes(3 << 20), pair.landing(3 << 20)
        await pair.write(pair.source(data), whole(3 << 20), landing.remote)
        assert landing.bytes.tobytes() == data.tobytes()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "tcp://127.0.0.1:"),
        ("localhost", "tcp://localhost:"),
        pytest.param("::1", "tcp://[::1]:", marks=pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 loopback here")),
    ],
)
async def test_addresses_and_names(host: str, shown: str) -> None:
    async with open_driver(CONFIG) as driver:
        backend = TcpBackend(driver, CONFIG)
        listener = await backend.listen(host)
        assert listener.address.startswith(shown)
        pair = Pair(backend, backend, listener)
        await pair.connect()
        landing = pair.landing(1000)
        await pair.write(pair.source(random_bytes(1000)), whole(1000), landing.remote)
        await pair.close()


async def test_configured_host_is_the_default() -> None:
    config = CONFIG.replace(host="127.0.0.2")
    async with open_driver(config) as driver:
        listener = await TcpBackend(driver, config).listen("")
        assert listener.address.startswith("tcp://127.0.0.2:")
        await listener.close()


async def test_addresses_that_cannot_be_used() -> None:
    async with open_driver(CONFIG) as driver:
        backend = TcpBackend(driver, CONFIG)
        for host in ("0.0.0.0", "::"):
            with pytest.raises(ConfigError, match="every interface"):
                await backend.listen(host)
        with pytest.raises(ConnectError, match="cannot listen"):
            await backend.listen("192.0.2.1")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with pytest.raises(ConnectError, match="cannot connect"):
            await backend.connect(f"tcp://127.0.0.1:{port}", token=bytes(32), epoch=1, peer="x", timeout_s=5.0)


@pytest.mark.parametrize("addr", ["", "tcp://", "tcp://host", "tcp://host:x", "tcp://host:99999", "unix:///x", "host:1", "tcp://[::1:1"])
def test_text_that_is_no_address(addr: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(addr)


def test_text_that_is_an_address() -> None:
    assert parse_address("tcp://trainer-0:29600") == ("trainer-0", 29600)
    assert parse_address("tcp://[fe80::1]:5") == ("fe80::1", 5)


async def test_a_grant_on_an_endpoint_that_has_just_ended_says_what_ended_it(pair: Pair) -> None:
    """The peer's reset has reached the native threads, and not the event loop yet."""
    receiver = pair.owner._receiver  # type: ignore[attr-defined]
    pair.initiator.abort(PeerLostError("the test said so"))
    ends = time.monotonic() + 10
    while receiver.alive() and time.monotonic() < ends:
        time.sleep(0.001)  # the loop must not hear of it
    assert not receiver.alive()
    assert pair.owner.broken is None
    with pytest.raises(PeerLostError):
        pair.landing(4096)
    assert isinstance(pair.owner.broken, PeerLostError)
