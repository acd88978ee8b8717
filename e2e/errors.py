"""What can go wrong while building or running the local cluster, each with the log that tells why."""

from __future__ import annotations


class E2EError(Exception):
    """Base of everything this package raises on purpose; its text is meant for a person."""


class ToolchainError(E2EError):
    """No Go compiler that is new enough could be found or installed."""


class BuildError(E2EError):
    """`go build` failed; the text holds the end of its log and where the whole log is."""


class ComponentError(E2EError):
    """A component of the control plane did not start, or ended early; the text holds the end of its log."""


class KubectlError(E2EError):
    """kubectl ended with an exit code other than zero; `stderr` is what it said."""

    def __init__(self, arguments: tuple[str, ...], *, returncode: int, stdout: str, stderr: str) -> None:
        super().__init__(f"kubectl {' '.join(arguments)}: exit code {returncode}: {stderr.strip()}")
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
