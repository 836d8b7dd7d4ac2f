// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"bytes"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

func TestWritingContent(t *testing.T) {
	for _, w := range bothWays(t) {
		t.Run(w.name, func(t *testing.T) {
			namespace := newNamespace(t)
			u := newUser(t, namespace, rule("bundles/content", "get", "update"))
			create(t, namespace, uploadBundle("app", "raw"))
			path := contentPath(namespace, "app")
			put := func(body []byte, headers ...string) reply {
				t.Helper()
				return w.do(t, http.MethodPut, path, u.token, bytes.NewReader(body), headers...)
			}
			files := []entry{noise("b", 1, 2000), noise("a", 2, 10)}
			want := canonical(t, files...)
			tag := `"` + digestOf(want) + `"`

			put(tarOf(t, files...), "If-Match", "*").expect(t, http.StatusPreconditionFailed, "not there")
			r := put(tarOf(t, files...), "If-None-Match", "*").expect(t, http.StatusCreated, digestOf(want))
			if r.header.Get("ETag") != tag || r.header.Get("Repr-Digest") != field(want) {
				t.Errorf("headers are ETag %s and Repr-Digest %s", r.header.Get("ETag"), r.header.Get("Repr-Digest"))
			}
			b := get(t, namespace, "app")
			if b.Status.Phase != v1alpha1.BundleUnpacked || b.Status.ResolvedSource == nil || b.Status.ResolvedSource.Upload == nil || b.Status.ResolvedSource.Upload.Username != u.name {
				t.Errorf("after the upload the status is %+v", b.Status)
			}
			// The same files, however packed, are the same content.
			put(gzipOf(t, tarOf(t, files[1], files[0])), "Content-Digest", field(gzipOf(t, tarOf(t, files[1], files[0])))).expect(t, http.StatusOK)
			if again := get(t, namespace, "app"); again.ResourceVersion != b.ResourceVersion {
				t.Error("the same content was written to the status again")
			}

			next := canonical(t, noise("c", 3, 10))
			put(next, "If-None-Match", "*").expect(t, http.StatusPreconditionFailed)
			put(next, "If-None-Match", tag).expect(t, http.StatusPreconditionFailed)
			put(next, "If-Match", `"sha256:0"`).expect(t, http.StatusPreconditionFailed, digestOf(want))
			put(next, "If-Unmodified-Since", "Mon, 02 Jan 2006 15:04:05 GMT").expect(t, http.StatusBadRequest, "If-Match")
			put(next, "If-Match", `"sha256:0", `+tag).expect(t, http.StatusOK, digestOf(next))
			if got := w.do(t, http.MethodGet, path, u.token, nil).expect(t, http.StatusOK).body; !bytes.Equal(got, next) {
				t.Error("the content is not what was written last")
			}
		})
	}
}

func TestKubectlWritesContent(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, uploadBundle("app", "plain"))
	file := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(file, tarOf(t, configMap("app")), 0o600); err != nil {
		t.Fatal(err)
	}
	mustKubectl(t, "", "replace", "--raw", contentPath(namespace, "app"), "-f", file)
	mustKubectl(t, "", "wait", "-n", namespace, "bundle/app", "--for=condition=Ready", "--timeout=30s")
	if got := digestOf([]byte(mustKubectl(t, "", "get", "--raw", contentPath(namespace, "app")))); got != get(t, namespace, "app").Status.Content.Digest {
		t.Errorf("kubectl read %s", got)
	}
}

// refusal is a write that is refused.
type refusal struct {
	name    string
	body    []byte
	headers []string
	query   string
	code    int
	says    string
	cause   metav1.CauseType
}

