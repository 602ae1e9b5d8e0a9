#!/usr/bin/env python3
"""replayssm-plan on the shipped configs: what speculation costs adds up, and the sessions are those of a plan of its own.

    plan_check.py PLAN PLUGIN CONFIG ...
"""
import json
import subprocess
import sys

passed = failed = 0


def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print("FAILED:", what)


def plan(*args):
    done = subprocess.run([PLAN, "--plugin", PLUGIN, *args], capture_output=True, text=True)
    check(done.returncode == 0, f"{args}: {done.stderr.strip()}")
    return done.stdout


def check_costs(config, drafts, conv, ring):
    common = [config, "--memory", "4GiB", "--json"] + ["--conv"] * conv
    name = f"{config} D={drafts} conv={conv} L={ring}"
    whole = json.loads(plan(*common, "--ring", str(ring), "--draft", str(drafts)))
    plain = json.loads(plan(*common, "--ring", str(whole["ring_length"])))
    cost = whole["speculation"]
    check("speculation" not in plain, f"{name}: no drafts, no section")
    check(cost["max_draft_tokens"] == drafts and cost["window_tokens"] == drafts + 1, f"{name}: tokens")
    check(cost["plain"]["bytes_per_slot"] == plain["bytes_per_slot"]["total"], f"{name}: plain bytes")
    check(cost["plain"]["sessions"] == plain["slots"], f"{name}: plain sessions")
    check(cost["replay"]["bytes_per_slot"] == whole["bytes_per_slot"]["total"], f"{name}: bytes")
    check(cost["replay"]["sessions"] == whole["slots"] > 0, f"{name}: sessions")
    extra = {part: whole["bytes_per_slot"][part] - plain["bytes_per_slot"][part] for part in ("state", "ring", "conv")}
    check(extra["state"] == 0, f"{name}: drafts need no state")
    check(cost["replay"]["extra_ring_bytes_per_slot"] == extra["ring"] > 0, f"{name}: ring rows")
    check(cost["replay"]["extra_conv_bytes_per_slot"] == extra["conv"], f"{name}: columns")
    check((extra["conv"] > 0) == bool(conv), f"{name}: columns with --conv alone")
    check(cost["replay"]["extra_bytes_per_slot"] == extra["ring"] + extra["conv"], f"{name}: their sum")
    one = plain["bytes_per_slot"]["state"] + plain["bytes_per_slot"]["conv"]
    snapshots = cost["state_snapshots"]
    check(snapshots["snapshots"] == drafts + 2 and snapshots["bytes_per_slot"] == (drafts + 2) * one, f"{name}: snapshots")
    check(snapshots["sessions"] == (4 << 30) // snapshots["bytes_per_slot"], f"{name}: sessions with snapshots")
    check(whole["ring_rows"] == whole["ring_length"] + drafts + 1, f"{name}: R = L + T")


def check_text(config):
    text = plan(config, "--draft", "3", "--memory", "4GiB")
    for part in ("windows of T = 4 tokens", "plain decoding", "room for drafts", "5 state snapshots (T + 1)", "sessions fit",
                 "drafts cost"):
        check(part in text, f"{config}: no \"{part}\"")
    check("speculation" not in plan(config), f"{config}: a plan without drafts says nothing of them")
    check("--memory says how many" in plan(config, "--draft", "3"), f"{config}: without --memory no sessions")


PLAN, PLUGIN, configs = sys.argv[1], sys.argv[2], sys.argv[3:]
for path in configs:
    for draft in (1, 3, 15):
        for with_conv in (0, 1):
            check_costs(path, draft, with_conv, 0)
            check_costs(path, draft, with_conv, 16)
    check_text(path)
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
