"""Reads error messages out of source code: what `error_messages` puts in order.

A message is what stands in `raise XError(...)`, `return XError(...)`, `_fail(...)`,
`stand_aside(...)` or `warnings.warn(...)` in Python; in `throw XError(...)`, `fail(...)`,
`raise(...)`, `reject(...)`, `run_out(...)` or a `TORCH_CHECK` in C++; and in either what a function
named `..._mismatch`, `..._message`, `..._shortage` or `unplannable` returns. Whatever is filled in
is shown as "…", unless a constant, a variable or a function of the same Python file says it.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping

_CPP_CALL = re.compile(
    r"\b(?:throw (?:\w+::)*\w*(?:[eE]rror|OutOfMemory)|fail|raise|reject|run_out"
    r"|(?P<check>TORCH_CHECK(?P<typed>_WITH)?))\("
)
_CPP_FUNCTION = re.compile(r"^\w[\w:<>&* ]*_(?:mismatch|message|shortage)\([^;{}]*\{", re.MULTILINE)
_CPP_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_PYTHON_FUNCTION = re.compile(r"\w+_(?:mismatch|message)|unplannable")
_FILLED_IN = "…"
_DEEPEST = 3  # functions that call functions


def python_messages(source: str) -> Iterator[str]:
    """The messages of a Python file, in order, some more than once."""
    yield from _Python(ast.parse(source)).messages()


def cpp_messages(source: str) -> Iterator[str]:
    """The messages of a C++ file, in order, some more than once."""
    for call in _CPP_CALL.finditer(source):
        inside = _until_closed(source, call.end())
        if call["check"]:
            # The exception's type, where there is one, and the condition come before the words.
            parts = list(_arguments(inside))[2 if call["typed"] else 1 :]
            inside = " + ".join(parts)
        yield from _cpp_text(inside)
    for function in _CPP_FUNCTION.finditer(source):
        body = source[function.end() : source.index("\n}", function.end()) + 1]
        for value in re.findall(r"return (.*?);\n", body, re.DOTALL):
            yield from _cpp_text(value)


class _Python:
    """The messages of a module."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
        self._constants = _assignments(tree.body)

    def messages(self) -> Iterator[str]:
        yield from self._of(self._tree, {})

    def _of(self, node: ast.AST, local: Mapping[str, list[ast.expr]]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef):
            local = _assignments(node.body)
            if _PYTHON_FUNCTION.search(node.name):
                for text in self._returned(node, _DEEPEST):
                    yield from _shown(text)
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Return) and _is_error(node.value)):
            call = node.exc if isinstance(node, ast.Raise) else node.value
            if isinstance(call, ast.Call) and call.args and _name(call) != "SystemExit":
                has_number = ast.unparse(call.args[0]).startswith("errno.")
                yield from self._said(call.args[1 if has_number else 0], local)
        elif isinstance(node, ast.Call) and node.args:
            if _name(node) == "warn":
                yield from self._said(node.args[0], local)
            elif _name(node) in {"_fail", "stand_aside"}:
                # The text before the words states the position.
                for argument in reversed(node.args):
                    if any(" " in text for text in self._texts(argument, local)):
                        yield from self._said(argument, local)
                        break
        for child in ast.iter_child_nodes(node):
            yield from self._of(child, local)

    def _said(self, node: ast.expr, local: Mapping[str, list[ast.expr]]) -> Iterator[str]:
        for text in self._texts(node, local):
            yield from _shown(text)

    def _texts(
        self, node: ast.expr, local: Mapping[str, list[ast.expr]], depth: int = _DEEPEST
    ) -> list[str]:
        """All that an expression may say."""
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else []
        parts: list[ast.expr] = []
        if isinstance(node, ast.JoinedStr):
            parts = node.values
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [node.left, node.right]
        if parts:
            return [
                "".join(text)
                for text in itertools.product(*(self._texts(p, local, depth) for p in parts))
            ]
        found: list[str] = []
        if isinstance(node, ast.FormattedValue):
            found = self._texts(node.value, local, depth) if node.conversion == -1 else []
        elif isinstance(node, ast.IfExp):
            branches = (node.body, node.orelse)
            found = [text for branch in branches for text in self._texts(branch, local, depth)]
        elif isinstance(node, ast.Name) and depth > 0:
            values = local.get(node.id) or self._constants.get(node.id) or []
            found = [text for value in values for text in self._texts(value, local, depth - 1)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and depth > 0:
            function = self._functions.get(node.func.id)
            found = self._returned(function, depth - 1) if function else []
        # A name alone is an example of what is filled in, and no message.
        return found if any(" " in text for text in found) else [_FILLED_IN]

    def _returned(self, function: ast.FunctionDef, depth: int) -> list[str]:
        local = _assignments(function.body)
        return [
            text
            for node in ast.walk(function)
            if isinstance(node, ast.Return) and node.value is not None and not _is_error(node.value)
            for text in self._texts(node.value, local, depth)
        ]


def _assignments(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def _is_error(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and _name(node).endswith("Error")


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


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


def _arguments(expression: str) -> Iterator[str]:
    """The arguments between the brackets of a call."""
    begin = at = 0
    while at < len(expression):
        if literal := _CPP_TEXT.match(expression, at):
            at = literal.end()
        elif expression[at] in "({[":
            at += 1 + len(_until_closed(expression, at + 1)) + 1
        else:
            if expression[at] == ",":
                yield expression[begin:at]
                begin = at + 1
            at += 1
    yield expression[begin:]


def _until_closed(source: str, start: int) -> str:
    """The text from `start`, after an opening bracket, to the closing one."""
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
