"""Kubernetes's own schemas and its command kubectl read the manifests completely."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import EXAMPLES

validator = pytest.importorskip("kubernetes_validate", reason="not installed")
# The oldest that the manifests need, and the newest that the package has.
VERSIONS = ("1.31", validator.latest_version())


def documents() -> list[dict[str, Any]]:
    """Of all manifests; of a JobSet, which is no part of Kubernetes, its jobs."""
    found = []
    for path in sorted(EXAMPLES.glob("kubernetes*.yaml")):
        for one in yaml.safe_load_all(path.read_text()):
            if one["kind"] != "JobSet":
                found.append(one)
                continue
            for job in one["spec"]["replicatedJobs"]:
                head = {"apiVersion": "batch/v1", "kind": "Job"}
                named = {"metadata": {"name": job["name"]}}
                found.append(head | named | job["template"])
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_is_one_of_kubernetes(version):
    for one in documents():
        validator.validate(one, version, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_keeps_every_field(tmp_path):
    """It leaves out those that it does not know."""
    for one in documents():
        if one["kind"] == "Job":
            (tmp_path / "one.yaml").write_text(yaml.safe_dump(one))
            assert lacks(one, read_by_kubectl(tmp_path / "one.yaml")) == []


def read_by_kubectl(path: Path) -> dict[str, Any]:
    """The document as kubectl writes it again; it asks no cluster."""
    done = subprocess.run(
        ["kubectl", "set", "env", "--local", "-f", path, "-o", "json", "ADDED=1"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def lacks(one: Any, other: Any, where: str = "") -> list[str]:
    """The places of the first that the second has not, or has otherwise."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            place
            for key in one
            for place in lacks(one[key], other.get(key), f"{where}.{key}")
        ]
    if isinstance(one, list) and isinstance(other, list):
        return [
            place
            for n, (a, b) in enumerate(zip(one, other, strict=False))
            for place in lacks(a, b, f"{where}[{n}]")
        ] + [where] * (len(one) > len(other))
    return [] if one == other else [where]
