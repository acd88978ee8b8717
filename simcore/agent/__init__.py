"""The tuning agent: an LLM proposes, the predictor prices."""
