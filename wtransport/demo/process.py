"""One process of a run, as it starts, as it is watched, as it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import multiprocessing
import os
import signal
import threading
import traceback
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from wtransport.demo import reports
from wtransport.demo.reports import Failed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

_TERMINATE_GRACE_S = 2.0
_SPAWN = multiprocessing.get_context("spawn")


class DemoProcess:
    """A process that runs one coroutine and reports to this one.

    Args:
        name: What it is called in the view.
        module: Its coroutine ``main(report, *args)`` is run there; *report* takes its reports.
        args: Handed to it; pipes among them stay open here, and the caller's to close.
    """

    def __init__(self, name: str, module: str, *args: Any) -> None:
        self.name = name
        self.reports, report = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(target=_main, args=(name, module, report, args), name=name, daemon=True)
        with _interrupts_ignored():
            self._process.start()
        report.close()

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._process.join(timeout_s)

    def stop(self) -> None:
        """Make sure that it has ended; safe to call again."""
        self._process.terminate()
        self._process.join(_TERMINATE_GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.reports.close()


def pipe() -> tuple[Connection, Connection]:
    """Two ends of a duplex pipe between two processes of a run."""
    ends: tuple[Connection, Connection] = _SPAWN.Pipe(duplex=True)
    return ends


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    # A child inherits it: Ctrl-C reaches the whole foreground group, but only the parent, which
    # then stops its children, shall act on it.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _main(
    name: str,
    module: str,
    report: Connection,
    args: tuple[Any, ...],
) -> None:
    _end_with_parent()
    import torch

    # One core each: the processes of a run share few.
    torch.set_num_threads(1)
    try:
        asyncio.run(importlib.import_module(module).main(report, *args))
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):
            reports.send(report, Failed(name, text))
        os._exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
