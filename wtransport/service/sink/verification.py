"""Whether a landing is what its sources said: coverage, digests of received bytes, and (``full``) the destination's cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from wtransport.errors import IntegrityError, PeerLostError, ProtocolError
from wtransport.service import local
from wtransport.weights.assign import Assignment
from wtransport.weights.plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wtransport.backends.base import MemoryRegion, OwnerEndpoint, RemoteRegion
    from wtransport.service.context import Context
    from wtransport.service.sink.feedplans import FeedPlan
    from wtransport.session import messages as msg
    from wtransport.session.identity import MemberId
    from wtransport.weights.manifest import Manifest

Digests = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class PartBytes:
    """What a source says it wrote, per wanted tensor."""

    digests: Digests
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, part: msg.Part) -> Self:
        """Decode a Part's arrays.

        Raises:
            ProtocolError: If their sizes are not multiples of 8.
        """
        if len(part.digests) % 8 or len(part.counts) % 8:
            raise ProtocolError("a part's digests or counts are cut off")
        return cls(np.frombuffer(part.digests, "<u8").astype(np.uint64), np.frombuffer(part.counts, "<i8").astype(np.int64))


def check_parts(
    plan: FeedPlan,
    parts: Mapping[int, PartBytes],
    grants: Mapping[MemberId, tuple[OwnerEndpoint, RemoteRegion] | None],
    wanted: Manifest,
    *,
    checking: bool,
) -> Digests:
    """Check a landing whose parts are all written; returns the digest of each wanted tensor.

    Every wanted byte is covered exactly once because the assignments are disjoint and cover the wanted boxes, and each part's counts
    are those of its assignment. Where this process received the bytes itself, its own counts, and (*checking*) digests, must agree.

    Raises:
        IntegrityError: If counts or digests disagree; the first tensor is named.
        PeerLostError: If a contributor's endpoint went while its part was checked.
    """
    total = np.zeros(len(wanted.canonical), np.uint64)
    for rank, member in plan.members.items():
        part = parts[rank]
        _same(wanted, plan.counts[rank], part.counts, f"rank {rank} wrote other bytes than it was asked for")
        if len(part.digests) != len(total):
            raise IntegrityError(f"rank {rank} sent {len(part.digests)} digests for {len(total)} tensors")
        total += part.digests
        grant = grants[member]
        if grant is None:
            raise PeerLostError(f"rank {rank} was lost before its part was checked")
        endpoint, remote = grant
        ledger = endpoint.ledger(remote)
        if ledger is not None:
            # From here on nothing more can be stored through this grant: what is checked is what stays.
            endpoint.revoke(remote)
            _same(wanted, plan.counts[rank], ledger.nbytes, f"not every byte of rank {rank} arrived")
            if checking:
                _same(wanted, part.digests, ledger.digests, f"the bytes received are not those that rank {rank} sent")
    return total


async def check_cells(context: Context, wanted: Manifest, region: MemoryRegion, expected: Digests) -> None:
    """Read the landing memory itself, and compare.

    Raises:
        IntegrityError: If a tensor's digest is not the *expected* one.
    """
    whole = make_plan(wanted, wanted, Assignment.everything(wanted))
    work = local.digest(context, region, whole.spans, whole.num_tensors, "verify")
    await work
    _same(wanted, expected, work.digests(), "the landing memory does not hold what was written to it")


def _same(wanted: Manifest, expected: npt.NDArray[np.generic], found: npt.NDArray[np.generic], what: str) -> None:
    if len(expected) != len(found):
        raise IntegrityError(f"{what}: {len(found)} tensors of {len(expected)}")
    wrong = np.flatnonzero(expected != found)
    if len(wrong):
        first = int(wrong[0])
        text = f"{what}: {len(wrong)} tensors, the first expected {expected[first]}, found {found[first]}"
        raise IntegrityError(text, tensor=wanted.canonical[first].name, phase="verify")
