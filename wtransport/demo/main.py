"""One run from start to end: processes are started, watched, stopped, summed up."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Never

from wtransport.config import TransportConfig, state_dir
from wtransport.demo import reports
from wtransport.demo.process import DemoProcess, pipe
from wtransport.demo.progress import Progress
from wtransport.demo.reports import Failed
from wtransport.demo.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wtransport.demo.spec import Spec
    from wtransport.demo.view import View

_FRAME_S = 0.1
_START_AND_END_S = 120.0


def meeting_place() -> str:
    """An address that no other run on this host has; nothing of it stays behind."""
    return f"unix://@wtransport-demo-{secrets.token_hex(8)}"


def run(spec: Spec, view: View) -> Result:
    """Run the demo to its end.

    Whatever ends it, Ctrl-C and SIGTERM included, no process of it is left.

    Args:
        spec: The run.
        view: Shown its progress about ten times a second.

    Raises:
        KeyboardInterrupt: On Ctrl-C.
        SystemExit: On SIGTERM.
    """
    names = tuple(spec.generator_name(index) for index in range(spec.generators))
    progress = Progress(names, spec.seconds)
    with _terminated_as_exit(), contextlib.ExitStack() as stack:
        pipes = [pipe() for _ in names]
        processes = []

        def start(name: str, module: str, *arguments: object) -> None:
            process = DemoProcess(name, f"wtransport.demo.{module}", *arguments)
            stack.callback(process.stop)
            processes.append(process)

        start("trainer", "trainer", spec, [ours for ours, _ in pipes])
        for index, (_, theirs) in enumerate(pipes):
            start(names[index], "generator", spec, index, theirs)
        for ours, theirs in pipes:
            ours.close()
            theirs.close()
        _watch(processes, progress, view)
    return Result.of(progress, _flight_records(spec))


def _flight_records(spec: Spec) -> str | None:
    name = spec.url.rpartition("@")[2]
    folders = state_dir(TransportConfig.from_env()).glob(f"*{name}*")
    return next((str(folder) for folder in folders), None)


def _watch(processes: list[DemoProcess], progress: Progress, view: View) -> None:
    """Take reports in until every process has ended, the trainer has failed, or time is up."""
    open_reports = {process.reports: process for process in processes}
    give_up = time.monotonic() + progress.seconds + _START_AND_END_S
    while open_reports:
        for ready in connection.wait(list(open_reports), timeout=_FRAME_S):
            process = open_reports[ready]  # type: ignore[index]
            try:
                progress.add(reports.receive(process.reports))
            except EOFError:
                del open_reports[process.reports]
                _note_end(process, progress)
        view.update(progress)
        if any(failure.process == "trainer" for failure in progress.failures):
            return
        if time.monotonic() > give_up:
            progress.add(Failed("demo", "the run did not come to its end in time"))
            return


def _note_end(process: DemoProcess, progress: Progress) -> None:
    process.join(5.0)
    if process.exit_code != 0 and all(process.name != it.process for it in progress.failures):
        progress.add(Failed(process.name, f"ended with status {process.exit_code}"))


@contextlib.contextmanager
def _terminated_as_exit() -> Iterator[None]:
    def leave(number: int, _frame: object) -> Never:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def open_standard_streams() -> None:
    """Give a closed stdin, stdout or stderr its number back.

    Else the next pipe opened here would take it, and a child would mistake it for the stream.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
