from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.control.support import CODEC, EVERYTHING, SECRET, Ping, RawPeer, Served, until
from wtransport.control.auth import Handshake
from wtransport.control.channel import Channel, ChannelLimits, open_channel
from wtransport.control.dial import connect
from wtransport.errors import BusyError, ClosedError, DeadlineError, InternalError, PeerLostError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from wtransport.errors import TransportError

    Serve = Callable[..., Coroutine[Any, Any, Served]]
    RawDial = Callable[..., Coroutine[Any, Any, RawPeer]]

_SMALL = ChannelLimits(max_send_nbytes=1 << 20, max_receive_nbytes=1 << 16, stall_timeout_s=0.1)


async def _dial(served: Served, **options: Any) -> Channel:
    return await connect(served.listener.addresses[0], secret=SECRET, hello={"name": "client"}, codec=CODEC, deadline_s=10, **options)


async def _stuck(serve: Serve, raw_dial: RawDial, limits: ChannelLimits) -> Channel:
    """A server's channel to a peer that has shaken hands and reads nothing any more."""
    served = await serve(limits=limits)
    peer = await raw_dial(served.listener.addresses[0])
    await peer.shake(Handshake("client", SECRET, {}))
    return await served.channels.get()


async def test_both_sides_see_both_hellos(serve: Serve) -> None:
    served = await serve()
    client = await _dial(served)
    server = await served.channels.get()
    assert client.hello == server.peer_hello == {"name": "client"}
    assert server.hello == client.peer_hello == {"name": "server", "n": [1, 2]}
    assert client.peer == served.listener.addresses[0]
    assert server.peer.startswith("tcp://127.0.0.1:")
    await client.close()


async def test_messages_keep_their_order_whichever_way_they_are_sent(serve: Serve) -> None:
    served = await serve(echo=True)
    client = await _dial(served)
    for n in range(200):
        if n % 2:
            client.send_nowait(Ping(n, bytes(n * 50)))
        else:
            await client.send(Ping(n))
    await client.send(EVERYTHING)
    heard = []
    async for message in client:
        heard.append(message)
        if message == EVERYTHING:
            break
    assert [message.n for message in heard[:-1]] == list(range(200))
    assert client.messages_sent == client.messages_received == 201
    assert client.nbytes_sent == client.nbytes_received > 50 * 100 * 100
    server = await served.channels.get()
    assert (server.messages_received, server.nbytes_received) == (201, client.nbytes_sent)
    await client.close()


async def test_a_message_larger_than_every_buffer_arrives(serve: Serve) -> None:
    served = await serve(echo=True)
    client = await _dial(served)
    body = bytes(range(256)) * (40 << 12)
    await client.send(Ping(1, body))
    assert await anext(client) == Ping(1, body)
    await client.close()


async def test_close_delivers_what_was_queued(serve: Serve) -> None:
    served = await serve()
    closed: list[TransportError | None] = []
    client = await _dial(served, on_closed=closed.append)
    for n in range(50):
        client.send_nowait(Ping(n, bytes(200_000)))
    await client.close(timeout_s=30)
    assert [message.n for message in served.messages] == list(range(50))
    assert closed == [None]
    assert client.error is None
    assert client.closed
    await until(lambda: bool(served.ended))
    assert isinstance(served.ended[0], PeerLostError)
    await client.close()
    assert len(closed) == 1


async def test_a_closed_channel_says_so(serve: Serve) -> None:
    client = await _dial(await serve())
    await client.close()
    for send in (client.send_nowait, client.send):
        with pytest.raises(ClosedError):
            await _maybe(send(Ping(1)))
    with pytest.raises(StopAsyncIteration):
        await anext(client)
    await client.wait_closed()


async def _maybe(result: Any) -> None:
    if result is not None:
        await result


async def test_both_sides_may_close_at_once(serve: Serve) -> None:
    served = await serve(echo=True)
    client = await _dial(served)
    server = await served.channels.get()
    for n in range(20):
        client.send_nowait(Ping(n, bytes(50_000)))
        server.send_nowait(Ping(n, bytes(50_000)))
    await asyncio.gather(client.close(10), server.close(10))
    assert client.closed
    assert server.closed


