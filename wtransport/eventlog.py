"""EventLog: hands events from the service's thread to any number of followers, on any loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wtransport.session.messages import EventNotice

_KEPT = 1024


class _Follower:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.pending: deque[EventNotice] = deque(maxlen=_KEPT)
        self.wake = asyncio.Event()


class EventLog:
    """Thread-safe; a follower that does not read keeps the newest 1024 events."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: set[_Follower] = set()
        self._closed = False

    def add(self, event: EventNotice) -> None:
        """Hand *event* to everyone who follows."""
        with self._lock:
            followers = list(self._followers)
        for follower in followers:
            follower.pending.append(event)
            self._wake(follower)

    def close(self) -> None:
        """End every follower after what is pending."""
        with self._lock:
            self._closed = True
            followers = list(self._followers)
        for follower in followers:
            self._wake(follower)

    async def follow(self) -> AsyncIterator[EventNotice]:
        """Yield events from the first ``anext`` on, until closed."""
        follower = _Follower()
        with self._lock:
            self._followers.add(follower)
        try:
            while True:
                while follower.pending:
                    yield follower.pending.popleft()
                if self._closed:
                    return
                follower.wake.clear()
                if not follower.pending and not self._closed:
                    await follower.wake.wait()
        finally:
            with self._lock:
                self._followers.discard(follower)

    @staticmethod
    def _wake(follower: _Follower) -> None:
        try:
            follower.loop.call_soon_threadsafe(follower.wake.set)
        except RuntimeError:
            return  # its loop is closed: nobody follows any more
