#!/usr/bin/env bash
# Creates the virtual environment from requirements.lock: hashes checked, the project itself installed editable.
set -euo pipefail
venv=${1:?usage: bootstrap.sh VENV}
python=${PYTHON:-python3}

"$python" - <<'PY' || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 11))
PY

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  # Debian ships venv apart from the interpreter.
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing python3-venv"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
  else
    echo "python3-venv is missing: install it (Debian: apt-get install python3-venv)" >&2
    exit 1
  fi
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "installing $(grep -c '^[a-zA-Z0-9]' requirements.lock) packages into $venv (a few minutes the first time)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
echo "compiling the simulator"
# Ahead of the first plan, not in it: numba's cache is kept beside the sources.
"$venv/bin/python" -m simcore.des.warm
