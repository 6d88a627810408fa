"""The models of configs/ in PyTorch, with their batches, optimizers and clipping. Needs torch.

MODELS has, by a config's name, a Peer: make() the model, batch, sample(count) inputs and labels, optimizer(parameters), the
norm to which gradients are clipped or None, and whether it reads tokens."""

import dataclasses
import typing

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, CONTEXT = 65, 64


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def lenet():
    return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary=VOCABULARY, context=CONTEXT, layers=4, heads=4, width=128):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[GptBlock(width, heads) for _ in range(layers)])
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("positions", torch.arange(context))

    def forward(self, tokens):
        return self.head(self.ln_f(self.blocks(self.wte(tokens) + self.wpe(self.positions))))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, key_heads, hidden):
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.qkv = nn.Linear(width, (heads + 2 * key_heads) * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.gate_proj, self.up_proj = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cosines, sines):
        b, t, c = x.shape
        parts = self.qkv(self.input_layernorm(x)).view(b, t, -1, self.size).transpose(1, 2)
        turned, v = parts[:, :self.heads + self.key_heads], parts[:, self.heads + self.key_heads:]
        half = torch.cat((-turned[..., self.size // 2:], turned[..., :self.size // 2]), dim=-1)
        turned = turned * cosines + half * sines
        y = F.scaled_dot_product_attention(turned[:, :self.heads], turned[:, self.heads:], v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(b, t, c))
        z = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(z)) * self.up_proj(z))


class Llama(nn.Module):
    def __init__(self, layers=4, heads=4, key_heads=2, width=128, hidden=384):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, key_heads, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, 1e-5), nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed_tokens.weight
        size = width // heads
        frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(CONTEXT), frequencies).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        return self.head(self.norm(x))


class Lstm(nn.Module):
    """Names are those of lockstep's preset, as `lockstep export --format pytorch` writes them."""
    def __init__(self, width=128, units=256, layers=2):
        super().__init__()
        self.encoder = nn.Embedding(VOCABULARY, width)
        self.rnn = nn.LSTM(width, units, layers, batch_first=True)
        self.decoder = nn.Linear(units, VOCABULARY)

    def forward(self, tokens):
        return self.decoder(self.rnn(self.encoder(tokens))[0])


class ResnetBlock(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = (None if channels == out else
                           nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet18(classes=10, width=64):
    """torchvision's, with the stem for images of 32 x 32."""
    blocks, channels = [], width
    for out, stride in ((1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1)):
        blocks.append(ResnetBlock(channels, width * out, stride))
        channels = width * out
    return nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)).to(memory_format=torch.channels_last)


def tokens(count):
    return torch.randint(VOCABULARY, (count, CONTEXT)), torch.randint(VOCABULARY, (count, CONTEXT))


def images(*shape):
    layout = torch.channels_last if shape[0] > 1 else torch.contiguous_format
    return lambda count: (torch.randn(count, *shape).to(memory_format=layout), torch.randint(10, (count,)))


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3, foreach=True)


def adamw(decay):
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.99), weight_decay=decay, foreach=True)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, foreach=True)


@dataclasses.dataclass
class Peer:
    make: typing.Callable
    batch: int
    sample: typing.Callable
    optimizer: typing.Callable
    clip_norm: float | None = None


MODELS = {
    "mnist_mlp": Peer(mlp, 64, images(1, 28, 28), adam),
    "mnist_lenet": Peer(lenet, 64, images(1, 28, 28), adam),
    "shakespeare_gpt": Peer(Gpt, 12, tokens, adamw(0.1), 1.0),
    "cifar_resnet18": Peer(resnet18, 32, images(3, 32, 32), sgd),
    "shakespeare_lstm": Peer(Lstm, 32, tokens, adamw(0.01), 1.0),
    "shakespeare_llama": Peer(Llama, 12, tokens, adamw(0.1), 1.0),
}


def loss_of(network, x, y):
    logits = network(x)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))

