"""Workloads: synthetic ones and traces, streamed in batches."""
