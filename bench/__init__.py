"""Speed, as ratios against reference implementations in the same run."""
