"""What the driver of a source keeps of one version: memory, digests, and who waits for it."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass, field

from wtransport import _native
from wtransport.backends.base import Backend, MemoryRegion
from wtransport.memory.snapshot import Snapshot
from wtransport.memory.tensors import SourceWeights
from wtransport.service.source.plans import Digests
from wtransport.session.identity import Identity, MemberId
from wtransport.session.outcomes import Receipt
from wtransport.weights.manifest import Manifest


@dataclass
class PutRecord:
    """One version of a source.

    Attributes:
        weights: The user's tensors, kept alive; None once a snapshot, or a slot, stands for them.
        memory: Native description of where the bytes lie.
        owner: What keeps that memory alive.
        recheck: Read the source again after the copy: it may have changed under the put.
        own: Digests per storage of the manifest, once known.
        pin: For a slot: keeps it unwritable while it is served; the result undoes that.
        done: Resolves to the receipt.
        source_free: Resolves when the caller may write to the weights again.
    """

    number: int
    version: int
    manifest: Manifest
    memory: _native.LocalRegion | _native.SharedRegion
    owner: object
    weights: SourceWeights | None = None
    snapshot: Snapshot | None = None
    recheck: bool = False
    own: Digests | None = None
    identity: Identity | None = None
    pin: Callable[[], Callable[[], None]] | None = None
    started: float = 0.0
    names: dict[MemberId, str] = field(default_factory=dict)
    nbytes: dict[MemberId, int] = field(default_factory=dict)
    done: concurrent.futures.Future[Receipt] = field(default_factory=concurrent.futures.Future)
    source_free: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)
    flight: int = 0
    _regions: dict[str, MemoryRegion] = field(default_factory=dict)

    @property
    def private(self) -> bool:
        """Whether the bytes lie in the user's tensors."""
        return isinstance(self.memory, _native.LocalRegion)

    def region(self, backend: Backend) -> MemoryRegion:
        """The memory as registered with *backend*."""
        found = self._regions.get(backend.name)
        if found is None:
            found = self._regions[backend.name] = backend.register(self.memory, self.owner)
        return found

    def local_region(self) -> MemoryRegion:
        """The memory for work that no backend does."""
        return MemoryRegion("local", self.memory, self.owner)

    def free_source(self) -> None:
        """The caller may write to the weights again."""
        if not self.source_free.done():
            self.source_free.set_result(None)
