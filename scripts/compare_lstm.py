#!/usr/bin/env python3
"""Trains the preset lstm and a model of torch.nn.LSTM from the same weights on the same texts, and compares each of twenty
losses, and all parameters after one step: a language model of two layers, and a classifier of texts of different lengths that
reads in both directions.

    scripts/compare_lstm.py LOCKSTEP [--model language|classifier ...] [--steps 20]

Needs the package torch; without it it exits with 77. The weights are lockstep's: those of a checkpoint after a step whose rate
is too small to change a number, under PyTorch's names (`lockstep export --format pytorch`). The one step begins at weights that
lockstep reads under these names (`train --from`). Numbers are float32. Exits with 1 if a loss, or a number after one step,
differs by more than 1e-5.
"""

import random

from peers import beside

SAMPLES, CONTEXT, RATE = 8, 12, 0.05
MODELS = {
    "language": "lstm { vocabulary: 7 context: 12 layers: 2 width: 6 units: 10 }",
    "classifier": "lstm { vocabulary: 256 context: 12 width: 6 units: 10 classes: 3 bidirectional: true pool: LAST }",
}
LETTERS = "abcdefg"


def draw_text():
    """The text of a language model, whose samples begin at each of its first letters."""
    numbers = random.Random(1)
    return LETTERS + "".join(numbers.choice(LETTERS) for _ in range(SAMPLES + CONTEXT - len(LETTERS)))


def draw_lines():
    """(class, text) of all samples."""
    numbers = random.Random(2)
    return [(i % 3, "".join(numbers.choice(LETTERS) for _ in range(numbers.randint(1, CONTEXT)))) for i in range(SAMPLES)]


def write_data(folder):
    (folder / "text.txt").write_text(draw_text())
    (folder / "lines.tsv").write_text("".join(f"class{label}\t{text}\n" for label, text in draw_lines()))


def config(model, steps, rate):
    data = {"language": 'text { file: "text.txt" train_fraction: 1 }', "classifier": 'lines { files: "lines.tsv" }'}
    return f"""
model {{ {MODELS[model]} }}
data {{ {data[model]} shuffle: false }}
trainer {{ global_batch: {SAMPLES} micro_batch: {SAMPLES} virtual_replicas: 1 steps: {steps} seed: 1 eval_at_end: false }}
optimizer {{ learning_rate: {rate} sgd {{ momentum: {beside.MOMENTUM} }} }}
metrics {{ tensorboard: false machine_every_seconds: 0 }}
"""


def language_logits(peer, tokens):
    return peer.decoder(peer.rnn(peer.encoder(tokens))[0])


def class_logits(peer, tokens, lengths):
    """Of the last state of each direction."""
    import torch
    packed = torch.nn.utils.rnn.pack_padded_sequence(peer.encoder(tokens), lengths, batch_first=True, enforce_sorted=False)
    states = peer.rnn(packed)[1][0]
    return peer.decoder(torch.cat([states[0], states[1]], dim=1))


def make_peer(model):
    """The model, and a function of no arguments: its loss on all samples."""
    import torch

    class Peer(torch.nn.Module):
        def __init__(self, vocabulary, layers, both, outputs):
            super().__init__()
            self.encoder = torch.nn.Embedding(vocabulary, 6)
            self.rnn = torch.nn.LSTM(6, 10, layers, batch_first=True, bidirectional=both)
            self.decoder = torch.nn.Linear(20 if both else 10, outputs)

    if model == "language":
        peer, ids = Peer(len(LETTERS), 2, False, len(LETTERS)), [LETTERS.index(letter) for letter in draw_text()]
        samples = torch.tensor([ids[i:i + CONTEXT + 1] for i in range(SAMPLES)])
        tokens, labels = samples[:, :-1], samples[:, 1:].flatten()
        return peer, lambda: torch.nn.functional.cross_entropy(language_logits(peer, tokens).flatten(0, 1), labels)
    peer, lines = Peer(256, 1, True, 3), draw_lines()
    tokens = torch.tensor([list(text.encode()) + [0] * (CONTEXT - len(text)) for _, text in lines])
    lengths, labels = torch.tensor([len(text) for _, text in lines]), torch.tensor([label for label, _ in lines])
    return peer, lambda: torch.nn.functional.cross_entropy(class_logits(peer, tokens, lengths), labels)


def case(model):
    return beside.Case(config=lambda steps, rate: config(model, steps, rate), write_data=write_data,
                       make_peer=lambda: make_peer(model), rate=RATE, one_rate=RATE)


CASES = {model: case(model) for model in MODELS}

if __name__ == "__main__":
    beside.main(__doc__, "torch", CASES)
