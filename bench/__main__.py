"""`make bench`: every benchmark in turn, each in a process of its own; the worst exit code wins.

With `--peers` (`make bench PEERS=1`) also those beside other programs, which are installed outside of this tree.
"""

from __future__ import annotations

import subprocess
import sys

BENCHES = ("bench_stepcost", "bench_des", "bench_search", "bench_shards")
PEERS = ("bench_arrivals", "bench_point", "bench_peer")


def main() -> int:
    """Run them all."""
    worst = 0
    for name in BENCHES + (PEERS if "--peers" in sys.argv[1:] else ()):
        print(f"== {name}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
