"""The Kubernetes API types, by version; the CRDs are generated from them."""
