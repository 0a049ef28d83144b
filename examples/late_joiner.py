"""Generators that come late: served from a snapshot, whatever training does meanwhile, or from another generator."""

from __future__ import annotations

import asyncio
import sys

import torch

import wtransport


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.full((512, 512), value), "layer.bias": torch.full((512,), value)}


async def join_late(url: str, name: str) -> bool:
    async with wtransport.connect(url, role="generator", name=name) as transport:
        await transport.bind(weights(0.0))
        with await transport.get() as update:
            whole = all(bool((tensor == float(update.version)).all()) for tensor in update.tensors.values())
            print(f"{name}: got version {update.version}, {'whole' if whole else 'TORN'}")
            return whole and update.version == 7


async def main(url: str) -> int:
    async with wtransport.connect(url, role="trainer") as trainer:
        live = weights(7.0)
        handle = trainer.put_nowait(live, 7, snapshot=True)
        await handle.source_free
        for tensor in live.values():
            tensor.add_(1.0)  # training goes on
        receipt = await handle
        print(f"trainer: put version 7 with no generator there: {receipt.outcomes}")
        whole = [await join_late(url, f"late-{number}") for number in range(2)]
    return 0 if all(whole) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:29602")))
