#!/usr/bin/env python3
"""Models of transformers and of PyTorch compute the same in lockstep, and models that lockstep has trained compute the same
there: logits to 1e-5, greedy texts token by token. Models have random weights, and are made here from their configs.

    tests/exchange/transformers_test.py LOCKSTEP EXCHANGE_LOGITS

LOCKSTEP_TRANSFORMERS_PYTHON is a Python that has the packages `transformers`, `torch` and `safetensors`; default: this one. Exits
with 77 if it has not.
"""

import os
import subprocess
import sys

PYTHON = os.environ.get("LOCKSTEP_TRANSFORMERS_PYTHON", sys.executable)
if os.path.realpath(PYTHON) != os.path.realpath(sys.executable) or "LOCKSTEP_TRANSFORMERS_PYTHON" in os.environ:
    os.environ.pop("LOCKSTEP_TRANSFORMERS_PYTHON", None)
    sys.exit(subprocess.run([PYTHON, *sys.argv], check=False).returncode)
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
try:
    import safetensors.torch
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}; LOCKSTEP_TRANSFORMERS_PYTHON may name a Python that has it")
    sys.exit(77)

import array  # noqa: E402
import json  # noqa: E402
import pathlib  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
import unittest  # noqa: E402

LOCKSTEP, LOGITS = "", ""
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONTEXT, VOCABULARY = 24, 300
TEXT = "Weights come and go: what one program learns, another continues. Names differ, numbers do not. " * 60
PRESETS = {
    "gpt2": f"gpt {{ vocabulary: {VOCABULARY} context: {CONTEXT} layers: 2 heads: 2 width: 32 }}",
    "gpt2_untied_without_bias":
        f"gpt {{ vocabulary: {VOCABULARY} context: {CONTEXT} layers: 2 heads: 4 width: 32 tied_head: false bias: false }}",
    "llama": f"llama {{ vocabulary: {VOCABULARY} context: {CONTEXT} layers: 2 heads: 4 key_value_heads: 2 width: 32 theta: 500 }}",
    "gpt2_by_erf": f"gpt {{ vocabulary: {VOCABULARY} context: {CONTEXT} layers: 2 heads: 2 width: 32 gelu: ERF }}",
    "llama_scaled": f"llama {{ vocabulary: {VOCABULARY} context: {CONTEXT} layers: 2 heads: 2 key_value_heads: 1 width: 32 theta: 500"
                    " scaling_factor: 8 original_positions: 40 }",
    "llama_tied": f"llama {{ vocabulary: {VOCABULARY} context: {CONTEXT} layers: 2 heads: 4 width: 32 tied_head: true }}",
}
CONFIG = """format_version: 1
model { %s }
data { tokens { files: "tokens_*.bin" } }
trainer { global_batch: 8 steps: 80 }
optimizer { learning_rate: 3e-3 adamw {} }
"""


def their_models():
    gpt2 = dict(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None,
                attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    llama = dict(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=32, intermediate_size=56, num_hidden_layers=2,
                 num_attention_heads=4, bos_token_id=None, eos_token_id=None)
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(**gpt2))
    yield "gpt2 untied", transformers.GPT2LMHeadModel(transformers.GPT2Config(**gpt2, tie_word_embeddings=False))
    yield "gpt2 by erf", transformers.GPT2LMHeadModel(transformers.GPT2Config(**gpt2, activation_function="gelu"))
    scaled = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 40}
    yield "llama scaled", transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama, rope_parameters=scaled))
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama, num_key_value_heads=2))
    yield "llama tied", transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**llama, tie_word_embeddings=True, rms_norm_eps=1e-5))


