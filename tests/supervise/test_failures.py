"""Why an attempt ended, told from what it left behind."""

import signal

import pytest

from resilient.supervise.failures import Evidence, classify, exit_status
from resilient.supervise.tracebacks import last_traceback

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
        (-signal.SIGKILL, "killed"),
        (128 + signal.SIGKILL, "killed"),  # as a shell that ran it tells
        (-signal.SIGSEGV, "killed"),
        (-signal.SIGTERM, "preempted"),
        (143, "preempted"),
        (-signal.SIGINT, "interrupted"),
        (130, "interrupted"),
        (1, "error"),
        (126, "not started"),
        (127, "not started"),
    ],
)
def test_a_status_alone(returncode, expected):
    assert kind(returncode) == expected


def test_a_status_alone_has_no_traceback():
    assert not classify(Evidence(1)).traced
    assert classify(Evidence(1, errors=TRACEBACK.format(error="KeyError: 1"))).traced


def test_signals_from_outside_are_no_bug_and_crashes_are():
    assert classify(Evidence(-signal.SIGKILL)).signature is None
    assert classify(Evidence(-signal.SIGTERM)).signature is None
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
    assert ending.traced


@pytest.mark.parametrize(
    ("error", "message", "expected"),
    [
        ("builtins.MemoryError", "", "out of memory"),
        ("tensorflow.errors.ResourceExhaustedError", "OOM", "out of memory"),
        ("torch.OutOfMemoryError", "", "out of memory"),
        ("builtins.RuntimeError", "CUDA out of memory. Tried", "out of memory"),
        ("jaxlib.XlaRuntimeError", "RESOURCE_EXHAUSTED: x", "out of memory"),
        ("builtins.OSError", "[Errno 12] Cannot allocate memory", "out of memory"),
        ("builtins.OSError", "[Errno 28] No space left on device", "disk full"),
        ("resilient.errors.CheckpointWriteError", "x (ENOSPC). y", "disk full"),
        ("x.ResourceExhaustedError", "a; No space left on device", "disk full"),
        ("resilient.errors.CheckpointWriteError", "Permission denied", "error"),
        ("resilient.errors.DivergedError", "NaN", "diverged"),
    ],
)
def test_errors_that_mean_something(error, message, expected):
    assert kind(1, [failed(error, message)]) == expected
    printed = TRACEBACK.format(error=f"{error}: {message}" if message else error)
    assert kind(1, errors=printed) == expected


def test_a_full_disk_is_nobodys_bug():
    ending = classify(Evidence(1, [failed("OSError", "No space left on device")]))
    assert ending.signature is None


def test_a_run_that_diverged():
    ending = classify(Evidence(1, [diverged("stop"), failed("x.DivergedError")]))
    assert (ending.kind, ending.step) == ("diverged", 7)
    ending = classify(Evidence(1, [diverged("stop")]))
    assert ending.why == "it diverged at step 7: loss is NaN"


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
    assert kind(-signal.SIGKILL, [diverged("rollback")]) == "killed"


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
    assert kind(-signal.SIGKILL, [failed()]) == "killed"
    assert kind(-signal.SIGSEGV, [failed()]) == "error"  # at exit, after the traceback


def test_a_fit_that_ended_does_not_explain_an_error_after_it():
    errors = TRACEBACK.format(error="KeyError: 'x'")
    ending = classify(Evidence(1, [failed(), {"event": "ended", "step": 9}], errors))
    assert (ending.kind, ending.step) == ("error", None)
    assert ending.why == "KeyError: 'x' (train.py:2 main)"


def test_native_code_that_ran_out_of_memory():
    errors = "terminate called after throwing an instance of 'std::bad_alloc'"
    assert kind(-signal.SIGABRT, errors=errors) == "out of memory"


def test_exit_status_is_that_of_a_shell():
    assert [exit_status(code) for code in (0, 3, -9)] == [0, 3, 137]


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
        {"event": "diverged", "action": "stop", "why": ODD, "step": 3},
    ],
)
def test_what_events_say_is_one_line_that_commands_no_terminal(event):
    ending = classify(Evidence(1, [event]))
    assert ending.why.isprintable()
    assert "x" in ending.why