func TestRefusedContentLeavesTheOldOne(t *testing.T) {
	plain := []entry{configMap("fine")}
	limited := func(l v1alpha1.ContentLimits) string {
		return newClass(t, v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) { c.Limits = &l })
	}
	fine := canonical(t, plain...)
	for _, class := range []struct {
		name     string
		class    string
		refusals []refusal
	}{
		{"any class", "raw", append(badArchives(t),
			refusal{name: "coded", body: fine, headers: []string{"Content-Encoding", "gzip"}, code: 415, says: "Content-Encoding"},
			refusal{name: "part", body: fine, headers: []string{"Content-Range", "bytes 0-1/2"}, code: 400, says: "Content-Range"},
			refusal{name: "wrong digest", body: fine, headers: []string{"Content-Digest", field([]byte("other"))}, code: 400, says: "Content-Digest"},
			refusal{name: "malformed digest", body: fine, headers: []string{"Content-Digest", "sha-256=abc"}, code: 400, says: "Content-Digest"},
			refusal{name: "dry run", body: fine, query: "?dryRun=All", code: 400, says: "dry"},
		)},
		{"plain", "plain", []refusal{
			{name: "no manifest", body: tarOf(t, entry{name: "README.md", body: "hello"}), code: 422, says: "manifests/", cause: "ContentRefused"},
			{name: "no object", body: tarOf(t, entry{name: "manifests/empty.yaml", body: "# nothing\n"}), code: 422, says: "manifests/", cause: "ContentRefused"},
			{name: "no yaml", body: tarOf(t, configMap("a"), entry{name: "manifests/bad.yaml", body: "a: [\n"}), code: 422, says: "manifests/bad.yaml", cause: "ContentRefused"},
			{name: "no kind", body: tarOf(t, entry{name: "manifests/kindless.yaml", body: "apiVersion: v1\nmetadata: {name: a}\n"}), code: 422, says: "kind", cause: "ContentRefused"},
		}},
		{"few files", limited(v1alpha1.ContentLimits{Files: ptr.To(int64(2))}), []refusal{
			{name: "three", body: tarOf(t, noise("a", 1, 1), noise("b", 1, 1), noise("c", 1, 1)), code: 413, says: "more than 2 files", cause: "LimitExceeded"},
		}},
		{"few bytes", limited(v1alpha1.ContentLimits{Bytes: ptr.To(resource.MustParse("20Ki"))}), []refusal{
			{name: "zeros", body: gzipOf(t, tarOf(t, entry{name: "zeros", body: strings.Repeat("0", 30000)})), code: 413, says: "20480 bytes uncompressed", cause: "LimitExceeded"},
		}},
		{"few compressed bytes", limited(v1alpha1.ContentLimits{CompressedBytes: ptr.To(resource.MustParse("8Ki"))}), []refusal{
			{name: "noise", body: tarOf(t, noise("noise", 1, 30000)), code: 413, says: "8192 bytes", cause: "LimitExceeded"},
		}},
		{"few of both", limited(v1alpha1.ContentLimits{CompressedBytes: ptr.To(resource.MustParse("8Ki")), Bytes: ptr.To(resource.MustParse("9Ki"))}), []refusal{
			{name: "length", body: tarOf(t, noise("noise", 1, 30000)), code: 413, says: "9216", cause: "LimitExceeded"},
		}},
	} {
		t.Run(class.name, func(t *testing.T) {
			s := store(t, class.class, plain...)
			for _, r := range class.refusals {
				t.Run(r.name, func(t *testing.T) {
					for _, w := range bothWays(t) {
						r.check(t, w, s)
					}
				})
			}
		})
	}
}

// badArchives are archives that no class takes.
func badArchives(t *testing.T) []refusal {
	t.Helper()
	good := gzipOf(t, tarOf(t, noise("data", 5, 5000)))
	entries := func(name, says string, e ...entry) refusal {
		return refusal{name: name, body: tarOf(t, e...), code: 422, says: says, cause: "ContentRefused"}
	}
	return []refusal{
		{name: "no tar", body: []byte("hello, this is no archive"), code: 400, says: "not a tar archive", cause: "ContentRefused"},
		{name: "no tar in gzip", body: gzipOf(t, []byte("hello, this is no archive")), code: 400, says: "not a tar archive", cause: "ContentRefused"},
		{name: "cut", body: good[:len(good)/2], code: 400, says: "breaks off", cause: "ContentRefused"},
		{name: "nothing", body: []byte{}, code: 400, says: "not a tar archive", cause: "ContentRefused"},
		entries("parent", `\"../evil\"`, entry{name: "../evil", body: "x"}),
		entries("parent within", `\"a/../../evil\"`, entry{name: "a/../../evil", body: "x"}),
		entries("absolute", `\"/etc/evil\"`, entry{name: "/etc/evil", body: "x"}),
		entries("escaping link", `\"a/way-out\"`, entry{name: "a/way-out", flag: tar.TypeSymlink, link: "../../etc/passwd"}),
		entries("absolute link", `\"way-out\"`, entry{name: "way-out", flag: tar.TypeSymlink, link: "/etc/passwd"}),
		entries("hard link to nothing", `\"hard\"`, entry{name: "hard", flag: tar.TypeLink, link: "../../etc/passwd"}),
		entries("below a link", `\"dir/file\"`, entry{name: "dir", flag: tar.TypeSymlink, link: "other"}, entry{name: "dir/file", body: "x"}),
		entries("character device", `\"null\"`, entry{name: "null", flag: tar.TypeChar}),
		entries("block device", `\"disk\"`, entry{name: "disk", flag: tar.TypeBlock}),
		entries("fifo", `\"pipe\"`, entry{name: "pipe", flag: tar.TypeFifo}),
		entries("duplicate", `\"twice\"`, entry{name: "twice", body: "1"}, entry{name: "twice", body: "2"}),
	}
}

