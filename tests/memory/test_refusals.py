from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from wtransport.errors import WeightsError
from wtransport.memory.tensors import inspect

if TYPE_CHECKING:
    from collections.abc import Callable


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3)


def functional_subclass() -> torch.Tensor:
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with FunctionalTensorMode():
        made: torch.Tensor = FunctionalTensor.to_functional(torch.ones(3))
        return made


def wrapper() -> torch.Tensor:
    from torch.testing._internal.two_tensor import TwoTensor

    made: torch.Tensor = TwoTensor(torch.ones(3), torch.ones(3))
    return made


def batched() -> torch.Tensor:
    seen: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    torch.func.vmap(keep)(torch.ones(3, 2))
    return seen[0]


def freed() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


def many_strides() -> torch.Tensor:
    # 17 dimensions of which no two neighbours can be joined.
    return torch.zeros(1 << 18).as_strided([2] * 17, [1 << i for i in range(17)])


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "quint8": (
        lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
        "is quantised: call .int_repr()",
    ),
    "qint32": (
        lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint32),
        "is quantised",
    ),
    "per channel": (
        lambda: torch.quantize_per_channel(torch.ones(2, 4), torch.ones(2), torch.zeros(2), 0, torch.qint8),
        "is quantised",
    ),
    "sparse COO": (lambda: torch.eye(3).to_sparse(), "layout sparse_coo: call .to_dense()"),
    "sparse CSR": (lambda: torch.eye(3).to_sparse_csr(), "layout sparse_csr"),
    "mkldnn": (lambda: torch.eye(3).to_mkldnn(), "layout _mkldnn"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "is nested"),
    "nested, jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "is nested",
    ),
    "meta": (lambda: torch.ones(2, device="meta"), "on the meta device"),
    "fake": (fake, "fake or functional"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(3)), "functional tensor"),
    "functional subclass": (functional_subclass, "fake or functional"),
    "vmapped": (batched, "torch.func"),
    "wrapper subclass": (wrapper, "is a TwoTensor, which keeps its values in other tensors"),
    "lazy": (lambda: nn.LazyLinear(3).weight, "not initialised yet"),
    "conjugate": (lambda: torch.ones(3, dtype=torch.complex64).conj(), "call .resolve_conj()"),
    "negated": (
        lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
        "call .resolve_neg()",
    ),
    "zero tensor": (lambda: torch._efficientzerotensor(3), "memory"),
    "freed": (freed, "needs 12 bytes of its storage, which has 0"),
    "too many strides": (many_strides, "call .contiguous()"),
    "number": (lambda: 1.5, "is a float, not a tensor"),
    "numpy": (lambda: np.ones(3), "is a ndarray, not a tensor"),
    "none": (lambda: None, "is a NoneType, not a tensor"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_moved_is_refused_by_name(kind: str) -> None:
    make, reason = REFUSED[kind]
    weights = {"fine": torch.ones(2), "layer.odd": make()}
    with pytest.raises(WeightsError, match=re.escape(reason)) as caught:
        inspect(weights)
    assert caught.value.tensor == "layer.odd"
    assert "1 of the weights cannot be moved as they are: layer.odd " in caught.value.message


def test_a_few_are_listed_and_the_rest_counted() -> None:
    weights = {f"w{i}": torch.ones(2, device="meta") for i in range(8)}
    with pytest.raises(WeightsError) as caught:
        inspect(weights)
    assert "8 of the weights" in caught.value.message
    assert "w4" in caught.value.message
    assert "w5" not in caught.value.message
    assert caught.value.message.endswith("and 3 more")


def test_too_many_dimensions_that_join_are_fine() -> None:
    assert inspect({"w": torch.zeros(()).expand([2] * 17)}).blocks[0][2:] == ((1 << 17,), (0,))


@pytest.mark.parametrize(
    ("weights", "hint"),
    [
        ([("w", torch.ones(1))], "materialise them: dict(pairs)"),
        (iter([("w", torch.ones(1))]), "materialise them first"),
        ((pair for pair in [("w", torch.ones(1))]), "materialise them first"),
        (nn.Linear(1, 1).named_parameters(), "materialise them first"),
        (zip(["w"], [torch.ones(1)], strict=True), "materialise them first"),
        (torch.ones(3), "give it one"),
        (None, "give a module"),
        (7, "give a module"),
    ],
    ids=["list", "iterator", "generator", "named_parameters", "zip", "tensor", "none", "int"],
)
def test_weights_that_are_no_mapping_get_a_hint(weights: object, hint: str) -> None:
    with pytest.raises(WeightsError) as caught:
        inspect(weights)
    assert hint in str(caught.value.hint)


def test_a_lazy_generator_is_not_even_started() -> None:
    started: list[str] = []

    def merged() -> Any:
        started.append("merge")
        yield "w", torch.ones(1)

    with pytest.raises(WeightsError):
        inspect(merged())
    assert started == []


@pytest.mark.parametrize("name", [1, None, b"w", ("a", "b")])
def test_names_must_be_strings(name: object) -> None:
    with pytest.raises(WeightsError, match="not a string"):
        inspect({name: torch.ones(1)})


def test_names_must_be_unicode() -> None:
    with pytest.raises(WeightsError, match="not valid Unicode"):
        inspect({"\ud800": torch.ones(1)})


def test_extra_state_of_a_module_is_named() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> object:
            return {"amax": 1.0}

        def set_extra_state(self, state: object) -> None: ...

    with pytest.raises(WeightsError, match="_extra_state is a dict, not a tensor: leave it out"):
        inspect(Extra(1, 1))
