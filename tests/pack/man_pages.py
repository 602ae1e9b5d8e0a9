"""Each option of a program's --help is in its man page, with the same argument, and the other way round; the pages are
well-formed where there is a program to say so.

Usage: man_pages.py ROOT PROGRAM..."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT, *PROGRAMS = sys.argv[1:]
results = []


def check(what, good, why=""):
    results.append(good)
    if not good:
        print(f"FAILED: {what}: {why}")


def options_of_help(text):
    """{name: argument} of lines such as `  --tp N    tensor-parallel ranks`."""
    rows = re.findall(r"^  --([\w-]+)(?: (\S+))?(?: {2,}| (?=[a-z])).*$", text, re.M)
    return {name: argument for name, argument in rows if name != "help"}


def options_of_page(text):
    rows = re.findall(r"^\.It Fl -([\w-]+)(?: Ar (\S+))?$", text, re.M)
    return {name: argument for name, argument in rows if name != "help"}


def compare(name, help_text, page_text):
    shown, written = options_of_help(help_text), options_of_page(page_text)
    lines = len(re.findall(r"^  --", help_text, re.M)) - ("\n  --help" in help_text)
    check(f"{name}: every line of --help is understood", lines == len(shown) > 5, help_text)
    for option in sorted({*shown, *written}):
        check(f"{name} --{option}", shown.get(option) == written.get(option),
              f"--help has {shown.get(option)}, the man page {written.get(option)}")
    check(f"{name}: --help is in the page", "\n.It Fl -help\n" in page_text)
    check(f"{name}: the page's name", f"\n.Nm {name}\n" in page_text and f".Dt {name.upper()} 1\n" in page_text)


def well_formed(page):
    for tool, command in {"mandoc": ["mandoc", "-T", "lint", "-W", "warning"], "man": ["man", "--warnings", "-Tutf8", "-l"]}.items():
        if shutil.which(tool):
            done = subprocess.run([*command, page], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
            check(f"{tool} of {page.name}", done.returncode == 0 and not done.stderr, done.stdout[-400:] + done.stderr)


def finds_faults(help_text, page_text):
    """The comparison fails on pages that are wrong: this test can fail."""
    first = re.search(r"^\.It Fl -[\w-]+( Ar \S+)?$", page_text, re.M)
    for bent in (page_text.replace(first[0], "", 1), page_text.replace(first[0], ".It Fl -nonsense\n" + first[0], 1),
                 page_text.replace(first[0], first[0].split(" Ar ")[0] + " Ar OTHER", 1)):
        check("a wrong page is found", options_of_help(help_text) != options_of_page(bent))


def main():
    pages = set()
    for program in PROGRAMS:
        name = pathlib.Path(program).name
        page = pathlib.Path(ROOT, "man", name + ".1")
        pages.add(page)
        if not page.exists():
            check(f"{name} has a page", False, page)
            continue
        help_text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
        compare(name, help_text, page.read_text())
        finds_faults(help_text, page.read_text())
        well_formed(page)
    check("no page of a program that is not there", pages == set(pathlib.Path(ROOT, "man").glob("*.1")), pages)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return results.count(False) > 0


sys.exit(main())
