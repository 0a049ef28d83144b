"""A generator: follows the weights, samples with them where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import wtransport
from wtransport.config import TransportConfig
from wtransport.demo import reports, task
from wtransport.demo.batch import GROUP, PROMPTS, Batch
from wtransport.demo.checksum import checksum
from wtransport.demo.inbox import Inbox
from wtransport.demo.policy import Policy, answer
from wtransport.demo.reports import Followed, Judged

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from wtransport.demo.spec import Spec

_HELD_OUT = 256


async def main(report: Connection, spec: Spec, index: int, trainer: Connection) -> None:
    """Sample with the newest version shown here, a batch for each that the trainer takes.

    Args:
        report: To the process that shows the run.
        spec: The run.
        index: Which of its generators this is.
        trainer: Duplex pipe. Batches go out; for each one taken an empty message comes in, and in
            the end the number of the last version.
    """
    generator = _Generator(spec, index)
    inbox = Inbox([trainer])
    batches, last = spec.batches_ahead, 0
    async with wtransport.connect(
        spec.url, role="generator", name=generator.name, backend=spec.backend, config=TransportConfig.from_env()
    ) as transport:
        await transport.bind(generator.policy.state_dict())
        async for update in transport.updates():
            # Until the lease ends these tensors stand still, though newer weights are landing.
            with update:
                generator.take(update.version, update.tensors)
                reports.send(report, Followed(generator.name, update.version))
                if generator.takes == 1 or update.version == last:
                    reports.send(report, generator.judge(final=update.version == last))
                if not last:
                    for _ in range(batches):
                        trainer.send_bytes(generator.draw().pack())
                generator.give_back()
            if update.version == last:
                break
            if not last:
                batches = 1
                last = int((await inbox.next())[1] or 0)
    inbox.close()


class _Generator:
    """Answers prompts with weights that it is lent, and copies none of them.

    Attributes:
        name: Of the member.
        policy: The computation; its own weights only tell names, shapes and types.
        takes: How many versions it was lent.
    """

    def __init__(self, spec: Spec, index: int) -> None:
        self.name = spec.generator_name(index)
        self.policy = Policy(spec.size)
        self.takes = 0
        self._random = torch.Generator().manual_seed(spec.seed * 1009 + index + 1)
        self._held_out = task.held_out_prompts(_HELD_OUT, torch.Generator().manual_seed(spec.seed))
        self._version, self._checksum = 0, 0
        self._weights: Mapping[str, torch.Tensor] = {}

    def take(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Use *weights* from now on."""
        self.takes += 1
        self._version, self._weights, self._checksum = version, weights, checksum(weights)

    def give_back(self) -> None:
        """Keep no reference to the weights, so that their memory can take a newer version."""
        self._weights = {}

    def draw(self) -> Batch:
        """Sample answers to new prompts."""
        prompts = task.training_prompts(PROMPTS, self._random).repeat_interleave(GROUP, 0)
        answers, scores = answer(self.policy, self._weights, prompts, self._random)
        return Batch(self.name, self._version, self._checksum, prompts, answers, scores)

    def judge(self, *, final: bool) -> Judged:
        """Give the likeliest answers to the held-out prompts, and count what is right."""
        answers, _ = answer(self.policy, self._weights, self._held_out)
        right = task.rewards(self._held_out, answers)
        return Judged(
            generator=self.name,
            version=self._version,
            reward=right.mean().item(),
            exact=right.all(1).float().mean().item(),
            checksum=self._checksum,
            final=final,
        )
