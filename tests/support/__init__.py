"""What tests of several packages share; programs that they start are here as well."""

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
EXAMPLES = ROOT / "examples"
BACKENDS = ("tensorflow", "jax", "torch")
