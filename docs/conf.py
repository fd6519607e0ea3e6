"""Sphinx settings."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("_extensions")))

from resilient import __version__

project = "keras-resilient"
author = "The keras-resilient authors"
copyright = author
release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "signatures",
]
html_theme = "furo"
html_title = "keras-resilient"
html_static_path = ["_static"]
html_css_files = ["site.css"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
copybutton_prompt_text = "$ "  # what a shell prints is not copied
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 72
autodoc_member_order = "bysource"
autodoc_mock_imports = [
    "keras"
]  # of BackupAndRestore; no backend is installed for this
