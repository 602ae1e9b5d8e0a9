#!/usr/bin/env python3
"""Cuts the C out of a page, so that it is compiled as it is printed. Errors name the page and its line.

    extract.py PAGE.md OUT.h              all ```c blocks, in order: one program, at file scope
    extract.py --body PAGE.md OUT.h       one function `page_body` of its statements (#include lines stay outside)
"""

import pathlib
import re
import sys

BLOCK = re.compile(r"^```c\n(.*?)^```$", re.M | re.S)


def blocks(page):
    """(number of its first line, text) of each block."""
    text = pathlib.Path(page).read_text()
    found = [(text.count("\n", 0, m.start(1)) + 1, m.group(1)) for m in BLOCK.finditer(text)]
    if not found:
        sys.exit(f"{page}: no ```c block")
    return found


def program(page):
    return "".join(f'#line {line} "{page}"\n{text}\n' for line, text in blocks(page))


def body(page):
    """The names that the page leaves to its reader are arguments (prelude.h declares PAGE_ARGUMENTS)."""
    includes, statements = [], []
    for line, text in blocks(page):
        rows = text.splitlines()
        includes += [row for row in rows if row.startswith("#include")]
        rows = ["" if row.startswith("#include") else row for row in rows]
        statements.append(f'#line {line} "{page}"\n' + "\n".join(rows))
    return "\n".join(includes + ["int page_body(PAGE_ARGUMENTS)", "{"] + statements + ["return 0;", "}", ""])


arguments = sys.argv[1:]
make = program
if arguments[:1] == ["--body"]:
    make = body
    arguments = arguments[1:]
if len(arguments) != 2:
    sys.exit(__doc__)
pathlib.Path(arguments[1]).write_text(make(arguments[0]))
