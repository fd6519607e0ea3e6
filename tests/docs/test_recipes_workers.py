"""The recipes for several workers, as far as they can be checked without a cluster.

What each worker is told is compared with what `resilient run --nproc` tells workers,
which are trained with in other tests.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support import EXAMPLES

from resilient.supervise.environment import of_process

pytestmark = pytest.mark.once

BASH = shutil.which("bash") or "/bin/bash"
TELL = 'printf "%s\\0" "$@" && env -0'
NODES = ("alpha", "beta")


def told_by_us(rank: int, workers: int) -> dict[str, str]:
    """But for the variables that no library reads by itself."""
    ports = list(range(29500, 29502 + workers))
    told = of_process({}, Path("heartbeat"), rank, workers, ports)
    for name in ("RESILIENT_HEARTBEAT", "PYTHONFAULTHANDLER", "PYTHONUNBUFFERED"):
        del told[name]
    return {name: value for name, value in told.items() if name[:4] != "JAX_"}


def worker(folder: Path, rank: int, each: int = 2) -> tuple[list[str], dict[str, str]]:
    """What one task of two nodes becomes, and the environment that it then has."""
    names = " ".join(NODES)
    (folder / "scontrol").write_text(
        f'#!{BASH}\n[ "$*" = "show hostnames list" ] && printf "%s\\n" {names}'
    )
    (folder / "scontrol").chmod(0o755)
    environment = {
        "PATH": os.pathsep.join([str(folder), os.environ["PATH"]]),
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_NODELIST": "list",
        "SLURM_STEP_NUM_NODES": str(len(NODES)),
        "SLURM_STEP_NUM_TASKS": str(len(NODES) * each),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % each),
    }
    script = EXAMPLES / "slurm_worker.sh"
    done = subprocess.run(
        [BASH, script, BASH, "-c", TELL, "tell", "two words"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    said, *variables = done.stdout.rstrip("\0").split("\0")
    return [said], dict(one.split("=", 1) for one in variables)


def test_a_task_of_slurm_becomes_its_command(tmp_path):
    said, _ = worker(tmp_path, 0)
    assert said == ["two words"]


@pytest.mark.parametrize("rank", range(4))
def test_a_task_of_slurm_is_told_what_a_local_worker_is_told(rank, tmp_path):
    """But for the hosts, and how many of the workers are on its own."""
    _, told = worker(tmp_path, rank)
    expected = told_by_us(rank, 4)
    assert set(expected) <= set(told)
    here = {"LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2"}
    addresses = ("MASTER_ADDR", "MASTER_PORT", "KERAS_DISTRIBUTION_JOB_ADDRESSES")
    for name in set(expected) - {*here, *addresses, "TF_CONFIG"}:
        assert told[name] == expected[name]
    assert {name: told[name] for name in here} == here
    config = json.loads(told["TF_CONFIG"])
    assert config["task"] == json.loads(expected["TF_CONFIG"])["task"]


def test_tasks_of_slurm_agree_on_addresses_below_the_systems_own_ports(tmp_path):
    tasks = [worker(tmp_path, rank)[1] for rank in range(4)]
    clusters = [json.loads(told["TF_CONFIG"])["cluster"] for told in tasks]
    assert clusters == [clusters[0]] * 4
    workers = clusters[0]["worker"]
    assert [one.split(":")[0] for one in workers] == ["alpha", "alpha", "beta", "beta"]
    names = ("MASTER_ADDR", "MASTER_PORT", "KERAS_DISTRIBUTION_JOB_ADDRESSES")
    (shared,) = {tuple(told[name] for name in names) for told in tasks}
    master = f"{shared[0]}:{shared[1]}"
    assert len({master, shared[2], *workers}) == 6
    for address in (master, shared[2], *workers):
        assert 1024 < int(address.split(":")[1]) < 32768
    assert master.startswith("alpha:")
    assert shared[2].startswith("alpha:")


@pytest.fixture
def documents():
    with open(EXAMPLES / "kubernetes_workers.yaml") as file:
        return {one["kind"]: one for one in yaml.safe_load_all(file)}


@pytest.fixture
def job(documents):
    return documents["Job"]["spec"]


@pytest.fixture
def container(job):
    (found,) = job["template"]["spec"]["containers"]
    return found


def in_pod(container: dict, index: int) -> dict[str, str]:
    """The variables, as Kubernetes puts those above into those below."""
    found: dict[str, str] = {}
    for one in container["env"]:
        if "valueFrom" in one:
            path = one["valueFrom"]["fieldRef"]["fieldPath"]
            number = "batch.kubernetes.io/job-completion-index"
            assert path == f"metadata.annotations['{number}']"
            found[one["name"]] = str(index)
            continue
        assert isinstance(one["value"], str)
        found[one["name"]] = re.sub(
            r"\$\((\w+)\)", lambda match: found[match[1]], one["value"]
        )
    return found


def test_each_pod_of_the_job_has_a_number_and_a_name(documents, job):
    """Of an indexed Job pods are called after it, and found by a headless service."""
    workers = job["completions"]
    assert (job["completionMode"], job["parallelism"]) == ("Indexed", workers)
    service, name = documents["Service"], documents["Job"]["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    selector = {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["selector"] == selector
    subdomain = job["template"]["spec"]["subdomain"]
    assert subdomain == service["metadata"]["name"]


@pytest.mark.parametrize("index", range(2))
def test_a_pod_is_told_what_a_local_worker_is_told(documents, job, container, index):
    """But for the hosts, and that it is alone on its own."""
    workers, told = job["completions"], in_pod(container, index)
    name = documents["Job"]["metadata"]["name"]
    hosts = [f"{name}-{n}.{job['template']['spec']['subdomain']}" for n in range(2)]
    expected = told_by_us(index, workers) | {
        "LOCAL_RANK": "0",
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": "29500",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"{hosts[0]}:29501",
        "KERAS_BACKEND": "tensorflow",
    }
    del expected["LOCAL_WORLD_SIZE"]
    config = json.loads(expected.pop("TF_CONFIG"))
    config["cluster"]["worker"] = [f"{host}:29502" for host in hosts]
    assert json.loads(told.pop("TF_CONFIG")) == config
    assert told == expected


@pytest.fixture
def job_of_set(jobset):
    (found,) = jobset["spec"]["replicatedJobs"]
    return found["template"]["spec"]


@pytest.fixture
def jobset():
    with open(EXAMPLES / "kubernetes_jobset.yaml") as file:
        return yaml.safe_load(file)


def test_pods_of_a_jobset_are_told_what_those_of_a_job_are(
    jobset, job_of_set, container
):
    """But for their names, which JobSet makes: set, job, number of job, of pod."""
    spec = jobset["spec"]
    (replicated,) = spec["replicatedJobs"]
    assert spec["network"]["enableDNSHostnames"]
    name = f"{jobset['metadata']['name']}-{replicated['name']}-0"
    (of_set,) = job_of_set["template"]["spec"]["containers"]
    for index in range(job_of_set["completions"]):
        told = in_pod(of_set, index)
        for variable, value in in_pod(container, index).items():
            renamed = re.sub(r"\btraining-(?=\d)", f"{name}-", value)
            assert told.pop(variable) == renamed
        assert not told
    assert spec["network"]["subdomain"] == "training"


def test_a_jobset_starts_all_pods_again_and_counts_failures_only(jobset, job_of_set):
    """Whatever fails its job does: without a limit if that was podFailurePolicy."""
    assert job_of_set["backoffLimit"] == 0
    (rule,) = jobset["spec"]["failurePolicy"]["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    disrupted, stopped = job_of_set["podFailurePolicy"]["rules"]
    assert disrupted["action"] == stopped["action"] == "FailJob"
    assert stopped["onExitCodes"]["values"] == [143]
    assert job_of_set["template"]["spec"]["restartPolicy"] == "Never"


def test_pods_that_stop_or_are_taken_away_do_not_count_as_failures(job, container):
    disrupted, stopped = job["podFailurePolicy"]["rules"]
    condition = {"type": "DisruptionTarget", "status": "True"}
    assert disrupted == {"action": "Ignore", "onPodConditions": [condition]}
    codes = {"containerName": container["name"], "operator": "In", "values": [143]}
    assert stopped == {"action": "Ignore", "onExitCodes": codes}
    assert job["podReplacementPolicy"] == "Failed"
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_all_pods_write_to_one_claim(documents, job, container):
    (volume,), (mount,) = job["template"]["spec"]["volumes"], container["volumeMounts"]
    claim = documents["PersistentVolumeClaim"]
    assert mount["name"] == volume["name"]
    claimed = volume["persistentVolumeClaim"]["claimName"]
    assert claimed == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_supervisor_is_process_1_of_each_pod(container):
    assert container["command"][:2] == ["resilient", "run"]
    assert "--" in container["command"]
    assert "args" not in container
