"""Finds every error message in the sources, for the trouble-shooting page to list.

A message is what stands in `raise XError(...)`, `_fail(...)` or `warnings.warn(...)` in Python, in
`throw XError(...)`, `fail(...)`, `raise(...)` or `reject(...)` in C++, and in either what a
function named `..._mismatch` or `..._message` returns; with "…" for whatever is filled in. Each
belongs to a topic, by the file it stands in, and the topic says what to do. A file that no topic
names is an error here, so that no message goes without.

    python scripts/error_messages.py    # prints the page's part
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_CPP_CALL = re.compile(r"\b(?:throw (?P<error>\w*(?:Error|OutOfMemory))|(?:fail|raise|reject))\(")
_CPP_FUNCTION = re.compile(r"\w+_(?:mismatch|message)\([^;{}]*\{\s*(?=[^}]*\breturn\b)")
_CPP_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_FILLED_IN = "…"


@dataclass(frozen=True, slots=True)
class Topic:
    """Messages that call for the same.

    Attributes:
        title: What has gone wrong.
        advice: What to do, in Markdown.
        files: Where its messages come from: files, or folders ending in `/`.
    """

    title: str
    advice: str
    files: tuple[str, ...]


TOPICS = (
    Topic(
        "stalloc's own bookkeeping is off",
        "This is a bug, whatever led to it: please report it, with the trace and the plan.",
        (
            "csrc/runtime/caching_pool.cpp",
            "csrc/runtime/static_pool.cpp",
            "csrc/replay/caching_model.cpp",
            "csrc/replay/expandable_segments.cpp",
        ),
    ),
    Topic(
        "The memory does not suffice",
        "The device has not the bytes that were asked for, after everything cached was given back. "
        "Train with smaller microbatches or more recomputation, free tensors that outlive their "
        "step, or leave other programs less of the device.",
        ("csrc/runtime/planned_allocator.cpp", "csrc/device/"),
    ),
    Topic(
        "A plan cannot be used",
        "The plan was damaged or edited, or comes from other software. Plan its trace again: "
        "`stalloc plan TRACE -o PLAN --force`. A message that names a row counts from 0, in the "
        "table it names. A plan that was never touched and is refused is a bug: please report it.",
        (
            "csrc/plan/plan.cpp",
            "csrc/plan/plan_json.cpp",
            "csrc/plan/opening.cpp",
            "csrc/plan/idle_validator.cpp",
            "csrc/runtime/",
            "stalloc/session.py",
        ),
    ),
    Topic(
        "A trace cannot be used",
        "The trace was cut off or edited, or the profile ended too early. Record it again, with "
        "`stalloc.profile` or `stalloc run --profile`, over at least two iterations.",
        ("csrc/trace/", "stalloc/profiling.py", "stalloc/trace.py"),
    ),
    Topic(
        "A file is no JSON of stalloc's",
        "The message names the file, the key and the row. Was it copied completely, and is it the "
        "file you meant? A newer version than this stalloc knows needs a newer stalloc.",
        ("csrc/base/",),
    ),
    Topic(
        "A planning problem has no solution, or makes no sense",
        "Where it is a capacity that does not suffice, nothing below the bound that the message "
        "names can work: raise the capacity, or train with smaller batches. Else the message "
        "names the buffer, the line of the CSV or the option to mend.",
        ("csrc/plan/", "csrc/bindings/", "stalloc/planner.py", "stalloc/commands/plan.py"),
    ),
    Topic(
        "A file is no recording, or one that cannot be imported",
        "The message names the file and where in it. Was it copied completely? Memory snapshots "
        "come from `torch.cuda.memory._dump_snapshot()` after "
        "`torch.cuda.memory._record_memory_history()`, Kineto traces from a `torch.profiler` with "
        "`profile_memory=True`. A pickle that asks for a class or a function is no snapshot, and "
        "is not run. A snapshot that torch wrote and that is refused is a bug: please report it.",
        ("stalloc/importers/",),
    ),
    Topic(
        "A command was asked for something it cannot do",
        "Exit code 1: the input has to be mended, in the way the message says. Exit code 2: see "
        "`--help`.",
        (
            "stalloc/commands/",
            "stalloc/report/",
            "stalloc/files.py",
            "stalloc/cli.py",
            "csrc/replay/",
        ),
    ),
    Topic(
        "stalloc does not support it, or is used out of turn",
        "The message says what to do instead.",
        ("stalloc/", "csrc/torch/", "csrc/compat/"),
    ),
)
"""The first whose files match is a message's topic."""


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One message.

    Attributes:
        file: Where it comes from, below the project's folder.
        text: As it is shown, with … for what is filled in.
    """

    file: str
    text: str

    @property
    def topic(self) -> Topic:
        """What it belongs to.

        Raises:
            LookupError: No topic names the file.
        """
        for topic in TOPICS:
            if any(
                self.file == f or (f[-1] == "/" and self.file.startswith(f)) for f in topic.files
            ):
                return topic
        raise LookupError(f"{self.file} has error messages and no topic in {__file__}: name one")


def messages(root: Path = ROOT) -> list[Message]:
    """Every message of the package, each once."""
    found = set()
    for path in sorted((root / "stalloc").rglob("*.py")):
        for text in _python_messages(ast.parse(path.read_text(encoding="utf-8"))):
            found.add(Message(str(path.relative_to(root)), text))
    for pattern in ("*.h", "*.cpp"):
        for path in sorted((root / "csrc").rglob(pattern)):
            for text in _cpp_messages(path.read_text(encoding="utf-8")):
                found.add(Message(str(path.relative_to(root)), text))
    return sorted(found)


def page(root: Path = ROOT) -> str:
    """The trouble-shooting page's part: topics with their messages, in Markdown."""
    everything = messages(root)
    lines = []
    for topic in TOPICS:
        own = sorted({m.text for m in everything if m.topic is topic})
        if own:
            lines += [f"### {topic.title}", "", topic.advice, ""]
            lines += [f"- {as_code(text)}" for text in own]
            lines.append("")
    return "\n".join(lines)


