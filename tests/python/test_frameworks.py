"""The framework modules: importing them is harmless, using them says what to do instead."""

from __future__ import annotations

import importlib
import sys

import pytest

import stalloc
import stalloc.megatron
from stalloc.driver import Stage
from stalloc.errors import StallocError

FRAMEWORKS = ["megatron", "colossalai"]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_importing_does_not_import_the_framework(name: str) -> None:
    importlib.import_module(f"stalloc.{name}")
    assert name not in sys.modules


def test_install_names_the_missing_megatron() -> None:
    with pytest.raises(StallocError, match="install megatron-core"):
        stalloc.megatron.install()
    assert stalloc.megatron.install("off").stage is Stage.OFF
    stalloc.megatron.uninstall()
