"""Why an attempt ended, told from what it left behind."""

import signal

import pytest

from resilient.supervise.evidence import Evidence, last_traceback, oom_kills
from resilient.supervise.failures import classify
from resilient.telemetry.events import KILLED

pytestmark = pytest.mark.once

TRACEBACK = """\
some output
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
    ~~~~^^
  File "train.py", line 2, in main
    raise {error}
{error}
"""


def failed(error="builtins.ValueError", message="bad\nmore", **fields):
    return {
        "event": "failed",
        "step": 7,
        "error": error,
        "message": message,
        "where": ["train.py:1 outer", "train.py:2 inner"],
        "signature": "abc",
        **fields,
    }


def preempted(reason):
    return {"event": "preempted", "step": 7, "reason": reason, "saved": True}


def diverged(action):
    return {"event": "diverged", "step": 7, "why": "loss is NaN", "action": action}


def kind(*arguments, **fields):
    return classify(Evidence(*arguments, **fields)).kind


def test_zero_is_finished():
    ending = classify(Evidence(0))
    assert (ending.kind, ending.status, ending.final) == ("finished", 0, True)


@pytest.mark.parametrize(
    ("returncode", "expected"),
    [
        (-signal.SIGKILL, KILLED),
        (128 + signal.SIGKILL, KILLED),  # as a shell that ran it tells
        (-signal.SIGSEGV, KILLED),
        (-signal.SIGTERM, "preempted"),
        (143, "preempted"),
        (-signal.SIGINT, "interrupted"),
        (130, "interrupted"),
        (1, "error"),
        (127, "error"),
    ],
)
def test_a_status_alone(returncode, expected):
    assert kind(returncode) == expected


def test_signals_from_outside_are_no_bug_and_crashes_are():
    assert classify(Evidence(-signal.SIGKILL)).signature is None
    assert classify(Evidence(-signal.SIGTERM)).signature is None
    assert classify(Evidence(-signal.SIGPIPE)).final  # its output has no reader
    assert classify(Evidence(-signal.SIGSEGV)).signature == "SIGSEGV"


def test_a_kill_while_the_kernel_counted_one_is_out_of_memory():
    assert kind(-signal.SIGKILL, oom_kills=1) == "out of memory"
    assert kind(-signal.SIGTERM, oom_kills=1) == "preempted"


def test_a_hang_that_we_ended_is_hung_whatever_it_died_of():
    ending = classify(Evidence(-signal.SIGABRT, [failed()], hang="no sign for 60 s"))
    assert (ending.kind, ending.why) == ("hung", "no sign for 60 s")
    assert ending.status == 128 + signal.SIGABRT


def test_a_failure_in_fit_has_the_step_and_the_signature_of_its_event():
    ending = classify(Evidence(1, [failed()]))
    assert (ending.kind, ending.step, ending.signature) == ("error", 7, "abc")
    assert ending.why == "ValueError at step 7: bad (train.py:2 inner)"


@pytest.mark.parametrize(
    ("error", "message", "expected"),
    [
        ("resilient.errors.CheckpointWriteError", "Permission denied", "error"),
        ("resilient.errors.DivergedError", "NaN", "diverged"),
    ],
)
def test_errors_that_mean_something(error, message, expected):
    assert kind(1, [failed(error, message)]) == expected
    printed = TRACEBACK.format(error=f"{error}: {message}" if message else error)
    assert kind(1, errors=printed) == expected


def test_a_run_that_diverged():
    ending = classify(Evidence(1, [diverged("stop"), failed("x.DivergedError")]))
    assert (ending.kind, ending.step) == ("diverged", 7)


@pytest.mark.parametrize(
    "error",
    [
        "resilient.errors.CheckpointMismatchError",
        "resilient.errors.DataNotResumableError",
        "resilient.errors.NotExactError",
        "resilient.errors.NotSupportedError",
        "resilient.errors.UntrustedCheckpointError",
    ],
)
def test_our_errors_that_no_restart_cures_are_final(error):
    assert classify(Evidence(1, [failed(error)])).final
    assert classify(Evidence(1, errors=TRACEBACK.format(error=f"{error}: x"))).final


@pytest.mark.parametrize(
    "error",
    [
        "resilient.errors.CheckpointReadError",
        "resilient.DirectoryInUseError",
        "OSError",
    ],
)
def test_errors_that_may_pass_are_not_final(error):
    assert not classify(Evidence(1, [failed(error)])).final
    printed = TRACEBACK.format(error=f"{error}: x") + "Received: y\n"
    assert not classify(Evidence(1, errors=printed)).final


@pytest.mark.parametrize("error", ["TypeError", "ValueError"])
def test_refused_arguments_are_final_and_other_errors_of_their_class_are_not(error):
    printed = TRACEBACK.format(error=f"{error}: keep must be an integer.")
    assert not classify(Evidence(1, errors=printed)).final
    assert classify(Evidence(1, errors=printed + "Received: 'x'\n")).final


def test_a_shell_script_that_went_on_after_a_training_that_stopped():
    ending = classify(Evidence(0, [preempted("SIGTERM")]))
    assert (ending.kind, ending.status, ending.final) == ("preempted", 143, False)
    assert kind(0, [preempted("stop file")]) == "stopped"
    ending = classify(Evidence(0, [preempted("SIGINT")]))
    assert (ending.kind, ending.status) == ("interrupted", 130)
    assert kind(0, [diverged("rollback"), {"event": "rolled back to"}]) == "rolled back"
    again = [preempted("SIGTERM"), {"event": "started"}, {"event": "ended"}]
    assert kind(0, again) == "finished"


