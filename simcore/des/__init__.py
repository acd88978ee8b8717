"""The discrete-event simulator: requests through an engine's scheduler, KV pool, prefix cache and router."""
