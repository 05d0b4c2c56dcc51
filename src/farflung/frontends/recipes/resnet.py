"""ResNet 18, 50 and 101 written plainly (He et al., 2015; stride in the 3x3 convolution of a bottleneck, as is usual now)."""

from __future__ import annotations

from functools import partial
from typing import Literal

from torch import Tensor, nn

from farflung.errors import InputError
from farflung.frontends.recipes.base import Recipe
from farflung.frontends.recipes.classifier import classifier_recipe
from farflung.known_names import known_names

__all__ = ["ResNet", "resnet"]

_DEPTHS: dict[int, tuple[tuple[int, int, int, int], bool]] = {
    18: ((2, 2, 2, 2), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
}
_STEMS = ("cifar", "imagenet")


def _convolution(inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2, bias=False)


class Unit(nn.Module):
    """A residual unit: two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times the width outside (``bottleneck``)."""

    def __init__(self, inside: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outside = 4 * width if bottleneck else width
        if bottleneck:
            shapes = [(inside, width, 1, 1), (width, width, 3, stride), (width, outside, 1, 1)]
        else:
            shapes = [(inside, width, 3, stride), (width, outside, 3, 1)]
        self.convolutions = nn.ModuleList(_convolution(*shape) for shape in shapes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(shape[1]) for shape in shapes)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(_convolution(inside, outside, 1, stride), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        last = len(self.convolutions) - 1
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y))
            if i < last:
                y = self.relu(y)
        result: Tensor = self.relu(y + self.shortcut(x))
        return result


class ResNet(nn.Module):
    """``forward(images)``: ``(batch, 3, size, size)`` -> scores ``(batch, classes)``. ``stem``: 7x7 and pool, or 3x3 (CIFAR)."""

    def __init__(self, depth: int, classes: int, stem: Literal["imagenet", "cifar"]) -> None:
        super().__init__()
        counts, bottleneck = _DEPTHS[depth]
        self.stem = nn.Sequential(
            _convolution(3, 64, 7, 2) if stem == "imagenet" else _convolution(3, 64, 3),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity(),
        )
        units: list[nn.Module] = []
        inside = 64
        for group, count in enumerate(counts):
            width = 64 << group
            for i in range(count):
                units.append(Unit(inside, width, 2 if group and not i else 1, bottleneck=bottleneck))
                inside = 4 * width if bottleneck else width
        self.units = nn.ModuleList(units)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inside, classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for unit in self.units:
            x = unit(x)
        scores: Tensor = self.head(self.pool(x).flatten(1))
        return scores


def resnet(depth: int, *, classes: int = 10, size: int = 32, stem: str = "cifar") -> Recipe:
    """A ResNet of 18, 50 or 101 layers for images of ``size`` pixels; ``stem`` is ``cifar`` or ``imagenet``.

    Raises:
        InputError: the stem is unknown.
    """
    if stem not in _STEMS:
        raise InputError(f"resnet: unknown stem {stem!r}: {known_names(stem, _STEMS)}")
    network = partial(ResNet, depth, classes, stem)  # type: ignore[arg-type]  # checked above
    return classifier_recipe(f"resnet{depth}", network, channels=3, size=size)
