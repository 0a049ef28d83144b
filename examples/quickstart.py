"""Two processes: a trainer puts five versions, a generator follows them and ends with the same weights."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys

import torch
from torch import nn

import wtransport

LAST = 5


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16))


async def train(url: str) -> None:
    policy = model()
    async with wtransport.connect(url, role="trainer") as transport:
        for version in range(1, LAST + 1):
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.add_(0.01)
            receipt = await transport.put(policy.state_dict(), version)
            print(f"trainer: version {version}: {receipt.outcomes}", flush=True)
        # By reference, the trainer serves who comes late; here it waits until the generator has seen the last version.
        async for event in transport.events():
            if event.kind in ("left", "lost"):
                return


async def generate(url: str) -> int:
    policy = model()
    async with wtransport.connect(url, role="generator", name="gen-0") as transport:
        await transport.bind(policy.state_dict())
        async for update in transport.updates():
            with update:
                policy.load_state_dict(update.tensors)
            print(f"generator: follows version {update.version}", flush=True)
            if update.version == LAST:
                break
    expected = model()
    with torch.no_grad():
        for parameter in expected.parameters():
            for _ in range(LAST):
                parameter.add_(0.01)
    same = all(torch.equal(one, other) for one, other in zip(policy.parameters(), expected.parameters(), strict=True))
    print(f"generator: the weights are {'the same' if same else 'DIFFERENT'}")
    return 0 if same else 1


def run_trainer(url: str) -> None:
    asyncio.run(train(url))


def main(url: str) -> int:
    trainer = multiprocessing.get_context("spawn").Process(target=run_trainer, args=(url,))
    trainer.start()
    try:
        return asyncio.run(generate(url))
    finally:
        trainer.join(30)
        trainer.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:29600"))
