from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.control.support import CODEC, OTHER_SECRET, SECRET, Ping, Served, until
from wtransport.control.dial import connect, dial_raw
from wtransport.control.secret import Secret
from wtransport.errors import AuthError, ConfigError, ConnectError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from wtransport.control.channel import Channel

    Serve = Callable[..., Coroutine[Any, Any, Served]]


async def _dial(url: str, deadline_s: float = 20, secret: Secret = SECRET, **options: Any) -> Channel:
    return await connect(url, secret=secret, hello={}, codec=CODEC, deadline_s=deadline_s, **options)


async def _works(channel: Channel) -> None:
    channel.send_nowait(Ping(1))
    assert await anext(channel) == Ping(1)
    await channel.close()


def _free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.fixture
async def answer() -> AsyncIterator[Callable[[bytes], Coroutine[Any, Any, str]]]:
    """A server of something else: it says what it is told, then nothing more."""
    servers: list[asyncio.Server] = []

    async def start(said: bytes) -> str:
        async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            await reader.read()
            writer.close()

        servers.append(await asyncio.start_server(on_client, "127.0.0.1", 0))
        return f"tcp://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


async def test_every_kind_of_address(serve: Serve, tmp_path: Path) -> None:
    name = f"wtransport-test-{os.getpid()}"
    for url in ("tcp://127.0.0.1:0", "tcp://localhost:0", f"unix://{tmp_path}/s", f"unix://@{name}"):
        served = await serve(url, echo=True)
        for bound in served.listener.addresses:
            await _works(await _dial(bound))


async def test_ipv6(serve: Serve, needs_ipv6: None) -> None:
    served = await serve("tcp://[::1]:0", echo=True)
    assert served.listener.addresses[0].startswith("tcp://[::1]:")
    await _works(await _dial(served.listener.addresses[0]))


async def test_the_wildcard_of_ipv6_serves_both_families(serve: Serve, needs_ipv6: None) -> None:
    served = await serve("tcp://[::]:0", echo=True)
    port = served.listener.addresses[0].rsplit(":", 1)[1]
    for host in ("127.0.0.1", "[::1]"):
        await _works(await _dial(f"tcp://{host}:{port}"))


@pytest.mark.parametrize("kind", ["tcp", "unix", "abstract"])
async def test_a_listener_may_start_later(serve: Serve, tmp_path: Path, kind: str) -> None:
    url = {
        "tcp": f"tcp://127.0.0.1:{_free_port()}",
        "unix": f"unix://{tmp_path}/s",
        "abstract": f"unix://@wtransport-late-{os.getpid()}",
    }[kind]
    dialling = asyncio.create_task(_dial(url))
    await asyncio.sleep(0.1)
    assert not dialling.done()
    await serve(url, echo=True)
    await _works(await dialling)


async def test_a_folder_that_is_not_there_yet_is_waited_for(serve: Serve, tmp_path: Path) -> None:
    dialling = asyncio.create_task(_dial(f"unix://{tmp_path}/later/s"))
    await asyncio.sleep(0.05)
    (tmp_path / "later").mkdir()
    await serve(f"unix://{tmp_path}/later/s", echo=True)
    await _works(await dialling)


async def test_nobody_there_is_reported_with_what_was_tried() -> None:
    port = _free_port()
    with pytest.raises(ConnectError) as caught:
        await _dial(f"tcp://127.0.0.1:{port}", deadline_s=0.3)
    text = str(caught.value)
    assert f"no connection to tcp://127.0.0.1:{port} within 0.3 s" in text
    assert f"tcp://127.0.0.1:{port} (" in text
    assert "times, last: ECONNREFUSED" in text
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


async def test_no_socket_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="last: ENOENT"):
        await _dial(f"unix://{tmp_path}/none", deadline_s=0.1)


async def test_a_name_that_does_not_resolve_is_reported_and_tried_again() -> None:
    with pytest.raises(ConnectError, match=r"tried name resolution \(\d+ times, last: .*'no-such.invalid' does not resolve"):
        await _dial("tcp://no-such.invalid:1", deadline_s=0.3)


