"""Prints every message that the tests provoked, the shortest one of each line of ours.

    listing.py FILE PACKAGE

And which lines can raise an error, of which no test has shown the text.
"""

import ast
import json
import sys
from pathlib import Path

RAISED = ("Error", "message", "warn_not_exact")


def said(file: Path) -> dict[str, tuple[str, str]]:
    """Kind and text, by module and line."""
    found: dict[str, tuple[str, str]] = {}
    for line in file.read_text().splitlines():
        each = json.loads(line)
        before = found.get(each["site"])
        if before is None or len(each["text"]) < len(before[1]):
            found[each["site"]] = each["kind"], each["text"]
    return found


def sites(package: Path) -> dict[str, range]:
    """Calls that make an error with a text of ours, each with the lines it takes."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id.endswith(RAISED) and (node.args or node.keywords):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                found[f"{name}:{node.lineno}"] = lines
    return found


def main() -> None:
    file, package = map(Path, sys.argv[1:])
    found = said(file)
    for site in sorted(found):
        kind, text = found[site]
        print(f"== {site} ({kind}, {len(text)} characters)\n{text}\n")
    seen: dict[str, set[int]] = {}
    for site in found:
        module, _, line = site.partition(":")
        seen.setdefault(module, set()).add(int(line))
    missing = [
        site
        for site, lines in sites(package).items()
        if not seen.get(site.partition(":")[0], set()).intersection(lines)
    ]
    print(f"{len(found)} messages. Not provoked: {len(missing)}")
    print(*missing, sep="\n")


if __name__ == "__main__":
    main()
