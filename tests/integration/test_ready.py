"""ready(): a generator that is late, or back, holds the current version when it returns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import torch

import wtransport
from tests.integration.conftest import linked, outcome, reaches

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.testing.cluster.cluster import Process


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((1024,), value)}


async def test_a_late_generator_is_ready_once_it_holds_the_current_version(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    first = await job("generator", name="first")
    await first.bind(weights(0.0))
    await linked(trainer)
    for version in (1, 2, 3):
        await trainer.put(weights(float(version)), version)
    late = await job("generator", name="late")
    await late.bind(weights(0.0))
    assert await late.ready() == 3
    with await late.get() as update:
        assert update.version == 3
        assert bool((update.tensors["w"] == 3.0).all())
    assert await first.ready() == 3


async def test_it_waits_for_the_first_version_and_says_what_is_missing(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    generator = await job("generator")
    with pytest.raises(wtransport.WeightsError, match="nothing is bound"):
        await generator.ready()
    await generator.bind(weights(0.0))
    with pytest.raises(wtransport.DeadlineError, match=r"no current version within 0\.2 s; held here: None"):
        await generator.ready(timeout_s=0.2)
    waiting = asyncio.create_task(generator.ready())
    await linked(trainer)
    await trainer.put(weights(1.0), 1)
    assert await waiting == 1
    with pytest.raises(wtransport.UnsupportedError, match="only generators"):
        await trainer.ready()


async def test_a_version_that_nobody_can_give_is_a_typed_error(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    live = weights(1.0)
    await trainer.put(live, 1)
    live["w"].add_(1.0)  # training goes on: what was held by reference is gone
    late = await job("generator")
    await late.bind(weights(0.0))
    with pytest.raises(wtransport.UnavailableError) as caught:
        await late.ready(timeout_s=10)
    assert caught.value.version == 1


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_a_generator_that_restarts_under_its_name_catches_up_from_another(member: Callable[..., Process], backend: str) -> None:
    trainer = member("trainer", backend=backend)
    member("generator", name="other", backend=backend, bind={})
    again = member("generator", name="again", backend=backend, bind={})
    reaches(trainer, "other", "again")
    assert outcome(trainer.call("put", version=1), "again") == "delivered"
    again.kill()
    assert outcome(trainer.call("put", version=2), "other") == "delivered"
    # The trainer's own weights of version 2 are gone by now (each put makes new ones): only the other generator can serve it.
    back = member("generator", name="again", backend=backend, bind={})
    assert back.call("ready", timeout_s=10) == 2
    assert back.call("get")["values"] == [2.0]
