"""Checks a ``.weights.h5`` file before Keras reads it: all of it is in that file."""

import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from resilient.convert.matching import Layout
from resilient.errors import NotSupportedError
from resilient.serialization.schema import SchemaError, parse, to
