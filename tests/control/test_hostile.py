"""Peers that do not mean well: none gets a channel, none costs more than a few bytes for a few seconds."""

from __future__ import annotations

import asyncio
import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.control.support import CODEC, OTHER_SECRET, SECRET, Ping, RawPeer, Served, until
from wtransport.control.auth import Handshake
from wtransport.control.dial import connect
from wtransport.control.preamble import CTRL, encode_preamble

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Serve = Callable[..., Coroutine[Any, Any, Served]]
    RawDial = Callable[..., Coroutine[Any, Any, RawPeer]]

_PREAMBLE = encode_preamble(CTRL)


async def _still_serves(served: Served) -> None:
    client = await connect(served.listener.addresses[0], secret=SECRET, hello={}, codec=CODEC, deadline_s=10)
    client.send_nowait(Ping(1))
    await client.close()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "preamble"),
        (b"WTP0CTRL", "preamble"),
        (b"WTP1EVIL", "purpose"),
        (_PREAMBLE + b"\xff\xff\xff\xff", "protocol"),
        (_PREAMBLE + (4097).to_bytes(4, "big"), "protocol"),
        (_PREAMBLE + b"\0\0\0\0", "protocol"),
        (_PREAMBLE + b"\0\0\0\x01\xc1", "protocol"),
        (_PREAMBLE + len(pickle.dumps(Ping(1))).to_bytes(4, "big") + pickle.dumps(Ping(1)), "protocol"),
    ],
    ids=["http", "old magic", "no such purpose", "huge frame", "frame over 4 KiB", "empty frame", "no msgpack", "pickle"],
)
async def test_a_stranger_is_turned_away(serve: Serve, raw_dial: RawDial, said: bytes, reason: str) -> None:
    served = await serve()
    peer = await raw_dial(served.listener.addresses[0], said)
    await peer.refused()
    await until(lambda: served.listener.num_pending == 0)
    assert served.listener.refused == {reason: 1}
    assert served.opened == []
    await _still_serves(served)


async def test_random_bytes_open_nothing(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve(handshake_timeout_s=0.2)
    lots = random.Random(7)
    for number in range(30):
        await (await raw_dial(served.listener.addresses[0], (_PREAMBLE if number % 2 else b"") + lots.randbytes(500))).refused()
    await until(lambda: served.listener.num_pending == 0)
    assert served.opened == []
    assert served.listener.refused.total() == 30


async def test_a_wrong_secret_is_told_so(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve()
    peer = await raw_dial(served.listener.addresses[0])
    handshake = await peer.shake(Handshake("client", OTHER_SECRET, {}))
    assert "the server refused the connection" in str(handshake.error)
    await peer.refused()
    assert served.listener.refused == {"auth": 1}


async def test_a_recorded_conversation_opens_nothing(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve()
    good = await raw_dial(served.listener.addresses[0])
    handshake = Handshake("client", SECRET, {})
    said = handshake.start()
    await good.frame(said[0])
    while not handshake.done:
        heard = await good.hear()
        assert heard is not None
        answers = handshake.receive(heard)
        for answer in answers:
            await good.frame(answer)
        said += answers
    await served.channels.get()
    replay = await raw_dial(served.listener.addresses[0])
    for payload in said:
        await replay.frame(payload)
    await replay.refused()
    assert served.listener.refused == {"auth": 1}
    assert len(served.opened) == 1


async def test_reflecting_what_the_server_says_opens_nothing(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve()
    peer = await raw_dial(served.listener.addresses[0])
    await peer.frame(Handshake("client", OTHER_SECRET, {}).start()[0])
    for _ in range(5):
        if (heard := await peer.hear()) is None:
            break
        try:
            await peer.frame(heard)
        except ConnectionError:
            break
    await until(lambda: served.listener.num_pending == 0)
    assert served.opened == []
    assert served.listener.refused.total() == 1


@pytest.mark.parametrize("stop_after", [0, 3, 8, 10, 12])
async def test_a_peer_that_falls_silent_is_dropped(serve: Serve, raw_dial: RawDial, stop_after: int) -> None:
    served = await serve(handshake_timeout_s=0.1)
    opening = Handshake("client", SECRET, {}).start()[0]
    said = _PREAMBLE + len(opening).to_bytes(4, "big") + opening
    peer = await raw_dial(served.listener.addresses[0], said[:stop_after])
    await peer.refused()
    await until(lambda: served.listener.num_pending == 0)
    assert served.listener.refused == {"deadline": 1}


async def test_slow_bytes_do_not_renew_the_deadline(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve(handshake_timeout_s=0.3)
    peer = await raw_dial(served.listener.addresses[0], b"")
    opening = Handshake("client", SECRET, {}).start()[0]

    async def drip() -> None:
        for byte in _PREAMBLE + len(opening).to_bytes(4, "big") + opening:
            await peer.say(bytes([byte]))
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    await peer.refused()
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)
    await until(lambda: served.listener.num_pending == 0)
    assert served.listener.refused == {"deadline": 1}


async def test_silent_peers_do_not_keep_others_out_for_ever(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve(handshake_timeout_s=0.3, max_pending=4)
    peers = [await raw_dial(served.listener.addresses[0], b"") for _ in range(6)]
    await until(lambda: served.listener.refused["full"] == 2)
    assert served.listener.num_pending == 4
    await _still_serves(served)
    for peer in peers:
        await peer.refused()


async def test_a_peer_that_hangs_up_leaves_nothing(serve: Serve) -> None:
    served = await serve()
    for said in (b"", b"WTP1", _PREAMBLE, _PREAMBLE + b"\0\0"):
        peer = await RawPeer.dial(served.listener.addresses[0], said)
        peer.close()
    await until(lambda: served.listener.refused["lost"] == 4)
    assert served.listener.num_pending == 0


async def test_many_that_come_at_once_all_get_in(serve: Serve) -> None:
    served = await serve(max_pending=8, echo=True)

    async def one(n: int) -> Any:
        client = await connect(served.listener.addresses[0], secret=SECRET, hello={"n": n}, codec=CODEC, deadline_s=30)
        client.send_nowait(Ping(n))
        answer = await anext(client)
        await client.close()
        return answer

    assert await asyncio.gather(*(one(n) for n in range(60))) == [Ping(n) for n in range(60)]
