"""Notices of clouds that a spot machine ends soon, from the metadata service of the machine.

| cloud | request | notice |
| --- | --- | --- |
| ``aws`` | ``/latest/meta-data/spot/instance-action`` | an answer (404: there is none), two minutes before |
| ``gcp`` | ``/computeMetadata/v1/instance/preempted`` | ``TRUE``, 30 seconds before |
| ``azure`` | ``/metadata/scheduledevents`` | an event of the type ``Preempt``, 30 seconds before |

The variables ``AWS_EC2_METADATA_SERVICE_ENDPOINT`` and ``GCE_METADATA_HOST`` name another address of the service, as they do for
the clouds' own libraries.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from farflung.errors import InputError

__all__ = ["CLOUDS", "SpotNotices"]

#: Seconds between two requests, and seconds for an answer. The service is on the same host.
_PAUSE, _ANSWER_SECONDS = 3.0, 2.0
_LINK_LOCAL = "http://169.254.169.254"


def _answer(url: str, headers: Mapping[str, str], method: str = "GET") -> str:
    """Return what the service answers (empty: nothing, or it does not answer)."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310 - the address is a fixed one
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this machine's own service
    try:
        with opener.open(request, timeout=_ANSWER_SECONDS) as response:
            return str(response.read(1 << 16).decode("utf-8", "replace"))
    except (urllib.error.URLError, OSError):
        return ""


def _aws() -> bool:
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", _LINK_LOCAL).rstrip("/")
    token = _answer(f"{base}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    return bool(_answer(f"{base}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token}))


def _gcp() -> bool:
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    found = _answer(f"http://{host}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    return found.strip() == "TRUE"


def _azure() -> bool:
    found = _answer(f"{_LINK_LOCAL}/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    try:
        return any(event["EventType"] == "Preempt" for event in json.loads(found)["Events"])
    except (ValueError, KeyError, TypeError):
        return False


#: Cloud -> whether its metadata service has a notice.
CLOUDS: Mapping[str, Callable[[], bool]] = {"aws": _aws, "azure": _azure, "gcp": _gcp}


class SpotNotices:
    """Waits for the notice of ``cloud``, on the thread that calls ``watch``."""

    def __init__(self, cloud: str) -> None:
        """Check the name.

        Raises:
            InputError: it is unknown.
        """
        if cloud not in CLOUDS:
            raise InputError(f"unknown cloud {cloud!r}: --spot-notices takes {', '.join(CLOUDS)}")
        self._asks = CLOUDS[cloud]
        self._over = threading.Event()

    def watch(self, on_notice: Callable[[], object]) -> None:
        """Call ``on_notice`` at the first notice, and return; also return after ``stop``."""
        while not self._over.is_set():
            if self._asks():
                on_notice()
                return
            self._over.wait(_PAUSE)

    def stop(self) -> None:
        """Let ``watch`` return."""
        self._over.set()
