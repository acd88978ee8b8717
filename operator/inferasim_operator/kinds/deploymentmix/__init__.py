"""DeploymentMix: emit, deliver, report."""
