"""Small models of the classes of ``torchvision``, each with a few random choices."""

from __future__ import annotations

import importlib
import random
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["VISION", "load_torchvision", "vision_batch", "vision_model"]

_LABELS = 3
_MISSING = re.compile(r"operator torchvision::(\w+) does not exist")
_LIBRARIES: list[Any] = []


def load_torchvision() -> Any | None:
    """The package (``None``: it is not installed).

    PyPI has ``torchvision`` for CUDA only. Its models need none of its compiled operators, but the package does not import
    without their names, so the names are declared where its library does not load.
    """
    for _ in range(16):
        try:
            return importlib.import_module("torchvision")
        except ImportError:
            return None
        except RuntimeError as error:
            missing = _MISSING.search(str(error))
            if missing is None:
                return None
            library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
            library.define(f"{missing[1]}(Tensor input) -> Tensor")
            _LIBRARIES.append(library)
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
    return None


class _Classifier(nn.Module):
    """A model and the cross-entropy of its result; auxiliary results are left out."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        found = self.body(pixels)
        if isinstance(found, Mapping):
            found = found["out"]
        return nn.functional.cross_entropy(found if isinstance(found, torch.Tensor) else found[0], labels)


def _resnet(models: Any, rng: random.Random) -> nn.Module:
    block = rng.choice((models.resnet.BasicBlock, models.resnet.Bottleneck))
    found: nn.Module = models.ResNet(block, [rng.choice((1, 2)) for _ in range(4)], num_classes=_LABELS)
    return found


def _vgg(models: Any, rng: random.Random) -> nn.Module:
    features = models.vgg.make_layers([8, "M", 16, "M", 16, "M"], batch_norm=rng.random() < 0.5)
    found: nn.Module = models.VGG(features, num_classes=_LABELS)
    found.classifier = nn.Sequential(nn.Linear(16 * 49, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, _LABELS))
    return found


def _alexnet(models: Any, rng: random.Random) -> nn.Module:
    found: nn.Module = models.AlexNet(_LABELS)
    dropout = nn.Dropout(rng.choice((0.2, 0.5)))
    found.classifier = nn.Sequential(dropout, nn.Linear(256 * 36, 32), nn.ReLU(True), nn.Linear(32, _LABELS))
    return found


def _efficientnet(models: Any, rng: random.Random) -> nn.Module:
    config = models.efficientnet.MBConvConfig
    layers = [config(1, 3, 1, 16, 8, 1), config(4, 3, 2, 8, 16, rng.choice((1, 2))), config(4, 5, 2, 16, 24, 1)]
    found: nn.Module = models.EfficientNet(layers, dropout=0.2, num_classes=_LABELS)
    return found


def _mobilenet_v3(models: Any, rng: random.Random) -> nn.Module:
    config = models.mobilenetv3.InvertedResidualConfig
    layers = [config(16, 3, 16, 16, True, "RE", 2, 1, 1.0), config(16, 5, 32, 24, rng.random() < 0.5, "HS", 2, 1, 1.0)]
    found: nn.Module = models.MobileNetV3(layers, last_channel=32, num_classes=_LABELS)
    return found


def _regnet(models: Any, rng: random.Random) -> nn.Module:
    ratio = rng.choice((None, 0.25))
    params = models.regnet.BlockParams.from_init_params(depth=4, w_0=8, w_a=8.0, w_m=2.0, group_width=8, se_ratio=ratio)
    found: nn.Module = models.RegNet(params, num_classes=_LABELS)
    return found


def _vision_transformer(models: Any, rng: random.Random) -> nn.Module:
    found: nn.Module = models.VisionTransformer(64, 16, rng.choice((1, 2)), 2, 32, 64, dropout=0.1, num_classes=_LABELS)
    return found


def _swin(models: Any, rng: random.Random) -> nn.Module:
    swin = models.swin_transformer
    block, merging = rng.choice(
        ((swin.SwinTransformerBlock, swin.PatchMerging), (swin.SwinTransformerBlockV2, swin.PatchMergingV2))
    )
    found: nn.Module = models.SwinTransformer(
        [4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=_LABELS, block=block, downsample_layer=merging
    )
    return found


def _convnext(models: Any, rng: random.Random) -> nn.Module:
    config = models.convnext.CNBlockConfig
    found: nn.Module = models.ConvNeXt(
        [config(16, 32, 1), config(32, None, rng.choice((1, 2)))], stochastic_depth_prob=0.1, num_classes=_LABELS
    )
    return found


def _segmentation(models: Any, rng: random.Random) -> nn.Module:
    kind = models.segmentation
    backbone = models.ResNet(
        models.resnet.Bottleneck, [1, 1, 1, 1], replace_stride_with_dilation=[False, True, True], num_classes=_LABELS
    )
    make = rng.choice((kind.fcn._fcn_resnet, kind.deeplabv3._deeplabv3_resnet))
    found: nn.Module = make(backbone, _LABELS, None)
    return found


def _video(models: Any, rng: random.Random) -> nn.Module:
    resnet = models.video.resnet
    conv = rng.choice((resnet.Conv3DSimple, resnet.Conv3DNoTemporal, resnet.Conv2Plus1D))
    found: nn.Module = resnet.VideoResNet(resnet.BasicBlock, [conv] * 4, [1, 1, 1, 1], resnet.BasicStem, _LABELS)
    return found


#: Class of torchvision -> (a small one of it, what it reads: images, labeled images or videos).
VISION: Mapping[str, tuple[Callable[[Any, random.Random], nn.Module], str]] = {
    "AlexNet": (_alexnet, "images"),
    "ConvNeXt": (_convnext, "images"),
    "DenseNet": (lambda models, rng: models.DenseNet(8, (2, rng.choice((1, 2))), 16, num_classes=_LABELS), "images"),
    "EfficientNet": (_efficientnet, "images"),
    "FCN, DeepLabV3": (_segmentation, "segmented"),
    "GoogLeNet": (lambda models, rng: models.GoogLeNet(_LABELS, aux_logits=False, init_weights=False), "images"),
    "MNASNet": (lambda models, rng: models.MNASNet(rng.choice((0.25, 0.35)), _LABELS), "images"),
    "MobileNetV2": (lambda models, rng: models.MobileNetV2(_LABELS, rng.choice((0.2, 0.35))), "images"),
    "MobileNetV3": (_mobilenet_v3, "images"),
    "RegNet": (_regnet, "images"),
    "ResNet": (_resnet, "images"),
    "ShuffleNetV2": (
        lambda models, rng: models.ShuffleNetV2([1, rng.choice((1, 2)), 1], [8, 16, 32, 64, 64], _LABELS),
        "images",
    ),
    "SqueezeNet": (lambda models, rng: models.SqueezeNet(rng.choice(("1_0", "1_1")), _LABELS), "images"),
    "SwinTransformer": (_swin, "images"),
    "VGG": (_vgg, "images"),
    "VideoResNet": (_video, "videos"),
    "VisionTransformer": (_vision_transformer, "images"),
}


def vision_model(name: str, seed: int) -> nn.Module:
    """A small model of the class ``name`` with its loss; its choices and weights follow from ``seed``."""
    models = importlib.import_module("torchvision.models")
    torch.manual_seed(seed)
    return _Classifier(VISION[name][0](models, random.Random(seed))).train()


def vision_batch(name: str, seed: int) -> dict[str, torch.Tensor]:
    """Two samples for a model of the class ``name``."""
    made = torch.Generator().manual_seed(seed)
    kind = VISION[name][1]
    shape = (2, 3, 4, 32, 32) if kind == "videos" else (2, 3, 64, 64)
    labels = torch.randint(0, _LABELS, (2, 64, 64) if kind == "segmented" else (2,), generator=made)
    return {"pixels": torch.randn(shape, generator=made), "labels": labels}
