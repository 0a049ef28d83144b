"""Snapshot: a private copy of a source's weights, in one region, from which they are served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wtransport.errors import ClosedError
from wtransport.memory.landing_slot import map_region
from wtransport.weights.assign import Assignment
from wtransport.weights.layout import SlotLayout
from wtransport.weights.plan import make_plan

if TYPE_CHECKING:
    from wtransport._native import SharedRegion
    from wtransport.memory.budget import MemoryBudget
    from wtransport.weights.manifest import Manifest


class Snapshot:
    """A region laid out by the source's own manifest; the caller runs the copy into it.

    Copy with ``engine.copy(LocalRegion(source.blocks), snapshot.region, snapshot.plan.spans,
    snapshot.plan.num_tensors, flags)``. Afterwards it is a source: send from it with the spans of
    ``plan.from_region(snapshot.layout)``, let it be read with those of ``plan.reading(...)``.

    Attributes:
        manifest: The source's manifest.
        layout: Where each distinct tensor lies in the region.
        plan: The copy of everything into the region; its digests are per canonical tensor.

    Args:
        manifest: What the source holds.
        budget: Counts the snapshot's bytes.

    Raises:
        RegistrationError: If the memory cannot be mapped.
    """

    def __init__(self, manifest: Manifest, budget: MemoryBudget) -> None:
        self.manifest = manifest
        self.layout = SlotLayout.of(manifest)
        self.plan = make_plan(manifest, manifest, Assignment.everything(manifest))
        self._budget = budget
        self._region: SharedRegion | None = map_region(self.layout.nbytes)
        budget.add("snapshots", self.layout.nbytes)

    @property
    def region(self) -> SharedRegion:
        """The memory.

        Raises:
            ClosedError: If the snapshot is closed.
        """
        if self._region is None:
            raise ClosedError("the snapshot is closed")
        return self._region

    def close(self) -> None:
        """Give the memory back, as soon as no native work is over it; idempotent."""
        if self._region is not None:
            self._region.close()
            self._region = None
            self._budget.remove("snapshots", self.layout.nbytes)
