"""Who may ask a fit to stop, and what becomes of it."""

import dataclasses
import json
import logging
import math
import os
import signal
import sys
import threading
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Do

import resilient
from resilient.errors import Preempted
from resilient.preemption import watch as watching
from resilient.preemption.requests import RESERVE, Preemption, Requests, listening
from resilient.preemption.watch import Watch
from resilient.progress import Progress
from resilient.telemetry import heartbeat
from resilient.telemetry.events import read_events

pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]
TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1


class Clock:
    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def requests():
    return Requests(Clock())


def listen(requests, *signals, grace=30.0):
    return listening(signals, requests, grace, lambda: None)


def send(which):
    os.kill(os.getpid(), which)


@pytest.fixture
def handler():
    """Calls of an earlier handler of SIGTERM, SIGINT and SIGUSR1."""
    calls = []
    before = {which: signal.getsignal(which) for which in (TERM, INT, USR1)}
    for which in before:
        signal.signal(which, lambda number, frame: calls.append(number))
    yield calls
    for which, old in before.items():
        signal.signal(which, old)


# What may be chosen --------------------------------------------------------------


def test_the_default_are_three_signals_and_thirty_seconds():
    assert Preemption() == Preemption((TERM, INT, USR1), 30, ())


@pytest.mark.parametrize(
    "given",
    [
        {"signals": TERM},
        {"signals": ["SIGTERM"]},
        {"signals": [True]},
        {"grace_period": "30"},
        {"notices": ["gce"]},
        {"notices": resilient.clouds.gce()},
    ],
)
def test_options_of_another_type_are_refused(given):
    with pytest.raises(TypeError, match=r"Preemption\(.*\nReceived: .*"):
        Preemption(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"signals": [signal.SIGKILL]},
        {"signals": [signal.SIGSTOP]},
        {"signals": [999]},
        {"grace_period": 0},
        {"grace_period": -1},
        {"grace_period": math.inf},
    ],
)
def test_options_without_meaning_are_refused(given):
    with pytest.raises(ValueError, match=r"Preemption\(.*\nReceived: .*"):
        Preemption(**given)


def test_fit_takes_options_and_nothing_else(tmp_path):
    with pytest.raises(TypeError, match=r"`preemption`.*\nReceived: 30\n"):
        fitting.fit(fitting.model(), tmp_path, preemption=30)


# Signals -------------------------------------------------------------------------


def test_a_signal_sets_a_flag_and_the_handler_from_before_is_called_later(
    requests, handler
):
    with listen(requests, TERM, INT):
        send(TERM)
        assert requests.stop.reason == "SIGTERM"
        assert handler == []
    assert handler == [TERM]
    send(TERM)  # the handler from before is back
    assert handler == [TERM, TERM]


def test_the_grace_period_is_over_at_some_time(requests):
    with listen(requests, TERM, grace=30.0):
        send(TERM)
    assert requests.leaves(30 - RESERVE)
    requests.now.time += 10
    assert requests.leaves(20 - RESERVE)
    assert not requests.leaves(20.5 - RESERVE)


def test_ctrl_c_has_no_limit(requests):
    with listen(requests, INT, grace=30.0):
        send(INT)
    requests.now.time += 1e6
    assert requests.leaves(1e6)


def test_the_second_ctrl_c_stops_at_once(requests):
    before = signal.getsignal(INT)
    with pytest.raises(KeyboardInterrupt), listen(requests, TERM, INT):  # noqa: PT012
        send(INT)
        assert requests.stop.reason == "SIGINT"
        send(INT)
        pytest.fail("the second one was not raised")
    assert signal.getsignal(INT) is before


def test_the_same_signal_twice_is_one():
    assert Preemption(signals=(TERM, INT, TERM)).signals == (TERM, INT)


def test_the_first_request_counts(requests):
    with listen(requests, TERM, USR1):
        send(USR1)
        send(TERM)
    assert requests.stop.reason == "SIGUSR1"


def test_signals_that_are_ignored_stay_ignored(requests):
    before = signal.signal(USR1, signal.SIG_IGN)
    try:
        with listen(requests, USR1):
            send(USR1)
        assert requests.stop is None
        assert signal.getsignal(USR1) is signal.SIG_IGN
    finally:
        signal.signal(USR1, before)


def test_other_threads_watch_no_signals(requests, caplog):
    caplog.set_level(logging.INFO)
    before = signal.getsignal(TERM)

    def inside():
        with listen(requests, TERM):
            seen.append(signal.getsignal(TERM))

    seen = []
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]
    assert "main thread" in caplog.text


