#!/bin/sh
# Build-time only: an environment of our own beside the engine's, with the project's pinned versions and hashes.
set -eu
here=/opt/inferasim
python="${PYTHON:-python3}"
if [ "${1:-}" = "--with-python" ]; then
  apt-get update
  apt-get install -y --no-install-recommends python3 python3-venv ca-certificates
  rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log
  # Nothing in it needs to become another user.
  find / -xdev -perm /6000 -type f -exec chmod a-s {} +
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the harvester needs Python 3.11 or newer: set the build argument PYTHON")'
"$python" -m venv "$here/venv"

# The lock file's entries for the packages of requirements.in, continuation lines included.
awk '
  NR == FNR { if ($0 !~ /^#/ && NF) want[tolower($1)] = 1; next }
  /^[A-Za-z0-9]/ { split($1, part, "=="); keep = tolower(part[1]) in want }
  keep { print }
' "$here/requirements.in" "$here/requirements.lock" > "$here/requirements.txt"
"$here/venv/bin/python" -m pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes \
  --only-binary :all: -r "$here/requirements.txt"

# Nothing is installed any more, and other projects' tests are never run.
rm -rf "$here"/venv/lib/python3*/site-packages/pip "$here"/venv/lib/python3*/site-packages/pip-*.dist-info \
  "$here"/venv/bin/pip* "$here"/venv/lib/python3*/site-packages/setuptools*
find "$here/venv" -type d -name tests -prune -exec rm -rf {} +

# Only `python` is ours on the PATH; `python3`, `vllm` and the rest stay the engine's.
mkdir -p "$here/bin" "$here/lib"
# A wrapper, not a link: an interpreter that is called through a link outside does not find its environment.
printf '#!/bin/sh\nexec %s/venv/bin/python "$@"\n' "$here" > "$here/bin/python"
chmod 755 "$here/bin/python"
site="$("$here/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
echo "$here/lib" > "$site/inferasim.pth"
