#!/usr/bin/env python3
"""The page of `replayssm-plan --html`: well-formed, alone, escaped, written whole or not at all, every number of its tables and
the lengths in its charts those of `--json` of a plan of its own; and, where there is a Chromium, looked at (browser.py).

    check.py PLAN PLUGIN [--few] CONFIG ...      (--few: with fewer sets of options)
"""
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

import browser
import document

passed = failed = 0


def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print("FAILED:", what)


def run(*args, **how):
    return subprocess.run([PLAN, "--plugin", PLUGIN, *args], capture_output=True, timeout=60, **how)


def plan(*args):
    done = run(*args, "--json")
    check(done.returncode == 0, f"{args}: {done.stderr.decode(errors='replace').strip()}")
    return json.loads(done.stdout)


def number(text):
    return float(text.replace(",", "").replace(" %", ""))


def numbers(rows):
    return [[number(cell) for cell in row] for row in rows]


def near(got, want, by):
    return len(got) == len(want) and all(abs(a - b) <= by for a, b in zip(got, want))


# ---- one plan ---------------------------------------------------------------------------------------------------------

class Case:
    """A config with options; what they leave open is asked of the planner."""

    def __init__(self, config, options, folder):
        self.config, self.options = config, options
        self.name = " ".join([pathlib.Path(config).name, *options])
        path = os.path.join(folder, "page.html")
        done = run(config, *options, "--html", path)
        check(done.returncode == 0, f"{self.name}: {done.stderr.decode()}")
        check(done.stdout == run(config, *options).stdout, f"{self.name}: --html changes nothing on stdout")
        self.text = pathlib.Path(path).read_text("utf-8")
        self.page = document.parse(self.text)
        self.plan = plan(config, *options)
        self.slots = self.plan["slots"]

    def value(self, option, otherwise):
        return self.options[self.options.index(option) + 1] if option in self.options else otherwise

    def other(self, **change):
        """The same plan with L and the slots fixed, and then with `change`."""
        args = {"ring": self.plan["ring_length"], "slots": self.slots, "tp": self.plan["tp_size"],
                "rank": self.plan["tp_rank"], "draft": self.plan["max_draft_tokens"], **change}
        kept = [x for name in ("--state", "--io", "--ring-dtype") if name in self.options
                for x in (name, self.value(name, ""))] + ["--conv"] * ("--conv" in self.options)
        return [self.config, *kept, *(x for key, value in args.items() if value is not None for x in ("--" + key, str(value)))]

    def rows(self, name):
        return self.page.tables[name][1:]


def sizes(answer):
    parts = answer["bytes_per_slot"]
    return [parts["state"], parts["ring"], *([parts["conv"]] if parts["conv"] else [])]


def check_alone(c):
    page = c.page
    check(not page.faults, f"{c.name}: {page.faults[:3]}")
    check(not document.outside(page, c.text), f"{c.name}: refers to {document.outside(page, c.text)[:3]}")
    check("default-src 'none'" in c.text, f"{c.name}: a policy that forbids what is outside")
    check(page.texts["h1"] == [c.plan["model_type"] or c.plan["family"]], f"{c.name}: the model's name")
    check(len(page.tables) == 6 and len(page.charts) == 6, f"{c.name}: {len(page.tables)} tables, {len(page.charts)} charts")
    for chart in page.charts.values():
        check(chart.title and chart.description, f"{c.name}: {chart.name} without a title or description")


def check_ranks(c):
    legal = []
    for row in c.rows("ranks-n"):
        other = c.other(tp=row[0], rank=c.plan["tp_rank"] if int(row[0]) == c.plan["tp_size"] else 0)
        done = run(*other, "--json")
        if done.returncode != 0:
            check(len(row) == 2 and row[1] in json.loads(done.stdout)["error"], f"{c.name}: tp {row[0]} is refused: {row}")
            continue
        answer = json.loads(done.stdout)
        legal.append([*sizes(answer), answer["pool_bytes"]])
        check([number(x) for x in row[1:]] == legal[-1], f"{c.name}: tp {row[0]}: {row} is not {legal[-1]}")
    check(len(c.rows("ranks-n")) >= 7 and legal, f"{c.name}: tp = 1 to 64")
    bars = c.page.charts["ranks"].bars
    check(near([sum(bar) for bar in bars], [100 * row[-1] / legal[0][-1] for row in legal], 0.05), f"{c.name}: ranks' bars")


