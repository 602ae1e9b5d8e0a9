"""The README's example runs as it is printed."""

import os
import re
import unittest

import numpy as np

import support as s


class Readme(unittest.TestCase):

    def test_example(self):
        text = (s.ROOT / "examples" / "python" / "README.md").read_text()
        code, = re.findall(r"```python\n(.*?)```", text, re.S)
        names = {"PLUGIN": os.environ["RSSM_PLUGIN"], "CONFIG": s.ROOT / "configs" / "qwen3.5-35b-a3b.json"}
        exec(code, names)
        self.assertTrue(np.isfinite(names["out"]).all() and names["out"].any())


if __name__ == "__main__":
    unittest.main()
