from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.control.support import RawPeer, Served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Coroutine[Any, Any, Served]]]:
    """Start a `Served` on a url (any free port of loopback by default)."""
    made: list[Served] = []

    async def start(url: str = "tcp://127.0.0.1:0", **options: Any) -> Served:
        served = Served(**options)
        made.append(served)
        await served.listener.listen(url)
        return served

    yield start
    for served in made:
        await served.close()


@pytest.fixture
async def raw_dial() -> AsyncIterator[Callable[..., Coroutine[Any, Any, RawPeer]]]:
    """Dial as a `RawPeer`; all are closed after the test."""
    made: list[RawPeer] = []

    async def dial(*args: Any) -> RawPeer:
        made.append(await RawPeer.dial(*args))
        return made[-1]

    yield dial
    for peer in made:
        peer.close()


@pytest.fixture
def needs_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
