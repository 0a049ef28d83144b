"""Requests: what is asked of the coordinator and answered under the same number."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from wtransport.errors import DeadlineError, PeerLostError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.session import messages as msg


class Requests:
    """Matches answers to whoever waits for them.

    Args:
        send: Queues a message; False if there is no coordinator.
        timeout_s: Longest wait for an answer.
    """

    def __init__(self, send: Callable[[object], bool], timeout_s: float) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[msg.SteerReply | msg.MembersReply]] = {}

    async def ask(self, what: str, request: Callable[[int], object]) -> msg.SteerReply | msg.MembersReply:
        """Send what *request* makes of a fresh number, and wait for the answer.

        Raises:
            PeerLostError: If there is no coordinator, or it was lost before it answered.
            DeadlineError: If it did not answer in time.
        """
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if not self._send(request(number)):
                raise PeerLostError("there is no coordinator at the moment", phase=what, hint="ask again once it is back")
            return await asyncio.wait_for(future, self._timeout_s)
        except PeerLostError as error:
            if error.phase == what:
                raise
            raise PeerLostError(f"the coordinator was lost before it answered: {error.message}", peer=error.peer, phase=what) from error
        except TimeoutError as error:
            raise DeadlineError(f"the coordinator did not answer within {self._timeout_s:g} s", phase=what) from error
        finally:
            self._waiting.pop(number, None)

    def answered(self, message: msg.SteerReply | msg.MembersReply) -> None:
        """An answer came; one that nobody waits for any more is dropped."""
        future = self._waiting.get(message.request)
        if future is not None and not future.done():
            future.set_result(message)

    def fail(self, error: TransportError) -> None:
        """No answer will come to what was asked before."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error.copied())
