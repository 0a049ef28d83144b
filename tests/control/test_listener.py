from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.control.support import CODEC, SECRET, Ping, RawPeer, Served, until
from wtransport.control.auth import Handshake
from wtransport.control.dial import connect, dial_raw
from wtransport.control.listener import Listener
from wtransport.control.preamble import BEAT, encode_preamble
from wtransport.control.secret import Secret
from wtransport.control.tokens import TokenTable
from wtransport.errors import AuthError, BusyError, ClosedError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    Serve = Callable[..., Coroutine[Any, Any, Served]]
    RawDial = Callable[..., Coroutine[Any, Any, RawPeer]]


class _Sockets:
    """The owner of a raw purpose."""

    def __init__(self, served: Served) -> None:
        self.tokens: TokenTable[str] = TokenTable()
        self.taken: asyncio.Queue[tuple[socket.socket, str, str]] = asyncio.Queue()
        served.listener.serve_raw(BEAT, self.tokens, lambda *taken: self.taken.put_nowait(taken))


async def test_port_zero_is_bound_before_it_is_told(serve: Serve) -> None:
    served = await serve()
    (address,) = served.listener.addresses
    assert not address.endswith(":0")
    client = await connect(address, secret=SECRET, hello={}, codec=CODEC, deadline_s=10)
    await client.close()


async def test_one_listener_serves_several_addresses(serve: Serve, tmp_path: Path) -> None:
    served = await serve(echo=True)
    for url in ("tcp://127.0.0.1:0", f"unix://{tmp_path}/s", f"unix://@wtransport-many-{os.getpid()}"):
        (bound,) = await served.listener.listen(url)
        assert bound in served.listener.addresses
    assert len(served.listener.addresses) == 4
    for address in served.listener.addresses:
        client = await connect(address, secret=SECRET, hello={}, codec=CODEC, deadline_s=10)
        client.send_nowait(Ping(1))
        assert await anext(client) == Ping(1)
        await client.close()


async def test_every_address_of_a_name_gets_the_same_port(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: Any, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        return [(socket.AF_INET, 1, 6, "", (ip, port)) for ip in ("127.0.0.1", "192.0.2.99", "127.0.0.2")]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    first, second = (await serve("tcp://this-host:0")).listener.addresses
    assert first.replace("127.0.0.1", "127.0.0.2") == second


async def test_a_taken_port_is_busy_and_says_what_to_do(serve: Serve) -> None:
    """Chosen, given back, and taken by another before it was bound again."""
    served = await serve()
    other = Listener(secret=SECRET)
    with pytest.raises(BusyError, match=r"in use.*Hint: let the system choose: port 0"):
        await other.listen(served.listener.addresses[0])
    assert other.addresses == ()
    await other.close()


async def test_a_bound_socket_may_be_handed_in(serve: Serve) -> None:
    served = await serve(echo=True)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    assert served.listener.adopt(sock) == f"tcp://127.0.0.1:{port}"
    client = await connect(f"tcp://127.0.0.1:{port}", secret=SECRET, hello={}, codec=CODEC, deadline_s=10)
    await client.close()
    await served.listener.close()
    assert sock.fileno() == -1


async def test_sockets_that_cannot_be_adopted_stay_the_callers() -> None:
    listener = Listener(secret=None)
    for sock in (socket.socket(), socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)):
        with sock, pytest.raises(ConfigError):
            listener.adopt(sock)
    with socket.socket() as sock:
        sock.bind(("0.0.0.0", 0))
        with pytest.raises(ConfigError, match="no secret"):
            listener.adopt(sock)
        assert sock.fileno() != -1
    await listener.close()


