"""Medians, and how long an event loop keeps its tasks waiting."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


def median(values: list[float]) -> float:
    """The median."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Lag:
    """Measures, while entered, how late a task that sleeps one millisecond wakes; may be entered again and again."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._tick())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            self._lags.append(time.perf_counter() - start - 0.001)

    @property
    def p999_ms(self) -> float:
        """99.9th percentile, milliseconds."""
        ordered = sorted(self._lags)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.999))] * 1e3 if ordered else 0.0


def settle_garbage() -> None:
    """Collect, and leave what is there to nobody: one full collection over all that torch has imported stops a loop for 100 ms."""
    gc.collect()
    gc.freeze()


def peak_rss_nbytes() -> int:
    """Most memory this process image ever had resident (``getrusage`` would count what its parent had before the exec)."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
