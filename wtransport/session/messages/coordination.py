"""Messages between a member and the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from wtransport.session.identity import Identity, MemberId, Publication, Term
from wtransport.session.messages.records import Declaration, Holding, MemberRecord, MemberStatus

# Member to coordinator.


@dataclass(frozen=True)
class Join:
    """Ask to be admitted; *takeover* fences a live member that has the name or the rank."""

    role: str
    group: str
    rank: int
    world_size: int
    name: str
    member: MemberId
    urls: tuple[str, ...]
    declaration: Declaration
    takeover: bool


@dataclass(frozen=True)
class Leave:
    """Leave in order: not lost, nothing is fenced."""

    reason: str


@dataclass(frozen=True)
class TermRefused:
    """The coordinator's term is lower than, or tied with, the one followed (P6)."""

    term: Term


@dataclass(frozen=True)
class PutRequest:
    """Ask to put a version; ``digest`` only when the coordinator asked for it."""

    request: int
    version: int
    rank: int
    digest: int | None
    rewind: bool


@dataclass(frozen=True)
class PutSettled:
    """A rank's put ended well; it holds its part as ``holding`` says (None: it holds nothing that could be served)."""

    identity: Identity
    rank: int
    holding: Holding | None


@dataclass(frozen=True)
class PutFailed:
    """A rank's put failed; its version cannot complete in this publication."""

    identity: Identity
    rank: int
    reason: str


@dataclass(frozen=True)
class HoldingEnded:
    """The sender no longer holds *identity* (overwritten, changed, released)."""

    identity: Identity


@dataclass(frozen=True)
class WithdrawRequest:
    """A rank's put was cancelled (P3)."""

    identity: Identity
    rank: int


@dataclass(frozen=True)
class Bound:
    """A generator has a binding and landing memory, or (binding 0) has none any more."""

    binding: int


@dataclass(frozen=True)
class Installed:
    """Sink to coordinator and to the sources: *identity* is verified and complete here."""

    identity: Identity
    binding: int
    holding: Holding


@dataclass(frozen=True)
class Dropped:
    """Sink to coordinator: the answer to a withdrawal that found nothing installed (P3)."""

    identity: Identity


@dataclass(frozen=True)
class Behind:
    """Sink to coordinator and sources: no writable slot within the credit time (P2: decided by the sink, once per version)."""

    identity: Identity
    reason: str


@dataclass(frozen=True)
class Superseded:
    """Sink to coordinator: *identity* waits for a slot and *by* has begun too; may it be overtaken?"""

    identity: Identity
    by: Identity


@dataclass(frozen=True)
class Ready:
    """Group rank to coordinator: *identity* is verified and kept until SHOW or RELEASE (P4)."""

    identity: Identity


@dataclass(frozen=True)
class ShowTaken:
    """Group rank to coordinator: the user was given *seq* (P4)."""

    seq: int


@dataclass(frozen=True)
class SteerRequest:
    """Ask to ``exclude`` or ``admit`` the member of that name, or to ``replace`` it by the one called *other*."""

    request: int
    verb: str
    name: str
    reason: str
    other: str


@dataclass(frozen=True)
class Straggler:
    """Trainer to coordinator: by its policy the generator that made no progress on *identity* is to be excluded."""

    identity: Identity
    sink: MemberId
    reason: str


@dataclass(frozen=True)
class MembersRequest:
    """Ask who is in the job and how they are; a member or an operator may."""

    request: int


# Coordinator to member.


@dataclass(frozen=True)
class Welcome:
    """Admitted."""

    term: Term
    ordinal: tuple[int, int]
    publication: Publication
    beat_token: bytes


@dataclass(frozen=True)
class Refused:
    """Not admitted, or no longer a member; ``code`` is an error's code, ``redraw`` says that a new incarnation may try again."""

    code: str
    message: str
    hint: str
    redraw: bool


@dataclass(frozen=True)
class NewTerm:
    """The coordinator had to take a higher term: re-declare (P6)."""

    term: Term


@dataclass(frozen=True)
class Redeclare:
    """The member's answer to NewTerm."""

    declaration: Declaration


@dataclass(frozen=True)
class View:
    """The members; ``view`` rises, informational."""

    view: int
    members: tuple[MemberRecord, ...]
    excluded: tuple[str, ...]


@dataclass(frozen=True)
class PublicationBegun:
    """*publication* holds for these trainer incarnations, rank by rank; with ``rewind`` sinks may go down (P1)."""

    publication: Publication
    trainers: tuple[MemberId, ...]
    rewind: bool


@dataclass(frozen=True)
class PutAdmitted:
    """The put may move."""

    request: int
    identity: Identity


@dataclass(frozen=True)
class PutKnown:
    """That version is committed already: with ``digest_needed`` ask again with the digest, else it is a no-op."""

    request: int
    identity: Identity
    digest_needed: bool


@dataclass(frozen=True)
class PutRefused:
    """The put may not move."""

    request: int
    code: str
    message: str


@dataclass(frozen=True)
class PutRanks:
    """Ranks that have asked to put *identity* so far."""

    identity: Identity
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Overtaken:
    """At *sink*, *identity* has been overtaken by *by*; said once per (version, sink), to all ranks and the sink (P2)."""

    identity: Identity
    sink: MemberId
    by: Identity


@dataclass(frozen=True)
class Withdraw:
    """To sinks: drop *identity* unless it is installed (P3)."""

    identity: Identity


@dataclass(frozen=True)
class Withdrawn:
    """To ranks: *identity* is dead in its publication, or (``stands``) it was installed somewhere and stands."""

    identity: Identity
    by: str
    stands: bool


@dataclass(frozen=True)
class Available:
    """To sinks: *identity* is complete and these members hold it: any one of ``whole``, or all of ``parts`` together."""

    identity: Identity
    world_size: int
    whole: tuple[MemberId, ...]
    parts: tuple[MemberId, ...]


@dataclass(frozen=True)
class Unavailable:
    """No live member holds *identity* any more."""

    identity: Identity


@dataclass(frozen=True)
class Show:
    """To a group's ranks: *identity* is number *seq* of the group (P4)."""

    seq: int
    identity: Identity


@dataclass(frozen=True)
class Release:
    """To a group's ranks: *identity* will not be shown by this READY; its slot may be written (P4)."""

    identity: Identity


@dataclass(frozen=True)
class StragglerKept:
    """Answer to Straggler: the generator stays a member, for *reason*."""

    identity: Identity
    sink: MemberId
    reason: str


@dataclass(frozen=True)
class EventNotice:
    """Something for ``events()``: kind, the member's name, version, and what was the cause."""

    kind: str
    member: str
    version: int | None
    detail: str


@dataclass(frozen=True)
class SteerReply:
    """Answer to SteerRequest; an empty message is success."""

    request: int
    message: str


@dataclass(frozen=True)
class MembersReply:
    """Answer to MembersRequest."""

    request: int
    members: tuple[MemberStatus, ...]
