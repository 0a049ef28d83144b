"""A TCP endpoint whose peer is another process: it is killed, it stops, it sends anything."""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import TYPE_CHECKING

import pytest
import torch

from tests.native.support import CODES, events, packed, region_of, settle
from wtransport import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripts import Script

_NBYTES = 32 << 20
_BROKEN = 2


def owner(port: int) -> None:
    """Grant a region to whoever listens on *port* until the endpoint ends."""
    import select
    import socket

    from wtransport import _native

    engine = _native.Engine(1)
    fds = [socket.create_connection(("127.0.0.1", port)).detach() for _ in range(2)]
    receiver = _native.TcpReceiver(engine, fds, 1)
    shared = _native.SharedRegion.create(32 << 20)
    receiver.grant(1, shared, 1, True, 1)
    print("granted")
    while receiver.alive():
        select.select([engine.fileno()], [], [])
        engine.drain()
    print("ended", receiver.status()[0])


def initiator(port: int) -> None:
    """Write to whoever listens on *port* for as long as that lasts."""
    import socket

    import torch

    from tests.native.support import packed, region_of, settle
    from wtransport import _native

    engine = _native.Engine(1)
    fds = [socket.create_connection(("127.0.0.1", port)).detach() for _ in range(2)]
    sender = _native.TcpSender(engine, fds, 1)
    data = torch.ones(32 << 20, dtype=torch.uint8)
    while sender.alive():
        # Refused until the grant is there.
        if settle(engine, sender.write(region_of([data]), 1, 1, packed([data]), 1, 0)).code() == 0:
            print("written")


def _start(start_python: Callable[..., Script], role: Callable[[int], None]) -> tuple[Script, list[int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script = start_python(role, listener.getsockname()[1])
        listener.settimeout(60)
        return script, [listener.accept()[0].detach() for _ in range(2)]


@pytest.mark.parametrize("reading", [False, True])
def test_a_killed_owner_is_lost(engine: _native.Engine, start_python: Callable[..., Script], reading: bool) -> None:
    script, fds = _start(start_python, owner)
    script.line("granted")
    sender = _native.TcpSender(engine, fds, 1)
    data = torch.ones(_NBYTES, dtype=torch.uint8)
    submit = sender.read if reading else sender.write
    first = settle(engine, submit(region_of([data]), 1, 1, packed([data]), 1, _native.DIGEST))
    assert first.code() == 0
    works = [submit(region_of([data]), 1, 1, packed([data]), 1, _native.DIGEST) for _ in range(20)]
    settle(engine, works[0])
    script.send_signal(signal.SIGKILL)
    settled: dict[int, int] = {works[0].id: 0}
    broken = 0
    for kind, ident, code, _ in events(engine):
        if kind == _BROKEN:
            assert (ident, code) == (sender.id, CODES["PEER_LOST"])
            broken += 1
        else:
            assert ident not in settled
            settled[ident] = code
        if broken and len(settled) == len(works):
            break
    assert broken == 1
    assert set(settled.values()) <= {0, CODES["PEER_LOST"]}
    assert works[-1].code() == CODES["PEER_LOST"]
    assert "stream" in works[-1].detail()
    assert not sender.alive()
    sender.close()


def test_a_stopped_owner_moves_nothing_until_the_abort(engine: _native.Engine, start_python: Callable[..., Script]) -> None:
    script, fds = _start(start_python, owner)
    script.line("granted")
    sender = _native.TcpSender(engine, fds, 1)
    data = torch.ones(_NBYTES, dtype=torch.uint8)
    script.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, script.pid, os.WSTOPPED | os.WNOWAIT)
    work = sender.write(region_of([data]), 1, 1, packed([data]), 1, 0)
    waiting = sender.write(region_of([data]), 1, 1, packed([data]), 1, 0)
    waiting.cancel()
    assert (waiting.settled(), waiting.code()) == (True, CODES["CANCELLED"])
    assert engine.drain() == [(0, waiting.id, CODES["CANCELLED"], 0)]
    # Socket buffers hold a part of it; nothing is acknowledged, nothing settles.
    assert not select.select([engine.fileno()], [], [], 0.2)[0]
    assert (work.settled(), work.progress()) == (False, 0)
    sender.abort()
    assert settle(engine, work).code() == CODES["ABORTED"]
    sender.close()
    script.send_signal(signal.SIGCONT)
    assert script.line("ended") == f"ended {CODES['PEER_LOST']}"


def test_a_killed_initiator_is_lost_and_the_grant_can_be_taken_back(engine: _native.Engine, start_python: Callable[..., Script]) -> None:
    script, fds = _start(start_python, initiator)
    receiver = _native.TcpReceiver(engine, fds, 1)
    target = torch.zeros(_NBYTES, dtype=torch.uint8)
    receiver.grant(1, region_of([target]), 1, True, 1)
    script.line("written")
    script.line("written")
    script.send_signal(signal.SIGKILL)
    assert next(events(engine)) == (_BROKEN, receiver.id, CODES["PEER_LOST"], 0)
    assert not receiver.alive()
    receiver.revoke(1)
    assert int(target.sum()) == _NBYTES
    receiver.close()


def test_garbage_breaks_the_endpoint_only(engine: _native.Engine) -> None:
    ours, theirs = socket.socketpair()
    receiver = _native.TcpReceiver(engine, [ours.detach()], 1)
    with theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + bytes(100))
        assert next(events(engine)) == (_BROKEN, receiver.id, CODES["PROTOCOL"], 0)
        assert "magic" in receiver.status()[1]
        assert theirs.recv(1) == b""
    receiver.close()
