#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_ranges.h: the code points that regular expressions call \\p{L}, \\p{N} and \\s.

    pip install regex==2024.11.6        # Unicode 16, which tiktoken's regular expressions have, too
    scripts/unicode_tables.py           # writes the file
    scripts/unicode_tables.py --check   # compares it
"""

import pathlib
import sys

import regex

TARGET = pathlib.Path(__file__).resolve().parent.parent / "src/tokenizer/unicode_ranges.h"
CLASSES = [("kLetters", r"\p{L}", "Letters"), ("kNumbers", r"\p{N}", "Numbers"), ("kSpaces", r"\s", "White space")]
HEAD = """#pragma once

#include <cstdint>

namespace lockstep::tokenizer {

// Written by scripts/unicode_tables.py from Unicode 16.
struct CodePoints {
  uint32_t first, last;
};
"""


def ranges(pattern):
    compiled, found = regex.compile(pattern), []
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000 or not compiled.match(chr(code)):
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, pattern, title):
    lines, line = [], "   "
    for first, last in ranges(pattern):
        piece = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line) + len(piece) > 108:
            lines.append(line)
            line = "   "
        line += piece
    lines.append(line)
    body = "\n".join(lines).rstrip(",")
    return f"\n/// {title}, ascending.\n// clang-format off\ninline constexpr CodePoints {name}[] = {{\n{body}\n}};\n// clang-format on\n"


def main():
    text = HEAD + "".join(table(*each) for each in CLASSES) + "\n}  // namespace lockstep::tokenizer\n"
    if "--check" in sys.argv[1:]:
        sys.exit(0 if TARGET.read_text() == text else f"{TARGET} differs from what this script writes")
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
