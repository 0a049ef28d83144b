from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.memory.native import filled, raw, take
from wtransport.memory.budget import MemoryBudget
from wtransport.memory.landing_slot import LandingSlot
from wtransport.memory.refusal import dtype_name
from wtransport.memory.tensors import inspect
from wtransport.weights.box import Box
from wtransport.weights.digest import digest_bytes
from wtransport.weights.dtypes import ITEMSIZE
from wtransport.weights.manifest import Manifest, TensorMeta

if TYPE_CHECKING:
    from wtransport._native import Engine

TORCH = {dtype_name(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
MOVABLE = sorted(name for name in TORCH if "qint" not in name and "quint" not in name)


def test_the_table_is_what_torch_has() -> None:
    assert sorted(set(ITEMSIZE) & set(TORCH)) == MOVABLE
    assert {name: ITEMSIZE[name] for name in MOVABLE} == {name: TORCH[name].itemsize for name in MOVABLE}


@pytest.mark.parametrize("name", MOVABLE)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 7)])
def test_every_dtype_goes_bit_for_bit(engine: Engine, name: str, shape: tuple[int, ...]) -> None:
    tensor = filled(TORCH[name], shape)
    source = inspect({"w": tensor})
    (meta,) = source.manifest.tensors
    assert meta == TensorMeta("w", name, shape, Box.whole(shape), 0)
    snapshot, digests = take(engine, source)
    offset = int(snapshot.layout.offsets[0])
    assert bytes(snapshot.region.view()[offset : offset + meta.nbytes]) == raw(tensor)
    assert int(digests[0]) == digest_bytes(raw(tensor), 0)
    snapshot.close()


@pytest.mark.parametrize("name", MOVABLE)
@pytest.mark.parametrize("shape", [(), (2, 0), (5,), (3, 7)])
def test_every_dtype_has_a_landing_tensor(name: str, shape: tuple[int, ...]) -> None:
    budget = MemoryBudget()
    slot = LandingSlot(Manifest((TensorMeta.full("w", name, shape, 0),)), budget)
    tensor = slot.tensors()["w"]
    expected = filled(TORCH[name], shape, seed=1)
    slot.region.view()[: len(raw(expected))] = list(raw(expected))
    assert (tensor.dtype, tuple(tensor.shape)) == (TORCH[name], shape)
    assert raw(tensor) == raw(expected)
    assert tensor.is_contiguous()
    slot.close()
