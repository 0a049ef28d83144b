"""The straggler policies of a put, against a generator that reads both of its slots and gives neither back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import torch

import wtransport
from tests.integration.conftest import linked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Join = Callable[..., Any]


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((1024,), value)}


@pytest.fixture
def held() -> Iterator[list[wtransport.Update]]:
    """Versions that the slow generator keeps in its hands."""
    updates: list[wtransport.Update] = []
    yield updates
    for update in updates:
        update.release()


async def started(job: Join, held: list[wtransport.Update], **config: Any) -> tuple[wtransport.Transport, wtransport.Transport]:
    """A trainer with those settings and a slow generator that holds versions 1 and 2; another, called good, keeps up."""
    trainer = await job("trainer", config=config)
    for name in ("good", "slow"):
        generator = await job("generator", name=name)
        await generator.bind(weights(0.0))
    await linked(trainer, 2)
    for version in (1, 2):
        await trainer.put(weights(float(version)), version)
        held.append(await generator.get(version))
    return trainer, generator


async def test_wait_gives_it_the_time_it_needs(job: Join, held: list[wtransport.Update]) -> None:
    trainer, _ = await started(job, held, straggler="wait", straggler_timeout_s=10.0)
    handle = trainer.put_nowait(weights(3.0), 3)
    with pytest.raises(TimeoutError):
        # Longer than the credit time: by default it would be behind by now.
        await asyncio.wait_for(handle, 1.5)
    held.pop(0).release()
    receipt = await handle
    assert receipt.delivered == ("good", "slow")


async def test_wait_ends_in_behind(job: Join, held: list[wtransport.Update]) -> None:
    trainer, _ = await started(job, held, straggler="wait", straggler_timeout_s=0.3)
    receipt = await trainer.put(weights(3.0), 3)
    assert (receipt.delivered, receipt.behind) == (("good",), ("slow",))


async def test_exclude_puts_it_out_and_it_comes_back_by_catch_up(job: Join, held: list[wtransport.Update]) -> None:
    trainer, slow = await started(job, held, straggler="exclude", straggler_timeout_s=0.3)
    receipt = await trainer.put(weights(3.0), 3)
    assert receipt.delivered == ("good",)
    assert receipt.outcomes["slow"].name == "excluded"
    state = {item.name: item for item in await trainer.members()}["slow"]
    assert state.state == "excluded"
    assert "lease" in state.cause or "slot" in state.cause
    assert bool((held[1].tensors["w"] == 2.0).all())  # it keeps what it has
    for update in held:
        update.release()
    held.clear()
    del update
    await trainer.admit("slow")
    with await slow.get(3, timeout_s=10) as update:
        assert bool((update.tensors["w"] == 3.0).all())
    assert await slow.ready() == 3


async def test_exclude_keeps_the_healthy_minimum(job: Join, held: list[wtransport.Update]) -> None:
    trainer, _ = await started(job, held, straggler="exclude", straggler_timeout_s=0.3, min_healthy=2)
    receipt = await trainer.put(weights(3.0), 3)
    assert (receipt.delivered, receipt.behind) == (("good",), ("slow",))
    assert "min_healthy=2" in receipt.outcomes["slow"].reason  # type: ignore[union-attr]
    assert {item.state for item in await trainer.members()} == {"live"}


async def test_raise_names_who_is_late_once_the_others_are_served(job: Join, held: list[wtransport.Update]) -> None:
    trainer, _ = await started(job, held, straggler="raise", straggler_timeout_s=0.3)
    with pytest.raises(wtransport.UndeliveredError, match="version 3 was not taken by 1 generator") as caught:
        await trainer.put(weights(3.0), 3)
    error = caught.value
    assert (error.peer, error.version) == ("slow", 3)
    assert error.receipt.delivered == ("good",)
    for lease in held:  # it may pull version 3 into the one slot before version 4 is put into the other
        lease.release()
    receipt = await trainer.put(weights(4.0), 4)
    assert receipt.delivered == ("good", "slow")


async def test_a_quorum_that_is_not_reached_is_an_error(job: Join, held: list[wtransport.Update]) -> None:
    trainer, _ = await started(job, held, min_delivered=2, credit_timeout_s=0.3)
    with pytest.raises(wtransport.UndeliveredError, match=r"reached 1 generator\(s\), min_delivered=2") as caught:
        await trainer.put(weights(3.0), 3)
    assert "slow behind" in str(caught.value)
    handle = trainer.put_nowait(weights(4.0), 4, snapshot=True)
    with pytest.raises(wtransport.UndeliveredError):
        await handle
    for lease in held:
        lease.release()
    assert (await trainer.put(weights(5.0), 5)).delivered == ("good", "slow")


async def test_a_quorum_without_any_generator(job: Join) -> None:
    trainer = await job("trainer", config={"min_delivered": 1})
    with pytest.raises(wtransport.UndeliveredError, match="no other generator is in the job"):
        await trainer.put(weights(1.0), 1)


def test_settings_are_checked() -> None:
    with pytest.raises(wtransport.ConfigError, match="straggler must be one of"):
        wtransport.TransportConfig(straggler="shoot")  # type: ignore[arg-type]
    with pytest.raises(wtransport.ConfigError, match="must not be negative"):
        wtransport.TransportConfig(min_delivered=-1)
