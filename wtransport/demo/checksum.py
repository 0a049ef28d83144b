"""A checksum of all weights, apart from the library's own digests."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


def checksum(weights: Mapping[str, torch.Tensor]) -> int:
    """CRC-32 over the names and the bytes of *weights*, in the order of their names."""
    value = 0
    for name in sorted(weights):
        value = zlib.crc32(name.encode(), value)
        raw = weights[name].detach().contiguous().reshape(-1).view(torch.uint8)
        value = zlib.crc32(raw.numpy().data, value)
    return value
