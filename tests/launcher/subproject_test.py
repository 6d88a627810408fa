#!/usr/bin/env python3
"""lockstep within another CMake project: it adds a library, and changes nothing of the project around it.

LOCKSTEP_SUBPROJECT_BUILD=1 builds the program of that project, with all of lockstep, and trains by it; otherwise as much is built
as takes seconds.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest

from support import ROOT, Case, main

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(around CXX)
%s
add_executable(mine ${CMAKE_CURRENT_SOURCE_DIR}/spirals.cpp)
target_link_libraries(mine PRIVATE lockstep::lockstep)
foreach(name CMAKE_BUILD_TYPE CMAKE_CXX_STANDARD CMAKE_CXX_FLAGS CMAKE_CXX_VISIBILITY_PRESET CMAKE_CXX_COMPILER_LAUNCHER
    CMAKE_POSITION_INDEPENDENT_CODE CMAKE_RUNTIME_OUTPUT_DIRECTORY CMAKE_CUDA_ARCHITECTURES CPACK_PACKAGE_NAME)
  message(STATUS "${name}=<${${name}}>")
endforeach()
"""
ADDED = f"add_subdirectory({ROOT} lockstep)"
FETCHED = f"""
include(FetchContent)
FetchContent_Declare(lockstep SOURCE_DIR {ROOT})
FetchContent_MakeAvailable(lockstep)
"""


@unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja"), "there are not both cmake and ninja")
class Subproject(Case):
    def configure(self, text, *options):
        (self.folder / "CMakeLists.txt").write_text(PROJECT % text)
        shutil.copy(ROOT / "examples" / "own_model" / "spirals.cpp", self.folder)
        return self.run_cmake("-G", "Ninja", "-S", self.folder, "-B", self.folder / "build", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
                              "-DLOCKSTEP_CUDA=OFF", *options)

    def run_cmake(self, *words):
        return subprocess.run(["cmake", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              timeout=3600)

    def commands(self):
        with open(self.folder / "build" / "compile_commands.json", encoding="utf-8") as file:
            return {entry["file"]: entry["command"] for entry in json.load(file)}

    def check(self, text):
        ran = self.configure(text)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        seen = dict(re.findall(r"-- (\w+)=<(.*)>", ran.stdout))
        self.assertEqual(len(seen), 9, ran.stdout)
        self.assertEqual({name: value for name, value in seen.items() if value}, {})
        commands = self.commands()
        mine = commands[str(self.folder / "spirals.cpp")]
        self.assertIn(f"{ROOT}/include", mine)
        self.assertNotRegex(mine, rf"{ROOT}/src|-Wall|-march|-O|-ffp-contract|-fvisibility|ccache")
        self.assertIn("-O3", next(command for command in commands.values() if "lockstep_base.dir" in command))
        self.assertEqual([file for file in commands if "/tests/" in file], [])
        for script in (self.folder / "build").rglob("cmake_install.cmake"):
            self.assertNotIn("file(INSTALL", script.read_text(), script)

    def test_is_added(self):
        self.check(ADDED)
        built = self.run_cmake("--build", self.folder / "build", "--target", "CMakeFiles/mine.dir/spirals.cpp.o")
        self.assertEqual(built.returncode, 0, built.stdout)

    def test_is_fetched(self):
        self.check(FETCHED)

    def test_may_bring_its_tests_and_its_installation(self):
        ran = self.configure(ADDED, "-DLOCKSTEP_TESTS=ON", "-DLOCKSTEP_INSTALL=ON")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertTrue(any("/emulated/" in file for file in self.commands()))

    @unittest.skipUnless(shutil.which("clang++"), "there is no clang++")
    def test_a_compiler_that_cannot_build_it_is_refused(self):
        found = re.search(r"version (\d+)", subprocess.run(["clang++", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout)
        if int(found[1]) > 14:
            self.skipTest("this clang++ may know std::source_location")
        ran = self.configure(ADDED, "-DCMAKE_CXX_COMPILER=clang++")
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("std::source_location", ran.stdout)

    @unittest.skipUnless(os.environ.get("LOCKSTEP_SUBPROJECT_BUILD"), "LOCKSTEP_SUBPROJECT_BUILD is not set")
    def test_a_program_is_built_and_trains(self):
        self.assertEqual(self.configure(ADDED).returncode, 0)
        built = self.run_cmake("--build", self.folder / "build", "--target", "mine")
        self.assertEqual(built.returncode, 0, built.stdout)
        out = subprocess.run([self.folder / "build" / "mine", self.folder / "weights"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertIn("parameters ", out)


if __name__ == "__main__":
    main()
