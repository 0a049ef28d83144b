"""The heart against real processes: stopped, killed, with a Python that is held up."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from tests.native.support import events
from wtransport import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.helpers.scripts import Script

_INTERVAL_S = 0.05
# Long enough that a busy machine's pauses are not taken for silence.
_SILENT_AFTER_S = 1.5
_PEER = 41


def beating(port: int) -> None:
    """Beat to whoever listens on *port*; hold the GIL from each byte it sends until the next one."""
    import ctypes
    import socket
    import threading
    import time

    from wtransport import _native

    engine = _native.Engine(1)
    heart = _native.Heart(engine, 0.05, 60.0)
    orders = socket.create_connection(("127.0.0.1", port))
    heart.add(1, socket.create_connection(("127.0.0.1", port)).detach())

    def progress() -> None:
        while True:
            heart.touch()
            time.sleep(0.02)

    threading.Thread(target=progress, daemon=True).start()
    byte = ctypes.create_string_buffer(1)
    while orders.recv(1):
        # Unlike CDLL, PyDLL keeps the GIL over the call.
        ctypes.PyDLL(None).recv(orders.fileno(), byte, 1, 0)


@pytest.fixture
def heart(engine: _native.Engine, request: pytest.FixtureRequest) -> Iterator[_native.Heart]:
    """A heart that reports to the engine."""
    heart = _native.Heart(engine, _INTERVAL_S, _SILENT_AFTER_S)
    yield heart
    heart.close()
    # Its timer lives as long as the object, which pytest would keep beyond the look for leaks.
    del request.node.funcargs["heart"]


def _start(start_python: Callable[..., Script], heart: _native.Heart) -> tuple[Script, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script = start_python(beating, listener.getsockname()[1])
        listener.settimeout(60)
        orders = listener.accept()[0]
        heart.add(_PEER, listener.accept()[0].detach())
    return script, orders


def test_a_stopped_peer_is_silent_and_resumes(engine: _native.Engine, heart: _native.Heart, start_python: Callable[..., Script]) -> None:
    script, orders = _start(start_python, heart)
    told = events(engine)
    with orders:
        script.send_signal(signal.SIGSTOP)
        kind, peer, code, age_ns = next(told)
        assert (kind, peer, code) == (1, _PEER, _native.LIVENESS_SILENT)
        assert age_ns > _SILENT_AFTER_S * 1e9
        assert heart.stats(_PEER)[0] > _SILENT_AFTER_S * 1e9
        script.send_signal(signal.SIGCONT)
        assert next(told)[:3] == (1, _PEER, _native.LIVENESS_RESUMED)


def test_a_peer_whose_gil_is_held_is_stalled_not_silent(
    engine: _native.Engine, heart: _native.Heart, start_python: Callable[..., Script]
) -> None:
    _, orders = _start(start_python, heart)
    told = events(engine)
    with orders:
        orders.sendall(b"x")
        kind, peer, code, age_ns = next(told)
        assert (kind, peer, code) == (1, _PEER, _native.LIVENESS_STALLED)
        assert age_ns > _SILENT_AFTER_S * 1e9
        last_rx_age_ns, python_age_ns = heart.stats(_PEER)
        assert last_rx_age_ns < _SILENT_AFTER_S * 1e9 < python_age_ns
        orders.sendall(b"x")
        assert next(told)[:3] == (1, _PEER, _native.LIVENESS_UNSTALLED)


def test_a_killed_peer_ends_its_socket_and_its_pidfd(
    engine: _native.Engine, heart: _native.Heart, start_python: Callable[..., Script]
) -> None:
    script, orders = _start(start_python, heart)
    told = events(engine)
    with orders:
        heart.watch_pid(_PEER, os.pidfd_open(script.pid))
        script.send_signal(signal.SIGKILL)
        codes = {next(told)[:3] for _ in range(2)}
        assert codes == {(1, _PEER, _native.LIVENESS_EOF), (1, _PEER, _native.LIVENESS_EXITED)}
        with pytest.raises(KeyError, match=f"peer {_PEER}"):
            heart.stats(_PEER)


def test_a_removed_peer_is_no_news(engine: _native.Engine, heart: _native.Heart, start_python: Callable[..., Script]) -> None:
    script, orders = _start(start_python, heart)
    with orders:
        heart.watch_pid(_PEER, os.pidfd_open(script.pid))
        heart.remove(_PEER)
        script.send_signal(signal.SIGKILL)
        assert orders.recv(1) == b""
    ours, theirs = socket.socketpair()
    heart.add(_PEER + 1, ours.detach())
    theirs.close()
    assert next(events(engine))[:3] == (1, _PEER + 1, _native.LIVENESS_EOF)
    assert engine.drain() == []


@pytest.mark.parametrize(("interval_s", "silent_after_s"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (float("nan"), 1.0), (1.0, float("inf"))])
def test_bad_intervals_raise(engine: _native.Engine, interval_s: float, silent_after_s: float) -> None:
    with pytest.raises(ValueError, match="silent_after"):
        _native.Heart(engine, interval_s, silent_after_s)


def test_a_closed_heart_takes_no_peers(engine: _native.Engine, heart: _native.Heart) -> None:
    heart.close()
    heart.close()
    heart.touch()
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(ValueError, match="closed"):
        heart.add(_PEER, ours.detach())
    heart.remove(_PEER)
