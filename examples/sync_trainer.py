"""A training loop without an event loop: ``transport.blocking`` is the same transport, every call waits in its thread."""

from __future__ import annotations

import asyncio
import sys
import threading

import torch
from torch import nn

import wtransport

STEPS = 4


def train(url: str, ready: threading.Event, done: threading.Event) -> None:
    policy = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with wtransport.connect(url, role="trainer").blocking as transport:
        ready.wait(30)
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            policy(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            # The copy is taken before this returns from source_free; the delivery goes on during the next step.
            handle = transport.put_nowait(policy, step, snapshot=True)
        receipt = handle.result(30)
        print(f"trainer: version {receipt.version}: {receipt.outcomes}", flush=True)
        done.wait(30)


async def main(url: str) -> int:
    ready, done = threading.Event(), threading.Event()
    trainer = threading.Thread(target=train, args=(url, ready, done))
    trainer.start()
    async with wtransport.connect(url, role="generator", name="gen-0") as transport:
        await transport.bind(nn.Linear(64, 8))
        ready.set()
        with await transport.get(STEPS, timeout_s=30) as update:
            print(f"generator: holds version {update.version}: {sorted(update.tensors)}")
            reached = update.version
    done.set()
    await asyncio.to_thread(trainer.join, 30)
    return 0 if reached == STEPS else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:29601")))
