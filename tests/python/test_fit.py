"""Inputs that a plan serves, and those that it refuses."""

from __future__ import annotations

import pytest
import torch

from stalloc._fit import input_mismatch
from stalloc.hooks import input_signature


def profiled(*shapes: tuple[int, ...]) -> list[str]:
    return [input_signature((torch.zeros(shape),), {}) for shape in shapes]


@pytest.mark.parametrize(
    ("shapes", "running"),
    [
        ([], (4, 8)),
        ([(4, 8)], (4, 8)),
        ([(4, 8)], (1, 8)),
        ([(4, 8)], (0, 8)),
        ([(4, 8), (4, 9)], (4, 1000)),
        ([(4, 8), (4, 9)], (2, 1)),
        ([(4, 8), (5, 8)], (100, 7)),
        ([()], ()),
    ],
)
def test_serves_inputs_like_the_profiled_ones(
    shapes: list[tuple[int, ...]], running: tuple[int, ...]
) -> None:
    assert input_mismatch(profiled(*shapes), (torch.zeros(running),), {}) is None


@pytest.mark.parametrize(
    ("shapes", "running", "hint"),
    [
        ([(4, 8)], (4, 9), "with this batch size and length"),
        ([(4, 8), (4, 9)], (5, 8), "with this batch size and length"),
        ([(4, 8)], (4, 8, 1), "number, type or rank"),
        ([(4, 8)], (), "number, type or rank"),
    ],
)
def test_refuses_other_inputs(
    shapes: list[tuple[int, ...]], running: tuple[int, ...], hint: str
) -> None:
    problem = input_mismatch(profiled(*shapes), (torch.zeros(running),), {})
    assert problem is not None
    assert hint in problem


def test_another_type_or_name_is_refused() -> None:
    known = [input_signature((), {"ids": torch.zeros(2, 3)})]
    assert input_mismatch(known, (), {"ids": torch.zeros(2, 2)}) is None
    assert input_mismatch(known, (), {"ids": torch.zeros(2, 2, dtype=torch.int64)}) is not None
    assert input_mismatch(known, (), {"mask": torch.zeros(2, 2)}) is not None
    assert input_mismatch(known, (), {}) is not None


@pytest.mark.parametrize("text", ["(float32[99999999999999999999,3])", "(float32[,])", "(]["])
def test_damaged_signatures_are_refused(text: str) -> None:
    assert input_mismatch([text], (torch.zeros(2, 3),), {}) is not None
