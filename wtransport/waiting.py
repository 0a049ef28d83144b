"""shielded: awaits what happens on the service's thread, without stopping it when the await is cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import concurrent.futures

T = TypeVar("T")


def shielded(future: concurrent.futures.Future[T]) -> asyncio.Future[T]:
    """An awaitable of *future* on the running loop: cancelling it stops the wait only, and an error that comes later is nobody's."""
    inner = asyncio.wrap_future(future)
    # shield() forgets the inner one when the outer is cancelled; asyncio would then report an error that comes later as never retrieved.
    inner.add_done_callback(lambda done: done.cancelled() or done.exception())
    return asyncio.shield(inner)
