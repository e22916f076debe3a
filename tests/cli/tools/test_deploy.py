"""deploy/: what it names is there, and its settings fit the server and each other."""
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from brief import slow
from packages import python_with
from serving import GYRE, ROOT, Server


def read(name):
    with open(os.path.join(ROOT, "deploy", name)) as f:
        return f.read()


def setUpModule():
    global server
    server = Server("models/story", "--disable-log-requests")


def tearDownModule():
    assert server.stop() == 0


def parse_line(args):
    """(exit code, stderr) of a server that lacks its model: 2 would be a fault of the flags."""
    r = subprocess.run([GYRE, *args], capture_output=True, text=True, timeout=30)
    return r.returncode, r.stderr


class Dashboard(unittest.TestCase):
    def test_each_metric_that_it_names_is_served(self):
        board = json.loads(read("grafana.json"))
        server.post("/v1/completions", prompt="Once", max_tokens=4)
        served = set(re.findall(r"^([a-z_:A-Z0-9]+)[{ ]", server.request("GET", "/metrics")[1], re.M))
        asked = {t["expr"]
                 for p in board["panels"]
                 for t in p["targets"]} | {v["query"]
                                           for v in board["templating"]["list"]
                                           if v["type"] == "query"}
        named = {n for e in asked for n in re.findall(r"\b((?:vllm|gyre):\w+|process_\w+)", e)}
        self.assertGreater(len(named), 25)
        self.assertEqual(named - served, set())
        self.assertEqual(len({p["id"] for p in board["panels"]}), len(board["panels"]))
        for p in board["panels"]:
            self.assertTrue(p["title"] and p["targets"], p["id"])
            for t in p["targets"]:
                self.assertEqual(t["expr"].count("("), t["expr"].count(")"), t["expr"])
                for wanted in re.findall(r"\{\{(\w+)\}\}",
                                         t["legendFormat"]):  # a label of each sample, or Prometheus' own
                    self.assertTrue(wanted == "instance" or "by (%s)" % wanted in t["expr"], t)


@functools.cache
def parsed(python, file):
    code = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)"
    return subprocess.run([python, "-c", code], input=read(file), capture_output=True, text=True, timeout=60,
                          check=True).stdout


