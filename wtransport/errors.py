"""Every error the library raises: one base with fields, families by what the caller can do about them.

``str(error)`` prints the message, then the fields that are set, then the hint. Fields are keyword-only and stay readable as
attributes, so that a program can act on ``error.peer`` or ``error.version`` without parsing text.
"""

from __future__ import annotations

import errno
import resource
from typing import ClassVar, Final, Self

_MOST_CHARS: Final = 4000


class TransportError(Exception):
    """Base of every error of this library.

    Args:
        message: What went wrong, in one sentence.
        peer: The other member (its name), when one is involved.
        backend: The backend that moved, or was to move, the bytes.
        epoch: The endpoint's epoch.
        version: The weights' version.
        tensor: The first tensor concerned.
        phase: The step of the operation (``admit``, ``begin``, ``write``, ``verify``, ``install``, ``connect``...).
        nbytes_done: Bytes done when it failed.
        nbytes_expected: Bytes the operation was to move.
        hint: What to do about it.
    """

    code: ClassVar[str] = "transport"
    _FIELDS: ClassVar[tuple[str, ...]] = (
        "peer",
        "backend",
        "epoch",
        "version",
        "tensor",
        "phase",
        "nbytes_done",
        "nbytes_expected",
    )

    def __init__(
        self,
        message: str,
        *,
        peer: str | None = None,
        backend: str | None = None,
        epoch: int | None = None,
        version: int | None = None,
        tensor: str | None = None,
        phase: str | None = None,
        nbytes_done: int | None = None,
        nbytes_expected: int | None = None,
        hint: str | None = None,
    ) -> None:
        if len(message) > _MOST_CHARS:
            # Somebody's whole argument stands in it: its beginning and the sentence's end say what is wrong.
            message = f"{message[:1000]} ... ({len(message) - 2000} characters) ... {message[-1000:]}"
        super().__init__(message)
        self.message = message
        self.peer = peer
        self.backend = backend
        self.epoch = epoch
        self.version = version
        self.tensor = tensor
        self.phase = phase
        self.nbytes_done = nbytes_done
        self.nbytes_expected = nbytes_expected
        self.hint = hint

    def __str__(self) -> str:
        fields = [f"{name}={getattr(self, name)}" for name in self._FIELDS if getattr(self, name) is not None]
        text = self.message + (f" [{', '.join(fields)}]" if fields else "")
        return text + (f" Hint: {self.hint}" if self.hint else "")

    def with_fields(self, **fields: object) -> TransportError:
        """Fill fields that are still unset and return self: each layer adds what it knows, none overwrites a cause."""
        for name, value in fields.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def copied(self) -> Self:
        """Another error like this one: what ends several operations at once says to each what is its own."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        other.__cause__ = self.__cause__
        return other


# Caller: the call itself was wrong; nothing moved.


class ConfigError(TransportError, ValueError):
    """A setting or an argument is wrong; nothing was started."""

    code = "config"


class UnsupportedError(TransportError):
    """This machine, build or tensor kind cannot do what was asked; the message says what is missing."""

    code = "unsupported"


class ClosedError(TransportError):
    """You closed this object; the operation cannot be done on it any more."""

    code = "closed"


class BusyError(TransportError):
    """Two users of one thing: another call holds what this one needs."""

    code = "busy"


class WeightsError(TransportError, ValueError):
    """The weights given cannot be moved as they are (sparse, quantised, meta, a duplicate name...); nothing moved."""

    code = "weights"


class ManifestMismatchError(WeightsError):
    """What a generator wants and what the trainers hold differ in names, shapes or dtypes; the first few of each are listed."""

    code = "manifest_mismatch"


class VersionError(TransportError, ValueError):
    """The version does not rise, or the same version was put with different bytes."""

    code = "version"


# Peer or outside: the other side, or the way to it.


class ConnectError(TransportError, ConnectionError):
    """No connection within the deadline; the message lists what was tried."""

    code = "connect"


class AuthError(ConnectError):
    """The other side could not prove that it knows the job's secret, or refused our proof."""

    code = "auth"


