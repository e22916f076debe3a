"""A pytest plugin: modules that vLLM's tests import and that are not here, vllm itself, torch and their like.

What a test takes from one is a placeholder: it may be named, subclassed and written into a parameter, and says "not
applicable" when it is called. A few that tests of the server need are real: the tokenizer, and the version.
"""
import importlib.abc
import importlib.machinery
import os
import sys
import types

STUBBED = ("vllm", "torch", "torchvision", "lm_eval", "PIL", "pybase64", "schemathesis",
           "model_hosting_container_standards", "xgrammar", "openai_harmony", "soundfile", "librosa", "tblib")
ALSO = ("tests.conftest", "tests.v1")
REASON = "not applicable: it calls %s, the other server's own Python"


class Placeholder:
    def __init__(self, name):
        self.__dict__["_name"] = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(self._name + "." + name)

    def __call__(self, *_, **__):
        raise RuntimeError(REASON % self._name)

    def __mro_entries__(self, bases):
        return ()

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __getitem__(self, item):
        return self

    def __bool__(self):
        return False


class Stub(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(self.__name__ + "." + name)


class NothingToFetch:
    """In place of the hub's client: adapters that tests fetch are not, and their names stand for the model itself."""
    def snapshot_download(self, *_, **__):
        return "nothing"


def get_tokenizer(*_, **__):
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(os.environ["GYRE_MODEL"])


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(
            name, self, is_package=True) if name.split(".")[0] in STUBBED or name in ALSO else None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        if module.__name__ == "vllm.tokenizers":
            module.get_tokenizer = get_tokenizer
        if module.__name__ == "vllm.transformers_utils.repo_utils":
            module.hf_api = NothingToFetch
        if module.__name__ == "vllm.version":
            module.__version__ = os.popen(os.environ["GYRE"] + " version").read().split()[1]


def install():
    if not any(isinstance(f, Finder) for f in sys.meta_path):
        sys.meta_path.append(Finder())


install()