def test_a_status_that_is_no_signal():
    ending = classify(Evidence(255))
    assert (ending.kind, ending.signature) == ("error", "exit status 255")


def test_a_rollback_that_another_process_goes_on_from():
    back = {"event": "rolled back to", "step": 5}
    ending = classify(Evidence(75, [diverged("rollback"), back]))
    assert (ending.kind, ending.final) == ("rolled back", False)
    assert kind(75) == "error"  # of a script that means something else by it


def test_a_process_that_rolled_back_and_was_killed_later_was_killed():
    assert kind(-signal.SIGKILL, [diverged("rollback")]) == KILLED


@pytest.mark.parametrize(
    ("reason", "expected", "final"),
    [
        ("SIGTERM", "preempted", False),
        ("SIGUSR1", "preempted", False),
        ("SIGINT", "interrupted", True),
        ("stop file", "stopped", True),
        ("spot instance is terminated at 12:00", "preempted", True),
    ],
)
def test_what_training_was_asked_to_stop_by(reason, expected, final):
    ending = classify(Evidence(143, [preempted(reason)]))
    assert (ending.kind, ending.final) == (expected, final)


def test_a_script_that_went_on_after_a_preemption_failed_by_itself():
    errors = TRACEBACK.format(error="KeyError: 'x'")
    assert kind(1, [preempted("SIGTERM")], errors) == "error"


def test_a_failure_that_the_script_survived_does_not_explain_a_kill():
    assert kind(-signal.SIGKILL, [failed()]) == KILLED
    assert kind(-signal.SIGSEGV, [failed()]) == "error"  # at exit, after the traceback


def test_a_fit_that_ended_does_not_explain_an_error_after_it():
    errors = TRACEBACK.format(error="KeyError: 'x'")
    ending = classify(Evidence(1, [failed(), {"event": "ended", "step": 9}], errors))
    assert (ending.kind, ending.step) == ("error", None)
    assert ending.why == "KeyError: 'x' (train.py:2 main)"


def test_the_same_traceback_has_the_same_signature():
    one = last_traceback(TRACEBACK.format(error="ValueError: at 0x1"))
    same = last_traceback(
        "more before\n" + TRACEBACK.format(error="ValueError: at 0x2")
    )
    other = last_traceback(TRACEBACK.format(error="KeyError: 1"))
    elsewhere = last_traceback(
        TRACEBACK.format(error="ValueError: at 0x1").replace("line 2", "line 4")
    )
    assert one["signature"] == same["signature"]
    assert len({one["signature"], other["signature"], elsewhere["signature"]}) == 3


def test_of_chained_tracebacks_the_last_counts():
    text = TRACEBACK.format(error="KeyError: 1")
    text += "\nDuring handling of the above exception, another exception occurred:\n\n"
    text += TRACEBACK.format(error="my.package.Error: two: three")
    found = last_traceback(text)
    assert (found["error"], found["message"]) == ("my.package.Error", "two: three")


@pytest.mark.parametrize(
    "text",
    ["", "no such thing", "Traceback (most recent call last):", TRACEBACK[:90]],
)
def test_no_traceback_or_half_of_one(text):
    assert last_traceback(text) == {}


ODD = "x\x1b[31m\x9b\r\u202e\u2028\nresilient: forged"


@pytest.mark.parametrize(
    "event",
    [
        {"event": "failed", "error": ODD, "message": ODD, "where": [ODD]},
        {"event": "preempted", "reason": ODD},
    ],
)
def test_what_events_say_is_one_line_that_commands_no_terminal(event):
    ending = classify(Evidence(143 if event["event"] == "preempted" else 1, [event]))
    assert ending.why.isprintable()
    assert "x" in ending.why


OWN, CGROUPS = "proc/self/cgroup", "sys/fs/cgroup"


@pytest.fixture
def kills(tmp_path):
    """Counts, where the machine has these files."""

    def count(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return oom_kills(tmp_path)

    return count


EVENTS = "low 0\nhigh 0\nmax 9\noom 4\noom_kill {}\noom_group_kill 0\n"
VMSTAT = "nr_free_pages 1\noom_kill 5\n"


def test_cgroup_version_2_counts_by_our_own_group(kills):
    files = {OWN: "0::/a/b\n", CGROUPS + "/a/b/memory.events": EVENTS.format(3)}
    files |= {CGROUPS + "/memory.events": EVENTS.format(8), "proc/vmstat": VMSTAT}
    assert kills(files) == 3


def test_cgroup_version_2_counts_in_a_container_that_sees_its_group_as_the_root(kills):
    files = {OWN: "0::/../x\n", CGROUPS + "/memory.events": EVENTS.format(8)}
    assert kills(files) == 8


def test_the_machine_counts_for_cgroup_version_1(kills):
    assert kills({OWN: "3:cpu:/\n4:memory:/a\n0::/\n", "proc/vmstat": VMSTAT}) == 5


def test_the_machine_counts_where_there_is_no_group(kills):
    assert kills({OWN: "0::/\n", "proc/vmstat": VMSTAT}) == 5


def test_there_are_no_kills_where_nobody_counts(kills):
    assert kills({}) == 0
