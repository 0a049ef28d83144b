"""Elastic restarts: torchrun starts two trainer ranks anew after one was killed, and the generator never notices more than a pause.

The coordinator (``wtransport serve``) and the generator live outside the elastic job. Two ranks train one FSDP model under ``torchrun
--max-restarts=1``, put every step's weights as a version, and save a checkpoint after every fifth. Rank 1 kills itself at step 8: torchrun
starts both ranks anew, and they resume from step 5. Versions up to 7 are out by then, so the ranks ask the job what it holds, and put again
only from there on. Without a role this script starts all of it, compares both ends, and says what it found.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import wtransport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wtransport.blocking import BlockingTransport

LAST, SAVE_EVERY, DIES_AT = 12, 5, 8
RANKS = 2
DEADLINE_S = 180.0
STOP_S = 10.0
COLLECTIVE_S = 60.0
BOUND = "generator: bound"
SETTINGS = {
    "WTRANSPORT_HOSTS_COORDINATOR": "false",  # it is served: a restarted rank 0 must not take its place
    "WTRANSPORT_STRAGGLER": "wait",  # every version is to arrive here, however busy the machine
    "WTRANSPORT_SILENT_AFTER_S": "10",  # likewise: a killed process is found by its end, not by its silence
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}


def policy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 8))


def say(text: str) -> None:
    """One line in one write: torchrun's ranks are unbuffered, and print writes the line's end apart."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write(path: Path, text: str) -> None:
    """Write *path* as a whole: who reads it sees all of it or nothing."""
    scratch = path.with_suffix(".new")
    scratch.write_text(text)
    scratch.replace(path)


# A trainer rank, started by torchrun.


class Trainer:
    """One rank's half of the model, its optimizer, and their checkpoints.

    Args:
        folder: Where checkpoints lie; the same for all ranks and attempts.
    """

    def __init__(self, folder: Path) -> None:
        from torch.distributed.fsdp import fully_shard

        self.rank = dist.get_rank()
        self.model = policy()
        fully_shard(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self._folder = folder
        self._latest = folder / "latest"

    def step(self, number: int) -> float:
        """One step of training on this rank's half of the batch; the gradients are averaged over the ranks."""
        batch = torch.randn(64, 32, generator=torch.Generator().manual_seed(number * RANKS + self.rank))
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(batch), batch[:, :8].sin())
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save(self, number: int) -> None:
        """Every rank writes its half; the checkpoint counts once all have."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=self._folder / f"step-{number}")
        if self.rank == 0:
            write(self._latest, str(number))

    def resume(self) -> int:
        """Load the last whole checkpoint; returns its step, 0 if there is none."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        if not self._latest.exists():
            return 0
        number = int(self._latest.read_text())
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=self._folder / f"step-{number}")
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        return number


def newest_held(transport: BlockingTransport) -> int:
    """The highest version that the job holds, 0 if none: what generators serve, whoever put it; the same answer on every rank."""
    dist.barrier()  # every rank has joined: nothing of its old self can arrive any more
    held = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        held[0] = max((member.version for member in transport.members() if member.version is not None), default=0)
    dist.broadcast(held, 0)
    return int(held)


def join_ranks(attempt: int) -> None:
    """The process group, in a part of torchrun's store of its own: what ranks of the attempt before left there must not be found."""
    limit = timedelta(seconds=COLLECTIVE_S)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore(f"attempt-{attempt}", dist.TCPStore(address, port, is_master=False, timeout=limit))
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=RANKS, timeout=limit)


