"""Fuzzes every parser of files and messages for a time: by coverage with atheris, without it with hypothesis.

    python tests/fuzz/fuzz.py --seconds 600 [TARGET ...]

An input that a parser neither accepts nor refuses properly is a finding: it is written to tests/fuzz/corpus/TARGET,
where test_fuzz_corpus.py tries it from then on, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
sys.path.append(str(CORPUS.parent.parent))  # the modules that tests share; pytest finds them by conftest.py
GUIDED = importlib.util.find_spec("atheris") is not None
JOBS = min(2, os.cpu_count() or 1)


def by_coverage(name: str, seconds: int) -> None:
    """Fuzz one target with atheris until the time is over or something is found; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["fedl2g", "tomllib", "numpy.lib"]):
        from fuzz_targets import TARGETS
    target = TARGETS[name]
    started = Path(tempfile.mkdtemp(prefix="fuzz-examples-"))
    for number, example in enumerate(target.examples):
        (started / str(number)).write_bytes(example)
    findings = CORPUS / name
    findings.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={findings}/", "-timeout=20", "-rss_limit_mb=3000"]
    atheris.Setup([sys.argv[0], *options, "-max_len=4096", "-print_final_stats=1", str(started), str(findings)], target)
    atheris.Fuzz()


def by_chance(name: str, seconds: int) -> None:
    """Fuzz one target with hypothesis: pieces of valid examples among random bytes."""
    from fuzz_targets import TARGETS
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    target, end, tried = TARGETS[name], time.monotonic() + seconds, 0
    piece = st.builds(lambda whole, a, b: whole[a : a + b], st.sampled_from(target.examples), st.integers(0, 999),
                      st.integers(0, 999))  # fmt: skip

    @settings(max_examples=500, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.one_of(piece, st.binary(max_size=9)), max_size=6).map(b"".join))
    def feed(data: bytes) -> None:
        nonlocal tried, last
        tried, last = tried + 1, data
        target(data)

    last = b""
    while time.monotonic() < end:
        try:
            feed()
        except Exception:
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            (CORPUS / name / f"crash-{abs(hash(last)):x}").write_bytes(last)
            raise
    sys.stderr.write(f"Done {tried} runs\n")


def fuzz(name: str, seconds: int) -> tuple[int, bool]:
    """Fuzz one target in a process of its own; how many inputs were tried, and whether something was found."""
    command = [sys.executable, __file__, "--one", "--seconds", str(seconds), name]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    tried = re.findall(r"Done (\d+) runs|number_of_executed_units: (\d+)", done.stderr)
    count = int(next(filter(None, tried[-1]))) if tried else 0
    if done.returncode:
        sys.stdout.write(done.stderr[-4000:] + "\n")
    sys.stdout.write(f"{name}: {count:,} inputs{', a finding' if done.returncode else ''}\n")
    sys.stdout.flush()
    return count, done.returncode != 0


def main() -> None:
    """Share the time out among the targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*")
    given = parser.parse_args()
    if given.one:
        logging.disable(logging.CRITICAL)  # what is refused is logged, thousands of times a second
        (by_coverage if GUIDED else by_chance)(given.targets[0], given.seconds)
        return
    from fuzz_targets import TARGETS

    names = given.targets or list(TARGETS)
    each = max(1, given.seconds * JOBS // len(names))
    how = "coverage (atheris)" if GUIDED else "chance (hypothesis; atheris is not installed)"
    sys.stdout.write(f"{len(names)} targets, {each} s each, guided by {how}\n")
    with ThreadPoolExecutor(JOBS) as pool:
        found = list(pool.map(lambda name: fuzz(name, each), names))
    findings = sum(wrong for _, wrong in found)
    sys.stdout.write(f"fuzz: {sum(count for count, _ in found):,} inputs, {findings} findings\n")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
