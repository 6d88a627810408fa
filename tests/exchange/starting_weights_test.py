#!/usr/bin/env python3
"""`train --from`: the same bits in every layout, whatever the weights were stored as; a resumed run does not read them again, and
knows where they came from; weights that do not fit are refused by name.

    tests/exchange/starting_weights_test.py LOCKSTEP EXCHANGE_LOGITS

Files are made by hand here, so that no other package is needed.
"""

import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = ""
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WIDTH, VOCABULARY, CONTEXT, LAYERS = 8, 12, 6, 2
CONFIG = """format_version: 1
model {{ {model} }}
data {{ synthetic {{ samples: 64 eval_samples: 8 classes: {classes} }} }}
trainer {{ global_batch: 8 virtual_replicas: 4 steps: 6 seed: {seed} }}
optimizer {{ learning_rate: 1e-2 adamw {{}} }}
parallel {{ reduction: {reduction} }}
"""
GPT = f"gpt {{ vocabulary: {VOCABULARY} context: {CONTEXT} layers: {LAYERS} heads: 2 width: {WIDTH} }}"
MLP = "mlp {{ image: [4, 4, 1] hidden: [6] classes: {} }}"


def shapes_of_gpt2():
    yield "transformer.wte.weight", [VOCABULARY, WIDTH]
    yield "transformer.wpe.weight", [CONTEXT, WIDTH]
    for layer in range(LAYERS):
        for name, shape in (("attn.c_attn", [WIDTH, 3 * WIDTH]), ("attn.c_proj", [WIDTH, WIDTH]), ("mlp.c_fc", [WIDTH, 4 * WIDTH]),
                            ("mlp.c_proj", [4 * WIDTH, WIDTH])):
            yield f"transformer.h.{layer}.{name}.weight", shape
            yield f"transformer.h.{layer}.{name}.bias", shape[1:]
        for name in ("ln_1", "ln_2"):
            yield f"transformer.h.{layer}.{name}.weight", [WIDTH]
            yield f"transformer.h.{layer}.{name}.bias", [WIDTH]
    yield "transformer.ln_f.weight", [WIDTH]
    yield "transformer.ln_f.bias", [WIDTH]


