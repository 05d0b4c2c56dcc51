"""A short warm-up of a device: what it is called, how fast it trains, what operators cost besides, how much memory is free."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from farflung.clock import precise_time
from farflung.cost import fit_speed_factor, op_costs
from farflung.engines.base import Array, DeviceReport, EngineSettings, MicroBatch, StageRunner
from farflung.errors import InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import SubGraph, cut
from farflung.graph.ir import Graph

__all__ = ["SmallModels", "WarmUpDevice", "host_processors", "measure_device", "measure_share"]

#: Sizes of the matrix product whose best rate stands for the peak where nobody names it.
_CPU_PRODUCT, _ACCELERATOR_PRODUCT = 512, 6144
#: Widths of the small models that are trained, and the rows of their micro-batch.
_CPU_WIDTHS, _ACCELERATOR_WIDTHS = (16, 64, 128, 256), (64, 512, 1024, 2048)
_CPU_ROWS, _ACCELERATOR_ROWS = 128, 4096
#: First channels, pixels on a side and rows of the small convolutional model. Each block halves the side
#: and doubles the channels.
_CPU_IMAGES, _ACCELERATOR_IMAGES = (32, 32, 4), (64, 64, 128)
_IMAGE_BLOCKS = 3
_BLOCKS = 4
_REPEATS = 3
_ROUNDS = 3
#: Seconds from the begin of a common measurement until all processes compute, those that count, and those at its end in which
#: nobody stops yet.
_BEGIN, _COUNTED, _END = 0.3, 0.5, 0.1
#: Times that many rounds are added where the times found make no sense.
_TRIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpDevice:
    """A device as its engine measures it.

    ``open`` gives the runner of a stage, ``multiply`` a function that multiplies two square matrices of a size and waits for
    the result, ``synchronize`` waits until the device has done what was asked of it, ``memory`` gives its free and its total
    bytes. ``processors``: what it computes on, as all processes of this host call it.
    """

    name: str
    model: str
    processors: tuple[str, ...]
    open: Callable[[SubGraph, EngineSettings], StageRunner]
    multiply: Callable[[int], Callable[[], object]]
    memory: Callable[[], tuple[int, int]]
    synchronize: Callable[[], object] = lambda: None

    @property
    def kind(self) -> str:
        """``cpu``, ``cuda``, ``mps`` or ``xpu``."""
        return self.name.partition(":")[0]


class SmallModels:
    """The models that a measurement of ``place`` trains."""

    def __init__(self, place: WarmUpDevice) -> None:
        widths, rows = (_CPU_WIDTHS, _CPU_ROWS) if place.kind == "cpu" else (_ACCELERATOR_WIDTHS, _ACCELERATOR_ROWS)
        self.chains = [_Model(_graph(width, rows), place) for width in widths]
        self._place = place
        self._images: _Model | None = None

    def images(self) -> _Model:
        """The convolutional one."""
        if self._images is None:
            sizes = _CPU_IMAGES if self._place.kind == "cpu" else _ACCELERATOR_IMAGES
            self._images = _Model(_image_graph(*sizes), self._place)
        return self._images


def host_processors() -> tuple[str, ...]:
    """The cores that this process may use."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return tuple(str(core) for core in sorted(cores))


def measure_device(
    place: WarmUpDevice, peak_flops_per_second: float | None = None, small: SmallModels | None = None
) -> DeviceReport:
    """Train small models of several widths for a moment, through this engine itself, and fit ``cost.fit_speed_factor``.

    A model is a chain of linear, activation and normalization; the time of one micro-batch forward and backward is the best of
    several, taken in rounds over all widths, so that what disturbs the machine for a moment spoils no width for good.
    ``peak_flops_per_second`` is the datasheet's figure, if known; else the rate of the best matrix product. ``small``: models
    of an earlier measurement, for engines that compile.
    Cost: some 0.5 s on one core, and the time to compile.
    """
    small = small or SmallModels(place)
    models, images = small.chains, small.images()
    for model in (*models, images):
        model.best = float("inf")
    multiply, rate = place.multiply(_product_size(place)), 0.0
    for left in reversed(range(_TRIES)):
        for _ in range(_ROUNDS):
            rate = max(rate, 2.0 * _product_size(place) ** 3 / _best_seconds(multiply))
            for model in (*models, images):
                model.train()
        peak = peak_flops_per_second or rate
        try:
            fit = fit_speed_factor([m.calls for m in models], [m.flops for m in models], [m.best for m in models], peak)
        except InputError:  # something else has the processor: what was best so far stands, and more rounds can but mend it
            if not left:
                raise
        else:
            break
    free, total = place.memory()
    return DeviceReport(
        name=place.model,
        flops_per_second=fit.factor * peak,
        launch_seconds=fit.overhead,
        total_bytes=total,
        free_bytes=free,
        peak_flops_per_second=peak if peak_flops_per_second else max(peak, fit.factor * peak),
        processors=place.processors,
        reference_seconds=sum(model.best for model in models),
        convolution=_convolution_ratio(images, fit.factor * peak, fit.overhead),
    )


