"""Provider ``kubernetes``: the broker as a StatefulSet, workers as a Deployment, and the join ticket as a Secret.

Everything goes through ``kubectl``, which reads the user's configuration. Manifests are JSON on its standard input, so that a
ticket is in no file of this machine and in no command line.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from farflung.errors import FarflungError
from farflung.job.section import Section
from farflung.launchers.base import BROKER, Process, ProcessState
from farflung.launchers.cluster_spec import ClusterSpec, settings_of
from farflung.launchers.containers import HOME, MEMBER_PORT, PORT, USER, broker_words, worker_words
from farflung.launchers.member_options import Label
from farflung.launchers.programs import Program, run_one

__all__ = ["KubernetesProvider", "KubernetesSettings"]

_WORKER = "worker"
_PLACE = "Kubernetes"
_PHASES = {"Pending": ProcessState.WAITING, "Running": ProcessState.RUNNING}
#: Reasons of a container that waits, and will not start by itself.
_BROKEN = ("CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")


class KubernetesSettings(Section):
    """Pods of a Kubernetes cluster that `kubectl` reaches."""

    #: The image with farflung, which the nodes can pull.
    image: str
    #: The namespace. It must exist.
    namespace: Label = "default"
    #: The context of `kubectl`. Without a value: the current one.
    context: str = ""
    #: The command that reaches the cluster.
    command: str = "kubectl"
    #: GPUs of each worker (`nvidia.com/gpu`).
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    #: CPU request of each worker, as a quantity of Kubernetes.
    cpu: str = "2"
    #: Memory request and limit of each worker, as a quantity of Kubernetes.
    memory: str = "8Gi"
    #: The size of the broker's volume, as a quantity of Kubernetes.
    storage: str = "100Gi"
    #: The storage class of the broker's volume. Without a value: the default of the cluster.
    storage_class: str = ""
    #: Labels of the nodes for workers, such as `{ "cloud.google.com/gke-spot" = "true" }`.
    node_labels: dict[str, str] = {}
    #: Taints of nodes that workers tolerate, by key: any value and effect.
    tolerations: tuple[str, ...] = ()
    #: Seconds that a worker has to finish its step when its pod is stopped or evicted.
    stop_seconds: Annotated[int, Field(ge=1, le=3600)] = 60


class KubernetesProvider:
    """The provider."""

    settings: ClassVar[type[Section]] = KubernetesSettings

    def __init__(self, cluster: ClusterSpec, folder: Path) -> None:
        del folder  # Kubernetes stores everything
        self._cluster = cluster
        self._settings = settings_of(cluster, KubernetesSettings)

    def check(self, former: ClusterSpec | None) -> None:
        """See that the cluster answers, and has the namespace."""
        del former
        run_one(self._program("get", "namespace", self._settings.namespace, "--output=name"))

    def places(self) -> None:
        """Return ``None``: further pods wait for nodes."""

    def outside(self) -> str:
        """Return the address behind ``kubectl port-forward service/NAME-broker 7070 7071``."""
        return f"127.0.0.1:{PORT}"

    def start_broker(self) -> None:
        """Apply the service and the StatefulSet, and wait for the pod."""
        self._apply(self.broker_manifests())
        run_one(self._program("rollout", "status", f"statefulset/{self._name(BROKER)}", "--timeout=300s"))

    def ask(self, words: Sequence[str]) -> str:
        """Run a command in the broker's pod."""
        return run_one(self._program("exec", f"statefulset/{self._name(BROKER)}", "--", "farflung", *words))

    def scale(self, count: int, ticket: Callable[[], str]) -> None:
        """Apply the Secret and the Deployment. A pod that is stopped drains its worker."""
        self._apply([self.secret(ticket()), self.worker_manifest(count)])

    def stop(self, *, force: bool) -> Sequence[str]:
        """Delete everything but the volume of the broker, workers first."""
        del force
        label = f"--selector={self._selector}"
        run_one(self._program("delete", "deployment", label, "--cascade=foreground", "--wait=true"))
        run_one(self._program("delete", "statefulset,service,secret", label, "--wait=true"))
        return []

    def processes(self) -> Sequence[Process]:
        """Return the pods."""
        found = []
        for pod in json.loads(run_one(self._program("get", "pods", f"--selector={self._selector}", "--output=json")))["items"]:
            name = str(pod["metadata"]["name"])
            own = BROKER if pod["metadata"]["labels"]["app.kubernetes.io/component"] == BROKER else name
            found.append(Process(name=own, place=pod["spec"].get("nodeName", _PLACE), state=_state(pod["status"])))
        return found

    def log(self, name: str, lines: int, *, follow: bool) -> Program:
        """Read the log of a pod."""
        pod = f"{self._name(BROKER)}-0" if name == BROKER else name
        return self._program("logs", pod, f"--tail={lines}", *(["--follow"] if follow else []))

    def broker_manifests(self) -> list[dict[str, Any]]:
        """Return the service and the StatefulSet of the broker."""
        name, labels = self._name(BROKER), self._labels(BROKER)
        ports = [{"name": "broker", "port": PORT}, {"name": "members", "port": MEMBER_PORT}]
        alive = {"tcpSocket": {"port": PORT}, "periodSeconds": 10}
        container = {
            **self._container(broker_words(self._cluster, f"{name}.{self._settings.namespace}.svc")),
            "env": _variables(self._cluster.broker.environment),
            "ports": [{"name": one["name"], "containerPort": one["port"]} for one in ports],
            "volumeMounts": [{"name": "home", "mountPath": HOME}],
            "startupProbe": {**alive, "failureThreshold": 30},
            "readinessProbe": alive,
            "livenessProbe": {**alive, "failureThreshold": 6},
        }
        chosen = {"storageClassName": self._settings.storage_class} if self._settings.storage_class else {}
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": self._settings.storage}}, **chosen}
        pod = {"securityContext": _SECURITY, "automountServiceAccountToken": False, "containers": [container]}
        stateful = {
            "serviceName": name,
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "volumeClaimTemplates": [{"metadata": {"name": "home"}, "spec": claim}],
        }
        service = {"selector": labels, "ports": ports}
        return [self._object("v1", "Service", BROKER, service), self._object("apps/v1", "StatefulSet", BROKER, stateful)]

    def worker_manifest(self, count: int) -> dict[str, Any]:
        """Return the Deployment of ``count`` workers."""
        settings, labels = self._settings, self._labels(_WORKER)
        gpus = {"nvidia.com/gpu": str(settings.gpus)} if settings.gpus else {}
        reference = {"name": self._name(_WORKER), "key": "ticket"}
        variables = [
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "FARFLUNG_TICKET", "valueFrom": {"secretKeyRef": reference}},
            *_variables(self._cluster.workers.environment),
        ]
        container = {
            **self._container(worker_words(self._cluster, "$(POD)")),
            "env": variables,
            "resources": {
                "requests": {"cpu": settings.cpu, "memory": settings.memory, **gpus},
                "limits": {"memory": settings.memory, **gpus},
            },
            "volumeMounts": [{"name": "home", "mountPath": HOME}],
            # the worker runs as long as its process does: an exec probe would start Python on the node again and again
            "livenessProbe": {"exec": {"command": ["/bin/sh", "-c", "kill -0 1"]}, "periodSeconds": 30},
        }
        pod = {
            "securityContext": _SECURITY,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": settings.stop_seconds,
            "nodeSelector": settings.node_labels,
            "tolerations": [{"key": key, "operator": "Exists"} for key in settings.tolerations],
            "containers": [container],
            "volumes": [{"name": "home", "emptyDir": {}}],
        }
        deployment = {
            "replicas": count,
            "selector": {"matchLabels": labels},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        return self._object("apps/v1", "Deployment", _WORKER, deployment)

    def secret(self, ticket: str) -> dict[str, Any]:
        """Return the Secret with the join ticket."""
        made = self._object("v1", "Secret", _WORKER, None)
        return {**made, "type": "Opaque", "stringData": {"ticket": ticket}}

    def _container(self, words: Sequence[str]) -> dict[str, Any]:
        security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        return {"name": "farflung", "image": self._settings.image, "args": list(words), "securityContext": security}

    def _object(self, version: str, kind: str, part: str, spec: dict[str, Any] | None) -> dict[str, Any]:
        metadata = {"name": self._name(part), "namespace": self._settings.namespace, "labels": self._labels(part)}
        made: dict[str, Any] = {"apiVersion": version, "kind": kind, "metadata": metadata}
        return made if spec is None else {**made, "spec": spec}

    def _name(self, part: str) -> str:
        return self._cluster.worker_name(part)

    def _labels(self, part: str) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "farflung",
            "app.kubernetes.io/instance": self._cluster.name,
            "app.kubernetes.io/component": part,
        }

    @property
    def _selector(self) -> str:
        return f"app.kubernetes.io/name=farflung,app.kubernetes.io/instance={self._cluster.name}"

    def _apply(self, manifests: Sequence[dict[str, Any]]) -> None:
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        # with server-side apply, no annotation repeats the Secret
        run_one(self._program("apply", "--server-side", "--field-manager=farflung", "--filename=-", given=given))

    def _program(self, *words: str, given: str = "") -> Program:
        context = [f"--context={self._settings.context}"] if self._settings.context else []
        head = [*shlex.split(self._settings.command), *context, f"--namespace={self._settings.namespace}"]
        return Program(words=[*head, *words], place=_PLACE, given=given)


_SECURITY = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}


def _variables(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _state(status: dict[str, Any]) -> ProcessState:
    """Return the state of a pod from its phase, and from why its containers wait."""
    waiting = [one.get("state", {}).get("waiting", {}).get("reason") for one in status.get("containerStatuses", ())]
    if any(reason in _BROKEN for reason in waiting):
        return ProcessState.ENDED
    if status["phase"] not in _PHASES and status["phase"] not in ("Succeeded", "Failed"):
        raise FarflungError(f"Kubernetes: a pod has the unknown phase {status['phase']!r}: update farflung")
    return _PHASES.get(status["phase"], ProcessState.ENDED)
