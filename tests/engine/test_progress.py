"""Events reach every consumer, displays show what happened, and a broken display never ends a run."""

import io
import logging
import sys
import time
import types
from collections.abc import Callable

import pytest

from bigpca.engine.events import (
    CheckpointEvent,
    DelayedProgress,
    DoneEvent,
    Event,
    GroupEvent,
    LogProgress,
    NotebookProgress,
    PassEvent,
    PassTally,
    PlanEvent,
    RetryEvent,
    TerminalProgress,
    resolve_progress,
)
from bigpca.engine.planning import PassCost, Resources, SolveCost, format_seconds, plan_of

COST = PassCost(name="moments", bytes_read=8000)
RUN: list[Event] = [
    PlanEvent(plan_of([COST], SolveCost(), Resources(1, 1, 0, "test"), solver="covariance", reason="d is small")),
    PassEvent("moments", 1000, 8000, 4, groups_resumed=1),
    GroupEvent(250, 2000),
    RetryEvent("worker lost", 1),
    CheckpointEvent("run.ckpt", 2),
    GroupEvent(500, 4000),
    DoneEvent("moments", 2.0),
]


def broken(event: Event) -> None:
    raise OSError("the pipe is closed")


def test_a_failing_consumer_is_dropped_with_one_warning_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    emit = resolve_progress([broken, seen.append])
    with caplog.at_level(logging.WARNING, "bigpca"):
        for event in RUN:
            emit(event)
    assert seen == RUN
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ["progress consumer broken failed and was dropped: OSError: the pipe is closed"]


def test_an_interrupt_in_a_consumer_is_not_swallowed() -> None:
    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve_progress(interrupt)(RUN[0])


def test_none_and_false_show_nothing_and_a_reporter_stays_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for nothing in (None, False):
        emit = resolve_progress(nothing)
        for event in RUN:
            emit(event)
        assert resolve_progress(emit) is emit
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("wrong", [3, "bar", [print, 3]])
def test_what_is_no_consumer_is_rejected(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"progress is .* Pass progress=True for a bar, or a function"):
        resolve_progress(wrong)  # type: ignore[arg-type]


def test_the_log_has_plan_pass_retry_and_done_and_groups_at_most_every_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "bigpca"):
        for interval in (0.0, 1000.0):
            emit = LogProgress(interval)
            for event in RUN:
                emit(event)
    text = [record.getMessage() for record in caplog.records]
    assert len(text) == 7 + 5
    assert text[0] == 'solver="covariance" (d is small): 1 read, 7.8 KiB'
    assert text[1] == "moments: 1,000 rows, 7.8 KiB, 1 of 4 groups resumed"
    assert "rows/s" in text[2]
    assert [r.levelno for r in caplog.records if "retry 1: worker lost" in r.getMessage()] == [logging.WARNING] * 2
    assert text[-1] == "moments: done in 2.0 s"


def test_the_terminal_bar_shows_rates_resumed_groups_and_retries() -> None:
    file = io.StringIO()
    with TerminalProgress(file, force=True) as bar:
        for event in RUN:
            bar(event)
    shown = file.getvalue()
    for text in ("resumed: 1 of 4 groups of moments are done", "rows/s", "100%", "retry 1: worker lost"):
        assert text in shown


def test_the_bar_is_silent_where_the_output_is_no_terminal() -> None:
    file = io.StringIO()
    with TerminalProgress(file) as bar:
        for event in RUN:
            bar(event)
    assert file.getvalue() == ""


def test_a_reporter_takes_the_bar_off_when_the_run_raises() -> None:
    bar = TerminalProgress(io.StringIO(), force=True)

    def run() -> None:
        with resolve_progress(bar) as emit:
            emit(RUN[1])
            assert bar._bar is not None
            raise ValueError("broken run")

    with pytest.raises(ValueError, match="broken run"):
        run()
    assert bar._bar is None


def test_the_notebook_bar_updates_one_display_and_escapes_names(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    update: Callable[[str], None] = shown.append

    def display(html: str, display_id: bool) -> object:
        shown.append(html)
        return types.SimpleNamespace(update=update)

    fake = types.ModuleType("IPython.display")
    fake.display, fake.HTML = display, str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    bar = NotebookProgress(interval=0.0)
    for event in [PassEvent("<b>moments</b>", 1000, 8000, 4), *RUN[2:]]:
        bar(event)
    assert "&lt;b&gt;moments" in shown[0]
    assert 'value="0.2500"' in shown[1]
    assert "retry 1: worker lost" in shown[2]
    assert 'value="1.0000"' in shown[-1]


def test_true_is_a_notebook_bar_in_a_notebook_and_a_terminal_bar_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(resolve_progress(True)._consumers[0], TerminalProgress)
    shell = types.ModuleType("IPython")
    kernel = type("ZMQInteractiveShell", (), {})()
    shell.get_ipython = lambda: kernel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert isinstance(resolve_progress(True)._consumers[0], NotebookProgress)


def test_resumed_groups_count_as_done_but_not_as_speed() -> None:
    tally = PassTally()
    tally.add(PassEvent("moments", 1000, 8000, 4, groups_resumed=2))
    assert (tally.fraction, tally.rates, tally.seconds_left) == (0.5, (0.0, 0.0), None)
    tally.add(GroupEvent(250, 2000))
    assert tally.fraction == 0.75
    tally.started -= 1000  # seconds ago, beside which the two questions are asked at one time
    left = tally.seconds_left
    assert left is not None
    assert left == pytest.approx(1000 / tally.rates[0] * 0.25, rel=0.5)


def test_an_empty_pass_has_no_fraction_and_no_time_left() -> None:
    tally = PassTally()
    tally.add(PassEvent("moments", 0, 0, 0))
    assert (tally.fraction, tally.seconds_left) == (0.0, None)
    assert format_seconds(3600 * 26) == "26 h 00 min"


def test_a_step_that_is_done_again_is_numbered_where_people_read_it(caplog: pytest.LogCaptureFixture) -> None:
    file, log = io.StringIO(), LogProgress()
    with caplog.at_level(logging.INFO, "bigpca"), TerminalProgress(file, force=True) as bar:
        for name in ("sample", "product", "product"):
            for event in (PassEvent(name, 10, 80, 1), GroupEvent(10, 80), DoneEvent(name, 1.0)):
                log(event)
                bar(event)
    started = [record.getMessage().partition(":")[0] for record in caplog.records if "rows" in record.getMessage()]
    assert started == ["sample", "product", "product 2"]
    assert caplog.records[-1].getMessage() == "product 2: done in 1.0 s"
    assert "product 2" in file.getvalue()


def test_an_automatic_bar_appears_only_if_the_run_takes_longer_than_its_delay() -> None:
    for delay, expected in ((60.0, False), (0.0, True)):
        file = io.StringIO()
        delayed = DelayedProgress(TerminalProgress(file, force=True), delay)
        with resolve_progress(delayed) as report:
            for event in RUN[:3]:
                report(event)
            if expected:
                while not file.getvalue():
                    time.sleep(0.01)
            for event in RUN[3:]:
                report(event)
        assert ("moments" in file.getvalue()) is expected
    assert isinstance(resolve_progress("auto")._consumers[0], DelayedProgress)
