"""What a source sends to one sink: the plan of one Want, cut in buckets."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wtransport.pacing import paced
from wtransport.weights.layout import SlotLayout
from wtransport.weights.manifest import Manifest
from wtransport.weights.plan import Plan, buckets, make_plan

if TYPE_CHECKING:
    from wtransport.weights.assign import Assignment

Spans = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]

# Planning a few tensors costs less than a thread hop; planning very many would hold the service's loop up.
_INLINE_TENSORS = 1000


@dataclass
class SinkPlan:
    """One sink's share of one source manifest.

    Attributes:
        whole: If the plan moves exactly what the source holds: indices of the wanted tensors it sends, and of the source's storages
            they are; else None.
    """

    plan: Plan
    source: Manifest
    wanted: Manifest
    serial: int
    binding: int
    whole: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None
    counts: bytes
    _private: list[Spans] = field(default_factory=list)
    _shared: list[Spans] = field(default_factory=list)

    def private_buckets(self, bucket_nbytes: int) -> list[Spans]:
        """Span tables for weights that lie in the user's tensors."""
        if not self._private:
            self._private = buckets(self.plan.spans, bucket_nbytes)
        return self._private

    def shared_buckets(self, bucket_nbytes: int) -> list[Spans]:
        """Span tables for weights that lie in one region: a snapshot or a slot."""
        if not self._shared:
            self._shared = buckets(self.plan.from_region(SlotLayout.of(self.source)), bucket_nbytes)
        return self._shared

    def own_digests(self, digests: Digests) -> Digests | None:
        """Digests per storage of the source, if *digests* (per wanted tensor) tell them."""
        if self.whole is None:
            return None
        own = np.zeros(len(self.source.canonical), np.uint64)
        sent, storages = self.whole
        own[storages] = digests[sent]
        return own


async def plan_for(source: Manifest, wanted: Manifest, assignment: Assignment, serial: int, binding: int) -> SinkPlan:
    """Plan what *source* sends; long plans are made on a worker thread."""
    if len(wanted) <= _INLINE_TENSORS:
        return _plan(source, wanted, assignment, serial, binding)
    return await asyncio.to_thread(_plan, source, wanted, assignment, serial, binding)


def _plan(source: Manifest, wanted: Manifest, assignment: Assignment, serial: int, binding: int) -> SinkPlan:
    plan = make_plan(source, wanted, assignment)
    counts = plan.nbytes_by_tensor().astype("<i8").tobytes()
    return SinkPlan(plan, source, wanted, serial, binding, _whole(source, wanted, assignment), counts)


def _whole(source: Manifest, wanted: Manifest, assignment: Assignment) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    boxes = dict(assignment.boxes)
    if len(boxes) != len(assignment.boxes):
        return None
    storages = {}
    for tensor, meta in enumerate(paced(wanted.canonical)):
        held = source.by_name.get(meta.name)
        if held is not None and (meta.nbytes == 0 or boxes.get(tensor) == held.box):
            storages[tensor] = held.storage
    if len(set(storages.values())) != len(source.canonical):
        return None
    return np.fromiter(storages, np.int64, len(storages)), np.fromiter(storages.values(), np.int64, len(storages))


def name_weights(manifest: Manifest) -> Digests:
    """Odd 64-bit weights by canonical tensor, from name, dtype and shape: they make one digest of many."""
    weights = np.empty(len(manifest.canonical), np.uint64)
    for index, meta in enumerate(paced(manifest.canonical)):
        text = f"{meta.name}\0{meta.dtype}\0{meta.shape}".encode()
        weights[index] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") | 1
    return weights


def content_digest(weights: Digests, digests: Digests) -> int:
    """One digest of a part: linear, so that parts of one version add up, whoever holds them."""
    return int(np.sum(weights * digests, dtype=np.uint64))
