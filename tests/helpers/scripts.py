"""Real Python processes for tests: their output is collected, no wait is without a deadline."""

from __future__ import annotations

import inspect
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Outcome:
    """How a script ended: its exit status (negative: the signal) and everything it printed."""

    returncode: int
    stdout: str
    stderr: str


class Script:
    """One running Python process in a process group of its own.

    Args:
        source: Program text, or a self-contained function (its imports inside it; a coroutine
            function is run by asyncio).
        args: Arguments of the function; literals only, since they travel as program text.
        env: Variables added to the environment of this process.
    """

    def __init__(
        self,
        source: str | Callable[..., Any],
        args: tuple[object, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()
        self._pending = b""
        self._output: list[bytes] = []
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", program(source, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=os.environ | dict(env or {}),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id, also the id of its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process itself."""
        self._process.send_signal(number)

    def line(self, prefix: str = "", timeout_s: float = 60.0) -> str:
        """Return the next line that starts with *prefix*, skipping others.

        Raises:
            TimeoutError: If none came in time.
            EOFError: If the process closed its output first.
        """
        give_up = time.monotonic() + timeout_s
        while True:
            while b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                if line.startswith(prefix.encode()):
                    return line.decode()
            if not self._read(give_up):
                raise EOFError(f"ended before a line {prefix!r}{self.report()}")

    def wait(self, timeout_s: float = 60.0) -> Outcome:
        """Read all output, wait for the end.

        Raises:
            TimeoutError: If the process still ran; it is killed then.
        """
        give_up = time.monotonic() + timeout_s
        while self._read(give_up):
            pass
        try:
            self._process.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._give_up()
        return Outcome(self._process.returncode, self._text(), self._errors())

    def kill(self) -> None:
        """Kill the process and all it started, reap it, close the pipes; safe to call again."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._stderr.close()

    def report(self) -> str:
        """Everything printed so far, for an error message."""
        return f"\n--- stdout of pid {self.pid}:\n{self._text()}\n--- stderr:\n{self._errors()}"

    def _read(self, give_up: float) -> bool:
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, give_up - time.monotonic())):
                self._give_up()
        data = os.read(stdout.fileno(), 1 << 16)
        self._pending += data
        self._output.append(data)
        return bool(data)

    def _give_up(self) -> None:
        report = self.report()
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        raise TimeoutError(f"the process did not answer in time{report}")

    def _text(self) -> str:
        return b"".join(self._output).decode(errors="replace")

    def _errors(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")


def program(source: str | Callable[..., Any], args: tuple[object, ...] = ()) -> str:
    """Program text that runs *source* with *args*."""
    if isinstance(source, str):
        return textwrap.dedent(source)
    call = f"{source.__name__}({', '.join(map(repr, args))})"
    if inspect.iscoroutinefunction(source):
        call = f"__import__('asyncio').run({call})"
    return f"{textwrap.dedent(inspect.getsource(source))}\n{call}\n"
