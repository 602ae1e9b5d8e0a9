#!/usr/bin/env python3
"""Every kernel that may be launched early (compute capability 9.0 on) waits for those before it, and in the order of its code touches
no global memory before it does; where it branches before a wait, there are more of them. Kernels that give hints before they wait
(stream_order.cuh) are named here, with what they may do: read a few words, fetch into the L2 cache, take no way past the wait. Read from
the machine code of the fatbins given. Ends with a line `N passed, N failed`."""
import struct
import sys

# Of an instruction of 16 bytes, the low 12 bits say what it is.
WAIT = 0x82E  # ACQBULK
PEEK, ASKS = 0x981, {0x3BC, 0x98F}  # LDG; UBLKPF, CCTL
GLOBAL = {0x381, 0x981, 0x386, 0x986, 0x3A8, 0x9A8, 0x98E, 0x38E}  # LDG, STG, ATOMG, REDG
GLOBAL |= {0x3A9, 0x9A3, 0x9A6}  # ATOMG that compares, ATOMG and REDG of floats
GLOBAL |= {0x980, 0x985, 0x98A, 0x38B}  # LD, ST, ATOM by generic addresses
GLOBAL |= {0x97E, 0x97F}  # LDG, STG of 256 bits
GLOBAL |= {0xFAE, 0x3BA, 0x3BB, 0x3BC, 0x98F}  # LDGSTS; UBLKCP, UBLKRED, UBLKPF; CCTL
BRA = 0x947
BRANCH = {BRA, 0x949, 0x944, 0x94D, 0x950}  # BRX, CALL, EXIT, RET

# Kernels that may ask before they wait, and how many words they may read for it.
HINTS = {"rssm_conv4": 1, "rssm_verify_kda_f32_v128_t128_w4": 1}
# slots_ahead.cuh: an entry of 32 or 64 bits, where and how far apart four tensors are, two words of a cursor.
HINTS |= {f"rssm_slots_take_{state}_{ring}": 12
          for state in ("f32", "bf16", "f16") for ring in ("scalar_bf16", "kda_bf16", "any_ring")}


def kernels(image):
    """(compute capability, name, instructions) of each kernel of each ELF file in a fatbin."""
    at = image.find(b"\x7fELF")
    while at >= 0:
        elf = image[at:]
        (sections_at,) = struct.unpack_from("<Q", elf, 40)
        (flags,) = struct.unpack_from("<I", elf, 48)
        count, names_in = struct.unpack_from("<HH", elf, 60)
        sections = [struct.unpack_from("<IIQQQQ", elf, sections_at + 64 * i) for i in range(count)]
        for name, _, _, _, start, size in sections:
            begin = sections[names_in][4] + name
            text = elf[begin : elf.index(b"\0", begin)].decode()
            if text.startswith(".text.rssm_"):
                yield flags >> 8 & 0xFF, text[6:], [
                    int.from_bytes(elf[start + i : start + i + 16], "little") for i in range(0, size, 16)
                ]
        at = image.find(b"\x7fELF", at + 4)


def target_of(at, instruction):
    """The index to which the BRA at index `at` goes: its bits 16 .. 23 and, above them, 34 .. 81 count steps of 4 bytes."""
    low, high = instruction >> 16 & 0xFF, instruction >> 34 & (1 << 48) - 1
    if high >> 47:
        high -= 1 << 48
    return at + 1 + (high * 256 + low) // 4


def hint_fault_of(before, peeks):
    """What a kernel that may ask ahead does before its wait and may not."""
    kinds = [i & 0xFFF for i in before]
    early = GLOBAL.intersection(kinds) - ASKS - {PEEK}
    if early or kinds.count(PEEK) > peeks:
        return f"does more than ask before it waits ({', '.join(hex(i) for i in kinds if i in GLOBAL)})"
    for at, instruction in enumerate(before):
        if kinds[at] in BRANCH and (kinds[at] != BRA or not 0 <= target_of(at, instruction) <= len(before)):
            return "has a way round its wait"
    return None


def fault_of(name, instructions):
    kinds = [i & 0xFFF for i in instructions]
    if WAIT not in kinds:
        return "never waits"
    wait = kinds.index(WAIT)
    if name in HINTS:
        return hint_fault_of(instructions[:wait], HINTS[name])
    early = GLOBAL.intersection(kinds[:wait])
    if early:
        return f"touches memory before it waits ({', '.join(map(hex, early))})"
    if kinds.count(WAIT) <= sum(i in BRANCH for i in kinds[:wait]):
        return "has a way round its wait"
    return None


def main():
    passed = failed = 0
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            found = list(kernels(file.read()))
        if not found:
            failed += 1
            print(f"{path}: no kernel in it")
        for capability, name, instructions in found:
            if capability < 90:
                continue
            fault = fault_of(name, instructions)
            passed += fault is None
            failed += fault is not None
            if fault:
                print(f"{path}: {name} (sm_{capability}) {fault}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