@pytest.mark.everywhere
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX
def test_a_forked_worker_has_the_handlers_from_before(requests):
    """It ends by SIGTERM; Ctrl-C, which it gets as well, is for who forked it."""
    before = signal.getsignal(TERM)
    with listen(requests, TERM, INT):
        pid = os.fork()
        if pid == 0:
            same = signal.getsignal(TERM) is before
            ignored = signal.getsignal(INT) is signal.SIG_IGN
            os._exit(0 if same and ignored else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert signal.getsignal(TERM) is not before


def test_one_fit_inside_of_another(requests):
    """Both are asked, the inner one first, and each puts back what it found."""
    inner = Requests(Clock())
    before = signal.getsignal(TERM)
    with listen(requests, TERM):
        with listen(inner, TERM):
            send(TERM)
            assert requests.stop is None
        assert inner.stop.reason == requests.stop.reason == "SIGTERM"
    assert signal.getsignal(TERM) is before


# The thread beside ---------------------------------------------------------------


@pytest.fixture
def watch(requests, tmp_path):
    def make(*notices, request_save=lambda: None):
        options = Preemption(notices=notices, grace_period=20)
        return Watch("me", tmp_path, options, requests, request_save=request_save)

    return make


def test_the_heartbeat_says_where_training_is(watch, tmp_path, monkeypatch):
    other = tmp_path / "for a supervisor"
    monkeypatch.setenv(heartbeat.VARIABLE, str(other))
    looking = watch()
    looking.look()
    first = heartbeat.read(tmp_path / "heartbeat")
    assert (first.attempt, first.pid, first.phase) == ("me", os.getpid(), "starting")
    assert first.directory == str(tmp_path)
    looking.beat("training", Progress(1234, 5, 6))
    looking.beat("validating")
    looking.look()
    last = heartbeat.read(other)
    assert last == heartbeat.read(tmp_path / "heartbeat")
    assert (last.phase, last.step, last.epoch, last.batch) == ("validating", 1234, 5, 6)
    assert last.count == 2


def test_without_a_sign_of_life_the_heartbeat_stays_as_it_is(watch, tmp_path):
    looking = watch()
    looking.beat("training", Progress(10, 1, 0))
    looking.look()
    before = (tmp_path / "heartbeat").read_bytes()
    looking.look()
    assert (tmp_path / "heartbeat").read_bytes() == before


def test_a_shorter_heartbeat_leaves_nothing_of_a_longer_one(watch, tmp_path):
    looking = watch()
    for step in (10**9, 1):
        looking.beat("training", Progress(step, 0, 0))
        looking.look()
        assert heartbeat.read(tmp_path / "heartbeat").step == step


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"step": 1}', b"\xff\x00"])
def test_a_torn_heartbeat_reads_as_none(tmp_path, content):
    (tmp_path / "heartbeat").write_bytes(content)
    assert heartbeat.read(tmp_path / "heartbeat") is None


@pytest.mark.parametrize(
    "odd",
    [
        {"attempt": 3},
        {"pid": -1},
        {"pid": 1 << 31},
        {"pid": "1"},
        {"directory": "a\0b"},
        {"directory": ""},
        {"time": math.nan},
        {"time": 10**400},
        {"time": -1},
        {"phase": "\x1b[31m"},
        {"step": -1},
        {"step": 10**5000},
        {"count": None},
        {"batch": True},
        {"epoch": []},
    ],
)
def test_a_heartbeat_with_odd_values_reads_as_none(watch, tmp_path, odd):
    watch().look()
    path, most = tmp_path / "heartbeat", sys.get_int_max_str_digits()
    assert heartbeat.read(path) is not None
    sys.set_int_max_str_digits(0)
    try:
        path.write_text(json.dumps(json.loads(path.read_text()) | odd))
    finally:
        sys.set_int_max_str_digits(most)
    assert heartbeat.read(path) is None


@pytest.mark.parametrize("content", [b"[" * 100_000, b" " * (1 << 20) + b"{}"])
def test_a_heartbeat_that_is_deep_or_huge_reads_as_none(tmp_path, content):
    (tmp_path / "heartbeat").write_bytes(content)
    assert heartbeat.read(tmp_path / "heartbeat") is None


