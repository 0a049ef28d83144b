"""What became of one put at one generator, and the receipt that sums them up."""

from __future__ import annotations

from dataclasses import dataclass

from wtransport.errors import TransportError


@dataclass(frozen=True)
class Delivered:
    """The generator verified every byte and installed the version; ``nbytes`` is what this rank wrote for it."""

    nbytes: int
    name = "delivered"


@dataclass(frozen=True)
class BehindOutcome:
    """The generator had no writable slot within the credit time, or is not bound yet; it pulls the newest version later."""

    reason: str
    name = "behind"


@dataclass(frozen=True)
class OvertakenOutcome:
    """A newer version overtook this one before it had started at the generator."""

    by: int
    name = "overtaken"


@dataclass(frozen=True)
class AheadOutcome:
    """The generator holds a higher version of an earlier publication and keeps it (only ``rewind=True`` goes down)."""

    holds: int
    name = "ahead"


@dataclass(frozen=True)
class Lost:
    """The generator, or the way to it, failed during the put; ``cause`` says how."""

    cause: TransportError
    name = "lost"


@dataclass(frozen=True)
class Excluded:
    """The generator was excluded, or its binding does not fit the weights; ``reason`` says why."""

    reason: str
    name = "excluded"


Outcome = Delivered | BehindOutcome | OvertakenOutcome | AheadOutcome | Lost | Excluded


@dataclass(frozen=True)
class Receipt:
    """The result of a put.

    Attributes:
        version: The version.
        publication: The publication it belongs to, as ``term.n``.
        nbytes: Bytes written to all generators by this rank.
        seconds: From the call to the last outcome.
        outcomes: One outcome per generator, by name.
        changed: Tensors of this rank's part whose bytes differ from its last put; None with ``verify="off"``, and on the first put.
        noop: True if the same version with the same bytes was committed already and nothing moved.
    """

    version: int
    publication: str
    nbytes: int
    seconds: float
    outcomes: dict[str, Outcome]
    changed: int | None
    noop: bool = False

    def _named(self, kind: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, outcome in self.outcomes.items() if outcome.name == kind))

    @property
    def delivered(self) -> tuple[str, ...]:
        """Names of the generators that hold the version now."""
        return self._named("delivered")

    @property
    def behind(self) -> tuple[str, ...]:
        """Names of the generators that will pull later."""
        return self._named("behind")

    @property
    def lost(self) -> tuple[str, ...]:
        """Names of the generators that failed during the put."""
        return self._named("lost")
