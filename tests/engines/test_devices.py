"""Which device ``--device`` means, and what a machine with each kind of accelerator has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from farflung.engines import ComputeDevice, EngineSettings, MicroBatch, choose_device, devices, get_engine
from farflung.engines.torch import accelerators
from farflung.engines.torch.accelerators import TorchProbe, compute_devices, default_generator, limit_memory
from farflung.engines.torch.engine import TorchEngine
from farflung.errors import InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut

CPU = ComputeDevice(name="cpu", model="EPYC", memory=8_000_000_000, cores=8)
CUDA = tuple(ComputeDevice(name=f"cuda:{i}", model="NVIDIA RTX 4090", memory=24_000_000_000) for i in range(2))
MPS = ComputeDevice(name="mps", model="Apple GPU", memory=12_000_000_000)
XPU = ComputeDevice(name="xpu:0", model="Intel Arc A770", memory=16_000_000_000)


@dataclass
class FakeProbe:
    """A machine with ``number`` accelerators; the one with the index ``broken`` does not answer."""

    kind: str = ""
    number: int = 0
    broken: int = -1

    def accelerator(self) -> str:
        return self.kind

    def count(self) -> int:
        return self.number

    def model(self, index: int) -> str:
        return f"model {index}"

    def memory(self, index: int) -> int:
        if index == self.broken:
            raise RuntimeError("CUDA error: device is busy or unavailable")
        return 1_000_000_000 * (index + 1)


@pytest.mark.parametrize(
    ("asked", "found", "name"),
    [
        ("auto", (CPU,), "cpu"),
        ("auto", (*CUDA, CPU), "cuda:0"),
        ("auto", (MPS, CPU), "mps"),
        ("auto", (XPU, CPU), "xpu:0"),
        ("cpu", (*CUDA, CPU), "cpu"),
        ("cuda", (*CUDA, CPU), "cuda:0"),
        ("cuda:1", (*CUDA, CPU), "cuda:1"),
        ("mps", (MPS, CPU), "mps"),
        ("mps:0", (MPS, CPU), "mps"),
        ("xpu", (XPU, CPU), "xpu:0"),
    ],
)
def test_what_is_meant(asked: str, found: tuple[ComputeDevice, ...], name: str) -> None:
    assert choose_device(asked, found).name == name


@pytest.mark.parametrize("asked", ["cuda:2", "mps", "xpu:0", "cpu:1"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(asked: str) -> None:
    with pytest.raises(InputError) as caught:
        choose_device(asked, (*CUDA, CPU))
    assert str(caught.value) == (
        f"device {asked!r} is not available here: there is cuda:0 NVIDIA RTX 4090 24 GB, cuda:1 NVIDIA RTX 4090 24 GB, "
        "cpu, 8 cores; use one of these, or --device auto"
    )


@pytest.mark.parametrize("asked", ["tpu", "gpu0", "cuda:x", "cuda:", "", "meta"])
def test_an_unknown_device_is_refused_with_the_known_ones(asked: str) -> None:
    with pytest.raises(InputError, match=r"unknown device '.*': known are auto, cpu, cuda, mps, xpu, .*; there is cpu, 8 cores"):
        choose_device(asked, (CPU,))


@pytest.mark.parametrize(
    ("probe", "names"),
    [
        (FakeProbe(), ["cpu"]),
        (FakeProbe("cuda", 2), ["cuda:0", "cuda:1", "cpu"]),
        (FakeProbe("cuda", 3, broken=1), ["cuda:0", "cuda:2", "cpu"]),
        (FakeProbe("mps", 1), ["mps", "cpu"]),
        (FakeProbe("xpu", 1), ["xpu:0", "cpu"]),
        (FakeProbe("mtia", 1), ["cpu"]),
    ],
)
def test_what_a_machine_has(probe: FakeProbe, names: list[str]) -> None:
    found = compute_devices(probe)
    assert [device.name for device in found] == names
    assert found[-1].cores > 0
    assert str(found[-1]).startswith("cpu, ")
    assert [device.name for device in TorchEngine(probe).devices()] == names


def test_the_engine_refuses_what_the_probe_does_not_find() -> None:
    graph = GraphBuilder("one")
    graph.input("x", "float32", (2, 3))
    graph.add("y", "Linear", "x", in_features=3, out_features=2)
    graph.label("label", "int64", (2,))
    graph.add("loss", "CrossEntropyLoss", "y", "label")
    built = graph.build()
    (piece,) = cut(built, [(0, len(built.ops))])
    with pytest.raises(InputError, match="device 'cuda:7' is not available here: there is cuda:0 model 0 1 GB, cpu"):
        TorchEngine(FakeProbe("cuda", 1)).open(piece, EngineSettings(device="cuda:7"))


def test_this_machine() -> None:
    found = get_engine("torch").devices()
    assert found[-1].name == "cpu"
    assert (found[0].kind != "cpu") == torch.accelerator.is_available()


def test_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_generator(torch.device("cpu")) is torch.default_generator

    class Intel:
        default_generators = (torch.Generator(), torch.Generator())
        began = False

        @classmethod
        def init(cls) -> None:
            cls.began = True

    monkeypatch.setattr(accelerators.torch, "get_device_module", lambda place: Intel)
    assert default_generator(torch.device("xpu", 1)) is Intel.default_generators[1]
    assert default_generator(torch.device("xpu")) is Intel.default_generators[0]
    assert Intel.began
    monkeypatch.setattr(accelerators.torch, "get_device_module", lambda place: object())
    with pytest.raises(InputError, match="no generator of random numbers is known for 'hpu'; known are cpu, cuda, mps, xpu"):
        default_generator(torch.device("hpu"))


@pytest.mark.parametrize(("nbytes", "share"), [(6_000_000_000, 0.25), (30_000_000_000, 1.0), (None, 1.0)])
def test_workers_that_share_a_gpu_are_limited_to_what_they_offer(
    nbytes: int | None, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, torch.device]] = []
    monkeypatch.setattr(accelerators, "device_memory", lambda place: (1, 24_000_000_000))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: asked.append(given))
    for name in ("cpu", "cuda:1"):
        limit_memory(torch.device(name), nbytes)
    assert asked == [(share, torch.device("cuda:1"))]


@pytest.mark.gpu
def test_a_real_accelerator_trains() -> None:
    probe = TorchProbe()
    if not probe.accelerator():
        pytest.skip("PyTorch sees no accelerator here")
    engine = get_engine("torch")
    chosen = choose_device("auto", engine.devices())
    assert chosen.kind == probe.accelerator()
    assert chosen.memory > 0
    assert chosen.model
    report = engine.measure(chosen.name)
    assert report.flops_per_second > 0
    assert 0 < report.free_bytes <= report.total_bytes
    graph = GraphBuilder("small")
    graph.input("x", "float32", (4, 8))
    graph.add("first", "Linear", "x", in_features=8, out_features=16)
    graph.add("drop", "Dropout", "first", p=0.5)
    graph.add("second", "Linear", "drop", in_features=16, out_features=3)
    graph.label("label", "int64", (4,))
    graph.add("loss", "CrossEntropyLoss", "second", "label")
    built = graph.build()
    (piece,) = cut(built, [(0, len(built.ops))])
    losses = []
    for _ in range(2):
        runner = engine.open(piece, EngineSettings(device=chosen.name))
        runner.initialize(list(piece.states))
        data = {"x": torch.ones(4, 8).numpy(), "label": torch.zeros(4, dtype=torch.int64).numpy()}
        losses.append(float(runner.forward(MicroBatch(0, 0), {}, data).outputs["loss"]))
        runner.backward(MicroBatch(0, 0), {}, 1.0)
        assert all(torch.isfinite(torch.from_numpy(g)).all() for g in runner.gradients().values())
    assert losses[0] == losses[1], "random numbers are keyed, on an accelerator too"


@pytest.mark.parametrize(
    ("asked", "files", "gpus", "says"),
    [
        ("gpu", (), 0, "unknown device 'gpu': known are auto, cpu, cuda, mps, xpu, with a number, such as cuda:0"),
        ("cuda:x", (), 0, "unknown device 'cuda:x': known are"),
        ("xpu:0", (), 0, "device 'xpu:0' is not available here: this machine has no driver for xpu; use --device cpu"),
        ("xpu:0", ("dri",), 0, ""),
        ("cuda:3", ("cuda",), 1, "device 'cuda:3' is not available here: this machine has 1 GPU, cuda:0; use --device cpu"),
        ("cuda:2", ("cuda",), 2, "device 'cuda:2' is not available here: this machine has 2 GPUs, cuda:0 to cuda:1; use"),
        ("cuda:1", ("cuda",), 2, ""),
        ("cuda:3", ("cuda",), 0, ""),
        ("cuda", ("cuda",), 1, ""),
        ("cuda:3", ("kfd",), 1, ""),
        ("cuda:0", (), 0, "device 'cuda:0' is not available here: this machine has no driver for cuda; use --device cpu"),
        ("cpu", (), 0, ""),
        ("auto", (), 0, ""),
    ],
)
def test_a_device_without_a_driver_is_refused_before_an_engine_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, files: tuple[str, ...], gpus: int, says: str
) -> None:
    monkeypatch.setattr(devices, "_loads", lambda library: "cuda" in files)
    for name in files:
        (tmp_path / name).touch()
    listed = tmp_path / "gpus"
    for number in range(gpus):
        (listed / str(number)).mkdir(parents=True)
    if not says:
        devices.require_device(asked, tmp_path, listed)
        return
    with pytest.raises(InputError) as caught:
        devices.require_device(asked, tmp_path, listed)
    assert str(caught.value).startswith(says)
