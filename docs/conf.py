"""How the documentation is built: `make docs`, into build/docs. Warnings are errors.

Sphinx, since it checks every reference; MyST, so that the pages are Markdown that reads well where
it lies. What can be generated is: the commands from their parsers, the error messages from the
sources.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import error_messages  # noqa: E402

import stalloc  # noqa: E402

project = "stalloc"
author = "the authors of stalloc"
project_copyright = "the authors of stalloc"
version = release = stalloc.__version__

extensions = ["myst_parser", "sphinx_argparse_cli", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_fence_as_directive = []
exclude_patterns = ["generated"]
nitpicky = True

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
