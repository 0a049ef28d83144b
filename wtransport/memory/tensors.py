"""inspect: what a put or a bind is given, as a manifest and the addresses of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from wtransport.errors import WeightsError
from wtransport.memory.names import named_values
from wtransport.memory.refusal import dtype_name, refusal
from wtransport.memory.sharding import Shard, is_sharded, shard_of
from wtransport.pacing import paced
from wtransport.weights.box import Box
from wtransport.weights.manifest import Manifest, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Sequence

Block = tuple[int, int, tuple[int, ...], tuple[int, ...]]

_LISTED: Final = 5
# The native core walks at most this many dimensions that cannot be joined.
_MAX_STRIDED_DIMS: Final = 16


@dataclass(frozen=True, eq=False)
class SourceWeights:
    """Weights by reference: nothing was copied, and the tensors are kept alive by this object.

    Attributes:
        manifest: Names, dtypes, shapes and boxes.
        blocks: For each distinct memory in canonical order its address, itemsize, shape and byte
            strides, as ``LocalRegion`` takes them; dimensions that can be joined are.
        owners: The tensor given for each entry of ``manifest.tensors``.
        parts: Its local part: the same tensor unless it is sharded.
        versions: Writes that torch had counted to each; None where it does not count them.
    """

    manifest: Manifest
    blocks: tuple[Block, ...]
    owners: tuple[torch.Tensor, ...]
    parts: tuple[torch.Tensor, ...]
    versions: tuple[int | None, ...]

    def changed(self) -> list[str]:
        """Return the names of tensors that torch has counted a write to since they were looked at.

        Writes behind torch's back, through ``.data`` or foreign memory, are not counted by it.
        """
        now = zip(self.manifest.tensors, self.owners, self.parts, self.versions, strict=True)
        with torch._C.DisableTorchFunctionSubclass():
            return [meta.name for meta, owner, part, version in now if _version(owner, part) != version]


def inspect(weights: object) -> SourceWeights:
    """Look at *weights* without touching, casting or copying a byte of them.

    Args:
        weights: A module (its state dict: parameters and persistent buffers, ties kept), or a
            mapping of names to tensors. Names that share one memory (same storage, offset, shape
            and strides) are tied; views that only overlap are separate tensors.

    Raises:
        WeightsError: If something in it cannot be moved as it is; the first few are named, each
            with what to do.
    """
    return inspect_named(named_values(weights))


def inspect_named(named: Sequence[tuple[str, object]]) -> SourceWeights:
    """See :func:`inspect`; *named* is what ``named_values`` gives."""
    refused: list[tuple[str, str]] = []
    metas: list[TensorMeta] = []
    blocks: list[Block] = []
    owners: list[torch.Tensor] = []
    parts: list[torch.Tensor] = []
    # Many tensors have few shapes. What is kept of each is kept once: the garbage collector walks every tuple there is, again and again.
    boxes: dict[tuple[int, ...], Box] = {}
    pool: dict[tuple[int, ...], tuple[int, ...]] = {}
    storages: dict[object, int] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for name, value in paced(named):
            shard = shard_of(value) if is_sharded(value) else None
            reason = shard if isinstance(shard, str) else refusal(shard.local if shard else value)
            if reason is not None:
                refused.append((name, reason))
                continue
            assert isinstance(value, torch.Tensor)
            if not isinstance(shard, Shard):
                shape = tuple(value.shape)
                box = boxes.get(shape) or boxes.setdefault(shape, Box.whole(shape))
                shard = Shard(value, box.sizes, box)
            block = _block(shard.local, pool)
            if len(block[2]) > _MAX_STRIDED_DIMS:
                refused.append((name, "has too many strided dimensions: call .contiguous()"))
                continue
            storage = storages.setdefault(_identity(shard), len(blocks))
            if storage == len(blocks):
                blocks.append(block)
            dtype = dtype_name(shard.local.dtype)
            metas.append(TensorMeta(name, dtype, shard.shape, shard.box, storage))
            owners.append(value)
            parts.append(shard.local)
        versions = tuple([_version(owner, part) for owner, part in zip(owners, parts, strict=True)])
    if refused:
        raise _refuse(refused)
    return SourceWeights(Manifest(tuple(metas)), tuple(blocks), tuple(owners), tuple(parts), versions)


def _block(tensor: torch.Tensor, pool: dict[tuple[int, ...], tuple[int, ...]]) -> Block:
    item = tensor.element_size()
    if tensor.is_contiguous():
        count = tensor.numel()
        shape_of_one, strides_of_one = pool.setdefault((count,), (count,)), pool.setdefault((item,), (item,))
        return (tensor.data_ptr() if count else 0, item, shape_of_one, strides_of_one)
    shape: list[int] = []
    strides: list[int] = []
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size == 1:
            continue
        if strides and strides[-1] == stride * size * item:
            shape[-1] *= size
            strides[-1] = stride * item
        else:
            shape.append(size)
            strides.append(stride * item)
    return (tensor.data_ptr(), item, tuple(shape), tuple(strides))


def _identity(shard: Shard) -> object:
    tensor = shard.local
    # Where a size is one, its stride says nothing.
    strides = (
        ()
        if tensor.is_contiguous()
        else tuple(stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    )
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype, strides, shard.shape, shard.box)


def _version(given: torch.Tensor, local: torch.Tensor) -> int | None:
    if local.is_inference() or given.is_inference():
        return None
    # A write through a sharded tensor is not counted by its local part, nor the other way round.
    return given._version if given is local else given._version + local._version


def _refuse(refused: list[tuple[str, str]]) -> WeightsError:
    lines = "; ".join(f"{name} {reason}" for name, reason in refused[:_LISTED])
    more = f"; and {len(refused) - _LISTED} more" if len(refused) > _LISTED else ""
    return WeightsError(
        f"{len(refused)} of the weights cannot be moved as they are: {lines}{more}",
        tensor=refused[0][0],
    )
