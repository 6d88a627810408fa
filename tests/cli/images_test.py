#!/usr/bin/env python3
"""Trainings on JPEGs in folders: the same bits on any threads and workers, also if some are damaged; what `data show` and
`data summary` say of them.

    tests/cli/images_test.py LOCKSTEP
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = ""
CONFIG = """
model { lenet { image: [16, 16, 3] classes: 10 } }
data {
  images { train: "train" eval: "eval" }
  transforms { random_resized_crop { area_min: 0.5 } }
  transforms { flip {} }
  transforms { affine { degrees: 10 } }
  transforms { color_jitter { brightness: 0.2 contrast: 0.2 saturation: 0.2 hue: 0.1 } }
  transforms { normalize { mean: [0.3, 0.3, 0.4] deviation: 0.25 deviation: 0.25 deviation: 0.25 } }
  eval_transforms { resize {} }
}
trainer { global_batch: 16 virtual_replicas: 4 steps: 9 seed: 3 }
optimizer { learning_rate: 0.01 adam {} }
parallel { reduction: REPRODUCIBLE }
metrics { progress: false }
"""


class Images(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.jpegs = self.folder / "jpegs"
        self.config = self.folder / "images.textproto"
        self.config.write_text(CONFIG)
        self.run_program(["data", "digits", "--as-images", "--out", self.jpegs, "--train", "60", "--eval", "20"])

    def run_program(self, arguments, workers=1, code=0):
        launcher = ["mpirun", "-n", str(workers)] if workers > 1 else []
        ran = subprocess.run([*launcher, LOCKSTEP, *map(str, arguments)], text=True, capture_output=True, stdin=subprocess.DEVNULL)
        self.assertEqual(ran.returncode, code, ran.stderr)
        return ran

    def train(self, *more, workers=1):
        return json.loads(self.run_program(["train", self.config, "--data-dir", self.jpegs, "--json", *more], workers).stdout)

    def data(self, command, *more):
        return json.loads(self.run_program(["data", command, self.config, "--data-dir", self.jpegs, "--json", *more]).stdout)

    def test_threads_and_workers_change_no_bit(self):
        expected = self.train()
        for workers, threads in ((1, 0), (1, 3), (2, 2), (4, 1)):
            result = self.train("--set", f"data.prefetch_threads={threads}", workers=workers)
            self.assertEqual((result["state_hash"], result["train_loss"], result["eval_loss"]),
                             (expected["state_hash"], expected["train_loss"], expected["eval_loss"]), (workers, threads))
        other = self.train("--set", "trainer.seed=4")
        self.assertNotEqual(other["params_hash"], expected["params_hash"])

    def test_packed_records_give_the_same_bits(self):
        expected = self.train()
        packed = self.folder / "packed"
        made = json.loads(self.run_program(["data", "pack", self.config, "--data-dir", self.jpegs, "--out", packed, "--json"]).stdout)
        self.assertEqual((made["train"], made["eval"], made["left_out"]), (60, 20, 0))
        for workers, more in ((1, ()), (2, ("--set", "data.threads=AUTOMATIC"))):
            ran = self.run_program(["train", self.config, "--set", f"data.records.folder={packed}", "--json", *more], workers)
            result = json.loads(ran.stdout)
            for field in ("params_hash", "state_hash", "train_loss", "eval_loss", "eval_accuracy"):
                self.assertEqual(result[field], expected[field], (field, workers))
        whole = self.data("summary")
        again = json.loads(self.run_program(["data", "summary", self.config, "--set", f"data.records.folder={packed}", "--json"]).stdout)
        self.assertEqual(again["train"]["identity"], whole["train"]["identity"])
        self.assertEqual(again["classes"], whole["classes"])
        by_folder = self.folder / "by_folder"
        self.run_program(["data", "pack", self.jpegs, "--out", by_folder, "--longest-side", "16", "--pixels"])
        self.run_program(["train", self.config, "--data-dir", by_folder, "--set", "data.records.folder=."])
        self.run_program(["data", "pack", self.jpegs, "--out", packed, "--longest-side", "8"], code=2)

    def test_a_cache_and_threads_that_adapt_change_no_bit(self):
        expected = self.train()
        for _ in range(2):
            result = self.train("--set", f"data.cache_directory={self.folder / 'cache'}", "--set", "data.threads=AUTOMATIC", workers=2)
            self.assertEqual(result["state_hash"], expected["state_hash"])
        self.assertEqual(len(list((self.folder / "cache").rglob("*.copy"))), 80)

    def test_check_lists_all_damage(self):
        self.run_program(["data", "check", self.config, "--data-dir", self.jpegs])
        for name in sorted(self.jpegs.rglob("*.jpg"))[:2]:
            name.write_bytes(name.read_bytes()[:-200])
        ran = self.run_program(["data", "check", self.config, "--data-dir", self.jpegs, "--json"], code=65)
        damaged = json.loads(ran.stdout)["damaged"]
        self.assertEqual(len(damaged), 2)
        for one in damaged:
            self.assertEqual(one["part"], "eval")
            self.assertGreater(one["byte"], 0)
            self.assertTrue(one["file"].endswith(".jpg"))
            self.assertIn("sample", one)

    def test_a_run_that_stops_within_an_epoch_goes_on_elsewhere(self):
        expected = self.train()
        out = self.folder / "run"
        self.train("--out", out, "--stop-after", "5", workers=2)     # 80 of 60 samples: within the second epoch
        result = self.train("--out", out, "--resume", "auto", workers=4)
        self.assertEqual(result["state_hash"], expected["state_hash"])

    def test_mixed_samples_are_the_same_on_any_threads_and_workers_and_after_a_stop(self):
        self.config.write_text(CONFIG.replace("  transforms { normalize", """
  transforms { mixup { alpha: 0.4 probability: 0.5 } }
  transforms { cutmix { probability: 0.4 } }
  transforms { normalize""").replace("lenet {", "lenet { label_smoothing: 0.1"))
        expected = self.train()
        for workers, threads in ((1, 0), (1, 8), (2, 3), (4, 1)):
            result = self.train("--set", f"data.prefetch_threads={threads}", workers=workers)
            self.assertEqual((result["state_hash"], result["train_loss"], result["eval_loss"]),
                             (expected["state_hash"], expected["train_loss"], expected["eval_loss"]), (workers, threads))
        out = self.folder / "run"
        self.train("--out", out, "--stop-after", "5", workers=2)     # within the second epoch
        self.assertEqual(self.train("--out", out, "--resume", "auto", workers=4)["state_hash"], expected["state_hash"])
        self.run_program(["verify", self.config, "--data-dir", self.jpegs, "--steps", "6", "--resume-at", "3",
                          "--layouts", "dp=1; dp=2; dp=2,shard=optimizer; dp=1,pp=2; dp=2,sync=ps"])
        self.config.write_text(self.config.read_text().replace("cutmix { probability: 0.4 }", "cutmix { probability: 0.3 }"))
        self.assertNotEqual(self.train()["params_hash"], expected["params_hash"])

    def test_a_model_that_learned_from_mixtures_is_evaluated_and_trained_on_without(self):
        plain, mixed = self.config.read_text(), self.folder / "mixed.textproto"
        mixed.write_text(plain.replace("  transforms { normalize", "  transforms { mixup {} }\n  transforms { normalize"))
        out = self.folder / "mixed"
        trained = json.loads(self.run_program(["train", mixed, "--data-dir", self.jpegs, "--json", "--out", out]).stdout)
        evaluated = json.loads(self.run_program(["eval", self.config, "--checkpoint", out, "--data-dir", self.jpegs, "--json"]).stdout)
        self.assertEqual(evaluated["eval_loss"], trained["eval_loss"])
        steps = trained["steps"] + 2
        went_on = self.train("--out", self.folder / "on", "--resume", out, "--set", f"trainer.steps={steps}",
                             "--set", "checkpoint.allow_config_change=true")
        self.assertEqual(went_on["steps"], steps)
        self.train("--from", out)
        without = self.folder / "without"
        self.train("--out", without)
        back = json.loads(self.run_program(["eval", mixed, "--checkpoint", without, "--data-dir", self.jpegs, "--json"]).stdout)
        self.assertGreater(back["eval_loss"], 0)

    def test_damage_ends_a_run_by_name_or_is_counted(self):
        files = sorted(self.jpegs.glob("train/*/*.jpg"))
        files[3].write_bytes(b"no image")
        truncated = files[20].read_bytes()
        files[20].write_bytes(truncated[:len(truncated) // 2])
        ran = self.run_program(["train", self.config, "--data-dir", self.jpegs], code=65)
        self.assertIn(files[3].name, ran.stderr)
        results = [self.train("--set", "data.on_damage=SKIP", workers=workers) for workers in (1, 2, 4)]
        for result in results:
            self.assertEqual(result["damaged_samples"], {"left_out": 1, "replaced": 1})
            self.assertEqual(result["state_hash"], results[0]["state_hash"])
        files[3].unlink()
        ran = self.run_program(["train", self.config, "--data-dir", self.jpegs], code=65)
        self.assertIn(files[20].name, ran.stderr)

    def test_show_draws_what_a_model_gets(self):
        picture = self.folder / "samples.png"
        shown = self.data("show", "--out", picture, "--samples", "3", "--draws", "2")
        self.assertTrue(picture.read_bytes().startswith(b"\x89PNG"))
        self.assertEqual(len(shown["samples"]), 3)
        for sample in shown["samples"]:
            self.assertEqual(pathlib.Path(sample["from"]).parent.name, sample["class"])
        self.assertEqual([sample["sample"] for sample in self.data("show", "--eval", "--out", picture, "--samples", "2")["samples"]],
                         [0, 1])

    def test_summary_counts_and_finds_what_is_in_both_parts(self):
        first = next(iter(sorted(self.jpegs.glob("train/*/*.jpg"))))
        shutil.copy(first, self.jpegs / "eval" / first.parent.name / "copy.jpg")
        summary = self.data("summary")
        self.assertEqual(summary["classes"], [str(digit) for digit in range(10)])
        self.assertEqual((summary["train"]["samples"], summary["eval"]["samples"]), (60, 21))
        for part in ("train", "eval"):
            for label, count in summary[part]["labels"].items():
                self.assertEqual(len(list(self.jpegs.glob(f"{part}/{label}/*.jpg"))), count)
        self.assertEqual(summary["duplicates"]["in_evaluation"], 1)
        self.assertEqual(pathlib.Path(summary["duplicates"]["examples"][0]["train"]), first)
        self.assertEqual(self.data("summary", "--quick")["duplicates"], {"looked_for": False})
        self.assertGreaterEqual(summary["train"]["height"]["least"], 36)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                      OMPI_MCA_hwloc_base_binding_policy="none", OMPI_MCA_mpi_yield_when_idle="1")
    unittest.main()
