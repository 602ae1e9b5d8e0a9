"""examples/rust/host.rs: its structs are those of the headers, and it decodes what the C host decodes.

Usage: rust_host.py ROOT PLUGIN MINIMAL CONFIG...   ($CC, $RUSTC; exit code 77 = there is no rustc)"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT, PLUGIN, MINIMAL, *CONFIGS = sys.argv[1:]
RUSTC = os.environ.get("RUSTC") or shutil.which("rustc") or shutil.which("rustc", path=os.path.expanduser("~/.cargo/bin"))
CC = shlex.split(os.environ.get("CC") or "cc")
results = []


def check(what, good, why=""):
    results.append(good)
    if not good:
        print(f"FAILED: {what}: {why}")


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def agrees(layout, folder):
    """Does a C compiler say the same sizes, offsets and constants? And if not, what."""
    lines = ["#include <stddef.h>", '#include "replayssm.h"']
    lines += [f'_Static_assert({what} == {number}, "{what}");' for what, number in layout]
    source = pathlib.Path(folder, "layout.c")
    source.write_text("\n".join(lines) + "\n")
    compiled = run(*CC, "-std=c11", "-fsyntax-only", "-I", pathlib.Path(ROOT, "abi"), source)
    return compiled.returncode == 0, compiled.stderr


def same_layout(host, folder):
    layout = [line.rsplit(" ", 1) for line in run(host, "--layout").stdout.splitlines()]
    good, why = agrees(layout, folder)
    check("structs and constants as in the headers", good, why)
    check("something was compared", len(layout) > 150, f"{len(layout)} lines")
    for i in range(0, len(layout), 7):  # and a wrong one is noticed
        bent = [list(line) for line in layout]
        bent[i][1] = str(int(bent[i][1]) + 1)
        check(f"{bent[i][0]} off by one is found", not agrees(bent, folder)[0])


def outputs(text):
    """The numbers after `out =`, as minimal.c prints them."""
    found = re.findall(r"out = \[?(.*?)\]? \.\.\.", text)
    return [["%g" % float(x) for x in re.split(r"[ ,]+", line)] for line in found]


def same_outputs(host, config):
    name = pathlib.Path(config).name
    rust, again, c = run(host, PLUGIN, config), run(host, PLUGIN, config), run(MINIMAL, PLUGIN, config)
    check(f"{name}: runs", rust.returncode == 0 and c.returncode == 0, rust.stderr + c.stderr)
    check(f"{name}: five tokens", len(outputs(rust.stdout)) == 5, rust.stdout)
    check(f"{name}: not all zero", any(float(x) for x in sum(outputs(rust.stdout), [])), rust.stdout)
    check(f"{name}: as the C host", outputs(rust.stdout) == outputs(c.stdout), rust.stdout + c.stdout)
    check(f"{name}: the same again", rust.stdout == again.stdout, again.stdout)
    refused = re.search(r"refused: RSSM_ERR_SHAPE: .*role out, dim 2, expected (\d+), got (\d+)", rust.stdout)
    check(f"{name}: a wrong tensor is refused with its fields", refused and int(refused[1]) == int(refused[2]) + 1, rust.stdout)


def refusals(host, folder):
    missing = run(host, PLUGIN, pathlib.Path(folder, "none.json"))
    check("a config that is not there", missing.returncode == 1 and "RSSM_ERR_IO" in missing.stderr, missing.stderr)
    other = run(host, pathlib.Path(folder, "none.so"), CONFIGS[0])
    check("a plugin that is not there", other.returncode == 1 and other.stderr == "not a plugin\n", other.stderr)


def main():
    if not RUSTC:
        print("no rustc")
        return 77
    source = pathlib.Path(ROOT, "examples/rust/host.rs")
    with tempfile.TemporaryDirectory() as folder:
        host = pathlib.Path(folder, "host")
        built = run(RUSTC, "-D", "warnings", source, "-o", host)
        check("compiles without a warning", built.returncode == 0, built.stderr)
        check("less than 150 lines", len(source.read_text().splitlines()) < 150)
        if built.returncode == 0:
            same_layout(host, folder)
            refusals(host, folder)
            for config in CONFIGS:
                same_outputs(host, config)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return not all(results)


sys.exit(main())
