from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from tests.memory.native import take
from wtransport.memory.tensors import inspect
from wtransport.weights.box import Box
from wtransport.weights.digest import digest_box

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport._native import Engine


class Plain(torch.Tensor):
    """A subclass that only has another class."""


class Lying(torch.Tensor):
    """A subclass whose every function says something else."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise AssertionError(f"{func} was called on the subclass")


def in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(12.0).reshape(3, 4)


def base() -> torch.Tensor:
    return torch.arange(4 * 5 * 6, dtype=torch.float32).reshape(4, 5, 6)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "0-dim": lambda: torch.tensor(3.5),
    "0-dim of a larger storage": lambda: base()[1, 2, 3],
    "zero-size": lambda: torch.empty(3, 0, 2),
    "zero-size slice": lambda: base()[2:2],
    "zero-size, transposed": lambda: torch.empty(3, 0).t(),
    "contiguous": base,
    "transposed": lambda: base().transpose(0, 2),
    "matrix transposed": lambda: torch.arange(35.0).reshape(5, 7).t(),
    "permuted": lambda: base().permute(1, 2, 0),
    "strided": lambda: base()[::2, 1::2, ::3],
    "every other column": lambda: torch.arange(64, dtype=torch.bfloat16).reshape(8, 8)[:, ::2],
    "expanded": lambda: torch.arange(5.0).expand(4, 5),
    "expanded inside": lambda: torch.arange(3.0).reshape(3, 1).expand(3, 4),
    "expanded scalar": lambda: torch.tensor(2.0).expand(3, 3),
    "sliced from a larger storage": lambda: base()[1:3],
    "columns of a larger storage": lambda: base()[:, :, 2:5],
    "sliding windows": lambda: torch.arange(10.0).unfold(0, 4, 1),
    "channels last": lambda: torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "size-one dimensions": lambda: base()[:, :1].transpose(0, 1),
    "twenty dimensions": lambda: torch.rand([2] * 4 + [1] * 16),
    "odd offset, wide dtype": lambda: torch.arange(9.0, dtype=torch.float64)[1::3],
    "large": lambda: torch.rand(700, 500),
    "large transposed": lambda: torch.rand(700, 500).t(),
    "large bytes, every other": lambda: torch.arange(2_000_000).to(torch.uint8)[::2],
    "parameter": lambda: nn.Parameter(base()),
    "buffer": lambda: nn.Buffer(base()),
    "frozen parameter": lambda: nn.Parameter(base(), requires_grad=False),
    "non-leaf": lambda: base().requires_grad_() * 2,
    "parameter, transposed": lambda: nn.Parameter(base()).transpose(0, 1),
    "inference tensor": in_inference_mode,
    "view of an inference tensor": lambda: in_inference_mode().t(),
    "subclass": lambda: base().as_subclass(Plain),
    "subclass with overrides": lambda: base().as_subclass(Lying),
    "shared memory": lambda: base().share_memory_(),
    "over numpy memory": lambda: torch.from_numpy(np.arange(12).reshape(3, 4)[:, ::2]),
    "lazy clone": lambda: torch._lazy_clone(base()),
    "detached": lambda: base().requires_grad_().detach(),
    "resolved conjugate": lambda: torch.rand(3, dtype=torch.complex64).conj().resolve_conj(),
    "real part": lambda: torch.rand(3, 4, dtype=torch.complex64).real,
    "other dtype's view": lambda: base().view(torch.int16),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_any_layout_is_read_as_it_is(engine: Engine, kind: str) -> None:
    tensor = LAYOUTS[kind]()
    source = inspect({"w": tensor})
    (meta,) = source.manifest.tensors
    with torch._C.DisableTorchFunctionSubclass():
        shape = tuple(tensor.shape)
        values = tensor.detach().as_subclass(torch.Tensor).contiguous()
    assert (meta.shape, meta.box) == (shape, Box.whole(shape))
    snapshot, digests = take(engine, source)
    if values.dtype is torch.bfloat16:
        values = values.view(torch.int16)
    array = values.numpy()
    assert bytes(snapshot.region.view()[: meta.nbytes]) == array.tobytes()
    assert int(digests[0]) == digest_box(array, shape, meta.box)
    snapshot.close()


def test_nothing_is_touched_cast_or_copied() -> None:
    tensor = nn.Parameter(base())
    version = tensor._version
    source = inspect({"w": tensor})
    assert source.blocks == ((tensor.data_ptr(), 4, (120,), (4,)),)
    assert (source.owners, source.parts) == ((tensor,), (tensor,))
    assert tensor._version == version
    assert tensor.requires_grad


@pytest.mark.parametrize("make", [dict, OrderedDict, lambda pairs: MappingProxyType(dict(pairs))])
def test_any_mapping_will_do_in_any_order(make: Callable[..., object]) -> None:
    first = inspect(make([("b", torch.ones(2)), ("a", torch.zeros(3, dtype=torch.int8))]))
    second = inspect({"a": torch.zeros(3, dtype=torch.int8), "b": torch.ones(2)})
    assert first.manifest == second.manifest
    assert [block[1] for block in first.blocks] == [1, 4]


def test_empty_weights_are_valid(engine: Engine) -> None:
    for weights in ({}, nn.Module()):
        source = inspect(weights)
        assert (len(source.manifest), source.blocks, source.owners) == (0, (), ())
    snapshot, digests = take(engine, source)
    assert (snapshot.layout.nbytes, len(digests)) == (0, 0)
    snapshot.close()


def test_tied_names_are_one_block() -> None:
    weight = torch.rand(4, 3)
    source = inspect(
        {
            "head": weight,
            "embed": weight,
            "view": weight.view(4, 3),
            "param": nn.Parameter(weight),
            "flat": weight.view(12),
            "transposed": weight.t(),
            "part": weight[1:],
            "bits": weight.view(torch.int32),
            "apart": weight.clone(),
        }
    )
    manifest = source.manifest
    assert [names for names in manifest.aliases if len(names) > 1] == [("embed", "head", "param", "view")]
    assert len(source.blocks) == len(manifest.canonical) == 6
    assert [block[0] for block in source.blocks] == [
        source.parts[[meta.name for meta in manifest.tensors].index(meta.name)].data_ptr() for meta in manifest.canonical
    ]


def test_strides_of_size_one_do_not_untie() -> None:
    weight = torch.rand(1, 8)
    assert inspect({"a": weight, "b": weight.as_strided((1, 8), (3, 1))}).manifest.aliases == (("a", "b"),)


def test_empty_tensors_are_tied_only_if_they_share_a_storage() -> None:
    empty = torch.empty(0, 4)
    source = inspect({"a": empty, "b": empty, "c": torch.empty(0, 4)})
    assert source.manifest.aliases == (("a", "b"), ("c",))
    assert source.manifest.nbytes == 0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros((), dtype=torch.int32))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)


def test_module_means_parameters_and_persistent_buffers_with_their_ties() -> None:
    model = Tied()
    source = inspect(model)
    assert source.manifest == inspect(model.state_dict()).manifest
    assert [meta.name for meta in source.manifest.tensors] == sorted(model.state_dict())
    assert "scratch" not in source.manifest.by_name
    assert ("embed.weight", "head.weight") in source.manifest.aliases
    assert source.manifest.by_name["norm.num_batches_tracked"].dtype == "int64"
    place = source.manifest.by_name["embed.weight"].storage
    assert source.blocks[place][0] == model.embed.weight.data_ptr()


def test_writes_that_torch_counts_are_found() -> None:
    model = Tied()
    source = inspect(model)
    assert source.changed() == []
    with torch.no_grad():
        model.head.weight.mul_(2)
        model.norm.running_mean[0] = 1.0  # type: ignore[index]
    assert source.changed() == ["embed.weight", "head.weight", "norm.running_mean"]
    subclass = inspect({"w": base().as_subclass(Lying)})
    assert subclass.changed() == []
    inference = inspect({"w": in_inference_mode()})
    assert inference.versions == (None,)
    assert inference.changed() == []


def test_the_tensors_are_kept_alive(engine: Engine) -> None:
    source = inspect({f"w{i}": torch.full((1000,), float(i)) for i in range(50)})
    snapshot, _ = take(engine, source)
    first_cells = snapshot.region.view().view(np.float32)[snapshot.layout.offsets // 4]
    order = [int(meta.name[1:]) for meta in source.manifest.tensors]
    assert first_cells.tolist() == order
    snapshot.close()


def test_a_hundred_thousand_tensors() -> None:
    one = torch.rand(100_000, 2)
    source = inspect({f"layer.{i}": row for i, row in enumerate(one)})
    assert len(source.blocks) == 100_000
    assert source.manifest.nbytes == one.nbytes
