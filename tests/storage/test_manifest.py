"""A manifest is data: whatever it says, it is a manifest, or an error that says why."""

import json

import pytest
from support.checkpoint_samples import (
    commit,
    filled,
    newest_good,
    steps,
    verified,
    writer,
)
from support.manifests import change, resealed, sealed

from resilient.errors import CorruptCheckpointError, NotSupportedError
from resilient.progress import Progress
from resilient.storage.manifest import Manifest, ManifestError
from resilient.storage.store import Store

pytestmark = pytest.mark.once

DIGEST = "0123456789abcdef" * 2
GONE = object()


def record(**other):
    return {"size": 3, "xxh3_128": DIGEST} | other


def body(**other):
    """What a manifest says, with changes; as it is without."""
    said = {
        "schema": 1,
        "progress": {"step": 10, "epoch": 1, "batch": 0},
        "finished": False,
        "metrics": {"loss": 0.5, "bad": "nan"},
        "created": "2025-01-01T00:00:00Z",
        "environment": {"keras": "3.15.1"},
        "files": {"run.json": record()},
    }
    return {key: x for key, x in (said | other).items() if x is not GONE}


def progress(**other):
    return {"step": 10, "epoch": 1, "batch": 0} | other


MALFORMED = {
    **{f"no {key}": {key: GONE} for key in body()},
    **{f"{key} is null": {key: None} for key in body()},
    **{f"{key} is a list": {key: [1]} for key in body()},
    **{f"{key} is text": {key: "text"} for key in body()},
    "schema is a bool": {"schema": True},
    "schema is a float": {"schema": 1.0},
    "schema is 0": {"schema": 0},
    "schema is negative": {"schema": -1},
    "schema is huge": {"schema": 10**30},
    "no step": {"progress": {"epoch": 0, "batch": 0}},
    "step is a float": {"progress": progress(step=10.0)},
    "step is a bool": {"progress": progress(step=True)},
    "step is text": {"progress": progress(step="10")},
    "step is negative": {"progress": progress(step=-10)},
    "step is huge": {"progress": progress(step=10**400)},
    "epoch is negative": {"progress": progress(epoch=-1)},
    "epoch is huge": {"progress": progress(epoch=2**63)},
    "batch is null": {"progress": progress(batch=None)},
    "finished is 1": {"finished": 1},
    "a metric is text": {"metrics": {"loss": "good"}},
    "a metric is null": {"metrics": {"loss": None}},
    "a metric is a bool": {"metrics": {"loss": True}},
    "a metric is huge": {"metrics": {"loss": 10**400}},
    "a metric has a long name": {"metrics": {"x" * 1001: 1.0}},
    "many metrics": {"metrics": {f"{n}": 1.0 for n in range(10_001)}},
    "created is a number": {"created": 1},
    "created is no time": {"created": "2025-01-01T00:00:00Z\n"},
    "created is no day": {"created": "2025-02-30T00:00:00Z"},
    "a version is a number": {"environment": {"keras": 3}},
    "a version is long": {"environment": {"keras": "3" * 1001}},
    "many versions": {"environment": {f"{n}": "1" for n in range(1001)}},
    "a file is null": {"files": {"run.json": None}},
    "a file is a list": {"files": {"run.json": [3, DIGEST]}},
    "a file has no size": {"files": {"run.json": {"xxh3_128": DIGEST}}},
    "a file has no checksum": {"files": {"run.json": {"size": 3}}},
    "a size is negative": {"files": {"run.json": record(size=-1)}},
    "a size is a float": {"files": {"run.json": record(size=3.5)}},
    "a size is huge": {"files": {"run.json": record(size=10**20)}},
    "a checksum is short": {"files": {"run.json": record(xxh3_128=DIGEST[1:])}},
    "a checksum is a number": {"files": {"run.json": record(xxh3_128=0)}},
    "a checksum is not hex": {"files": {"run.json": record(xxh3_128="x" * 32)}},
    "a checksum has a newline": {"files": {"run.json": record(xxh3_128=f"{DIGEST}\n")}},
    **{
        f"a file is named {name[:20]!r}": {"files": {name: record()}}
        for name in (
            *("", ".", "..", "../run.json", "/etc/passwd", "a/../../b", "a//b", "a/"),
            *("./run.json", "a\0b", "a\nb", "\x1b[2J", "manifest.json"),
            "x" * 4097,
        )
    },
    "a SHA-256 is short": {"files": {"run.json": record(sha256=DIGEST)}},
    "a signature in the end": {"hmac_sha256": DIGEST * 2},
}


