"""Real modules, every output compared with eager PyTorch, nothing of them left to it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.torch.captured import all_are_compiled, compiled, graphs, same, warnings_of  # noqa: E402


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.shortcut = inner, shortcut or nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.inner(x) + self.shortcut(x)


def convolution(channels: int, filters: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    same_size = size // 2
    return [nn.Conv2d(channels, filters, size, stride, same_size, groups=groups, bias=False), nn.BatchNorm2d(filters)]


def resnet(width: int = 8) -> nn.Module:
    """As torchvision's: basic blocks, one of them with stride and a projection."""

    def block(channels: int, filters: int, stride: int) -> nn.Module:
        first, second = convolution(channels, filters, 3, stride), convolution(filters, filters, 3)
        shortcut = nn.Sequential(*convolution(channels, filters, 1, stride)) if stride > 1 else None
        return nn.Sequential(Residual(nn.Sequential(*first, nn.ReLU(inplace=True), *second), shortcut), nn.ReLU())

    stem = [*convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10)]
    return nn.Sequential(*stem, block(width, width, 1), block(width, 2 * width, 2), *head)


def mobilenet() -> nn.Module:
    """Inverted residuals with depthwise convolutions, as of MobileNet V2 and V3."""

    def inverted(channels: int, hidden: int, activation: type[nn.Module]) -> nn.Module:
        depthwise = convolution(hidden, hidden, 3, groups=hidden)
        wide = [*convolution(channels, hidden, 1), activation(), *depthwise, activation()]
        return Residual(nn.Sequential(*wide, *convolution(hidden, channels, 1)))

    stem = [*convolution(3, 8, 3, 2), nn.Hardswish()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 10)]
    return nn.Sequential(*stem, inverted(8, 32, nn.ReLU6), inverted(8, 24, nn.Hardswish), *head)


class UNet(nn.Module):
    """Two levels with skips: up by a transposed convolution and by interpolation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def double(channels: int, filters: int) -> nn.Module:
            first, second = (nn.Conv2d(c, filters, 3, padding=1) for c in (channels, filters))
            return nn.Sequential(first, nn.GroupNorm(4, filters), nn.SiLU(), second, nn.SiLU())

        self.down = nn.ModuleList([double(3, width), double(width, 2 * width)])
        self.middle, self.pool = double(2 * width, 4 * width), nn.MaxPool2d(2)
        self.rise = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear")]
        )
        self.up = nn.ModuleList([double(4 * width, 2 * width), double(3 * width, width)])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Any) -> tuple[Any, Any]:
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for rise, level in zip(self.rise, self.up, strict=True):
            x = level(torch.cat([rise(x), skips.pop()], 1))
        return self.head(x), functional.interpolate(x, size=5, mode="nearest")


class Tagger(nn.Module):
    """A recurrent layer of two directions over words; its states are results too."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 8), kind(8, 12, bidirectional=True, **options)
        self.tags = nn.Linear(24, 7)

    def forward(self, ids: Any) -> tuple[Any, Any]:
        y, states = self.layer(self.words(ids))
        return self.tags(y), states


class Cached(nn.Module):
    """Writes to rows of its buffer: as `index_copy_` and by an index with minus one, then one row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 6, 4))

    def forward(self, places: Any, x: Any) -> Any:
        self.rows.index_copy_(1, places, x)
        self.rows[:, places - 6] += 1
        self.rows[:, places[:1]] = x[:, :1] * 2
        return self.rows.sum(1)


def test_lstm() -> None:
    model, ids = Tagger(nn.LSTM).eval(), torch.randint(0, 50, (5, 2))
    same(compiled(model)(ids), model(ids))
    assert all_are_compiled()
    (graph,) = graphs()
    assert len(graph.module.graph.nodes) < 40  # steps are not written out


def test_rows_of_a_buffer_are_written_in_place() -> None:
    model, other = Cached().eval(), Cached().eval()
    fast = compiled(model)
    for places in ([0, 3], [5, 1]):
        given = torch.tensor(places), torch.randn(2, 2, 4)
        same(fast(*given), other(*given))
        same(model.rows, other.rows)
    assert all_are_compiled()


IMAGES, WORDS = (torch.zeros(1, 3, 32, 32),), (torch.zeros(3, 4, dtype=torch.int64),)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "like"),
    [
        pytest.param(resnet(), IMAGES, id="resnet"),
        pytest.param(mobilenet(), IMAGES, id="mobilenet"),
        pytest.param(UNet(), IMAGES, id="unet"),
        pytest.param(Tagger(nn.GRU, num_layers=2, batch_first=True), WORDS, id="gru"),
        pytest.param(Tagger(nn.RNN, nonlinearity="relu", bias=False), WORDS, id="rnn"),
    ],
)
def test_networks(model: nn.Module, like: tuple[Any, ...], caplog: pytest.LogCaptureFixture) -> None:
    compare(model, *_random(like))
    assert not warnings_of(caplog)


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer(norm_first: bool) -> None:
    """Encoder, with the operator that PyTorch has for its layer, and decoder; with a causal mask and one of tokens."""
    model = nn.Transformer(32, 4, 1, 1, 64, batch_first=True, norm_first=norm_first, activation="gelu")
    source, target = torch.randn(2, 5, 32), torch.randn(2, 6, 32)
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    compare(model, source, target, tgt_mask=causal, tgt_is_causal=True)
    missing = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    encoder = nn.TransformerEncoder(model.encoder.layers[0], 1, enable_nested_tensor=False)
    compare(encoder, source, src_key_padding_mask=missing)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "bert with a mask", "vit", "whisper"])
def test_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    if name == "vit":
        model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **small))
        compare(model, torch.randn(2, 3, 32, 32))
    elif name == "whisper":
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        heads = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
        config = transformers.WhisperConfig(d_model=32, num_mel_bins=16, max_source_positions=20, **heads)
        compare(WhisperEncoder(config), torch.randn(1, 16, 40))
    else:
        model = transformers.BertModel(transformers.BertConfig(vocab_size=100, **small))
        mask = torch.tensor([[1] * 12, [1] * 7 + [0] * 5])
        compare(model, torch.randint(0, 100, (2, 12)), *([mask] if "mask" in name else []))


@pytest.mark.slow
def test_a_decoder_with_a_static_cache() -> None:
    """Reads four words, then writes one after the other; each call writes keys and values into the cache."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    model = transformers.LlamaForCausalLM(config).eval()

    def generated(decoder: Any) -> list[Any]:
        cache = transformers.StaticCache(config=config, max_cache_len=16)
        ids, positions, found = torch.tensor([[3, 5, 7, 2]]), torch.arange(4)[None], []
        for _ in range(5):
            logits = decoder(input_ids=ids, past_key_values=cache, position_ids=positions, use_cache=True).logits
            ids, positions = logits[:, -1:].argmax(-1), positions[:, -1:] + 1
            found.append(logits)
        return [*found, *((layer.keys, layer.values) for layer in cache.layers)]

    same(generated(compiled(model)), generated(model))
    assert all_are_compiled()


def compare(model: nn.Module, *given: Any, **named: Any) -> None:
    """What the compiled model returns, twice, with what the model does; all of it has to be compiled."""
    fast = compiled(model.eval())
    wanted = model(*given, **named)
    for _ in range(2):
        same(fast(*given, **named), wanted)
    assert all_are_compiled()


def _random(like: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(torch.randn(x.shape) if x.is_floating_point() else torch.randint(0, 50, x.shape) for x in like)
