"""`make bench`: every benchmark in turn, each in a process of its own; the worst exit code wins."""

from __future__ import annotations

import subprocess
import sys

BENCHES = ("bench_stepcost", "bench_des", "bench_search")


def main() -> int:
    """Run them all."""
    worst = 0
    for name in BENCHES:
        print(f"== {name}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