@pytest.mark.parametrize("secret", [None, Secret(b"x" * 64, "user")])
@pytest.mark.parametrize("url", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:0"])
async def test_other_hosts_are_let_in_with_the_jobs_secret_only(secret: Secret | None, url: str) -> None:
    listener = Listener(secret=secret)
    with pytest.raises(ConfigError, match="can be reached from other hosts and the job has no secret"):
        await listener.listen(url)
    assert listener.addresses == ()
    await listener.listen("tcp://127.0.0.1:0")
    await listener.close()


async def test_a_name_is_judged_by_what_it_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: Any, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        return [(socket.AF_INET, 1, 6, "", (ip, port)) for ip in ("127.0.0.1", "192.0.2.2")]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    listener = Listener(secret=None)
    with pytest.raises(ConfigError, match="no secret"):
        await listener.listen("tcp://localhost:0")
    await listener.close()


async def test_hosts_that_are_not_here_are_config_errors() -> None:
    listener = Listener(secret=SECRET)
    for url in ("tcp://192.0.2.99:0", "tcp://no-such.invalid:0", "tcp://host", "unix:///no-such-folder/s"):
        with pytest.raises(ConfigError):
            await listener.listen(url)
    await listener.close()


async def test_channels_need_a_secret_and_a_purpose_has_one_owner(serve: Serve) -> None:
    with pytest.raises(ConfigError, match="channels need a secret"):
        Listener(secret=None).serve_channels(lambda channel: None, codec=CODEC, hello=dict)
    served = await serve()
    with pytest.raises(ConfigError, match="b'CTRL' is served already"):
        served.listener.serve_raw(b"CTRL", TokenTable(), lambda *taken: None)
    with pytest.raises(ConfigError, match="4 bytes"):
        served.listener.serve_raw(b"LONGER", TokenTable(), lambda *taken: None)


async def test_a_token_opens_a_bare_socket_once(serve: Serve) -> None:
    served = await serve()
    sockets = _Sockets(served)
    token = sockets.tokens.issue("member-1", ttl_s=60)
    ours = await dial_raw(served.listener.addresses[0], BEAT, token, 10)
    theirs, value, peer = await sockets.taken.get()
    assert value == "member-1"
    assert peer == "tcp://127.0.0.1:" + str(ours.getsockname()[1])
    assert ours.getblocking() is theirs.getblocking() is False
    loop = asyncio.get_running_loop()
    # Handed over as they are: nothing is left over, and no reader of the loop is on them.
    for one, other in ((ours, theirs), (theirs, ours)):
        await loop.sock_sendall(one, b"beat")
        assert await loop.sock_recv(other, 100) == b"beat"
        assert not loop.remove_reader(one)
    with pytest.raises(AuthError, match="the token was refused"):
        await dial_raw(served.listener.addresses[0], BEAT, token, 10)
    assert served.listener.refused == {"token": 1}
    ours.close()
    theirs.close()


async def test_nothing_after_the_token_is_read(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve()
    sockets = _Sockets(served)
    token = sockets.tokens.issue("a", ttl_s=60)
    await raw_dial(served.listener.addresses[0], encode_preamble(BEAT) + token + b"the rest")
    theirs, *_ = await sockets.taken.get()
    assert await asyncio.get_running_loop().sock_recv(theirs, 100) == b"the rest"
    theirs.close()


async def test_raw_sockets_over_unix_sockets(serve: Serve, tmp_path: Path) -> None:
    served = await serve(f"unix://{tmp_path}/s")
    sockets = _Sockets(served)
    ours = await dial_raw(f"unix://{tmp_path}/s", BEAT, sockets.tokens.issue("a", ttl_s=60), 10)
    theirs, _, peer = await sockets.taken.get()
    assert peer == f"unix pid {os.getpid()} uid {os.getuid()}"
    ours.close()
    theirs.close()


async def test_a_token_that_does_not_come_in_time(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve(handshake_timeout_s=0.1)
    _Sockets(served)
    peer = await raw_dial(served.listener.addresses[0], encode_preamble(BEAT) + bytes(31))
    await peer.refused()
    await until(lambda: served.listener.refused["deadline"] == 1)


async def test_an_owner_that_raises_loses_that_connection_only(serve: Serve) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    served = await serve()
    tokens: TokenTable[int] = TokenTable()
    served.listener.serve_raw(BEAT, tokens, lambda sock, value, peer: 1 // value)  # type: ignore[arg-type, return-value]
    ours = await dial_raw(served.listener.addresses[0], BEAT, tokens.issue(0, ttl_s=60), 10)
    assert await asyncio.get_running_loop().sock_recv(ours, 1) == b""
    ours.close()
    await until(lambda: bool(reported))
    assert isinstance(reported[0]["exception"], ZeroDivisionError)
    client = await connect(served.listener.addresses[0], secret=SECRET, hello={}, codec=CODEC, deadline_s=10)
    await client.close()


async def test_close_ends_what_is_pending_and_leaves_what_was_handed_over(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve(echo=True)
    url = served.listener.addresses[0]
    client = await connect(url, secret=SECRET, hello={}, codec=CODEC, deadline_s=10)
    waiting = [await raw_dial(url, said) for said in (b"", b"WTP1", encode_preamble(b"CTRL"))]
    await until(lambda: served.listener.num_pending == 3)
    await served.listener.close()
    await served.listener.close()
    assert served.listener.num_pending == 0
    assert served.listener.addresses == ()
    for peer in waiting:
        await peer.refused()
    client.send_nowait(Ping(1))
    assert await anext(client) == Ping(1)
    await client.close()
    with pytest.raises(ClosedError):
        await served.listener.listen("tcp://127.0.0.1:0")
    with pytest.raises(ConnectionRefusedError):
        await raw_dial(url)


async def test_a_close_in_the_middle_of_a_handshake(serve: Serve, raw_dial: RawDial) -> None:
    served = await serve()
    peer = await raw_dial(served.listener.addresses[0])
    await peer.frame(Handshake("client", SECRET, {}).start()[0])
    assert await peer.hear() is not None
    await served.listener.close()
    await peer.refused()
    assert served.opened == []


async def test_no_descriptors_left_pauses_accepting(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve(echo=True)
    real, failures = socket.socket.accept, []

    def accept(self: socket.socket) -> Any:
        if len(failures) < 3:
            failures.append(self)
            raise OSError(errno.EMFILE, "Too many open files")
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    client = await connect(served.listener.addresses[0], secret=SECRET, hello={}, codec=CODEC, deadline_s=20)
    assert len(failures) == 3
    await client.close()


async def test_a_listener_may_be_closed_while_it_pauses(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve()
    failures = []

    def accept(self: socket.socket) -> Any:
        failures.append(self)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    peer = await RawPeer.dial(served.listener.addresses[0])
    await until(lambda: bool(failures))
    await served.listener.close()
    peer.close()


async def test_other_purposes_may_have_channels_too(serve: Serve) -> None:
    served = await serve()
    other: list[Any] = []
    served.listener.serve_channels(other.append, codec=CODEC, hello=lambda: {"other": True}, purpose=b"PEER")
    client = await connect(served.listener.addresses[0], secret=SECRET, hello={}, codec=CODEC, deadline_s=10, purpose=b"PEER")
    assert client.peer_hello == {"other": True}
    await until(lambda: bool(other))
    await client.close()
    await other[0].wait_closed()
    assert served.opened == []
