#!/usr/bin/env python3
"""Images per second and core: lockstep's decoding, random resized crop (224), flip and normalisation beside torchvision's, with
Pillow, with its own decoder, and with simplejpeg's. Medians of interleaved rounds of one thread each.

    pip install torch torchvision simplejpeg scikit-learn     # the last for two photographs
    scripts/bench_images.py [--images FOLDER] [--rounds 7] [--count 192]

FOLDER has images in folders by class; default: 200 JPEGs of 500 x 375, cut out of scikit-learn's photographs. Also prints how fast packed
images, packed pixels and tokens are read, and how long a LeNet waits for data that it trains on. LOCKSTEP_BUILD names the build folder
with bin/lockstep and bin/samples_benchmark; default: build/release.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build" / "release"))
SIDE, BATCH = 224, 64
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def lockstep(*words):
    done = subprocess.run([BUILD / "bin" / "lockstep", *words], check=True, capture_output=True, text=True)
    return json.loads(done.stdout) if "--json" in words else None


def make_photographs(folder, count=200):
    """JPEGs as large as ImageNet's, parts of two photographs at random scales."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(each) for each in load_sample_images().images]
    draw = random.Random(1)
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        width = draw.randint(300, photograph.width)
        height = width * 3 // 4
        x, y = draw.randint(0, photograph.width - width), draw.randint(0, max(0, photograph.height - height))
        part = photograph.crop((x, y, x + width, min(y + height, photograph.height))).resize((500, 375), Image.Resampling.BICUBIC)
        path = folder / str(number % 10) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        part.save(path, quality=90)


class Ours:
    """samples_benchmark, which reads a round for each line that it gets."""

    def __init__(self, kind, folder, count):
        self.process = subprocess.Popen([BUILD / "bin" / "samples_benchmark", kind, folder, str(count)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"samples_benchmark ended with {self.process.wait()}")
        return float(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Torchvision:
    """An ImageFolder in a DataLoader, in this process, on one thread."""

    def __init__(self, folder, count, decoder):
        import torch
        import torchvision
        from torchvision.transforms import v2

        torch.set_num_threads(1)
        torch.manual_seed(1)
        if decoder == "pillow":
            from torchvision import transforms as first
            load = torchvision.datasets.folder.pil_loader
            steps = [first.RandomResizedCrop(SIDE), first.RandomHorizontalFlip(), first.ToTensor(), first.Normalize(MEAN, DEVIATION)]
            transform = first.Compose(steps)
        else:
            if decoder == "torchvision":
                rgb = torchvision.io.ImageReadMode.RGB
                def load(path):
                    return torchvision.io.decode_image(torchvision.io.read_file(path), rgb)
            else:
                import simplejpeg
                def load(path):
                    return torch.from_numpy(simplejpeg.decode_jpeg(pathlib.Path(path).read_bytes())).permute(2, 0, 1)
            transform = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip(),
                                    v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)])
        self.images = torchvision.datasets.ImageFolder(folder, transform, loader=load)
        self.count = count
        self.torch = torch

    def round(self):
        sampler = self.torch.utils.data.RandomSampler(self.images, replacement=True, num_samples=self.count)
        began = time.perf_counter()
        for _ in self.torch.utils.data.DataLoader(self.images, batch_size=BATCH, sampler=sampler):
            pass
        return time.perf_counter() - began

    def close(self):
        pass


def measure(runners, rounds):
    """Medians of seconds, and the least and most, by name. The first round of each is not counted."""
    seconds = {name: [] for name in runners}
    for number in range(rounds + 1):
        for name, runner in runners.items():
            took = runner.round()
            if number > 0:
                seconds[name].append(took)
    for runner in runners.values():
        runner.close()
    return seconds


def show(title, seconds, count, unit, base=None):
    print(f"\n{title}")
    for name, each in seconds.items():
        rate = count / statistics.median(each)
        ratio = f", {statistics.median(seconds[base]) / statistics.median(each):.2f} times {base}" if base and name != base else ""
        print(f"  {name:32} {rate:10.0f} {unit}/s (from {count / max(each):.0f} to {count / min(each):.0f}){ratio}")


def compare_decoders(folder, count, rounds):
    runners = {"lockstep": Ours("files", folder, count), "lockstep, scaled_decoding: false": Ours("whole_decoding", folder, count),
               "torchvision": Torchvision(folder, count, "torchvision"), "Pillow": Torchvision(folder, count, "pillow")}
    try:
        import simplejpeg  # noqa: F401
        runners["simplejpeg"] = Torchvision(folder, count, "simplejpeg")
    except ImportError:
        print("simplejpeg is not installed: left out")
    seconds = measure(runners, rounds)
    show("Files: decode, random resized crop, flip, normalise", seconds, count, "images", "torchvision")


def compare_storage(folder, scratch, count, rounds):
    lockstep("data", "pack", folder, "--out", scratch / "packed")
    lockstep("data", "pack", folder, "--out", scratch / "pixels", "--pixels")
    text = scratch / "text"
    text.write_text(" ".join(path.read_text(errors="replace") for path in sorted((ROOT / "docs").glob("*.md"))))
    lockstep("data", "tokens", text, "--out", scratch / "tokens", "--vocabulary", "2048")
    seconds = measure({"files": Ours("files", folder, count), "packed": Ours("records", scratch / "packed", count),
                       "packed, --pixels": Ours("records", scratch / "pixels", count)}, rounds)
    show("Where images lie", seconds, count, "images", "files")
    windows = 64 * 1024
    seconds = measure({"tokens, windows of 1024": Ours("tokens", scratch / "tokens", windows)}, rounds)
    show("Tokens", seconds, 1024 * windows, "tokens")


def wait_of_training(scratch, rounds):
    jpegs = scratch / "jpegs"
    lockstep("data", "digits", "--as-images", "--out", jpegs, "--train", "4000", "--eval", "100")
    shares = []
    for _ in range(rounds):
        report = lockstep("train", ROOT / "examples/images/digits.textproto", "--data-dir", jpegs, "--set", "trainer.steps=200",
                         "--set", "trainer.eval_at_end=false", "--set", "data.threads=AUTOMATIC", "--json")
        shares.append(100 * report["data_wait_ms"] / report["step_ms"]["mean"])
    print(f"\nLeNet on drawn JPEGs, one process: waits for data for {statistics.median(shares):.2f} % of a step (from {min(shares):.2f} "
          f"to {max(shares):.2f})")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--images")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--count", type=int, default=192)
    arguments = options.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folder = pathlib.Path(arguments.images) if arguments.images else scratch / "photographs"
        if not arguments.images:
            make_photographs(folder)
        compare_decoders(folder, arguments.count, arguments.rounds)
        compare_storage(folder, scratch, arguments.count, arguments.rounds)
        wait_of_training(scratch, 3)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
