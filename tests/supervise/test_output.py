"""What `resilient run` prints: the output of the training, and its own."""

import os
import pty
import subprocess
import sys

import pytest

from resilient.supervise.output import Lines, Output, as_shown

pytestmark = pytest.mark.once


def test_output_passes_through_byte_for_byte(supervise):
    run = supervise(
        r"""
        import os
        every = bytes(range(256)) + b"\r\b\x1b[1m\xff no line end"
        os.write(1, every * 1000)
        os.write(2, b"\xfe\xff error\n")
        """,
        prelude="",
    )
    out, err = run.process.communicate(timeout=120)
    assert out == (bytes(range(256)) + b"\r\b\x1b[1m\xff no line end") * 1000
    assert b"\xfe\xff error\n" in err
    ours = [line for line in err.split(b"\n") if line and b"\xfe" not in line]
    assert all(line.startswith(b"resilient: ") for line in ours)


def test_whoever_stops_reading_does_not_stop_the_training(supervise):
    run = supervise("""
        ready()
        while not (directory / "closed").exists():
            time.sleep(0.01)
        for _ in range(100):
            print("x" * 10_000, flush=True)
        train(5)
    """)
    run.wait_for("ready-0-0")
    run.process.stdout.close()
    (run.directory / "closed").touch()
    assert run.process.wait(timeout=120) == 0
    assert run.events("exited")[0]["step"] == 5


def test_our_lines_begin_a_line_where_both_streams_are_one_file(child_environment):
    script = "import os, sys; os.write(1, b'no line end'); sys.exit(3)"
    options = ["--max-restarts", "0", "--", sys.executable, "-c", script]
    run = subprocess.run(
        [sys.executable, "-m", "resilient", "run", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=child_environment,
        text=True,
        timeout=120,
    )
    lines = run.stdout.splitlines()
    lines.remove("no line end")
    assert lines
    assert all(line.startswith("resilient: ") for line in lines)


def test_the_environment_of_the_training(supervise):
    run = supervise(
        """
        import os
        for name in ("PYTHONFAULTHANDLER", "PYTHONUNBUFFERED", "RANK", "TF_CONFIG"):
            print(name, os.environ.get(name))
        print(os.getsid(0) == os.getpid(), os.read(0, 1))
        """,
        prelude="",
    )
    assert run.end()[1].splitlines() == [
        "PYTHONFAULTHANDLER 1",
        "PYTHONUNBUFFERED 1",
        "RANK None",
        "TF_CONFIG None",
        "True b''",
    ]


def test_in_a_terminal_lines_are_printed_above_a_status(child_environment):
    script = "import time; print(1, 2, sep='/'); time.sleep(1); print(7, end='')"
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "resilient", "run", "--", sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env=child_environment | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(terminal)
    printed = b""
    try:
        while data := os.read(main, 4096):
            printed += data
    except OSError:
        pass  # how Linux says that the other end is closed
    os.close(main)
    assert process.wait(timeout=60) == 0
    text = printed.decode()
    assert "1/2\r\n" in text
    assert "attempt 1 · no heartbeat yet" in text
    assert "7\r\n" in text
    assert "resilient: exit status: 0" in text


def test_a_progress_bar_is_one_line_when_it_is_finished():
    shown = []
    lines = Lines(lambda line: shown.append(as_shown("[0] ", line).plain))
    lines.write(b"\r1/3 \x1b[1m=")
    assert as_shown("[0] ", lines.rest).plain == "[0] 1/3 ="
    lines.write(b"\b\b\b\b\b\r2/3 ==")
    assert as_shown("[0] ", lines.rest).plain == "[0] 2/3 =="
    assert shown == []
    lines.write(b"\r3/3 ===\nand [bold]more")
    assert shown == ["[0] 3/3 ==="]
    lines.flush()
    assert lines.rest == b""
    assert shown == ["[0] 3/3 ===", "[0] and [bold]more"]


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        (b"plain", "plain"),
        (b"", ""),
        (b"1/3\r2/3\r3/3", "3/3"),
        (b"windows\r", "windows"),
        (b"1/3\b\b\b\r2/3", "2/3"),  # Keras's progress bar
        (b"1/3\b\b", "1/3"),
        (b"\xff", "\ufffd"),
    ],
)
def test_a_line_in_a_terminal(printed, seen):
    assert as_shown("", printed).plain == seen


def test_lines_are_put_together():
    shown = []
    lines = Lines(shown.append)
    lines.write(b"one\ntw")
    lines.write(b"o\n\nthree")
    assert shown == [b"one", b"two", b""]
    lines.flush()
    lines.flush()
    assert shown[3:] == [b"three"]


def test_a_bar_without_end_takes_no_memory():
    shown = []
    lines = Lines(shown.append)
    for number in range(100_000):
        lines.write(b"\rstep %d of many" % number)
        assert len(lines.rest) <= 64 * 1024
    assert shown == []
    assert lines.rest.endswith(b"step 99999 of many")
    lines.flush()
    lines.write(b"x" * 200_000)
    assert (shown[1:], lines.rest) == ([b"x" * 200_000], b"")


def test_what_we_say_commands_no_terminal(capfd):
    with Output() as output:
        output.say("one \x1b[31m\r\x9b\u202e\u2028\x0b[red]é[/red]\ntwo")
    said = capfd.readouterr().err
    odd = r"\u001b[31m\u000d\u009b\u202e\u2028\u000b[red]é[/red]"
    assert said == f"resilient: one {odd}\nresilient: two\n"