def measure_share(place: WarmUpDevice, reference_seconds: float, small: SmallModels | None = None) -> float:
    """The share of the speed of ``measure_device`` that this process reaches now, while others measure at the same time.

    The same small models are trained in turn. The average counts here, not the best: what is measured is how often others come
    in between. Processes that begin within 0.1 s of each other all compute while each of them counts. Cost: 0.9 s. An engine
    that compiles passes the models of ``measure_device`` as ``small``: it would spend these 0.9 s with compiling.
    """
    begin = precise_time()
    models = (small or SmallModels(place)).chains
    ends: list[float] = []
    while not ends or ends[-1] < begin + _BEGIN + _COUNTED + _END:
        for model in models:
            model.step()
        ends.append(precise_time())
    counted = [end for end in ends if begin + _BEGIN <= end <= begin + _BEGIN + _COUNTED]
    if len(counted) < 2:
        counted = ends[-2:] if len(ends) > 1 else [begin, *ends]
    return min(1.0, (len(counted) - 1) * reference_seconds / (counted[-1] - counted[0]))


def _convolution_ratio(images: _Model, speed: float, overhead: float) -> float:
    """How many times as fast as other operators convolutions run, by their FLOPs; one digit after the point."""
    others = images.calls * overhead + (images.flops - images.convolutions) / speed
    seconds = max(images.best - others, images.best / 10)  # a disturbed fit must not leave them nothing
    return max(0.1, round(images.convolutions / (seconds * speed), 1))


class _Model:
    """A small model, how many operators and FLOPs its micro-batch has, and the ``best`` seconds of one so far."""

    def __init__(self, graph: Graph, place: WarmUpDevice) -> None:
        cost = op_costs(graph, place.kind)
        self.calls = float(cost.forward_calls.sum() + cost.backward_calls.sum())
        self.flops = float(cost.forward.sum() + cost.backward.sum())
        self.convolutions = float(cost.forward_convolution_sum[-1] + cost.backward_convolution_sum[-1])
        self.best = float("inf")
        self._place, self._count = place, 0
        (piece,) = cut(graph, [(0, len(graph.ops))])
        self._runner = place.open(piece, EngineSettings(device=place.name))
        self._runner.initialize(list(piece.states))
        shapes = {name: graph.op(name).outputs[0].shape for name in ("x", "label")}
        self._data: dict[str, Array] = {"x": np.ones(shapes["x"], np.float32), "label": np.zeros(shapes["label"], np.int64)}

    def train(self) -> None:
        """Some micro-batches forward and backward (the loss comes to the host, so a GPU has finished)."""
        for _ in range(_REPEATS):
            self.step()

    def step(self) -> None:
        """One micro-batch."""
        self._count += 1
        start = precise_time()
        self._runner.forward(MicroBatch(0, self._count), {}, self._data)
        self._runner.backward(MicroBatch(0, self._count), {}, 1.0)
        self._place.synchronize()
        self.best = min(self.best, precise_time() - start)


def _graph(width: int, rows: int) -> Graph:
    graph = GraphBuilder(f"warm-up-{width}")
    last = "x"
    graph.input(last, "float32", (rows, width))
    for block in range(_BLOCKS):
        graph.add(f"linear{block}", "Linear", last, in_features=width, out_features=width)
        graph.add(f"bend{block}", "GELU", f"linear{block}")
        graph.add(f"norm{block}", "LayerNorm", f"bend{block}", normalized_shape=width)
        last = f"norm{block}"
    graph.label("label", "int64", (rows,))
    graph.add("loss", "CrossEntropyLoss", last, "label")
    return graph.build()


def _image_graph(channels: int, pixels: int, rows: int) -> Graph:
    """A chain of convolution, normalization and activation."""
    graph = GraphBuilder("warm-up-images")
    last = "x"
    graph.input(last, "float32", (rows, channels, pixels, pixels))
    for block in range(_IMAGE_BLOCKS):
        if block:
            wider = {"in_channels": channels, "out_channels": 2 * channels, "kernel_size": 3, "padding": 1, "stride": 2}
            channels *= 2
            graph.add(f"wider{block}", "Conv2d", last, **wider)
            last = f"wider{block}"
        graph.add(f"convolution{block}", "Conv2d", last, in_channels=channels, out_channels=channels, kernel_size=3, padding=1)
        graph.add(f"norm{block}", "BatchNorm2d", f"convolution{block}", num_features=channels)
        graph.add(f"bend{block}", "ReLU", f"norm{block}")
        last = f"bend{block}"
    graph.add("pool", "AdaptiveAvgPool2d", last, output_size=1)
    graph.add("flat", "Flatten", "pool")
    graph.label("label", "int64", (rows,))
    graph.add("loss", "CrossEntropyLoss", "flat", "label")
    return graph.build()


def _product_size(place: WarmUpDevice) -> int:
    return _CPU_PRODUCT if place.kind == "cpu" else _ACCELERATOR_PRODUCT


def _best_seconds(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        start = precise_time()
        call()
        best = min(best, precise_time() - start)
    return best
