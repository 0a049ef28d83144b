from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripts import Outcome


def every_rank() -> None:
    """Look at each rank's part of several layouts; each rank is a forked child of this process."""
    import itertools
    import json
    import os

    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from wtransport.errors import WeightsError
    from wtransport.memory.tensors import inspect
    from wtransport.weights.assign import assign
    from wtransport.weights.manifest import Manifest, TensorMeta

    torch.set_num_threads(1)
    shape = (10, 7, 3)
    values = torch.arange(210, dtype=torch.float64).reshape(shape)
    layouts = [
        (2, 3, [Shard(0), Shard(1)], True),
        (2, 3, [Shard(0), Shard(0)], True),
        (2, 3, [Replicate(), Shard(1)], True),
        (2, 3, [Replicate(), Replicate()], True),
        (3, 4, [Shard(1), Shard(2)], True),
        (4, 3, [Shard(2), Shard(2)], True),
        (1, 6, [Shard(0), Shard(0)], True),
        (2, 2, [_StridedShard(0, split_factor=2), Shard(0)], True),
        (2, 2, [_StridedShard(1, split_factor=2), Shard(1)], True),
        (2, 2, [Shard(0), _StridedShard(0, split_factor=2)], False),
    ]

    def part_of(coordinate, sizes, placements):
        part = values
        for place, size, at in zip(placements, sizes, coordinate, strict=True):
            if isinstance(place, _StridedShard):
                pieces, _ = place._split_tensor(part, size, with_padding=False, contiguous=True)
                part = pieces[at]
            elif isinstance(place, Shard):
                pieces = torch.chunk(part, size, dim=place.dim)
                part = pieces[at] if at < len(pieces) else part.narrow(place.dim, 0, 0)
        return part.contiguous()

    def look(rank, coordinate, sizes, placements, is_box):
        dist.init_process_group("fake", rank=rank, world_size=sizes[0] * sizes[1], store=FakeStore())
        mesh = init_device_mesh("cpu", sizes)
        local = part_of(coordinate, sizes, placements)
        made = DTensor.from_local(local, mesh, placements, run_check=False, shape=values.shape, stride=values.stride())
        if not is_box:
            with pytest.raises(WeightsError, match="not one box"):
                inspect({"w": made})
            return Manifest(())
        source = inspect({"w": torch.nn.Parameter(made)})
        assert source.manifest == inspect({"w": made}).manifest
        (meta,) = source.manifest.tensors
        assert meta.shape == shape
        index = tuple(slice(a, b) for a, b in zip(meta.box.offsets, meta.box.ends, strict=True))
        assert values[index].equal(local), (placements, coordinate, meta.box)
        assert source.blocks[0][0] == (local.data_ptr() if local.numel() else 0)
        return source.manifest

    # What torch imports on first use, each child would import again.
    look(0, (0, 0), (1, 1), [Shard(0), Shard(1)], True)
    dist.destroy_process_group()
    for rows, columns, placements, is_box in layouts:
        manifests = []
        for rank, coordinate in enumerate(itertools.product(range(rows), range(columns))):
            reader, writer = os.pipe()
            if os.fork() == 0:
                manifest = look(rank, coordinate, (rows, columns), placements, is_box)
                os.write(writer, json.dumps(manifest.to_wire()).encode())
                os._exit(0)
            os.close(writer)
            with os.fdopen(reader) as pipe:
                manifests.append(Manifest.from_wire(json.load(pipe)))
            os.wait()
        if is_box:
            wanted = Manifest((TensorMeta.full("w", "float64", shape, 0),))
            sent = assign(manifests, wanted)
            assert sum(assignment.nbytes for assignment in sent) == wanted.nbytes
    print("all seen")


def what_is_not_sharded() -> None:
    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from wtransport.errors import WeightsError
    from wtransport.memory.tensors import inspect

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    mesh = DeviceMesh("cpu", [0, 1, 2, 3])
    values = torch.rand(6, 4)
    partial = DTensor.from_local(values, mesh, [Partial()], run_check=False)
    with pytest.raises(WeightsError, match="w is a partial sum over its mesh"):
        inspect({"w": partial})
    elsewhere = DTensor.from_local(values, DeviceMesh("cpu", [1, 2]), [Shard(0)], run_check=False)
    with pytest.raises(WeightsError, match="this rank is not part of"):
        inspect({"w": elsewhere})
    conjugate = DTensor.from_local(torch.ones(3) * 1j, mesh, [Replicate()], run_check=False)
    conjugate._local_tensor = conjugate._local_tensor.conj()
    with pytest.raises(WeightsError, match="w is a conjugate view"):
        inspect({"w": conjugate})
    whole = DTensor.from_local(values, mesh, [Replicate()], run_check=False)
    source = inspect({"w": whole, "tied": whole})
    assert source.manifest == inspect({"w": values, "tied": values}).manifest
    assert source.blocks[0][0] == values.data_ptr()
    whole.mul_(2)
    assert source.changed() == ["tied", "w"]
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(whole)
    source = inspect(model)
    with torch.no_grad():
        model.w.add_(1)
    assert source.changed() == ["w"]
    source = inspect({"w": whole})
    whole._local_tensor.add_(1)
    assert source.changed() == ["w"]
    print("all seen")


def test_the_boxes_of_sharded_tensors_are_those_of_their_values(
    run_python: Callable[..., Outcome],
) -> None:
    outcome = run_python(every_rank)
    assert outcome.stdout == "all seen\n", outcome.stderr


def test_partial_foreign_and_fully_local_tensors(run_python: Callable[..., Outcome]) -> None:
    outcome = run_python(what_is_not_sharded)
    assert outcome.stdout == "all seen\n", outcome.stderr
