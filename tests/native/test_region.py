"""Shared regions: sealed, checked before they are mapped, alive while used."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wtransport import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

_NBYTES = 10_000


@pytest.fixture
def region() -> Iterator[_native.SharedRegion]:
    region = _native.SharedRegion.create(_NBYTES)
    yield region
    region.close()


def test_fresh_memory_is_zero_and_shared(region: _native.SharedRegion) -> None:
    peer = _native.SharedRegion.attach(region.fileno(), _NBYTES, True)
    assert region.nbytes == peer.nbytes == _NBYTES
    assert not region.view().any()
    region.view()[:] = 7
    assert (peer.view() == 7).all()
    assert region.address != peer.address
    assert region.view().ctypes.data == region.address


def test_the_generation_is_shared(region: _native.SharedRegion) -> None:
    peer = _native.SharedRegion.attach(region.fileno(), _NBYTES, False)
    assert peer.generation == 0
    region.generation = 2**64 - 1
    assert peer.generation == 2**64 - 1
    with pytest.raises(ValueError, match="read-only"):
        peer.generation = 5


def test_descriptors_do_not_survive_an_exec(region: _native.SharedRegion) -> None:
    assert fcntl.fcntl(region.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_the_memfd_is_sealed(region: _native.SharedRegion) -> None:
    for nbytes in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(region.fileno(), nbytes)


@pytest.mark.parametrize("nbytes", [0, _NBYTES - 1, _NBYTES + 1, 1 << 40, -1])
def test_a_lie_about_the_size_is_refused(region: _native.SharedRegion, nbytes: int) -> None:
    with pytest.raises(ValueError, match=r"bytes|size"):
        _native.SharedRegion.attach(region.fileno(), nbytes, True)


def test_a_file_that_could_shrink_is_refused() -> None:
    fd = os.memfd_create("loose", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 4096 + _NBYTES)
        with pytest.raises(ValueError, match="sealed"):
            _native.SharedRegion.attach(fd, _NBYTES, True)
    finally:
        os.close(fd)


def test_attaching_keeps_a_descriptor_of_its_own(region: _native.SharedRegion) -> None:
    fd = os.dup(region.fileno())
    peer = _native.SharedRegion.attach(fd, _NBYTES, True)
    os.close(fd)
    assert peer.fileno() not in (fd, region.fileno())
    peer.view()[0] = 1
    assert region.view()[0] == 1


def test_a_read_only_descriptor_maps_read_only(region: _native.SharedRegion) -> None:
    fd = os.open(f"/proc/self/fd/{region.fileno()}", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="mmap"):
            _native.SharedRegion.attach(fd, _NBYTES, True)
        peer = _native.SharedRegion.attach(fd, _NBYTES, False)
    finally:
        os.close(fd)
    assert not peer.writable
    assert not peer.view().flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        peer.punch()


def test_punching_gives_pages_back_under_a_peers_mapping(region: _native.SharedRegion) -> None:
    peer = _native.SharedRegion.attach(region.fileno(), _NBYTES, True)
    region.view()[:] = 9
    region.generation = 41
    before = os.fstat(region.fileno()).st_blocks
    region.punch()
    assert os.fstat(region.fileno()).st_blocks < before
    assert not peer.view().any()
    assert peer.generation == 42


def test_a_view_keeps_the_memory_after_the_close(region: _native.SharedRegion) -> None:
    view = region.view()
    fd = region.fileno()
    region.close()
    region.close()
    view[:] = np.arange(_NBYTES) % 251
    assert int(view.astype(np.int64).sum()) == int((np.arange(_NBYTES) % 251).sum())
    os.fstat(fd)
    del view
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_closed_region_says_so(region: _native.SharedRegion, engine: _native.Engine) -> None:
    region.close()
    assert region.nbytes == _NBYTES
    for use in (
        region.fileno,
        region.view,
        region.punch,
        lambda: region.address,
        lambda: region.generation,
        lambda: engine.populate(region),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_sizes_out_of_reach() -> None:
    with pytest.raises(ValueError, match="size"):
        _native.SharedRegion.create(-1)
    with pytest.raises((MemoryError, OSError)):
        _native.SharedRegion.create(2**62)
    assert _native.SharedRegion.create(0).view().shape == (0,)