def check_lengths(c):
    rows, steps = numbers(c.rows("ring-n")), numbers(c.rows("bytes-n"))
    check([row[0] for row in rows] == [row[0] for row in steps], f"{c.name}: the same lengths in both tables")
    check(c.plan["ring_length"] in [row[0] for row in rows] and len(rows) >= (6 if "40" not in c.options else 2), f"{c.name}: this plan's length")
    for row, step in zip(rows, steps):
        answer = plan(*c.other(ring=int(row[0]), slots=1))
        check(row[1:] == [*sizes(answer), answer["bytes_per_slot"]["total"]], f"{c.name}: L = {row[0]}: {row}")
        check(step[1] == answer["step_bytes"], f"{c.name}: step bytes at L = {row[0]}: {step}")
        share = 100 * answer["step_bytes"] / answer["step_bytes_read_write"]
        check(abs(step[2] - share) <= 0.0501, f"{c.name}: {step} is not {share} %")
    every = [plan(*c.other(ring=L, slots=1))["step_bytes"] for L in range(c.plan["max_draft_tokens"] + 1, 65)]
    best = every.index(min(every)) + c.plan["max_draft_tokens"] + 1
    check(c.page.heading("bytes").startswith(f"L = {best}"), f"{c.name}: {c.page.heading('bytes')}: the fewest are at {best}")
    bars = c.page.charts["ring"].bars
    for bar, row in zip(bars, rows):
        want = [100 * part / rows[-1][-1] for part in row[1:-1] if part > 0]
        check(near(bar, want, 0.02), f"{c.name}: bar of L = {row[0]}: {bar} is not {want}")
    check(len(bars) == len(rows), f"{c.name}: a bar for each length")


def check_sessions(c):
    head, rows = c.page.tables["sessions-n"][0], numbers(c.rows("sessions-n"))
    lengths = [int(text.replace("L = ", "")) for text in head[1:]]
    check(c.plan["ring_length"] in lengths and len(lengths) >= 2 and len(rows) == 8, f"{c.name}: lengths {lengths}")
    if "--memory" in c.options:
        check(rows[-1][1 + lengths.index(c.plan["ring_length"])] == c.slots, f"{c.name}: {rows[-1]} has not {c.slots}")
    for row in rows:
        for length, sessions in zip(lengths, row[1:]):
            done = run(*c.other(ring=length, slots=None, memory=int(row[0])), "--json")
            want = json.loads(done.stdout)["slots"] if done.returncode == 0 else 0
            check(sessions == want, f"{c.name}: {row[0]} bytes at L = {length}: {sessions}, not {want}")
    heights = c.page.charts["sessions"].heights
    most = max(max(row[1:]) for row in rows)
    top = max(max(line) for line in heights)
    for line, values in zip(reversed(heights), zip(*(row[1:] for row in rows))):
        check(near(line, [top * v / most for v in values], 0.2), f"{c.name}: a line of sessions is not its column")


def check_time(c):
    bandwidth = {"": 4.8e12, "3.35TB/s": 3.35e12, "200GB": 200e9}[c.value("--bandwidth", "")]
    rows = numbers(c.rows("time-n"))
    check([row[0] for row in rows] == [2 ** i for i in range(10)], f"{c.name}: batches")
    for batch, replay, read_write in rows:
        scale = 1e6 * len(c.plan["linear_layers"]) * batch / bandwidth
        check(abs(replay - scale * c.plan["step_bytes"]) <= 0.0051, f"{c.name}: {batch} rows take {replay}")
        check(abs(read_write - scale * c.plan["step_bytes_read_write"]) <= 0.0051, f"{c.name}: {batch} rows take {read_write}")
    says = " ".join(c.page.texts["p"])
    rate = f"{bandwidth / 1e12:g} TB/s" if bandwidth >= 1e12 else f"{bandwidth / 1e9:g} GB/s"
    check("A model, not a measurement" in says and rate in says, f"{c.name}: the page says that it is a model, at {rate}")
    heights = c.page.charts["time"].heights
    check(near(heights[1], [max(heights[0]) * row[1] / rows[-1][2] for row in rows], 0.2), f"{c.name}: the lines of time")


