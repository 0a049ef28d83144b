"""Policy gradient: better answers become likelier, worse ones less so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from wtransport.demo.batch import GROUP
from wtransport.demo.spec import LENGTH
from wtransport.demo.task import rewards

if TYPE_CHECKING:
    from wtransport.demo.batch import Batch
    from wtransport.demo.policy import Policy

_CLIP = 0.2
_ENTROPY_BONUS = 0.01
_GRADIENT_NORM = 1.0
_WARM_UP_STEPS = 10
_LAST_RATE = 0.1


@dataclass(frozen=True)
class Progress:
    """What one batch showed.

    Attributes:
        reward: Share of digits that were right.
        exact: Share of answers that were right in full.
        entropy: Of the policy now, nats a digit.
        clipped: Share of digits whose likelihood had moved too far since they were drawn.
    """

    reward: float
    exact: float
    entropy: float
    clipped: float


class Learner:
    """Trains one policy, a batch a step.

    The gradient is taken by :meth:`learn` and applied by :meth:`step`, so that what still reads
    the weights may go on doing so in between.

    Args:
        policy: Trained in place.
        learning_rate: Peak of the schedule.
    """

    def __init__(self, policy: Policy, learning_rate: float) -> None:
        self._policy = policy
        self._rate = learning_rate
        self._optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
        self._steps = 0

    def learn(self, batch: Batch) -> Progress:
        """Take the gradient of one batch.

        A digit's advantage is its reward over the mean of the other answers to the same prompt at
        the same place. The batch was drawn with older weights, hence the clipped likelihood ratio.
        """
        reward = rewards(batch.prompts, batch.answers)
        grouped = reward.view(-1, GROUP, LENGTH)
        above_all = grouped - grouped.mean(1, keepdim=True)
        advantage = (above_all * GROUP / (GROUP - 1)).view(-1, LENGTH)

        scores = self._policy.score(batch.prompts, batch.answers)
        chosen = scores.gather(2, batch.answers[..., None])[..., 0]
        ratio = (chosen - batch.scores).exp()
        within = ratio.clamp(1 - _CLIP, 1 + _CLIP)
        entropy = -(scores.exp() * scores).sum(-1).mean()
        gain = torch.min(ratio * advantage, within * advantage).mean()
        self._optimizer.zero_grad()
        loss = -gain - _ENTROPY_BONUS * entropy
        loss.backward()  # type: ignore[no-untyped-call]
        return Progress(
            reward=reward.mean().item(),
            exact=reward.all(1).float().mean().item(),
            entropy=entropy.item(),
            clipped=(ratio != within).float().mean().item(),
        )

    def step(self, elapsed: float) -> None:
        """Change the weights; *elapsed* is the share of the time for training that is over."""
        self._steps += 1
        warm_up = min(1.0, self._steps / _WARM_UP_STEPS)
        cool_down = 1.0 - (1.0 - _LAST_RATE) * max(0.0, min(1.0, 2 * elapsed - 1))
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * warm_up * cool_down
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), _GRADIENT_NORM)
        self._optimizer.step()
