"""Goldens of layers of sequences, of those that only move elements, and of a Llama: one function for each op, which yields
(case, {name: tensor})."""

import torch
import torch.nn.functional as F

from goldens.parts import integers, random, run


def embedding():
    yield "repeated", run(F.embedding, [integers(3, 9, below=11)], {"weight": random(11, 7)})


def rotary_embedding():
    """As transformers writes it for Llama: x cos + rotate_half(x) sin."""
    def rotate(x, size, heads, frequencies=None):
        batch, positions, channels = x.shape
        if frequencies is None:
            frequencies = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies).repeat(1, 2)[:, None]
        split = x.reshape(batch, positions, channels // size, size)
        turned, same = split[:, :, :heads], split[:, :, heads:]
        half = torch.cat((-turned[..., size // 2:], turned[..., :size // 2]), dim=-1)
        return torch.cat((turned * angles.cos() + half * angles.sin(), same), dim=2).reshape(x.shape)

    yield "two_of_three_heads", run(lambda x: rotate(x, 6, 2), [random(2, 5, 18)], {})

    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    scaled = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 64}
    config = LlamaConfig(hidden_size=16, num_attention_heads=1, head_dim=16, rope_parameters=scaled)
    by_llama_3 = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].double()
    yield "scaled_as_in_llama_3", run(lambda x: rotate(x, 16, 1, by_llama_3), [random(2, 40, 16)], {})


def attention():
    def attend(qkv, heads, key_heads=None, causal=True):
        key_heads = key_heads or heads
        batch, positions, width = qkv.shape
        size = width // (heads + 2 * key_heads)
        q, k, v = (part.reshape(batch, positions, -1, size).transpose(1, 2)
                   for part in qkv.split([heads * size, key_heads * size, key_heads * size], dim=2))
        k, v = (part.repeat_interleave(heads // key_heads, dim=1) for part in (k, v))
        scores = q @ k.transpose(2, 3) / size ** 0.5
        hidden = (torch.ones(positions, positions).tril() == 0) & causal
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).reshape(batch, positions, heads * size)

    yield "two_heads", run(lambda x: attend(x, 2), [random(2, 6, 3 * 10, low=-2, high=2)], {})
    yield "two_blocks", run(lambda x: attend(x, 1), [random(1, 66, 3 * 3, low=-2, high=2)], {})
    yield "grouped", run(lambda x: attend(x, 4, 2), [random(2, 6, 8 * 5, low=-2, high=2)], {})
    yield "not_causal", run(lambda x: attend(x, 2, causal=False), [random(2, 6, 6 * 5, low=-2, high=2)], {})
    def attend_marked(qkv, marks, heads, key_heads, causal):
        """By PyTorch's own function, with marks as a mask of lengths or as numbers of documents. Of a query that sees nothing
        PyTorch makes NaN; here it gives 0."""
        batch, positions, width = qkv.shape
        size = width // (heads + 2 * key_heads)
        q, k, v = (part.reshape(batch, positions, -1, size).transpose(1, 2)
                   for part in qkv.split([heads * size, key_heads * size, key_heads * size], dim=2))
        k, v = (part.repeat_interleave(heads // key_heads, dim=1) for part in (k, v))
        counts = marks != 0 if marks.is_floating_point() else marks >= 0
        seen = marks[:, :, None] == marks[:, None, :]
        seen &= counts[:, :, None] & counts[:, None, :]
        if causal:
            seen &= torch.ones(positions, positions).tril() == 1
        # A query without a key sees itself, for a result that is thrown away.
        allowed = (seen | torch.eye(positions, dtype=torch.bool))[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        y = torch.where(counts[:, None, :, None], y, 0.0)
        return y.transpose(1, 2).reshape(batch, positions, heads * size)

    def marked(marks, heads, key_heads, size, causal):
        x = random(*marks.shape, (heads + 2 * key_heads) * size, low=-2, high=2)
        return run(lambda x, marks: attend_marked(x, marks, heads, key_heads, causal), [x, marks], {})

    def mask(positions, *lengths):
        return torch.tensor([[float(t < length) for t in range(positions)] for length in lengths]).double()

    def documents(*samples):
        return torch.tensor([[d for d, length in documents for _ in range(length)] for documents in samples], dtype=torch.int32)

    yield "masked", marked(mask(6, 4, 6, 1), 4, 2, 3, True)
    yield "masked_not_causal", marked(mask(6, 4, 6, 1), 2, 2, 4, False)
    yield "documents", marked(documents([(0, 2), (1, 3), (2, 1), (-1, 1)], [(0, 7)]), 2, 1, 4, True)
    yield "documents_not_causal", marked(documents([(0, 60), (4, 7), (5, 3)]), 1, 1, 3, False)


def lstm():
    """nn.LSTM of one layer; with lengths, on packed sequences, whose mask is input1."""
    def case(batch, positions, width, units, both=False, lengths=None):
        module = torch.nn.LSTM(width, units, batch_first=True, bidirectional=both).double()
        theirs = {name.replace("_l0", ""): name for name, _ in module.named_parameters()}
        parameters = {name: random(*module.get_parameter(there).shape) for name, there in theirs.items()}

        def compute(x, mask=None, **weights):
            state = {theirs[name]: weight for name, weight in weights.items()}
            if mask is None:
                return torch.func.functional_call(module, state, (x,))[0]
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            output = torch.func.functional_call(module, state, (packed,))[0]
            return torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=positions)[0]

        inputs = [random(batch, positions, width)]
        if lengths:
            inputs.append(torch.tensor([[float(t < length) for t in range(positions)] for length in lengths]).double())
        return run(compute, inputs, parameters)

    yield "forward", case(2, 4, 3, 5)
    yield "both_directions", case(2, 3, 4, 3, both=True)
    yield "lengths", case(3, 4, 2, 4, both=True, lengths=[2, 4, 1])


def llama():
    """transformers' LlamaForCausalLM in float32: its weights under our names, the logits of four samples, and the losses
    of twenty steps on them, with the weights after the first step and at the end."""
    import transformers

    def ours(model):
        weights = {name.removeprefix("model."): value.detach().clone() for name, value in model.named_parameters()}
        for block in {name.rsplit("q_proj", 1)[0] for name in weights if "q_proj" in name}:
            weights[block + "qkv_proj.weight"] = torch.cat([weights.pop(f"{block}{part}_proj.weight") for part in "qkv"])
        return weights

    def case(key_heads, tied, make_optimizer):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=key_heads, max_position_embeddings=8, rms_norm_eps=1e-5, tie_word_embeddings=tied)).float()
        for name, value in model.named_parameters():
            torch.nn.init.normal_(value, 1.0 if "norm" in name else 0.0, 0.3)
        tokens, labels = integers(4, 8, below=11), integers(4, 8, below=11)
        tensors = {"tokens": tokens, "labels": labels} | ours(model)
        optimizer, losses = make_optimizer(model.parameters()), []
        for step in range(20):
            logits = model(input_ids=tokens.long()).logits
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten().long())
            if step == 0:
                tensors["logits"] = logits.detach().clone()
            losses.append(loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 0:
                tensors |= {f"after one step {name}": value for name, value in ours(model).items()}
        return tensors | {"losses": torch.stack(losses)}

    # At a rate of 0.1, PyTorch's own losses in float32 and in float64 differ by 2.3e-5 after twenty steps; here, by 3e-6.
    yield "grouped", case(2, False, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    yield "tied", case(4, True, lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.99), eps=1e-3, weight_decay=0))


def concatenate():
    def join(*inputs, dim):
        return torch.cat(inputs, dim=dim)

    yield "channels", run(lambda *x: join(*x, dim=-1), [random(2, 3, 4), random(2, 3, 1), random(2, 3, 5)], {})
    yield "rows", run(lambda *x: join(*x, dim=1), [random(2, 3, 4), random(2, 2, 4)], {})


def slice():
    yield "rows", run(lambda x: x[:, 1:3], [random(2, 5, 4)], {})
    yield "channels_from_the_end", run(lambda x: x[..., 1:-1], [random(2, 3, 6)], {})


def transpose():
    yield "two", run(lambda x: x.transpose(1, 2), [random(3, 4, 5)], {})
    yield "three", run(lambda x: x.permute(0, 3, 1, 2), [random(2, 3, 4, 5)], {})


def sequence_pool():
    """Of sequences with lengths, as users of nn.LSTM pool; the mask of lengths is input1."""
    lengths = torch.tensor([3, 1, 5])
    mask = (torch.arange(5) < lengths[:, None]).double()
    masked = lambda function: run(lambda x, mask: function(x), [random(3, 5, 4), mask.clone()], {})
    last = lambda x: x[torch.arange(len(x)), lengths - 1]
    yield "mean", run(lambda x: x.mean(dim=1), [random(2, 5, 4)], {})
    yield "mean_of_lengths", masked(lambda x: (x * mask.unsqueeze(-1)).sum(dim=1) / lengths.unsqueeze(-1))
    yield "last_of_lengths", masked(last)
    yield "ends_of_lengths", masked(lambda x: torch.cat([last(x)[:, :2], x[:, 0, 2:]], dim=-1))


def prepend_token():
    yield "class_token", run(lambda x, weight: torch.cat([weight.expand(len(x), 1, -1), x], dim=1), [random(2, 3, 4)],
                             {"weight": random(1, 4)})


OPS = [embedding, rotary_embedding, attention, lstm, concatenate, slice, transpose, sequence_pool, prepend_token, llama]