def test_a_directory_whose_name_is_no_text_is_in_the_heartbeat(tmp_path):
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    directory.mkdir()
    Watch("me", directory, None).look()
    assert Path(heartbeat.read(directory / "heartbeat").directory) == directory


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo"])
def test_a_heartbeat_is_neither_written_nor_read_through_what_is_no_file(
    watch, tmp_path, monkeypatch, kind
):
    outside = tmp_path / "outside"
    outside.mkdir()
    good = Watch("good", outside, None)
    good.look()
    before = (outside / "heartbeat").read_bytes()
    named = tmp_path / "for a supervisor"
    for place in (tmp_path / "heartbeat", named):
        if kind == "fifo":
            os.mkfifo(place)
        else:
            place.symlink_to(outside / ("heartbeat" if kind == "link" else "none"))
    monkeypatch.setenv(heartbeat.VARIABLE, str(named))
    watch().look()
    assert os.listdir(outside) == ["heartbeat"]
    assert (outside / "heartbeat").read_bytes() == before
    assert heartbeat.read(named) is None
    assert heartbeat.read(tmp_path / "heartbeat") is None


def test_a_heartbeat_has_the_mode_that_the_umask_leaves(watch, tmp_path):
    before = os.umask(0o077)
    try:
        watch().look()
    finally:
        os.umask(before)
    assert (tmp_path / "heartbeat").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo"])
def test_requests_are_never_followed_and_removed_as_they_are(watch, tmp_path, kind):
    """It counts that the name is there."""
    asked = []
    target = tmp_path / "target"
    target.write_text("precious")
    for name in ("save", "stop"):
        if kind == "fifo":
            os.mkfifo(tmp_path / name)
        else:
            (tmp_path / name).symlink_to(target if kind == "link" else "nowhere")
    looking = watch(request_save=lambda: asked.append(True))
    with pytest.raises(Preempted), looking.running():
        pass
    assert asked == [True]
    assert target.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["heartbeat", "target"]


def test_a_heartbeat_that_cannot_be_written_stops_nothing(watch, tmp_path):
    (tmp_path / "heartbeat").mkdir()
    looking = watch()
    looking.look()
    assert looking.requests.stop is None


def test_the_file_stop_asks_to_stop(watch, tmp_path):
    looking = watch()
    looking.look()
    assert not looking.stopping
    (tmp_path / "stop").touch()
    looking.look()
    assert looking.requests.stop.reason == "stop file"
    looking.requests.now.time += 1e6
    assert looking.requests.leaves(1e6)


def test_the_file_save_asks_for_a_save_once(watch, tmp_path):
    asked = []
    looking = watch(request_save=lambda: asked.append(1))
    (tmp_path / "save").touch()
    looking.look()
    looking.look()
    assert asked == [1]
    assert not (tmp_path / "save").exists()


def test_a_cloud_that_gives_notice(watch):
    answers = [None, None, "the machine goes away", None]
    looking = watch(lambda: answers.pop(0))
    looking.ask()
    looking.ask()
    assert not looking.stopping
    looking.ask()
    looking.ask()
    assert looking.requests.stop.reason == "the machine goes away"
    assert looking.requests.leaves(20 - RESERVE)
    assert not looking.requests.leaves(21 - RESERVE)


def test_a_cloud_that_does_not_answer_is_named_once(watch, caplog):
    def probe():
        raise OSError("no route to the metadata server")

    looking = watch(probe)
    for _ in range(3):
        looking.ask()
    assert caplog.text.count("no route to the metadata server") == 1
    assert not looking.stopping


@pytest.mark.parametrize("answer", [False, "", 0, resilient.clouds.gce])
def test_a_notice_is_a_text(watch, caplog, answer):
    """``notices=[clouds.gce]`` in place of ``clouds.gce()`` would stop at once."""
    looking = watch(lambda: answer)
    looking.ask()
    assert not looking.stopping
    assert "not None or a string" in caplog.text


def test_a_cloud_is_asked_while_training_goes_on(tmp_path):
    def notice():
        asked.set()
        return "the machine goes away"

    asked = threading.Event()
    how = Preemption(notices=[notice])
    end = preempted(tmp_path, callbacks=[Do(asked.wait)], preemption=how)
    assert (end.reason, end.code) == ("the machine goes away", 143)
    assert end.progress.step <= 9


def test_a_cloud_that_hangs_holds_nothing_up(tmp_path):
    answers = threading.Event()

    def notice():
        answers.wait(60)

    fitting.fit(fitting.model(), tmp_path, preemption=Preemption(notices=[notice]))
    names = [thread.name for thread in threading.enumerate()]
    answers.set()
    assert "resilient-notices" in names


