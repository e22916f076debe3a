"""Where the tree is. Not a test itself."""
import os

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
