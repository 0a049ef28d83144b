"""TCP endpoints through a proxy that misbehaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wtransport.backends.tcp.backend import TcpBackend
from wtransport.config import TransportConfig
from wtransport.errors import ConnectError, DeadlineError, PeerLostError
from wtransport.testing.conformance.pair import Pair, lost, open_driver, outcome, random_bytes, until, whole
from wtransport.testing.conformance.proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONFIG = TransportConfig(copy_threads=1, streams=2, connect_timeout_s=1.0, abort_grace_s=0.5)
SIZE = 16 << 20


class Proxied:
    """A pair whose initiator dials a proxy."""

    def __init__(self, pair: Pair, proxy: FaultProxy) -> None:
        self.pair = pair
        self.proxy = proxy


@pytest.fixture
async def proxied() -> AsyncIterator[Proxied]:
    async with open_driver(CONFIG) as near, open_driver(CONFIG) as far:
        owner = TcpBackend(far, CONFIG)
        listener = await owner.listen("")
        pair = Pair(TcpBackend(near, CONFIG), owner, listener)
        try:
            async with FaultProxy(listener.address) as proxy:
                pair.dial = proxy.address
                await pair.connect()
                yield Proxied(pair, proxy)
        finally:
            await pair.close()


async def test_bytes_pass_an_honest_proxy(proxied: Proxied) -> None:
    pair, data = proxied.pair, random_bytes(SIZE)
    landing = pair.landing(SIZE)
    await pair.write(pair.source(data), whole(SIZE), landing.remote)
    np.testing.assert_array_equal(landing.bytes, data)
    assert proxied.proxy.forwarded > SIZE


async def test_cut_connection_breaks_both_ends(proxied: Proxied) -> None:
    pair = proxied.pair
    landing = pair.landing(SIZE)
    proxied.proxy.cut_after_nbytes = proxied.proxy.forwarded + (4 << 20)
    error = await outcome(pair.write(pair.source(random_bytes(SIZE)), whole(SIZE), landing.remote))
    assert isinstance(error, PeerLostError)
    assert error.nbytes_done is not None
    assert error.nbytes_done < SIZE
    await lost(pair.initiator)
    await lost(pair.owner)


async def test_one_lost_stream_is_a_lost_endpoint(proxied: Proxied) -> None:
    pair = proxied.pair
    await until(lambda: proxied.proxy.connections == 2)
    proxied.proxy.cut()
    await lost(pair.initiator)
    await lost(pair.owner)
    assert isinstance(pair.initiator.broken, PeerLostError)


async def test_black_hole_is_found_by_the_deadline(proxied: Proxied) -> None:
    pair = proxied.pair
    landing = pair.landing(SIZE)
    proxied.proxy.stall()
    error = await outcome(pair.write(pair.source(random_bytes(SIZE)), whole(SIZE), landing.remote, timeout_s=0.5))
    assert isinstance(error, DeadlineError)
    assert error.in_flight
    await lost(pair.initiator)


async def test_slow_link_is_no_silence(proxied: Proxied) -> None:
    # Twice as long as the deadline in all, but bytes arrive all the time.
    pair, size = proxied.pair, 4 << 20
    landing, data = pair.landing(size), random_bytes(size)
    proxied.proxy.rate_nbytes_s = 2 << 20
    work = pair.write(pair.source(data), whole(size), landing.remote, timeout_s=0.75)
    started = asyncio.get_running_loop().time()
    await work
    assert asyncio.get_running_loop().time() - started > 0.75
    np.testing.assert_array_equal(landing.bytes, data)


async def test_stalled_link_that_recovers_in_time_costs_nothing(proxied: Proxied) -> None:
    pair, data = proxied.pair, random_bytes(SIZE)
    landing = pair.landing(SIZE)
    proxied.proxy.stall()
    work = pair.write(pair.source(data), whole(SIZE), landing.remote)
    await asyncio.sleep(0.2)
    assert not work.settled
    proxied.proxy.resume()
    await work
    np.testing.assert_array_equal(landing.bytes, data)


async def test_late_link(proxied: Proxied) -> None:
    pair, data = proxied.pair, random_bytes(1 << 20)
    landing = pair.landing(1 << 20)
    proxied.proxy.delay_s = 0.02
    await pair.write(pair.source(data), whole(1 << 20), landing.remote)
    np.testing.assert_array_equal(landing.bytes, data)


async def test_half_closed_stream_ends_the_endpoint(proxied: Proxied) -> None:
    await until(lambda: proxied.proxy.connections == 2)
    proxied.proxy.half_close()
    await lost(proxied.pair.owner)


async def test_connecting_into_a_black_hole_ends_in_time(proxied: Proxied) -> None:
    proxied.proxy.stall()
    backend = proxied.pair.near
    with pytest.raises(ConnectError, match="waiting for the verdict"):
        await backend.connect(proxied.proxy.address, token=bytes(32), epoch=1, peer="owner", timeout_s=0.3)