def test_a_file_system_that_is_away_for_a_while_does_not_end_the_watch(
    watch, tmp_path, monkeypatch
):
    def stale(path):
        raise OSError(116, "Stale file handle")

    looking = watch()
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.exists", stale)
        looking.look()
    (tmp_path / "stop").touch()
    looking.look()
    assert looking.stopping


def test_a_save_that_cannot_be_removed_asks_for_none(watch, tmp_path):
    asked = []
    looking = watch(request_save=lambda: asked.append(1))
    (tmp_path / "save").mkdir()
    looking.look()
    assert asked == []


def test_what_does_not_fit_into_the_grace_period_is_not_begun(watch):
    looking = watch()
    looking.requests.ask_to_stop("SIGTERM", grace=20)
    looking.stop_unless_time(15)  # there is time
    looking.stop_unless_time(None)
    with pytest.raises(resilient.Preempted) as end:
        looking.stop_unless_time(25)
    assert (end.value.reason, end.value.saved) == ("SIGTERM", False)


def test_preempted_ends_the_process_with_143():
    requests = Requests()
    requests.ask_to_stop("SIGTERM")
    error = requests.stopped(Progress(1, 0, 1), saved=True)
    assert isinstance(error, SystemExit)
    assert not isinstance(error, Exception | KeyboardInterrupt)
    assert error.code == 143


def test_in_ipython_it_ends_the_cell_without_a_traceback(monkeypatch):
    """IPython would tell how to leave it, for a SystemExit."""
    ipython = types.SimpleNamespace(get_ipython=object)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    requests = Requests()
    requests.ask_to_stop("SIGINT")
    error = requests.stopped(Progress(7, 0, 7), saved=True)
    assert isinstance(error, KeyboardInterrupt)
    assert not isinstance(error, SystemExit | Exception)
    assert (error.reason, error.saved) == ("SIGINT", True)
    (line,) = error._render_traceback_()
    assert (
        line == "Stopped at step 7 (epoch 1, batch 7). Run this cell again to continue."
    )
    ipython.get_ipython = lambda: None  # imported, and not running
    assert isinstance(requests.stopped(Progress(1, 0, 1), saved=True), SystemExit)


def test_ctrl_c_is_a_keyboard_interrupt_all_the_same():
    requests = Requests()
    requests.ask_to_stop("SIGINT")
    error = requests.stopped(Progress(1, 0, 1), saved=True)
    assert isinstance(error, resilient.Preempted)
    assert isinstance(error, KeyboardInterrupt)
    assert error.code == 130


# In a fit ------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch):
    """Wait until the thread of a fit has looked twice more."""
    monkeypatch.setattr(watching, "_LOOK_EVERY", 0.005)
    count, real = [0], Watch.look

    def look(self):
        real(self)
        count[0] += 1

    def wait():
        first, until = count[0], time.monotonic() + 60
        while count[0] < first + 2:
            assert time.monotonic() < until
            time.sleep(0.001)

    monkeypatch.setattr(Watch, "look", look)
    return wait


def expected(**given):
    net = fitting.model()
    history = net.fit(**fitting.arguments(**given))
    return fitting.values(net), history.history


def preempted(directory, **given):
    with pytest.raises(resilient.Preempted) as end:
        fitting.fit(fitting.model(), directory, **given)
    return end.value


def assert_goes_on(directory, **given):
    weights, history = expected(**given)
    fitting.other_seed()
    net = fitting.model(seed=77)
    assert fitting.fit(net, directory, **given).history == history
    fitting.assert_equal(weights, net)


def test_a_stop_file_that_is_there_already(tmp_path):
    """Nothing is trained; the next attempt finds no such file."""
    (tmp_path / "stop").touch()
    end = preempted(tmp_path)
    assert (end.reason, end.saved, end.progress.step) == ("stop file", False, 0)
    assert fitting.steps(tmp_path) == []
    assert not (tmp_path / "stop").exists()
    weights, history = expected()
    net = fitting.model()
    assert fitting.fit(net, tmp_path).history == history
    fitting.assert_equal(weights, net)


def test_a_stop_file_in_mid_epoch(tmp_path, looks):
    def ask():
        (tmp_path / "stop").touch()
        looks()

    end = preempted(tmp_path, callbacks=[Do(ask)])
    assert (end.reason, end.saved, end.progress) == ("stop file", True, (9, 1, 3))
    assert fitting.steps(tmp_path)[-1] == 9
    assert not (tmp_path / "stop").exists()
    assert_goes_on(tmp_path, callbacks=[Do(list)])