def check_drafts(c):
    plain = plan(*c.other(draft=0, slots=1))["bytes_per_slot"]
    rows = numbers(c.rows("drafts-n"))
    check([row[0] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) >= 15, f"{c.name}: drafts")
    for drafts, replay, snapshots, snapshot_bytes in rows:
        ring = max(c.plan["ring_length"], int(drafts) + 1)
        answer = plan(*c.other(draft=int(drafts), ring=ring, slots=1))
        check(replay == answer["bytes_per_slot"]["total"], f"{c.name}: {drafts} drafts take {replay}")
        check(snapshots == drafts + 2 and snapshot_bytes == snapshots * (plain["state"] + plain["conv"]),
              f"{c.name}: {drafts} drafts' snapshots take {snapshot_bytes}")
    if "speculation" in c.plan:
        said, row = c.plan["speculation"], rows[c.plan["max_draft_tokens"] - 1]
        check(row[1] == said["replay"]["bytes_per_slot"], f"{c.name}: as in the plan's own section")
        check(row[3] == said["state_snapshots"]["bytes_per_slot"], f"{c.name}: snapshots as in the plan's own section")
    shown = rows[(c.plan["max_draft_tokens"] or 3) - 1]
    for value in (shown[1], shown[3]):
        check(f"{value / plain['total']:.2f} \u00d7" in c.page.heading("drafts"), f"{c.name}: {c.page.heading('drafts')}")


# ---- hostile input ------------------------------------------------------------------------------------------------------

EVIL = "</title></h1><script>document.title='x'</script><img src=x onerror=alert(1)>&lt;&amp;\"'\u202e" + "w" * 300


