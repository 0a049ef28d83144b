"""The peers that a listener expects: single-use tokens and the futures that wait for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wtransport.backends.base import TOKEN_NBYTES, OwnerEndpoint
from wtransport.errors import AuthError, ClosedError, ConfigError, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, eq=False)
class Admission:
    """One expected peer; *future* resolves to the endpoint made for it."""

    epoch: int
    peer: str
    future: asyncio.Future[OwnerEndpoint]


class Admissions:
    """Tokens that may be presented once each."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._expected: dict[bytes, Admission] = {}
        self._closed = False

    def expect(self, token: bytes, epoch: int, peer: str) -> asyncio.Future[OwnerEndpoint]:
        """Accept *token* once, for *epoch*; cancelling the future withdraws it.

        Raises:
            ConfigError: If the token is no fresh one of 32 bytes.
            ClosedError: After :meth:`close`.
        """
        if self._closed:
            raise ClosedError("this listener is closed", peer=peer)
        if len(token) != TOKEN_NBYTES or token in self._expected:
            raise ConfigError(f"a token is {TOKEN_NBYTES} fresh random bytes", peer=peer)
        admission = Admission(epoch, peer, self._loop.create_future())
        self._expected[token] = admission
        admission.future.add_done_callback(self._withdraw(token, admission))
        return admission.future

    def claim(self, token: bytes, epoch: int) -> Admission:
        """Spend *token*.

        Raises:
            AuthError: If it is unknown, withdrawn, or was presented before.
            StaleEpochError: If another epoch was expected; whoever expects the peer learns it, too.
        """
        admission = self._expected.pop(token, None)
        if admission is None:
            raise AuthError("the token is unknown, or was presented before")
        if admission.epoch != epoch:
            error = StaleEpochError(
                f"the peer presented epoch {epoch}, expected was {admission.epoch}",
                peer=admission.peer,
                epoch=admission.epoch,
            )
            admission.future.set_exception(error)
            raise error
        return admission

    def close(self) -> None:
        """Fail every admission that still waits."""
        self._closed = True
        for admission in list(self._expected.values()):
            if not admission.future.done():
                admission.future.set_exception(ClosedError("the listener was closed", peer=admission.peer))
        self._expected.clear()

    def _withdraw(self, token: bytes, admission: Admission) -> Callable[[asyncio.Future[OwnerEndpoint]], None]:
        def withdraw(_future: asyncio.Future[OwnerEndpoint]) -> None:
            if self._expected.get(token) is admission:
                del self._expected[token]

        return withdraw