@pytest.mark.waits
def test_a_save_file_in_mid_epoch(tmp_path, looks):
    def ask():
        (tmp_path / "save").touch()
        looks()

    fitting.fit(fitting.model(), tmp_path, callbacks=[Do(ask)], keep=9)
    assert fitting.steps(tmp_path) == [6, 9, 12, 18]


def test_it_says_what_happened(tmp_path, capsys):
    preempted(tmp_path, callbacks=[Do(lambda: send(TERM))], verbose=2)
    out = capsys.readouterr().out
    assert "Stopped at step 9 (epoch 2, batch 3) by SIGTERM: saved." in out
    (event,) = (e for e in read_events(tmp_path) if e["event"] == "preempted")
    assert (event["step"], event["reason"], event["saved"]) == (9, "SIGTERM", True)
    assert heartbeat.read(tmp_path / "heartbeat").phase == "ended"


@pytest.mark.waits
def test_where_no_save_fits_the_last_checkpoint_stands(tmp_path, capsys):
    """One second is what stopping itself may take."""
    how = Preemption(grace_period=0.5)
    net = [Do(lambda: send(TERM))]
    end = preempted(tmp_path, callbacks=net, preemption=how, save_freq=4, verbose=2)
    assert not end.saved
    assert fitting.steps(tmp_path)[-1] == 8
    assert (
        "not saved. Run it again, and it resumes at step 8" in capsys.readouterr().out
    )
    assert_goes_on(tmp_path, callbacks=[Do(list)])


def test_where_the_save_fails_it_does_not_say_that_it_is_saved(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise resilient.CheckpointWriteError("the disk is full")

    def ask():
        monkeypatch.setattr("resilient.storage.store.Store.commit", fail)
        send(TERM)

    with pytest.raises(resilient.CheckpointWriteError):
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(ask)])
    end = preempted(
        tmp_path / "other", callbacks=[Do(ask)], on_save_error="warn", save_freq=100
    )
    assert not end.saved


def test_an_earlier_handler_runs_after_the_save(tmp_path, handler):
    seen = []
    signal.signal(TERM, lambda *_: seen.append(fitting.steps(tmp_path)))
    preempted(tmp_path, callbacks=[Do(lambda: send(TERM))])
    assert [saved[-1] for saved in seen] == [9]


def test_an_earlier_handler_may_end_the_process_its_own_way(tmp_path, handler):
    def leave(number, frame):
        raise SystemExit(7)

    signal.signal(TERM, leave)
    with pytest.raises(SystemExit) as end:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(lambda: send(TERM))])
    assert end.value.code == 7


def test_no_preemption_leaves_signals_alone(tmp_path, handler):
    callbacks = [Do(lambda: send(TERM))]
    fitting.fit(fitting.model(), tmp_path, callbacks=callbacks, preemption=None)
    assert handler == [TERM]


def test_a_request_while_fit_is_about_to_return_is_not_lost(tmp_path, monkeypatch):
    """The run is over and saved; the process has to end all the same."""
    join = threading.Thread.join

    def late(thread, timeout=None):
        if thread.name == "resilient-watch":
            send(TERM)
        join(thread, timeout)

    monkeypatch.setattr("threading.Thread.join", late)
    end = preempted(tmp_path)
    assert (end.saved, end.progress.step) == (True, 18)


def test_it_interrupts_once(tmp_path, looks):
    """What the user does in ``finally`` is not cut off."""
    done = []

    def wait():
        send(TERM)
        try:
            threading.Event().wait(100)
        finally:
            looks()
            looks()
            done.append(True)

    how = Preemption(grace_period=1.2)
    end = preempted(tmp_path, callbacks=[Do(wait)], preemption=how, save_freq=4)
    assert not end.saved
    assert done == [True]


def test_the_last_save_is_not_interrupted(tmp_path, looks, monkeypatch):
    """However long it takes: the lock is held until it is committed."""
    import os as system

    real = system.fsync
    asked = threading.Event()

    def fsync(descriptor):
        if asked.is_set():
            looks()
        real(descriptor)

    def ask():
        asked.set()
        send(TERM)

    monkeypatch.setattr("os.fsync", fsync)
    how = Preemption(grace_period=1.05)
    callbacks = [
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: epoch == 2 and ask()
        )
    ]
    end = preempted(tmp_path, callbacks=callbacks, preemption=how, save_freq=100)
    assert end.saved
    assert fitting.steps(tmp_path) == [18]


