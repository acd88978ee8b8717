"""Constants, cards and tables as data with provenance."""
