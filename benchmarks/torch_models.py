"""The modules that `benchmarks.torch_backend` compiles, with inputs; their weights are random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, shortcut: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.shortcut, self.last = inner, shortcut or nn.Identity(), last or nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.last(self.inner(x) + self.shortcut(x))


def _normed(channels: int, filters: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
    convolution = nn.Conv2d(channels, filters, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(filters))


def _classifier(channels: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def resnet18() -> nn.Module:
    layers: list[nn.Module] = [_normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for filters in (64, 128, 256, 512):
        for stride in (1 if filters == 64 else 2, 1):
            inner = nn.Sequential(
                _normed(channels, filters, 3, stride), nn.ReLU(inplace=True), _normed(filters, filters, 3)
            )
            shortcut = _normed(channels, filters, 1, stride) if channels != filters else None
            layers.append(Residual(inner, shortcut, nn.ReLU(inplace=True)))
            channels = filters
    return nn.Sequential(*layers, _classifier(512))


def mobilenet_v2() -> nn.Module:
    def inverted(channels: int, filters: int, stride: int, expansion: int) -> nn.Module:
        hidden = channels * expansion
        wide = [_normed(channels, hidden, 1), nn.ReLU6()] if expansion > 1 else []
        inner = nn.Sequential(
            *wide, _normed(hidden, hidden, 3, stride, hidden), nn.ReLU6(), _normed(hidden, filters, 1)
        )
        return Residual(inner) if stride == 1 and channels == filters else inner

    layers: list[nn.Module] = [_normed(3, 32, 3, 2), nn.ReLU6()]
    channels = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, filters, repeats, first in stages:
        for number in range(repeats):
            layers.append(inverted(channels, filters, first if number == 0 else 1, expansion))
            channels = filters
    return nn.Sequential(*layers, _normed(320, 1280, 1), nn.ReLU6(), _classifier(1280))


class UNet(nn.Module):
    """Four levels with skips, up by transposed convolutions."""

    def __init__(self, width: int = 16, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]

        def double(channels: int, filters: int) -> nn.Module:
            first, second = _normed(channels, filters, 3), _normed(filters, filters, 3)
            return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

        self.down = nn.ModuleList(double(c, f) for c, f in zip([3, *widths], widths, strict=False))
        pairs = list(zip(widths[1:], widths, strict=False))[::-1]
        self.rise = nn.ModuleList(nn.ConvTranspose2d(c, f, 2, 2) for c, f in pairs)
        self.up = nn.ModuleList(double(2 * f, f) for _, f in pairs)
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(width, 2, 1)

    def forward(self, x: Any) -> Any:
        skips = []
        for level in self.down[:-1]:
            skips.append(level(x))
            x = self.pool(skips[-1])
        x = self.down[-1](x)
        for rise, level in zip(self.rise, self.up, strict=True):
            x = level(torch.cat([rise(x), skips.pop()], 1))
        return self.head(x)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


def bert_small() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048),
        add_pooling_layer=False,
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "resnet18": (resnet18, lambda: torch.randn(1, 3, 224, 224)),
    "mobilenet_v2": (mobilenet_v2, lambda: torch.randn(1, 3, 224, 224)),
    "encoder": (encoder, lambda: torch.randn(1, 128, 256)),
    "unet": (UNet, lambda: torch.randn(1, 3, 128, 128)),
    "bert_small": (bert_small, lambda: torch.randint(0, 30000, (1, 128))),
}
