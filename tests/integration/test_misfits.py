"""Bindings that do not fit what is put, and puts that do not fit what is bound: who is told, and who goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import torch

import wtransport
from tests.integration.conftest import linked, same

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("w0", "w1", "w2", "w3")


def weights(value: float, names: tuple[str, ...] = NAMES) -> dict[str, torch.Tensor]:
    return {name: torch.full((100,), float(value)) for name in names}


MISFITS = {
    "one tensor alone": (weights(0, ("w1",)), "not wanted by the generator: w0, w2, w3"),
    "another shape": (weights(0) | {"w1": torch.zeros(7)}, r"of another shape: w1 \(\(7,\) wanted, \(100,\) held\)"),
    "another dtype": (weights(0) | {"w1": torch.zeros(100, dtype=torch.int8)}, "of another dtype: w1"),
    "one too many": (weights(0) | {"extra": torch.zeros(1)}, "held by no trainer: extra"),
}


@pytest.mark.parametrize("backend", ["shm", "tcp"])
@pytest.mark.parametrize("holder", ["trainer", "generator"])
async def test_a_later_binding_that_does_not_fit_says_so(job: Callable[..., Any], holder: str, backend: str) -> None:
    """Each time it is asked, as a first one would; and a right binding afterwards works."""
    trainer, generator = await job("trainer", backend=backend), await job("generator", name="gen", backend=backend)
    other = await job("generator", name="other", backend=backend)
    for member in (generator, other):
        await member.bind(weights(0))
    await linked(trainer, 2)
    source = weights(5)
    await trainer.put(source, 5, snapshot=holder == "trainer")
    if holder == "trainer":
        await other.close()
    else:
        source["w0"].add_(1)  # the trainer cannot serve it any more
    for bad, why in MISFITS.values():
        for _ in range(2):
            await generator.bind(bad)
            for _ in range(2):
                with pytest.raises(wtransport.ManifestMismatchError, match=why):
                    await generator.get(timeout_s=5)
        with pytest.raises(wtransport.ManifestMismatchError, match=why):
            await generator.ready(timeout_s=5)
    await generator.bind(weights(0))
    with await generator.get(timeout_s=5) as update:
        assert same(update.tensors, weights(5))


WRONG = {
    "one lacks": (weights(2, NAMES[:3]), "held by no trainer: w3"),
    "one too many": (weights(2, (*NAMES, "w4")), "not wanted by the generator: w4"),
    "another shape": (weights(2) | {"w1": torch.zeros(7)}, "of another shape: w1"),
    "other names": ({f"model.{name}": tensor for name, tensor in weights(2).items()}, "model"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("nowait", [False, True])
async def test_a_put_that_fits_no_follower_is_refused_before_anything_moves(job: Callable[..., Any], wrong: str, nowait: bool) -> None:
    trainer, first, second = await job("trainer"), await job("generator", name="first"), await job("generator", name="second")
    seen: list[int] = []

    async def follow() -> None:
        async for update in first.updates():
            with update:
                seen.append(update.version)

    for member in (first, second):
        await member.bind(weights(0))
    following = asyncio.ensure_future(follow())
    await linked(trainer, 2)
    assert (await trainer.put(weights(1), 1)).delivered == ("first", "second")
    bad, why = WRONG[wrong]
    with pytest.raises(wtransport.ManifestMismatchError, match=rf"fit none of the generators that follow \(first, second\).*{why}"):
        await (trainer.put_nowait(bad, 2, snapshot=True) if nowait else trainer.put(bad, 2))
    receipt = await trainer.put(weights(2), 2)  # the number was not used up
    assert receipt.delivered == ("first", "second")
    with await second.get(2) as update:
        assert same(update.tensors, weights(2))
    async with asyncio.timeout(10):
        while seen[-1:] != [2]:
            await asyncio.sleep(0.01)
    following.cancel()


async def test_of_several_ranks_one_that_puts_what_nobody_wants_is_refused(job: Callable[..., Any]) -> None:
    """A name that is missing may come from another rank; a shape that is wrong is wrong."""
    trainers = [await job("trainer", rank=rank, world_size=2) for rank in range(2)]
    generator = await job("generator", name="gen")
    await generator.bind(weights(0))
    for trainer in trainers:
        await linked(trainer)
    halves = [NAMES[:2], NAMES[2:]]

    async def put(version: int, parts: list[tuple[str, ...]]) -> None:
        await asyncio.gather(*(item.put(weights(version, part), version) for item, part in zip(trainers, parts, strict=True)))

    await put(1, halves)
    for bad in (weights(2, halves[0]) | {"w1": torch.zeros(7)}, weights(2, (*halves[0], "w4"))):
        with pytest.raises(wtransport.ManifestMismatchError, match="fit none"):
            await trainers[0].put(bad, 2)
    await put(2, [NAMES[:3], NAMES[3:]])
    with await generator.get(2) as update:
        assert same(update.tensors, weights(2))


async def test_a_generator_whose_binding_never_fitted_holds_nobody_up(job: Callable[..., Any]) -> None:
    trainer, generator, stray = await job("trainer"), await job("generator", name="gen"), await job("generator", name="stray")
    await generator.bind(weights(0))
    await stray.bind(weights(0, ("w9",)))
    await linked(trainer, 2)
    for version in (1, 2):
        receipt = await trainer.put(weights(version), version)
        assert receipt.delivered == ("gen",)
        assert receipt.outcomes["stray"].name == "excluded"


async def test_generators_that_bind_anew_first_make_way_for_other_weights(job: Callable[..., Any]) -> None:
    trainer, generator, late = await job("trainer"), await job("generator", name="gen"), await job("generator", name="late")
    for member in (generator, late):
        await member.bind(weights(0))
    await linked(trainer, 2)
    await trainer.put(weights(1), 1)
    other = weights(2, ("x", "y"))
    await generator.bind(other)
    receipt = await trainer.put(other, 2)
    assert receipt.outcomes["gen"].name == "delivered"
    assert receipt.outcomes["late"].name == "excluded"
    with pytest.raises(wtransport.ManifestMismatchError):
        await late.get(2, timeout_s=5)
    await late.bind(other)
    with await late.get(2, timeout_s=5) as update:
        assert same(update.tensors, other)


async def test_a_put_that_reaches_nobody_says_so(job: Callable[..., Any]) -> None:
    trainer, stray = await job("trainer"), await job("generator", name="stray")
    events: list[Any] = []

    async def listen() -> None:
        async for event in trainer.events():
            events.append(event)

    listening = asyncio.ensure_future(listen())
    await stray.bind(weights(0, ("w9",)))
    await linked(trainer)
    receipt = await trainer.put(weights(1), 1)
    assert receipt.delivered == ()
    async with asyncio.timeout(10):
        while not (told := [event for event in events if event.kind == "undelivered"]):
            await asyncio.sleep(0.01)
    assert (told[0].version, told[0].member) == (1, "trainer-0")
    assert "none of 1 bound generator(s): stray excluded: " in told[0].detail
    listening.cancel()


async def test_tensors_come_in_the_order_that_was_bound(job: Callable[..., Any]) -> None:
    names = ("z", "a", "m", "b10", "b2")
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0, names))
    await linked(trainer)
    await trainer.put(weights(1, tuple(sorted(names))), 1)
    with await generator.get(1) as update:
        assert tuple(update.tensors) == names
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 1))
    await generator.bind(torch.nn.DataParallel(model))
    await trainer.put(model.state_dict(), 2)
    with await generator.get(2) as update:
        assert list(update.tensors) == list(model.state_dict())
        assert same(update.tensors, model.state_dict())
