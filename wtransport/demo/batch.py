"""A batch of samples, as it travels from a generator to the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgpack
import numpy as np
import torch

from wtransport.demo.spec import LENGTH

if TYPE_CHECKING:
    from typing import Self

GROUP = 4
"""Answers to each prompt: they are judged against one another."""

PROMPTS = 8
"""Different prompts of one batch."""


@dataclass(frozen=True)
class Batch:
    """Answers that one version of the weights gave.

    Attributes:
        generator: Who drew them.
        version: The version they were drawn with.
        checksum: Of the weights they were drawn with, as the generator read them.
        prompts: int64 ``[PROMPTS * GROUP, LENGTH]``; each prompt fills ``GROUP`` rows.
        answers: int64, same shape.
        scores: float32, same shape: log-probability of each digit when it was drawn.
    """

    generator: str
    version: int
    checksum: int
    prompts: torch.Tensor
    answers: torch.Tensor
    scores: torch.Tensor

    def pack(self) -> bytes:
        """The batch as bytes."""
        packed: bytes = msgpack.packb(
            {
                "generator": self.generator,
                "version": self.version,
                "checksum": self.checksum,
                "prompts": self.prompts.to(torch.uint8).numpy().tobytes(),
                "answers": self.answers.to(torch.uint8).numpy().tobytes(),
                "scores": self.scores.numpy().tobytes(),
            }
        )
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """The batch that :meth:`pack` made *packed* of."""
        fields = msgpack.unpackb(packed)
        for name in ("prompts", "answers"):
            fields[name] = _table(fields[name], np.uint8).long()
        fields["scores"] = _table(fields["scores"], np.float32)
        return cls(**fields)


def _table(raw: bytes, dtype: type[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(raw, dtype).reshape(-1, LENGTH).copy())
