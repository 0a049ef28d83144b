"""Sharded tensors: the local part of a DTensor and the box of the global tensor that it is."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from wtransport.errors import WeightsError
from wtransport.weights.box import Box


@dataclass(frozen=True, slots=True)
class Shard:
    """What one member holds of a tensor.

    Attributes:
        local: The memory; its shape is ``box.sizes``.
        shape: The global shape.
        box: Where the local part lies in it.
    """

    local: torch.Tensor
    shape: tuple[int, ...]
    box: Box


def is_sharded(value: object) -> bool:
    """Whether *value* is a DTensor, without importing what makes them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def shard_of(value: Any) -> Shard | str:
    """Return the local part of the DTensor *value*, or why it has none that could be moved.

    Torch's own computation says where the part lies; nothing is communicated.
    """
    from torch.distributed.tensor import _utils

    local = value._local_tensor
    shape = tuple(value.shape)
    if any(placement.is_partial() for placement in value.placements):
        return "is a partial sum over its mesh: call .redistribute() or .full_tensor() first"
    if value.device_mesh.get_coordinate() is None:
        return "lives on a device mesh that this rank is not part of: leave it out here"
    if any(type(placement).__name__ == "_StridedShard" for placement in value.placements):
        reason = _interleaved(value)
        if reason is not None:
            return reason
    sizes, offsets = _utils.compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    if tuple(sizes) != tuple(local.shape):
        return f"has a local part of shape {tuple(local.shape)} where torch expects {tuple(sizes)}"
    try:
        box = Box(tuple(map(int, offsets)), tuple(map(int, sizes)))
    except WeightsError as error:
        return f"is sharded in a way that gives no box ({error.message})"
    # An empty part at the end of an uneven split may be said to begin past the end.
    return Shard(local, shape, box if box.volume else Box((0,) * len(shape), tuple(map(int, sizes))))


def _interleaved(value: Any) -> str | None:
    """Say so if this rank's indices of a dimension are not one run: strided shards may be split."""
    mesh, coordinate = value.device_mesh, value.device_mesh.get_coordinate()
    for dim, size in enumerate(value.shape):
        indices = torch.arange(size).reshape([-1 if at == dim else 1 for at in range(value.ndim)])
        for axis, placement in enumerate(value.placements):
            if getattr(placement, "dim", None) == dim:
                pieces, _ = placement._split_tensor(indices, mesh.size(axis), with_padding=False, contiguous=True)
                indices = pieces[coordinate[axis]]
        held = indices.reshape(-1).tolist()
        if held and held != list(range(held[0], held[0] + len(held))):
            return "has a local part that is not one box: redistribute it to plain Shard placements"
    return None
