"""AnchorHarvest: one guarded Job per spec, followed to its end; the anchor is kept as an immutable ConfigMap."""
