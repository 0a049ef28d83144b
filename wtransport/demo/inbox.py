"""Messages from other processes of a run, read from their pipes as they come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection


class Inbox:
    """Messages in the order in which they came; to be made and used on one event loop.

    Args:
        pipes: Where they come from; they stay the caller's.
    """

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = set(pipes)
        self._waiting: asyncio.Queue[tuple[Connection, bytes] | None] = asyncio.Queue()
        for pipe in pipes:
            self._loop.add_reader(pipe.fileno(), self._read, pipe)

    def _read(self, pipe: Connection) -> None:
        try:
            self._waiting.put_nowait((pipe, pipe.recv_bytes()))
        except (EOFError, OSError):
            self._drop(pipe)
            if not self._open:
                self._waiting.put_nowait(None)

    def _drop(self, pipe: Connection) -> None:
        self._loop.remove_reader(pipe.fileno())
        self._open.discard(pipe)

    async def next(self) -> tuple[Connection, bytes]:
        """Wait for the next message; return it after the pipe it came through.

        Raises:
            EOFError: If every process at the other ends has ended.
        """
        message = await self._waiting.get()
        if message is None:
            raise EOFError("every process at the other ends has ended")
        return message

    def close(self) -> None:
        """Stop reading; what still comes is left in the pipes."""
        for pipe in tuple(self._open):
            self._drop(pipe)
