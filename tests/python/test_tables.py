"""The tables' columns: Python's classes and the schemas say what the core declares."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from stalloc import _core, tables

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"
DECLARED = {"trace": _core.TRACE_TABLES, "plan": _core.PLAN_TABLES}
CLASSES = {
    ("trace", "requests"): tables.Requests,
    ("trace", "phases"): tables.PhaseSpans,
    ("trace", "layer_spans"): tables.LayerSpans,
    ("trace", "orders"): tables.Orders,
    ("plan", "phases"): tables.Phases,
    ("plan", "decisions"): tables.Decisions,
    ("plan", "groups"): tables.Groups,
    ("plan", "startup"): tables.Startup,
    ("plan", "slots"): tables.Slots,
    ("plan", "slot_decisions"): tables.SlotDecisions,
    ("plan", "turns"): tables.Turns,
    ("plan", "reusable"): tables.Reusable,
    ("plan", "laws"): tables.Laws,
    ("plan", "law_terms"): tables.LawTerms,
}
IN_FILES_ONLY = {
    ("plan", "orders"),
    ("plan", "persistent"),
    ("plan", "slot_startup"),
    ("plan", "contexts"),
}


def schema_type(column: dict[str, Any]) -> tuple[str, bool]:
    """The JSON type of a column's cells, and whether null is one of them."""
    items = column["items"]
    if "enum" in items:
        # A plan has no unplanned phases.
        names = [_core.PHASE_KINDS, tables.LAW_PROOFS, tables.LAW_SOURCES]
        assert any(set(items["enum"]) <= set(known) for known in names)
        return "name", False
    types = items["type"] if isinstance(items["type"], list) else [items["type"]]
    return types[0], "null" in types


def declared_type(dtype: np.dtype[Any]) -> str:
    return {"b": "boolean", "u": "name", "i": "integer"}[dtype.kind]


@pytest.mark.parametrize("kind", DECLARED)
def test_a_schema_has_the_declared_tables_and_no_other(kind: str) -> None:
    schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_text())
    found = {name for name, entry in schema["properties"].items() if "properties" in entry}
    # A row of `extents` has a list of values: it is no table of plain columns.
    assert found - {"extents"} == set(DECLARED[kind])


@pytest.mark.parametrize(
    ("kind", "table"), [(kind, table) for kind, names in DECLARED.items() for table in names]
)
def test_a_schema_has_the_declared_columns(kind: str, table: str) -> None:
    schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_text())["properties"][table]
    declared = DECLARED[kind][table]
    assert {name: schema_type(column) for name, column in schema["properties"].items()} == {
        name: (declared_type(dtype), null) for name, dtype, null, _ in declared
    }
    assert list(schema["properties"]) == [name for name, *_ in declared]
    assert schema["required"] == [name for name, *_, optional in declared if not optional]
    assert schema["additionalProperties"] is False
    for name, dtype, *_ in declared:
        if dtype == np.int32:
            assert schema["properties"][name]["items"]["maximum"] == np.iinfo(np.int32).max


@pytest.mark.parametrize(("kind", "table"), CLASSES)
def test_a_class_has_the_declared_columns(kind: str, table: str) -> None:
    cls = CLASSES[kind, table]
    hints = get_type_hints(cls)
    # npt.NDArray[X] is numpy.ndarray[shape, numpy.dtype[X]].
    found = {f.name: np.dtype(get_args(get_args(hints[f.name])[1])[0]) for f in fields(cls)}
    assert found == {name: dtype for name, dtype, *_ in DECLARED[kind][table]}


def test_every_table_has_a_class_or_is_in_files_only() -> None:
    declared = {(kind, table) for kind, names in DECLARED.items() for table in names}
    assert declared == CLASSES.keys() | IN_FILES_ONLY