def as_code(text: str) -> str:
    """The text as Markdown shows it word for word."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _python_messages(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) else node
        if isinstance(call, ast.Call) and call.args:
            name = ast.unparse(call.func).rpartition(".")[2]
            is_raised = isinstance(node, ast.Raise) and name != "SystemExit"
            if isinstance(node, ast.Call) and name == "_fail":
                yield from _shown(_said(call))
            elif is_raised and ast.unparse(call.args[0]).startswith("errno."):
                yield from _shown(_filled(call.args[1]))
            elif is_raised or (isinstance(node, ast.Call) and name == "warn"):
                yield from _shown(_filled(call.args[0]))
        if isinstance(node, ast.FunctionDef) and node.name.endswith(("_mismatch", "_message")):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield from _shown(_filled(inner.value))


def _said(call: ast.Call) -> str:
    """The last argument that is words: what is before it says where."""
    texts = [_filled(argument) for argument in call.args]
    return next((text for text in reversed(texts) if " " in text), "")


def _filled(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_filled(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _filled(node.left) + _filled(node.right)
    return _FILLED_IN


def _cpp_messages(source: str) -> Iterator[str]:
    for call in _CPP_CALL.finditer(source):
        yield from _cpp_text(_until_closed(source, call.end()))
    for function in _CPP_FUNCTION.finditer(source):
        body = source[function.end() : source.index("\n}", function.end()) + 1]
        for value in re.findall(r"return (.*?);\n", body, re.DOTALL):
            yield from _cpp_text(value)


def _cpp_text(expression: str) -> Iterator[str]:
    expression = _own_text(expression)
    pieces = []
    at = 0
    for literal in _CPP_TEXT.finditer(expression):
        between = expression[at : literal.start()].strip().strip("+").strip()
        if between:
            pieces.append(_FILLED_IN)
        pieces.append(ast.literal_eval(literal[0]))
        at = literal.end()
    if expression[at:].strip(" \n+"):
        pieces.append(_FILLED_IN)
    yield from _shown("".join(pieces))


def _own_text(expression: str) -> str:
    """The last argument, without what stands in the calls inside it; `std::string()` is no call."""
    result = ""
    at = 0
    while at < len(expression):
        if literal := _CPP_TEXT.match(expression, at):
            result += literal[0]
            at = literal.end()
        elif expression.startswith("std::string(", at):
            inner = _until_closed(expression, at + len("std::string("))
            result += _own_text(inner)
            at += len("std::string(") + len(inner) + 1
        elif expression[at] in "({[":
            at += 1 + len(_until_closed(expression, at + 1)) + 1
            result += "x"
        else:
            result = "" if expression[at] == "," else result + expression[at]
            at += 1
    return result


def _until_closed(source: str, start: int) -> str:
    """What stands between a bracket, which `start` follows, and the one that closes it."""
    depth = 1
    at = start
    while depth > 0 and at < len(source):
        if literal := _CPP_TEXT.match(source, at):
            at = literal.end()
            continue
        depth += (source[at] in "({[") - (source[at] in ")}]")
        at += 1
    return source[start : at - 1]


def _shown(text: str) -> Iterator[str]:
    """On one line, if it has words of its own."""
    text = " ".join(re.sub(rf"{_FILLED_IN}(?:\s*{_FILLED_IN})+", _FILLED_IN, text).split())
    if re.search(r"[a-z]{2}", text):
        yield text


if __name__ == "__main__":
    sys.stdout.write(page())
