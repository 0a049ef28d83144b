"""Copies by the native engine, waited for, and the bytes of tensors of any kind."""

from __future__ import annotations

import ctypes
import select
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from wtransport._native import DIGEST, Engine, LocalRegion
from wtransport.memory.budget import MemoryBudget
from wtransport.memory.snapshot import Snapshot

if TYPE_CHECKING:
    from wtransport.memory.tensors import SourceWeights

_WAIT_S = 30.0


def finish(engine: Engine, work: Any) -> Any:
    """Wait until *work* has settled and return it; it must have gone well."""
    while not work.settled():
        ready, _, _ = select.select([engine], [], [], _WAIT_S)
        assert ready, "the copy did not settle"
        engine.drain()
    assert work.code() == 0, work.detail()
    return work


def take(engine: Engine, source: SourceWeights) -> tuple[Snapshot, npt.NDArray[np.uint64]]:
    """Copy *source* into a snapshot; return it and the digest of each canonical tensor."""
    snapshot = Snapshot(source.manifest, MemoryBudget())
    spans, count = snapshot.plan.spans, snapshot.plan.num_tensors
    region = LocalRegion(list(source.blocks))
    work = finish(engine, engine.copy(region, snapshot.region, spans, count, DIGEST))
    return snapshot, work.digests()


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a contiguous tensor, whatever its dtype, without an operator of torch."""
    assert tensor.is_contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """A contiguous tensor of *dtype* with random bytes: NaN payloads and -0.0 among them."""
    count = int(np.prod(shape))
    if not count:
        return torch.frombuffer(bytearray(dtype.itemsize), dtype=dtype).resize_(shape)
    rng = np.random.default_rng(seed)
    high = 2 if dtype is torch.bool else 256
    data = rng.integers(0, high, count * dtype.itemsize, dtype=np.uint8)
    return torch.frombuffer(bytearray(data.tobytes()), dtype=dtype).resize_(shape)
