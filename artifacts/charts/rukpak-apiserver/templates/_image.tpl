{{/*
Copyright The rukpak-apiserver Authors.
SPDX-License-Identifier: Apache-2.0
*/}}
{{- define "image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end -}}