class Kubernetes(unittest.TestCase):
    file = "kubernetes.yaml"

    def setUp(self):
        self.objects = {o["kind"]: o for o in json.loads(parsed(python_with(self, "pyyaml==6.0.2"), self.file))}
        self.pod = self.objects["Deployment"]["spec"]["template"]["spec"]
        self.container = self.pod["containers"][0]

    def test_probes_ask_for_what_is_there(self):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            get = self.container[probe]["httpGet"]
            self.assertEqual(server.request("GET", get["path"])[0], 200, probe)
            self.assertEqual(get["port"], self.container["ports"][0]["name"])

    def test_its_flags_are_read(self):
        code, said = parse_line(self.container["args"])
        self.assertEqual(code, 1, said)
        args = self.container["args"]
        self.assertEqual(args[args.index("--port") + 1], str(self.container["ports"][0]["containerPort"]))

    def test_the_grace_is_longer_than_the_drain(self):
        args = self.container["args"]
        drain = int(args[args.index("--drain-timeout") + 1])
        sleep = int(self.container["lifecycle"]["preStop"]["exec"]["command"][1])
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], drain + sleep + 5)  # five seconds to close

    def test_nothing_runs_as_root_or_may_write(self):
        self.assertTrue(self.pod["securityContext"]["runAsNonRoot"])
        own = self.container["securityContext"]
        self.assertEqual((own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"], own["capabilities"]),
                         (False, True, {"drop": ["ALL"]}))
        self.assertTrue(all(m["readOnly"] for m in self.container["volumeMounts"]))

    def test_the_service_finds_the_pods(self):
        labels = self.objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
        for selector in (self.objects["Service"]["spec"]["selector"],
                         self.objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
                         self.objects["Deployment"]["spec"]["selector"]["matchLabels"]):
            self.assertEqual(selector, labels)


class FourCards(Kubernetes):
    file = "kubernetes-four-cards.yaml"

    def test_it_asks_for_as_many_cards_as_share_the_model(self):
        args = self.container["args"]
        cards = self.container["resources"]["limits"]["nvidia.com/gpu"]
        self.assertEqual(args[args.index("--tensor-parallel-size") + 1], cards)
        self.assertEqual((args[args.index("--device") + 1], cards), ("cuda", "4"))


class TwoHosts(FourCards):
    file = "kubernetes-two-hosts.yaml"

    def test_each_host_has_one_engine(self):
        spec = self.objects["Deployment"]["spec"]
        self.assertEqual(spec["replicas"], 2)
        rule, = self.pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        self.assertEqual(rule["topologyKey"], "kubernetes.io/hostname")
        self.assertEqual(rule["labelSelector"]["matchLabels"], spec["template"]["metadata"]["labels"])
        self.assertEqual(self.objects["Service"]["spec"]["sessionAffinity"], "ClientIP")


class Unit(unittest.TestCase):
    def test_systemd_reads_it_and_finds_it_closed(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("there is no systemd-analyze here")
        with tempfile.TemporaryDirectory() as folder:
            unit = os.path.join(folder, "gyre.service")
            with open(unit, "w") as f:
                f.write(
                    read("gyre.service").replace("/usr/local/bin/gyre",
                                                 os.path.abspath(GYRE)).replace("Documentation=man:gyre(1)\n", ""))
            r = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
            self.assertEqual((r.returncode, r.stderr.strip()), (0, ""))
            r = subprocess.run(["systemd-analyze", "security", "--no-pager", "--offline=true", unit],
                               capture_output=True, text=True, timeout=60)
            level = re.search(r"Overall exposure level for \S+: ([\d.]+)", r.stdout)
            if not level:
                self.skipTest("this systemd-analyze judges no files")
            self.assertLess(float(level.group(1)), 2.0)  # of 10; a unit without settings has 9.6

    def test_its_line_and_its_time_fit(self):
        unit = read("gyre.service")
        line = re.search(r"^ExecStart=/usr/local/bin/gyre (.*)$", unit,
                         re.M).group(1).replace("${GYRE_MODEL}", "/nowhere")
        self.assertEqual(parse_line(line.split())[0], 1)
        help_text = subprocess.run([GYRE, "serve", "--help"], capture_output=True, text=True, timeout=30).stdout
        drain = int(re.search(r"--drain-timeout.*?default:? (\d+)", help_text, re.S).group(1))
        self.assertGreater(int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M).group(1)), drain + 5)


class Image(unittest.TestCase):
    @slow("dpkg is asked for each library")
    def test_it_has_the_libraries_and_no_root(self):
        text = read("Dockerfile")
        final = text[text.rindex("FROM "):]
        listed = set(re.search(r"--no-install-recommends (.+?) \\", final).group(1).split())
        if not shutil.which("dpkg-query"):
            self.skipTest("there is no dpkg here")
        needed = subprocess.run(["ldd", GYRE], capture_output=True, text=True, timeout=30).stdout
        with open(GYRE, "rb") as f:
            direct = set(re.findall(rb"lib[\w+-]+\.so\.\d+", f.read()))  # of which ldd names those that are linked
        for name, path in re.findall(r"(lib\S+) => (/\S+)", needed):
            if name.encode() not in direct:
                continue
            owner = subprocess.run("dpkg-query -S '*/%s' | cut -d: -f1 | sort -u" % os.path.basename(path), shell=True,
                                   capture_output=True, text=True, timeout=30).stdout.split()
            self.assertTrue(set(owner) & (listed | {"libc6", "libgcc-s1"}),
                            (name, owner))  # what every image has; the latter for sanitized builds
        self.assertRegex(final, r"\nUSER 65532:65532\n")
        self.assertLess(final.index("USER "), final.index("ENTRYPOINT "))

    def test_its_health_check_tells_up_from_down(self):
        command = json.loads(re.search(r"^ +CMD (\[\"bash\".*\])$", read("Dockerfile"), re.M).group(1))
        for port, want in ((server.port, True), (1, False)):
            r = subprocess.run(command[:-1] + [command[-1].replace("/8000", "/%d" % port)], capture_output=True,
                               timeout=30)
            self.assertEqual(r.returncode == 0, want, r.stderr)


if __name__ == "__main__":
    unittest.main()
