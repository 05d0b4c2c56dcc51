"""Provider compose: the file, checked by a parser of the compose specification, and the commands, by a stand-in for Docker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from farflung.errors import FarflungError
from farflung.launchers.base import Process, ProcessState
from farflung.launchers.cluster_file import make_cluster
from farflung.launchers.cluster_spec import ClusterSpec
from farflung.launchers.compose import ComposeProvider
from farflung.launchers.containers import HOME, MEMBER_PORT, PORT, USER

ROOT = Path(__file__).resolve().parents[2]
#: A Python with the package compose-spec.
PARSER = os.environ.get("FARFLUNG_COMPOSE_PYTHON") or (sys.executable if find_spec("compose_spec") else "")

#: Writes its words and its secret to a file, and answers like ``docker compose``.
DOCKER = """#!{python}
import json, os, sys
with open("{log}", "a") as log:
    log.write(json.dumps([sys.argv[1:], os.environ["FARFLUNG_JOIN_TICKET"]]) + "\\n")
if "ps" in sys.argv:
    for name, service, state in [("c-broker-1", "broker", "running"), ("c-worker-1", "worker", "exited")]:
        print(json.dumps({{"Name": name, "Service": service, "State": state}}))
if "exec" in sys.argv:
    sys.exit("no broker runs")
"""


def cluster(**document: object) -> ClusterSpec:
    return make_cluster({"name": "lab", "provider": "compose", "workers": {"count": 2, "memory": "1 GB"}, **document})


@pytest.mark.launchers
@pytest.mark.skipif(not PARSER, reason="needs compose-spec (pip install compose-spec, or FARFLUNG_COMPOSE_PYTHON)")
@pytest.mark.parametrize("compose", [{}, {"gpus": 2}])
def test_the_file_keeps_to_the_specification(tmp_path: Path, compose: dict[str, int]) -> None:
    document = ComposeProvider(cluster(compose=compose), tmp_path).document()
    assert parsed(document) == (0, "['broker', 'worker']\n", "")
    document["services"]["worker"]["no_such_key"] = 1
    assert "no_such_key" in parsed(document)[2]


def parsed(document: dict[str, Any]) -> tuple[int, str, str]:
    """What the parser says about a compose file."""
    code = "import sys; from compose_spec import PyCompose as P; print(sorted(P.from_yaml(sys.stdin.read()).service_names()))"
    text = json.dumps(document)
    done = subprocess.run([PARSER, "-c", code], check=False, input=text, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_the_file_has_commands_ports_and_no_ticket(tmp_path: Path) -> None:
    document = ComposeProvider(cluster(broker={"no_web": True}, compose={"gpus": 1}), tmp_path).document()
    broker, worker = document["services"]["broker"], document["services"]["worker"]
    assert broker["command"] == [
        *("broker", "--listen", "0.0.0.0:7070", "--advertise", "broker", "--no-web", "--valid", "30 d", "--no-tickets"),
    ]
    assert broker["ports"] == ["127.0.0.1:7070:7070", "127.0.0.1:7071:7071"]
    script = "exec farflung join --name \"lab-$$(hostname)\" --memory '1 GB' @/run/secrets/ticket"
    assert worker["entrypoint"] == ["/bin/sh", "-c", script]
    assert worker["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 1
    assert document["secrets"] == {"ticket": {"environment": "FARFLUNG_JOIN_TICKET"}}


def test_commands_and_the_way_of_the_ticket(tmp_path: Path) -> None:
    docker, log = tmp_path / "docker", tmp_path / "log"
    docker.write_text(DOCKER.format(python=sys.executable, log=log))
    docker.chmod(0o755)
    found = ComposeProvider(cluster(compose={"command": f"{docker} compose"}), tmp_path / "lab")
    found.check(None)
    found.start_broker()
    found.scale(3, lambda: "farflung1-secret")
    with pytest.raises(FarflungError, match=r"Docker Compose: .*docker failed: no broker runs"):
        found.ask(["status", "--json"])
    broker = Process(name="broker", place="c-broker-1", state=ProcessState.RUNNING)
    assert list(found.processes()) == [broker, Process(name="c-worker-1", place="c-worker-1", state=ProcessState.ENDED)]
    assert found.log("broker", 5, follow=True).words == [str(docker), "logs", "--tail", "5", "--follow", "c-broker-1"]
    with pytest.raises(FarflungError, match="the cluster 'lab' has no process 'x': known are broker, c-worker-1"):
        found.log("x", 5, follow=False)
    found.stop(force=False)
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    head = ["compose", "--file", f"{tmp_path}/lab/compose.json"]
    assert all(words[:3] == head for words, _ in calls)
    kinds = [words[3] for words, _ in calls]
    assert kinds == ["config", "up", "up", "exec", "ps", "ps", "ps", "ps", "stop", "down"]
    assert calls[2] == [[*head, "up", "--detach", "--no-recreate", "--scale", "worker=3", "worker"], "farflung1-secret"]
    assert [secret for _, secret in calls if secret] == ["farflung1-secret"]
    assert "farflung1-" not in (tmp_path / "lab" / "compose.json").read_text()
    assert (tmp_path / "lab" / "compose.json").stat().st_mode & 0o077 == 0


def test_the_containerfile_agrees_with_the_provider() -> None:
    """Each file that it copies exists and is not ignored. Ports, user and folder are those of the provider."""
    text = (ROOT / "Containerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, flags=re.MULTILINE) for word in line.split()]
    for ignored in (".containerignore", "Containerfile.dockerignore"):
        kept = re.findall(r"^!(.*)$", (ROOT / ignored).read_text(), flags=re.MULTILINE)
        assert sorted(copied) == sorted(kept)
    assert all((ROOT / name).exists() for name in copied)
    assert f"EXPOSE {PORT} {MEMBER_PORT}" in text
    assert f"USER {USER}:{USER}" in text
    assert f"FARFLUNG_HOME={HOME} " in text
    assert f"--home-dir {HOME} " in text
    assert 'ENTRYPOINT ["farflung"]' in text