def shake(model):
    """Random weights and biases, large enough that a mistake shows."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter + 0.2 * torch.randn_like(parameter))
    return model.eval()


def lockstep(*arguments):
    done = subprocess.run([LOCKSTEP, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def our_logits(run, name, values):
    checkpoint = sorted((run / "checkpoints").glob("step-*"))[-1]
    with tempfile.NamedTemporaryFile() as file:
        file.write(array.array("i" if values.dtype == torch.int32 else "f", values.flatten().tolist()).tobytes())
        file.flush()
        done = subprocess.run([LOGITS, run / "config.effective.textproto", checkpoint, name, file.name], capture_output=True,
                              check=False)
    assert done.returncode == 0, done.stderr
    return torch.frombuffer(bytearray(done.stdout), dtype=torch.float32)


class Exchange(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        (cls.folder / "text").write_text(TEXT)
        lockstep("data", "tokens", cls.folder / "text", "--out", cls.folder / "tokens", "--vocabulary", VOCABULARY)
        cls.tokenizer = cls.folder / "tokens" / "tokenizer.json"
        cls.size = len(json.loads(cls.tokenizer.read_text())["model"]["vocab"])

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def new(self, name):
        path = self.folder / f"{self._testMethodName}-{name}".replace(" ", "_")
        shutil.rmtree(path, ignore_errors=True)
        return path

    def tokens(self):
        torch.manual_seed(5)
        return torch.randint(0, VOCABULARY, (1, CONTEXT))

    def expect_equal_logits(self, run, model, tolerance=1e-5):
        tokens = self.tokens()
        with torch.no_grad():
            theirs = model(tokens).logits.flatten()
        ours = our_logits(run, "tokens", tokens.to(torch.int32))
        self.assertLess((ours - theirs).abs().max().item(), tolerance)
        self.assertGreater(theirs.std().item(), 0.05)

    def expect_equal_texts(self, run, model, tokenizer):
        prompt = "Weights come"
        written = json.loads(lockstep("generate", "--checkpoint", run, "--prompt", prompt, "--tokens", 12, "--temperature", 0,
                                      "--threads", 1, "--json"))
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        theirs = model.generate(ids, max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(ids), pad_token_id=0)[0]
        new = [token for token in theirs[ids.shape[1]:].tolist() if token != tokenizer.eos_token_id]
        if all(token < self.size for token in new):  # lockstep writes no tokens that stand for nothing
            self.assertEqual(written["text"].encode(errors="replace"), tokenizer.decode(new).encode(errors="replace"))
        return new

    def test_their_models_compute_the_same_here(self):
        for name, model in their_models():
            with self.subTest(name):
                shake(model).save_pretrained(self.new("theirs"), max_shard_size="20KB" if "tied" in name else "1GB")
                self.assertEqual(len(list(self.new_or_made("theirs").glob("*.index.json"))), 1 if "tied" in name else 0)
                lockstep("import", self.new_or_made("theirs"), "--out", self.new("run"))
                self.expect_equal_logits(self.new_or_made("run"), model)

    def new_or_made(self, name):
        return self.folder / f"{self._testMethodName}-{name}".replace(" ", "_")

    def test_our_models_compute_the_same_there(self):
        for name, preset in PRESETS.items():
            with self.subTest(name):
                config, run, out = self.new("config"), self.new("run"), self.new("out")
                config.write_text(CONFIG % preset)
                lockstep("train", config, "--data-dir", self.folder / "tokens", "--out", run, "--quiet")
                lockstep("export", run, "--format", "huggingface", "--out", out)
                model = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
                self.assertEqual(model.dtype, torch.float32)
                self.expect_equal_logits(run, model)
                tokenizer = transformers.AutoTokenizer.from_pretrained(out)
                data = next((self.folder / "tokens").glob("tokens_*.bin")).read_bytes()[1024:]
                ours = list(array.array("H", data))[1:]  # behind <|endoftext|>
                self.assertEqual(tokenizer(TEXT, add_special_tokens=False).input_ids, ours)
                self.assertEqual(tokenizer.decode(ours[:50]), TEXT[: len(tokenizer.decode(ours[:50]))])
                self.assertEqual(tokenizer.eos_token, "<|endoftext|>")
                self.assertGreater(len(set(self.expect_equal_texts(run, model, tokenizer))), 3)

    def test_other_types_and_shards_are_read_there(self):
        config, run = self.new("config"), self.new("run")
        config.write_text(CONFIG % PRESETS["llama"])
        lockstep("train", config, "--data-dir", self.folder / "tokens", "--out", run, "--quiet")
        for dtype in ("bfloat16", "float16"):
            out = self.new("out")
            lockstep("export", run, "--format", "huggingface", "--out", out, "--dtype", dtype)
            model = transformers.AutoModelForCausalLM.from_pretrained(out)
            self.assertEqual(str(model.dtype), f"torch.{dtype}")
            self.expect_equal_logits(run, model.float().eval(), tolerance=0.3)
            # What was rounded once is read exactly.
            again = self.new("again")
            lockstep("import", out, "--out", again)
            self.expect_equal_logits(again, model.float().eval())

    def test_a_run_trained_from_their_weights_writes_by_their_tokenizer(self):
        for name, model in their_models():
            if name not in ("gpt2", "llama"):
                continue
            with self.subTest(name):
                theirs, config, run, out = self.new("theirs"), self.new("config"), self.new("run"), self.new("out")
                shake(model).save_pretrained(theirs)
                shutil.copy(self.tokenizer, theirs)
                preset = {"gpt2": PRESETS["gpt2"],
                          "llama": PRESETS["llama"].replace("theta: 500", "hidden: 56 epsilon: 1e-6")}[name]
                config.write_text(CONFIG % preset)
                lockstep("train", config, "--data-dir", self.folder / "tokens", "--from", theirs, "--out", run, "--quiet",
                         "--stop-after", 3)
                lockstep("export", run, "--format", "huggingface", "--out", out)
                tuned = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
                self.expect_equal_logits(run, tuned)
                self.expect_equal_texts(run, tuned, transformers.AutoTokenizer.from_pretrained(out))
                manifest = json.loads(next(run.glob("checkpoints/*/manifest.json")).read_text())
                self.assertEqual(manifest["weights_from"], str(theirs))

    def test_image_models_go_to_pytorch_and_back(self):
        lockstep("data", "digits", "--out", self.folder / "digits", "--train", 512, "--eval", 64)
        config, run, out = self.new("config"), self.new("run"), self.new("out")
        config.write_text((ROOT / "configs/digits_quickstart.textproto").read_text())
        sets = ["--set", "model={lenet {image: [28, 28, 1] batch_norm: true}}", "--set", "trainer.steps=5"]
        lockstep("train", config, *sets, "--data-dir", self.folder / "digits", "--out", run, "--quiet")
        lockstep("export", run, "--format", "pytorch", "--out", out)
        torch.manual_seed(7)
        image = torch.randn(28, 28, 1)
        net = lenet()
        net.load_state_dict(safetensors.torch.load_file(out / "model.safetensors"))
        with torch.no_grad():
            theirs = net.eval()(image.permute(2, 0, 1)[None]).flatten()
        self.assertLess((our_logits(run, "image", image) - theirs).abs().max().item(), 1e-5)
        # Weights of a wrapped module, as torch.save's successor keeps them.
        state = {f"module.{name}": tensor.contiguous() for name, tensor in shake_state(net).items()}
        safetensors.torch.save_file(state, out / "wrapped.safetensors")
        back = self.new("back")
        lockstep("train", config, *sets, "--data-dir", self.folder / "digits", "--out", back, "--quiet", "--from",
                 out / "wrapped.safetensors", "--set", "optimizer.learning_rate=1e-30", "--set", "optimizer.sgd={momentum: 0}",
                 "--stop-after", 1)
        kept = safetensors.torch.load_file(next(back.glob("checkpoints/*/model-*.safetensors")))
        self.assertTrue(torch.equal(kept["conv2.weight"], state["module.conv2.weight"].permute(0, 2, 3, 1)))
        self.assertTrue(torch.equal(kept["fc1.weight"].view(120, 5, 5, 16).permute(0, 3, 1, 2).reshape(120, -1),
                                    state["module.fc1.weight"]))


def lenet():
    from torch import nn

    class Lenet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(1, 6, 5, padding=2), nn.BatchNorm2d(6)
            self.conv2, self.bn2 = nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16)
            self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

        def forward(self, x):
            pool = nn.functional.max_pool2d
            x = pool(torch.relu(self.bn1(self.conv1(x))), 2)
            x = pool(torch.relu(self.bn2(self.conv2(x))), 2).flatten(1)
            return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))

    return Lenet()


def shake_state(net):
    return {name: tensor + 0.1 if tensor.is_floating_point() else tensor for name, tensor in net.state_dict().items()}


if __name__ == "__main__":
    LOGITS = sys.argv.pop(2)
    LOCKSTEP = sys.argv.pop(1)
    unittest.main(verbosity=2)
