#!/usr/bin/env python3
"""Trains the preset gpt and transformers' GPT2LMHeadModel from the same weights on the same text, and compares each of twenty
losses, and all parameters after one step: with a head that is tied to the embedding, and GELU as GPT-2 computes it; with a head
of its own, and GELU by the error function.

    scripts/compare_transformers.py LOCKSTEP [--model gpt|gpt_untied ...] [--steps 20]

Needs the packages torch and transformers; without them it exits with 77. Weights go there by `lockstep export --format
huggingface`, and into the one step by `train --from`. Numbers are float32. Exits with 1 if a loss, or a number after one step,
differs by more than 1e-5. (Of the preset llama, tests/ops/goldens/llama.txt has weights and losses of transformers.)
"""

import random

from peers import beside

SAMPLES, CONTEXT, RATE = 8, 12, 0.05
LETTERS = "abcdefg"
SIZE = f"vocabulary: {len(LETTERS)} context: {CONTEXT} layers: 2 heads: 2 width: 16"


def draw_text():
    """A text whose samples begin at each of its first letters."""
    numbers = random.Random(1)
    return LETTERS + "".join(numbers.choice(LETTERS) for _ in range(SAMPLES + CONTEXT - len(LETTERS)))


def config(preset, steps, rate):
    return f"""
model {{ {preset} }}
data {{ text {{ file: "text.txt" train_fraction: 1 }} shuffle: false }}
trainer {{ global_batch: {SAMPLES} micro_batch: {SAMPLES} virtual_replicas: 1 steps: {steps} seed: 1 eval_at_end: false }}
optimizer {{ learning_rate: {rate} sgd {{ momentum: {beside.MOMENTUM} }} }}
metrics {{ tensorboard: false machine_every_seconds: 0 }}
"""


def make_peer(tied, gelu):
    import torch
    import transformers
    peer = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=len(LETTERS), n_positions=CONTEXT, n_embd=16, n_layer=2, n_head=2, activation_function=gelu,
        tie_word_embeddings=tied, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, bos_token_id=None, eos_token_id=None)).train()
    ids = [LETTERS.index(letter) for letter in draw_text()]
    samples = torch.tensor([ids[i:i + CONTEXT + 1] for i in range(SAMPLES)])

    def loss():
        return torch.nn.functional.cross_entropy(peer(samples[:, :-1]).logits.flatten(0, 1), samples[:, 1:].flatten())

    return peer, loss


def case(preset, tied, gelu):
    return beside.Case(config=lambda steps, rate: config(preset, steps, rate),
                       write_data=lambda folder: (folder / "text.txt").write_text(draw_text()),
                       make_peer=lambda: make_peer(tied, gelu), rate=RATE, one_rate=RATE, model_format="huggingface",
                       shared={"lm_head.weight": "transformer.wte.weight"} if tied else {})


CASES = {
    "gpt": case(f"gpt {{ {SIZE} }}", True, "gelu_new"),
    "gpt_untied": case(f"gpt {{ {SIZE} tied_head: false gelu: ERF }}", False, "gelu"),
}

if __name__ == "__main__":
    beside.main(__doc__, "transformers", CASES)
