#!/usr/bin/env python3
"""Checks that no kernel declares more shared memory than kMostStaticShared (device/cuda/grid.h), which
launches leave free for it. Kernels compiled for the emulated GPU hold what they declare as __shared__ in
variables of a thread, whose names and sizes their objects list; nvcc gives them the same sizes.

    static_shared_memory_test.py GRID_HEADER NM OBJECT...
"""
import collections
import re
import subprocess
import sys


def static_shared(nm, objects):
    """{object: {function: bytes}}. A function's variable is listed as `function(arguments)::name`."""
    sizes = {}
    for path in objects:
        of_functions = collections.Counter()
        # The System V format tells variables of a thread from others.
        listing = subprocess.run([nm, '--demangle', '--format=sysv', '--defined-only', path], check=True,
                                 capture_output=True, text=True).stdout
        for line in listing.splitlines():
            fields = [field.strip() for field in line.split('|')]
            if len(fields) == 7 and fields[3] == 'TLS':
                of_functions[fields[0].rpartition('::')[0]] += int(fields[4], 16)
        sizes[path] = of_functions
    return sizes


def largest_kernel(of_functions):
    """The kernel that declares most, and how much, with all that other functions of its source declare: it
    may call them."""
    kernels = {function: size for function, size in of_functions.items() if '_kernel' in function}
    helpers = sum(of_functions.values()) - sum(kernels.values())
    name, size = max(kernels.items(), key=lambda item: item[1], default=('a kernel without its own', 0))
    return name, size + helpers


def main(header, nm, *objects):
    with open(header) as file:
        most = int(re.search(r'kMostStaticShared = (\d+) \* 1024;', file.read()).group(1)) * 1024
    found = 0
    failed = False
    for path, of_functions in static_shared(nm, objects).items():
        name, size = largest_kernel(of_functions)
        found += size > 0
        if size > most:
            failed = True
            print(f'{path}: {name} declares {size} bytes of shared memory, with what it may call; '
                  f'launches leave {most} free (kMostStaticShared)')
    if found == 0:
        sys.exit('no object declares any shared memory: how __shared__ is compiled must have changed')
    sys.exit(failed)


if __name__ == '__main__':
    main(*sys.argv[1:])
