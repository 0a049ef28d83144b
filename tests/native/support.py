"""What the tests of the native core share."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wtransport import _native

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

_WAIT_S = 60.0

CODES = _native.error_codes()


def region_of(tensors: Sequence[torch.Tensor]) -> _native.LocalRegion:
    """Describe tensors by reference; the caller keeps them."""
    return _native.LocalRegion(
        [(t.data_ptr(), t.element_size(), tuple(t.shape), tuple(s * t.element_size() for s in t.stride())) for t in tensors]
    )


def table(*rows: tuple[int, int, int, int, int, int]) -> npt.NDArray[np.int64]:
    """Make a span table of (block, src, dst, nbytes, tensor, position) rows."""
    return np.array(rows, dtype=np.int64).reshape(-1, 6)


def packed(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.int64]:
    """Make the table that lays whole tensors one after another, each its own digest accumulator."""
    sizes = [t.numel() * t.element_size() for t in tensors]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return table(*((i, 0, int(starts[i]), size, i, 0) for i, size in enumerate(sizes)))


def events(engine: _native.Engine) -> Iterator[tuple[int, int, int, int]]:
    """Yield the engine's events as they come; fail when none comes for a minute."""
    while True:
        readable, _, _ = select.select([engine.fileno()], [], [], _WAIT_S)
        assert readable, "no event within a minute"
        yield from engine.drain()


def settle(engine: _native.Engine, work: _native.Work) -> _native.Work:
    """Wait until a work has settled, by its event unless it had settled before; older events are passed over."""
    if not work.settled():
        for kind, ident, code, value in events(engine):
            if ident == work.id:
                assert (kind, code, value) == (0, work.code(), work.progress())
                break
    assert work.settled()
    return work
