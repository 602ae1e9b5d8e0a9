"""The structs and constants of the binding against the headers: a C compiler prints what it sees."""

import ctypes as C
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("RSSM_SOURCE_ROOT", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "examples" / "python"))

from replayssm import structs  # noqa: E402

COMPILER = shlex.split(os.environ.get("CC") or "cc")
HEADERS = ("replayssm.h", "rssm_fault.h", "rssm_slots.h", "rssm_verify.h", "rssm_conv.h")
PREFIXES = {"RSSM_ERR_": structs.Status, "RSSM_FAMILY_": structs.Family, "RSSM_DTYPE_": structs.DType,
            "RSSM_INIT_": structs.InitFlags, "RSSM_FAULT_": structs.Fault, "RSSM_STATE_": structs.StateOrder}
NUMBERS = {"RSSM_ABI_MAJOR": structs.ABI_MAJOR, "RSSM_ROW_WIDTH": structs.ROW_WIDTH,
           "RSSM_CURSOR_WIDTH": structs.CURSOR_WIDTH, "RSSM_POOL_ALIGNMENT": structs.POOL_ALIGNMENT,
           "RSSM_T_COUNT": structs.ROLE_COUNT, "RSSM_SKIP_VALIDATE": structs.StepFlags.SKIP_VALIDATE,
           "RSSM_CHECK_DEEP": structs.StepFlags.CHECK_DEEP}
TEXTS = {"RSSM_EXT_FAULT": structs.EXT_FAULT, "RSSM_EXT_SLOTS": structs.EXT_SLOTS, "RSSM_EXT_VERIFY": structs.EXT_VERIFY,
         "RSSM_EXT_CONV": structs.EXT_CONV}
ROLE_SPELLINGS = {"B": "BM", "C": "CM", "b": "B", "A": "A_DECAY", "a": "A"}  # where upper case would be ambiguous


def c_field(struct, name):
    """DLDevice.device_type is the same in C; tables and structs keep their names throughout."""
    return f'printf("{struct}.{name} %zu\\n", offsetof({struct}, {name}));'


def c_program(names):
    lines = ["#include <stddef.h>", "#include <stdio.h>"] + [f'#include "{h}"' for h in HEADERS] + ["int main(void) {"]
    for struct, kind in structs.C_STRUCTS.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        lines += [c_field(struct, name) for name, _ in kind._fields_]
    lines += [f'printf("{name} %lld\\n", (long long){name});' for name in names]
    lines += [f'printf("{name} %s\\n", {name});' for name in TEXTS]
    return "\n".join(lines + ["return 0; }"])


def constants():
    """Name in C -> number here."""
    found = dict(NUMBERS)
    for prefix, kind in PREFIXES.items():
        found.update({prefix + m.name: int(m) for m in kind if (prefix, m.name) != ("RSSM_ERR_", "OK")})
    found.update({"RSSM_T_" + ROLE_SPELLINGS.get(name, name.upper()): number for name, number in structs.ROLES.items()})
    return found


@unittest.skipUnless(shutil.which(COMPILER[0]), f"no C compiler {COMPILER[0]!r}")
class Headers(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "sizes")
            subprocess.run([*COMPILER, "-x", "c", "-std=c11", "-I", str(ROOT / "abi"), "-", "-o", program], check=True,
                           input=c_program(constants()), text=True)
            printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        cls.c = dict(line.split(" ", 1) for line in printed.splitlines())

    def test_structs(self):
        for struct, kind in structs.C_STRUCTS.items():
            self.assertEqual(C.sizeof(kind), int(self.c[struct]), struct)
            for name, _ in kind._fields_:
                self.assertEqual(getattr(kind, name).offset, int(self.c[f"{struct}.{name}"]), f"{struct}.{name}")

    def test_constants(self):
        for name, number in constants().items():
            self.assertEqual(number, int(self.c[name]), name)
        for name, text in TEXTS.items():
            self.assertEqual(text.decode(), self.c[name])

    def test_nothing_is_left_out(self):
        """Every struct, status, fault, flag and role of the headers is here."""
        text = "\n".join((ROOT / "abi" / h).read_text() for h in (*HEADERS, "rssm_base.h", "rssm_model.h", "rssm_pool.h",
                                                                  "rssm_step.h"))
        declared = set(re.findall(r"^typedef struct (rssm_\w+) \{", text, re.M)) - {"rssm_allocator"}
        self.assertEqual(declared - set(structs.C_STRUCTS), set())
        known = set(constants())
        names = set(re.findall(r"\b(RSSM_(?:ERR|INIT|FAULT|T|FAMILY|DTYPE)_\w+) = ", text))
        self.assertEqual(names - known - {"RSSM_T_NONE", "RSSM_FAMILY_NONE"}, set())


if __name__ == "__main__":
    unittest.main()
