#!/usr/bin/env python3
"""Makes up reviews of films, for configs/reviews_lstm.textproto: lines of a class, "good" or "bad", a tab, and a text.

    scripts/make_reviews.py --out DIR [--count 2000] [--seed 1]

Writes DIR/reviews.tsv. Words of praise and of blame are in both classes: a review is good if what it says at last is good,
and "not" turns a word around. So a count of words does not tell the classes apart.
"""

import argparse
import pathlib
import random

PARTS = ["the plot", "the acting", "the music", "the ending", "the first half", "every scene", "the dialogue", "the cast"]
PRAISE = ["great", "moving", "clever", "funny", "beautiful", "well made"]
BLAME = ["dull", "clumsy", "too long", "predictable", "boring", "badly made"]
TURNS = ["but", "yet", "still,", "in the end"]


def clause(draw, good):
    turned = draw.random() < 0.3
    words = PRAISE if good != turned else BLAME
    return f"{draw.choice(PARTS)} is {'not ' if turned else ''}{draw.choice(words)}"


def review(draw, good):
    """A clause of the class; half of the reviews begin with one of the other class."""
    if draw.random() < 0.5:
        return f"{clause(draw, not good)}, {draw.choice(TURNS)} {clause(draw, good)}"
    return f"{clause(draw, good)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(arguments.count):
        good = number % 2 == 0
        lines.append(f"{'good' if good else 'bad'}\t{review(draw, good)}\n")
    (arguments.out / "reviews.tsv").write_text("".join(lines))


if __name__ == "__main__":
    main()