def train(url: str, folder: Path) -> None:
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    join_ranks(attempt)
    trainer = Trainer(folder)
    rank, begin = trainer.rank, trainer.resume()
    config = wtransport.TransportConfig.from_env()
    with wtransport.connect(url, role="trainer", rank=rank, world_size=RANKS, config=config).blocking as transport:
        held = newest_held(transport)
        say(f"trainer {rank}: attempt {attempt} goes on from step {begin}; the job holds version {held}")
        if rank == 0:
            with (folder / "incarnations").open("a") as file:
                file.write(next(f"{member.incarnation}\n" for member in transport.members() if member.name == "trainer-0"))
        first = ""
        for step in range(begin + 1, LAST + 1):
            loss = trainer.step(step)
            if step <= held:
                # Generators hold this number, or a higher one: they would be `ahead` of it, and the number they hold has its bytes already.
                if rank == 0:
                    say(f"trainer 0: step {step} again, loss {loss:.3f}; not put, since {held} is out")
                continue
            if (attempt, rank, step) == (0, 1, DIES_AT):
                say(f"trainer 1: kills itself before its part of version {step}")
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                receipt = transport.put(trainer.model, step)
            except wtransport.TransportError as error:
                say(f"trainer {rank}: {error.message}")
                sys.exit(1)  # torchrun starts every rank anew, whichever failed first
            first = first or f"{step} in publication {receipt.publication}"
            if rank == 0:
                say(f"trainer 0: step {step}, loss {loss:.3f}; put, delivered to {', '.join(receipt.delivered) or 'nobody'}")
            if step % SAVE_EVERY == 0:
                trainer.save(step)
        whole = {name: value.full_tensor() for name, value in trainer.model.state_dict().items()}
        if rank == 0:
            torch.save(whole, folder / "trainer.pt")
            write(
                folder / "trainer.json", json.dumps({"version": LAST, "attempt": attempt, "resumed": begin, "held": held, "first": first})
            )
    dist.destroy_process_group()


# The generator.