def write_tensors(path, shapes, seed=1):
    draw, header, data = random.Random(seed), {"__metadata__": {"format": "pt"}}, b""
    for name, shape in shapes:
        count = 1
        for size in shape:
            count *= size
        values = struct.pack(f"<{count}f", *(draw.gauss(0, 0.3) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_gpt2(folder, shards=1, seed=1, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "gpt2", "vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2,
              **changes}
    (folder / "config.json").write_text(json.dumps(config))
    shapes, names = list(shapes_of_gpt2()), {}
    if shards == 1:
        write_tensors(folder / "model.safetensors", shapes, seed)
        return
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        write_tensors(folder / name, shapes[shard::shards])
        names.update({tensor: name for tensor, _ in shapes[shard::shards]})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
               "OMPI_MCA_mpi_yield_when_idle": "1"}


def started(*arguments, processes=1):
    command = [LOCKSTEP] if processes == 1 else [ROOT / "launcher/lockstep-run", "--program", LOCKSTEP, "-n", str(processes), "--"]
    return subprocess.run([*command, "train", *map(str, arguments), "--json", "--quiet", "--device", "cpu"], capture_output=True,
                          text=True, check=False, env=ENVIRONMENT)


def started_in_folders(folders, *arguments):
    """A rank in each of them, as on hosts that share nothing."""
    command = ["mpirun"]
    for folder in folders:
        command += [":"] if len(command) > 1 else []
        command += ["-n", "1", "-wdir", str(folder), LOCKSTEP, "train", *map(str, arguments), "--json", "--quiet", "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


def imported(*arguments):
    return subprocess.run([LOCKSTEP, "import", *map(str, arguments)], capture_output=True, text=True, check=False, env=ENVIRONMENT,
                          timeout=60)


class StartingWeights(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def config(self, model, seed=1, reduction="REPRODUCIBLE"):
        path = self.folder / f"{abs(hash((model, seed, reduction)))}.textproto"
        path.write_text(CONFIG.format(model=model, seed=seed, reduction=reduction,
                                      classes=VOCABULARY if model.startswith("gpt") else 3))
        return path

    def trained(self, *arguments, processes=1):
        done = started(*arguments, processes=processes)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refusal(self, *arguments, code=65, processes=1):
        done = started(*arguments, processes=processes)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def manifest(self, run, step):
        return json.loads((run / f"checkpoints/step-{step:08}/manifest.json").read_text())

    def test_every_layout_begins_with_the_same_bits(self):
        theirs = self.folder / "theirs"
        write_gpt2(theirs, shards=3)
        config = self.config(GPT)
        one = self.trained(config, "--from", theirs)["params_hash"]
        # The seed draws nothing: neither weights nor, in one epoch of synthetic samples, other tensors.
        self.assertNotEqual(one, self.trained(config)["params_hash"])
        for processes, layout in ((2, "dp=2"), (2, "pp=2"), (2, "dp=2,shard=optimizer"), (3, "dp=2,sync=ps,servers=1"),
                                  (4, "dp=2,pp=2")):
            with self.subTest(layout):
                self.assertEqual(self.trained(config, "--from", theirs, "--layout", layout, processes=processes)["params_hash"], one)

    def test_hosts_with_other_weights_under_one_name_are_noticed(self):
        config, hosts = self.config(GPT), [self.folder / "a", self.folder / "b"]
        for layout in ("dp=2", "pp=2"):
            for seed, code in ((1, 0), (2, 65)):
                with self.subTest(layout, seed=seed):
                    for host, its in zip(hosts, (1, seed)):
                        write_gpt2(host / "theirs", seed=its)
                    done = started_in_folders(hosts, config, "--from", "theirs", "--layout", layout)
                    self.assertEqual(done.returncode, code, done.stderr)
                    if code != 0:
                        self.assertIn("weights of theirs", done.stderr)

    def test_an_import_is_complete_or_not_there(self):
        theirs, run = self.folder / "theirs", self.folder / "run"
        write_gpt2(theirs)
        whole = (theirs / "model.safetensors").read_bytes()
        (theirs / "model.safetensors").write_bytes(whole[:-40])
        self.assertEqual(imported(theirs, "--out", run).returncode, 65)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["theirs"])
        (theirs / "model.safetensors").write_bytes(whole)
        # Of an import that goes on, or was killed; or somebody's own.
        (self.folder / "run.unfinished").mkdir()
        (self.folder / "run.unfinished" / "notes").write_text("mine")
        refused = imported(theirs, "--out", run)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("run.unfinished", refused.stderr)
        self.assertEqual((self.folder / "run.unfinished" / "notes").read_text(), "mine")
        shutil.rmtree(self.folder / "run.unfinished")
        done = imported(theirs, "--out", run, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual((told["checkpoint"], told["config"]),
                         (str(run / "checkpoints/step-00000000"), str(run / "config.effective.textproto")))
        self.assertTrue(pathlib.Path(told["checkpoint"], "manifest.json").exists())
        self.assertTrue(pathlib.Path(told["config"]).exists())
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["run", "theirs"])
        self.assertEqual(imported(theirs, "--out", run).returncode, 2)

    def test_pipes_among_the_files_are_refused(self):
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            with self.subTest(name):
                theirs = self.folder / name
                write_gpt2(theirs)
                (theirs / name).unlink(missing_ok=True)
                os.mkfifo(theirs / name)
                done = imported(theirs, "--out", self.folder / "run")
                self.assertEqual(done.returncode, 65, done.stderr)
                self.assertIn(name, done.stderr)

    def test_servers_that_nobody_waits_for_hold_them_too(self):
        theirs = self.folder / "theirs"
        write_gpt2(theirs)
        run = self.folder / "run"
        self.trained(self.config(GPT, reduction="FAST"), "--from", theirs, "--layout", "dp=1,sync=ps,servers=1,mode=async", "--out",
                     run, processes=2)
        self.assertEqual(self.manifest(run, 6)["weights_from"], str(theirs))

    def test_a_resumed_run_does_not_read_them_again(self):
        theirs, run, whole = self.folder / "theirs", self.folder / "run", self.folder / "whole"
        write_gpt2(theirs)
        config = self.config(GPT)
        through = self.trained(config, "--from", theirs, "--out", whole)
        began = self.trained(config, "--from", theirs, "--out", run, "--stop-after", 3)
        first = self.manifest(run, 3)
        self.assertEqual(first["weights_from"], str(theirs))
        self.assertEqual(first["weights_hash"], self.manifest(whole, 6)["weights_hash"])
        shutil.rmtree(theirs)
        # As the command that began it, and without the option.
        shutil.copytree(run, self.folder / "copy")
        self.assertEqual(self.trained(config, "--from", theirs, "--out", run, "--resume", "auto")["params_hash"],
                         through["params_hash"])
        resumed = self.trained(config, "--out", self.folder / "copy", "--resume", "auto", "--layout", "dp=2", processes=2)
        self.assertEqual(resumed["params_hash"], through["params_hash"])
        last = self.manifest(self.folder / "copy", 6)
        self.assertEqual((last["weights_from"], last["weights_hash"]), (first["weights_from"], first["weights_hash"]))
        self.assertEqual(began["steps"], 3)

    def test_steps_and_the_optimizer_begin_anew(self):
        run, tuned = self.folder / "run", self.folder / "tuned"
        config = self.config(MLP.format(3))
        self.trained(config, "--out", run)
        report = self.trained(config, "--from", run, "--out", tuned, "--stop-after", 1)
        self.assertEqual(report["steps"], 1)
        manifest = self.manifest(tuned, 1)
        self.assertEqual(manifest["weights_hash"], self.manifest(run, 6)["params_hash"])
        self.assertEqual(manifest["weights_from"], str(run / "checkpoints/step-00000006"))
        self.assertEqual(manifest["optimizer_updates"], 1)
        self.assertIn("--resume", self.refusal(config, "--from", run, "--resume", run, "--out", self.folder / "both", code=2))

    def test_a_new_head_is_drawn_if_asked_for(self):
        run = self.folder / "run"
        self.trained(self.config(MLP.format(3)), "--out", run)
        other = self.config(MLP.format(5))
        self.assertRegex(self.refusal(other, "--from", run), r"(?s)fc2\.bias.*\[3\].*\[5\]")
        by_one = self.trained(other, "--from", run, "--new", "fc2")["params_hash"]
        by_two = self.trained(other, "--from", run, "--new", "fc2", "--layout", "dp=2", processes=2)["params_hash"]
        self.assertEqual(by_one, by_two)
        self.assertIn("'fc1'", self.refusal(other, "--from", run, "--new", "fcl", code=2))
        self.assertRegex(self.refusal(other, "--from", run, "--new", "fc2", "--new", "loss", code=2, processes=2), "'loss'.* no weights")
        self.assertRegex(self.refusal(other, "--from", run, "--new", "fc2", "--leave-out", "fc2.wieght", code=2),
                         r"'fc2\.wieght'.*'fc2\.weight'")

    def test_what_does_not_fit_is_named_by_one_or_many(self):
        theirs = self.folder / "theirs"
        write_gpt2(theirs, n_head=4)
        config = self.config(GPT)
        for processes in (1, 2):
            self.assertRegex(self.refusal(config, "--from", theirs, code=2, processes=processes), r"n_head.*4.*2")
        self.assertIn("gpt2", self.refusal(self.config(MLP.format(3)), "--from", theirs, code=2))
        self.assertIn("nowhere", self.refusal(config, "--from", self.folder / "nowhere", processes=2))
        write_gpt2(theirs)
        whole = (theirs / "model.safetensors").read_bytes()
        (theirs / "model.safetensors").write_bytes(whole[:-40])
        self.assertRegex(self.refusal(config, "--from", theirs, processes=2), r"model\.safetensors.*truncated")
        write_tensors(theirs / "model.safetensors", [(name, shape) for name, shape in shapes_of_gpt2() if "ln_f.bias" not in name])
        self.assertIn("transformer.ln_f.bias", self.refusal(config, "--from", theirs))


if __name__ == "__main__":
    sys.argv.pop(2)
    LOCKSTEP = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
