"""Every public name is documented and shown in use."""

from __future__ import annotations

import inspect
import re
from importlib import metadata

import pytest

import wtransport
from tests.helpers.tree import ROOT, files


def _public() -> list[str]:
    return list(getattr(wtransport, "__all__", ()))


def test_there_is_a_public_api() -> None:
    assert {"connect", "TransportConfig", "TransportError"} <= set(_public())


@pytest.mark.parametrize("name", _public())
def test_public_name_is_used_in_an_example_or_a_test(name: str) -> None:
    word = re.compile(rf"\b{re.escape(name)}\b")
    users = [path for path in files("examples", "tests") if word.search(path.read_text())]
    assert users, f"wtransport.{name} is in no example and no test"


@pytest.mark.parametrize("name", _public())
def test_public_name_is_documented(name: str) -> None:
    value = getattr(wtransport, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert inspect.getdoc(value), f"wtransport.{name} has no docstring"


def test_typing_marker_ships() -> None:
    assert (ROOT / "wtransport" / "py.typed").is_file()


def test_the_version_is_that_of_the_installed_package() -> None:
    assert wtransport.__version__ == metadata.version("wtransport")
