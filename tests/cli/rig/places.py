"""Where the tree is, and the interpreter. Not a test itself."""
import os
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
PLAIN = [sys.executable, "-S"]  # of scripts that want the standard library alone, and start in less time
