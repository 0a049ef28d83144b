"""One member's process: the side that commands it. No wait is without a deadline."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from wtransport.testing.cluster.zygote import Zygote

WAIT_S = 25.0
_POLL_S = 0.01


class PeerError(Exception):
    """What a peer's command raised.

    Args:
        answer: The peer's answer.
    """

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{answer['error']}: {answer['message']}")
        self.kind: str = answer["error"]
        self.fields: dict[str, Any] = answer["fields"]


class Process:
    """One process that does what it is told.

    Args:
        zygote: Who forks it.
        netns: Descriptor of the network namespace it lives in; None for ours.
    """

    def __init__(self, zygote: Zygote, netns: int | None = None) -> None:
        self.pid, self._sock = zygote.fork(netns)
        self._pidfd = os.pidfd_open(self.pid)
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._pending = b""

    def start(self, do: str, **arguments: object) -> int:
        """Send a command; returns its number."""
        number = next(self._numbers)
        self._sock.sendall(json.dumps({"id": number, "do": do, **arguments}).encode() + b"\n")
        return number

    def result(self, number: int, timeout_s: float = WAIT_S) -> Any:
        """Wait for a command's answer.

        Raises:
            PeerError: If it raised.
            TimeoutError: If no answer came in time.
            EOFError: If the process ended.
        """
        give_up = time.monotonic() + timeout_s
        while number not in self._answers:
            if not self._read(give_up - time.monotonic()):
                raise TimeoutError(f"no answer within {timeout_s:g} s")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise PeerError(answer)
        return answer["value"]

    def call(self, do: str, *, wait_s: float = WAIT_S, **arguments: object) -> Any:
        """Send a command and wait for its answer."""
        return self.result(self.start(do, **arguments), wait_s)

    def done(self, number: int) -> bool:
        """Whether the answer is here."""
        while number not in self._answers and self._read(0.0):
            pass
        return number in self._answers

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Kill it and wait for its end; safe to call again."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.wait()

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Wait for its end.

        Raises:
            TimeoutError: If it still runs.
        """
        if not select.select([self._pidfd], [], [], timeout_s)[0]:
            raise TimeoutError(f"pid {self.pid} still runs")

    def end(self) -> None:
        """Kill it and close what belongs to it."""
        if self._sock.fileno() < 0:
            return
        self.kill()
        os.close(self._pidfd)
        self._sock.close()

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._sock], [], [], max(0.0, timeout_s))[0]:
            return False
        data = _receive(self._sock)
        if not data:
            raise EOFError(f"pid {self.pid} ended")
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self._answers[answer["id"]] = answer
        return True


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1 << 16)
    except ConnectionResetError:
        return b""


def until(there: Callable[[], Any], timeout_s: float = WAIT_S, what: str = "") -> Any:
    """Poll until *there* returns something true, and return it.

    Raises:
        AssertionError: If it did not in time.
    """
    give_up = time.monotonic() + timeout_s
    while not (found := there()):
        assert time.monotonic() < give_up, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)
    return found
