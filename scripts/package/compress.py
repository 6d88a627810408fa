#!/usr/bin/env python3
"""Compresses from standard input to standard output as xz, with a dictionary that spans all of it: what comes twice, however far
apart, is stored once. Python's tarfile, and tar with xz, unpack it; they need as much memory as it has bytes."""

import lzma
import sys

SMALLEST, LARGEST = 1 << 20, 1 << 30    # dictionaries

data = sys.stdin.buffer.read()
size = min(max(len(data), SMALLEST), LARGEST)
sys.stdout.buffer.write(lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": size}]))
