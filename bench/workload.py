"""The weights every benchmark moves: 300 bf16 tensors in the shapes of a language model."""

from __future__ import annotations

import torch


def shapes(total_nbytes: int, num_tensors: int = 300) -> dict[str, tuple[int, ...]]:
    """Names and shapes of about *total_nbytes* of bf16: per layer seven projections and two norms, an embedding and a head."""
    layers, rest = divmod(num_tensors - 2, 9)
    hidden = int(((total_nbytes / 2) / (layers * 13 + 32)) ** 0.5) // 16 * 16
    found: dict[str, tuple[int, ...]] = {"embed.weight": (16 * hidden, hidden), "head.weight": (16 * hidden, hidden)}
    for layer in range(layers):
        prefix = f"layers.{layer}"
        for part in ("q", "k", "v", "o"):
            found[f"{prefix}.attn.{part}.weight"] = (hidden, hidden)
        found[f"{prefix}.mlp.gate.weight"] = (3 * hidden, hidden)
        found[f"{prefix}.mlp.up.weight"] = (3 * hidden, hidden)
        found[f"{prefix}.mlp.down.weight"] = (hidden, 3 * hidden)
        found[f"{prefix}.norm1.weight"] = (hidden,)
        found[f"{prefix}.norm2.weight"] = (hidden,)
    for index in range(rest):
        found[f"extra.{index}.weight"] = (hidden,)
    return found


def weights(total_nbytes: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Separately allocated tensors of pseudo-random finite values."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes(total_nbytes).items():
        tensor = torch.empty(shape, dtype=torch.bfloat16)
        tensor.view(torch.int16).random_(0, 0x3F80, generator=generator)
        made[name] = tensor
    return made


def equal(total_nbytes: int, num_tensors: int) -> dict[str, torch.Tensor]:
    """Separately allocated bf16 tensors of equal size, with the names of a mixture of experts."""
    numel = max(2, total_nbytes // 2 // num_tensors)
    return {f"layers.{index // 256}.experts.{index % 256}.weight": torch.zeros(numel, dtype=torch.bfloat16) for index in range(num_tensors)}


def wanted(total_nbytes: int) -> dict[str, torch.Tensor]:
    """What a generator binds: the same shapes, memory that is never touched."""
    return {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in shapes(total_nbytes).items()}


def mark(tensors: dict[str, torch.Tensor], version: int) -> None:
    """Make every tensor differ from the version before, at the cost of a few bytes each."""
    for tensor in tensors.values():
        flat = tensor.view(-1)
        flat[0] = flat[-1] = float(version % 128)


def nbytes(tensors: dict[str, torch.Tensor]) -> int:
    """Bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def checksums(tensors: dict[str, torch.Tensor]) -> list[int]:
    """One sum per tensor, taken by torch: independent of the library under test."""
    return [int(tensors[name].view(torch.int16).sum(dtype=torch.int64)) for name in sorted(tensors)]
