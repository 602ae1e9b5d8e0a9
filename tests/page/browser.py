"""The page in a headless Chromium, at the width of a phone and of a desktop, light and dark, tables open and closed: nothing
sticks out sideways, no text lies on text or is too faint, no message on the console. Pages that are wrong in one thing each show
that it would be seen. Skipped, by name, where there is no Chromium."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

WIDTHS = (390, 1280)
SCHEMES = {"dark": 0, "light": 1}  # as Chromium numbers them
LOOK = pathlib.Path(__file__).with_name("look.js")

# A page broken in one thing: text to replace, with what, and the finding that must come.
BROKEN = {
    "sticks out": ("<footer>", "<div style=\"width: 2000px\">wide</div><footer>", "wider than the window"),
    "a wide table": ("td { padding: .25rem .35rem;", "td { padding: .25rem 4rem;", "a table scrolls"),
    "faint": ("--soft: #545c66;", "--soft: #a0a8b0;", "faint"),
    "faint in the dark": ("--soft: #a3acb6;", "--soft: #454a50;", "faint"),
    "one scheme only": ("--page: #0e1114;", "--page: #f4f5f7;", "the page's colour"),
    "text on text": (".value { font-size: 12.5px;", ".value { transform: translateY(-14px); font-size: 12.5px;", "text on text"),
    "text out of its card": (".lines { margin-top: auto; padding: 2.9rem 6.4rem", ".lines { margin-top: auto; padding: 2.9rem 1rem",
                             "out of its card"),
    "tiny": (".tick, .axis { fill: var(--soft); font-size: 12px; }", ".tick, .axis { fill: var(--soft); font-size: 7px; }", "tiny"),
}
NOISY = ("<footer>", "<script>1</script><footer>")  # the page's policy says no, on the console


def find():
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


def run(program, folder, scheme, harness):
    """The harness's findings and the console's lines. The time that Chromium waits for is virtual; ours is limited, too."""
    with tempfile.TemporaryDirectory(dir=folder) as profile:
        done = subprocess.run(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", f"--user-data-dir={profile}", "--window-size=1400,1000",
             f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", "--virtual-time-budget=10000",
             "--enable-logging=stderr", "--dump-dom", harness],
            capture_output=True, timeout=150, env={**os.environ, "HOME": profile}, errors="replace")
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    lines = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return json.loads(found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")) if found else None, lines


def look(program, folder, pages, scheme):
    """{(name, width): [findings]} and the console's lines."""
    harness = os.path.join(folder, "harness.html")
    text = json.dumps({"widths": WIDTHS, "scheme": scheme, "pages": pages}).replace("<", "\\u003c")
    pathlib.Path(harness).write_text(
        "<!DOCTYPE html><meta charset='utf-8'><body><script>const task = " + text + ";\n" + LOOK.read_text() + "</script></body>")
    found, console = run(program, folder, scheme, harness)
    if found is None:
        return None, console
    return {(one["page"], one["width"]): one["faults"] for one in found}, console


def check_all(pages, check, folder):
    program = find()
    if program is None:
        print("SKIP: no Chromium: the page was not looked at in a browser (Debian: apt install chromium)")
        return
    sample = next(iter(pages.values()))
    broken = {}
    for name, (old, new, _) in BROKEN.items():
        check(old in sample, f"{name}: the page has no \"{old}\" any more")
        broken["broken: " + name] = sample.replace(old, new)
    for scheme in SCHEMES:
        found, console = look(program, folder, {**pages, **broken}, scheme)
        check(found is not None, f"{scheme}: no answer from {program}: {console[:3]}")
        for (name, width), faults in (found or {}).items():
            if name in pages:
                check(not faults, f"{name}, {width} pixels, {scheme}: {faults[:4]}")
        check(len(found or {}) == len(WIDTHS) * (len(pages) + len(broken)), f"{scheme}: every page at every width")
        check(not console, f"{scheme}: the console says {console[:3]}")
        for name, (_, _, finding) in BROKEN.items():
            seen = [fault for width in WIDTHS for fault in (found or {}).get(("broken: " + name, width), [])]
            meant = scheme != "light" if name in ("faint in the dark", "one scheme only") else scheme == "light"
            if meant:
                check(any(finding in fault for fault in seen), f"{scheme}: \"{name}\" is not seen: {seen[:2]}")
    _, console = look(program, folder, {"noisy": sample.replace(*NOISY)}, "light")
    check(console, "a message on the console is not seen")
