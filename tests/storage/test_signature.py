"""With a key, what nobody with the key wrote is not used."""

import hashlib
import hmac
import json
import os
import pickle
import shutil

import pytest
import xxhash
from support import manifests
from support.checkpoint_samples import FILES, filled, newest_good, save, steps, verified

from resilient import UntrustedCheckpointError
from resilient.cli.main import main
from resilient.errors import (
    CorruptCheckpointError,
    ResilientError,
)
from resilient.saving import parts
from resilient.serialization.schema import from_json
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.manifest import FileRecord, Manifest, ManifestError, Signature
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store

pytestmark = pytest.mark.once

KEY = "canary-0123456789abcdef"
OK, DAMAGED, FAILED = 0, 1, 5


@pytest.fixture
def key(monkeypatch):
    """Sets the key, or none."""

    def set_key(value=KEY):
        if value is None:
            monkeypatch.delenv("RESILIENT_KEY", raising=False)
        else:
            monkeypatch.setenv("RESILIENT_KEY", value)

    set_key()
    return set_key


@pytest.fixture
def path(tmp_path, key):
    """A signed checkpoint."""
    filled(tmp_path, 10)
    return tmp_path / "step-00000010"


def said(path):
    return json.loads((path / "manifest.json").read_bytes())


def test_what_is_signed_is_read_with_the_key(path):
    store = Store(path.parent)
    assert store.problems(10) == []
    found = newest_good(store)
    assert found.step == 10
    assert found.signature is Signature.OURS
    raw = (path / "manifest.json").read_bytes()
    assert Manifest.from_bytes(raw).to_bytes() == raw


def test_what_is_signed_can_be_checked_by_others(path):
    """As the documentation says it is computed."""
    raw = (path / "manifest.json").read_bytes()
    body = said(path)
    for name, record in body["files"].items():
        digest = hashlib.sha256((path / name).read_bytes()).hexdigest()
        assert record["sha256"] == digest
    assert sorted(body["files"]) == sorted(FILES)
    for digest in (body["xxh3_128"], body["hmac_sha256"]):
        raw = raw.replace(digest.encode(), b"0" * len(digest))
    derived = hmac.digest(KEY.encode(), b"keras-resilient manifest v1", "sha256")
    signature = hmac.digest(derived, raw, "sha256").hex()
    assert signature == body["hmac_sha256"]


def test_what_is_signed_is_of_the_same_schema(path, key):
    """Who knows of no signatures ignores what it adds."""
    body = said(path)
    assert body["schema"] == 1
    key(None)
    other = said(save(Store(path.parent), 20).path)
    assert set(body) - set(other) == {"hmac_sha256"}
    for name, record in body["files"].items():
        assert set(record) - set(other["files"][name]) == {"sha256"}


def test_without_a_key_it_is_read_as_any_other(path, key):
    key(None)
    found = newest_good(Store(path.parent))
    assert (found.step, found.signature) == (10, Signature.UNCHECKED)


@pytest.mark.parametrize(
    ("saved_with", "problem"),
    [(None, "is not signed"), ("another-key-of-another", "not with the key")],
)
def test_what_the_key_did_not_sign_is_refused_and_stays(
    tmp_path, key, saved_with, problem
):
    """It is no damage: nothing is moved, and nothing is passed over."""
    filled(tmp_path, 10)
    key(saved_with)
    store = filled(tmp_path, 20)
    key()
    for load in (newest_good, lambda store: verified(store, 20)):
        with pytest.raises(UntrustedCheckpointError, match=problem) as caught:
            load(store)
        assert "Set RESILIENT_KEY to the key that signed it" in str(caught.value)
    assert isinstance(caught.value, ResilientError)
    assert not isinstance(caught.value, CorruptCheckpointError)
    assert steps(store) == [10, 20]
    assert store.problems(20) == []
    assert not (tmp_path / "quarantine").exists()
    assert verified(store, 10).step == 10


def forge(path, name="run.json"):
    """Another content of the same size, and all checksums that need no key."""
    content = os.urandom((path / name).stat().st_size)
    manifests.replace(path, name, content)


def test_who_computes_every_checksum_anew_still_has_no_signature(path):
    def change(body):
        body["progress"]["epoch"] = 5

    manifests.change(path, change)
    with pytest.raises(UntrustedCheckpointError):
        newest_good(Store(path.parent))
    assert Checkpoint.read(path).signature is Signature.OTHER


def test_who_changes_a_file_and_its_checksum_still_has_no_signature(path):
    forge(path)
    with pytest.raises(UntrustedCheckpointError):
        newest_good(Store(path.parent))


def test_the_signature_of_another_checkpoint_is_none_for_this(path):
    other = said(save(Store(path.parent), 20).path)["hmac_sha256"]
    manifests.change(path, lambda body: body.update(hmac_sha256=other))
    with pytest.raises(UntrustedCheckpointError):
        verified(Store(path.parent), 10)


def test_a_signed_checkpoint_is_bound_to_its_step(path):
    store = Store(path.parent)
    shutil.copytree(path, path.with_name("step-00000099"))
    assert store.problems(99) == [
        "manifest.json belongs to step 10, not to step-00000099"
    ]


