{{- define "inferasim.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "inferasim.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "inferasim.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "inferasim.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "inferasim.selectorLabels" -}}
app.kubernetes.io/name: {{ include "inferasim.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "inferasim.labels" -}}
{{ include "inferasim.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: inferasim
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "inferasim.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "inferasim.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "inferasim.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The namespaces served with scope Namespace, as JSON {"names": […]}. */}}
{{- define "inferasim.namespaces" -}}
{{- dict "names" (.Values.namespaces | default (list .Release.Namespace)) | toJson }}
{{- end }}

{{/*
The rules of the served namespaces: what the kinds need (generated), without the lease, which lies in the release's
namespace alone, and with no more Secrets than the values allow.
*/}}
{{- define "inferasim.rules" -}}
{{- $rules := list }}
{{- range .Files.Get "generated/rules.yaml" | fromYamlArray }}
{{- if has "secrets" .resources }}
{{- if eq $.Values.rbac.secretAccess "Any" }}
{{- $rules = append $rules . }}
{{- else if and (eq $.Values.rbac.secretAccess "Named") $.Values.rbac.secretNames }}
{{- $rules = append $rules (set . "resourceNames" $.Values.rbac.secretNames) }}
{{- end }}
{{- else if and (has "nodes" .resources) (ne $.Values.scope "Cluster") }}
{{- /* Nodes lie in no namespace: a Role could not grant them. */}}
{{- else if not (has "leases" .resources) }}
{{- $rules = append $rules . }}
{{- end }}
{{- end }}
{{- toYaml $rules }}
{{- end }}
