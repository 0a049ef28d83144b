"""The span table's shape as the seam checks it; its contents are checked in native code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wtransport.errors import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt

COLUMNS = 6
BLOCK, LOCAL_OFFSET, REMOTE_OFFSET, NBYTES, TENSOR, POSITION = range(COLUMNS)


def check_table(spans: npt.NDArray[np.int64], num_digests: int) -> npt.NDArray[np.int64]:
    """Return *spans* as the native side takes it.

    Raises:
        ConfigError: Unless it is int64 ``[n, 6]``.
    """
    if spans.dtype != np.int64 or spans.ndim != 2:
        raise ConfigError("a span table is an int64 array of shape [n, 6]")
    if spans.shape[1] != COLUMNS:
        raise ConfigError(f"a span table has {COLUMNS} columns, not {spans.shape[1]}")
    if num_digests < 0:
        raise ConfigError(f"num_digests must not be negative, not {num_digests}")
    return np.ascontiguousarray(spans)


def table_nbytes(spans: npt.NDArray[np.int64]) -> int:
    """Bytes that a checked table moves."""
    return int(spans[:, NBYTES].sum())


def check_bounds(spans: npt.NDArray[np.int64], remote_nbytes: int) -> None:
    """Refuse a table whose remote side leaves the grant, before its first rows are sent.

    The owner checks each frame again: it need not trust this.

    Raises:
        ConfigError: Naming the first bad row.
    """
    start, nbytes = spans[:, REMOTE_OFFSET], spans[:, NBYTES]
    bad = (start < 0) | (nbytes < 0) | (start > remote_nbytes - nbytes)
    if bad.any():
        row = int(bad.argmax())
        raise ConfigError(
            f"row {row} of the span table ({int(nbytes[row])} bytes at {int(start[row])}) leaves "
            f"the remote region of {remote_nbytes} bytes",
            hint="nothing was moved",
        )
