"""A search as an Indexed Job: the question in one ConfigMap, one ConfigMap per shard for what it finds. Pure.

A shard's pod may patch the ConfigMaps of its own search and nothing else. What a shard has written stays: a pod that is
made again for the same index finds it and ends at once, so no work is done twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferasim_operator import packing
from inferasim_operator.api.v1alpha1.common import PodOptions
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan
from inferasim_operator.engine import labels, names

JOB_ROLE = "plan-search"
SHARD_ROLE = "plan-shard"
REQUEST_KEY = "request.json.gz"
REQUEST_PATH = "/etc/inferasim"
CLAIMS_PATH = "/var/inferasim/claims"
RESULTS_PATH = "/var/inferasim/results"
DIGEST_KEY = "inputDigest"
SHARD_KEY = "shard.json.gz"
SCORED_KEY = "candidatesScored"
TOTAL_KEY = "candidatesTotal"
CONTAINER = "search"
DEADLINE_S = 6 * 3600
"""Of one pod, from its start on a node."""
RETRIES_PER_SHARD = 3
USER_ID = 65532

Manifest = dict[str, Any]


def job_name(plan_name: str, digest: str, shards_count: int) -> str:
    """The Job of one question in so many shards; short enough for the names that begin with it."""
    return names.object_name(plan_name, digest[:10], f"s{shards_count}", "request").removesuffix("-request")


def request_name(job: str) -> str:
    """The ConfigMap of the question."""
    return f"{job}-request"


def shard_name(job: str, index: int | str) -> str:
    """The ConfigMap of one shard."""
    return f"{job}-{index}"


def is_done(shard: Mapping[str, Any], digest: str) -> bool:
    """Whether a shard's ConfigMap holds its result to this question."""
    return (shard.get("data") or {}).get(DIGEST_KEY) == digest and SHARD_KEY in (shard.get("binaryData") or {})


def run_objects(
    owner: Mapping[str, Any],
    plan: ServingPlan,
    digest: str,
    request: Mapping[str, Any],
    *,
    shards_count: int,
    image: str,
) -> tuple[Manifest, ...]:
    """All objects of one search, in the order in which they are to be created; the Job comes last.

    Raises ValueError for a question that no ConfigMap holds.
    """
    name = plan.metadata.name
    job = job_name(name, digest, shards_count)
    shards = [shard_name(job, index) for index in range(shards_count)]
    options = plan.spec.pod or PodOptions()
    account = options.service_account_name or job
    objects: list[Manifest] = []
    if options.service_account_name is None:
        objects.append(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": labels.child_metadata(owner, account, JOB_ROLE)}
        )
    packed = packing.pack(names.canonical_json(request))
    if len(packed) > packing.LIMIT_BYTES:
        text = f"the question takes {len(packed)} bytes, a ConfigMap holds {packing.LIMIT_BYTES}"
        raise ValueError(f"{text}; put its trace on a volume (workload.trace.claim)")
    objects += [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": labels.child_metadata(owner, job, JOB_ROLE),
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": shards, "verbs": ["patch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": labels.child_metadata(owner, job, JOB_ROLE),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": job},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": plan.metadata.namespace}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": labels.child_metadata(owner, request_name(job), SHARD_ROLE),
            "immutable": True,
            "binaryData": {REQUEST_KEY: packed},
        },
    ]
    objects += [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": labels.child_metadata(owner, shard, SHARD_ROLE),
            "data": {DIGEST_KEY: digest},
        }
        for shard in shards
    ]
    metadata = labels.child_metadata(owner, job, JOB_ROLE)
    pod_labels = dict(options.labels or {}) | dict(metadata["labels"])
    if options.queue_name is not None:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = options.queue_name
    template = {
        "metadata": {"labels": pod_labels},
        "spec": _pod(plan, options, job, shards_count, account, image, digest),
    }
    objects.append(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "completionMode": "Indexed",
                "completions": shards_count,
                "parallelism": shards_count,
                "backoffLimitPerIndex": RETRIES_PER_SHARD,
                # A drained node or a preemption is nobody's failure.
                "podFailurePolicy": {
                    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
                },
                "template": template,
            },
        }
    )
    return tuple(objects)


def table_folder(plan: ServingPlan, digest: str) -> str:
    """Where in the results' claim the table of one answer lies."""
    results = plan.spec.results
    name = names.object_name(plan.metadata.name, digest[:16])
    return name if results is None or results.claim.path is None else f"{results.claim.path}/{name}"


def _volume(name: str, claim_name: str, *, read_only: bool) -> Manifest:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim_name, "readOnly": read_only}}


def _pod(
    plan: ServingPlan, options: PodOptions, job: str, shards_count: int, account: str, image: str, digest: str
) -> Manifest:
    trace = plan.spec.workload.trace.claim if plan.spec.workload.trace is not None else None
    results = plan.spec.results.claim if plan.spec.results is not None else None
    spec: Manifest = {
        "restartPolicy": "Never",
        "serviceAccountName": account,
        "activeDeadlineSeconds": DEADLINE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": CONTAINER,
                "image": image,
                "command": ["python", "-m", "inferasim_operator.worker"],
                "args": [
                    f"--request={REQUEST_PATH}/{REQUEST_KEY}",
                    "--shard=$(JOB_COMPLETION_INDEX)",
                    f"--shards={shards_count}",
                    f"--config-map={plan.metadata.namespace}/{shard_name(job, '$(JOB_COMPLETION_INDEX)')}",
                    *([] if trace is None else [f"--claims={CLAIMS_PATH}"]),
                    *([] if results is None else [f"--table={RESULTS_PATH}/{table_folder(plan, digest)}"]),
                ],
                "resources": {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
                # The end of the log reaches the pod's status, so no right to read logs is needed.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "inferasim-request", "mountPath": REQUEST_PATH, "readOnly": True},
                    {"name": "inferasim-tmp", "mountPath": "/tmp"},  # noqa: S108 - a mount in the pod
                    *(
                        []
                        if trace is None
                        else [
                            {
                                "name": "inferasim-trace",
                                "mountPath": f"{CLAIMS_PATH}/{trace.claim_name}",
                                "readOnly": True,
                            }
                        ]
                    ),
                    *([] if results is None else [{"name": "inferasim-results", "mountPath": RESULTS_PATH}]),
                    *(mount.to_dict() for mount in options.volume_mounts or ()),
                ],
            }
        ],
        "volumes": [
            {"name": "inferasim-request", "configMap": {"name": request_name(job)}},
            {"name": "inferasim-tmp", "emptyDir": {"sizeLimit": "256Mi"}},
            *([] if trace is None else [_volume("inferasim-trace", trace.claim_name, read_only=True)]),
            *([] if results is None else [_volume("inferasim-results", results.claim_name, read_only=False)]),
            *(volume.to_dict() for volume in options.volumes or ()),
        ],
    }
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    if options.supplemental_groups:
        spec["securityContext"]["supplementalGroups"] = list(options.supplemental_groups)
    if options.tolerations:
        spec["tolerations"] = [toleration.to_dict() for toleration in options.tolerations]
    if options.priority_class_name is not None:
        spec["priorityClassName"] = options.priority_class_name
    if options.image_pull_secrets:
        spec["imagePullSecrets"] = [secret.to_dict() for secret in options.image_pull_secrets]
    return spec
