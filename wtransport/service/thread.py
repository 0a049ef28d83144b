"""The background thread and its event loop."""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from wtransport.errors import ClosedError

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_CLEAN_UP_S = 5.0


class ServiceThread:
    """One daemon thread that runs one event loop; started on construction.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        try:
            self.loop = asyncio.SelectorEventLoop(self._selector)
        except OSError:
            self._selector.close()
            raise
        self._pid = os.getpid()
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _leave_to_parent(reference))
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._started.set)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def submit(self, call: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop; cancelling the future cancels it.

        Raises:
            ClosedError: If the thread has stopped, or this is a forked child, which owns nothing.
        """
        if not self.alive:
            call.close()
            raise ClosedError("this transport is closed" if os.getpid() == self._pid else "a forked child does not own this transport")
        return asyncio.run_coroutine_threadsafe(call, self.loop)

    def post(self, call: Callable[..., object], *args: object) -> None:
        """Run a plain function on the loop, soon; nothing happens once the thread has stopped."""
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            return  # the loop is closed: what *call* was about is gone with it

    def leave_to_parent(self) -> None:
        """In a forked child: give up every descriptor the loop watches, so that the parent's end is seen though the child lives on.

        Their numbers stay taken, by nothing: the objects that own them here close them once more, and none may close what another opened.
        """
        if self.loop.is_closed():
            return
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            # The epoll set first: it is shared with the parent, which goes on watching.
            watching = [self._selector.fileno()] if isinstance(self._selector, selectors.EpollSelector) else []
            watched = [key.fd for key in self._selector.get_map().values()]
            for fd in [*watching, *watched]:
                os.dup2(nothing, fd, inheritable=False)
        finally:
            os.close(nothing)

    @property
    def alive(self) -> bool:
        """Whether the thread serves this process."""
        return os.getpid() == self._pid and not self.loop.is_closed() and self._thread.is_alive()

    @property
    def current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """End the loop and join the thread; everything on it must have been closed."""
        if self.alive:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


async def _end_tasks() -> None:
    """Nobody may wait for ever for a task of a loop that has ended: what is being cancelled has a moment to clean up, then all are."""
    mine = asyncio.current_task()
    ending = {task for task in asyncio.all_tasks() if task is not mine and task.cancelling()}
    if ending:
        await asyncio.wait(ending, timeout=_CLEAN_UP_S)
    left = {task for task in asyncio.all_tasks() if task is not mine}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_CLEAN_UP_S)


def _leave_to_parent(reference: weakref.ref[ServiceThread]) -> None:
    thread = reference()
    if thread is not None:
        thread.leave_to_parent()
