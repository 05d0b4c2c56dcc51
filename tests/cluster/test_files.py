"""Topology files: what people write, and what they are told when it is wrong."""

import pytest

from farflung.cluster import Topology
from farflung.errors import InputError

GOOD = """
name = "home and office"
[default]
latency = "20 ms"
bandwidth = "8 Mbit/s"
[[device]]
name = "laptop"
memory = "8 GB"
speed = "100 GFLOP/s"
speed_factor = 0.5
region = "home"
[[device]]
name = "box"
count = 2
memory = "16 GiB"
speed = "1 TFLOP/s"
region = "office"
kind = "cuda"
disk = "1 TB"
"""


def test_units_counts_and_defaults_are_read(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(GOOD)
    topology = Topology.from_toml(path)
    assert topology.name == "home and office"
    assert topology.names == ("laptop", "box-0", "box-1")
    assert topology.device("laptop").achieved == 50e9
    assert topology.device("box-1").memory == 16 * 2**30
    assert topology.alpha[0, 1] == 0.02
    assert topology.beta[0, 1] == 1e6
    assert topology.beta[1, 2] == 125e6


def test_device_links_beat_region_links_beat_defaults():
    text = (
        GOOD
        + """
[[link]]
between = ["laptop", "box-1"]
latency = "1 ms"
bandwidth = "1 MB/s"
[[link]]
between = ["home", "office"]
latency = "2 ms"
bandwidth = "2 MB/s"
[[link]]
from = "box-0"
to = "laptop"
latency = "3 ms"
bandwidth = "3 MB/s"
"""
    )
    topology = Topology.from_text(text)
    assert topology.beta[0].tolist()[1:] == [2e6, 1e6]
    assert topology.beta[:, 0].tolist()[1:] == [3e6, 1e6]


def test_links_inside_one_region_can_be_set():
    text = GOOD + '[[link]]\nbetween = ["office", "office"]\nlatency = "5 ms"\nbandwidth = "5 MB/s"\n'
    assert Topology.from_text(text).beta[1, 2] == 5e6


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("8 GB", "8 apples"), r"net: device\[0\].memory: cannot read '8 apples' as a number of bytes; write e.g. \"8 GB\""),
        (("8 GB", "12"), r"net: device\[0\].memory: a number of bytes needs a unit, got '12'; write \"12 GB\" or \"12 MB\""),
        (('"20 ms"', "20"), r"net: default.latency: a duration needs a unit, got 20; write \"20 ms\" or \"20 s\" or"),
        (('"8 Mbit/s"', "100"), r"net: default.bandwidth: a rate needs a unit, got 100; write \"100 Mbit/s\" or"),
        (('speed = "100 GFLOP/s"\n', ""), r"net: device\[0\].speed: is missing; write e.g. speed = \"5 TFLOP/s\""),
        (("speed_factor = 0.5", 'overhead = "2 s"'), r"net: device\[0\]: device '.*': overhead must be from 0 to 1.00 s"),
        (("speed_factor = 0.5", 'speed_factor = "half"'), r"net: device\[0\].speed_factor: must be a number, got 'half'"),
        (("speed_factor = 0.5", f"speed_factor = {10**400}"), r"net: device\[0\].speed_factor: must be a number, got 1000"),
        (("count = 2", "count = 0"), r"net: device\[1\].count: must be a whole number from 1 to 20000, got 0"),
        (('kind = "cuda"', 'kind = "gpu"'), r"net: device\[1\]: device 'box-0': unknown kind 'gpu'; known are cpu, cuda"),
        (('disk = "1 TB"', 'dsk = "1 TB"'), r"net: device\[1\].dsk: unknown key; did you mean 'disk'\? known are convo"),
        (('name = "laptop"', "name = 3"), r"net: device\[0\].name: must be text, got 3"),
        (("[default]", "[defualt]"), r"net: defualt: unknown key; did you mean 'default'. known are change, default"),
        (('[default]\nlatency = "20 ms"\nbandwidth = "8 Mbit/s"\n', ""), r"nothing describes the way from 'laptop' to 'box-0'"),
        (("[[device]]", "[[device"), "net: not TOML"),
    ],
)
def test_errors_name_file_key_value_and_remedy(change, text):
    with pytest.raises(InputError, match=text):
        Topology.from_text(GOOD.replace(*change, 1), "net")


