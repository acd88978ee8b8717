"""Which layouts an engine, version and backend can run: a table with three verdicts."""
