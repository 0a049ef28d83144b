"""What is done to a member's own process: kept busy, forked, counted."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable

Answer = Any


def block(how: str, seconds: float) -> None:
    """Keep this thread busy."""
    if how == "sleep":
        time.sleep(seconds)
    elif how == "gil":
        # PyDLL does not release the GIL around the call.
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    elif how == "matmul":
        import torch

        matrix, until = torch.ones(1024, 1024), time.monotonic() + seconds
        while time.monotonic() < until:
            torch.mm(matrix, matrix)
    else:
        raise ValueError(how)


class Tricks:
    """Commands that need no transport, or do to it what no user should.

    Args:
        main: Calls for the process's main thread.
    """

    def __init__(self, main: queue.SimpleQueue[Callable[[], object] | None]) -> None:
        self._main = main
        self._transports: dict[str, Any] = {}

    async def block(self, where: str, how: str, seconds: float) -> Answer:
        """Keep the main thread or the event loop busy."""
        if where == "main":
            self._main.put(lambda: block(how, seconds))
        else:
            block(how, seconds)

    async def fork(self) -> Answer:
        """Fork a child that uses the transport as far as it may, collects garbage and exits; returns what it printed."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _child(writer, dict(self._transports))
        os.close(writer)

        def result() -> Answer:
            with open(reader, "rb") as pipe:
                text = pipe.read().decode()
            return {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "text": text}

        return await asyncio.to_thread(result)

    async def linger(self, raw: bool = False) -> Answer:
        """Fork a child that sleeps, and outlives this process; returns its process id. *raw*: as a C library forks, unknown to Python."""
        pid = ctypes.PyDLL(None).fork() if raw else os.fork()
        if pid == 0:
            time.sleep(60)  # noqa: ASYNC251 - no loop runs in the child
            os._exit(0)
        return pid

    async def load(self, num_workers: int) -> Answer:
        """Read a data set with worker processes, forked from here."""
        import torch

        def read() -> list[int]:
            loader = torch.utils.data.DataLoader(list(range(64)), batch_size=8, num_workers=num_workers)  # type: ignore[arg-type, var-annotated]
            return [int(item) for batch in loader for item in batch]

        return await asyncio.to_thread(read)

    async def resources(self) -> Answer:
        """What this process holds of the system: descriptors, threads, and mappings of memfds."""
        gc.collect()
        with open("/proc/self/maps") as maps:  # noqa: ASYNC230 - made by the kernel at once
            mapped = sum("/memfd:" in line for line in maps)
        return {"fds": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")), "memfds": mapped}


def _child(writer: int, transports: dict[str, Any]) -> None:
    code = 1
    try:
        lines = []
        for transport in transports.values():
            try:
                transport.blocking.members()
                lines.append("served")
            except Exception as error:
                lines.append(type(error).__name__)
            asyncio.run(transport.close())
        transports.clear()
        gc.collect()
        os.write(writer, " ".join(lines).encode())
        code = 0
    finally:
        os._exit(code)
