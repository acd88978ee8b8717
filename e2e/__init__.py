"""A real Kubernetes control plane for the demo and the integration tests, built and run without containers.

`toolchain` finds Go, `binaries` builds the programs into a cache outside the tree, `controlplane` runs them.
`python -m e2e` is the same from a shell.
"""
