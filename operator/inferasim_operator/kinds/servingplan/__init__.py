"""ServingPlan: gather the question, have it computed once per digest, keep the answer as an immutable ConfigMap."""
