"""Which build of PyTorch the Makefile installs: decided by the GPU, the index and the user; no test downloads a package."""

from __future__ import annotations

import http.server
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from urllib.parse import quote

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import torch_index  # noqa: E402

VERSION = "9.8.7"
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
WHEEL = f"torch-{VERSION}+cpu-{TAG}-{TAG}-manylinux_2_28_{platform.machine()}.whl"
OTHERS = [
    f"torch-{VERSION}+cpu-cp27-cp27-manylinux_2_28_{platform.machine()}.whl",
    f"torch-{VERSION}+cpu-{TAG}-{TAG}-manylinux_2_28_mips.whl",
    f"torch-{VERSION}0+cpu-{TAG}-{TAG}-manylinux_2_28_{platform.machine()}.whl",
]


class Index:
    """A package index on loopback that lists the given wheels of torch and records what it was asked for."""

    def __init__(self, names: list[str]) -> None:
        page = "".join(f'<a href="/whl/{quote(name)}">{quote(name, safe="+")}</a><br/>\n' for name in names).encode()
        asked = self.asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/whl/cpu"

    def __enter__(self) -> Index:
        threading.Thread(target=self.server.serve_forever, name="index", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Run the Makefile's rule for PyTorch with a pip that only records how it was called; returns calls and output."""
    for name in ("TORCH_INDEX", "http_proxy", "HTTP_PROXY", "MAKEFLAGS", "MAKELEVEL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    pip = tmp_path / "pip"

    def run(*settings: str, broken: str = "no such argument") -> tuple[list[str], str]:
        pip.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in *"{broken}"*) exit 1;; esac\n')
        pip.chmod(0o755)
        command = ["make", "-s", f"VENV={tmp_path}", f"PIP={pip}", f"TORCH_VERSION={VERSION}", *settings, f"{tmp_path}/.torch"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return (tmp_path / "calls").read_text().splitlines(), done.stderr

    return run


DEFAULT = f"install torch=={VERSION}"

needs_make = pytest.mark.skipif(shutil.which("make") is None or sys.platform != "linux", reason="the Makefile's rules for Linux")


@needs_make
def test_without_a_gpu_the_cpu_build_is_taken_where_its_index_answers(install):
    with Index([*OTHERS, WHEEL]) as index:
        calls, output = install("NVIDIA=", f"TORCH_CPU_INDEX={index.url}")
    assert calls == [f"install --index-url {index.url} torch=={VERSION}"]
    assert index.asked == ["/whl/cpu/torch/"]
    assert output == f"No NVIDIA GPU found: taking PyTorch's CPU build from {index.url}\n"


@needs_make
def test_without_an_index_the_default_build_is_taken(install):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/whl/cpu"
        calls, output = install("NVIDIA=", f"TORCH_CPU_INDEX={url}")
    assert calls == [DEFAULT]
    assert output.startswith(f"No NVIDIA GPU found, but {url} is not usable (<urlopen error [Errno 111]")
    assert output.endswith("taking PyTorch's default build\n")
    assert output.count("\n") == 1


@needs_make
def test_an_index_without_a_fitting_wheel_is_not_used(install):
    with Index(OTHERS) as index:
        calls, output = install("NVIDIA=", f"TORCH_CPU_INDEX={index.url}")
    assert calls == [DEFAULT]
    assert f"no wheel of torch {VERSION} for Python {platform.python_version()}" in output


@needs_make
def test_a_failing_download_of_the_cpu_build_falls_back_to_the_default_build(install):
    with Index([WHEEL]) as index:
        calls, _ = install("NVIDIA=", f"TORCH_CPU_INDEX={index.url}", broken="--index-url")
    assert calls == [f"install --index-url {index.url} torch=={VERSION}", DEFAULT]


@needs_make
@pytest.mark.parametrize(
    ("setting", "call"),
    [
        ("NVIDIA=/dev/nvidia0", DEFAULT),
        ("TORCH_INDEX=https://example.invalid/simple", f"install --index-url https://example.invalid/simple torch=={VERSION}"),
        ("TORCH_INDEX=", DEFAULT),
    ],
    ids=["with a GPU", "with an explicit index", "with an explicitly empty index"],
)
def test_the_index_of_cpu_builds_is_not_asked(install, setting, call):
    with Index([WHEEL]) as index:
        settings = [setting] if setting.startswith("NVIDIA") else [setting, "NVIDIA="]
        calls, _ = install(*settings, f"TORCH_CPU_INDEX={index.url}")
    assert calls == [call]
    assert index.asked == []


def test_an_index_that_never_answers_is_not_waited_for(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(torch_index, "PATIENCE", 0.01)
    monkeypatch.setattr(torch_index, "read", lambda url: released.wait() and "")
    index, line = torch_index.choose("https://example.invalid", VERSION)
    released.set()
    assert index == ""
    assert "is not usable (no answer within 0.01 s): taking PyTorch's default build" in line


def test_an_address_that_is_no_web_address_is_not_used():
    index, line = torch_index.choose("file:///tmp", VERSION)
    assert index == ""
    assert "its address does not begin with https://" in line


def test_the_page_lists_each_extra_once() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "installation.md").read_text()
    table = page.partition("## Add an extra")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`([\w-]+)`", "".join(first))) == sorted(extras)


#: Extras that cannot be installed in the versions of ``constraints.txt``.
OTHER_VERSIONS = ("mlflow", "trackio", "s3-server")


def test_no_page_installs_an_extra_in_versions_that_it_refuses() -> None:
    pages = {path: path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}
    commands = [
        (path.name, extras) for path, text in pages.items() for extras in re.findall(r"-c constraints.txt '\.\[(.*?)\]", text)
    ]
    assert len(commands) > 5
    assert [found for found in commands if set(found[1].split(",")) & set(OTHER_VERSIONS)] == []
    (line,) = re.findall(r"^Leave `-c constraints.txt` out for (.*):", pages[ROOT / "docs" / "installation.md"], re.MULTILINE)
    assert tuple(re.findall(r"`([\w-]+)`", line)) == OTHER_VERSIONS


def test_what_developers_need_installs_on_the_newest_python() -> None:
    """atheris has no wheel for Python 3.14."""
    fuzz = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["fuzz"]
    (atheris,) = [Requirement(line) for line in fuzz if line.startswith("atheris")]
    assert atheris.marker is not None
    wanted = [v for v in ("3.11", "3.13", "3.14") if atheris.marker.evaluate({"python_version": v, "platform_system": "Linux"})]
    assert wanted == ["3.11", "3.13"]
