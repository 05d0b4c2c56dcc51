"""Models with layers that are hard to capture, each with a batch function: what makes them hard is in their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from tests.support.models.engine_models import Made

WIDTH = 6


def rows(step: int, index: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(4, 5, WIDTH, generator=torch.Generator().manual_seed(100 * step + index)),)


class Net(nn.Module):
    """A linear layer, ``body`` and a loss with a target that no layer knows."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(WIDTH, WIDTH), body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(self.first(x))
        y = y[0] if isinstance(y, tuple) else y
        return (y - x.mean()).pow(2).mean() + self.first(x).abs().mean()


class Clip(torch.autograd.Function):
    """A sign with a gradient of its own, which reads what was saved, an attribute and two inputs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(x, weight, (x @ weight).tanh())
        ctx.scale = scale
        return (x @ weight).sign() * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, bent = ctx.saved_tensors
        gradient = gradient * ctx.scale * (1 - bent * bent)
        flat = gradient.reshape(-1, gradient.shape[-1])
        return gradient @ weight.t(), x.reshape(-1, x.shape[-1]).t() @ flat, None


class Reverse(torch.autograd.Function):
    """The identity with a negated gradient, in the style with ``setup_context``."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = -2.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clone().mul_(ctx.factor)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = Clip.apply(x, self.weight, 1.5) + x
        return Reverse.apply(h) * h + self.weight.sum()


class Fourier(nn.Module):
    """Spectra: real and complex values meet, and complex ones cross stages."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x, dim=-1)
        turned = spectrum * torch.polar(torch.ones_like(spectrum.real), spectrum.real)
        pairs = torch.view_as_complex(x.reshape(4, 5, -1, 2).contiguous())
        return torch.fft.irfft(turned.conj(), n=WIDTH, dim=-1) + torch.fft.fftn(x).real + torch.view_as_real(pairs).flatten(-2)


class Ctc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 7)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, heard: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.first(x)).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, labels, heard, said, zero_infinity=True) + F.ctc_loss(scores, labels, [5] * 4, [1] * 4)


def ctc_batch(step: int, index: int) -> tuple[torch.Tensor, ...]:
    made = torch.Generator().manual_seed(100 * step + index)
    labels = torch.randint(1, 7, (4, 2), generator=made)
    return (*rows(step, index), labels, torch.tensor([5, 4, 5, 3]), torch.tensor([2, 1, 0, 2]))


class PaddedCtc(Ctc):
    """Labels whose padding is removed before the loss, as in the ``ForCTC`` classes of ``transformers``."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor, heard: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
        scores, used = self.head(self.first(x)).log_softmax(-1).transpose(0, 1), labels != 1
        return F.ctc_loss(scores, labels.masked_select(used), heard, used.sum(-1), zero_infinity=True)


class Packed(nn.Module):
    """Memory that is made unset and filled later, a write with ``out=``, composite operators without a place on the list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        filled = x.new_empty(x.shape)
        filled[..., :3] = x[..., 3:]
        filled[..., 3:] = x[..., :3]
        order = torch.empty(5, dtype=torch.int64)
        order[torch.arange(5).flip(0)] = torch.arange(5)
        return torch.multiply(filled[:, order], x) + torch.linalg.norm(x, dim=-1, keepdim=True)


class Experts(nn.Module):
    """Rows sorted by expert and multiplied group by group, as ``transformers`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.weight = nn.Linear(WIDTH, 3), nn.Parameter(torch.randn(3, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = F.pad(x.reshape(-1, WIDTH), (0, 2))
        scores, expert = self.gate(x.reshape(-1, WIDTH)).softmax(-1).max(-1)
        expert, order = torch.sort(expert)
        ends = torch.cumsum(torch.histc(expert.float(), bins=3, min=0, max=2), 0, dtype=torch.int32)
        product = F.grouped_mm(flat[order], self.weight, offs=ends) * scores[order].unsqueeze(-1)
        return torch.zeros_like(product).index_copy(0, order, product)[:, :WIDTH].reshape(x.shape)


class Sorted(nn.Module):
    """Rows sorted by expert and cut into parts by counts that the data decide, as JetMoE does."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.weight = nn.Linear(WIDTH, 5), nn.Parameter(torch.randn(5, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, WIDTH)
        scores, expert = self.gate(flat).softmax(-1).max(-1)
        counts = torch.zeros(len(flat), 5).scatter(1, expert.unsqueeze(1), 1).long().sum(0).tolist()
        _, order = expert.sort(0)
        parts = flat[order].split(counts, dim=0)
        product = torch.cat([F.linear(parts[i], self.weight[i]) for i in range(5)], dim=0) * scores[order].unsqueeze(-1)
        return torch.zeros_like(product).index_copy(0, order, product).reshape(x.shape)


def _recurrent(kind: type[nn.Module], **options: Any) -> Callable[[], Made]:
    return lambda: (Net(kind(WIDTH, WIDTH, **options)), rows)


def _of(make: Callable[[], nn.Module]) -> Callable[[], Made]:
    return lambda: (Net(make()), rows)


def _convolution() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Conv1d(5, 5, 3, padding=1)), nn.Tanh())


LAYERS: dict[str, Callable[[], Made]] = {
    "lstm": _recurrent(nn.LSTM, num_layers=3, dropout=0.3, batch_first=True),
    "lstm-projected": _recurrent(nn.LSTM, proj_size=3, bidirectional=True),
    "gru": _recurrent(nn.GRU, num_layers=2, dropout=0.2, bidirectional=True),
    "rnn": _recurrent(nn.RNN, num_layers=2, nonlinearity="relu", bias=False),
    "fourier": _of(Fourier),
    "ctc": lambda: (Ctc(), ctc_batch),
    "ctc-padded": lambda: (PaddedCtc(), ctc_batch),
    "spectral-norm": _of(lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH), n_power_iterations=2)),
    "spectral-norm-convolution": _of(_convolution),
    "spectral-norm-hook": _of(lambda: spectral_norm(nn.Linear(WIDTH, WIDTH))),
    "weight-norm": _of(lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))),
    "weight-norm-hook": _of(lambda: weight_norm(nn.Linear(WIDTH, WIDTH))),
    "custom-function": _of(Custom),
    "unset-memory": _of(Packed),
    "grouped-experts": _of(Experts),
    "sorted-experts": _of(Sorted),
}
