"""Starts one engine on one node, measures its step times, writes the anchor."""
