"""TokenTable: single-use keys that let one dialled socket in."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from wtransport.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_NBYTES = 32

T = TypeVar("T")


@dataclass(frozen=True)
class _Entry(Generic[T]):
    token: bytes
    value: T
    expires_s: float


class TokenTable(Generic[T]):
    """Maps tokens handed out to what they stand for; each opens once, and only for a time.

    The place of a token in the table is a keyed hash of it: how long a look-up takes says nothing
    about the tokens in it to somebody who does not know the key.

    Args:
        max_tokens: Most tokens out at a time.
        clock: Seconds, monotonic.
    """

    def __init__(self, max_tokens: int = 65536, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = secrets.token_bytes(32)
        self._entries: dict[bytes, _Entry[T]] = {}
        self._max_tokens = max_tokens
        self._clock = clock

    def __len__(self) -> int:
        return len(self._entries)

    def issue(self, value: T, ttl_s: float) -> bytes:
        """Return a new token that opens once for *value* within *ttl_s* seconds.

        Raises:
            BusyError: If *max_tokens* unexpired tokens are out.
        """
        now = self._clock()
        if len(self._entries) >= self._max_tokens:
            self._drop(lambda entry: entry.expires_s <= now)
        if len(self._entries) >= self._max_tokens:
            raise BusyError(f"{self._max_tokens} connection tokens are out and unused")
        token = secrets.token_bytes(TOKEN_NBYTES)
        self._entries[self._place(token)] = _Entry(token, value, now + ttl_s)
        return token

    def redeem(self, token: bytes) -> T | None:
        """Use *token* up; return its value, or None where it is unknown, used or too late."""
        entry = self._entries.pop(self._place(token), None)
        if entry is None or not hmac.compare_digest(entry.token, token):
            return None
        return entry.value if self._clock() < entry.expires_s else None

    def revoke(self, value: T) -> None:
        """Take back every token that stands for *value*."""
        self._drop(lambda entry: entry.value == value)

    def _drop(self, unwanted: Callable[[_Entry[T]], bool]) -> None:
        self._entries = {place: entry for place, entry in self._entries.items() if not unwanted(entry)}

    def _place(self, token: bytes) -> bytes:
        return hashlib.blake2b(token, key=self._key, digest_size=32).digest()
