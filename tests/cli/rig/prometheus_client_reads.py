"""Prints what the official prometheus_client reads of the text on stdin, as JSON: python3 prometheus_client_reads.py.
Run by test_metrics.py in an environment that has the package."""
import json
import sys

from prometheus_client.parser import text_string_to_metric_families

families = {}
for f in text_string_to_metric_families(sys.stdin.read()):
    assert f.name not in families, f.name + " stands in two places"
    families[f.name] = {
        "type": f.type, "help": f.documentation, "samples": [[s.name, s.labels, s.value] for s in f.samples]
    }
json.dump(families, sys.stdout)
