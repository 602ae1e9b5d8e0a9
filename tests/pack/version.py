"""The version is that of meson's project(); whatever else names one must say the same.

Usage: version.py ROOT PLUGIN"""

import ctypes
import pathlib
import re
import sys

ROOT, PLUGIN = pathlib.Path(sys.argv[1]), sys.argv[2]

# Where a version stands: the first match is the newest, or the only one.
PLACES = {
    "meson.build": r"^project\('replayssm',.*?version: '(.*?)'",
    "CHANGELOG.md": r"^## \[(\d.*?)\] - \d{4}-\d\d-\d\d$",
    "debian/changelog": r"^replayssm \((.*?)\) ",
    "examples/python/pyproject.toml": r"^version = \"(.*?)\"$",
    "abi/rssm_model.h": r"const char \*version; +/\* \"(.*?)\"",
}


class Info(ctypes.Structure):
    """rssm_info of abi/rssm_model.h."""

    _fields_ = [("struct_size", ctypes.c_uint64)] + [
        (name, ctypes.c_char_p) for name in ("name", "version", "git_revision", "families", "backends", "cuda_archs")]


class Table(ctypes.Structure):
    """The start of rssm_api of abi/replayssm.h."""

    _fields_ = [("struct_size", ctypes.c_uint64), ("abi_major", ctypes.c_uint32), ("abi_minor", ctypes.c_uint32),
                ("plugin_info", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Info), ctypes.c_void_p))]


def of_plugin():
    library = ctypes.CDLL(PLUGIN)
    library.replayssm_get_api.restype = ctypes.POINTER(Table)
    info = Info(struct_size=ctypes.sizeof(Info))
    status = library.replayssm_get_api(1).contents.plugin_info(ctypes.byref(info), None)
    return info.version.decode() if status == 0 else f"status {status}"


def main():
    found = {"the plugin": of_plugin()}
    for name, pattern in PLACES.items():
        match = re.search(pattern, (ROOT / name).read_text(), re.M | re.S)
        found[name] = match[1] if match else "none"
    version = found["meson.build"]
    good = 0
    for name, value in found.items():
        good += value == version != "none"
        if value != version:
            print(f"FAILED: {name} has version {value}, meson.build has {version}")
    print(f"{good} passed, {len(found) - good} failed")
    return good < len(found)


sys.exit(main())
