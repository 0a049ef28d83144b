"""Conformance: only who was announced gets in, and once."""
# ruff: noqa: D102 (the tests' names say what they check)

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from wtransport.backends.base import TOKEN_NBYTES, InitiatorEndpoint
from wtransport.errors import AuthError, ClosedError, ConfigError, ConnectError, StaleEpochError
from wtransport.testing.conformance.pair import EPOCH, Pair, random_bytes, until, whole

if TYPE_CHECKING:
    from collections.abc import Iterator


async def _dial(pair: Pair, token: bytes, epoch: int = EPOCH) -> InitiatorEndpoint:
    return await pair.near.connect(pair.listener.address, token=token, epoch=epoch, peer="owner", timeout_s=5.0)


async def _still_admits(pair: Pair) -> None:
    """Whoever is announced still gets in, and moves bytes."""
    old = pair.initiator, pair.owner
    await pair.connect(epoch=EPOCH + 1)
    landing = pair.landing(1000)
    await pair.write(pair.source(random_bytes(1000)), whole(1000), landing.remote)
    for endpoint in old:
        await endpoint.close()


@contextlib.contextmanager
def _stranger(address: str) -> Iterator[socket.socket]:
    """A raw connection to a listener that uses sockets."""
    scheme, _, rest = address.partition("://")
    if scheme == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        target: object = "\0" + rest.removeprefix("@") if rest.startswith("@") else rest
    elif scheme == "tcp":
        host, _, port = rest.rpartition(":")
        host = host.strip("[]")
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        target = (host, int(port))
    else:
        pytest.skip("this backend listens on no socket")
    with sock:
        sock.connect(target)  # type: ignore[arg-type]
        yield sock


class HandshakeTests:
    """Tokens, epochs, strangers."""

    async def test_unknown_token(self, pair: Pair) -> None:
        before = pair.listener.refused
        with pytest.raises(AuthError) as caught:
            await _dial(pair, os.urandom(TOKEN_NBYTES))
        assert caught.value.peer == "owner"
        assert pair.listener.refused > before
        await _still_admits(pair)

    async def test_token_used_twice(self, pair: Pair) -> None:
        token, before = os.urandom(TOKEN_NBYTES), pair.listener.refused
        old = pair.initiator, pair.owner
        await pair.connect(token=token)
        with pytest.raises(AuthError):
            await _dial(pair, token)
        assert pair.listener.refused > before
        assert pair.initiator.broken is None
        for endpoint in old:
            await endpoint.close()

    async def test_other_epoch(self, pair: Pair) -> None:
        token, before = os.urandom(TOKEN_NBYTES), pair.listener.refused
        admission = pair.listener.admit(token, EPOCH + 1, "initiator")
        with pytest.raises(StaleEpochError):
            await _dial(pair, token, EPOCH)
        with pytest.raises(StaleEpochError):
            await admission
        assert pair.listener.refused > before
        await _still_admits(pair)

    async def test_withdrawn_admission(self, pair: Pair) -> None:
        token = os.urandom(TOKEN_NBYTES)
        pair.listener.admit(token, EPOCH, "initiator").cancel()
        await asyncio.sleep(0)
        with pytest.raises(AuthError):
            await _dial(pair, token)

    async def test_token_of_another_size_or_announced_twice(self, pair: Pair) -> None:
        token = os.urandom(TOKEN_NBYTES)
        admission = pair.listener.admit(token, EPOCH, "initiator")
        for bad in (b"short", token):
            with pytest.raises(ConfigError):
                pair.listener.admit(bad, EPOCH, "initiator")
        admission.cancel()

    async def test_closed_listener(self, pair: Pair) -> None:
        token = os.urandom(TOKEN_NBYTES)
        admission = pair.listener.admit(token, EPOCH, "initiator")
        await pair.listener.close()
        await pair.listener.close()
        with pytest.raises(ClosedError):
            await admission
        with pytest.raises(ConnectError):
            await _dial(pair, token)
        with pytest.raises(ClosedError):
            pair.listener.admit(os.urandom(TOKEN_NBYTES), EPOCH, "initiator")
        # The endpoint that was made before stays.
        landing = pair.landing(1000)
        await pair.write(pair.source(random_bytes(1000)), whole(1000), landing.remote)

    @pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(52), b"\xff" * 52, os.urandom(4000)])
    async def test_garbage(self, pair: Pair, garbage: bytes) -> None:
        before = pair.listener.refused
        with _stranger(pair.listener.address) as sock:
            if garbage:
                sock.send(garbage)
            sock.shutdown(socket.SHUT_WR)
            await until(lambda: pair.listener.refused > before)
        await _still_admits(pair)

    async def test_stranger_that_says_nothing(self, pair: Pair) -> None:
        before = pair.listener.refused
        with _stranger(pair.listener.address), _stranger(pair.listener.address):
            await _still_admits(pair)
            await until(lambda: pair.listener.refused >= before + 2)
