"""Step cost: seconds of one engine step for any mix of prefill chunks and decode contexts."""
