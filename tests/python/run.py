#!/usr/bin/env python3
"""All tests of this folder. Exit code 77 (skipped, to meson) where NumPy is missing."""

import pathlib
import sys
import unittest

try:
    import numpy
except ImportError:
    print("SKIP: the Python binding's tests need NumPy (Debian: apt install python3-numpy)")
    sys.exit(77)

print(f"Python {sys.version.split()[0]}, NumPy {numpy.__version__}")
suite = unittest.defaultTestLoader.discover(str(pathlib.Path(__file__).resolve().parent))
sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