def with_tail(tail):
    """A manifest that goes on otherwise after its checksum."""
    return sealed(b'{\n "xxh3_128": "' + b"0" * 32 + b'",\n ' + tail)


WHOLE = json.dumps(body())[1:].encode()
NO_JSON = {
    "cut off": with_tail(WHOLE[:-1]),
    "more after the end": with_tail(WHOLE + b"}"),
    "nested deep": with_tail(b'"schema": ' + b"[" * 100_000),
    "NaN": with_tail(WHOLE.replace(b"0.5", b"NaN")),
    "beyond all floats": with_tail(WHOLE.replace(b"0.5", b"1e999")),
    "a long number": with_tail(WHOLE.replace(b"0.5", b"1" * 5000)),
    "no UTF-8": with_tail(WHOLE.replace(b"3.15.1", b"\xff")),
    "half a character": with_tail(WHOLE.replace(b"3.15.1", rb"\ud800")),
}
ALL = {name: resealed(body(**change)) for name, change in MALFORMED.items()} | NO_JSON


def test_what_these_are_changed_from_is_a_manifest():
    read = Manifest.from_bytes(resealed(body()))
    assert read.progress == Progress(10, 1, 0)
    assert Manifest.from_bytes(with_tail(WHOLE)).files == read.files
    assert len(ALL) > 80


@pytest.mark.parametrize("raw", ALL.values(), ids=ALL)
def test_anything_else_is_refused_and_the_checkpoint_before_is_used(raw, tmp_path):
    """One line says what is wrong with it; nothing else is hidden by it."""
    with pytest.raises(ManifestError):
        Manifest.from_bytes(raw)
    store = filled(tmp_path, 10, 20)
    (tmp_path / "step-00000020" / "manifest.json").write_bytes(raw)
    assert steps(store) == [10]
    (problem,) = store.problems(20)
    assert problem.startswith("manifest.json ")
    assert "\n" not in problem
    assert len(problem) < 5000
    with pytest.raises(CorruptCheckpointError):
        verified(store, 20)
    assert newest_good(store).step == 10
    assert (tmp_path / "quarantine" / "step-00000020-1").is_dir()


def test_what_a_later_version_added_is_left_out(tmp_path):
    """Without another schema it may say more, also of a file."""
    store = filled(tmp_path, 10)

    def add(said):
        said["colour"] = "blue"
        said["progress"]["replica"] = 3
        said["files"]["run.json"]["blake3"] = 3

    change(tmp_path / "step-00000010", add)
    assert store.problems(10) == []
    assert verified(store, 10).progress == Progress(10, 1, 0)


@pytest.mark.parametrize(
    ("environment", "hint"),
    [
        ({"keras-resilient": "3.1.0"}, 'pip install "keras-resilient>=3.1.0"'),
        ({"keras-resilient": "3; rm -rf /"}, "Install the version that wrote it"),
        ({"keras-resilient": 3}, "Install the version that wrote it"),
        ({}, "Install the version that wrote it"),
        ([], "Install the version that wrote it"),
        (None, "Install the version that wrote it"),
    ],
)
def test_a_later_schema_names_the_version_that_reads_it(environment, hint):
    raw = resealed({"schema": 2, "environment": environment, "files": 3})
    with pytest.raises(NotSupportedError, match="schema 2") as caught:
        Manifest.from_bytes(raw)
    assert hint in str(caught.value)


def test_a_manifest_too_large_to_be_one_is_not_read(tmp_path, monkeypatch):
    store = filled(tmp_path, 10, 20)
    with open(tmp_path / "step-00000020" / "manifest.json", "r+b") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    (problem,) = store.problems(20)
    assert "larger than the 67,108,864 bytes that it may have" in problem
    assert newest_good(store).step == 10


def test_what_could_not_be_read_back_is_not_saved(tmp_path):
    store = filled(tmp_path, 10)
    with pytest.raises(NotSupportedError, match="could not be read back"):
        commit(
            store,
            Progress(20, 2, 0),
            writer(20),
            metrics={"x" * 1001: 1.0},
            finished=False,
            environment={},
        )
    assert steps(store) == [10]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    assert Store(tmp_path).problems(10) == []
