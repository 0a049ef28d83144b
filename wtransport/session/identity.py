"""The numbers that order the world: terms, publications, versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

#: One admission of a member: 128 random bits as 32 hex digits (P5). The address of a member on the wire.
MemberId = NewType("MemberId", str)

#: Where a member sends what is meant for the coordinator.
COORDINATOR = MemberId("")


@dataclass(frozen=True, order=True)
class Term:
    """One start of a coordinator (P6): a counter that rises, and the coordinator's incarnation that tells equal counters apart."""

    counter: int
    incarnation: str

    def accepts(self, other: Term) -> bool:
        """Whether a member that follows this term may follow *other*: a lower counter, or a tied foreign one, is refused (P6)."""
        return other.counter > self.counter or other == self


@dataclass(frozen=True, order=True)
class Publication:
    """``(term, n)``: begun by the coordinator for a set of trainer incarnations, or by a rewind (P1)."""

    term: int
    n: int

    def __str__(self) -> str:
        return f"{self.term}.{self.n}"


@dataclass(frozen=True, order=True)
class Identity:
    """What "newer" compares: publication first, version second (P1)."""

    publication: Publication
    version: int

    def __str__(self) -> str:
        return f"{self.version}@{self.publication}"


NO_TERM = Term(0, "")
NO_PUBLICATION = Publication(0, 0)
