"""Predict and search LLM serving configurations: pure functions, no clock, no network, no cluster."""
