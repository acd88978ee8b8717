"""The one engine under all kinds: a worker per object runs observe → plan → apply → finish, level-triggered.

Names for those who write a kind (`kinds/<kind>/…`):

* `engine.actions`    `ObjectKey(namespace, name)`; the closed union `Action` = `CreateObject` (immutable, named by its
                      content: exists = unchanged) | `ApplyObject` (server-side apply, ours only) | `DeleteObject`;
                      `Plan(status, actions, computation, wake_after_s, announcements)` where `computation` is a
                      `StartComputation(digest, request)` or None; `Change(kind, reference)` with
                      `ChangeKind.CREATED | CONFIGURED | UNCHANGED | DELETED`.
* `engine.conditions` `Conditions(live, generation, now)`: `.set(type, status, reason, message)`, `.ready/.working/
                      .stalled/…`, `.done()` → tuple of `api…conditions.Condition`, times kept when nothing changed.
* `engine.client`     `Client` (blocking, typed, only importer of `kubernetes`): `get · list · apply · create · delete ·
                      apply_status · create_event`, raising `errors.ClusterError` kinds.
* `engine.kind`       `Kind(resource, observe, plan)`: `observe(context, key) -> Observed | None` (blocking,
                      reads only; None = the object is gone), `plan(observed, now) -> Plan` (pure). `Observed` only has
                      to have `raw: Mapping` (the live object as read).
* `engine.labels`     `child_labels(...)`, `owner_reference(raw)`, `owned_by(raw)`.
* `engine.names`      `object_name`, `label_value`, `digest`, `canonical_json`.
* `engine.loop`       `Workers.wake(key)`; `engine.compute` `Computations` (processes, keyed by digest).

A kind's package has observe.py, checks.py, plan.py, render.py (the last three pure), handlers.py (`register(...)`: the
only file that imports kopf; handlers only wake workers) and rbac.py (`RULES`).
"""
