from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.control.support import CODEC, SECRET, Served, until
from wtransport.control.dial import connect
from wtransport.control.listener import Listener
from wtransport.errors import BusyError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from tests.helpers.scripts import Script

    Serve = Callable[..., Coroutine[Any, Any, Served]]


def _listen_until_killed(url: str) -> None:
    import asyncio

    from wtransport.control.listener import Listener
    from wtransport.control.secret import Secret
    from wtransport.errors import BusyError

    async def run() -> None:
        try:
            await Listener(secret=Secret.of_job("s")).listen(url)
        except BusyError as error:
            print("busy", error)
            return
        print("listening")
        await asyncio.sleep(600)

    asyncio.run(run())


@contextlib.contextmanager
def _stale(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    yield


async def test_the_file_is_for_its_user_only_and_goes_with_the_listener(serve: Serve, tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        served = await serve(f"unix://{tmp_path}/s")
    finally:
        os.umask(mask)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    await served.listener.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_live_listener_is_never_replaced(serve: Serve, tmp_path: Path) -> None:
    served = await serve(f"unix://{tmp_path}/s")
    other = Listener(secret=SECRET)
    with pytest.raises(BusyError, match=f"another process listens on {tmp_path}/s"):
        await other.listen(f"unix://{tmp_path}/s")
    await other.close()
    assert (tmp_path / "s").exists()
    client = await connect(served.listener.addresses[0], secret=SECRET, hello={}, codec=CODEC, deadline_s=10)
    await client.close()


async def test_a_file_that_a_killed_process_left_is_replaced(start_python: Callable[..., Script], serve: Serve, tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/s"
    script = start_python(_listen_until_killed, url)
    script.line("listening")
    with pytest.raises(BusyError):
        await serve(url)
    script.kill()
    assert (tmp_path / "s").exists()
    served = await serve(url)
    client = await connect(url, secret=SECRET, hello={}, codec=CODEC, deadline_s=10)
    await client.close()
    await served.listener.close()


async def test_of_many_that_find_a_stale_file_one_wins(start_python: Callable[..., Script], tmp_path: Path) -> None:
    with _stale(tmp_path / "s"):
        scripts = [start_python(_listen_until_killed, f"unix://{tmp_path}/s") for _ in range(4)]
        said = [script.line() for script in scripts]
    assert sorted(line.split()[0] for line in said) == ["busy", "busy", "busy", "listening"]


async def test_of_many_in_one_process_one_wins(tmp_path: Path) -> None:
    with _stale(tmp_path / "s"):
        listeners = [Listener(secret=SECRET) for _ in range(8)]
        results = await asyncio.gather(*(one.listen(f"unix://{tmp_path}/s") for one in listeners), return_exceptions=True)
    assert sum(isinstance(result, tuple) for result in results) == 1
    assert sum(isinstance(result, BusyError) for result in results) == 7
    for one in listeners:
        await one.close()
    assert not (tmp_path / "s").exists()


async def test_a_listener_removes_no_file_but_its_own(serve: Serve, tmp_path: Path) -> None:
    served = await serve(f"unix://{tmp_path}/s")
    (tmp_path / "s").unlink()
    (tmp_path / "s").touch()
    await served.listener.close()
    assert (tmp_path / "s").exists()
    other = await serve(f"unix://{tmp_path}/t")
    (tmp_path / "t").unlink()
    await other.listener.close()


async def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    listener = Listener(secret=SECRET)
    for name in ("file", "folder", "link"):
        with pytest.raises(ConfigError, match="is not a socket"):
            await listener.listen(f"unix://{tmp_path}/{name}")
    assert (tmp_path / "file").read_text() == "precious"
    with pytest.raises(ConfigError, match="no socket can be made in"):
        await listener.listen(f"unix://{tmp_path}/file/s")
    await listener.close()


async def test_sockets_of_another_kind_are_somebodys(tmp_path: Path) -> None:
    listener = Listener(secret=SECRET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "s"))
        with pytest.raises(BusyError):
            await listener.listen(f"unix://{tmp_path}/s")
    await listener.close()


async def test_a_full_backlog_is_a_live_listener(tmp_path: Path) -> None:
    listener = Listener(secret=SECRET)
    with socket.socket(socket.AF_UNIX) as sock, contextlib.ExitStack() as clients:
        sock.bind(str(tmp_path / "s"))
        sock.listen(0)
        with contextlib.suppress(BlockingIOError):
            for _ in range(10):
                client = clients.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(tmp_path / "s"))
        with pytest.raises(BusyError):
            await listener.listen(f"unix://{tmp_path}/s")
    await listener.close()


async def test_a_folder_that_stays_locked_costs_the_deadline_only(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    listener = Listener(secret=SECRET)
    with pytest.raises(BusyError, match=r"was locked by others for 0\.1 s"):
        await listener.listen(f"unix://{tmp_path}/s", timeout_s=0.1)
    os.close(folder)
    await listener.listen(f"unix://{tmp_path}/s")
    await listener.close()


async def test_a_cancelled_listen_leaves_nothing(tmp_path: Path) -> None:
    listener = Listener(secret=SECRET)
    for turns in range(6):
        listening = asyncio.create_task(listener.listen(f"unix://{tmp_path}/s{turns}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    kept = {url.rsplit("/", 1)[1] for url in listener.addresses}
    await until(lambda: {path.name for path in tmp_path.iterdir()} == kept)
    await listener.close()
    await until(lambda: not list(tmp_path.iterdir()))


async def test_a_listener_closed_while_it_binds(tmp_path: Path) -> None:
    listener = Listener(secret=SECRET)
    listening = asyncio.create_task(listener.listen(f"unix://{tmp_path}/s"))
    await asyncio.sleep(0)
    await listener.close()
    await asyncio.gather(listening, return_exceptions=True)
    assert list(tmp_path.iterdir()) == []


async def test_abstract_names_have_one_listener(serve: Serve) -> None:
    url = f"unix://@wtransport-once-{os.getpid()}"
    served = await serve(url)
    other = Listener(secret=SECRET)
    with pytest.raises(BusyError, match="another process listens"):
        await other.listen(url)
    await served.listener.close()
    assert await other.listen(url) == (url,)
    await other.close()
