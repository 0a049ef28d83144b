"""One version on its way from a source to one sink, and the puts that deliveries belong to."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from wtransport.session.identity import Identity, MemberId
from wtransport.session.outcomes import BehindOutcome, Outcome


class DeliveryState(enum.Enum):
    """How far a delivery is; it only moves down this list."""

    UNREADY = "unready"
    BEGUN = "begun"
    WRITING = "writing"
    PARTED = "parted"
    JUDGED = "judged"
    SETTLED = "settled"


@dataclass
class Delivery:
    """One version to one sink.

    Attributes:
        serves: True for a pull: its end is the sink's business, not the put's.
        slot: The granted slot while the sink waits for PART or RETURN, else -1.
        writing: Whether native work over the weights may be unsettled.
        verdict: JUDGED: what it comes to if the coordinator does not put the sink out, as it was asked to.
    """

    number: int
    put: int
    sink: MemberId
    opened: float
    deadline: float
    serves: bool = False
    state: DeliveryState = DeliveryState.UNREADY
    slot: int = -1
    generation: int = 0
    writing: bool = False
    outcome: Outcome | None = None
    verdict: BehindOutcome | None = None

    @property
    def active(self) -> bool:
        """Whether it is still under way."""
        return self.state is not DeliveryState.SETTLED


class PutState(enum.Enum):
    """How far a put is."""

    ADMITTING = "admitting"
    DELIVERING = "delivering"
    FINISHING = "finishing"
    HELD = "held"
    ENDED = "ended"


@dataclass
class Put:
    """One version of this source: under way, or held for those who come later.

    Attributes:
        kind: What it is held as once settled: ``reference``, ``snapshot``, ``slot``; ``none`` if that cannot be (``verify="off"``).
        manifest: Digest of the source manifest it follows.
        parts: In how many trainers' parts the version was put.
        withdrawing: Cancelled by its user, or the version was withdrawn elsewhere; the coordinator's word decides whether it stands (P3).
        stands: The coordinator's word was that it does.
    """

    number: int
    version: int
    feed: str
    manifest: bytes
    kind: str
    parts: int = 1
    rewind: bool = False
    identity: Identity | None = None
    state: PutState = PutState.ADMITTING
    deadline: float = 0.0
    deliveries: dict[MemberId, Delivery] = field(default_factory=dict)
    outcomes: dict[MemberId, Outcome] = field(default_factory=dict)
    digest: int | None = None
    asked_digest: bool = False
    withdrawing: bool = False
    stands: bool = False
    ranks: tuple[int, ...] = ()


@dataclass
class SinkLink:
    """What a source knows of one sink.

    Attributes:
        linked: The data endpoint is up.
        binding: The sink's binding, 0 before it has bound.
        plans: By feed, the (serial, source manifest digest) a plan is ready for.
        mismatch: By feed, the source manifest that the sink's binding does not fit, and why.
        credit: (slot, generation) that may be used for the next version.
    """

    member: MemberId
    linked: bool = False
    binding: int = 0
    plans: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    mismatch: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    credit: tuple[int, int] | None = None
