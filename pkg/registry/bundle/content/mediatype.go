// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"path"
	"strings"
)

const (
	anyType  = "application/octet-stream"
	textType = "text/plain"
	tarType  = "application/x-tar"
)

// mediaTypes are the types of files by their extensions. They do not come from the system, whose table is another one on each;
// and no file is called HTML: kube-apiserver's proxy rewrites it, and a browser would run what is in it with the rights of
// whoever looks at it.
var mediaTypes = map[string]string{
	".bz2":   "application/x-bzip2",
	".cfg":   textType,
	".conf":  textType,
	".css":   "text/css",
	".csv":   "text/csv",
	".gif":   "image/gif",
	".gz":    "application/gzip",
	".htm":   textType,
	".html":  textType,
	".ini":   textType,
	".jpeg":  "image/jpeg",
	".jpg":   "image/jpeg",
	".js":    "text/javascript",
	".json":  "application/json",
	".log":   textType,
	".md":    "text/markdown",
	".pdf":   "application/pdf",
	".pem":   "application/x-pem-file",
	".png":   "image/png",
	".proto": textType,
	".py":    textType,
	".rego":  textType,
	".sh":    textType,
	".svg":   "image/svg+xml",
	".tar":   tarType,
	".tgz":   "application/gzip",
	".toml":  "application/toml",
	".tpl":   textType,
	".txt":   textType,
	".wasm":  "application/wasm",
	".webp":  "image/webp",
	".xhtml": textType,
	".xml":   "application/xml",
	".yaml":  "application/yaml",
	".yml":   "application/yaml",
	".zip":   "application/zip",
	".zst":   "application/zstd",
}

// mediaTypeOf is the type of a file by its name.
func mediaTypeOf(name string) string {
	if t, ok := mediaTypes[strings.ToLower(path.Ext(name))]; ok {
		return t
	}
	return anyType
}