async def test_messages_before_the_end_are_not_lost_and_then_iteration_raises(serve: Serve) -> None:
    served = await serve()
    client = await _dial(served)
    server = await served.channels.get()
    for n in range(5):
        server.send_nowait(Ping(n))
    await server.close()
    heard: list[int] = []

    async def listen() -> None:
        async for message in client:
            heard.append(message.n)

    with pytest.raises(PeerLostError, match="closed the connection"):
        await listen()
    assert heard == list(range(5))
    with pytest.raises(PeerLostError) as caught:
        client.send_nowait(Ping(1))
    assert caught.value.peer == client.peer


async def test_abort_never_waits_and_its_reason_reaches_the_owner(serve: Serve, raw_dial: RawDial) -> None:
    channel = await _stuck(serve, raw_dial, ChannelLimits())
    closed: list[TransportError | None] = []
    channel.attach(on_closed=closed.append)
    channel.send_nowait(Ping(1, bytes(20 << 20)))
    assert channel.queued_nbytes > 0
    reason = ProtocolError("enough")
    channel.abort(reason)
    channel.abort(ProtocolError("too late"))
    assert closed == []
    assert channel.closed
    await channel.wait_closed()
    assert closed == [reason]
    with pytest.raises(PeerLostError, match="enough"):
        await channel.send(Ping(1))


async def test_a_peer_that_does_not_read_breaks_the_channel_not_the_memory(serve: Serve, raw_dial: RawDial) -> None:
    channel = await _stuck(serve, raw_dial, _SMALL)

    def flood() -> None:
        for n in range(10_000):
            channel.send_nowait(Ping(n, bytes(100_000)))

    with pytest.raises(PeerLostError, match=r"the send queue to the peer is full: \d+ bytes, at most 1048576"):
        flood()
    await channel.wait_closed()
    assert isinstance(channel.error, PeerLostError)


async def test_a_sender_that_waits_gives_up_on_a_peer_that_stands_still(serve: Serve, raw_dial: RawDial) -> None:
    channel = await _stuck(serve, raw_dial, replace(_SMALL, max_send_nbytes=1 << 30))

    async def flood() -> None:
        for n in range(10_000):
            await channel.send(Ping(n, bytes(100_000)))

    with pytest.raises(PeerLostError, match=r"the send queue to the peer has not moved for 0\.1 s"):
        await flood()
    await channel.wait_closed()


async def test_a_sender_that_waits_is_held_to_the_peers_pace(serve: Serve) -> None:
    """The receiver takes one message at a time; the sender never holds more than its queue."""
    served = await serve(limits=replace(_SMALL, stall_timeout_s=30))
    client = await _dial(served, limits=_SMALL)
    server = await served.channels.get()

    async def flood() -> None:
        for n in range(300):
            await server.send(Ping(n, bytes(100_000)))
            assert server.queued_nbytes <= (1 << 20) + 100_100

    sender = asyncio.create_task(flood())
    for n in range(300):
        assert (await anext(client)).n == n
    await sender
    await client.close()


async def test_a_waiting_sender_wakes_when_the_channel_ends(serve: Serve, raw_dial: RawDial) -> None:
    for end in ("abort", "close"):
        channel = await _stuck(serve, raw_dial, ChannelLimits())
        channel.send_nowait(Ping(0, bytes(20 << 20)))
        sender = asyncio.create_task(channel.send(Ping(1)))
        cancelled = asyncio.create_task(channel.send(Ping(2)))
        await asyncio.sleep(0)
        cancelled.cancel()
        if end == "abort":
            channel.abort(PeerLostError("gone"))
        else:
            await channel.close(timeout_s=0.05)
            assert isinstance(channel.error, DeadlineError)
        with pytest.raises(PeerLostError if end == "abort" else ClosedError):
            await sender
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert channel.messages_sent == 1


async def test_a_cancelled_close_ends_the_channel(serve: Serve, raw_dial: RawDial) -> None:
    channel = await _stuck(serve, raw_dial, ChannelLimits())
    closing = asyncio.create_task(channel.close(timeout_s=60))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await channel.wait_closed()


async def test_a_message_too_long_for_the_channel_is_refused_and_the_channel_goes_on(serve: Serve) -> None:
    served = await serve(echo=True)
    client = await _dial(served, limits=ChannelLimits(max_frame_nbytes=1000))
    with pytest.raises(ProtocolError, match="over the cap of 1000"):
        client.send_nowait(Ping(1, bytes(2000)))
    with pytest.raises(ProtocolError, match="field 'n' must be int"):
        await client.send(Ping("1"))  # type: ignore[arg-type]
    client.send_nowait(Ping(2))
    assert await anext(client) == Ping(2)
    assert client.messages_sent == 1
    await client.close()


