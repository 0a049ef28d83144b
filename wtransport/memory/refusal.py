"""What kinds of tensor cannot be moved byte by byte, and what to do about each.

Only metadata is looked at, cheapest and safest first: some kinds abort the process when they are
asked for their data.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from wtransport.weights.dtypes import ITEMSIZE

_PLAIN: Final = (torch.Tensor, nn.Parameter, nn.Buffer)
_FAKE: Final = ("FakeTensor", "FunctionalTensor")


def refusal(value: object) -> str | None:
    """Say why *value* cannot be moved and what to do, or None if it can.

    The caller has switched subclass overrides off (``torch._C.DisableTorchFunctionSubclass``).
    Sharded tensors are looked at through their local tensor.
    """
    if not isinstance(value, torch.Tensor):
        return f"is a {type(value).__name__}, not a tensor: leave it out, or make it a tensor"
    try:
        return _of_class(value) or _of_kind(value) or _of_memory(value)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        return f"does not let its memory be seen ({str(error).splitlines()[0][:120]}): clone it"


def _of_class(tensor: torch.Tensor) -> str | None:
    if type(tensor) in _PLAIN:
        return None
    if nn.parameter.is_lazy(tensor):
        return "is not initialised yet: run the lazy module once before"
    if any(cls.__name__ in _FAKE and cls.__module__.startswith("torch.") for cls in type(tensor).__mro__):
        return "is a fake or functional tensor without data: use the real one"
    if hasattr(tensor, "__tensor_flatten__") and not tensor.is_nested:
        kind = type(tensor).__name__
        return f"is a {kind}, which keeps its values in other tensors: name those one by one"
    return None


def _of_kind(tensor: torch.Tensor) -> str | None:
    if tensor.is_nested:
        return "is nested: take its values() and offsets() under names of their own"
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"has layout {layout}: call .to_dense(), or name its parts one by one"
    if tensor.is_quantized:
        return "is quantised: call .int_repr() and move scale and zero point under names of their own"
    if tensor.is_meta:
        return "is on the meta device and has no data: materialise it first"
    if tensor.device.type != "cpu":
        return f"is on {tensor.device}, and this build moves CPU memory only: call .cpu() first"
    if torch._is_functional_tensor(tensor):
        return "is a functional tensor without data: use the real one"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "belongs to a running torch.func transform: use it outside of that"
    if dtype_name(tensor.dtype) not in ITEMSIZE:
        return f"has dtype {dtype_name(tensor.dtype)}, which has no whole bytes of its own: convert it"
    if tensor.is_conj():
        return "is a conjugate view: call .resolve_conj()"
    if tensor.is_neg():
        return "is a negated view: call .resolve_neg()"
    return None


def _of_memory(tensor: torch.Tensor) -> str | None:
    count = tensor.numel()
    if not count:
        return None
    last = count - 1
    if not tensor.is_contiguous():
        last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    available = tensor.untyped_storage().nbytes()
    if end > available:
        return f"needs {end} bytes of its storage, which has {available}: it was freed or resized"
    if not tensor.data_ptr():
        return "has no memory of its own: clone it"
    return None


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of *dtype* without ``torch.``."""
    return str(dtype).removeprefix("torch.")
