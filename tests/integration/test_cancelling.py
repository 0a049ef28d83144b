"""Cancelling a wait for a version leaves nothing leased, whenever it comes."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import torch

from tests.integration.conftest import linked

if TYPE_CHECKING:
    from collections.abc import Callable


def weights(version: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((100_000,), float(version))}


async def test_a_cancelled_get_gives_its_lease_back(job: Callable[..., Any]) -> None:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    draw = random.Random(0)
    for version in range(1, 120):
        getting = asyncio.ensure_future(generator.get(version, timeout_s=10))
        putting = asyncio.ensure_future(trainer.put(weights(version), version))
        await asyncio.sleep(draw.random() * 0.006)
        getting.cancel()
        try:
            (await getting).release()
        except asyncio.CancelledError:
            pass
        receipt = await putting
        assert receipt.behind == (), (version, receipt)


async def test_a_cancelled_follower_gives_its_lease_back(job: Callable[..., Any]) -> None:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    draw = random.Random(1)

    async def follow() -> None:
        async for update in generator.updates():
            update.release()

    for version in range(1, 60):
        following = asyncio.ensure_future(follow())
        putting = asyncio.ensure_future(trainer.put(weights(version), version))
        await asyncio.sleep(draw.random() * 0.006)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        receipt = await putting
        assert receipt.behind == (), (version, receipt)
