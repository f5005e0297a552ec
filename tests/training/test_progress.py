"""The progress display: plain lines in files, a bar on a terminal, nothing on stdout."""

import io
import os
import re
import select
import sys
import threading
import time

import pytest

import taskflow.working as working_module
from taskflow.training import TrainingProgress
from taskflow.working import Working, note

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def lines(total: int, **settings) -> list[str]:  # type: ignore[no-untyped-def]
    stream = io.StringIO()
    seconds = settings.pop("seconds", 0.5)
    with TrainingProgress(total, stream=stream, **settings) as progress:
        for _ in range(total):
            progress.step(2.0, 1000, seconds)
    assert not CONTROL.search(stream.getvalue())
    return stream.getvalue().splitlines()


def test_a_plain_line_says_it_all() -> None:
    assert lines(4)[1] == "step 2/4  loss 2.0000  perplexity 7.4  2,000 tokens/s  0:00:01 left"


def test_first_last_and_every_so_many() -> None:
    numbers = [int(line.split()[1].split("/")[0]) for line in lines(23, every=5)]
    assert numbers == [1, 5, 10, 15, 20, 23]
    assert 20 <= len(lines(1000, seconds=0.001)) <= 22


def test_slow_steps_are_not_left_in_silence() -> None:
    numbers = [int(line.split()[1].split("/")[0]) for line in lines(30, every=30, seconds=4.0)]
    assert numbers == [1, 5, 9, 13, 17, 21, 25, 29, 30]


def test_colour_settings_put_no_codes_into_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"):
        monkeypatch.setenv(name, "1")
    assert len(lines(3)) == 3


def test_losses_without_a_perplexity() -> None:
    stream = io.StringIO()
    with TrainingProgress(3, stream=stream) as progress:
        progress.step(float("nan"), 10, 0.1)
        progress.step(5000.0, 10, 0.1)
        progress.step(30.0, 10, 0.0)
    nan, huge, large = stream.getvalue().splitlines()
    assert "loss nan  perplexity ?" in nan
    assert "perplexity inf" in huge
    assert "perplexity 1.07e+13" in large and "100.0 tokens/s" in large


def test_a_step_too_short_for_the_clock() -> None:
    stream = io.StringIO()
    with TrainingProgress(2, stream=stream) as progress:
        progress.step(1.0, 10, 0.0)
    assert "? tokens/s  ? left" in stream.getvalue()


def test_quiet_counts_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(5, quiet=True) as progress:
        for _ in range(5):
            progress.step(1.0, 100, 0.1)
    assert progress.per_second == pytest.approx(1000) and progress.done == 5
    assert capfd.readouterr() == ("", "")


def test_stdout_stays_for_results(capfd: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(2) as progress:
        progress.step(1.0, 100, 0.1)
        print("result")
    out, err = capfd.readouterr()
    assert out == "result\n" and "step 1/2" in err


def test_a_step_beyond_the_total_is_no_error() -> None:
    stream = io.StringIO()
    with TrainingProgress(1, stream=stream) as progress:
        progress.step(1.0, 100, 0.1)
        progress.step(1.0, 100, 0.1)
    assert stream.getvalue().splitlines()[-1].endswith("0:00:00 left")


@pytest.mark.parametrize("arguments", [{"total": 0}, {"total": 5, "every": 0}])
def test_refuses_nonsense(arguments: dict) -> None:
    with pytest.raises(ValueError, match="at least 1 step"):
        TrainingProgress(**arguments)


def read_all(master: int) -> str:
    content = b""
    while select.select([master], [], [], 0.2)[0]:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        content += piece
    return content.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize("term, live", [("xterm-256color", True), ("dumb", False)])
@pytest.mark.parametrize("fails", [False, True])
def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch, term: str, live: bool, fails: bool) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.delenv("NO_COLOR", raising=False)
    master, slave = os.openpty()
    try:
        with os.fdopen(slave, "w") as terminal:
            try:
                with TrainingProgress(8, stream=terminal) as progress:
                    for _ in range(8):
                        progress.step(2.0, 1000, 0.5)
                    if fails:
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                assert fails
            terminal.flush()
            shown = read_all(master)
    finally:
        os.close(master)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "8/8" in plain and "loss 2.0000  perplexity 7.4  2,000 tokens/s" in plain
    assert ("\x1b[" in shown) == live
    if live:
        assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor must be shown again"
        assert "step 1/8" not in plain


# ---- what takes its time beside the steps ----------------------------------------------------------------------------
class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_work_says_what_it_is_on_a_terminal_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Working("validating", stream=stream):
        pass
    assert "validating" in stream.getvalue()
    bar = Terminal()
    with TrainingProgress(3, stream=bar) as progress:
        progress.step(1.0, 100, 0.1)
        with progress.doing("reading"):
            pass
    assert "reading" in bar.getvalue()


def test_work_says_what_it_is_elsewhere_if_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_module, "PATIENCE_SECONDS", 0.05)
    slow, quick, quiet = io.StringIO(), io.StringIO(), io.StringIO()
    with TrainingProgress(3, stream=slow) as progress, progress.doing("searching"):
        until = time.monotonic() + 60
        while not slow.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert slow.getvalue() == "searching ...\n"
    with Working("validating", quiet=True, stream=quiet):
        time.sleep(0.1)
    monkeypatch.setattr(working_module, "PATIENCE_SECONDS", 1000.0)  # longer than a busy machine takes for nothing
    before = set(threading.enumerate())
    with Working("validating", stream=quick):
        (waiting,) = set(threading.enumerate()) - before
    waiting.join(60)
    assert not waiting.is_alive(), "it would still say so later"
    assert quick.getvalue() == quiet.getvalue() == ""


def test_what_is_done_now_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the line changes, and nothing in it is taken for markup; elsewhere there is a line each, or none."""
    monkeypatch.setenv("TERM", "xterm")
    there, each, none, quiet = Terminal(), io.StringIO(), io.StringIO(), Terminal()
    with Working("starting", stream=there) as line:
        line.say("[red]phase 2[/]")
    assert "starting" in there.getvalue() and "[red]phase 2[/]" in there.getvalue()
    with Working("starting", stream=each, elsewhere="each") as line:
        line.say("phase 2")
        line.say(3)
    assert each.getvalue() == "phase 2\n3\n"
    monkeypatch.setattr(working_module, "PATIENCE_SECONDS", 0.01)
    with Working("starting", stream=none, elsewhere="nothing") as line:
        line.say("phase 2")
        time.sleep(0.1)
    with Working("starting", quiet=True, stream=quiet, elsewhere="each") as line:
        line.say("phase 2")
    assert none.getvalue() == quiet.getvalue() == ""


def test_what_happens_deep_below_is_noted_behind_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    note("nobody sees this")
    first, there, quiet, late = Terminal(), Terminal(), Terminal(), io.StringIO()
    with Working("searching", stream=first), Working("silent", quiet=True, stream=quiet):
        note("7 tasks measured")
    with Working("searching", stream=there) as line:
        note("7 tasks measured")
        line.say("annealing")
    assert "searching; 7 tasks measured" in first.getvalue() and "annealing; 7 tasks measured" in there.getvalue()
    shown = there.getvalue()
    note("too late")
    assert there.getvalue() == shown and quiet.getvalue() == ""
    monkeypatch.setattr(working_module, "PATIENCE_SECONDS", 0.05)
    with Working("searching", stream=late):
        note("8 tasks measured")
        until = time.monotonic() + 60
        while not late.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert late.getvalue() == "searching; 8 tasks measured ...\n"
