{{- define "meterplex.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "meterplex.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "meterplex.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{ include "meterplex.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "meterplex.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "meterplex.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "meterplex.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "meterplex.operatorSecret" -}}
{{ .Values.operatorKey.secret | default (printf "%s-operator" (include "meterplex.name" .)) }}
{{- end }}

{{/* The security context of each container: no root, no capabilities, no writes but to /tmp. */}}
{{- define "meterplex.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "meterplex.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The variables with the addresses of PostgreSQL and Kafka. */}}
{{- define "meterplex.databaseEnvFrom" -}}
- secretRef:
    name: {{ .Values.database.secret }}
{{- if .Values.database.migrateSecret }}
- secretRef:
    name: {{ .Values.database.migrateSecret }}
{{- end }}
{{- end }}

{{- define "meterplex.env" -}}
- name: METERPLEX_HTTP_ADDR
  value: ":8080"
- name: METERPLEX_ADMIN_ADDR
  value: ":9090"
- name: METERPLEX_LOG_FORMAT
  value: json
- name: METERPLEX_DATA_DIR
  value: /tmp/meterplex
- name: METERPLEX_PIPE
  value: {{ ternary "kafka" "postgres" (ne .Values.kafka.brokers "") }}
{{- with .Values.kafka }}
{{- if .brokers }}
- name: KAFKA_BROKERS
  value: {{ .brokers | quote }}
- name: KAFKA_REPLICATION
  value: {{ .replication | quote }}
- name: KAFKA_TLS_ENABLED
  value: {{ .tls | quote }}
{{- if .tlsSecret }}
- name: KAFKA_TLS_CA
  value: /etc/meterplex/kafka/ca.crt
{{- if .clientCertificate }}
- name: KAFKA_TLS_CERT
  value: /etc/meterplex/kafka/tls.crt
- name: KAFKA_TLS_KEY
  value: /etc/meterplex/kafka/tls.key
{{- end }}
{{- end }}
{{- if .tlsServerName }}
- name: KAFKA_TLS_SERVER_NAME
  value: {{ .tlsServerName | quote }}
{{- end }}
{{- if .saslMechanism }}
- name: KAFKA_SASL_MECHANISM
  value: {{ .saslMechanism }}
{{- end }}
{{- end }}
{{- if .topicPrefix }}
- name: METERPLEX_TOPIC_PREFIX
  value: {{ .topicPrefix | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "meterplex.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .Values.database.tlsSecret }}
- name: database-tls
  mountPath: /etc/meterplex/database
  readOnly: true
{{- end }}
{{- if and .Values.kafka.brokers .Values.kafka.tlsSecret }}
- name: kafka-tls
  mountPath: /etc/meterplex/kafka
  readOnly: true
{{- end }}
{{- end }}

{{- define "meterplex.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- if .Values.database.tlsSecret }}
- name: database-tls
  secret:
    secretName: {{ .Values.database.tlsSecret }}
    defaultMode: 0440
{{- end }}
{{- if and .Values.kafka.brokers .Values.kafka.tlsSecret }}
- name: kafka-tls
  secret:
    secretName: {{ .Values.kafka.tlsSecret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/* The connections that each pod of a Deployment opens to PostgreSQL at most (docs/how-to/sizing.md). */}}
{{- define "meterplex.connections" -}}
{{ .connections | default 32 }}
{{- end }}
