"""Bytes: weights, KV, activations, pools; what fits."""
