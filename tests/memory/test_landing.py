from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.memory.native import filled, finish
from wtransport._native import DIGEST, LocalRegion, SharedRegion
from wtransport.errors import ClosedError, RegistrationError
from wtransport.memory.budget import MemoryBudget
from wtransport.memory.landing_slot import LandingSlot
from wtransport.memory.tensors import inspect
from wtransport.weights.assign import assign
from wtransport.weights.box import Box
from wtransport.weights.manifest import Manifest, TensorMeta
from wtransport.weights.plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wtransport._native import Engine

MANIFEST = Manifest(
    (
        TensorMeta.full("embed", "float32", (3000, 4), 0),
        TensorMeta.full("head", "float32", (3000, 4), 0),
        TensorMeta.full("scale", "bfloat16", (), 1),
        TensorMeta.full("nothing", "int8", (0, 7), 2),
        TensorMeta("shard", "int16", (8, 6), Box((4, 0), (4, 6)), 3),
    )
)


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget()


@pytest.fixture
def slot(budget: MemoryBudget) -> Iterator[LandingSlot]:
    slot = LandingSlot(MANIFEST, budget)
    yield slot
    slot.close()


def test_tensors_have_the_wanted_dtypes_and_local_shapes(slot: LandingSlot) -> None:
    tensors = slot.tensors()
    assert {name: (str(t.dtype), tuple(t.shape)) for name, t in tensors.items()} == {
        "embed": ("torch.float32", (3000, 4)),
        "head": ("torch.float32", (3000, 4)),
        "scale": ("torch.bfloat16", ()),
        "nothing": ("torch.int8", (0, 7)),
        "shard": ("torch.int16", (4, 6)),
    }
    assert tensors["embed"] is tensors["head"]
    assert all(t.is_contiguous() and not t.requires_grad for t in tensors.values())
    assert tensors["shard"].untyped_storage().nbytes() == 48


def test_tensors_see_what_lands_and_the_slot_is_a_source(engine: Engine, slot: LandingSlot) -> None:
    model = {
        "embed": filled(torch.float32, (3000, 4)),
        "scale": torch.tensor(1.5, dtype=torch.bfloat16),
        "nothing": torch.empty(0, 7, dtype=torch.int8),
        "shard": torch.arange(48, dtype=torch.int16).reshape(8, 6),
    }
    model["head"] = model["embed"]
    source = inspect(model)
    (assignment,) = assign([source.manifest], slot.manifest)
    plan = make_plan(source.manifest, slot.manifest, assignment)
    region = LocalRegion(list(source.blocks))
    copied = engine.copy(region, slot.region, plan.spans, plan.num_tensors, DIGEST)
    sent = finish(engine, copied).digests()
    tensors = slot.tensors()
    assert tensors["embed"].view(torch.int32).equal(model["embed"].view(torch.int32))
    assert tensors["shard"].equal(model["shard"][4:])
    assert tensors["scale"].item() == 1.5
    reread = engine.digest(slot.region, plan.spans, plan.num_tensors)
    assert finish(engine, reread).digests().tolist() == sent.tolist()
    second = LandingSlot(slot.manifest, MemoryBudget())
    (own,) = assign([slot.manifest], second.manifest)
    reading = make_plan(slot.manifest, second.manifest, own).reading(slot.layout)
    read = engine.copy_from(slot.region, second.region, reading, plan.num_tensors, DIGEST)
    assert finish(engine, read).digests().tolist() == sent.tolist()
    assert second.tensors()["shard"].equal(model["shard"][4:])
    second.close()


def through(kind: str, tensors: dict[str, torch.Tensor]) -> object:
    tensor = tensors["embed"]
    made: dict[str, Callable[[], object]] = {
        "tensor": lambda: tensor,
        "view": lambda: tensor[10:20, 1],
        "storage": lambda: tensor.untyped_storage(),
        "numpy": lambda: tensor.numpy(),
        "dlpack": lambda: torch.from_dlpack(tensor),
        "parameter": lambda: torch.nn.Parameter(tensor),
        "detached": lambda: tensor.detach(),
        "other name": lambda: tensors["scale"],
        "memoryview": lambda: memoryview(tensor.numpy()),
    }
    return made[kind]()


@pytest.mark.parametrize(
    "kind",
    [
        "tensor",
        "view",
        "storage",
        "numpy",
        "dlpack",
        "parameter",
        "detached",
        "other name",
        "memoryview",
    ],
)
def test_anything_over_the_memory_keeps_it_alive(budget: MemoryBudget, kind: str) -> None:
    released = threading.Event()
    slot = LandingSlot(MANIFEST, budget, released.set)
    assert not slot.tensors_alive()
    kept: object = through(kind, slot.tensors())
    gc.collect()
    assert slot.tensors_alive()
    assert not released.is_set()
    del kept
    gc.collect()
    assert not slot.tensors_alive()
    assert released.is_set()
    slot.close()


