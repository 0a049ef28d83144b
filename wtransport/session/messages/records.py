"""Records carried inside messages."""

from __future__ import annotations

from dataclasses import dataclass

from wtransport.session.identity import Identity, MemberId, Publication, Term


@dataclass(frozen=True)
class MemberRecord:
    """One member as the coordinator knows it; ``urls`` are its control listener's addresses, best first."""

    member: MemberId
    role: str
    group: str
    rank: int
    world_size: int
    name: str
    urls: tuple[str, ...]
    ordinal: tuple[int, int]

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What one live member may claim at a time (P5)."""
        return (self.role, self.group, self.rank, self.name)


@dataclass(frozen=True)
class Holding:
    """A version held: ``kind`` is ``slot``, ``snapshot`` or ``reference``; ``parts`` the trainer ranks' parts covered (P9)."""

    identity: Identity
    kind: str
    parts: tuple[int, ...]
    world_size: int
    digest: int


@dataclass(frozen=True)
class MemberStatus:
    """One member as an orchestrator sees it; also of names that are excluded or were lost.

    Attributes:
        record: As last admitted.
        state: ``live``, ``stalled`` (it beats, its Python does not run), ``excluded`` or ``lost``.
        cause: Why it is not live.
        held: Newest version it holds whole (a trainer: its part).
        lag: Newest available version minus the one held, 0 if it holds the newest; None if it holds nothing, or nothing is available.
        seen_s: Age of its last heartbeat, seconds; 0 for the member that hosts the coordinator, None if it is not live.
        progress_s: Age of its Python's last progress when it sent that heartbeat, seconds.
        losses: How often it was lost or fenced under this name since it was last admitted by hand.
    """

    record: MemberRecord
    state: str
    cause: str
    held: Identity | None
    lag: int | None
    seen_s: float | None
    progress_s: float | None
    losses: int


@dataclass(frozen=True)
class Declaration:
    """What a member tells a coordinator that it joins or re-joins, so that a new one can rebuild the ledger (P6).

    *binding* is the one whose slots the holdings are (P1); 0 where there is none.
    """

    term: Term
    publication: Publication
    holdings: tuple[Holding, ...]
    roster: tuple[MemberRecord, ...]
    excluded: tuple[str, ...]
    binding: int
    shown_seq: int
    shown: Identity | None
