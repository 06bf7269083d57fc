"""The check of includes: its reports on small source trees."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from check_includes import violations  # noqa: E402

README = """
| folder | purpose |
|---|---|
| `base/` | units |
| `trace/` | the trace |
| `solve/core/` | the problem |
| `verify/` | validators |
| `solve/` | the portfolio |
"""
LAYERS = (("errors",), ("_low",), ("*",), ("high",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository without violations."""
    add(tmp_path, "csrc/README.md", README)
    add(tmp_path, "csrc/base/types.h")
    add(tmp_path, "stalloc/__init__.py")
    return tmp_path


def add(tree: Path, name: str, text: str = "") -> None:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def include(name: str) -> str:
    return f'#include "{name}"\n'


def found(tree: Path, *known: tuple[str, str]) -> list[str]:
    return violations(tree, frozenset(known), LAYERS)


def test_accepts_this_repository() -> None:
    assert violations(ROOT) == []


def test_a_file_may_include_its_own_folder_and_lower_ones(tree: Path) -> None:
    add(tree, "csrc/solve/core/problem.h", include("base/types.h"))
    add(tree, "csrc/verify/validator.h", include("solve/core/problem.h"))
    add(tree, "csrc/solve/csv.h")
    add(tree, "csrc/solve/portfolio.cpp", include("verify/validator.h") + include("solve/csv.h"))
    assert found(tree) == []


def test_reports_an_include_upwards(tree: Path) -> None:
    add(tree, "csrc/solve/portfolio.h")
    add(tree, "csrc/solve/core/problem.cpp", include("solve/portfolio.h"))
    assert found(tree) == [
        "solve/core/problem includes solve/portfolio, which stands higher in csrc/README.md's table"
    ]


@pytest.mark.parametrize("unit", ["solve/core/order", "solve/csv", "solve/portfolio"])
def test_the_solver_may_not_include_traces(tree: Path, unit: str) -> None:
    add(tree, "csrc/trace/trace.h")
    add(tree, f"csrc/{unit}.cpp", include("trace/trace.h"))
    place = {"solve/csv": "solve", "solve/core/order": "solve/core"}.get(unit, unit)
    assert found(tree) == [
        f"{unit} includes trace/trace, which scripts/check_includes.py forbids {place}"
    ]


def test_a_validator_may_include_the_problem_and_no_planner(tree: Path) -> None:
    for name in ("problem", "planner"):
        add(tree, f"csrc/solve/core/{name}.h")
        add(tree, f"csrc/verify/{name}.cpp", include(f"solve/core/{name}.h"))
    assert found(tree) == [
        "verify/planner includes solve/core/planner, which scripts/check_includes.py forbids verify"
    ]


def test_a_session_may_not_import_the_automatic(tree: Path) -> None:
    add(tree, "stalloc/_auto/cycle.py", "from stalloc import session")
    add(tree, "stalloc/session.py")
    assert violations(tree) == []
    add(tree, "stalloc/_auto/cycle.py")
    add(tree, "stalloc/session.py", "from stalloc._auto import cycle")
    assert violations(tree) == [
        "stalloc.session imports stalloc._auto.cycle, which is of a higher layer"
    ]


def test_reports_a_folder_that_the_table_lacks(tree: Path) -> None:
    add(tree, "csrc/extra/file.h")
    assert found(tree) == ["csrc/extra/file: csrc/README.md's table lacks the folder"]


def test_reports_a_header_and_a_source_that_include_each_other(tree: Path) -> None:
    add(tree, "csrc/base/a.h", include("base/types.h"))
    add(tree, "csrc/base/a.cpp", include("base/a.h") + include("base/b.h"))
    add(tree, "csrc/base/b.h")
    add(tree, "csrc/base/b.cpp", include("base/b.h") + include("base/a.h"))
    assert found(tree) == ["base/a, base/b include each other"]


def test_reports_a_cycle_of_three_files_once(tree: Path) -> None:
    for name, other in ("ab", "bc", "ca"):
        add(tree, f"csrc/base/{name}.h", include(f"base/{other}.h"))
    assert found(tree) == ["base/a, base/b, base/c include each other"]


def test_leaves_out_known_violations(tree: Path) -> None:
    add(tree, "csrc/base/a.h", include("base/b.h"))
    add(tree, "csrc/base/b.h", include("base/a.h"))
    assert found(tree, ("base/b", "base/a")) == []


@pytest.mark.parametrize(
    "text",
    [
        "from stalloc import b",
        "from stalloc.b import f",
        "from . import b",
        "from .b import f",
        "import stalloc.b",
        "def f():\n    from stalloc import b",
        "if TYPE_CHECKING:\n    import os\nelse:\n    from stalloc import b",
    ],
)
def test_reports_modules_that_import_each_other(tree: Path, text: str) -> None:
    add(tree, "stalloc/a.py", text)
    add(tree, "stalloc/b.py", "import os, stalloc.a")
    assert found(tree) == ["stalloc.a, stalloc.b import each other"]


@pytest.mark.parametrize("name", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_imports_for_type_checkers_do_not_count(tree: Path, name: str) -> None:
    add(tree, "stalloc/a.py", f"if {name}:\n    from stalloc import b\n")
    add(tree, "stalloc/b.py", "from stalloc import a")
    assert found(tree) == []


def test_a_name_of_the_package_is_an_import_of_the_package(tree: Path) -> None:
    add(tree, "stalloc/__init__.py", "from stalloc.a import f")
    add(tree, "stalloc/a.py", "from stalloc import version")
    assert found(tree) == ["stalloc, stalloc.a import each other"]


def test_reports_an_import_of_a_higher_layer(tree: Path) -> None:
    add(tree, "stalloc/high/__init__.py")
    add(tree, "stalloc/high/part.py", "from stalloc import a\nfrom . import other\n")
    add(tree, "stalloc/high/other.py")
    add(tree, "stalloc/a.py", "from stalloc._low import part\nfrom stalloc import errors\n")
    add(tree, "stalloc/_low/part.py", "def f():\n    import stalloc.high.other\n")
    add(tree, "stalloc/errors.py")
    assert found(tree) == [
        "stalloc._low.part imports stalloc.high.other, which is of a higher layer"
    ]
