"""Sphinx settings."""

from resilient import __version__

project = "keras-resilient"
author = "The keras-resilient authors"
copyright = author
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_mock_imports = [
    "keras"
]  # of BackupAndRestore; no backend is installed for this
