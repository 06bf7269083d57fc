"""The compiled modules are chosen by the torch that runs, and refuse one that they do not fit."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from stalloc import _torch_modules
from stalloc.errors import StallocError

MINOR = ".".join(torch.__version__.split(".")[:2])
INCLUDE = Path(torch.__file__).parent / "include"


@pytest.fixture
def moved_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch with the number of another patch release, whose headers a test may change."""
    for entry in _torch_modules.torch_module().TORCH_INTERFACE.split():
        copy = tmp_path / "include" / entry.split(":")[0]
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(INCLUDE / entry.split(":")[0], copy)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(torch, "__version__", f"{MINOR}.97+cu999")
    return tmp_path / "include"


def test_the_module_of_this_torch_is_served() -> None:
    assert MINOR in _torch_modules.served_versions()
    module = _torch_modules.torch_module()
    assert module.TORCH_VERSION.startswith(f"{MINOR}.")


def test_a_patch_release_with_the_same_interface_is_served(moved_torch: Path) -> None:
    assert moved_torch.is_dir()
    assert _torch_modules.torch_module().TORCH_VERSION.startswith(f"{MINOR}.")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_patch_release_with_another_interface_is_refused(
    moved_torch: Path, is_there: bool
) -> None:
    header = moved_torch / "c10" / "core" / "CachingDeviceAllocator.h"
    if is_there:
        header.write_text(header.read_text() + "// more\n")
    else:
        header.unlink()
    with pytest.raises(
        StallocError,
        match=rf"torch {re.escape(MINOR)}\.97 is running, and its C\+\+ interface differs "
        rf"\(c10/core/CachingDeviceAllocator\.h\); build stalloc for this torch",
    ):
        _torch_modules.torch_module()


def test_a_build_without_native_mode_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.99.0")
    monkeypatch.setattr(_torch_modules, "served_versions", lambda name: [])
    with pytest.raises(StallocError, match="built without native mode"):
        _torch_modules.cuda_module()


@pytest.mark.parametrize("version", ["1.2.3", "9.99.0a0+git0123abc", "unknown"])
def test_an_unknown_torch_is_refused_and_told_what_works(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    running = version.split("+", maxsplit=1)[0]
    with pytest.raises(
        StallocError,
        match=rf"serves torch .*{re.escape(MINOR)}.*, and torch {re.escape(running)} is running.*"
        r"install_compat\(\)",
    ):
        _torch_modules.torch_module()
