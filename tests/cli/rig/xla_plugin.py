"""A PJRT plugin for the CPU, in a virtual environment of the tests' own. Not a test itself."""
import glob, os

from packages import ROOT, python_with

NEWER = ("lammps-jax-pjrt-cpu==0.11.2", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so")  # PJRT 0.115
OLDER = ("xla-cpu-pjrt==0.0.1", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so")  # PJRT 0.81; brings the header


def site_packages(test, package):
    """The folder of packages of an environment with this one; the test is skipped where it cannot be installed."""
    python = python_with(test, package)
    place = os.path.dirname(os.path.dirname(python))
    return glob.glob(os.path.join(place, "lib", "python3*", "site-packages"))[0]


def plugin(test, which=NEWER):
    return os.path.join(site_packages(test, which[0]), which[1])


def environment(test, which=NEWER):
    """For programs that compute with it. What a test compiles runs once, so it need not be fast; it is kept for the
    next time that the tests run."""
    return dict(os.environ, GYRE_XLA_PLUGIN=plugin(test, which), XLA_FLAGS="--xla_backend_optimization_level=0",
                XDG_CACHE_HOME=os.path.join(ROOT, "build", "xla-cache"))
