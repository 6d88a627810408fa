#!/usr/bin/env python3
"""Models of torchvision and of torch.nn compute the same in lockstep, and models that lockstep has trained compute the same
there: logits to 1e-5, with every name of the state dict, and no other. ResNets, VGG, ViT, MLP, LeNet and LSTMs are those of
scripts/compare_torchvision.py and scripts/compare_lstm.py.

    tests/exchange/torchvision_test.py LOCKSTEP EXCHANGE_LOGITS

LOCKSTEP_TORCHVISION_PYTHON is a Python that has the packages torch and torchvision; default: this one. Exits with 77 if it has
not.
"""

import os
import pathlib
import subprocess
import sys

PYTHON = os.environ.pop("LOCKSTEP_TORCHVISION_PYTHON", None)
if PYTHON:
    sys.exit(subprocess.run([PYTHON, *sys.argv], check=False).returncode)
os.environ["OMP_NUM_THREADS"] = "1"
try:
    import torch
    import torchvision  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}; LOCKSTEP_TORCHVISION_PYTHON may name a Python that has it")
    sys.exit(77)

import array  # noqa: E402
import tempfile  # noqa: E402
import unittest  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import compare_lstm  # noqa: E402
import compare_torchvision  # noqa: E402
from peers import beside  # noqa: E402

LOCKSTEP, LOGITS = "", ""


def image_inputs(case):
    """Of the first sample: what lockstep reads, by name, and PyTorch's logits as a function of the model."""
    images, _ = compare_torchvision.images_of(case.shape)
    return {"image": images[0].permute(1, 2, 0)}, lambda peer: peer(images[:1])


def text_inputs(model):
    tokens = torch.tensor([[3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 0, 6]], dtype=torch.int32)
    if model == "language":
        return {"tokens": tokens}, lambda peer: compare_lstm.language_logits(peer, tokens)
    length = 7
    counts = (torch.arange(compare_lstm.CONTEXT) < length).float()
    return {"tokens": tokens, "mask": counts}, lambda peer: compare_lstm.class_logits(peer, tokens, torch.tensor([length]))


def our_logits(run, inputs):
    checkpoint = sorted((run / "checkpoints").glob("step-*"))[-1]
    with tempfile.TemporaryDirectory() as folder:
        command = [LOGITS, run / "config.effective.textproto", checkpoint]
        for name, values in inputs.items():
            path = pathlib.Path(folder) / name
            path.write_bytes(array.array("i" if values.dtype == torch.int32 else "f", values.flatten().tolist()).tobytes())
            command += [name, path]
        done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.frombuffer(bytearray(done.stdout), dtype=torch.float32)


class Exchange(unittest.TestCase):
    def expect_equal_logits(self, name, case, inputs, logits):
        with self.subTest(name), tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            case.write_data(folder)
            # From there to here: a step whose rate is too small to change a weight; statistics follow the batch in both.
            theirs, loss = case.make_peer()
            case.load(theirs, beside.shaken(case.numbers_of(theirs)))
            beside.write_tensors(folder / "theirs.safetensors", theirs.state_dict())  # with counts of batches
            _, run = case.train(LOCKSTEP, folder, "read", 1, 1e-30, folder / "theirs.safetensors")
            theirs.train()
            loss()
            theirs.eval()
            with torch.no_grad():
                expected = logits(theirs).flatten()
            self.assertGreater(expected.std().item(), 0.01)
            self.expect_near(our_logits(run, inputs), expected)
            # From here to there: what was trained.
            _, run = case.train(LOCKSTEP, folder, "trained", 2, case.rate, folder / "theirs.safetensors")
            case.load(theirs, case.numbers_in(LOCKSTEP, run))
            with torch.no_grad():
                self.expect_near(our_logits(run, inputs), logits(theirs).flatten())

    def expect_near(self, ours, theirs):
        scale = max(1, theirs.abs().max().item())
        self.assertLess((ours - theirs).abs().max().item() / scale, 1e-5)

    def test_models_of_images(self):
        for name, case in compare_torchvision.CASES.items():
            self.expect_equal_logits(name, case, *image_inputs(case))

    def test_lstms(self):
        for name, case in compare_lstm.CASES.items():
            self.expect_equal_logits(name, case, *text_inputs(name))


if __name__ == "__main__":
    LOGITS = sys.argv.pop(2)
    LOCKSTEP = sys.argv.pop(1)
    unittest.main(verbosity=2)
