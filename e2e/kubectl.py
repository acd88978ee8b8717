"""Running kubectl against any cluster of the scenarios."""

from __future__ import annotations

import os
import pathlib
import subprocess

from e2e import errors


def run(
    program: pathlib.Path | str,
    *arguments: str,
    environment: dict[str, str],
    input: str | None = None,  # noqa: A002 - the name that subprocess.run gave it
    timeout_s: float = 60.0,
) -> str:
    """kubectl's output, with `environment` added to this process's. Raises KubectlError."""
    answer = subprocess.run(
        [str(program), *arguments],
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=timeout_s,
        check=False,
    )
    if answer.returncode != 0:
        raise errors.KubectlError(arguments, returncode=answer.returncode, stdout=answer.stdout, stderr=answer.stderr)
    return answer.stdout
