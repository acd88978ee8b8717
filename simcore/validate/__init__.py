"""Fit on anchor rows, project target rows, score."""