func (r refusal) check(t *testing.T, w way, s stored) {
	t.Helper()
	clean := noDebris(t)
	answer := w.do(t, http.MethodPut, s.path()+r.query, s.user.token, bytes.NewReader(r.body), r.headers...).expect(t, r.code, r.says)
	status := answer.status(t)
	if int(status.Code) != r.code || status.Status != metav1.StatusFailure {
		t.Errorf("%s: Status is %+v", w.name, status)
	}
	if r.cause != "" && (status.Details == nil || len(status.Details.Causes) == 0 || status.Details.Causes[0].Type != r.cause) {
		t.Errorf("%s: causes of the Status are %+v, want %s", w.name, status.Details, r.cause)
	}
	s.unchanged(t, w)
	clean()
}

func TestUploadOfOtherBytesThanTheSpecNames(t *testing.T) {
	namespace := newNamespace(t)
	u := newUser(t, namespace, rule("bundles/content", "get", "update"))
	right, wrong := canonical(t, noise("right", 1, 100)), canonical(t, noise("wrong", 2, 100))
	b := uploadBundle("app", "raw")
	b.Spec.Source.Upload = &v1alpha1.UploadSource{Digest: digestOf(right)}
	create(t, namespace, b)
	clean := noDebris(t)
	for _, w := range bothWays(t) {
		w.do(t, http.MethodPut, contentPath(namespace, "app"), u.token, bytes.NewReader(wrong)).
			expect(t, http.StatusUnprocessableEntity, "spec.source.upload.digest", digestOf(wrong))
	}
	clean()
	direct(t).do(t, http.MethodPut, contentPath(namespace, "app"), u.token, bytes.NewReader(right)).expect(t, http.StatusCreated)
	if got := get(t, namespace, "app").Status.Content.Digest; got != digestOf(right) {
		t.Errorf("status says %s", got)
	}
}

func TestContentOfAnImageIsNotUploaded(t *testing.T) {
	namespace := newNamespace(t)
	u := newUser(t, namespace, rule("bundles/content", "get", "update"))
	create(t, namespace, imageBundle("app", "raw"))
	for _, w := range bothWays(t) {
		w.do(t, http.MethodPut, contentPath(namespace, "app"), u.token, bytes.NewReader(canonical(t, noise("a", 1, 1)))).
			expect(t, http.StatusForbidden, "unpack pod")
	}
}

func TestContentOfSomebodyElsesProvisioner(t *testing.T) {
	class := newClass(t, "example.com/charts", nil)
	namespace := newNamespace(t)
	u := newUser(t, namespace, rule("bundles/content", "get", "update"))
	create(t, namespace, imageBundle("app", class))
	content := canonical(t, noise("a", 9, 10))
	direct(t).do(t, http.MethodPut, contentPath(namespace, "app"), u.token, bytes.NewReader(content)).expect(t, http.StatusCreated)
	b := get(t, namespace, "app")
	if b.Status.Content == nil || b.Status.Content.Digest != digestOf(content) || b.Status.Phase != v1alpha1.BundlePending {
		t.Errorf("status is %+v; the content is there, and what it means is for the provisioner to say", b.Status)
	}
}

