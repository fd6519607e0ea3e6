"""What tests of several packages share; programs that they start are here as well."""

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
EXAMPLES = ROOT / "examples"
BACKENDS = ("tensorflow", "jax", "torch")
# Who takes which part of what is divided among them: torch is the quickest.
PARTS = ("tensorflow", "jax", "torch", "torch", "torch")
