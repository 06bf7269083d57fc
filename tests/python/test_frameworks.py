"""The framework modules: importing them is harmless, using them says what to do instead."""

from __future__ import annotations

import importlib
import sys

import pytest

from stalloc.errors import NotSupportedError, StallocError

FRAMEWORKS = ["megatron", "colossalai"]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_importing_does_not_import_the_framework(name: str) -> None:
    importlib.import_module(f"stalloc.{name}")
    assert name not in sys.modules


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_install_says_what_to_do_instead(name: str) -> None:
    module = importlib.import_module(f"stalloc.{name}")
    with pytest.raises(NotSupportedError, match=r"stalloc\.hooks\.phase") as caught:
        module.install()
    assert isinstance(caught.value, StallocError)
