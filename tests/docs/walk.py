#!/usr/bin/env python3
"""Runs the commands of docs/onboarding.md and compares what they print with what the page quotes.

    walk.py PAGE.md SOURCE_ROOT BUILD_ROOT            N passed, N failed
    walk.py PAGE.md SOURCE_ROOT BUILD_ROOT --update   writes the output into the page instead (then shorten it by hand)

A line of a ```console block that starts with `$ ` is a command; the lines after it are what it prints, on both streams. `...` stands
for anything within a line, and alone for any lines. VOLATILE is not compared. A command may fail only where its output is
quoted as an error (RSSM_ERR_...). The ```c block is onboard.c.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
VOLATILE = [  # figures of the machine: speed, threads (and with them the workspace), last digits of errors
    (r"[\d.]+ tokens/s, [\d.]+ us per layer-step", "SPEED"),
    (r"[\d.]+ GB/s", "SPEED"),
    (r"cpu \w+, \d+ threads?", "CPU"),
    (r"pool of (\d+) slots?, [\d.]+ MB", r"pool of \1 slots"),
    (r"\(\d+ bytes: slab (\d+), workspace \d+\)", r"(slab \1)"),
    (r"worst [-+.\de]+,", "worst E,"),
    (r"\(step \d+, layer \d+, row \d+; (\d+) values\)", r"(\1 values)"),
    (r"(out = )[-+.\de]+( [-+.\de]+)*", r"\1 VALUES"),
]


def steps(text):
    """(command, quoted lines) of every console block."""
    found = []
    for block in CONSOLE.findall(text):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def run(command, folder):
    environment = {name: value for name, value in os.environ.items() if name != "REPLAYSSM_PLUGIN"}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    return done.returncode, done.stdout.rstrip("\n").splitlines() if done.stdout else []


def plain(line):
    for pattern, text in VOLATILE:
        line = re.sub(pattern, text, line)
    return line.rstrip()


def matches(quoted, printed):
    """The first quoted line that was not printed where it should be, or None."""
    at = 0
    skip = False
    for line in quoted:
        if line.strip() == "...":
            skip = True
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in plain(line).split("...")))
        while skip and at < len(printed) and not pattern.fullmatch(plain(printed[at])):
            at += 1
        if at == len(printed) or not pattern.fullmatch(plain(printed[at])):
            return f"quoted:  {line}\n  printed: {printed[at] if at < len(printed) else '(nothing more)'}"
        at += 1
        skip = False
    return None if skip or at == len(printed) else f"not quoted: {printed[at]}"


def problem(quoted, code, printed):
    refused = any("RSSM_ERR_" in line for line in quoted)
    if refused != (code != 0):
        return f"exit status {code}: " + "\n".join(printed[:3])
    return matches(quoted, printed)


def prepare(folder, text, source, build):
    """A folder that looks like the repository's root with its build."""
    for name in ("abi", "configs", "tests"):
        os.symlink(source / name, folder / name)
    os.symlink(build, folder / "build")
    (folder / "onboard.c").write_text(re.search(r"^```c\n(.*?)^```$", text, re.M | re.S).group(1))


def updated(text, outputs):
    def block(match):
        lines = []
        for line in match.group(1).splitlines():
            if line.startswith("$ "):
                lines += [line] + next(outputs)
        return "```console\n" + "\n".join(lines) + "\n```"
    return CONSOLE.sub(block, text)


def main(page, source, build, *options):
    text = pathlib.Path(page).read_text()
    passed = failed = 0
    outputs = []
    with tempfile.TemporaryDirectory() as name:
        prepare(pathlib.Path(name), text, pathlib.Path(source).resolve(), pathlib.Path(build).resolve())
        for command, quoted in steps(text):
            code, printed = run(command, name)
            outputs.append(printed)
            wrong = problem(quoted, code, printed)
            passed, failed = passed + (wrong is None), failed + (wrong is not None)
            if wrong is not None and not options:
                print(f"FAILED: $ {command}\n  {wrong}")
    if options == ("--update",):
        pathlib.Path(page).write_text(updated(text, iter(outputs)))
        return 0
    print(f"{passed} passed, {failed} failed")
    return failed != 0 or passed == 0


if len(sys.argv) not in (4, 5):
    sys.exit(__doc__)
sys.exit(main(*sys.argv[1:]))
