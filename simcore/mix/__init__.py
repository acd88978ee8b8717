"""The mix planner: models and tiers over one GPU budget."""
