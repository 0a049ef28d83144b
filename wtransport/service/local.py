"""Native work on this process's own memory, as awaitable works with deadlines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wtransport import _native
from wtransport.backends.deadline import Deadline
from wtransport.backends.native_errors import Where

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.backends.base import MemoryRegion
    from wtransport.backends.work import Mover, Work
    from wtransport.errors import TransportError
    from wtransport.service.context import Context

Spans = npt.NDArray[np.int64]
Region = _native.LocalRegion | _native.SharedRegion


def copy(context: Context, source: MemoryRegion, target: _native.SharedRegion, spans: Spans, num_digests: int, *, digest: bool) -> Work:
    """Copy *source* into *target*; digests of what was read are taken in the same pass."""
    flags = _native.DIGEST if digest else 0
    nbytes = int(spans[:, 3].sum())
    return _run(
        context, source, "snapshot", nbytes, num_digests, lambda: context.engine.copy(source.memory, target, spans, num_digests, flags)
    )


def digest(context: Context, region: MemoryRegion, spans: Spans, num_digests: int, phase: str) -> Work:
    """Read *region* again and digest it (a shared region by column 2, a private one by columns 0 and 1)."""
    nbytes = int(spans[:, 3].sum())
    return _run(context, region, phase, nbytes, num_digests, lambda: context.engine.digest(region.memory, spans, num_digests))


def populate(context: Context, region: MemoryRegion) -> Work:
    """Fault in every page of a shared region, so that the first write to it runs at full speed."""
    memory = region.memory
    assert isinstance(memory, _native.SharedRegion)
    return _run(context, region, "populate", region.nbytes, 0, lambda: context.engine.populate(memory))


def _run(context: Context, region: MemoryRegion, phase: str, nbytes: int, num_digests: int, start: Callable[[], Mover]) -> Work:
    where = Where(backend=region.backend, peer="this process", epoch=0, phase=phase)
    deadline = Deadline(context.config.stall_timeout_s)
    work = context.driver.open(region, nbytes=nbytes, num_digests=num_digests, deadline=deadline, where=where, abort=_no_endpoint)
    context.driver.start(work, start())
    return work


def _no_endpoint(reason: TransportError) -> None:
    """Local work has no endpoint that could be aborted: it is quarantined if it does not stop."""