def evil_page(config, folder):
    """A config whose strings and whose path are HTML; the page's text."""
    keys = json.loads(pathlib.Path(config).read_text())
    keys["model_type"] = EVIL
    inside = os.path.join(folder, "<i onclick=alert(1)>&'\"")
    os.mkdir(inside)
    path = os.path.join(inside, "c\udcff.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump(keys, out)
    target = os.path.join(folder, "evil.html")
    done = run(path, "--html", target, "--json")
    check(done.returncode == 0, f"evil: {done.stderr!r}")
    text = pathlib.Path(target).read_text("utf-8")
    page = document.parse(text)
    check(not page.faults and not document.outside(page, text), f"evil: {page.faults} {document.outside(page, text)}")
    check(page.texts["h1"] == [json.loads(done.stdout)["model_type"]], f"evil: {page.texts['h1']}")
    check(page.texts["h1"][0].startswith("</title></h1><script>"), "evil: the name is shown as it is")
    check(not page.tags & {"script", "img", "i", "iframe", "a", "link"}, f"evil: {page.tags}")
    check("<i onclick=alert(1)>" in " ".join(page.texts["dd"]), "evil: the path is shown as it is")
    return text


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def check_writes(config, folder):
    inside = os.path.join(folder, "writes")
    os.mkdir(inside)
    target = os.path.join(inside, "page.html")

    def fails(what, *args, **how):
        done = run(config, *args, **how)
        check(done.returncode == 2 and b"replayssm-plan: " in done.stderr and not done.stdout,
              f"{what}: code {done.returncode}, {done.stderr!r}")

    # Python's children ignore SIGXFSZ when restore_signals is off: the write fails, as on a full disk.
    fails("a full disk", "--html", target, preexec_fn=limit_files, restore_signals=False)
    check(os.listdir(inside) == [], f"a full disk leaves {os.listdir(inside)}")
    pathlib.Path(target).write_text("old")
    fails("a full disk, a page there", "--html", target, preexec_fn=limit_files, restore_signals=False)
    check(os.listdir(inside) == ["page.html"] and pathlib.Path(target).read_text() == "old", "the old page stays")
    fails("a full device", "--html", "/dev/full")
    check(pathlib.Path("/dev/full").is_char_device(), "the device stays")
    fails("a missing folder", "--html", os.path.join(inside, "no", "page.html"))
    fails("a folder", "--html", inside)
    fails("a long name", "--html", os.path.join(inside, "x" * 5000))
    fails("a refused plan", "--tp", "7777", "--html", target)
    fails("a budget for nothing", "--memory", "1K", "--html", os.path.join(inside, "none.html"))
    check(os.listdir(inside) == ["page.html"] and pathlib.Path(target).read_text() == "old", "nothing else was written")
    done = run(config, "--html", target)
    check(done.returncode == 0 and os.listdir(inside) == ["page.html"], "a page replaces a page")
    check(pathlib.Path(target).read_text().endswith("</html>\n"), "and is whole")
    link, behind = os.path.join(inside, "link.html"), os.path.join(inside, "behind.html")
    os.symlink("behind.html", link)
    for _ in range(2):  # made, then written anew
        check(run(config, "--html", link).returncode == 0 and os.path.islink(link), "a link stays")
        check(pathlib.Path(behind).read_text().endswith("</html>\n"), "a page behind a link")
    piped = run(config, "--html", "/dev/stdout")
    check(piped.returncode == 0 and b"</html>\n" in piped.stdout, "a page into a pipe")
    for bad in ("0", "-1", "x", "/s", "4.8TB/h", "4.8XB/s", "1e400", "nan", "9" * 80):
        check(run(config, "--bandwidth", bad).returncode == 64, f"--bandwidth {bad}")


def check_sizes(folder):
    """The largest model that the plugin takes: sums near 63 bits, and no number that is none."""
    path, target = os.path.join(folder, "huge.json"), os.path.join(folder, "huge.html")
    layers = list(range(1, 60001))
    pathlib.Path(path).write_text(json.dumps({"model_type": "huge", "num_hidden_layers": 60000, "linear_attn_config": {
        "num_heads": 65536, "head_dim": 4096, "short_conv_kernel_size": 4, "kda_layers": layers, "full_attn_layers": []}}))
    for options in ([], ["--ring", "64", "--conv"], ["--memory", "9000000000000000000"], ["--tp", "32", "--bandwidth", "1"]):
        done = run(path, *options, "--html", target)
        check(done.returncode == 0, f"huge {options}: {done.stderr.decode()}")
        text = pathlib.Path(target).read_text("utf-8")
        check(not document.parse(text).faults, f"huge {options}: {document.parse(text).faults[:2]}")
        check(not re.search(r'["> ]-?(nan|inf)[" <%]', text), f"huge {options}: a number that is none")
        os.remove(target)
    done = run(path, "--draft", "63", "--html", target)
    check(done.returncode == 2 and b"do not fit in 63 bits" in done.stderr, f"snapshots: {done.stderr!r}")
    check(not os.path.exists(target), "a refused plan leaves no page")


FEW = sys.argv[3] == "--few"
PLAN, PLUGIN, configs = sys.argv[1], sys.argv[2], sys.argv[3 + FEW:]
OPTIONS = [["--memory", "8GiB"], ["--tp", "4", "--rank", "1", "--memory", "40GiB", "--draft", "3", "--conv"],
           ["--state", "bf16", "--bandwidth", "3.35TB/s", "--ring", "16"],
           ["--tp", "2", "--slots", "500000", "--draft", "40", "--bandwidth", "200GB"], ["--ring", "1", "--memory", "900MB"]]

with tempfile.TemporaryDirectory() as folder:
    pages = {}
    for at, path in enumerate(configs):
        for options in OPTIONS[:2 if FEW else None] if at == 0 else [OPTIONS[at % len(OPTIONS)]]:
            case = Case(path, options, folder)
            for one in (check_alone, check_ranks, check_lengths, check_sessions, check_time, check_drafts):
                one(case)
            pages[case.name] = case.text
    pages["evil"] = evil_page(configs[0], folder)
    check_writes(configs[0], folder)
    check_sizes(folder)
    browser.check_all(pages, check, folder)
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