def test_all_that_is_wrong_with_devices_is_told_at_once():
    wrong = (
        GOOD.replace("8 GB", "8 apples").replace("speed_factor = 0.5", 'speed_factor = "half"').replace("count = 2", "count = 0")
    )
    with pytest.raises(InputError) as caught:
        Topology.from_text(wrong.replace('kind = "cuda"', 'kind = "gpu"\nnat = 5'), "net")
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("net: device[0].memory: cannot read '8 apples' as a number of bytes")
    for part in ("; device[0].speed_factor: must be a number", "; device[1].count: must be", "; device[1].nat: must be true"):
        assert part in text
    many = "".join(f'[[device]]\nname = "d{number}"\nmemory = 0\nspeed = 0\n' for number in range(11))
    with pytest.raises(InputError, match=r"device 'd0': speed must be more than 0, .*'d7'.*; and 3 more$"):
        Topology.from_text(many)


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (
            'between = ["home", "moon"]',
            r"link\[0\]: 'moon' is no device and no region; known are box-0, box-1, home, laptop, office",
        ),
        ('between = ["home"]', r"link\[0\]: must say between"),
        ('from = "home"', r"link\[0\]: must say between"),
        ('between = ["home", "office"]\nfrom = "home"', r"link\[0\]: must say between"),
    ],
)
def test_links_say_which_ends(link, text):
    with pytest.raises(InputError, match=text):
        Topology.from_text(GOOD + f'[[link]]\n{link}\nlatency = "1 ms"\nbandwidth = "1 MB/s"\n')


def test_a_file_without_devices_is_refused():
    with pytest.raises(InputError, match=r"device: the file names no device; add at least one \[\[device\]\]"):
        Topology.from_text('name = "empty"')


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the topology file .*none.toml: No such file"):
        Topology.from_toml(tmp_path / "none.toml")


def test_the_overhead_of_operators_is_kept() -> None:
    text = '[[device]]\nname = "a"\nmemory = "1 GB"\nspeed = "1 GFLOP/s"\noverhead = "20 us"\n'
    found = Topology.from_text(text)
    assert float(found.devices[0].overhead) == pytest.approx(2e-5)
    assert Topology.from_text(found.to_toml()).devices == found.devices
    assert Topology.from_json(found.to_json()).devices == found.devices


def test_devices_on_one_host_are_read_written_and_slow_each_other_down():
    text = GOOD.replace('kind = "cuda"', 'host = "server"\nhost_capacity = 1.25')
    topology = Topology.from_text(text)
    assert topology.hosts == ((1.25, (1, 2)),)
    assert topology.speeds.tolist() == [50e9, 0.625e12, 0.625e12]
    assert topology.host_shares == (1.0, 0.625, 0.625)
    assert topology.device("box-0").achieved == 1e12, "alone"
    assert Topology.from_text(topology.to_toml()) == Topology.from_json(topology.to_json()) == topology
    assert topology.select(["laptop", "box-0"]).hosts == (), "the other one is not used"
    with pytest.raises(InputError, match=r"host_capacity must be more than 0, got 0.0; write e.g. 2.0"):
        Topology.from_text(text.replace("1.25", "0.0"))


def test_the_ranks_of_a_site_and_their_links():
    text = GOOD.replace('kind = "cuda"', 'kind = "cuda"\nranks = 8\nrank_rate = "100 GB/s"\nrank_latency = "50 us"')
    topology = Topology.from_text(text)
    box = topology.device("box-0")
    assert (box.ranks, box.rank_rate, box.rank_latency) == (8, 1e11, pytest.approx(5e-5))
    assert Topology.from_text(topology.to_toml()) == Topology.from_json(topology.to_json()) == topology
    with pytest.raises(InputError, match="ranks must be from 1 to 64, got 65; leave it out if it is no site"):
        Topology.from_text(text.replace("ranks = 8", "ranks = 65"))
    with pytest.raises(InputError, match=r"ranks: must be a whole number, got 'two'; write e.g. 8"):
        Topology.from_text(text.replace("ranks = 8", 'ranks = "two"'))
    with pytest.raises(InputError, match=r"rank_rate must be more than 0, got 0"):
        Topology.from_text(text.replace("100 GB/s", "0 GB/s"))


def test_the_disk_that_a_device_offers():
    text = GOOD.replace('kind = "cuda"', 'kind = "cuda"\noffload = "100 GB"\noffload_rate = "1 GB/s"')
    topology = Topology.from_text(text)
    assert [device.offload for device in topology.devices] == [None, 1e11, 1e11]
    assert topology.device("box-0").offload_rate == 1e9
    assert Topology.from_text(topology.to_toml()) == Topology.from_json(topology.to_json()) == topology
    with pytest.raises(InputError, match="offload and offload_rate belong together"):
        Topology.from_text(text.replace('offload_rate = "1 GB/s"', ""))
    with pytest.raises(InputError, match=r"offload must be more than 0, got 0"):
        Topology.from_text(text.replace("100 GB", "0 GB"))
