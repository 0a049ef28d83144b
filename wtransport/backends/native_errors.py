"""The one way from a native error code to a typed error.

And from a typed error to one that may be raised again.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from wtransport import _native
from wtransport.errors import (
    CancelledWorkError,
    ConfigError,
    DeadlineError,
    InternalError,
    PeerLostError,
    ProtocolError,
    RegistrationError,
    StaleEpochError,
    TransportError,
    UnsupportedError,
    exhausted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OK = "OK"
# Name of every native code -> the class raised for it, and what to do about it.
ERRORS: Mapping[str, tuple[type[TransportError], str | None]] = MappingProxyType(
    {
        "CANCELLED": (CancelledWorkError, None),
        "ABORTED": (PeerLostError, "connect again at a higher epoch"),
        "BOUNDS": (ConfigError, "the span table must lie inside both regions; nothing was moved"),
        "STALE": (StaleEpochError, "ask the owner for a new grant"),
        "PEER_LOST": (PeerLostError, "connect again at a higher epoch"),
        "DEADLINE": (DeadlineError, None),
        "IO": (PeerLostError, "connect again at a higher epoch"),
        "PROTOCOL": (ProtocolError, "both ends must run the same version of wtransport"),
        "NO_MEMORY": (RegistrationError, "free memory or move fewer versions at a time"),
        "UNSUPPORTED": (UnsupportedError, None),
        # What this side closed is refused before native code sees it, so this is the peer's doing.
        "CLOSED": (PeerLostError, "connect again at a higher epoch"),
        "INVALID": (ConfigError, None),
        "INTERNAL": (InternalError, "please report this with a dump of the flight recorder"),
    }
)
CODES: Mapping[str, int] = MappingProxyType(dict(_native.error_codes()))
_NAMES: Mapping[int, str] = MappingProxyType({value: name for name, value in CODES.items()})


@dataclass(frozen=True)
class Where:
    """What a backend knows about a transfer: the fields that its errors carry."""

    backend: str
    peer: str
    epoch: int
    phase: str

    def complete(
        self,
        error: TransportError,
        nbytes_done: int | None = None,
        nbytes_expected: int | None = None,
    ) -> TransportError:
        """Fill the fields that *error* leaves open, and return it."""
        return error.with_fields(
            backend=self.backend,
            peer=self.peer,
            epoch=self.epoch,
            phase=self.phase,
            nbytes_done=nbytes_done,
            nbytes_expected=nbytes_expected,
        )


def code_name(code: int) -> str:
    """Name of a native code; one that is not on the list is a bug, and reported as ``INTERNAL``."""
    return _NAMES.get(code, "INTERNAL")


def native_error(
    code: int,
    detail: str,
    where: Where | None = None,
    *,
    nbytes_done: int | None = None,
    nbytes_expected: int | None = None,
) -> TransportError:
    """Make the typed error for a native code other than OK.

    Args:
        code: The native code.
        detail: The native side's sentence about it.
        where: Fields to fill.
        nbytes_done: Bytes moved.
        nbytes_expected: Bytes that were to be moved.
    """
    name = code_name(code)
    cls, hint = ERRORS[name]
    error = cls(detail or f"native code {code} ({name.lower().replace('_', ' ')})", hint=hint)
    return error if where is None else where.complete(error, nbytes_done, nbytes_expected)


@contextlib.contextmanager
def native_call(doing: str) -> Iterator[None]:
    """Turn what a native call raises into typed errors.

    Args:
        doing: What the call does, for the message.
    """
    try:
        yield
    except MemoryError as error:
        raise RegistrationError(f"{doing}: {error}", hint=ERRORS["NO_MEMORY"][1]) from error
    except OSError as error:
        raise exhausted(error, doing) or RegistrationError(f"{doing}: {error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{doing}: {error}") from error


def fresh(error: TransportError) -> TransportError:
    """Copy an error so that each awaiter raises its own, with *error* as the cause."""
    clone = copy.copy(error)
    clone.__cause__ = error
    return clone
