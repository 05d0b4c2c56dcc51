"""Provider kubernetes: manifests against the published schemas, and the commands, by a stand-in for kubectl."""

from __future__ import annotations

import json
import os
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
from farflung.launchers.kubernetes import KubernetesProvider

#: A Python with the package kubernetes-validate.
VALIDATOR = os.environ.get("FARFLUNG_KUBERNETES_PYTHON") or (sys.executable if find_spec("kubernetes_validate") else "")

#: Writes its words and its input to a file, and has two pods.
KUBECTL = """#!{python}
import json, sys
with open("{log}", "a") as log:
    log.write(json.dumps([sys.argv[1:], sys.stdin.read() if "apply" in sys.argv else ""]) + "\\n")
def pod(name, component, status):
    metadata = {{"name": name, "labels": {{"app.kubernetes.io/component": component}}}}
    return {{"metadata": metadata, "spec": {{"nodeName": "node-1"}}, "status": status}}
if "pods" in sys.argv:
    stuck = {{"phase": "Pending", "containerStatuses": [{{"state": {{"waiting": {{"reason": "ImagePullBackOff"}}}}}}]}}
    pods = [pod("lab-broker-0", "broker", {{"phase": "Running"}}), pod("lab-worker-a", "worker", {{"phase": "Pending"}})]
    print(json.dumps({{"items": [*pods, pod("lab-worker-b", "worker", stuck)]}}))
if "exec" in sys.argv:
    sys.exit("no broker runs")
"""


def cluster(**kubernetes: object) -> ClusterSpec:
    document = {"name": "lab", "provider": "kubernetes", "workers": {"count": 2, "environment": {"A": "1"}}}
    return make_cluster({**document, "kubernetes": {"image": "farflung", **kubernetes}})


def manifests(found: KubernetesProvider) -> list[dict[str, Any]]:
    return [*found.broker_manifests(), found.secret("farflung1-secret"), found.worker_manifest(2)]


@pytest.mark.launchers
@pytest.mark.skipif(not VALIDATOR, reason="needs kubernetes-validate (pip install it, or FARFLUNG_KUBERNETES_PYTHON)")
@pytest.mark.parametrize(
    "kubernetes", [{}, {"gpus": 2, "storage_class": "fast", "node_labels": {"a": "b"}, "tolerations": ["nvidia.com/gpu"]}]
)
def test_manifests_keep_to_the_published_schemas(kubernetes: dict[str, Any]) -> None:
    for manifest in manifests(KubernetesProvider(cluster(**kubernetes), Path())):
        assert validated(manifest) == "valid\n"
    manifest["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    assert "imagePullPolice" in validated(manifest)


def validated(manifest: dict[str, Any]) -> str:
    """What the validator says, in strict mode, which refuses unknown fields."""
    code = "import json, sys, kubernetes_validate as k; k.validate(json.load(sys.stdin), k.latest_version(), strict=True)"
    done = subprocess.run(
        [VALIDATOR, "-c", f"{code}; print('valid')"],
        input=json.dumps(manifest),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_the_ticket_is_in_the_secret_only() -> None:
    found = manifests(KubernetesProvider(cluster(gpus=1), Path()))
    assert [one["kind"] for one in found if "farflung1-" in json.dumps(one)] == ["Secret"]
    worker = found[-1]["spec"]["template"]["spec"]
    container = worker["containers"][0]
    assert container["args"] == ["join", "--name", "$(POD)"]
    secret = {"secretKeyRef": {"name": "lab-worker", "key": "ticket"}}
    assert {"name": "FARFLUNG_TICKET", "valueFrom": secret} in container["env"]
    assert {"name": "A", "value": "1"} in container["env"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert worker["terminationGracePeriodSeconds"] == 60, "an eviction leaves time to drain"
    broker = found[1]["spec"]["template"]["spec"]["containers"][0]
    assert broker["args"][:5] == ["broker", "--listen", "0.0.0.0:7070", "--advertise", "lab-broker.default.svc"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(broker)


def test_commands_and_states(tmp_path: Path) -> None:
    kubectl, log = tmp_path / "kubectl", tmp_path / "log"
    kubectl.write_text(KUBECTL.format(python=sys.executable, log=log))
    kubectl.chmod(0o755)
    found = KubernetesProvider(cluster(command=str(kubectl), context="c"), tmp_path)
    found.check(None)
    found.start_broker()
    found.scale(3, lambda: "farflung1-secret")
    with pytest.raises(FarflungError, match=r"Kubernetes: .*kubectl failed: no broker runs"):
        found.ask(["status"])
    states = [("broker", ProcessState.RUNNING), ("lab-worker-a", ProcessState.WAITING), ("lab-worker-b", ProcessState.ENDED)]
    assert list(found.processes()) == [Process(name=name, place="node-1", state=state) for name, state in states]
    head = ["--context=c", "--namespace=default"]
    assert found.log("broker", 5, follow=True).words[1:] == [*head, "logs", "lab-broker-0", "--tail=5", "--follow"]
    found.stop(force=False)
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(words[:2] == head for words, _ in calls)
    assert [words[2] for words, _ in calls] == ["get", "apply", "rollout", "apply", "exec", "get", "delete", "delete"]
    assert "farflung1-" not in json.dumps([words for words, _ in calls])
    applied = json.loads(calls[3][1])["items"]
    assert [one["kind"] for one in applied] == ["Secret", "Deployment"]
    assert applied[1]["spec"]["replicas"] == 3
    assert "persistentvolumeclaim" not in json.dumps(calls).lower(), "the broker's volume stays"
