"""tools/shape.py: the tree keeps its limits of length and width, and exceptions only become fewer."""

import importlib.util
import os
import subprocess
import tempfile
import unittest

from places import PLAIN, ROOT

TOOL = os.path.join(ROOT, "tools", "shape.py")
spec = importlib.util.spec_from_file_location("shape", TOOL)
shape = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shape)


class Shape(unittest.TestCase):
    def breaks(self, **files):
        """What breaks a rule in a tree of src/ with these files: name_c="text" is src/room/name.c."""
        with tempfile.TemporaryDirectory(prefix="gyre-shape-") as root:
            os.makedirs(os.path.join(root, "src", "room"))
            for name, text in files.items():
                with open(os.path.join(root, "src", "room", ".".join(name.rsplit("_", 1))), "w", encoding="utf-8") as f:
                    f.write(text)
            return shape.breaks_of(root)

    def test_the_tree_keeps_its_limits(self):
        p = subprocess.run([*PLAIN, TOOL, ROOT], capture_output=True, text=True, timeout=60)
        self.assertEqual((p.returncode, p.stderr), (0, ""))

    def test_files_and_folders(self):
        self.assertEqual(self.breaks(a_c="\n" * 500, a_h="\n" * 250, a_cuh="\n" * 250), {})
        self.assertEqual(self.breaks(a_c="\n" * 501, a_h="\n" * 251), {("source", "src/room/a.c"): 501,
                                                                       ("header", "src/room/a.h"): 251})
        self.assertEqual(self.breaks(**{"f%d_c" % i: "" for i in range(31)}), {("folder", "src/room"): 31})
        self.assertEqual(self.breaks(ops_def="\n" * 900, gyre_h="\n" * 300), {})

    def test_functions(self):
        heads = ["static int f(void)", "template <int N>\n__global__ void __launch_bounds__(256, 2) f(int (*g)(int))",
                 "enum status f(int a,\n              int b)"]
        for head in heads:
            lines = head.count("\n") + 2
            self.assertEqual(self.breaks(a_cu="int x;\n\n%s {\n%s}\n" % (head, "    x++;\n" * (80 - lines))), {})
            n = self.breaks(a_cu="int x;\n\n%s {\n%s}\n" % (head, "    x++;\n" * (81 - lines)))
            self.assertEqual(n, {("function", "src/room/a.cu:f"): 81})
        method = "struct s {\n    int f(void) {\n%s    }\n};\n"
        self.assertEqual(self.breaks(a_cu=method % ("        x++;\n" * 78)), {})
        self.assertEqual(self.breaks(a_cu=method % ("        x++;\n" * 79)), {("function", "src/room/a.cu:f"): 81})
        self.assertEqual(self.breaks(a_py="def f():\n" + "    pass\n" * 80), {("function", "src/room/a.py:f"): 81})
        self.assertEqual(self.breaks(a_c="static const int f[] = {\n" + "    1,\n" * 90 + "};\n"), {})

    def test_wide_lines(self):
        self.assertEqual(self.breaks(a_c="// " + "x" * 117 + "\n"), {})
        self.assertEqual(self.breaks(a_c="// " + "\u00e4" * 117 + "\n"), {})
        self.assertEqual(self.breaks(a_c="// " + "x" * 118 + "\n"), {("wide", "src/room/a.c"): 121})
        self.assertEqual(self.breaks(a_c="    {1, " + "2, " * 50 + "3},\n"), {})  # a row of a table
        self.assertEqual(self.breaks(a_c="    {1, " + "2, " * 50 + "3}, \\\n"), {})  # and of one that a macro makes
        self.assertEqual(self.breaks(a_c="    f(1, " + "2, " * 50 + "3); \\\n"), {("wide", "src/room/a.c"): 164})

    def test_exceptions_only_shrink(self):
        breaks = {("source", "a.c"): 501, ("wide", "b.c"): 121}
        wide = "b.c has a line of 121 columns, of at most 120"
        self.assertEqual(shape.faults(breaks, {"source": {"a.c": "why"}}), [wide])
        self.assertEqual(shape.faults(breaks, {}), ["a.c has 501 lines, a source file at most 500", wide])
        self.assertEqual(shape.faults({}, {"source": {"a.c": "why"}}),
                         ["a.c is within the limit (source), or gone: take it off EXCEPTIONS"])


if __name__ == "__main__":
    unittest.main()
