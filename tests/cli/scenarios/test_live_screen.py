"""``farflung watch`` on a real pseudo-terminal: the live screen, Ctrl-C, another size, and where there is none."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from farflung.errors import FarflungError
from farflung.telemetry import injecting
from tests.support.commands.pseudo_terminal import Terminal
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, text_folder, text_job

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")

#: A name that tries to be markup, and to set the terminal's title.
NAME = "my [bold]job[/bold] \x1b]0;owned\x07"
SHOWN = "my [bold]job[/bold] \N{REPLACEMENT CHARACTER}]0;owned\N{REPLACEMENT CHARACTER}"

Watch = Callable[..., Terminal]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    place = tmp_path_factory.mktemp("screen")
    text_folder(place)
    with Loopback(place, 2) as found:
        yield found


def paced(name: str, facts: Mapping[str, int | str]) -> None:
    """Steps take a while, so that the run leaves the processor to whoever watches it."""
    if name == "worker.before_forward":
        time.sleep(0.05)


@pytest.fixture
def run(cluster: Loopback) -> Iterator[str]:
    """A run that trains until it is stopped."""
    with injecting(paced):
        bundle, folder = cluster.submit(text_job(name=NAME, steps=100_000))
        until((folder / "metrics.jsonl").is_file)
        yield bundle.run
        with suppress(FarflungError):  # a test may have stopped it
            cluster.client.stop(bundle.run, now=True)


@pytest.fixture
def watch(cluster: Loopback, tmp_path: Path) -> Iterator[Watch]:
    """Starts ``farflung watch RUN`` on a terminal."""
    started: list[Terminal] = []

    def start(run: str, *options: str, **settings: object) -> Terminal:
        ticket = str(cluster.ticket("owner"))
        found = Terminal(tmp_path, "watch", run, "--ticket", ticket, *options, **settings)  # type: ignore[arg-type]
        started.append(found)
        return found

    yield start
    for terminal in started:
        terminal.close()


def test_the_screen_shows_progress_loss_machines_links_and_events(cluster: Loopback, run: str, watch: Watch) -> None:
    terminal = watch(run)
    modes = terminal.modes
    terminal.until(r"step \d+/100000", drawn=True)
    assert terminal.frame[0].startswith(f"{run}  {SHOWN}   2 machines")
    assert any(line.startswith("loss ") and set(line.split()[-1]) & set("▁▂▃▄▅▆▇█") for line in terminal.frame)
    for title in ("machines", "links", "events"):
        assert title in terminal.frame
    assert any(line.split()[:1] == ["a"] for line in terminal.frame)
    assert "\x1b]0;" not in terminal.out, "nobody else sets the title"
    cluster.client.stop(run)
    assert terminal.ends() == 0
    assert not terminal.drawing
    assert terminal.out.rstrip().count("\x1b[?25l") == terminal.out.count("\x1b[?25h"), "the cursor is back"
    assert any(line.startswith("plan: ") for line in terminal.lines), "the events stay"
    assert terminal.lines[-1].startswith(f"{run}: stopped after ")
    assert terminal.modes == modes


@pytest.mark.slow
def test_another_size_is_used_at_once(run: str, watch: Watch) -> None:
    terminal = watch(run)
    terminal.until(r"step \d+/100000", drawn=True)
    assert len(terminal.frame) == 40
    terminal.resize(12, 50)
    while len(terminal.frame) != 12:
        assert terminal.read()
    assert max(map(len, terminal.frame)) <= 50
    assert "events" in terminal.frame, "what is small enough is shown"
    assert "machines" not in terminal.frame
    terminal.resize(30, 100)
    while len(terminal.frame) != 30:
        assert terminal.read()
    assert "machines" in terminal.frame


@pytest.mark.parametrize(("keys", "status"), [(b"\x03", 130), (b"", 143)])
def test_ctrl_c_and_sigterm_restore_the_terminal(run: str, watch: Watch, keys: bytes, status: int) -> None:
    terminal = watch(run)
    modes = terminal.modes
    terminal.until(r"step \d+/100000", drawn=True)
    if keys:
        terminal.press(keys)
    else:
        terminal.process.terminate()
    assert terminal.ends() == status
    assert not terminal.drawing
    assert terminal.out.rfind("\x1b[?25h") > terminal.out.rfind("\x1b[?25l"), "the cursor is back"
    assert terminal.modes == modes
    assert "Traceback" not in terminal.out
    if keys:
        assert terminal.lines[-1].startswith(f"farflung: {run} continues without you")


def test_ctrl_z_shows_the_shell_and_fg_the_run(run: str, watch: Watch) -> None:
    terminal = watch(run)
    terminal.until(r"step \d+/100000", drawn=True)
    terminal.press(b"\x1a")
    found = os.waitpid(terminal.process.pid, os.WUNTRACED)[1]
    assert os.WIFSTOPPED(found)
    while terminal.drawing:
        assert terminal.read()
    terminal.process.send_signal(18)  # SIGCONT, as fg sends it
    while not terminal.drawing:
        assert terminal.read()
    terminal.until(r"step \d+/100000", drawn=True)


def test_elsewhere_there_are_only_lines(cluster: Loopback, watch: Watch) -> None:
    run = cluster.run(text_job(steps=4)).run
    cases: list[tuple[tuple[str, ...], dict[str, str]]] = [
        (("--plain",), {}),
        ((), {"NO_COLOR": "1"}),
        ((), {"TERM": "dumb"}),
        ((), {"CI": "true"}),
        (("--json",), {}),
    ]
    terminals = [watch(run, *options, **variables) for options, variables in cases]
    for terminal, (options, _) in zip(terminals, cases, strict=True):
        assert terminal.ends() == 0
        assert "\x1b" not in terminal.out
        wanted = '"kind": "result"' if options == ("--json",) else f"{run}: finished after 4 steps"
        assert wanted in terminal.lines[-1]
