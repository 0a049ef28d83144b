"""The policy: a decoder-only transformer in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from wtransport.demo.spec import DIGITS, LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wtransport.demo.spec import Size

_SEPARATOR = DIGITS  # the token between a prompt and its answer


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a layer norm and a residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_up = nn.Linear(width, 4 * width)
        self.mlp_down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor] | None) -> torch.Tensor:
        """Map ``[batch, tokens, width]`` to the same shape; *cache* keeps keys and values."""
        batch, tokens, width = x.shape
        query, key, value = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(x)).chunk(3, -1)
        )
        if cache is not None:
            if cache:
                key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
            cache[:] = [key, value]
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=tokens > 1)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        hidden = functional.gelu(self.mlp_up(self.mlp_norm(x)), approximate="tanh")
        return x + torch.as_tensor(self.mlp_down(hidden))


class Policy(nn.Module):
    """Gives every digit of an answer a score, given the prompt and the digits before it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.token = nn.Embedding(DIGITS + 1, size.width)
        self.position = nn.Embedding(2 * LENGTH, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, DIGITS, bias=False)
        self._initialise(size)

    def _initialise(self, size: Size) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
            if name.endswith(("attention_out.weight", "mlp_down.weight")):
                parameter.data *= 0.5 * size.layers**-0.5
            if parameter.ndim == 1 and name.endswith("bias"):
                nn.init.zeros_(parameter)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.3)
        nn.init.normal_(self.head.weight, std=0.02)  # the first policy draws every digit nearly alike

    @property
    def num_parameters(self) -> int:
        """Trained numbers in all."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(
        self,
        tokens: torch.Tensor,
        last: int,
        start: int = 0,
        caches: list[list[torch.Tensor]] | None = None,
    ) -> torch.Tensor:
        """Log-probabilities ``[batch, last, DIGITS]`` after each of the *last* tokens.

        Args:
            tokens: int64 ``[batch, n]``, the first of them at position *start*.
            last: How many of the tokens are asked for.
            start: Tokens that *caches* know already.
            caches: One list a block, filled here.
        """
        x = self.token(tokens) + self.position.weight[start : start + tokens.shape[1]]
        for index, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[index])
        return torch.log_softmax(self.head(self.norm(x[:, -last:])), -1)

    def score(self, prompts: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of every digit at every place of *answers*, ``[batch, LENGTH, DIGITS]``."""
        scores: torch.Tensor = self(torch.cat([_opened(prompts), answers[:, :-1]], 1), last=LENGTH)
        return scores


def _opened(prompts: torch.Tensor) -> torch.Tensor:
    return functional.pad(prompts, (0, 1), value=_SEPARATOR)


@torch.no_grad()
def answer(
    policy: Policy,
    weights: Mapping[str, torch.Tensor],
    prompts: torch.Tensor,
    draw: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Answer *prompts* with *weights*, read where they lie: nothing is copied, nothing kept.

    Args:
        policy: Gives the computation; its own weights are not used.
        weights: Every parameter by name.
        prompts: int64 ``[batch, LENGTH]``.
        draw: Randomness to sample with; None takes the likeliest digit.

    Returns:
        The answers, int64 ``[batch, LENGTH]``, and the log-probability each digit was drawn with.
    """
    caches: list[list[torch.Tensor]] = [[] for _ in policy.blocks]
    own: dict[str, Any] = dict(weights)
    tokens, start = _opened(prompts), 0
    digits: list[torch.Tensor] = []
    scores: list[torch.Tensor] = []
    for _ in range(LENGTH):
        score = functional_call(policy, own, (tokens, 1, start, caches))[:, -1]
        start += tokens.shape[1]
        if draw is None:
            tokens = score.argmax(-1, keepdim=True)
        else:
            tokens = torch.multinomial(score.exp(), 1, generator=draw)
        digits.append(tokens)
        scores.append(score.gather(1, tokens))
    return torch.cat(digits, 1), torch.cat(scores, 1)
