// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// TestErrorsNameTheField sends manifests as users write them.
func TestErrorsNameTheField(t *testing.T) {
	namespace := newNamespace(t)
	bundle := func(spec string) string {
		return `{"apiVersion":"rukpak.io/v1alpha1","kind":"Bundle","metadata":{"name":"app","namespace":"` + namespace + `"},"spec":{` + spec + `}}`
	}
	class := func(rest string) string {
		return `{"apiVersion":"rukpak.io/v1alpha1","kind":"ProvisionerClass","metadata":{"name":"bad"},` + rest + `}`
	}
	for _, test := range []struct{ name, manifest, says string }{
		{"no source type", bundle(`"source":{}`), "spec.source.type"},
		{"unknown source type", bundle(`"source":{"type":"Git"}`), "spec.source.type"},
		{"member missing", bundle(`"source":{"type":"Image"}`), "spec.source.image"},
		{"member too many", bundle(`"source":{"type":"Image","image":{"reference":"a/b"},"upload":{}}`), "spec.source.upload"},
		{"wrong member", bundle(`"source":{"type":"Upload","image":{"reference":"a/b"}}`), "spec.source.image"},
		{"no reference", bundle(`"source":{"type":"Image","image":{}}`), "spec.source.image.reference"},
		{"bad reference", bundle(`"source":{"type":"Image","image":{"reference":"Not A Reference"}}`), "spec.source.image.reference"},
		{"bad digest in a reference", bundle(`"source":{"type":"Image","image":{"reference":"a/b@sha256:12"}}`), "spec.source.image.reference"},
		{"long reference", bundle(`"source":{"type":"Image","image":{"reference":"a/` + strings.Repeat("b", 1100) + `"}}`), "spec.source.image.reference"},
		{"relative path", bundle(`"source":{"type":"Image","image":{"reference":"a/b","path":"c"}}`), "spec.source.image.path"},
		{"path with dots", bundle(`"source":{"type":"Image","image":{"reference":"a/b","path":"/c/../d"}}`), "spec.source.image.path"},
		{"unknown pull policy", bundle(`"source":{"type":"Image","image":{"reference":"a/b","pullPolicy":"Sometimes"}}`), "pullPolicy"},
		{"bad digest", bundle(`"source":{"type":"Upload","upload":{"digest":"sha256:XYZ"}}`), "spec.source.upload.digest"},
		{"other algorithm", bundle(`"source":{"type":"Upload","upload":{"digest":"md5:d41d8cd98f00b204e9800998ecf8427e"}}`), "spec.source.upload.digest"},
		{"account of an upload", bundle(`"source":{"type":"Upload"},"serviceAccountName":"a"`), "spec.serviceAccountName"},
		{"bad account", bundle(`"source":{"type":"Image","image":{"reference":"a/b"}},"serviceAccountName":"A_B"`), "spec.serviceAccountName"},
		{"same secret twice", bundle(`"source":{"type":"Image","image":{"reference":"a/b"}},"imagePullSecrets":[{"name":"s"},{"name":"s"}]`), "spec.imagePullSecrets[1]"},
		{"bad class name", bundle(`"source":{"type":"Upload"},"provisionerClassName":"A B"`), "spec.provisionerClassName"},
		{"unknown field", bundle(`"source":{"type":"Upload"},"sorce":{}`), "spec.sorce"},
		{"no provisioner", class(`"parameters":{}`), "provisioner"},
		{"bad provisioner", class(`"provisioner":"no good"`), "provisioner"},
		{"unknown parameter", class(`"provisioner":"rukpak.io/raw","parameters":{"speed":"9"}`), "speed"},
		{"unknown store", class(`"provisioner":"rukpak.io/raw","store":"attic"`), "store"},
		{"no bytes", class(`"provisioner":"rukpak.io/raw","limits":{"bytes":"0"}`), "limits.bytes"},
		{"negative bytes", class(`"provisioner":"rukpak.io/raw","limits":{"compressedBytes":"-1"}`), "limits.compressedBytes"},
		{"no files", class(`"provisioner":"rukpak.io/raw","limits":{"files":0}`), "limits.files"},
		{"reserved label", class(`"provisioner":"rukpak.io/raw","unpack":{"podTemplate":{"labels":{"rukpak.io/bundle-uid":"x"}}}`), "unpack.podTemplate.labels"},
		{"reserved annotation", class(`"provisioner":"rukpak.io/raw","unpack":{"podTemplate":{"annotations":{"rukpak.io/attempt":"x"}}}`), "unpack.podTemplate.annotations"},
		{"root", class(`"provisioner":"rukpak.io/raw","unpack":{"podTemplate":{"runAsUser":0}}`), "unpack.podTemplate.runAsUser"},
		{"unknown mode", class(`"provisioner":"rukpak.io/raw","unpack":{"mode":"Teleport"}`), "unpack.mode"},
		{"no time", class(`"provisioner":"rukpak.io/raw","unpack":{"timeoutSeconds":0}`), "unpack.timeoutSeconds"},
		{"negative history", class(`"provisioner":"rukpak.io/raw","revisionHistoryLimit":-1`), "revisionHistoryLimit"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, stderr, err := kubectl(t, test.manifest, "create", "-f", "-", "--dry-run=server", "--validate=strict")
			if err == nil {
				t.Fatal("it was accepted")
			}
			if problem := missing(stderr, test.says); problem != "" {
				t.Error(problem)
			}
		})
	}
}

func TestWhatIsSetOnceStays(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, uploadBundle("app", "raw"))
	class := newClass(t, v1alpha1.ProvisionerRaw, nil)
	for _, test := range []struct{ kind, name, patch, says string }{
		{"bundle", "app", `{"spec":{"provisionerClassName":"plain"}}`, "spec.provisionerClassName"},
		{"bundle", "app", `{"spec":{"provisionerClassName":null}}`, "spec.provisionerClassName"},
		{"provisionerclass", class, `{"provisioner":"rukpak.io/plain"}`, "provisioner"},
		{"provisionerclass", class, `{"store":"other"}`, "store"},
	} {
		_, stderr, err := kubectl(t, "", "patch", test.kind, test.name, "-n", namespace, "--type=merge", "-p", test.patch)
		if err == nil {
			t.Errorf("%s %s was accepted", test.kind, test.patch)
		} else if problem := missing(stderr, test.says); problem != "" {
			t.Error(problem)
		}
	}
}
