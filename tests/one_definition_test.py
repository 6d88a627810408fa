#!/usr/bin/env python3
"""No two types of one namespace have the same name in different files of src/ and include/: compilers see no two of them, and
linkers merge what they have in common, so that one's destructor ends the other's life.

Types are read from the text: `class`, `struct`, `union` or `enum` with a body, in named namespaces. What is in an unnamed
namespace, within another type or within a function belongs to its file.
"""

import os
import re
import sys
import unittest
from collections import defaultdict

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
TYPE = re.compile(r"\b(?:class|struct|union|enum(?:\s+class)?)\s+(?:\[\[[^\]]*\]\]\s*|__attribute__\(\(.*?\)\)\s*)*(?:alignas\([^)]*\)\s*)?([A-Za-z_]\w*)\s*(?:final\s*)?(?::(?!:)[^;{]*)?$")
NAMESPACE = re.compile(r"\b(?:inline\s+)?namespace\s*((?:[A-Za-z_]\w*(?:::)?)*)\s*$")


def types_of(text):
    """Full names of the types that `text` defines in named namespaces."""
    text = COMMENT_OR_TEXT.sub(" ", text)
    text = re.sub(r"(?m)^\s*#(?:[^\n]*\\\n)*[^\n]*", " ", text)
    scopes, found, begin = [], [], 0       # of each open brace: the namespace's name, or None where types are a file's own
    for place, character in enumerate(text):
        if character in ";}":
            begin = place + 1
        if character == "}" and scopes:
            scopes.pop()
        if character != "{":
            continue
        before = text[begin:place].strip()
        begin = place + 1
        namespace, kind = NAMESPACE.search(before), TYPE.search(before)
        if namespace:
            scopes.append(namespace.group(1) or None)
            continue
        is_specialization = kind and re.search(r"\btemplate\s*<\s*>", before)
        if kind and None not in scopes and not is_specialization:
            found.append("::".join([*scopes, kind.group(1)]))
        scopes.append(None)
    return found


def definitions():
    """{full name: files}"""
    files = defaultdict(set)
    for top in ("src", "include"):
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in names:
                if name.endswith((".h", ".cpp", ".cu")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        for type_name in types_of(file.read()):
                            files[type_name].add(os.path.relpath(path, ROOT))
    return files


def is_choice_of_backend(paths):
    """One of them is compiled into any program: folders of backends, in one module, or the emulated GPU's stand-in for CUDA's words."""
    backends = {"cuda", "emulated", "none"}
    chosen = [backends & set(path.split("/")) for path in paths]
    modules = {path.split("/")[1] for path in paths}
    return all(len(one) == 1 for one in chosen) and len(set.union(*chosen)) == len(chosen) and len(modules) == 1


class OneDefinition(unittest.TestCase):
    def test_types_have_names_of_their_own(self):
        twins = {name: sorted(paths) for name, paths in definitions().items() if len(paths) > 1 and not is_choice_of_backend(paths)}
        self.assertEqual(twins, {})

    def test_many_types_are_seen(self):
        self.assertGreater(len(definitions()), 300)

    def test_what_counts_as_a_type_of_a_namespace(self):
        text = """
        namespace a { namespace { struct Own {}; } namespace b { class X final : public Y<int> { struct Inner {}; }; } }
        namespace a::b { enum class E : int { x }; struct Forward; template <class T> struct Z { }; template <> struct Z<int> { };
          // struct Commented {};
          const char* s = "struct Text {"; void f() { struct Local {}; } }
        """
        self.assertEqual(types_of(text), ["a::b::X", "a::b::E", "a::b::Z"])

    def test_attributes_hide_no_type(self):
        self.assertEqual(types_of("namespace a { struct [[nodiscard]] X { }; class __attribute__((packed)) Y { }; }"), ["a::X", "a::Y"])

    def test_backends_are_chosen_within_a_module(self):
        self.assertTrue(is_choice_of_backend(["src/ops/cuda/a.h", "src/ops/emulated/a.h", "src/ops/none/b.h"]))
        for twins in (["src/ops/cuda/a.h", "src/ops/cuda/b.h"], ["src/ops/cuda/a.h", "src/comm/none/a.h"], ["src/ops/cuda/a.h", "src/ops/a.h"]):
            self.assertFalse(is_choice_of_backend(twins), twins)


if __name__ == "__main__":
    unittest.main()