func TestUploadThatBreaksOffLeavesNothing(t *testing.T) {
	s := store(t, "raw", noise("old", 1, 1000))
	body := tarOf(t, noise("new", 2, 1<<20))
	for _, w := range bothWays(t) {
		t.Run(w.name, func(t *testing.T) {
			clean := noDebris(t)
			conn := dial(t, w)
			_, err := fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", s.path(), s.user.token, len(body))
			if err == nil {
				_, err = conn.Write(body[:len(body)/2])
			}
			if err != nil {
				t.Fatal(err)
			}
			// It has begun when there is a file of it.
			eventually(t, "upload has begun", func() string {
				if found := must(os.ReadDir(filepath.Join(shared.server.Dir, "content", "tmp")))(t); len(found) == 0 {
					return "no file"
				}
				return ""
			})
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			clean()
			s.unchanged(t, w)
		})
	}
}

// dial opens a connection on which HTTP/1.1 is spoken by hand.
func dial(t *testing.T, w way) *tls.Conn {
	t.Helper()
	target := must(url.Parse(w.url))(t)
	config := w.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"http/1.1"}
	return must(tls.Dial("tcp", target.Host, config))(t)
}

func TestUploadThatIsOvertakenByTheSpec(t *testing.T) {
	s := store(t, "raw", noise("old", 1, 1000))
	body := tarOf(t, noise("new", 2, 1<<20))
	for i, w := range bothWays(t) {
		t.Run(w.name, func(t *testing.T) {
			clean := noDebris(t)
			finish := startUpload(t, w, s.path(), s.user.token, body)
			patch := fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, i == 0)
			must(bundles(s.namespace).Patch(t.Context(), s.name, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
			finish().expect(t, http.StatusConflict, "spec has changed")
			s.unchanged(t, w)
			clean()
		})
	}
}

// Who is refused early hears why, however much is on its way: an answer before the body is read would break the connection, in
// front of which kube-apiserver says 503.
func TestRefusedBodiesAreHeard(t *testing.T) {
	const times = 10
	namespace := newNamespace(t)
	u := newUser(t, namespace, rule("bundles/content", "get", "update"))
	create(t, namespace, uploadBundle("app", "raw"))
	path, body := contentPath(namespace, "app"), canonical(t, noise("a", 1, 4<<20))
	for _, w := range bothWays(t) {
		for range times {
			w.do(t, http.MethodPut, path, u.token, bytes.NewReader(body), "If-Match", `"sha256:0"`).expect(t, http.StatusPreconditionFailed, "not there")
			w.do(t, http.MethodPut, path+"/a", u.token, bytes.NewReader(body)).expect(t, http.StatusMethodNotAllowed, "update of a part")
			w.do(t, http.MethodPut, path+"?recursive=2", u.token, bytes.NewReader(body)).expect(t, http.StatusBadRequest, "recursive")
			w.do(t, http.MethodPut, contentPath(namespace, "other"), u.token, bytes.NewReader(body)).expect(t, http.StatusNotFound, "other")
		}
	}
}

// curl asks for leave to send what is large. kube-apiserver takes the interim answer that gives it for the final one, 200; a refusal comes
// without one.
func TestRefusalsOfBodiesThatWaitForLeave(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	u := uploader(t, namespace)
	create(t, namespace, uploadBundle("app", "raw"))
	body := canonical(t, noise("a", 1, 4<<20))
	for _, w := range bothWays(t) {
		transport := w.client.Transport.(*http.Transport).Clone()
		transport.ExpectContinueTimeout = requestTimeout
		w.client = &http.Client{Timeout: requestTimeout, Transport: transport}
		send := func(method, path string, headers ...string) reply {
			t.Helper()
			return w.do(t, method, path, u.token, bytes.NewReader(body), append(headers, "Expect", "100-continue")...)
		}
		path := w.do(t, http.MethodPost, uploadsPath(namespace, "app"), u.token, nil, "Upload-Complete", "?0").
			expect(t, http.StatusCreated).location(t, uploadsPath(namespace, "app"))
		for range 2 {
			send(http.MethodPut, contentPath(namespace, "app"), "If-Match", `"sha256:0"`).expect(t, http.StatusPreconditionFailed, "not there")
			send(http.MethodPut, contentPath(namespace, "app")+"/a").expect(t, http.StatusMethodNotAllowed, "update of a part")
			send(http.MethodPut, contentPath(namespace, "other")).expect(t, http.StatusNotFound, "other")
			send(http.MethodPatch, path, part(7, "?0")...).expect(t, http.StatusConflict, "MismatchingUploadOffset")
		}
	}
}
