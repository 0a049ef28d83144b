"""A sink's grants: which source may write which slot, and who has its memory mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wtransport.errors import TransportError
from wtransport.session import messages as msg

if TYPE_CHECKING:
    from wtransport.backends.base import MemoryRegion, OwnerEndpoint, RemoteRegion
    from wtransport.service.context import Context
    from wtransport.service.sink.reading import Reading
    from wtransport.service.sink.upstream import Upstreams
    from wtransport.session import actions as act
    from wtransport.session.identity import MemberId


class Grants:
    """What the sources may do with the slots of the present binding.

    Args:
        context: The member's means.
        links: To the sources.
        reading: Has the slots.
    """

    def __init__(self, context: Context, links: Upstreams, reading: Reading) -> None:
        self._context = context
        self._links = links
        self._reading = reading
        self._regions: dict[tuple[int, str], MemoryRegion] = {}
        self._grants: dict[tuple[int, MemberId], tuple[OwnerEndpoint, RemoteRegion]] = {}

    def prepare(self, source: MemberId) -> None:
        """Pass the slots to a trainer ahead of its first put."""
        link = self._links.links.get(source)
        if link is None or link.endpoint is None or link.choice is None or link.record.role != "trainer":
            return
        try:
            for index in range(len(self._reading.slots)):
                link.endpoint.prepare(self._region(index, link.choice.backend))
        except TransportError as error:
            link.break_off(error)

    def send(self, action: act.SendGrant, binding: int, num_digests: int) -> None:
        """Let a source write a slot, and tell it; if its link is down, that is reported by the link."""
        link = self._links.links.get(action.to)
        if link is None or link.endpoint is None or link.choice is None:
            return
        region = self._region(action.slot, link.choice.backend)
        before = self.of(action.slot, action.to)
        try:
            remote = link.endpoint.grant(region, generation=action.generation, writable=True, num_digests=num_digests)
        except TransportError as error:
            link.break_off(error)
            return
        self._grants[action.slot, action.to] = (link.endpoint, remote)
        if before is not None:
            before[0].revoke(before[1])  # a slot that was given back without landing
        self._links.send(action.to, msg.Grant(binding, action.slot, action.generation, remote.to_wire(), action.identity))

    def of(self, slot: int, source: MemberId) -> tuple[OwnerEndpoint, RemoteRegion] | None:
        """The last grant of *slot* to *source*."""
        return self._grants.get((slot, source))

    def revoke(self, slot: int) -> None:
        """Nobody may write *slot* any more; its memory stays, and stays mapped."""
        for index, source in [key for key in self._grants if key[0] == slot]:
            self._end(index, source)

    def retire(self, slot: int | None = None) -> None:
        """The memory of *slot*, or of all, is given back: no source keeps it mapped."""
        for key in [key for key in self._regions if slot is None or key[0] == slot]:
            region = self._regions.pop(key)
            for link in self._links.links.values():
                if link.endpoint is not None and link.endpoint.backend == region.backend:
                    link.endpoint.retire(region)

    def forget(self, source: MemberId) -> None:
        """A source is gone, and its endpoint with it."""
        self._grants = {key: grant for key, grant in self._grants.items() if key[1] != source}

    def _end(self, slot: int, source: MemberId) -> None:
        endpoint, remote = self._grants.pop((slot, source), (None, None))
        if endpoint is not None and remote is not None:
            endpoint.revoke(remote)

    def _region(self, slot: int, backend: str) -> MemoryRegion:
        found = self._regions.get((slot, backend))
        if found is None:
            landing = self._reading.slots[slot]
            found = self._regions[slot, backend] = self._context.backends[backend].register(landing.region, landing)
        return found
