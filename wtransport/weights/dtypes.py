"""The dtypes whose elements torch stores in whole bytes, by name and without torch."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from wtransport.errors import WeightsError

# Sub-byte names (int4, uint1...) and bits* are whole-byte shells in torch: one element is one byte,
# whatever is packed inside.
ITEMSIZE: Final = MappingProxyType(
    {
        "bool": 1,
        **{f"{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 9)},
        **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (16, 32, 64)},
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float64": 8,
        "complex32": 4,
        "complex64": 8,
        "complex128": 16,
        "float8_e4m3fn": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2": 1,
        "float8_e5m2fnuz": 1,
        "float8_e8m0fnu": 1,
        "float4_e2m1fn_x2": 1,
        "bits1x8": 1,
        "bits2x4": 1,
        "bits4x2": 1,
        "bits8": 1,
        "bits16": 2,
    }
)


def itemsize(dtype: str) -> int:
    """Bytes of one element of *dtype*, a torch name without the ``torch.`` prefix.

    Raises:
        WeightsError: If the dtype is not one whose elements are whole bytes.
    """
    try:
        return ITEMSIZE[dtype]
    except KeyError:
        raise WeightsError(
            f"dtype {dtype!r} cannot be moved",
            hint=f"dtypes that can: {', '.join(sorted(ITEMSIZE))}",
        ) from None
