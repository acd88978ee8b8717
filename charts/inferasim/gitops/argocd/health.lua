-- Health of an AnchorHarvest, a ServingPlan or a DeploymentMix for Argo CD, from conditions that all three share:
-- Ready is always there; Reconciling and Stalled exist only while true, and never both.
local function health(status, message)
  return { status = status, message = message or "" }
end

local metadata, status = obj.metadata, obj.status
if metadata.deletionTimestamp ~= nil then
  return health("Progressing", "being deleted")
end
if status == nil or status.conditions == nil or status.observedGeneration == nil then
  return health("Progressing", "the operator has not seen it yet")
end
if status.observedGeneration ~= metadata.generation then
  return health("Progressing", "the operator has not seen the last edit yet")
end

local found = {}
for _, condition in ipairs(status.conditions) do
  if condition.observedGeneration == nil or condition.observedGeneration == metadata.generation then
    found[condition.type] = condition
  end
end

local ready, stalled, reconciling = found.Ready, found.Stalled, found.Reconciling
if stalled ~= nil and stalled.status == "True" then
  return health("Degraded", stalled.reason .. ": " .. stalled.message)
end
if ready ~= nil and ready.status == "True" then
  local tolerance = found.PredictionWithinTolerance
  if tolerance ~= nil and tolerance.status == "False" then
    -- What was asked for is delivered; that the prediction is off is news, and no reason to hold back other objects.
    return health("Healthy", ready.message .. "; " .. tolerance.message)
  end
  return health("Healthy", ready.message)
end
if reconciling ~= nil and reconciling.status == "True" then
  return health("Progressing", reconciling.message)
end
if ready ~= nil and ready.reason == "Suspended" then
  return health("Suspended", ready.message)
end
return health("Progressing", ready ~= nil and ready.message or "Ready is not stated yet")
