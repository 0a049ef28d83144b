"""The same transport for code without an event loop: every call waits in the caller's thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar

from wtransport.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from types import TracebackType

    from wtransport.handle import PutHandle
    from wtransport.service.describe import LinkInfo, MemberInfo
    from wtransport.session.outcomes import Receipt
    from wtransport.transport import Transport
    from wtransport.update import Update

T = TypeVar("T")


class BlockingTransport:
    """A thin adapter; not to be used from within a running event loop.

    Args:
        transport: The transport it stands for.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> Self:
        self._wait(self._transport.open())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._wait(self._transport.close())

    def open(self) -> None:
        """See ``Transport.open``."""
        self._wait(self._transport.open())

    def close(self) -> None:
        """See ``Transport.close``."""
        self._wait(self._transport.close())

    def put(self, weights: Any, version: int, *, snapshot: bool = False, rewind: bool = False) -> Receipt:
        """See ``Transport.put``."""
        return self._wait(self._transport.put(weights, version, snapshot=snapshot, rewind=rewind))

    def put_nowait(self, weights: Any, version: int, *, snapshot: bool = False, rewind: bool = False) -> PutHandle:
        """See ``Transport.put_nowait``; wait with ``handle.result()``."""
        return self._transport.put_nowait(weights, version, snapshot=snapshot, rewind=rewind)

    def bind(self, weights: Any) -> int:
        """See ``Transport.bind``."""
        return self._wait(self._transport.bind(weights))

    def get(self, version: int | None = None, *, timeout_s: float | None = None) -> Update:
        """See ``Transport.get``."""
        return self._wait(self._transport.get(version, timeout_s=timeout_s))

    def ready(self, *, timeout_s: float | None = None) -> int:
        """See ``Transport.ready``."""
        return self._wait(self._transport.ready(timeout_s=timeout_s))

    def updates(self) -> Iterator[Update]:
        """See ``Transport.updates``."""
        after = 0
        while (update := self._wait(self._transport._next_update(after))) is not None:
            after = update.seq
            yield update

    def members(self) -> tuple[MemberInfo, ...]:
        """See ``Transport.members``."""
        return self._wait(self._transport.members())

    def describe(self) -> tuple[LinkInfo, ...]:
        """See ``Transport.describe``."""
        return self._wait(self._transport.describe())

    def exclude(self, name: str, reason: str) -> None:
        """See ``Transport.exclude``."""
        self._wait(self._transport.exclude(name, reason))

    def admit(self, name: str) -> None:
        """See ``Transport.admit``."""
        self._wait(self._transport.admit(name))

    def replace(self, old: str, new: str) -> None:
        """See ``Transport.replace``."""
        self._wait(self._transport.replace(old, new))

    @staticmethod
    def _wait(call: Coroutine[Any, Any, T]) -> T:
        if asyncio._get_running_loop() is not None:
            call.close()
            raise UnsupportedError("transport.blocking would block the event loop that runs here", hint="await the transport's own methods")
        return asyncio.run(call)
