"""What one run of the demo is made of; every process is handed the same one."""

from __future__ import annotations

from dataclasses import dataclass

DIGITS = 10
LENGTH = 8
"""The task: repeat ``LENGTH`` digits, each below ``DIGITS``, in reverse order."""

RANDOM_REWARD = 1 / DIGITS
"""Mean reward of a policy that draws every digit at random."""


@dataclass(frozen=True)
class Size:
    """How large the policy is, and the learning rate that suits it.

    Attributes:
        layers: Transformer blocks.
        width: Features of a token; each block's MLP is four times as wide.
        heads: Attention heads of a block.
        learning_rate: Peak of the schedule.
    """

    layers: int
    width: int
    heads: int
    learning_rate: float


_SMALL = Size(layers=2, width=128, heads=4, learning_rate=1.5e-3)
_MEDIUM = Size(layers=4, width=256, heads=4, learning_rate=1e-3)
_LARGE = Size(layers=4, width=384, heads=6, learning_rate=7e-4)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One run.

    Attributes:
        url: Where the members of the job meet.
        backend: What moves the bytes, ``auto`` for the library's own choice.
        seconds: Time for training, counted from the first batch of samples.
        generators: Processes that sample.
        seed: Fixes the first weights, the prompts and each generator's draws. Which batch is
            trained on next still depends on the machine.
    """

    url: str
    backend: str
    seconds: float
    generators: int
    seed: int

    @property
    def size(self) -> Size:
        """The largest policy that two cores teach the task within ``seconds``."""
        if self.seconds < 20:
            return _SMALL
        return _MEDIUM if self.seconds < 45 else _LARGE

    @property
    def batches_ahead(self) -> int:
        """Batches a generator draws before the trainer has taken one; then one for each it takes.

        One is enough where several take turns. A generator alone is one batch further ahead, else
        it would wait while the trainer learns, and the trainer while it samples.
        """
        return 2 if self.generators == 1 else 1

    def generator_name(self, index: int) -> str:
        """Member name of generator *index*."""
        return f"generator-{index}"
