"""take: waits on a user's loop for a lease that is made on the service's, and loses none."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from wtransport.update import Update
from wtransport.waiting import shielded

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Awaitable, Callable

    from wtransport.service.sink.reading import Lease
    from wtransport.service.thread import ServiceThread


async def take(thread: ServiceThread, call: Callable[[], Awaitable[Lease]]) -> Update:
    """Wait for *call*, which runs on *thread*; a lease made as the wait is cancelled is given back, since nobody would ever release it."""
    given_up = threading.Event()
    waiting: list[asyncio.Task[Any] | None] = []

    async def wait() -> Lease:
        waiting.append(asyncio.current_task())
        if given_up.is_set():
            raise asyncio.CancelledError
        return await call()

    future = thread.submit(wait())
    try:
        lease = await shielded(future)
    except asyncio.CancelledError:
        given_up.set()
        future.add_done_callback(_give_back)
        thread.post(lambda: [task.cancel() for task in waiting if task is not None])
        raise
    return Update(lease.identity, lease.seq, lease.tensors, lease.release)


def _give_back(future: concurrent.futures.Future[Lease]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().release()