class Collides:
    """A checksum that is the same for all content: xxh3 is not cryptographic."""

    def update(self, _content):
        pass

    def hexdigest(self):
        return "0" * 32


@pytest.mark.parametrize("name", FILES)
def test_the_sha256_of_every_file_counts(tmp_path, key, monkeypatch, name):
    monkeypatch.setattr(xxhash, "xxh3_128", Collides)
    store = filled(tmp_path, 10)
    path = tmp_path / "step-00000010" / name
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(
        CorruptCheckpointError, match=f"{name} does not match its checksum"
    ):
        verified(store, 10)
    assert store.problems(10)
    key(None)
    assert verified(store, 10).step == 10


def test_without_a_key_no_sha256_is_computed(tmp_path, key, monkeypatch):
    store = filled(tmp_path, 10)
    key(None)
    monkeypatch.setattr(hashlib, "sha256", None)
    assert store.problems(10) == []
    save(store, 20)
    assert b"sha256" not in (tmp_path / "step-00000020/manifest.json").read_bytes()


@pytest.mark.parametrize("gone", [["run.json"], FILES])
def test_a_signed_manifest_has_the_sha256_of_every_file(path, gone):
    def forget(body):
        for name in gone:
            del body["files"][name]["sha256"]

    manifests.change(path, forget)
    with pytest.raises(ManifestError, match=r"without the SHA-256 of .*\.(json|bin)"):
        Checkpoint.read(path)


@pytest.mark.parametrize("value", ["", "x" * 15])
def test_a_key_that_is_none_is_refused_at_once(tmp_path, key, value, capsys):
    """An empty one as well: a secret that was not filled in would switch this off."""
    key(value)
    assert main(["ls", str(tmp_path)]) == 2
    assert "too short to be a key" in capsys.readouterr().err
    with pytest.raises(ValueError, match="too short to be a key") as caught:
        Store(tmp_path)
    assert f"Received: {len(value)} characters" in str(caught.value)
    assert "xxx" not in str(caught.value)


def test_any_text_may_be_the_key(tmp_path, key):
    key("ключ-" * 4 + os.fsdecode(b"\xff"))
    assert newest_good(filled(tmp_path, 10)).signature is Signature.OURS


def test_the_key_is_in_no_file_message_or_object(path, capsys):
    store = Store(path.parent)
    found = newest_good(store)
    forge(path)
    errors = []
    for load in (newest_good, lambda store: verified(store, 10)):
        with pytest.raises(UntrustedCheckpointError) as caught:
            load(store)
        errors.append(caught.value)
    main(["verify", str(path.parent)])
    main(["show", str(path.parent), "--json"])
    texts = [*map(repr, (store, found, *errors)), *map(str, errors)]
    texts += [*capsys.readouterr(), str(vars(store)), str(pickle.dumps(found))]
    texts += [str(p.read_bytes()) for p in path.parent.rglob("*") if p.is_file()]
    derived = hmac.digest(KEY.encode(), b"keras-resilient manifest v1", "sha256")
    for text in texts:
        assert "canary" not in text
        assert derived.hex() not in text


def test_verify_says_who_can_have_written_it(path, key, capsys):
    key(None)
    save(Store(path.parent), 20)
    key("another-key-of-another")
    save(Store(path.parent), 30)

    def verify():
        code = main(["verify", str(path.parent)])
        return code, capsys.readouterr().out.splitlines()[1::2]

    unsigned = "  not signed: anyone who can write here could have written it"
    unchecked = "  signed, but there is no key here to check it with"
    signed = "  signed with the key in RESILIENT_KEY"
    other = "  signed, but not with the key in RESILIENT_KEY"
    key()
    assert verify() == (FAILED, [signed, unsigned, other])
    key(None)
    assert verify() == (OK, [unchecked, unsigned, unchecked])
    for step in (20, 30):
        shutil.rmtree(path.parent / f"step-000000{step}")
    key()
    assert verify() == (OK, [signed])
    (path / "run.json").write_bytes(b"")
    assert verify()[0] == DAMAGED


@pytest.mark.parametrize("former", ["good", "planted"])
def test_with_another_key_nothing_that_was_replaced_is_put_back(path, key, former):
    """A good one would go to quarantine for it, as damaged."""
    old = path.with_name(f"{path.name}.old-0123456789ab")
    if former == "good":
        shutil.copytree(path, old)
    else:
        old.mkdir()
    names = sorted(os.listdir(path.parent))
    key(KEY[::-1])
    remove_stale_staging(path.parent)
    assert sorted(os.listdir(path.parent)) == names
    with pytest.raises(UntrustedCheckpointError):
        newest_good(Store(path.parent))
    key()
    remove_stale_staging(path.parent)
    assert sorted(os.listdir(path.parent)) == [path.name]
    assert newest_good(Store(path.parent)).step == 10


# Several processes. ---------------------------------------------------------------


def test_what_other_processes_say_of_their_files_is_signed_by_process_0(key):
    record = {"size": 3, "xxh3_128": "0" * 32, "sha256": "1" * 64}
    assert from_json(parts.Report, {"files": {"data/x": record}}).files == {
        "data/x": FileRecord(**record)
    }
