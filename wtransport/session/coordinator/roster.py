"""Who is in the job, and who may come in (P5, P6)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from wtransport.session.identity import MemberId
from wtransport.session.messages import Join, MemberRecord, Refused

REPLACED_HINT = "was it started twice, or does a second job use this address? Each job needs an address of its own"


_MAX_DEPARTED = 256


def join_key(join: Join) -> tuple[str, str, int, str]:
    """See ``MemberRecord.key``."""
    return (join.role, join.group, join.rank, join.name)


@dataclass(frozen=True)
class Departure:
    """A member that is gone, and not in order: ``kind`` is ``lost``, ``fenced`` or ``excluded``."""

    record: MemberRecord
    kind: str
    cause: str


@dataclass
class Roster:
    """Live members, names that are excluded, and incarnations that may not come back.

    Attributes:
        view: Rises with every change; informational.
        admitted: Names admitted by hand: what members believed of their exclusion before counts no more.
        departed: By name, the last ones that were lost or put out, until they are back.
        losses: By name, how often it was lost or fenced.
        newcomers: Members that no coordinator before this one had admitted.
        gone: Incarnations that were lost, fenced or excluded: a living process behind one redraws it before it joins again (P5).
    """

    members: dict[MemberId, MemberRecord] = field(default_factory=dict)
    bindings: dict[MemberId, int] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    admitted: set[str] = field(default_factory=set)
    departed: dict[str, Departure] = field(default_factory=dict)
    losses: Counter[str] = field(default_factory=Counter)
    newcomers: set[MemberId] = field(default_factory=set)
    gone: set[MemberId] = field(default_factory=set)
    view: int = 0
    _ordinal: int = 0

    def refusal(self, join: Join) -> Refused | None:
        """Why *join* cannot be admitted whoever else is here, or None."""
        if join.name in self.excluded:
            return Refused("fenced", f"{join.name} is excluded: {self.excluded[join.name]}", "admit it first", True)
        if join.member in self.gone and any(item.key == join_key(join) for item in self.members.values()):
            return Refused("fenced", f"a newer incarnation of {join.name} took this member's place", REPLACED_HINT, False)
        if join.member in self.gone or join.member in self.members:
            return Refused("fenced", "this incarnation is no longer a member", "join under a new incarnation", True)
        if join.role not in ("trainer", "generator") or join.world_size < 1 or not 0 <= join.rank < join.world_size:
            return Refused("join_refused", f"rank {join.rank} of {join.world_size} as {join.role} is not possible", "", False)
        return None

    def holders(self, join: Join) -> list[MemberRecord]:
        """Members whose name or rank *join* claims: one of them at a time (P5)."""
        found = []
        for item in self.members.values():
            ranked = item.role == "trainer" or bool(item.group)
            if item.name == join.name or (ranked and (item.role, item.group, item.rank) == (join.role, join.group, join.rank)):
                found.append(item)
        return found

    def misfits(self, join: Join) -> list[MemberRecord]:
        """Members of the same trainer or group that say another world size, besides those whose place *join* claims."""
        if join.role != "trainer" and not join.group:
            return []
        peers = [item for item in self.members.values() if (item.role, item.group) == (join.role, join.group)]
        held = {item.member for item in self.holders(join)}
        return [item for item in peers if item.world_size != join.world_size and item.member not in held]

    def admit(self, join: Join, term: int) -> MemberRecord:
        """Add the member under the next ordinal."""
        self._ordinal += 1
        record = MemberRecord(join.member, join.role, join.group, join.rank, join.world_size, join.name, join.urls, (term, self._ordinal))
        self.members[join.member] = record
        if not join.declaration.roster:
            self.newcomers.add(join.member)
        self.departed.pop(join.name, None)
        self.view += 1
        return record

    def remove(self, member: MemberId, kind: str, cause: str) -> MemberRecord | None:
        """Take the member out for good: this incarnation does not come back."""
        record = self.members.pop(member, None)
        self.bindings.pop(member, None)
        self.newcomers.discard(member)
        if record is not None:
            self.gone.add(member)
            if kind == "left":
                self.departed.pop(record.name, None)  # it went in order: nobody looks for it
            else:
                self.departed[record.name] = Departure(record, kind, cause)
            if len(self.departed) > _MAX_DEPARTED:
                del self.departed[next(iter(self.departed))]
            self.view += 1
        return record

    @property
    def trainers(self) -> list[MemberRecord]:
        """Trainers by rank."""
        return sorted((item for item in self.members.values() if item.role == "trainer"), key=lambda item: item.rank)

    @property
    def generators(self) -> list[MemberRecord]:
        """Generators in order of admission."""
        return sorted((item for item in self.members.values() if item.role == "generator"), key=lambda item: item.ordinal)

    def complete_trainers(self) -> tuple[MemberId, ...]:
        """The trainers' incarnations if every rank is here, else empty."""
        trainers = self.trainers
        if trainers and [item.rank for item in trainers] == list(range(trainers[0].world_size)):
            return tuple(item.member for item in trainers)
        return ()
