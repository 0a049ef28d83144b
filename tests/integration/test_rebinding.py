"""Binding anew, and coming back: what it costs the trainers, and what the late and the returning get."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import wtransport
from tests.integration.conftest import linked, same
from wtransport.recorder.format import Op
from wtransport.recorder.reader import read_ring

if TYPE_CHECKING:
    from collections.abc import Callable


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((300_000,), float(value)), "b": torch.full((3, 5), float(value))}


def mappings() -> int:
    """Shared memory that this process, which all members of the test live in, has mapped."""
    return Path("/proc/self/maps").read_text().count("/memfd:")


async def settles(expected: int) -> None:
    async with asyncio.timeout(10):
        while mappings() != expected:
            await asyncio.sleep(0.01)


async def test_nobody_keeps_the_memory_of_an_old_binding_mapped(job: Callable[..., Any]) -> None:
    trainers = [await job("trainer", rank=rank, world_size=2, backend="shm") for rank in range(2)]
    generator = await job("generator", name="gen", backend="shm")
    before = mappings()
    await generator.bind(weights(0))
    for trainer in trainers:
        await linked(trainer)
    # Two slots, mapped by the generator and by each trainer, written by nobody yet.
    await settles(before + 6)
    for version in range(1, 4):
        await generator.bind(weights(0))
        await settles(before + 6)
        await asyncio.gather(*(trainer.put(weights(version), version) for trainer in trainers))
        with await generator.get(version) as update:
            assert same(update.tensors, weights(version))
        del update
    await generator.bind({"a": torch.zeros(300_000)})
    await settles(before + 6)


async def test_weights_trained_on_since_are_found_before_a_byte_moves(job: Callable[..., Any], settings: dict[str, Any]) -> None:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    mine = weights(1)
    await trainer.put(mine, 1)
    for tensor in mine.values():
        tensor.add_(1)
    await generator.bind(weights(0))
    with pytest.raises(wtransport.UnavailableError):
        await generator.get(timeout_s=2)
    with pytest.raises(wtransport.DeadlineError, match=r"version 1 was put, and nobody holds it any more.*snapshot=True"):
        await generator.get(timeout_s=0.2)
    assert (await trainer.put(mine, 2)).delivered == ("gen",)
    with await generator.get(2) as update:
        assert same(update.tensors, weights(2))
    (path,) = Path(settings["recorder_dir"]).rglob("*trainer-0*")
    served = [record for record in read_ring(path).records if record.op is Op.DELIVER and record.version == 1]
    assert [record.nbytes_done for record in served[1:]] == [0]


async def test_two_binds_at_once_are_one_after_the_other(job: Callable[..., Any]) -> None:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await asyncio.gather(generator.bind(weights(0)), generator.bind(weights(0)))
    await linked(trainer)
    assert (await trainer.put(weights(1), 1)).delivered == ("gen",)
    with await generator.get(1) as update:
        kept = update.tensors["a"]
    assert (await trainer.put(weights(2), 2)).delivered == ("gen",)
    assert (await trainer.put(weights(3), 3)).outcomes["gen"].name == "behind"
    assert kept.eq(1).all()
    del kept
    assert (await trainer.put(weights(4), 4)).delivered == ("gen",)


async def test_a_member_that_came_back_serves_what_it_holds(job: Callable[..., Any]) -> None:
    trainer, holder = await job("trainer"), await job("generator", name="holder")
    await holder.bind(weights(0))
    await linked(trainer)
    mine = weights(1)
    await trainer.put(mine, 1)
    before = {member.incarnation for member in await trainer.members() if member.name == "holder"}
    await trainer.exclude("holder", "a test")
    await trainer.admit("holder")
    async with asyncio.timeout(10):
        while not {member.incarnation for member in await trainer.members() if member.name == "holder"} - before:
            await asyncio.sleep(0.02)
    for tensor in mine.values():
        tensor.add_(1)  # from here on the holder alone has version 1
    late = await job("generator", name="late")
    await late.bind(weights(0))
    with await late.get(1, timeout_s=5) as update:
        assert update.version == 1
        assert same(update.tensors, weights(1))
