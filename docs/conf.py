"""Builds the documentation: `make docs`, into build/docs. Warnings are errors.

Sphinx, since it checks every reference; MyST, so that the pages are Markdown that reads well where
it lies. Generated parts: the commands from their parsers, the Python interface from its
docstrings, the error messages from the sources.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import error_messages  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import stalloc  # noqa: E402

project = "stalloc"
author = "the authors of stalloc"
project_copyright = "the authors of stalloc"
version = release = stalloc.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_argparse_cli",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_fence_as_directive = []
exclude_patterns = ["generated"]
nitpicky = True
# Docstrings and signatures also name parts of Python and torch, which are on no page.
nitpick_ignore_regex = [(r"py:.*", r".*")]
autodoc_typehints = "signature"
default_role = "code"  # of docstrings: they are Markdown, where it matters
python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_type_aliases = {"npt.ArrayLike": "ArrayLike", "Int64Array": "Int64Array"}

html_theme = "furo"
html_title = f"stalloc {version}"
html_static_path = ["style"]
html_css_files = ["stalloc.css"]
html_show_sphinx = False
html_copy_source = False
templates_path: list[str] = []
copybutton_prompt_text = "$ "

(Path(__file__).parent / "generated").mkdir(exist_ok=True)
(Path(__file__).parent / "generated" / "messages.md").write_text(
    error_messages.page(ROOT), encoding="utf-8"
)


def _keep_colons(
    app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]
) -> None:
    """Puts back what napoleon took for a type: what is before a colon in a first line."""
    if what in ("attribute", "property") and lines and lines[-1].startswith(":type: "):
        lines[:] = [f"{lines[-1].removeprefix(':type: ')}: {lines[0]}", *lines[1:-2]]


def _short_names(
    app: Sphinx, what: str, name: str, of: Any, options: Any, signature: str | None, returns: Any
) -> tuple[str | None, Any]:
    """Has an alias shown by its name in `ArrayLike | None`, too."""
    return signature and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature), returns


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _keep_colons, priority=600)  # after napoleon
    app.connect("autodoc-process-signature", _short_names)
