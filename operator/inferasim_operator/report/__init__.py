"""Self-contained HTML pages of results: pure text from plain data, no request to anywhere, everything escaped."""
