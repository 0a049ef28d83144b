"""One trainer, generators: what a put says, what a generator sees."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import torch

import wtransport
from tests.integration.conftest import linked, same

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ["shm", "tcp", "inproc"]


def weights(version: int, num_tensors: int = 8) -> dict[str, torch.Tensor]:
    return {f"layer.{i}.weight": torch.full((64, 33), float(version * 100 + i)) for i in range(num_tensors)}


@pytest.mark.parametrize("verify", ["off", "wire", "full"])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_versions_arrive_whole(job: Callable[..., Any], backend: str, verify: str) -> None:
    config = {"verify": verify}
    trainer = await job("trainer", backend=backend, config=config)
    generator = await job("generator", name="gen", backend=backend, config=config)
    assert await generator.bind(weights(0)) > 0
    await linked(trainer)
    updates = generator.updates()
    for version in range(1, 6):
        receipt = await trainer.put(weights(version), version)
        assert receipt.delivered == ("gen",), receipt
        assert receipt.nbytes == sum(t.numel() * 4 for t in weights(0).values())
        with await anext(updates) as update:
            assert update.version == version
            assert same(update.tensors, weights(version))
    await updates.aclose()
    [link] = [link for link in await trainer.describe() if link.direction == "to"]
    assert link.backend == backend


async def test_a_put_before_any_generator_serves_a_late_joiner(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    source = weights(7)
    receipt = await trainer.put(source, 7)
    assert receipt.outcomes == {}
    generator = await job("generator", name="late")
    await generator.bind(weights(0))
    with await generator.get() as update:
        assert update.version == 7
        assert same(update.tensors, source)


async def test_a_late_joiner_is_not_served_from_changed_weights(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    source = weights(1)
    await trainer.put(source, 1)
    source["layer.0.weight"].add_(1)
    generator = await job("generator", name="late")
    await generator.bind(weights(0))
    with pytest.raises((wtransport.UnavailableError, wtransport.DeadlineError)):
        await generator.get(1, timeout_s=5)


async def test_a_snapshot_serves_a_late_joiner_whatever_training_does(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    source = weights(1)
    handle = trainer.put_nowait(source, 1, snapshot=True)
    await handle.source_free
    for tensor in source.values():
        tensor.zero_()
    assert (await handle).version == 1
    generator = await job("generator", name="late")
    await generator.bind(weights(0))
    with await generator.get() as update:
        assert same(update.tensors, weights(1))


async def test_a_generator_serves_another_when_the_trainer_cannot(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    first = await job("generator", name="first")
    await first.bind(weights(0))
    await linked(trainer)
    source = weights(3)
    assert (await trainer.put(source, 3)).delivered == ("first",)
    for tensor in source.values():
        tensor.zero_()
    second = await job("generator", name="second")
    await second.bind(weights(0))
    with await second.get() as update:
        assert update.version == 3
        assert same(update.tensors, weights(3))


async def test_a_leased_update_does_not_change_and_its_generator_is_behind(job: Callable[..., Any]) -> None:
    config = {"credit_timeout_s": 0.2}
    trainer = await job("trainer", config=config)
    generator = await job("generator", name="gen", config=config)
    await generator.bind(weights(0))
    await linked(trainer)
    await trainer.put(weights(1), 1)
    held = await generator.get()
    assert (await trainer.put(weights(2), 2)).delivered == ("gen",)
    receipt = await trainer.put(weights(3), 3)
    assert receipt.behind == ("gen",), receipt
    assert same(held.tensors, weights(1))
    held.release()
    with await generator.get(3, timeout_s=10) as update:
        assert same(update.tensors, weights(3))


async def test_a_kept_tensor_is_never_overwritten(job: Callable[..., Any]) -> None:
    config = {"credit_timeout_s": 0.2}
    trainer = await job("trainer", config=config)
    generator = await job("generator", name="gen", config=config)
    await generator.bind(weights(0))
    await linked(trainer)
    await trainer.put(weights(1), 1)
    with await generator.get() as update:
        kept = update.tensors["layer.0.weight"][1:3]
    await trainer.put(weights(2), 2)
    receipt = await trainer.put(weights(3), 3)
    assert receipt.behind == ("gen",)
    assert "referenced" in receipt.outcomes["gen"].reason
    assert bool((kept == 100.0).all())
    del kept
    with await generator.get(3, timeout_s=10) as update:
        assert same(update.tensors, weights(3))


async def test_updates_skip_what_was_overtaken(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    generator = await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    for version in range(1, 5):
        await trainer.put(weights(version), version)
    updates = generator.updates()
    with await anext(updates) as update:
        assert update.version == 4
    await updates.aclose()


async def test_the_receipt_counts_changed_tensors_and_an_unchanged_version_is_an_event(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    generator = await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    events = trainer.events()
    following = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    source = weights(1)
    assert (await trainer.put(source, 1)).changed is None
    source["layer.3.weight"][0, 0] = -1
    assert (await trainer.put(source, 2)).changed == 1
    assert (await trainer.put(source, 3)).changed == 0
    async with asyncio.timeout(10):
        event = await following
        while event.kind != "unchanged":
            event = await anext(events)
    assert event.version == 3
    await events.aclose()


async def test_a_put_overtakes_none_that_a_sink_has_started(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    generator = await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    sources = [weights(version) for version in range(1, 9)]
    handles = [trainer.put_nowait(source, version, snapshot=True) for version, source in enumerate(sources, 1)]
    receipts = await asyncio.gather(*handles)
    assert all(set(receipt.outcomes) == {"gen"} for receipt in receipts)
    assert receipts[-1].outcomes["gen"].name in ("delivered", "behind")
    with await generator.get(8, timeout_s=10) as update:
        assert same(update.tensors, weights(8))


async def test_one_slow_generator_delays_neither_the_trainer_nor_the_others(job: Callable[..., Any]) -> None:
    config = {"credit_timeout_s": 0.3}
    trainer = await job("trainer", config=config)
    slow = await job("generator", name="slow", config=config)
    quick = await job("generator", name="quick", config=config)
    for generator in (slow, quick):
        await generator.bind(weights(0))
    await linked(trainer, 2)
    await trainer.put(weights(1), 1)
    held = await slow.get()
    for version in range(2, 6):
        receipt = await trainer.put(weights(version), version)
        assert "quick" in receipt.delivered
        with await quick.get(version) as update:
            assert same(update.tensors, weights(version))
    assert receipt.outcomes["slow"].name == "behind"
    assert same(held.tensors, weights(1))
    held.release()
    with await slow.get(5, timeout_s=10) as update:
        assert same(update.tensors, weights(5))


async def test_a_second_bind_lands_in_new_memory(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    generator = await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    await trainer.put(weights(1), 1)
    kept = await generator.get()
    await generator.bind(weights(0))
    receipt = await trainer.put(weights(2), 2)
    assert receipt.outcomes["gen"].name in ("delivered", "behind")
    with await generator.get(2, timeout_s=10) as update:
        assert same(update.tensors, weights(2))
    assert same(kept.tensors, weights(1))
    kept.release()


async def test_the_blocking_adapter_puts_and_gets(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    generator = await job("generator", name="gen")

    def work() -> bool:
        generator.blocking.bind(weights(0))
        trainer.blocking.put(weights(1), 1)
        with generator.blocking.get(1) as update:
            first = same(update.tensors, weights(1))
        handle = trainer.blocking.put_nowait(weights(2), 2, snapshot=True)
        handle.result(20)
        updates = generator.blocking.updates()
        with next(updates) as update:
            second = update.version in (1, 2)
        return first and second and {member.name for member in trainer.blocking.members()} == {"trainer-0", "gen"}

    assert await asyncio.to_thread(work)
