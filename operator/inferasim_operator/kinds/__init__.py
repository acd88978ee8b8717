"""One folder per kind: observe, checks, plan, render, handlers, rbac."""
