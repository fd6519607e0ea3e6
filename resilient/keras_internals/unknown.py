"""The error for a Keras that is not built as expected."""

import re

import keras

from resilient.errors import NotSupportedError

# Also matches "3.16.0.dev2026102704" and "4.0rc1".
RELEASE = tuple(int(part) for part in re.findall(r"\d+", keras.__version__)[:2])
# The tested releases, as in pyproject.toml.
KNOWN = "3.12 to 3.16"
INSTALL = 'pip install "keras>=3.12,<3.17"'
if ".dev" in keras.__version__:  # keras-nightly: files of both would be mixed
    INSTALL = f"pip uninstall keras-nightly keras; {INSTALL}"


def unknown_keras(changed: str) -> NotSupportedError:
    """The error for a Keras that is not built as expected.

    Args:
        changed: The deviations, in words.
    """
    return NotSupportedError(
        "keras-resilient does not know the private API of this Keras, so an exact "
        f"resume cannot be guaranteed. It knows Keras {KNOWN}.",
        received=f"Keras {keras.__version__}: {changed}",
        hint=f"Install a version that works: {INSTALL}. Or update keras-resilient; "
        "if its newest version says the same, please report this message as an issue "
        "of keras-resilient.",
    )
