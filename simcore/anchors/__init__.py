"""Anchors: measured step times of one kernel set, and which anchor answers for which target."""
