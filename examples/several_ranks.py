"""Two trainer ranks that hold half of the layers each, two generator ranks of one engine that see the same versions."""

from __future__ import annotations

import asyncio
import sys

import torch

import wtransport

VERSIONS = 3


def part(rank: int, value: float) -> dict[str, torch.Tensor]:
    return {f"layers.{2 * rank + index}.weight": torch.full((256, 256), value) for index in range(2)}


async def train(url: str, rank: int, ready: asyncio.Barrier) -> None:
    async with wtransport.connect(url, role="trainer", rank=rank, world_size=2) as transport:
        await ready.wait()
        for version in range(1, VERSIONS + 1):
            receipt = await transport.put(part(rank, float(version)), version)
            print(f"trainer {rank}: version {version}: delivered to {receipt.delivered}, behind {receipt.behind}", flush=True)
        await ready.wait()


async def generate(url: str, rank: int, ready: asyncio.Barrier) -> list[int]:
    seen = []
    async with wtransport.connect(url, role="generator", group="engine-0", rank=rank, world_size=2, name=f"engine-0-{rank}") as transport:
        await transport.bind(part(0, 0.0) | part(1, 0.0))
        await ready.wait()
        async for update in transport.updates():
            with update:
                assert all(bool((tensor == float(update.version)).all()) for tensor in update.tensors.values())
            seen.append(update.version)
            if update.version == VERSIONS:
                break
        await ready.wait()
    return seen


async def main(url: str) -> int:
    ready = asyncio.Barrier(4)
    trainers = [asyncio.create_task(train(url, rank, ready)) for rank in range(2)]
    one, other = await asyncio.gather(*(generate(url, rank, ready) for rank in range(2)))
    await asyncio.gather(*trainers)
    print(f"rank 0 saw {one}, rank 1 saw {other}")
    return 0 if one == other and one[-1] == VERSIONS else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:29603")))
