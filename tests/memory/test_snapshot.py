from __future__ import annotations

import pytest
import torch

from tests.memory.native import finish, take
from wtransport._native import DIGEST, Engine
from wtransport.errors import ClosedError
from wtransport.memory.budget import MemoryBudget
from wtransport.memory.landing_slot import LandingSlot
from wtransport.memory.snapshot import Snapshot
from wtransport.memory.tensors import inspect
from wtransport.weights.assign import assign
from wtransport.weights.plan import make_plan


def test_a_snapshot_keeps_the_values_of_its_moment_and_serves_them(engine: Engine) -> None:
    shared = torch.rand(50, 20)
    live = {"a": torch.rand(30, 40).t(), "b": shared, "c": shared, "d": torch.tensor(1, dtype=torch.int8)}
    expected = {name: tensor.clone() for name, tensor in live.items()}
    source = inspect(live)
    snapshot, taken = take(engine, source)
    for tensor in live.values():
        tensor.zero_()
    slot = LandingSlot(source.manifest, MemoryBudget())
    (assignment,) = assign([snapshot.manifest], slot.manifest)
    plan = make_plan(snapshot.manifest, slot.manifest, assignment)
    spans = plan.from_region(snapshot.layout)
    work = engine.copy(snapshot.region, slot.region, spans, plan.num_tensors, DIGEST)
    assert finish(engine, work).digests().tolist() == taken.tolist()
    tensors = slot.tensors()
    assert all(tensors[name].equal(tensor) for name, tensor in expected.items())
    assert tensors["b"] is tensors["c"]
    snapshot.close()
    slot.close()


def test_its_bytes_are_counted_until_it_is_closed() -> None:
    budget = MemoryBudget()
    manifest = inspect({"w": torch.zeros(100)}).manifest
    snapshot = Snapshot(manifest, budget)
    assert budget.mapped("snapshots") == budget.nbytes == 512
    snapshot.close()
    snapshot.close()
    assert (budget.nbytes, budget.peak_nbytes) == (0, 512)
    with pytest.raises(ClosedError):
        _ = snapshot.region
