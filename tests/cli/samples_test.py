#!/usr/bin/env python3
"""What `data show` says and draws of samples, by its pixels and fields; the shipped config of MNIST, Fashion-MNIST and EMNIST on
small files of the same form; samples that are left out, and how many there are.

    tests/cli/samples_test.py LOCKSTEP
"""

import gzip
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOCKSTEP = ""
GAP, CAPTION, MAGNIFIED = 4, 12, 12      # of a sheet of images of 8 x 8: a border, a line of text, pixels for each pixel


def idx(dimensions, values):
    return struct.pack(">BBBB", 0, 0, 8, len(dimensions)) + b"".join(struct.pack(">I", d) for d in dimensions) + bytes(values)


def read_png(path):
    """Rows of (red, green, blue), of 8 bits without interlacing: what the program writes."""
    data, place, packed = path.read_bytes(), 8, b""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while place < len(data):
        size, kind = struct.unpack(">I4s", data[place:place + 8])
        body = data[place + 8:place + 8 + size]
        if kind == b"IHDR":
            width, height, bits, color, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (bits, color, interlaced) == (8, 2, 0)
        packed += body if kind == b"IDAT" else b""
        place += 12 + size
    raw, rows, before = zlib.decompress(packed), [], bytearray(3 * width)
    for y in range(height):
        kind, line = raw[y * (3 * width + 1)], bytearray(raw[y * (3 * width + 1) + 1:(y + 1) * (3 * width + 1)])
        for i in range(3 * width):
            left, up, corner = (line[i - 3] if i >= 3 else 0), before[i], (before[i - 3] if i >= 3 else 0)
            guess = left + up - corner
            nearest = min((left, up, corner), key=lambda value: abs(guess - value))
            line[i] = (line[i] + (0, left, up, (left + up) // 2, nearest)[kind]) & 255
        rows.append([tuple(line[3 * x:3 * x + 3]) for x in range(width)])
        before = line
    return rows


class Samples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.config = self.folder / "config.textproto"

    def run_program(self, *arguments, code=0):
        ran = subprocess.run([LOCKSTEP, *map(str, arguments)], text=True, capture_output=True, stdin=subprocess.DEVNULL)
        self.assertEqual(ran.returncode, code, ran.stderr)
        return ran

    def write_config(self, data, model="mlp { image: [8, 8, 1] hidden: 8 classes: 3 }"):
        self.config.write_text(f"""model {{ {model} }} data {{ {data} }} trainer {{ global_batch: 2 steps: 4 seed: 1 }}
            optimizer {{ learning_rate: 0.01 sgd {{}} }} metrics {{ progress: false }}""")

    def show(self, *more):
        out = self.folder / "samples.png"
        ran = self.run_program("data", "show", self.config, "--data-dir", self.folder, "--out", out, "--json", *more)
        return json.loads(ran.stdout), read_png(out)

    def write_halves(self):
        """Two images whose left half is black and whose right half is white, and two that are gray 51, of classes 2 and 1."""
        half = ([0] * 4 + [255] * 4) * 8
        (self.folder / "images").write_bytes(idx([4, 8, 8], half + [51] * 64 + half + [51] * 64))
        (self.folder / "labels").write_bytes(idx([4], [2, 1, 2, 1]))

    @staticmethod
    def pixel(picture, row, column, y, x):
        """The color of an image's pixel on the sheet."""
        top = GAP + row * (CAPTION + 8 * MAGNIFIED + GAP) + CAPTION
        left = GAP + column * (8 * MAGNIFIED + GAP)
        return picture[top + y * MAGNIFIED + MAGNIFIED // 2][left + x * MAGNIFIED + MAGNIFIED // 2]

    def test_values_are_those_of_the_model_and_the_picture_says_what_it_undoes(self):
        self.write_halves()
        for deviation, right in ((0.25, 2), (25, 0.02)):      # the second is a mistake that the picture does not show
            self.write_config(f'idx {{ train_images: "images" train_labels: "labels" mean: 0.5 deviation: {deviation} }} shuffle: false')
            shown, picture = self.show("--samples", "1", "--draws", "2")
            values = shown["values"][0]
            self.assertAlmostEqual(values["least"], -right, 5)
            self.assertAlmostEqual(values["greatest"], right, 5)
            self.assertAlmostEqual(values["mean"], 0, 5)
            self.assertEqual(len(shown["samples"][0]["draws"]), 2)
            self.assertEqual(shown["samples"][0]["draws"][0]["values"], shown["values"])
            self.assertEqual(shown["undone"], [{"mean": [0.5], "deviation": [deviation]}])
            self.assertNotIn("stretched", shown)
            for column in (0, 1):
                self.assertEqual(self.pixel(picture, 0, column, 3, 3), (0, 0, 0))
                self.assertEqual(self.pixel(picture, 0, column, 3, 4), (255, 255, 255))

    def test_without_a_normalization_nothing_is_undone(self):
        self.write_halves()
        self.write_config('idx { train_images: "images" train_labels: "labels" } shuffle: false')
        shown, picture = self.show("--samples", "2", "--draws", "1")
        self.assertEqual(shown["undone"], [])
        self.assertEqual((shown["values"][0]["least"], shown["values"][0]["greatest"]), (0, 1))
        self.assertAlmostEqual(shown["values"][0]["mean"], (0.5 + 0.2) / 2, 5)
        self.assertEqual(self.pixel(picture, 1, 0, 5, 5), (51, 51, 51))
        text = self.run_program("data", "show", self.config, "--data-dir", self.folder, "--out", self.folder / "b.png").stdout
        self.assertIn("mean 0.35", text)
        # Values that no picture has are stretched.
        self.write_config("""idx { train_images: "images" train_labels: "labels" } shuffle: false
            transforms { normalize { mean: 0.5 deviation: 0.25 } } transforms { flip { horizontal: 1 } }""")
        shown, picture = self.show("--samples", "2", "--draws", "1")
        self.assertEqual((shown["undone"], shown["stretched"]), ([], [-2, 2]))
        self.assertEqual(self.pixel(picture, 0, 0, 0, 0), (255, 255, 255))

    def test_mixed_samples_name_both_classes_and_their_shares(self):
        self.write_halves()
        self.write_config("""idx { train_images: "images" train_labels: "labels" } shuffle: false
            transforms { mixup { alpha: 1 probability: 0.5 } }""")
        shown, picture = self.show("--samples", "4", "--draws", "12")
        mixed = 0
        for row, sample in enumerate(shown["samples"]):
            for column, draw in enumerate(sample["draws"]):
                share = draw["mixed_with"]["share"] if "mixed_with" in draw else 0
                other = draw["mixed_with"]["label"] if share else sample["label"]
                mixed += share > 0
                self.assertTrue(0 <= share <= 1)
                own_left, other_left = (0 if label == 2 else 51 for label in (sample["label"], other))
                for seen in self.pixel(picture, row, column, 2, 2):
                    self.assertAlmostEqual(seen, (1 - share) * own_left + share * other_left, delta=1)
                self.assertAlmostEqual(draw["values"][0]["least"] * 255, min(
                    (1 - share) * own_left + share * other_left,
                    (1 - share) * (255 if sample["label"] == 2 else 51) + share * (255 if other == 2 else 51)), delta=0.01)
        self.assertTrue(10 < mixed < 38, mixed)
        text = self.run_program("data", "show", self.config, "--data-dir", self.folder, "--out", self.folder / "b.png", "--draws", "12").stdout
        self.assertRegex(text, r"0\.\d+ [12] \+ 0\.\d+ [12]")

    def test_windows_of_tokens_are_not_searched_for_duplicates_and_rows_are(self):
        (self.folder / "text").write_text("a text that is long enough to be divided " * 4)
        self.write_config('text { file: "text" }', "gpt { vocabulary: 40 context: 8 layers: 1 heads: 1 width: 8 }")
        summary = json.loads(self.run_program("data", "summary", self.config, "--data-dir", self.folder, "--json").stdout)
        self.assertEqual(summary["duplicates"], {"looked_for": False})
        (self.folder / "rows.csv").write_text("a,b\n1,0.5\n2,1.5\n1,2.5\n")
        (self.folder / "others.csv").write_text("a,b\n2,9.5\n7,1\n")
        self.write_config('table { files: "rows.csv" eval_files: "others.csv" target: "b" }', """input { name: "features" shape: 1 }
            input { name: "target" shape: 1 } layer { name: "fc" input: "features" linear { units: 1 } }
            layer { name: "loss" input: ["fc", "target"] mean_squared_error {} }""")
        summary = json.loads(self.run_program("data", "summary", self.config, "--data-dir", self.folder, "--json").stdout)
        found = summary["duplicates"]
        self.assertEqual((found["looked_for"], found["within_training"], found["in_evaluation"]), (True, 1, 1))

    def test_samples_with_damage_are_left_out_and_counted_on_any_ranks(self):
        tokens = [i % 20 for i in range(200)]
        tokens[50] = tokens[130] = 99
        (self.folder / "a.bin").write_bytes(struct.pack("<200H", *tokens))
        self.write_config('tokens { files: "a.bin" format: UINT16 vocabulary: 20 }',
                          "gpt { vocabulary: 20 context: 8 layers: 1 heads: 1 width: 8 }")
        ran = self.run_program("train", self.config, "--data-dir", self.folder, code=65)
        self.assertIn("byte 100", ran.stderr)
        results = []
        for launcher in ([], ["mpirun", "-n", "2"]):
            ran = subprocess.run([*launcher, LOCKSTEP, "train", self.config, "--data-dir", self.folder, "--json",
                                  "--set", "data.on_damage=SKIP"], text=True, capture_output=True, stdin=subprocess.DEVNULL)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            results.append(json.loads(ran.stdout)["damaged_samples"])
        self.assertEqual(results, [{"left_out": 2, "replaced": 0}] * 2)
        ran = self.run_program("data", "summary", self.config, "--data-dir", self.folder, "--set",
                               'data={text {file: "a.bin"} on_damage: SKIP}', code=2)
        self.assertIn("on_damage", ran.stderr)

    def test_a_file_that_becomes_too_large_is_named(self):
        (self.folder / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 100_000))
        self.write_config('table { files: "a.csv.gz" target: "b" } most_inflated_bytes: 65536', """input { name: "features" shape: 1 }
            input { name: "target" shape: 1 } layer { name: "fc" input: "features" linear { units: 1 } }
            layer { name: "loss" input: ["fc", "target"] mean_squared_error {} }""")
        ran = self.run_program("data", "summary", self.config, "--data-dir", self.folder, code=65)
        for word in ("a.csv.gz", "byte", "65536", "most_inflated_bytes"):
            self.assertIn(word, ran.stderr)
        self.run_program("data", "summary", self.config, "--data-dir", self.folder, "--set", "data.most_inflated_bytes=1000000")


class PublicSets(unittest.TestCase):
    """configs/full_mnist_lenet.textproto, with the options that its first lines say for other sets."""

    CONFIG = ROOT / "configs" / "full_mnist_lenet.textproto"

    def options_for(self, name):
        head = self.CONFIG.read_text().split("format_version")[0]
        block = re.split(r"\n# (?=[A-Z])", head)
        lines = next(part for part in block if part.startswith(name))
        return [word for option in re.findall(r"--set (\S+)", lines) for word in ("--set", option)]

    def write_set(self, folder, prefix, count, labels, transposed=False):
        """Images whose first row, as a person sees them, is white."""
        row_white = ([255] * 28 + [0] * 28 * 27) if not transposed else ([255] + [0] * 27) * 28
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx([count, 28, 28], row_white * count)))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx([count], [labels[i % len(labels)] for i in range(count)])))

    def check(self, name, prefixes, labels, classes, transposed=False):
        with tempfile.TemporaryDirectory() as text:
            folder = pathlib.Path(text)
            self.write_set(folder, prefixes[0], 130, labels, transposed)
            self.write_set(folder, prefixes[1], 52, labels, transposed)
            options = [self.CONFIG, "--data-dir", folder, "--json", *(self.options_for(name) if name != "MNIST" else [])]
            run = lambda *words: json.loads(subprocess.run(list(map(str, words)), text=True, capture_output=True, check=True).stdout)  # noqa: E731
            summary = run(LOCKSTEP, "data", "summary", *options)
            self.assertEqual((summary["train"]["samples"], summary["eval"]["samples"]), (130, 52))
            self.assertEqual(sorted(map(int, summary["train"]["labels"])), list(range(classes)))
            picture = folder / "samples.png"
            shown = run(LOCKSTEP, "data", "show", *options, "--out", picture, "--samples", "1", "--draws", "1")
            self.assertEqual(len(shown["undone"]), 1)
            rows = read_png(picture)
            side = GAP + CAPTION
            factor = -(-96 // 28)
            self.assertEqual(rows[side + factor // 2][GAP + 20 * factor], (255, 255, 255))
            self.assertEqual(rows[side + 20 * factor][GAP + factor // 2], (0, 0, 0))
            trained = run(LOCKSTEP, "train", *options, "--set", "trainer.steps=3", "--quiet",
                          "--set", "trainer.eval_every_steps=0")
            self.assertIn("eval_loss", trained)

    def test_mnist(self):
        self.check("MNIST", ("train", "t10k"), range(10), 10)

    def test_fashion_mnist(self):
        self.check("Fashion-MNIST", ("train", "t10k"), range(10), 10)

    def test_emnist(self):
        self.check("EMNIST", ("emnist-letters-train", "emnist-letters-test"), range(1, 27), 26, transposed=True)

    def test_it_is_short(self):
        self.assertLess(len(self.CONFIG.read_text().split("\n")), 60)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                      OMPI_MCA_hwloc_base_binding_policy="none", OMPI_MCA_mpi_yield_when_idle="1")
    unittest.main()
