"""Emission: a chosen configuration becomes manifests, byte-identical each time; flag maps are data in `flags/`."""
