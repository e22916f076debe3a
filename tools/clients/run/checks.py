"""Runs the checks of one client in its environment, for tools/clients.py: checks.py CLIENT.py REPORT.

REPORT gets a line of JSON for each."""

import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
import unittest


class Server:
    url, model, folder = os.environ["GYRE_URL"], os.environ["GYRE_MODEL"], os.environ["GYRE_FOLDER"]
    context = int(os.environ["GYRE_CONTEXT"])
    v1 = url + "/v1"

    @staticmethod
    def skip(why):
        raise unittest.SkipTest(why)


def load(path):
    spec = importlib.util.spec_from_file_location("client_" + os.path.splitext(os.path.basename(path))[0], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_check(module, name, value):
    own = inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    return own and next(iter(inspect.signature(value).parameters), None) == "server"


def outcome_of(check):
    try:
        check(Server())
        return "passed", ""
    except unittest.SkipTest as e:
        return "skipped", str(e)
    except BaseException:
        return "failed", traceback.format_exc(limit=-4)


def main(path, report):
    module = load(path)
    with open(report, "w", buffering=1) as out:
        package = re.split("[=<>~\\[]", module.PACKAGES[0])[0]
        out.write(json.dumps({"version": importlib.metadata.version(package)}) + "\n")
        for name, check in list(vars(module).items()):
            if is_check(module, name, check):
                outcome, why = outcome_of(check)
                out.write(json.dumps({"check": name, "outcome": outcome, "why": why}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
