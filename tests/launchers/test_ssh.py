"""Provider ssh: hosts, names and errors, with real servers of OpenSSH on the loopback."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from benchmarks.harness.machines.ssh_hosts import Hosts, has_sshd, ssh_hosts
from farflung.errors import ConnectionLost, FarflungError, InputError
from farflung.launchers.base import Process, ProcessState
from farflung.launchers.cluster_file import load_cluster, make_cluster
from farflung.launchers.programs import run_one
from farflung.launchers.ssh import SshHost, SshProvider
from tests.support.commands.launched_clusters import JOB, Person, secrets_in, shown_tickets
from tests.support.network.quiet import until

needs_sshd = pytest.mark.skipif(not has_sshd(), reason="needs sshd and ssh (openssh-server)")
TICKET = "farflung1-notaticket"


def provider(*hosts: dict[str, object], **ssh: object) -> SshProvider:
    return SshProvider(make_cluster({"name": "lab", "ssh": {"hosts": list(hosts), **ssh}}), Path())


@pytest.mark.parametrize(
    ("address", "label"),
    [("gpu1.example.org", "gpu1"), ("alice@GPU_1", "gpu-1"), ("10.0.0.7", "10-0-0-7"), ("[fe80::1]", "fe80-1"), ("_", "host")],
)
def test_a_host_has_a_name(address: str, label: str) -> None:
    assert SshHost(address=address).label == label


def test_hosts_are_filled_evenly() -> None:
    found = provider({"address": "a", "workers": 2}, {"address": "b"}, {"address": "c", "workers": 0})
    assert found.places() == 3
    program = found.log("lab-a-1", 5, follow=True)
    assert (program.words[0], program.words[-2:], program.place) == ("ssh", ["a", "farflung host"], "host a")
    with pytest.raises(InputError, match="has no process 'lab-d-0': known are broker, lab-a-0, lab-b-0, lab-a-1"):
        found.log("lab-d-0", 5, follow=False)


def test_a_file_that_lacks_a_host_of_the_running_cluster_is_refused() -> None:
    former = make_cluster({"name": "lab", "ssh": {"hosts": [{"address": "a"}, {"address": "b"}]}})
    with pytest.raises(InputError, match="the host 'b' belongs to the cluster 'lab', which is up, and is missing in the file"):
        provider({"address": "a"}).check(former)
    with pytest.raises(InputError, match="the broker of the cluster 'lab' runs on 'a': run farflung down before another host"):
        provider({"address": "a"}, {"address": "b"}, broker="b").check(former)


@needs_sshd
def test_unreachable_hosts_and_hosts_without_farflung(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "alpha") as hosts:
        options = ["-F", str(hosts.config)]
        with pytest.raises(InputError, match=r"host alpha has no farflung: .*no-such-farflung.*; install farflung there, or set"):
            provider({"address": "alpha"}, command="no-such-farflung", options=options).check(None)
        with pytest.raises(FarflungError, match=r"^host alpha: no ticket: pass --ticket"):
            SshProvider(load_cluster(hosts.cluster_file()), Path()).ask(["status"])
        stranger = ["-o", "UserKnownHostsFile=/dev/null", "-o", f"IdentityFile={tmp_path}/keys/client", *options]
        with pytest.raises(ConnectionLost, match=r"host alpha can't be reached: .*; check that `ssh -o BatchMode=yes alpha`"):
            provider({"address": "alpha"}, options=stranger).check(None)
    with pytest.raises(ConnectionLost, match=r"host 127\.0\.0\.1 can't be reached: ssh: connect to host .* port 1: Connection"):
        provider({"address": "127.0.0.1", "port": 1}, options=["-F", "/dev/null"]).check(None)


@pytest.mark.slow
@needs_sshd
def test_processes_start_scale_and_stop(tmp_path: Path) -> None:
    """The ticket is none, so each worker ends at once. The processes and their logs are real."""
    with ssh_hosts(tmp_path, "alpha", "beta") as hosts:
        found = SshProvider(load_cluster(hosts.cluster_file()), Path())
        found.start_broker()
        found.scale(2, lambda: TICKET)
        until(lambda: [one.state for one in found.processes()].count(ProcessState.ENDED) == 2)
        broker = Process(name="broker", place="alpha", state=ProcessState.RUNNING)
        ended = [Process(name=f"lab-{host}-0", place=host, state=ProcessState.ENDED) for host in ("alpha", "beta")]
        assert list(found.processes()) == [broker, *ended]
        assert "the ticket is mistyped or cut" in run_one(found.log("lab-beta-0", 1, follow=True))
        found.scale(1, lambda: TICKET)
        assert [one.name for one in found.processes()] == ["broker", "lab-alpha-0"]
        pid = hosts.hosts[0].pids("lab")["broker"]
        assert found.stop(force=False) == []
        assert list(found.processes()) == []
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        hosts.hosts[1].server.kill()
        hosts.hosts[1].server.wait()
        with pytest.raises(ConnectionLost, match="host beta can't be reached"):
            found.stop(force=False)
        (warning,) = found.stop(force=True)
        assert warning.startswith("host beta can't be reached")


@pytest.mark.slow
@pytest.mark.timeout(400)
@needs_sshd
def test_from_up_to_a_finished_job_and_down(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "alpha", "beta", "gamma") as hosts:
        person = Person(tmp_path)
        text = person.call("up", str(hosts.cluster_file()))
        assert "lab: 3 of 3 workers joined" in text
        ticket = tmp_path / "home/clusters/lab/owner-ticket"
        tickets = [host.home / f"clusters/lab/processes/lab-{host.name}-0.ticket" for host in hosts.hosts]
        broker = hosts.hosts[0].home / "clusters/lab/broker"
        assert set(secrets_in(tmp_path)) == {ticket, *tickets, broker / "submit-ticket"}
        assert [path.stat().st_mode & 0o077 for path in (ticket, *tickets)] == [0, 0, 0, 0]
        assert shown_tickets([ticket, *tickets, broker / "submit-ticket"]) == []
        (tmp_path / "job.toml").write_text(JOB)
        assert "finished after 2 steps" in person.call("submit", "job.toml", "--ticket", f"@{ticket}")
        assert "worker lab-gamma-0 joined" in person.call("logs", "lab.toml")
        follower = person.start("logs", "lab-alpha-0", "--cluster", "lab", "--follow")
        follower.until("lab-alpha-0: joined the broker")
        _dies_and_returns(person, hosts)
        assert "lab: 1 of 1 worker joined" in person.call("scale", "lab", "1")
        assert [sorted(host.pids("lab")) for host in hosts.hosts] == [["broker", "lab-alpha-0"], [], []]
        assert "lab: stopped; the broker's folder stays" in person.call("down", "lab")
        assert "lab-alpha-0: left" in follower.ends_cleanly(0)
        assert [host.pids("lab") for host in hosts.hosts] == [{}, {}, {}]
        assert secrets_in(tmp_path) == []
        assert (broker / "runs").is_dir()


def _dies_and_returns(person: Person, hosts: Hosts) -> None:
    """``up`` starts again what has died, and nothing else."""
    before = [host.pids("lab") for host in hosts.hosts]
    os.kill(before[1]["lab-beta-0"], signal.SIGKILL)
    assert "lab: 3 of 3 workers joined" in person.call("up", "lab.toml")
    after = [host.pids("lab") for host in hosts.hosts]
    assert after[1]["lab-beta-0"] != before[1]["lab-beta-0"]
    assert (after[0], after[2]) == (before[0], before[2])


@pytest.mark.slow
@pytest.mark.timeout(200)
@needs_sshd
def test_a_worker_without_its_device_is_reported(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "alpha") as hosts:
        person = Person(tmp_path)
        path = hosts.cluster_file()
        path.write_text(path.read_text().replace('device = "cpu"', 'device = "cuda:7"'))
        text = person.start("up", str(path)).ends_cleanly(1)
        assert "lab-alpha-0 on alpha has ended: " in text
        assert "cuda:7" in text
        assert "see `farflung logs --cluster lab lab-alpha-0`" in text
        person.call("down", "lab", "--force")
