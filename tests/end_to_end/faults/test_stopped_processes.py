"""A real process that is stopped (SIGSTOP) is told to be silent, and slow when it is heard again; one that is killed is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farflung.units import Seconds
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, text_job
from tests.support.runs.watched_runs import watched

#: Longer than a broker's, so that a busy machine has time to wake a process that was stopped; silence is told after half of it.
LEASE = Seconds(12.0)
WORDS = ("worker a has been silent", "worker a responds again", "worker a is gone")


@pytest.mark.timeout(300)
def test_who_is_stopped_is_slow_and_who_is_killed_is_gone(home: Path) -> None:
    words = ["join", "-", "--name", "a", "--listen", "127.0.0.1:0", "--data", str(home)]
    with Loopback(home, 0) as cluster, (home / "a.log").open("wb") as log:
        words[1] = str(cluster.ticket("join"))
        environment = {**os.environ, "FARFLUNG_HOME": str(home / "home")}
        process = subprocess.Popen([sys.executable, "-m", "farflung", *words], stdout=log, stderr=log, env=environment)
        try:
            until(lambda: "a" in cluster.members(), 200)
            bundle, _ = cluster.submit(text_job(steps=1_000_000, checkpoint={"recover_every": 0.0}, workers=1))
            cluster.broker.sessions.leases.length = LEASE  # a worker that is killed needs none: its connection ends
            told, stopped = list[str](), False
            for frame in watched(cluster.client, bundle.run):
                text = str(frame.header.get("text", ""))
                told += [text] if any(word in text for word in WORDS) else []
                if frame.kind == "record" and not stopped:
                    process.send_signal(signal.SIGSTOP)
                    stopped = True
                elif text.startswith("worker a has been silent for "):
                    process.send_signal(signal.SIGCONT)
                elif text.startswith("worker a responds again after "):
                    process.kill()
                elif "worker a is gone" in text:
                    break
        finally:
            process.kill()
            process.wait()
    silent, heard, gone = told
    assert silent.endswith("it is slow or dead; the broker removes it after 12.00 s of silence"), silent
    assert heard.endswith(" of silence"), heard
    assert gone.startswith("lost: worker a is gone: "), gone