def test_a_fit_inside_of_another_is_not_taken_for_it(tmp_path):
    def inside():
        callbacks = [Do(lambda: send(TERM))]
        fitting.fit(fitting.model(), tmp_path / "inner", callbacks=callbacks)

    preempted(tmp_path / "outer", callbacks=[Do(inside)], save_freq=4)
    (event,) = (e for e in read_events(tmp_path / "outer") if e["event"] == "preempted")
    assert (event["step"], event["saved"]) == (8, False)


def test_what_the_user_raises_wins(tmp_path):
    def ask():
        send(TERM)
        raise fitting.Interrupted

    with pytest.raises(fitting.Interrupted):
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(ask)])


class Slow(keras.utils.PyDataset):
    """Waits for data at one batch, as long as nobody interrupts it."""

    def __init__(self, at=None):
        super().__init__()
        self.x, self.y = fitting.data()
        self._at, self.over = at, threading.Event()

    def __len__(self):
        return 5

    def __getitem__(self, index):
        if index == self._at:
            send(TERM)
            self.over.wait(200)
        return self.x[4 * index : 4 * index + 4], self.y[4 * index : 4 * index + 4]

    def __getstate__(self):
        return {}


def slow(at=None):
    given = fitting.arguments(x=Slow(at), shuffle=False)
    del given["y"], given["batch_size"]
    return given


@pytest.mark.everywhere
def test_waiting_for_data_is_interrupted(tmp_path, looks):
    """Before the grace period is over."""
    dataset = slow(at=2)
    with pytest.raises(resilient.Preempted) as end:
        resilient.fit(
            fitting.model(),
            checkpoint_dir=tmp_path,
            save_freq=1,
            preemption=Preemption(grace_period=1.5),
            **dataset,
        )
    assert not end.value.saved
    dataset["x"].over.set()  # TensorFlow has it wait in a thread that it waits for
    plain = fitting.model()
    plain.fit(**slow())
    fitting.other_seed()
    net = fitting.model(seed=77)
    resilient.fit(net, checkpoint_dir=tmp_path, **slow())
    fitting.assert_equal(plain, net)


def test_a_replay_is_interrupted(tmp_path):
    """Getting back to a position may take hours."""

    def batches(at=None):
        x, y = fitting.data()
        for index in range(18):
            if index == at:
                send(TERM)
            first = 4 * (index % 5)
            yield x[first : first + 4], y[first : first + 4]

    def fit(net, at=None):
        given = fitting.arguments(x=batches(at), steps_per_epoch=6, shuffle=False)
        del given["y"], given["batch_size"]
        return resilient.fit(net, checkpoint_dir=tmp_path, save_freq=4, **given)

    with pytest.raises(resilient.Preempted):
        fit(fitting.model(), at=10)
    newest = fitting.steps(tmp_path)[-1]
    assert newest >= 9
    with pytest.raises(resilient.Preempted) as end:
        fit(fitting.model(), at=5)
    assert not end.value.saved
    assert fitting.steps(tmp_path)[-1] == newest
    trained = [e for e in read_events(tmp_path) if e["event"] == "training"]
    assert len(trained) == 1
    assert len(fit(fitting.model()).history["loss"]) == 3


def test_validation_is_left_where_it_would_take_too_long(tmp_path, looks):
    """No snapshot is taken within it, so the last checkpoint stands."""

    class Ask(keras.callbacks.Callback):
        begun = 0.0

        def on_test_batch_end(self, batch, logs=None):
            if not self.begun:
                send(TERM)
            self.begun += 1

    x, y = fitting.data()
    many = (np.tile(x, (400, 1)), np.tile(y, (400, 1)))
    ask = Ask()
    how = Preemption(grace_period=1.001)
    end = preempted(
        tmp_path, callbacks=[ask], validation_data=many, save_freq=4, preemption=how
    )
    assert not end.saved
    assert 1 <= ask.begun < 2200
    assert fitting.steps(tmp_path) == [4]


def test_events_and_heartbeat_are_plain_json(tmp_path):
    preempted(tmp_path, callbacks=[Do(lambda: send(TERM))])
    beat = json.loads((tmp_path / "heartbeat").read_bytes())
    assert set(beat) == {field.name for field in dataclasses.fields(heartbeat.Beat)}
    fitting.fit(fitting.model(), tmp_path, callbacks=[Do(list)])
    first, second = (e for e in read_events(tmp_path) if e["event"] == "started")
    assert first["previous"] is None
    assert second["previous"] == beat
