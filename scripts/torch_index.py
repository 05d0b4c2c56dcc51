"""Print the pip option that selects the index of PyTorch's CPU builds, if that index answers.

The Makefile calls this script on machines without an NVIDIA GPU. PyPI's Linux wheels of PyTorch bring CUDA, which takes
about 5 GB. ``python scripts/torch_index.py [INDEX [VERSION]]`` prints ``--index-url INDEX`` if INDEX lists a wheel of this
version for this interpreter and this kind of processor. Otherwise it prints nothing, and pip's default index serves the build.
"""

from __future__ import annotations

import html
import http.client
import os
import platform
import re
import sys
import threading
import urllib.parse
import urllib.request
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"

#: How long the whole probe may take, in seconds, name resolution included.
PATIENCE = 5.0


def pinned_version() -> str:
    """Return the version of torch that ``constraints.txt`` names."""
    text = (Path(__file__).resolve().parents[1] / "constraints.txt").read_text()
    return re.findall(r"^torch==(\S+)$", text, re.MULTILINE)[0]


def wheels(page: str, version: str) -> list[str]:
    """Return the file names on an index page that are wheels of torch ``version`` for this interpreter and processor."""
    names = [html.unescape(urllib.parse.unquote(name)) for name in re.findall(r">\s*(torch-[^<>\s]+\.whl)\s*<", page)]
    tag = f"-cp{sys.version_info[0]}{sys.version_info[1]}-"
    processor = platform.machine()
    return [name for name in names if re.match(rf"torch-{re.escape(version)}[+-]", name) and tag in name and processor in name]


def read(url: str) -> str:
    """Return the text of an ``http`` or ``https`` page. Raises ``OSError`` or ``ValueError`` if there is none."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("its address does not begin with https://")
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310 (the scheme is checked above)
        text: str = answer.read().decode("utf-8", "replace")
        return text


def probe(index: str, version: str) -> str | None:
    """Return why the index cannot serve PyTorch, or ``None`` if it can."""
    try:
        page = read(index.rstrip("/") + "/torch/")
    except (OSError, ValueError, http.client.HTTPException) as error:  # URLError, TLS errors and timeouts are OSErrors
        return str(error) or type(error).__name__
    if not wheels(page, version):
        return f"no wheel of torch {version} for Python {platform.python_version()} on {platform.machine()}"
    return None


def choose(index: str, version: str) -> tuple[str, str]:
    """Return pip's option for the index to use (empty: pip's default) and one line that says why."""
    found: list[str | None] = [f"no answer within {PATIENCE:g} s"]

    def run() -> None:
        found[0] = probe(index, version)

    # A thread, because a timeout of urlopen does not limit the time of name resolution.
    thread = threading.Thread(target=run, name="probe", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if found[0] is None:
        return f"--index-url {index}", f"No NVIDIA GPU found: taking PyTorch's CPU build from {index}"
    return "", f"No NVIDIA GPU found, but {index} is not usable ({found[0]}): taking PyTorch's default build"


if __name__ == "__main__":
    index = sys.argv[1] if len(sys.argv) > 1 else CPU_INDEX
    version = sys.argv[2] if len(sys.argv) > 2 else pinned_version()
    chosen, line = choose(index, version)
    print(line, file=sys.stderr, flush=True)
    print(chosen, flush=True)
    os._exit(0)  # the thread may hang in name resolution, and the interpreter's exit would wait for it
