"""The control channel of a member to a coordinator on the same loop: messages are handed over, not encoded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from wtransport.errors import ClosedError, PeerLostError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable


class ControlChannel(Protocol):
    """What the service uses of a control channel, wherever its other end is."""

    @property
    def closed(self) -> bool:
        """Whether it has ended, or is about to."""

    def attach(self, on_message: Callable[[Any], None] | None, on_closed: Callable[[TransportError | None], None] | None) -> None:
        """Where messages and the end go from now on."""

    def send_nowait(self, message: object) -> None:
        """Queue a message."""

    def abort(self, reason: TransportError) -> None:
        """End it now."""

    async def close(self, timeout_s: float = 2.0) -> None:
        """End it after what is queued."""


class LocalChannel:
    """One end of a pair; messages arrive in order, each from the loop's next turn, as over a socket."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._other: LocalChannel | None = None
        self._on_message: Callable[[Any], None] | None = None
        self._on_closed: Callable[[TransportError | None], None] | None = None
        self._closed = False

    @classmethod
    def pair(cls) -> tuple[LocalChannel, LocalChannel]:
        """Two connected ends."""
        one, two = cls(), cls()
        one._other, two._other = two, one
        return one, two

    @property
    def closed(self) -> bool:
        """Whether either end has closed it."""
        return self._closed

    def attach(
        self, on_message: Callable[[Any], None] | None = None, on_closed: Callable[[TransportError | None], None] | None = None
    ) -> None:
        """Where messages and the end go from now on."""
        self._on_message = on_message or self._on_message
        self._on_closed = on_closed or self._on_closed

    def send_nowait(self, message: object) -> None:
        """Hand *message* to the other end.

        Raises:
            PeerLostError: If the channel has ended.
        """
        if self._closed or self._other is None:
            raise PeerLostError("the local control channel has ended")
        self._loop.call_soon(self._other._deliver, message)

    def abort(self, reason: TransportError) -> None:
        """End both ends; each is told in the loop's next turn, after what was sent before."""
        for end in (self, self._other):
            if end is not None and not end._closed:
                end._closed = True
                self._loop.call_soon(end._tell, reason)

    async def close(self, timeout_s: float = 2.0) -> None:
        """End both ends; *timeout_s* is not needed here."""
        self.abort(ClosedError("the local control channel was closed"))

    def _deliver(self, message: object) -> None:
        if self._on_message is not None:
            try:
                self._on_message(message)
            except TransportError as error:
                self.abort(error)

    def _tell(self, reason: TransportError) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(reason)
