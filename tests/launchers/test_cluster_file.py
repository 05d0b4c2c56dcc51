"""Cluster files: what is read, and the line for whatever is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farflung.errors import InputError
from farflung.launchers.cluster_file import load_cluster
from farflung.launchers.cluster_spec import ClusterSpec, settings_of
from farflung.launchers.ssh import SshSettings

HOST = '[[ssh.hosts]]\naddress = "a"\n'


def load(place: Path, text: str) -> ClusterSpec:
    path = place / "lab.toml"
    path.write_text(text)
    return load_cluster(path)


def test_the_file_gives_the_name_and_each_key(tmp_path: Path) -> None:
    text = '[broker]\nadvertise = "b.example"\n[workers]\nmemory = "8 GB"\nunreliable = true\n[workers.environment]\nA = "1"\n'
    cluster = load(tmp_path, text + HOST)
    assert (cluster.name, cluster.provider, cluster.workers.environment) == ("lab", "ssh", {"A": "1"})
    assert cluster.broker.words() == ["--advertise", "b.example"]
    assert cluster.workers.words() == ["--memory", "8 GB", "--unreliable"]
    assert settings_of(cluster, SshSettings).hosts[0].label == "a"


@pytest.mark.parametrize(("file", "name"), [("My_Lab.toml", "my-lab"), ("--.toml", "cluster"), (f"{'a' * 40}.toml", "a" * 30)])
def test_each_file_name_gives_a_name(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_text(HOST)
    assert load_cluster(tmp_path / file).name == name


WRONG = {
    'provider = "shs"\n': "unknown provider 'shs': did you mean 'ssh'? known are ",
    "provider = 3\n": "provider = 3: must be a text in quotes",
    'name = "A b"\n' + HOST: "name = 'A b': must be 1 to 30 small letters, digits or '-', with no '-' at the ends",
    '[workers]\ncount = "3"\n' + HOST: "workers.count = '3': must be a whole number",
    '[workers]\ndevise = "cpu"\n' + HOST: "unknown key workers.devise: did you mean 'device'",
    '[workers]\nmemory = "8 GBit"\n' + HOST: "workers.memory = '8 GBit': cannot read '8 GBit' as a number of bytes; write e.g.",
    '[broker]\nvalid = "soon"\n' + HOST: "broker.valid = 'soon': cannot read 'soon' as a duration",
    '[workers.environment]\n"A-B" = "x"\n' + HOST: "A-B is no name of a variable: write NAME = 'text'",
    "": "ssh is missing: add it",
    "[ssh]\nhosts = []\n": "ssh.hosts = []: there is no host: add a table [[ssh.hosts]] with an address",
    HOST + HOST: "two hosts are called 'a': give each a name",
    '[[ssh.hosts]]\naddress = "-oProxyCommand=x"\n': "must be a host, an alias of ssh's configuration, or user@host",
    '[ssh]\nbroker = "q"\n' + HOST: "ssh.broker = 'q': no host has this name: known are a",
    "[slurm]\n" + HOST: "unknown key slurm: ",
    "a = [": "not valid TOML: ",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/lab.toml: ")
    assert WRONG[text] in said
    assert "\n" not in said


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cluster file .*gone\.toml does not exist: check the path \(examples/clusters"):
        load_cluster(tmp_path / "gone.toml")
    with pytest.raises(InputError, match="can't be read: Is a directory; check the path"):
        load_cluster(tmp_path)
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(InputError, match="at most 1048576 bytes are read: is it a cluster file"):
        load_cluster(tmp_path / "large.toml")
    (tmp_path / "image.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="it is not UTF-8 text; check the path"):
        load_cluster(tmp_path / "image.toml")


ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "clusters").glob("*.toml"))
BLOCKS = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_clusters_of_their_provider(path: Path) -> None:
    assert load_cluster(path).provider == path.stem


@pytest.mark.parametrize("text", BLOCKS)
def test_blocks_of_the_page_are_clusters(tmp_path: Path, text: str) -> None:
    """Each block of docs/clusters.md is a whole cluster file."""
    assert load(tmp_path, text).name == "lab"