async def test_a_frame_over_the_cap_breaks_the_channel(serve: Serve) -> None:
    served = await serve(limits=ChannelLimits(max_frame_nbytes=1000))
    client = await _dial(served)
    client.send_nowait(Ping(1, bytes(2000)))
    await client.wait_closed()
    await until(lambda: bool(served.ended))
    assert isinstance(served.ended[0], ProtocolError)
    assert "over the cap of 1000" in str(served.ended[0])


async def test_what_breaks_the_schema_breaks_the_channel(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve()
    peer = await raw_dial(served.listener.addresses[0])
    await peer.shake(Handshake("client", SECRET, {}))
    await peer.frame(b"\x83\xa1t\xa4Ping\xa1n\xc3\xa4body\xc4\x00")
    await peer.refused()
    (error,) = served.ended
    assert isinstance(error, ProtocolError)
    assert "message Ping: field 'n' must be int, not bool" in str(error)
    assert error.peer is not None


async def test_a_callback_that_raises_breaks_its_channel_only(serve: Serve) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    served = await serve(echo=True)
    closed: list[TransportError | None] = []

    def refuse(message: Any) -> None:
        raise ProtocolError("not now") if message.n == 1 else ZeroDivisionError

    for n, kind in ((1, ProtocolError), (2, InternalError)):
        client = await _dial(served, on_message=refuse, on_closed=closed.append)
        client.send_nowait(Ping(n))
        await client.wait_closed()
        assert isinstance(closed[-1], kind)
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]
    other = await _dial(served)
    other.send_nowait(Ping(3))
    assert await anext(other) == Ping(3)
    await other.close()


async def test_what_came_before_the_callbacks_is_given_to_them(serve: Serve) -> None:
    served = await serve()
    client = await _dial(served)
    server = await served.channels.get()
    for n in range(3):
        server.send_nowait(Ping(n))
    await server.close()
    await client.wait_closed()
    heard: list[Any] = []
    closed: list[TransportError | None] = []
    client.attach(heard.append, closed.append)
    assert [message.n for message in heard] == [0, 1, 2]
    assert isinstance(closed[0], PeerLostError)


async def test_messages_have_one_reader(serve: Serve) -> None:
    served = await serve()
    client = await _dial(served)
    reader = asyncio.create_task(anext(client))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    with pytest.raises(BusyError):
        await anext(client)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    client.attach(lambda message: None)
    with pytest.raises(BusyError):
        await anext(client)
    await client.close()


async def test_the_peer_is_held_up_where_nobody_iterates(serve: Serve) -> None:
    served = await serve(limits=ChannelLimits(max_send_nbytes=64 << 20))
    client = await _dial(served, limits=_SMALL)
    server = await served.channels.get()
    for n in range(400):
        server.send_nowait(Ping(n, bytes(100_000)))
    await until(lambda: client.messages_received > 0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert client.messages_received < 400
    assert server.queued_nbytes > 0
    for n in range(400):
        assert (await anext(client)).n == n
    await client.close()


async def test_an_eof_inside_a_frame_is_told(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve()
    peer = await raw_dial(served.listener.addresses[0])
    await peer.shake(Handshake("client", SECRET, {}))
    await peer.say(b"\0\0\0\x10half")
    peer.sock.shutdown(socket.SHUT_WR)
    await peer.refused()
    assert "in the middle of a frame" in str(served.ended[0])


async def test_a_socket_is_closed_when_the_handshake_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    opening = asyncio.create_task(open_channel(ours, role="client", secret=SECRET, hello={}, codec=CODEC, peer="p"))
    for _ in range(5):
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await until(lambda: ours.fileno() == -1)
    theirs.close()


async def test_a_hello_that_cannot_travel_closes_the_socket() -> None:
    ours, theirs = socket.socketpair()
    with pytest.raises(ProtocolError):
        await open_channel(ours, role="client", secret=SECRET, hello={"x": "x" * 5000}, codec=CODEC, peer="p")
    assert ours.fileno() == -1
    theirs.close()
