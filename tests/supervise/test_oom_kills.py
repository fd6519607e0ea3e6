"""The kernel's counters of kills for lack of memory."""

import pytest

from resilient.supervise.memory import oom_kills

pytestmark = pytest.mark.once


@pytest.fixture
def kills(tmp_path):
    """Counts, where the machine has these files."""

    def count(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return oom_kills(tmp_path / "own", tmp_path / "cgroup", tmp_path / "vmstat")

    return count


EVENTS = "low 0\nhigh 0\nmax 9\noom 4\noom_kill {}\noom_group_kill 0\n"
VMSTAT = "nr_free_pages 1\noom_kill 5\n"


def test_cgroup_version_2_counts_by_our_own_group(kills):
    files = {"own": "0::/a/b\n", "cgroup/a/b/memory.events": EVENTS.format(3)}
    files |= {"cgroup/memory.events": EVENTS.format(8), "vmstat": VMSTAT}
    assert kills(files) == 3


def test_cgroup_version_2_counts_in_a_container_that_sees_its_group_as_the_root(kills):
    files = {"own": "0::/../x\n", "cgroup/memory.events": EVENTS.format(8)}
    assert kills(files) == 8


def test_the_machine_counts_for_cgroup_version_1(kills):
    assert kills({"own": "3:cpu:/\n4:memory:/a\n0::/\n", "vmstat": VMSTAT}) == 5


def test_the_machine_counts_where_there_is_no_group(kills):
    assert kills({"own": "0::/\n", "vmstat": VMSTAT}) == 5


def test_there_are_no_kills_where_nobody_counts(kills):
    assert kills({}) == 0
