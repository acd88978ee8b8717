"""Levers, objectives, sweep, Pareto front, tiers."""
