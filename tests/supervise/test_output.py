"""What `resilient run` prints: the output of the training, and its own."""

import subprocess
import sys

import pytest

from resilient.supervise.output import Stderr

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


def test_whoever_stops_reading_stderr_does_not_stop_the_training(supervise):
    run = supervise("""
        ready()
        while not (directory / "closed").exists():
            time.sleep(0.01)
        for _ in range(100):
            print("x" * 10_000, file=sys.stderr, flush=True)
        train(5)
    """)
    run.wait_for("ready-0-0")
    run.process.stderr.close()
    (run.directory / "closed").touch()
    assert run.process.wait(timeout=120) == 0
    assert run.events("exited")[0]["step"] == 5


def test_stdout_is_that_of_the_training(supervise, tmp_path, child_environment):
    """Not a copy: whether it is a terminal, what it is called, where its bytes go."""
    code = "import os; print(os.fstat(1).st_ino)"
    with open(tmp_path / "out", "wb") as out:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "resilient",
                "run",
                "--",
                sys.executable,
                "-c",
                code,
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            env=child_environment,
            timeout=120,
            check=True,
        )
    path = tmp_path / "out"
    assert int(path.read_text()) == path.stat().st_ino


def test_our_lines_begin_a_line(supervise):
    run = supervise(
        "import os, sys; os.write(2, b'no line end'); sys.exit(3)",
        *("--max-restarts", 0),
        prelude="",
    )
    lines = run.end()[2].splitlines()
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


def test_what_we_say_commands_no_terminal(capfd):
    Stderr().say("one \x1b[31m\r\x9b\u202e\u2028\x0b[red]é[/red]\ntwo")
    said = capfd.readouterr().err
    odd = r"\u001b[31m\u000d\u009b\u202e\u2028\u000b[red]é[/red]"
    assert said == f"resilient: one {odd}\nresilient: two\n"
