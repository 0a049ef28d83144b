"""What a machine asks its driver to do. The driver does I/O and answers with method calls; it decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from wtransport.errors import TransportError
from wtransport.session.identity import Identity, MemberId
from wtransport.session.messages import EventNotice
from wtransport.session.outcomes import Outcome


@dataclass(frozen=True)
class Send:
    """Send *message* to *to*; a member that has no channel any more has been, or will be, reported as gone."""

    to: MemberId
    message: object


@dataclass(frozen=True)
class Emit:
    """Hand an event to the user's ``events()``."""

    event: EventNotice


@dataclass(frozen=True)
class Expel:
    """Coordinator: close the member's channel after what was sent."""

    member: MemberId


# Source.


@dataclass(frozen=True)
class StartWrite:
    """Write delivery *delivery*'s spans into *slot* of *sink*; answer ``on_written`` or ``on_write_failed``, once, when settled."""

    delivery: int
    put: int
    sink: MemberId
    slot: int
    generation: int


@dataclass(frozen=True)
class CancelWrite:
    """Drop what has not started of the delivery's buckets; ``on_write_failed`` follows when the rest has settled."""

    delivery: int


@dataclass(frozen=True)
class SendPart:
    """Send Part for the delivery with the digests its write took."""

    delivery: int
    put: int
    sink: MemberId
    identity: Identity
    slot: int
    generation: int


@dataclass(frozen=True)
class PutDone:
    """Resolve the user's put with these outcomes by member."""

    put: int
    outcomes: dict[MemberId, Outcome]
    noop: bool


@dataclass(frozen=True)
class PutError:
    """Fail the user's put."""

    put: int
    code: str
    message: str
    by: str | None = None
    error: TransportError | None = None


@dataclass(frozen=True)
class ComputeDigest:
    """Digest the put's weights, reading only what its deliveries have not digested; answer ``on_digest``."""

    put: int


@dataclass(frozen=True)
class PutAdmittedAction:
    """The put has its identity; nothing has moved yet."""

    put: int
    identity: Identity


@dataclass(frozen=True)
class ReleasePut:
    """No delivery of this put is under way and it is not held any more: its memory may go."""

    put: int


# Sink.


@dataclass(frozen=True)
class SendGrant:
    """Grant *slot* as *generation* to *to* and tell it (credit when *identity* is None)."""

    to: MemberId
    slot: int
    generation: int
    identity: Identity | None


@dataclass(frozen=True)
class RevokeGrants:
    """Refuse whatever still names a grant of *slot*."""

    slot: int


@dataclass(frozen=True)
class AssignBoxes:
    """Decide which contributor sends what of *feed*; answer ``on_boxes_assigned``."""

    feed: str


@dataclass(frozen=True)
class VerifySlot:
    """Check coverage and digests of the landing in *slot*; answer ``on_verified``. *parts*: how many trainers put the version in."""

    slot: int
    generation: int
    identity: Identity
    feed: str
    parts: int


@dataclass(frozen=True)
class ShowVersion:
    """*identity* in *slot* is now what the user gets next; *seq* is the group's (P4), or a local count."""

    slot: int
    identity: Identity
    seq: int


@dataclass(frozen=True)
class AbandonSlot:
    """Give the slot fresh memory, punch the old pages out (P7); answer ``on_slot_fresh``."""

    slot: int


@dataclass(frozen=True)
class SlotReused:
    """The complete version in *slot* is about to be overwritten: it is not held any more."""

    slot: int


@dataclass(frozen=True)
class NeedLink:
    """Have a link to *member* up; answer ``on_source_ready`` or ``on_source_gone``."""

    member: MemberId


@dataclass(frozen=True)
class GetFailed:
    """A ``get`` of the version cannot be served."""

    identity: Identity | None
    code: str
    message: str


@dataclass(frozen=True)
class BindingRefused:
    """The binding does not fit what the trainers hold; the user's next call raises."""

    message: str


Action = (
    Send
    | Emit
    | Expel
    | StartWrite
    | CancelWrite
    | SendPart
    | PutDone
    | PutError
    | ComputeDigest
    | PutAdmittedAction
    | ReleasePut
    | SendGrant
    | RevokeGrants
    | AssignBoxes
    | VerifySlot
    | ShowVersion
    | AbandonSlot
    | SlotReused
    | NeedLink
    | GetFailed
    | BindingRefused
)
