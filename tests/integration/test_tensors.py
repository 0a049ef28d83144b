"""Every kind of tensor arrives as it was, or is refused by name before anything moves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import wtransport
from tests.integration.conftest import linked, raw, same

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES = [
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64 complex128",
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
]
DTYPES = [getattr(torch, name) for name in " ".join(_NAMES).split() if hasattr(torch, name)]


def filled(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    nbytes = math.prod(shape) * dtype.itemsize
    return torch.randint(0, 2 if dtype is torch.bool else 256, (nbytes,), dtype=torch.uint8).view(dtype).reshape(shape)


async def carried(job: Callable[..., Any], weights: Any, wanted: Any = None, **config: Any) -> dict[str, torch.Tensor]:
    """Put once; return copies of what arrived."""
    trainer = await job("trainer", config=config)
    generator = await job("generator", name="gen", config=config)
    await generator.bind(wanted if wanted is not None else weights)
    await linked(trainer)
    receipt = await trainer.put(weights, 1)
    assert receipt.delivered == ("gen",), receipt
    with await generator.get(1) as update:
        return {name: tensor.clone() for name, tensor in update.tensors.items()}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("backend", ["shm", "tcp"])
async def test_every_dtype(job: Callable[..., Any], backend: str) -> None:
    weights = {f"{dtype}": filled(dtype, (7, 9)) for dtype in DTYPES}
    trainer = await job("trainer", backend=backend, config={"verify": "full"})
    generator = await job("generator", name="gen", backend=backend, config={"verify": "full"})
    await generator.bind(weights)
    await linked(trainer)
    assert (await trainer.put(weights, 1)).delivered == ("gen",)
    with await generator.get() as update:
        for name, tensor in weights.items():
            assert update.tensors[name].dtype == tensor.dtype
            assert raw(update.tensors[name]) == raw(tensor), name


async def test_layouts_that_are_not_contiguous(job: Callable[..., Any]) -> None:
    base = torch.arange(120.0).reshape(4, 5, 6)
    weights = {
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "permuted": base.permute(2, 0, 1),
        "strided": torch.arange(100.0)[::3],
        "expanded": torch.arange(4.0)[:, None].expand(4, 5),
        "sliced": torch.arange(1_000_000.0)[500:517],
        "odd": filled(torch.bfloat16, (33,)),
        "wide": torch.arange(9.0, dtype=torch.float64),
    }
    got = await carried(job, weights, {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in weights.items()})
    assert same(got, {name: tensor.contiguous() for name, tensor in weights.items()})


async def test_scalars_and_empty_tensors(job: Callable[..., Any]) -> None:
    weights = {"scalar": torch.tensor(3.5), "none": torch.zeros(0, 4), "count": torch.tensor(7), "one": torch.ones(1, 1, 1)}
    assert same(await carried(job, weights), weights)


async def test_an_empty_mapping_is_a_version(job: Callable[..., Any]) -> None:
    assert await carried(job, {}) == {}


async def test_ties_stay_tied_and_move_once(job: Callable[..., Any]) -> None:
    shared = torch.randn(1000, 64)
    weights = {"embed.weight": shared, "head.weight": shared, "other": torch.randn(3)}
    trainer = await job("trainer")
    generator = await job("generator", name="gen")
    await generator.bind(weights)
    await linked(trainer)
    receipt = await trainer.put(weights, 1)
    assert receipt.nbytes == (1000 * 64 + 3) * 4
    with await generator.get() as update:
        assert update.tensors["embed.weight"].data_ptr() == update.tensors["head.weight"].data_ptr()
        assert same(update.tensors, weights)


async def test_a_module_means_its_state_dict(job: Callable[..., Any]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("hidden", torch.ones(3), persistent=False)

    model, other = Model(), Model()
    got = await carried(job, model, other)
    assert set(got) == set(model.state_dict())
    assert "norm.num_batches_tracked" in got
    other.load_state_dict(got)
    assert same(dict(other.state_dict()), dict(model.state_dict()))


async def test_autograd_does_not_matter(job: Callable[..., Any]) -> None:
    leaf = torch.randn(5, requires_grad=True)
    with torch.inference_mode():
        frozen = torch.randn(4)
    weights = {"leaf": leaf, "derived": leaf * 2, "parameter": nn.Parameter(torch.randn(2, 2)), "inference": frozen}
    got = await carried(job, weights, {name: torch.empty(tensor.shape) for name, tensor in weights.items()})
    assert same(got, {name: tensor.detach() for name, tensor in weights.items()})


async def test_a_tensor_larger_than_a_bucket_and_many_small_ones(job: Callable[..., Any]) -> None:
    weights = {f"small.{i}": filled(torch.uint8, (i % 7,)) for i in range(2000)} | {"large": filled(torch.bfloat16, (1_500_001,))}
    assert same(await carried(job, weights, bucket_nbytes=1 << 20), weights)


async def test_nan_payloads_and_negative_zero_survive(job: Callable[..., Any]) -> None:
    weights = {"bits": torch.tensor([0x7FC00001, -(2**31), 0x7F800000], dtype=torch.int32).view(torch.float32)}
    assert same(await carried(job, weights), weights)


REFUSED = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "meta": lambda: torch.ones(3, device="meta"),
    "conjugated": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "not a tensor": lambda: [1.0, 2.0],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
async def test_what_cannot_move_is_refused_by_name(job: Callable[..., Any], kind: str) -> None:
    trainer = await job("trainer")
    with pytest.raises(wtransport.WeightsError, match=r"layer\.bad"):
        await trainer.put({"layer.good": torch.ones(3), "layer.bad": REFUSED[kind]()}, 1)
    assert (await trainer.put({"layer.good": torch.ones(3)}, 1)).version == 1
