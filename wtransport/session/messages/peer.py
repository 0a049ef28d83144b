"""Messages between a source (a trainer, or a generator that serves) and a sink.

A feed is what one version's parts come from: the ranks of a publication, or one holder.
"""

from __future__ import annotations

from dataclasses import dataclass

from wtransport.session.identity import Identity


@dataclass(frozen=True)
class DataOffer:
    """Sink to source: dial my data listener; the token is single-use."""

    backend: str
    addr: str
    token: bytes
    epoch: int
    reason: str


@dataclass(frozen=True)
class SourceManifest:
    """Source to sink: what I hold in *feed*."""

    feed: str
    rank: int
    world_size: int
    digest: bytes
    manifest: bytes


@dataclass(frozen=True)
class Want:
    """Sink to source: what of that manifest I want from you; ``serial`` numbers my assignments, a Begin names the one it follows.

    An empty *manifest* is the source's own, an empty *assignment* all of it: what most say, and long to read.
    """

    feed: str
    binding: int
    serial: int
    source_digest: bytes
    manifest: bytes
    assignment: bytes


@dataclass(frozen=True)
class Mismatch:
    """Sink to source: the manifests do not fit; nothing moves."""

    feed: str
    binding: int
    source_digest: bytes
    message: str


@dataclass(frozen=True)
class Misfit:
    """Source to sink: I put a version that your binding does not fit; it went elsewhere."""

    identity: Identity
    feed: str
    binding: int


@dataclass(frozen=True)
class Grant:
    """Sink to source: you may write slot ``slot`` as generation ``generation``; without an identity it is credit (P2)."""

    binding: int
    slot: int
    generation: int
    remote: object
    identity: Identity | None


@dataclass(frozen=True)
class Recall:
    """Sink to source: give unused credit back."""

    slot: int
    generation: int


@dataclass(frozen=True)
class Begin:
    """Source to sink: I start on *identity*; slot -1 asks for one, else it names credit used.

    *world_size* is the feed's; *parts* in how many trainers' parts the version was put: a holder serves all of them in one.
    """

    identity: Identity
    feed: str
    rank: int
    world_size: int
    parts: int
    binding: int
    serial: int
    slot: int
    generation: int
    credit_timeout_s: float


@dataclass(frozen=True)
class Part:
    """Source to sink: my part is written; per wanted tensor its digest (u64 LE) and byte count (i64 LE)."""

    identity: Identity
    feed: str
    rank: int
    binding: int
    slot: int
    generation: int
    digests: bytes
    counts: bytes


@dataclass(frozen=True)
class Return:
    """Source to sink: I am done with the slot and wrote no part of it that counts; every work over it has settled (P2)."""

    slot: int
    generation: int
    identity: Identity | None


@dataclass(frozen=True)
class Failed:
    """Sink to source: *identity* did not install here."""

    identity: Identity
    code: str
    message: str
    tensor: str | None


@dataclass(frozen=True)
class Ahead:
    """Sink to source: I hold *held*, which is newer or equal in order (P1)."""

    identity: Identity
    held: Identity


@dataclass(frozen=True)
class Pull:
    """Sink to source: deliver *identity* to me."""

    identity: Identity
    binding: int


@dataclass(frozen=True)
class PullRefused:
    """Source to sink: I cannot deliver *identity*; *binding* is that of the pull."""

    identity: Identity
    binding: int
    code: str
    message: str