class Served:
    """What a generator answered: with which versions, and how much of it while a trainer rank was missing."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.answers = 0
        self.alone = 0
        self.longest_s = 0.0
        self.trainers: set[str] = set()

    async def run(self, model: nn.Module) -> None:
        """Answer requests with the weights there are, for ever."""
        last = time.monotonic()
        request = torch.ones(1, 32)
        while True:
            with torch.no_grad():
                assert bool(model(request).isfinite().all())
            now = time.monotonic()
            self.answers, self.longest_s, last = self.answers + 1, max(self.longest_s, now - last), now
            self.alone += len(self.trainers) < RANKS
            await asyncio.sleep(0.005)

    async def watch(self, transport: wtransport.Transport) -> None:
        """Say what happens to the trainers."""
        async for event in transport.events():
            if not event.member.startswith("trainer-"):
                continue
            if event.kind == "joined":
                self.trainers.add(event.member)
            elif event.kind in ("lost", "left", "fenced"):
                self.trainers.discard(event.member)
                if self.versions:
                    say(f"generator: {event.member} {event.kind}; serves version {self.versions[-1]} meanwhile")


async def generate(url: str, folder: Path) -> None:
    model, served = policy(), Served()
    config = wtransport.TransportConfig.from_env()
    async with wtransport.connect(url, role="generator", name="gen-0", config=config) as transport, asyncio.timeout(DEADLINE_S):
        await transport.bind(model)
        tasks = [asyncio.create_task(served.watch(transport))]
        say(BOUND)
        async for update in transport.updates():
            with update:
                model.load_state_dict(update.tensors)
            served.versions.append(update.version)
            if len(tasks) == 1:
                tasks.append(asyncio.create_task(served.run(model)))
            say(f"generator: serves version {update.version}")
            if update.version == LAST or any(task.done() for task in tasks):
                break
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                raise RuntimeError("the generator stopped serving") from ended
    torch.save(model.state_dict(), folder / "generator.pt")
    found = {"versions": served.versions, "answers": served.answers, "alone": served.alone, "longest_s": served.longest_s}
    write(folder / "generator.json", json.dumps(found))


# All of it.


def complaints(folder: Path) -> Iterator[str]:
    """What is not as it must be, once all has ended well."""
    trainer, generator = (json.loads((folder / f"{name}.json").read_text()) for name in ("trainer", "generator"))
    mine, theirs = (torch.load(folder / f"{name}.pt") for name in ("trainer", "generator"))
    versions = generator["versions"]
    if versions[-1] != trainer["version"]:
        yield f"the generator ends with version {versions[-1]}, the trainers with {trainer['version']}"
    if mine.keys() != theirs.keys() or not all(torch.equal(mine[name], theirs[name]) for name in mine):
        yield "the generator's weights are DIFFERENT"
    if any(one >= other for one, other in itertools.pairwise(versions)):
        yield f"the generator went backwards: {versions}"
    if (trainer["attempt"], trainer["resumed"]) != (1, DIES_AT - DIES_AT % SAVE_EVERY):
        yield f"the trainers were not started anew from their checkpoint: {trainer}"
    if len(set((folder / "incarnations").read_text().split())) != 2:
        yield "the second attempt's rank 0 was not a new incarnation"
    if not generator["alone"]:
        yield "the generator answered nothing while trainers were missing"


async def run(url: str, folder: Path, stack: contextlib.AsyncExitStack) -> int:
    """Start everything, wait for its end, compare."""

    async def start(*command: str, piped: bool = False) -> asyncio.subprocess.Process:
        stdout = asyncio.subprocess.PIPE if piped else None
        environment = os.environ | SETTINGS | {"TMPDIR": str(folder)}
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=stdout, env=environment)
        stack.push_async_callback(stop, process)
        return process

    coordinator = await start("-m", "wtransport", "serve", url, piped=True)
    address = await line(coordinator)  # with the port that it got
    if not address:
        say("FAILED: the coordinator did not start")
        return 1
    generator = await start(__file__, "generate", address, str(folder), piped=True)
    if await line(generator) != BOUND:
        say("FAILED: the generator did not start")
        return 1
    relaying = asyncio.create_task(relay(generator))
    stack.callback(relaying.cancel)
    # What torchrun is: the module runs it with this very interpreter.
    elastic = ("--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={RANKS}", "--max-restarts=1")
    torchrun = await start("-m", "torch.distributed.run", *elastic, __file__, "train", address, str(folder))
    for name, process in (("torchrun", torchrun), ("generator", generator)):
        if await process.wait():
            say(f"FAILED: {name} ended with {process.returncode}")
            return 1
    await relaying
    if found := list(complaints(folder)):
        say(f"FAILED: {'; '.join(found)}")
        return 1
    trainer, served = (json.loads((folder / f"{name}.json").read_text()) for name in ("trainer", "generator"))
    versions = served["versions"]
    say(
        f"VERIFIED: resumed from step {trainer['resumed']} with version {trainer['held']} out, put again from version {trainer['first']}; "
        f"the generator went from version {versions[0]} to {versions[-1]}, never back, ends with the trainers' weights, and gave "
        f"{served['answers']} answers, {served['alone']} of them while trainers were missing; "
        f"its longest pause was {served['longest_s']:.2f} s"
    )
    return 0


async def line(process: asyncio.subprocess.Process) -> str:
    """The next line that it prints; empty at its end."""
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def relay(process: asyncio.subprocess.Process) -> None:
    """Print what it prints."""
    while text := await line(process):
        say(text)


async def stop(process: asyncio.subprocess.Process) -> None:
    """Make sure that it has ended; torchrun ends its ranks when it is asked."""
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()


async def main(url: str) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory(prefix="wtransport-elastic-") as folder:
        try:
            async with contextlib.AsyncExitStack() as stack, asyncio.timeout(DEADLINE_S):
                return await run(url, Path(folder), stack)
        except TimeoutError:
            say(f"FAILED: not done after {DEADLINE_S:.0f} s")
            return 1


if __name__ == "__main__":
    role = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:0"
    if role not in ("train", "generate"):
        sys.exit(asyncio.run(main(role)))
    # Whatever waits, and for whom: this process says where, and ends.
    faulthandler.dump_traceback_later(DEADLINE_S + STOP_S, exit=True)
    torch.set_num_threads(1)
    if role == "train":
        train(sys.argv[2], Path(sys.argv[3]))
    else:
        asyncio.run(generate(sys.argv[2], Path(sys.argv[3])))