def test_tensors_of_two_calls_count_together(slot: LandingSlot) -> None:
    first = slot.tensors()
    second = slot.tensors()
    assert first["embed"].data_ptr() == second["embed"].data_ptr()
    del first
    assert slot.tensors_alive()
    del second
    assert not slot.tensors_alive()


def test_release_is_told_each_time_and_from_the_thread_that_drops(budget: MemoryBudget) -> None:
    tellers: list[int] = []
    slot = LandingSlot(MANIFEST, budget, lambda: tellers.append(threading.get_ident()))
    box = [slot.tensors()]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    del box
    assert tellers == [thread.ident]
    slot.tensors()
    assert tellers == [thread.ident, threading.get_ident()]
    slot.close()


def test_empty_tensors_alone_hold_nothing(slot: LandingSlot) -> None:
    empty = slot.tensors()["nothing"]
    assert not slot.tensors_alive()
    assert empty.numel() == 0


def test_tensors_outlive_a_closed_slot(budget: MemoryBudget) -> None:
    slot = LandingSlot(MANIFEST, budget)
    tensor = slot.tensors()["embed"]
    tensor.fill_(7.0)
    slot.close()
    slot.close()
    assert (budget.mapped("slots"), budget.mapped("quarantined")) == (0, slot.nbytes)
    assert tensor.eq(7.0).all()
    tensor.fill_(8.0)
    del tensor
    assert budget.nbytes == 0
    assert budget.peak_nbytes >= slot.nbytes
    with pytest.raises(ClosedError):
        slot.tensors()
    with pytest.raises(ClosedError):
        slot.abandon()


def test_abandoned_memory_is_given_back_though_a_peer_still_maps_it(slot: LandingSlot, budget: MemoryBudget) -> None:
    old, generation = slot.region, slot.generation
    old.view()[:] = 5
    peer = SharedRegion.attach(old.fileno(), old.nbytes, True)
    assert os.fstat(peer.fileno()).st_blocks * 512 >= slot.nbytes
    give_back = slot.abandon()
    fresh = slot.region
    assert fresh is not old
    give_back()
    assert os.fstat(peer.fileno()).st_blocks * 512 <= 2 * 4096
    assert not peer.view().any()
    assert peer.generation > generation
    assert fresh.generation > peer.generation
    peer.view()[:] = 9
    assert not slot.tensors()["embed"].any()
    assert budget.mapped("slots") == slot.nbytes
    peer.close()


def test_tensors_over_abandoned_memory_keep_their_values(slot: LandingSlot, budget: MemoryBudget) -> None:
    tensor = slot.tensors()["embed"]
    tensor.fill_(3.0)
    slot.abandon()()
    assert not slot.tensors_alive()
    assert budget.mapped("quarantined") == slot.nbytes
    assert tensor.eq(3.0).all()
    assert not slot.tensors()["embed"].any()
    del tensor
    assert budget.mapped("quarantined") == 0


def test_advance_makes_older_grants_stale(slot: LandingSlot) -> None:
    before = slot.generation
    assert slot.advance() == slot.generation == before + 1
    other = SharedRegion.attach(slot.region.fileno(), slot.nbytes, False)
    assert other.generation == before + 1
    other.close()


def test_memory_that_is_not_there_is_a_registration_error(budget: MemoryBudget) -> None:
    huge = Manifest((TensorMeta.full("w", "uint8", (1 << 59,), 0),))
    with pytest.raises(RegistrationError, match="cannot be mapped"):
        LandingSlot(huge, budget)
    assert budget.nbytes == 0


def test_an_empty_binding_has_a_slot(budget: MemoryBudget) -> None:
    slot = LandingSlot(Manifest(()), budget)
    assert slot.tensors() == {}
    assert (slot.nbytes, budget.nbytes) == (0, 0)
    slot.abandon()()
    slot.close()


def test_a_slot_that_ends_while_its_old_memory_is_given_back(slot: LandingSlot, budget: MemoryBudget) -> None:
    give_back = slot.abandon()
    slot.close()
    give_back()
    assert budget.nbytes == 0


def test_saving_one_tensor_saves_its_bytes_only(slot: LandingSlot) -> None:
    tensors = slot.tensors()
    storages = {t.untyped_storage().data_ptr() for t in tensors.values() if t.numel()}
    assert len(storages) == 3
    assert np.array_equal(tensors["shard"].numpy(), np.zeros((4, 6)))
