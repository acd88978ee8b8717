"""One configuration in, one prediction with interval, mode and flags out."""
