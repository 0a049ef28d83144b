"""What the documents name is in the tree."""

from __future__ import annotations

import ast
import dataclasses
import re
import typing

import pytest

import wtransport
from tests.helpers.tree import ROOT
from wtransport import config
from wtransport.session import outcomes

_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_CODE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _read(page: str) -> str:
    return (ROOT / page).read_text()


def _blocks(page: str, language: str) -> list[str]:
    return [text for found, text in _CODE.findall(_read(page)) if found == language]


def test_examples_use_what_there_is() -> None:
    blocks = _blocks("README.md", "python")
    assert blocks
    for block in blocks:
        # The examples await at top level, as in a coroutine.
        tree = compile(block, "README.md", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id="wtransport"), attr=name):
                    assert name in wtransport.__all__
                case ast.Attribute(value=ast.Name(id="transport"), attr=name):
                    assert hasattr(wtransport.Transport, name)
                case ast.Attribute(value=ast.Name(id="handle"), attr=name):
                    assert hasattr(wtransport.PutHandle, name)


@pytest.mark.parametrize("page", _PAGES)
def test_make_targets_exist(page: str) -> None:
    makefile = _read("Makefile")
    for block in _blocks(page, ""):
        for words in re.findall(r"^make ([a-z -]+)", block, re.MULTILINE):
            for target in words.split():
                rule = re.escape(target) if "-" not in target else re.escape(target.partition("-")[0]) + "-%"
                assert re.search(rf"^{rule}:", makefile, re.MULTILINE), f"{page}: make {target}"


@pytest.mark.parametrize("page", _PAGES)
def test_named_files_exist(page: str) -> None:
    # A table's row names a folder once, and the files in it, or in one of its roles, by their own names.
    parts = [path for part in ("session", "service", "backends", "testing") for path in (ROOT / "wtransport" / part).glob("**/")]
    prefixes = ("", "wtransport/", *(f"{path.relative_to(ROOT)}/" for path in parts))
    for name in re.findall(r"`([\w./-]+\.(?:py|h|toml|txt|def|yaml|pyi|md)|[\w/]+/)`", _read(page)):
        if "NAME" not in name:
            assert any((ROOT / prefix / name).exists() for prefix in prefixes), f"{page} names {name}"
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", _read(page)):
        assert (ROOT / link).exists(), f"{page} links to {link}"


def test_every_outcome_is_explained() -> None:
    named = {kind.name for kind in typing.get_args(outcomes.Outcome)}
    table = re.findall(r"^\| `(\w+)` \|", _read("README.md").split("### What became of a put")[1].split("###")[0], re.MULTILINE)
    assert set(table) == named


def test_every_level_of_verification_is_explained() -> None:
    table = re.findall(r"^\| `(\w+)`", _read("README.md").split("## How much is verified (`verify`)")[1].split("\n## ")[0], re.MULTILINE)
    assert set(table) == set(typing.get_args(config.VerifyLevel))


def test_every_setting_is_documented() -> None:
    text = config.TransportConfig.__doc__ or ""
    for field in dataclasses.fields(config.TransportConfig):
        assert f"{field.name}: " in text


def test_every_command_is_listed() -> None:
    registered = re.findall(r'^_register\("(\w+)"', (ROOT / "wtransport" / "cli" / "main.py").read_text(), re.MULTILINE)
    listed = re.findall(r"^\| `wtransport (\w+)", _read("README.md"), re.MULTILINE)
    assert set(listed) == set(registered)


def test_changelog_has_the_version_of_the_project() -> None:
    (version,) = re.findall(r'^version = "(.+)"', _read("pyproject.toml"), re.MULTILINE)
    assert f"## [{version}]" in _read("CHANGELOG.md")
