"""The task: repeat a few digits in reverse order."""

from __future__ import annotations

import torch

from wtransport.demo.spec import DIGITS, LENGTH


def training_prompts(count: int, draw: torch.Generator) -> torch.Tensor:
    """Prompts to learn from, int64 ``[count, LENGTH]``; never one that is held out."""
    return _prompts(torch.randint(1, DIGITS, (count,), generator=draw), draw)


def held_out_prompts(count: int, draw: torch.Generator) -> torch.Tensor:
    """Prompts to be judged on, int64 ``[count, LENGTH]``: those whose digits sum to a round ten."""
    return _prompts(torch.zeros(count, dtype=torch.int64), draw)


def _prompts(remainder: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    free = torch.randint(DIGITS, (len(remainder), LENGTH - 1), generator=draw)
    last = (remainder - free.sum(1)) % DIGITS
    return torch.cat([free, last[:, None]], 1)


def rewards(prompts: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """1.0 for every digit of *answers* in its right place, else 0.0; float32 ``[count, LENGTH]``."""
    return (answers == prompts.flip(1)).float()
