"""Reads the numbers for the bar charts from the tables in the documentation.

They are recorded nowhere else.
"""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
WAYS = ("keras-resilient", "BackupAndRestore", "ModelCheckpoint", "OrbaxCheckpoint")
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
STALLS = "| 100 MB of state |"
FITS = "| `fit` with a save every 50 batches"
RECOVERY = "| seconds |"
PARTS = ("imports", "model", "restoring", "first batch", "replay")


def table(begin: str) -> list[list[str]]:
    """The rows of the table whose header begins with this, on whichever page."""
    (page,) = [p for p in DOCS.glob("*.md") if f"\n{begin}" in p.read_text()]
    text = page.read_text().split(f"\n{begin}", 1)[1].split("\n\n", 1)[0]
    rows = text.splitlines()[2:]  # without the header and the line below it
    return [[cell.strip(" *¹") for cell in row.split("|")[1:-1]] for row in rows]


def stalls() -> list[dict]:
    """How long training stops for a save of 100 MB, in milliseconds."""
    found, backend = [], ""
    for name, stall, *_ in table(STALLS):
        backend = BACKENDS.get(name.split(":")[0], backend)
        if name in WAYS:
            text = re.search(r"([\d.]+) ms\)", stall)[1]
            row = {"way": name, "backend": backend, "value": float(text)}
            found.append(row | {"label": f"{text} ms"})
    return found


def fits() -> list[dict]:
    """How much longer a fit takes with saves than `model.fit` without."""
    found = []
    for name, *ratios in table(FITS):
        if name in WAYS:
            for backend, ratio in zip(BACKENDS.values(), ratios, strict=True):
                text = ratio.split()[0]
                row = {"way": name, "backend": backend, "value": float(text)}
                found.append(row | {"label": f"{text} x"})
    return found


def recovery() -> list[dict]:
    """Seconds from a kill to the next new batch, by part; [] before the first run."""
    found: list[dict] = []
    if f"\n{RECOVERY}" not in (DOCS / "starting-and-resuming.md").read_text():
        return found
    for name, *cells in table(RECOVERY):
        backend, _, way = name.partition(", ")
        row = {"backend": backend, "way": way.strip("*").replace("`", "")}
        *parts, whole, _ = cells
        row |= {"whole": float(whole), "label": f"{whole} s"}
        for at, (part, text) in enumerate(zip(PARTS, parts, strict=True)):
            found.append(row | {"at": at, "part": part, "value": float(text)})
    return found
