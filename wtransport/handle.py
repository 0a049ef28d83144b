"""PutHandle: a put that goes on while its caller does something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from wtransport.waiting import shielded

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    from collections.abc import Callable, Generator

    from wtransport.session.outcomes import Receipt

T = TypeVar("T")


class PutHandle:
    """What ``put_nowait`` returns.

    ``await handle`` gives the receipt, or raises what the put raised; cancelling that await stops the wait only. ``await
    handle.source_free`` returns once the caller may write to the weights again.

    Attributes:
        version: The version being put.
    """

    def __init__(
        self,
        version: int,
        done: concurrent.futures.Future[Receipt],
        source_free: concurrent.futures.Future[None],
        withdraw: Callable[[], None],
    ) -> None:
        self.version = version
        self._done = done
        self._source_free = source_free
        self._withdraw = withdraw

    def cancel(self) -> None:
        """Withdraw the version: what has not started is dropped, what is in flight settles, the sinks are told."""
        if not self._done.done():
            self._withdraw()

    def done(self) -> bool:
        """Whether the put has ended, well or not."""
        return self._done.done()

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait in this thread (which must not be the event loop's) and return the receipt."""
        return self._done.result(timeout_s)

    @property
    def source_free(self) -> asyncio.Future[None]:
        """Resolves when the weights may be written to again; cancelling it stops the wait only."""
        return shielded(self._source_free)

    def __await__(self) -> Generator[Any, None, Receipt]:
        return shielded(self._done).__await__()


def chain(source: concurrent.futures.Future[T], target: concurrent.futures.Future[T]) -> None:
    """Settle *target* as *source* settles."""

    def copy(future: concurrent.futures.Future[T]) -> None:
        error = future.exception()
        if error is not None:
            target.set_exception(error)
        else:
            target.set_result(future.result())

    source.add_done_callback(copy)