class PeerLostError(TransportError, ConnectionError):
    """The peer died, closed, stopped answering, or its channel broke."""

    code = "peer_lost"


class StaleEpochError(TransportError):
    """A frame, grant or key of an older epoch, binding or incarnation was used and refused."""

    code = "stale"


class FencedError(TransportError):
    """A newer incarnation under the same name took this member's place, or it was excluded."""

    code = "fenced"


class JoinRefusedError(TransportError):
    """The coordinator did not admit this member (world size, rank or name clash); nothing was started."""

    code = "join_refused"


# Transfer: the operation was right, the move failed.


class DeadlineError(TransportError, TimeoutError):
    """No progress within the deadline; ``in_flight`` says whether bytes may still land.

    Args:
        in_flight: True while native work over the buffers has not been proven stopped.
    """

    code = "deadline"

    def __init__(self, message: str, *, in_flight: bool = False, **fields: object) -> None:
        super().__init__(message, **fields)  # type: ignore[arg-type]
        self.in_flight = in_flight


class IntegrityError(TransportError):
    """Digests or coverage disagree: the bytes at the destination are not the bytes of the version."""

    code = "integrity"


class SourceChangedError(IntegrityError):
    """The weights were written to while they were being read for a version; the tensors are named."""

    code = "source_changed"


class UnavailableError(TransportError):
    """No live member holds the version any more."""

    code = "unavailable"


class WithdrawnError(TransportError):
    """The version was withdrawn by one of its trainer ranks.

    Args:
        by: The rank (or member) that withdrew it.
    """

    code = "withdrawn"

    def __init__(self, message: str, *, by: str | None = None, **fields: object) -> None:
        super().__init__(message, **fields)  # type: ignore[arg-type]
        self.by = by


class UndeliveredError(TransportError):
    """A put reached fewer generators than its settings ask for; the version stands, and those that live pull it later.

    Args:
        receipt: The put's receipt: what became of it at each generator.
    """

    code = "undelivered"

    def __init__(self, message: str, *, receipt: object = None, **fields: object) -> None:
        super().__init__(message, **fields)  # type: ignore[arg-type]
        self.receipt = receipt


class RegistrationError(TransportError):
    """Memory could not be allocated, mapped or registered; nothing was published."""

    code = "registration"


class ResourceError(TransportError):
    """This process or machine has no more descriptors, or may not have more; the hint says which limit to raise."""

    code = "resource"


def exhausted(error: BaseException, doing: str) -> ResourceError | None:
    """The typed error for a system call that failed for want of descriptors; None if *error* is something else.

    Args:
        error: What the system said.
        doing: What it was asked for.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        text = f"no descriptor left ({doing}): this process may have {most}"
        hint = "raise RLIMIT_NOFILE: `ulimit -n 4096`, LimitNOFILE= of a service, --ulimit nofile= of a container"
    elif number == errno.ENFILE:
        text, hint = f"no descriptor left ({doing}): the whole machine has used up its own", "raise the sysctl fs.file-max"
    else:
        return None
    found = ResourceError(text, hint=hint)
    found.__cause__ = error
    return found


# Bug: here or in the peer.


class ProtocolError(TransportError):
    """A frame broke the protocol's schema, length caps or order."""

    code = "protocol"


class InternalError(TransportError):
    """A bug in this library."""

    code = "internal"


class CancelledWorkError(TransportError):
    """The transfer was cancelled before it was complete; everything in flight has settled."""

    code = "cancelled"


def error_classes() -> dict[str, type[TransportError]]:
    """Map each ``code`` to its class, for errors that travel between members."""
    found: dict[str, type[TransportError]] = {}
    pending: list[type[TransportError]] = [TransportError]
    while pending:
        cls = pending.pop()
        found[cls.code] = cls
        pending.extend(cls.__subclasses__())
    return found
