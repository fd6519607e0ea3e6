"""Against a real S3 server: what may go wrong with its requests."""

import errno
import logging
import random
import time
import traceback

import pytest
import s3fs
from support import object_store
from support.checkpoint_samples import holds, newest_good, save
from support.gang import run_alone
from support.object_store import BUCKET, HANG, RESET

from resilient.errors import CheckpointReadError, DirectoryInUseError
from resilient.storage.remote import objects as objects_module
from resilient.storage.remote.address import Address
from resilient.storage.remote.objects import Objects, StoreError
from resilient.storage.remote.options import Upload
from resilient.storage.stores import store_of

pytestmark = [pytest.mark.once, pytest.mark.spread, pytest.mark.timeout(3600)]

COMMITS = """
import json, os, sys

os.environ |= json.loads(sys.argv.pop(1))
from support.checkpoint_samples import commit, writer
from resilient.policies import latest
from resilient.progress import Progress
from resilient.storage.remote.options import Upload
from resilient.storage.stores import store_of

address, near, last = sys.argv[1:]
store = store_of(address, near, Upload(patience=20))
with store.opened():
    begin = max(store.steps(), default=0)
    for step in range(begin + 1, int(last) + 1):
        commit(store, Progress(step, 0, step), writer(step))
        store.prune(latest(1))
        while not store.uploaded(1):
            pass
        assert not store.not_uploaded(), store.not_uploaded()
os._exit(0)
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with object_store.running(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def commit(s3, tmp_path):
    """Commit checkpoints up to a step, on a machine, to a run."""
    script = tmp_path / "commits.py"
    script.write_text(COMMITS)

    def run(name, machine, last):
        address = f"s3://{BUCKET}/{name}"
        return run_alone(script, s3.told, address, tmp_path / machine, last)

    s3.restart()
    yield run
    s3.restart()


def there(name, folder):
    """The newest checkpoint that a machine with a new disk finds."""
    store = store_of(f"s3://{BUCKET}/{name}", folder, Upload(patience=20))
    with store.opened():
        found = newest_good(store)
    assert found is None or holds(found)
    return 0 if found is None else found.step


def test_faults_of_all_kinds_are_got_over(s3, commit, tmp_path):
    drawn = random.Random(1)

    def fault(number, request):
        if "HEAD" in request and drawn.random() < 0.1:
            return 503
        return drawn.choice([500, 503, RESET]) if drawn.random() < 0.25 else None

    s3.fault = fault
    status, told = commit("faults", "faults", 5)
    assert status == 0, told
    s3.restart()
    assert there("faults", tmp_path / "new") == 5


@pytest.mark.parametrize("how", [403, 503, RESET])
def test_a_store_that_fails_for_good_is_told_once(s3, commit, tmp_path, caplog, how):
    """Permission lost in the middle, a store that says to slow down, no network."""
    near, name = tmp_path / "near", f"lost-{how}"
    assert commit(name, "near", 1)[0] == 0
    caplog.set_level(logging.WARNING)
    store = store_of(f"s3://{BUCKET}/{name}", near, Upload(patience=0.5))
    with store.opened():
        s3.fault = lambda _, request: how if request.startswith("PUT") else None
        save(store, 2)
        end = time.monotonic() + 30
        while not store.uploaded(0.1):
            assert time.monotonic() < end
        assert "step 2" in store.not_uploaded()
    assert caplog.text.count("does not accept checkpoints") == 1
    s3.restart()
    assert commit(name, "near", 3)[0] == 0
    assert there(name, tmp_path / "new") == 3


def test_no_credential_is_ever_told(s3, commit, tmp_path, caplog):
    """Nor are those in options, whatever the store says of them."""
    secret = "canary-in-options-4"
    options = {"key": "canary-key-5", "secret": secret, "token": "canary-token-6"}
    upload = Upload(patience=0.3, storage_options=options)
    assert "canary" not in repr(upload)
    store = store_of(f"s3://{BUCKET}/secret", tmp_path / "near", upload)
    told = []

    def fault(number, request):
        return 403 if "claims" in request and number > 12 else None

    store.report = lambda *each, **fields: told.append(repr((each, fields)))
    with store.opened():
        save(store, 1)
        while not store.uploaded(0.1):
            pass
        s3.fault = fault
        save(store, 2)
        while not store.uploaded(0.1):
            pass
        told.append(store.not_uploaded())
    s3.fault = lambda *_: 403
    try:
        with store_of(f"s3://{BUCKET}/secret", tmp_path / "new", upload).opened():
            pass
    except Exception:  # what is looked at is the text, as a person sees it
        told.append(traceback.format_exc())
    assert "PermissionError" in "".join(told)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    everything = "".join([*told, caplog.text, *(p.read_text("latin1") for p in files)])
    assert "canary" not in everything


def test_an_object_that_is_created_replaces_none(s3):
    objects = Objects(Address("s3", f"{BUCKET}/creates"), Upload(patience=1))
    assert objects.create("a", b"mine")
    assert objects.create("a", b"mine")  # a retry, whose first answer was lost
    assert not objects.create("a", b"another's")
    assert objects.get("a", 100) == b"mine"


def in_other_words(knows, code):
    """Of stores that say less, or that know no conditions at all."""
    pipe = s3fs.S3FileSystem._pipe_file

    async def pipe_file(fs, path, value, mode="overwrite", **options):
        try:
            return await pipe(fs, path, value, mode=mode, **options)
        except FileExistsError:
            raise OSError(code, "condition") from None

    async def refuse(fs, path, value, mode="overwrite", **options):
        if mode == "create":
            raise OSError(code, "not implemented")
        return await pipe(fs, path, value, **options)

    return pipe_file if knows else refuse


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_a_store_that_has_other_words_for_it_replaces_none(
    s3, monkeypatch, knows, code
):
    monkeypatch.setattr(s3fs.S3FileSystem, "_pipe_file", in_other_words(knows, code))
    name = f"words-{knows}-{code}"
    objects = Objects(Address("s3", f"{BUCKET}/{name}"), Upload(patience=1))
    assert objects.create("a", b"mine")
    assert objects.create("a", b"mine")
    assert not objects.create("a", b"another's")
    assert objects.get("a", 100) == b"mine"


def test_a_commit_that_something_else_wrote_ends_uploads(s3, tmp_path, monkeypatch):
    create = Objects.create

    def create_second(objects, name, content):
        objects.put(name, b"another's")
        return create(objects, name, content)

    monkeypatch.setattr(Objects, "create", create_second)
    store = store_of(f"s3://{BUCKET}/taken", tmp_path / "near", Upload(patience=20))
    with store.opened():
        save(store, 1)
        with pytest.raises(DirectoryInUseError, match="Something else has written"):
            store.uploaded(60)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda objects, _: objects.put("new", b"x"),
        lambda objects, _: objects.create("new", b"x"),
        lambda objects, _: objects.get("there", 100),
        lambda objects, _: objects.names(),
        lambda objects, _: objects.delete("there"),
        lambda objects, file: objects.send(file, "new"),
        lambda objects, file: objects.receive("there", file, 1),
    ],
    ids=["put", "create", "get", "names", "delete", "send", "receive"],
)
def test_no_request_waits_for_its_answer_for_ever(
    s3, tmp_path, monkeypatch, request_of
):
    """Nor if the driver would."""
    options = {"config_kwargs": {"read_timeout": 3600}}
    upload = Upload(patience=0.1, storage_options=options)
    objects = Objects(Address("s3", f"{BUCKET}/waits"), upload)
    file = tmp_path / "file"
    file.write_bytes(b"x")
    s3.restart()
    objects.put("there", b"x")
    monkeypatch.setattr(objects_module, "_ANSWER", 0.5)
    s3.fault = lambda *_: HANG
    began = time.monotonic()
    try:
        with pytest.raises(StoreError, match="no answer in time") as error:
            request_of(objects, file)
    finally:
        s3.restart()
    assert error.value.transient
    assert time.monotonic() - began < 30


def test_a_store_that_never_answers_is_not_waited_for_for_ever(s3, commit, tmp_path):
    options = {"config_kwargs": {"read_timeout": 1, "retries": {"max_attempts": 0}}}
    upload = Upload(patience=1, storage_options=options)
    s3.fault = lambda *_: HANG
    began = time.monotonic()
    with (
        pytest.raises(CheckpointReadError, match="store cannot be used right now"),
        store_of(f"s3://{BUCKET}/hangs", tmp_path / "near", upload).opened(),
    ):
        pass
    assert time.monotonic() - began < 60
