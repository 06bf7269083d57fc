"""Checks which file may include which: nothing includes upwards, and nothing includes in a circle.

C++: the table in csrc/README.md lists the folders bottom-up, and a file includes only from its own
folder and those above it in the table. A header and the source of the same name are one unit.
`ALLOWED` narrows that for the folders that stand by themselves.

Python: `LAYERS` lists the package's parts bottom-up. Imports inside functions count, those under
`if TYPE_CHECKING` do not.

    python scripts/check_includes.py    # prints each violation; exit status 1 if there is one
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Graph = dict[str, set[str]]

# The parts of stalloc/, bottom-up: modules of the package itself, and subpackages. "*" is every
# other module of the package itself, which is what users import.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "files", "progress"),  # need nothing else of stalloc
    ("_hooks",),  # follow a training loop; know neither traces nor plans
    ("*",),  # traces, plans, profiling, sessions, the driver
    ("_auto",),  # makes the calls that a user would make
    ("_frameworks",),  # what the integrations share
    ("graphs",),  # captured graphs, by replaced methods of torch's
    ("integrations", "megatron", "colossalai"),
    ("importers",),  # foreign profiles as traces
    ("recordings", "verdicts"),  # replays of imported traces
    ("_estimate",),  # runs without a GPU, and what they need of one
    ("report",),
    ("commands",),
    ("cli", "__main__"),
)

# The folders that stand by themselves, with all that each may include besides its own files: names
# of folders and of single files. The first entry whose folder contains a file applies to it.
ALLOWED: dict[str, tuple[str, ...]] = {
    "base": (),
    "trace": ("base",),
    "profile": ("base", "trace"),
    "verify": ("base", "solve/core/problem"),  # shares no code with the planners
    "solve/core": ("base",),
    "solve/portfolio": ("base", "solve", "verify/validator"),  # validates its result
    "solve": ("base", "solve"),  # usable without a trace
}

# Violations that are still to be mended, as (includer, included).
KNOWN: frozenset[tuple[str, str]] = frozenset()

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
FOLDER = re.compile(r"^\| `([\w/]+)/` \|", re.MULTILINE)


def main() -> int:
    """Prints the violations of this repository; returns the exit status."""
    found = violations(ROOT)
    for violation in found:
        print(violation, file=sys.stderr)
    return 1 if found else 0


def violations(
    root: Path,
    known: frozenset[tuple[str, str]] = KNOWN,
    layers: tuple[tuple[str, ...], ...] = LAYERS,
    allowed: Mapping[str, tuple[str, ...]] = ALLOWED,
) -> list[str]:
    """Checks the tree below `root`; returns a line for each violation, in order."""
    folders = FOLDER.findall((root / "csrc" / "README.md").read_text())
    units, missing = cpp_units(root / "csrc", folders)
    cpp = without(units, known)
    python = without(python_modules(root / "stalloc"), known)
    cpp_ranks = {unit: folders.index(folder_of(unit, folders)) for unit in cpp}
    python_ranks = {module: rank_of(module, layers) for module in python}
    return sorted(
        [
            *missing,
            *upward(cpp, cpp_ranks, "includes", "which stands higher in csrc/README.md's table"),
            *upward(python, python_ranks, "imports", "which is of a higher layer"),
            *foreign(cpp, cpp_ranks, allowed),
            *cycles(cpp, "include"),
            *cycles(python, "import"),
        ]
    )


def cpp_units(root: Path, folders: list[str]) -> tuple[Graph, list[str]]:
    """Reads who includes whom, and which folders the table does not have."""
    graph: Graph = {}
    missing = []
    for path in sorted([*root.rglob("*.h"), *root.rglob("*.cpp")]):
        unit = str(path.relative_to(root).with_suffix(""))
        if not folder_of(unit, folders):
            missing.append(f"csrc/{unit}: csrc/README.md's table lacks the folder")
            continue
        included = graph.setdefault(unit, set())
        for name in INCLUDE.findall(path.read_text()):
            if (root / name).exists():
                included.add(str(Path(name).with_suffix("")))
    return {unit: graph[unit] & (graph.keys() - {unit}) for unit in graph}, missing


def folder_of(unit: str, folders: list[str]) -> str:
    """The innermost folder of the table that `unit` lies in; empty if there is none."""
    return max((f for f in folders if unit.startswith(f + "/")), key=len, default="")


def python_modules(package: Path) -> Graph:
    """Reads which module of `package` imports which."""
    names = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: Graph = {}
    for name, path in sorted(names.items()):
        here = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
        graph[name] = set()
        for statement in statements(ast.parse(path.read_text(), str(path))):
            for module, member in imported(statement, here):
                inner = f"{module}.{member}"  # `from module import member` may name a module
                graph[name].add(inner if inner in names else module)
        graph[name] &= names.keys() - {name}
    return graph


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Finds the imports below `node`, except those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield from statements(ast.Module([other], []))
        else:
            yield from statements(child)


def imported(statement: ast.Import | ast.ImportFrom, here: list[str]) -> list[tuple[str, str]]:
    """The (module, member) pairs of a statement in the package `here`; a member may be empty."""
    if isinstance(statement, ast.Import):
        return [(alias.name, "") for alias in statement.names]
    base = here[: len(here) + 1 - statement.level] if statement.level else []
    module = ".".join([*base, *([statement.module] if statement.module else [])])
    return [(module, alias.name) for alias in statement.names]


def rank_of(module: str, layers: tuple[tuple[str, ...], ...]) -> int:
    """The layer of a module: that of its subpackage, or its own, or that of all others."""
    _, part, *_ = [*module.split("."), "__init__"]
    for name in (part, "*"):
        for rank, layer in enumerate(layers):
            if name in layer:
                return rank
    raise ValueError(f"{module}: no layer has it, and none has '*'")


def without(graph: Graph, known: frozenset[tuple[str, str]]) -> Graph:
    """The graph without the known violations."""
    return {a: {b for b in targets if (a, b) not in known} for a, targets in graph.items()}


def upward(graph: Graph, ranks: Mapping[str, int], verb: str, why: str) -> Iterator[str]:
    """A line for each edge from a lower to a higher rank."""
    for source, targets in graph.items():
        for target in sorted(targets):
            if ranks[target] > ranks[source]:
                yield f"{source} {verb} {target}, {why}"


def foreign(
    graph: Graph, ranks: Mapping[str, int], allowed: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    """A line for each edge that leaves a folder of `allowed` for a file outside its list.

    Edges upwards are left out: `upward` reports them.
    """
    for source, targets in graph.items():
        place = next((name for name in allowed if within(source, name)), None)
        if place is None:
            continue
        for target in sorted(targets):
            is_allowed = any(within(target, name) for name in (place, *allowed[place]))
            if not is_allowed and ranks[target] <= ranks[source]:
                yield f"{source} includes {target}, which scripts/check_includes.py forbids {place}"


def within(unit: str, name: str) -> bool:
    """True if `unit` is `name`, or lies in the folder `name`."""
    return unit == name or unit.startswith(name + "/")


def cycles(graph: Graph, verb: str) -> Iterator[str]:
    """A line for each set of nodes that reach each other."""
    reachable = {node: reach(graph, node) for node in graph}
    reported: set[str] = set()
    for node in sorted(graph):
        if node in reachable[node] and node not in reported:
            circle = {other for other in reachable[node] if node in reachable[other]}
            reported |= circle
            yield f"{', '.join(sorted(circle))} {verb} each other"


def reach(graph: Graph, start: str) -> set[str]:
    """The nodes at the end of a path from `start`; `start` itself if it lies on a cycle."""
    found: set[str] = set()
    open_nodes = [start]
    while open_nodes:
        for target in graph[open_nodes.pop()]:
            if target not in found:
                found.add(target)
                open_nodes.append(target)
    return found


if __name__ == "__main__":
    sys.exit(main())
