"""The Kubernetes operator and the command line around `simcore`."""
