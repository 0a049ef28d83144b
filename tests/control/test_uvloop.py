"""The same over uvloop, whose sockets and transports differ in what they accept.

In a process of its own: libuv keeps threads and pipes until the process ends.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.scripts import Outcome

pytest.importorskip("uvloop", reason="uvloop is not installed")


def _exchange(url: str) -> None:
    import asyncio
    from dataclasses import dataclass

    import uvloop

    from wtransport.control.codec import Codec
    from wtransport.control.dial import connect, dial_raw
    from wtransport.control.listener import Listener
    from wtransport.control.preamble import BEAT
    from wtransport.control.secret import Secret
    from wtransport.control.tokens import TokenTable

    @dataclass(frozen=True)
    class Ping:
        n: int
        body: bytes

    async def run() -> None:
        secret, codec, loop = Secret.of_job("s"), Codec([Ping]), asyncio.get_running_loop()
        listener = Listener(secret=secret)
        listener.serve_channels(lambda channel: channel.attach(channel.send_nowait), codec=codec, hello=dict)
        tokens: TokenTable[str] = TokenTable()
        taken: asyncio.Queue[object] = asyncio.Queue()
        listener.serve_raw(BEAT, tokens, lambda sock, value, peer: taken.put_nowait(sock))
        (bound,) = await listener.listen(url)
        channel = await connect(bound, secret=secret, hello={}, codec=codec, deadline_s=20)
        for n in range(100):
            await channel.send(Ping(n, bytes(50_000)))
        for n in range(100):
            assert await anext(channel) == Ping(n, bytes(50_000))
        await channel.close()
        assert channel.error is None
        ours = await dial_raw(bound, BEAT, tokens.issue("a", ttl_s=60), 20)
        theirs = await taken.get()
        await loop.sock_sendall(ours, b"beat")
        assert await loop.sock_recv(theirs, 100) == b"beat"
        ours.close()
        theirs.close()
        await listener.close()
        print("all arrived")

    uvloop.run(run())


@pytest.mark.parametrize("kind", ["tcp", "unix", "abstract"])
def test_channels_and_raw_sockets_over_uvloop(run_python: Callable[..., Outcome], tmp_path: Path, kind: str) -> None:
    url = {
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"unix://{tmp_path}/s",
        "abstract": f"unix://@wtransport-uvloop-{os.getpid()}",
    }[kind]
    outcome = run_python(_exchange, url)
    assert outcome.returncode == 0, outcome
    assert "all arrived" in outcome.stdout
