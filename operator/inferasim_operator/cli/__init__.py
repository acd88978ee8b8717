"""The command line: the same engine as the operator's, without a cluster."""
