"""Delivery of manifests outside the cluster: Git."""
