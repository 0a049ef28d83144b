"""A sink's side of manifests: what each source holds, and which of it each is asked for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wtransport.errors import ProtocolError, TransportError
from wtransport.session import messages as msg
from wtransport.session.identity import MemberId
from wtransport.weights.assign import Assignment, assign
from wtransport.weights.dtypes import ITEMSIZE
from wtransport.weights.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Collection

    from wtransport.service.context import Context
    from wtransport.service.sink.upstream import Upstreams
    from wtransport.session.sink.feeds import Feed

_INLINE_TENSORS = 1000


@dataclass(frozen=True)
class FeedPlan:
    """One feed shared out.

    Attributes:
        members: Contributors by rank.
        counts: By rank, int64 bytes it must write of each wanted tensor.
        covers: Whether the binding wants everything the contributors hold, so that it holds their parts.
    """

    members: dict[int, MemberId]
    counts: dict[int, npt.NDArray[np.int64]]
    covers: bool


class FeedPlans:
    """Manifests by (source, feed), and the plans made of them."""

    def __init__(self, context: Context, links: Upstreams) -> None:
        self._context = context
        self._links = links
        self._manifests: dict[tuple[MemberId, str], Manifest] = {}
        self.plans: dict[str, FeedPlan] = {}

    def declared(self, source: MemberId, message: msg.SourceManifest, wanted: Manifest | None) -> None:
        """A source's manifest arrived; most are the very one that is *wanted*.

        Raises:
            ProtocolError: If it is malformed, or is not what its digest says.
        """
        if wanted is not None and wanted.encoded == message.manifest:
            manifest = wanted
        else:
            manifest = Manifest.decode(message.manifest)
        if manifest.digest != message.digest:
            raise ProtocolError("a manifest does not match its digest")
        self._manifests[source, message.feed] = manifest

    def keep_only(self, feeds: Collection[str]) -> None:
        """Other feeds ended."""
        self._manifests = {key: value for key, value in self._manifests.items() if key[1] in feeds}
        self.plans = {name: plan for name, plan in self.plans.items() if name in feeds}

    def forget(self, source: MemberId) -> None:
        """A source is gone."""
        self._manifests = {key: value for key, value in self._manifests.items() if key[0] != source}

    async def share_out(self, feed: Feed | None, wanted: Manifest, binding: int) -> str:
        """Decide who sends what, and tell each contributor; returns why the manifests do not fit, or nothing."""
        if feed is None:
            return "the feed ended"
        name, serial, members = feed.name, feed.serial, dict(feed.contributors)
        try:
            manifests = [self._manifests[members[rank], name] for rank in range(feed.world_size)]
            whole = len(manifests) == 1 and manifests[0] == wanted
            if whole:
                assignments: tuple[Assignment, ...] = (Assignment.everything(wanted),)
            elif len(wanted) <= _INLINE_TENSORS:
                assignments = assign(manifests, wanted)
            else:
                assignments = await asyncio.to_thread(assign, manifests, wanted)
        except KeyError:
            return "a contributor left"
        except TransportError as error:
            return error.message
        if feed.serial != serial:
            return ""
        counts = {rank: _counts(assignments[rank], wanted) for rank in members}
        self.plans[name] = FeedPlan(members, counts, _covers(manifests, wanted))
        for rank, member in members.items():
            said = (b"", b"") if whole else (wanted.encoded, assignments[rank].encoded)
            want = msg.Want(name, binding, serial, manifests[rank].digest, *said)
            self._links.send(member, want)
        return ""


def _counts(assignment: Assignment, wanted: Manifest) -> npt.NDArray[np.int64]:
    counts = np.zeros(len(wanted.canonical), np.int64)
    for tensor, box in assignment.boxes:
        counts[tensor] += box.volume * ITEMSIZE[wanted.canonical[tensor].dtype]
    return counts


def _covers(manifests: list[Manifest], wanted: Manifest) -> bool:
    for manifest in manifests:
        for meta in manifest.tensors:
            mine = wanted.by_name.get(meta.name)
            if mine is None or not (meta.nbytes == 0 or mine.box.contains(meta.box)):
                return False
    return True
