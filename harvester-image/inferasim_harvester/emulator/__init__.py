"""An engine whose step law is known: it schedules, batches and streams like one, and can be told to misbehave."""
