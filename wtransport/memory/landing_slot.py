"""LandingSlot: shared memory in which one version of a binding's weights lands."""

from __future__ import annotations

import math
import weakref
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from wtransport._native import SharedRegion
from wtransport.errors import ClosedError, RegistrationError, exhausted
from wtransport.weights.layout import SlotLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.memory.budget import MemoryBudget
    from wtransport.weights.manifest import Manifest

Buffer = npt.NDArray[np.uint8]


class LandingSlot:
    """One region, laid out by the wanted manifest, and the tensors over it.

    The slot owns the region. Tensors that were handed out keep the memory mapped by themselves,
    even after :meth:`close`. Used from one thread, except for :meth:`tensors_alive`.

    Args:
        manifest: What the binding wants.
        budget: Counts the slot's bytes.
        on_release: Called when the last tensor over the slot is gone, on whatever thread drops it,
            possibly inside a garbage collection: it may only set a flag or wake a loop.
        names: The manifest's names in the order that the user is given them in; sorted if None.

    Raises:
        RegistrationError: If the memory cannot be mapped.
    """

    def __init__(
        self,
        manifest: Manifest,
        budget: MemoryBudget,
        on_release: Callable[[], None] | None = None,
        *,
        names: tuple[str, ...] | None = None,
    ) -> None:
        self.manifest = manifest
        self.layout = SlotLayout.of(manifest)
        self._budget = budget
        self._on_release = on_release
        self._names = names
        self._buffer: weakref.ref[Buffer] | None = None
        self._telling: weakref.finalize[..., Buffer] | None = None
        self._region: SharedRegion | None = map_region(self.layout.nbytes)
        budget.add("slots", self.layout.nbytes)

    @property
    def region(self) -> SharedRegion:
        """The memory; another object after :meth:`abandon`.

        Raises:
            ClosedError: If the slot is closed.
        """
        if self._region is None:
            raise ClosedError("the landing slot is closed")
        return self._region

    @property
    def nbytes(self) -> int:
        """Bytes of the slot."""
        return self.layout.nbytes

    @property
    def generation(self) -> int:
        """The word in the region's header that grants of it carry."""
        return int(self.region.generation)

    def advance(self) -> int:
        """Begin a new generation, so that grants of older ones are stale; return it."""
        generation = self.generation + 1
        self.region.generation = generation
        return generation

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return a tensor over the slot's memory for every name of the manifest.

        Each has the wanted dtype and the shape of the wanted box, and a storage of its own; tied
        names share one tensor. Tensors without elements hold nothing alive.
        """
        buffer = self._hold()
        made = [
            _tensor(buffer, int(offset), meta.dtype, meta.box.sizes)
            for meta, offset in zip(self.manifest.canonical, self.layout.offsets, strict=True)
        ]
        if self._names is None:
            return {meta.name: made[meta.storage] for meta in self.manifest.tensors}
        metas = self.manifest.by_name
        return {name: made[metas[name].storage] for name in self._names}

    def tensors_alive(self) -> bool:
        """Whether any tensor over the slot, or anything that views or exports one, still lives."""
        return self._buffer is not None and self._buffer() is not None

    def abandon(self) -> Callable[[], None]:
        """Leave the memory to a writer that may still hold it, and go on with fresh memory.

        The old pages are given back, whoever maps them, unless tensors here still live over them:
        then they count as quarantined until those are gone. The new region's generation is above
        all of the old one.

        Returns:
            What gives the old pages back: slow, for any thread, and raises ``RegistrationError`` if
            the system keeps them.

        Raises:
            RegistrationError: If no fresh memory can be mapped; the slot may not be granted then.
        """
        old = self.region
        fresh = map_region(self.layout.nbytes)
        self._budget.add("slots", self.layout.nbytes)
        old.generation += 1
        # Punching moves the old one on once more.
        fresh.generation = old.generation + 2
        self._region = fresh
        punched = not self._forget_tensors()
        return partial(_retire, old, self._budget, self.nbytes, punched)

    def retire(self) -> Callable[[], None]:
        """End the slot; returns what gives its memory back, as soon as the last tensor over it is gone: slow, for any thread."""
        region, self._region = self._region, None
        if region is None:
            return lambda: None
        self._forget_tensors()
        return partial(_retire, region, self._budget, self.nbytes, False)

    def close(self) -> None:
        """Give the memory back, at once or when the last tensor over it is gone; idempotent."""
        self.retire()()

    def _forget_tensors(self) -> bool:
        """Whether tensors still live over the memory that is given up; it counts as quarantined until they are gone."""
        buffer = self._buffer() if self._buffer is not None else None
        self._buffer = None
        if self._telling is not None:
            # Nobody waits for a memory that is given up: tensors that live on must not keep alive whoever did.
            self._telling.detach()
            self._telling = None
        if buffer is None:
            return False
        self._budget.add("quarantined", self.nbytes)
        _when_gone(buffer, self._budget.remove, "quarantined", self.nbytes)
        return True

    def _hold(self) -> Buffer:
        region = self.region
        buffer = self._buffer() if self._buffer is not None else None
        if buffer is None:
            # One object that every tensor refers to, and that keeps the memory mapped.
            buffer = region.view()
            self._buffer = weakref.ref(buffer)
            if self._on_release is not None:
                self._telling = _when_gone(buffer, self._on_release)
        return buffer


def _retire(region: SharedRegion, budget: MemoryBudget, nbytes: int, punch: bool) -> None:
    try:
        if punch:
            region.punch()
    except OSError as error:
        raise RegistrationError(f"abandoned memory is not given back: {error}") from error
    finally:
        region.close()
        budget.remove("slots", nbytes)


def map_region(nbytes: int) -> SharedRegion:
    """Map *nbytes* of fresh shared memory.

    Raises:
        RegistrationError: If the system does not give it.
    """
    try:
        return SharedRegion.create(nbytes)
    except (OSError, MemoryError, ValueError) as error:
        refused = RegistrationError(
            f"{nbytes} bytes of shared memory cannot be mapped: {error}",
            hint="free memory, or raise the container's limit on shared memory and mappings",
        )
        raise exhausted(error, f"map {nbytes} bytes of shared memory") or refused from error


def _when_gone(buffer: Buffer, call: Callable[..., object], *args: object) -> weakref.finalize[..., Buffer]:
    found = weakref.finalize(buffer, call, *args)
    found.atexit = False
    return found


def _tensor(buffer: Buffer, offset: int, dtype: str, sizes: tuple[int, ...]) -> torch.Tensor:
    count = math.prod(sizes)
    kind: torch.dtype = getattr(torch, dtype)
    if not count:
        # Over memory of its own; torch.empty would warn about some dtypes.
        return torch.frombuffer(bytearray(kind.itemsize), dtype=kind).resize_(sizes)
    flat = torch.frombuffer(buffer, dtype=kind, count=count, offset=offset)
    return flat if len(sizes) == 1 else flat.resize_(sizes)
