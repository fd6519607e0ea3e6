"""What `resilient run` prints: the output of the training, and its own."""

import io
import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

from resilient.supervise.sinks import TerminalSink

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
    script = "import time; print(1, 2, sep='/'); time.sleep(2)"
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
    assert "attempt 1 · no sign of life yet" in text
    assert "resilient: exit status" in text


def test_a_progress_bar_is_one_line_when_it_is_finished():
    file = io.StringIO()
    above = TerminalSink(Console(file=file, width=80, color_system=None), "[0] ")
    above.feed(b"\r1/3 \x1b[1m=")
    assert above.unfinished().plain == "[0] 1/3 ="
    above.feed(b"\b\b\b\b\b\r2/3 ==")
    assert above.unfinished().plain == "[0] 2/3 =="
    assert file.getvalue() == ""
    above.feed(b"\r3/3 ===\nand [bold]more")
    assert file.getvalue() == "[0] 3/3 ===\n"
    above.end()
    assert above.unfinished().plain == ""
    assert file.getvalue() == "[0] 3/3 ===\n[0] and [bold]more\n"