async def test_a_name_that_resolves_later(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve(echo=True)
    port = served.listener.addresses[0].rsplit(":", 1)[1]
    real, asked = socket.getaddrinfo, []

    def late(host: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "not yet")
        return real("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    await _works(await _dial(f"tcp://trainer-0:{port}"))
    assert asked == ["trainer-0"] * 3


def _resolves_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    def found(host: Any, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize("hosts", [("127.0.0.2", "127.0.0.1"), ("127.0.0.1", "127.0.0.2")])
async def test_of_two_addresses_one_may_be_dead(serve: Serve, monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...]) -> None:
    served = await serve(echo=True)
    _resolves_to(monkeypatch, *hosts)
    channel = await _dial(served.listener.addresses[0].replace("127.0.0.1", "two-addresses"))
    assert channel.peer == served.listener.addresses[0]
    await _works(channel)


async def test_of_two_addresses_one_may_be_mute(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first accepts and says nothing: it gets its share of the time, the second the rest."""
    served = await serve(echo=True)
    port = int(served.listener.addresses[0].rsplit(":", 1)[1])
    with socket.socket() as mute:
        mute.bind(("127.0.0.2", port))
        mute.listen()
        _resolves_to(monkeypatch, "127.0.0.2", "127.0.0.1")
        await _works(await _dial(f"tcp://two-addresses:{port}", deadline_s=2))


async def test_every_address_tried_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolves_to(monkeypatch, "127.0.0.2", "127.0.0.3")
    port = _free_port()
    with pytest.raises(ConnectError) as caught:
        await _dial(f"tcp://two-addresses:{port}", deadline_s=0.2)
    for host in ("127.0.0.2", "127.0.0.3"):
        assert f"tcp://{host}:{port} (" in str(caught.value)


async def test_a_wrong_secret_is_final(serve: Serve) -> None:
    served = await serve()
    with pytest.raises(AuthError, match="refused the connection"):
        await _dial(served.listener.addresses[0], secret=OTHER_SECRET)
    assert served.listener.refused == {"auth": 1}


async def test_something_else_that_answers_is_final(answer: Callable[[bytes], Coroutine[Any, Any, str]]) -> None:
    with pytest.raises(ProtocolError, match="over the cap of 4096"):
        await _dial(await answer(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with pytest.raises(ProtocolError, match="no answer to a token"):
        await dial_raw(await answer(b"HTTP/1.1"), b"BEAT", bytes(32), 20)


async def test_a_server_that_never_answers_costs_the_deadline_only(answer: Callable[[bytes], Coroutine[Any, Any, str]]) -> None:
    url = await answer(b"")
    with pytest.raises(ConnectError, match="took the connection and did not answer"):
        await _dial(url, deadline_s=0.2)
    with pytest.raises(ConnectError, match="took the connection and did not answer"):
        await dial_raw(url, b"BEAT", bytes(32), 0.2)


async def test_a_server_that_hangs_up_is_dialled_again() -> None:
    """A listener on its way down or up accepts and closes; the one after it serves."""
    with socket.socket() as going:
        going.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        going.bind(("127.0.0.1", 0))
        going.listen()
        going.setblocking(False)
        port = going.getsockname()[1]
        dialling = asyncio.create_task(_dial(f"tcp://127.0.0.1:{port}"))
        loop = asyncio.get_running_loop()
        for _ in range(2):
            sock, _address = await loop.sock_accept(going)
            sock.close()
    served = Served(echo=True)
    await served.listener.listen(f"tcp://127.0.0.1:{port}")
    await _works(await dialling)
    await served.close()


@pytest.mark.parametrize(
    "url",
    ["tcp://127.0.0.1:0", "tcp://0.0.0.0:80", "tcp://[::]:80", "tcp://host", "unix://relative", "", "tcp://[fe80::1%nosuch0]:80"],
)
async def test_what_cannot_be_dialled_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError):
        await _dial(url)
    with pytest.raises(ConfigError):
        await dial_raw(url, b"BEAT", bytes(32), 5)


async def test_purposes_and_tokens_have_one_size() -> None:
    with pytest.raises(ConfigError, match="a purpose has 4 bytes"):
        await _dial("tcp://127.0.0.1:80", purpose=b"LONGER")
    with pytest.raises(ConfigError, match="a token has 32 bytes, not 3"):
        await dial_raw("tcp://127.0.0.1:80", b"BEAT", b"abc", 5)


async def test_the_secret_of_a_user_dials_this_host_only(serve: Serve, tmp_path: Path) -> None:
    secret = Secret(b"x" * 64, "user")
    served = await serve(secret=secret, echo=True)
    await _works(await _dial(served.listener.addresses[0], secret=secret))
    with pytest.raises(ConfigError, match="not on this host"):
        await _dial("tcp://192.0.2.77:80", secret=secret)


async def test_no_permission_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def denied(sock: Any, address: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", denied)
    with pytest.raises(ConnectError, match=r"1 times, last: EACCES") as caught:
        await _dial(f"unix://{tmp_path}/s", deadline_s=100)
    assert "within" not in str(caught.value)


async def test_a_port_does_not_connect_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    port, loop = _free_port(), asyncio.get_running_loop()
    real = loop.sock_connect

    async def from_the_same_port(sock: socket.socket, address: Any) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        await real(sock, address)

    monkeypatch.setattr(loop, "sock_connect", from_the_same_port)
    with pytest.raises(ConnectError) as caught:
        await _dial(f"tcp://127.0.0.1:{port}", deadline_s=0.2)
    assert "connected to itself" in str(caught.value.__cause__)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 5, 7, 9, 12, 15, 20])
async def test_a_dial_may_be_cancelled_at_any_point(serve: Serve, turns: int) -> None:
    served = await serve()
    for dial in (
        _dial(served.listener.addresses[0]),
        dial_raw(served.listener.addresses[0], b"BEAT", bytes(32), 5),
    ):
        dialling: asyncio.Task[Any] = asyncio.create_task(dial)
        for _ in range(turns):
            await asyncio.sleep(0)
        dialling.cancel()
        (result,) = await asyncio.gather(dialling, return_exceptions=True)
        if hasattr(result, "close"):
            await result.close()
    await until(lambda: served.listener.num_pending == 0)
