from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripts import Outcome


def every_rank() -> None:
    """Look at each rank's part of several layouts, in one process that plays the ranks in turn."""
    import itertools

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from wtransport.errors import WeightsError
    from wtransport.memory.tensors import inspect
    from wtransport.weights.assign import assign
    from wtransport.weights.manifest import Manifest, TensorMeta

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
                past = part.narrow(place.dim, 0, 0)
                part = pieces[at] if at < len(pieces) else past
        return part.contiguous()

    for rows, columns, placements, is_box in layouts:
        manifests = []
        for rank, coordinate in enumerate(itertools.product(range(rows), range(columns))):
            dist.init_process_group("fake", rank=rank, world_size=rows * columns, store=FakeStore())
            mesh = init_device_mesh("cpu", (rows, columns))
            local = part_of(coordinate, (rows, columns), placements)
            made = DTensor.from_local(local, mesh, placements, run_check=False, shape=values.shape, stride=values.stride())
            for weights in ({"w": made}, {"w": torch.nn.Parameter(made)}):
                try:
                    source = inspect(weights)
                except WeightsError as error:
                    assert not is_box, error
                    assert "not one box" in error.message, error
                    continue
                assert is_box
                (meta,) = source.manifest.tensors
                assert meta.shape == shape
                index = tuple(slice(a, b) for a, b in zip(meta.box.offsets, meta.box.ends, strict=True))
                assert values[index].equal(local), (placements, rank, meta)
                assert source.blocks[0][0] == (local.data_ptr() if local.numel() else 0)
            if is_box:
                manifests.append(source.manifest)
            dist.destroy_process_group()
        if is_box:
            wanted = Manifest((TensorMeta.full("w", "float64", shape, 0),))
            sent = assign(manifests, wanted)
            assert sum(assignment.nbytes for assignment in sent) == wanted.nbytes

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (4,))
    partial = DTensor.from_local(values, mesh, [Partial()], run_check=False)
    other = dist.new_group([1, 2])
    elsewhere = DTensor.from_local(
        torch.ones(2),
        torch.distributed.device_mesh.DeviceMesh("cpu", [1, 2]),
        [Shard(0)],
        run_check=False,
    )
    for weights, reason in (
        ({"w": partial}, "is a partial sum"),
        ({"w": elsewhere}, "this rank is not part of"),
    ):
        try:
            inspect(weights)
        except WeightsError as error:
            assert reason in error.message, error
            assert error.tensor == "w"
        else:
            raise AssertionError(reason)
    del other
    whole = DTensor.from_local(values, mesh, [Replicate()], run_check=False)
    plain = inspect({"w": values})
    assert inspect({"w": whole}).manifest == plain.manifest
    with torch.no_grad():
        source = inspect({"w": whole})
        whole.mul_(2)
        assert source.changed() == ["w"]
    dist.destroy_process_group()
    print("all seen")


def test_the_boxes_of_sharded_tensors_are_those_of_their_values(
    run_python: Callable[..., Outcome],
) -> None:
    outcome = run_python(every_rank)
    assert "all seen" in str(outcome), outcome
