// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content/listing"
	"rukpak.io/apiserver/pkg/tarball"
)

// A folder is sent unless the bundle has what it holds, and can serve it: what was lost is put back.
func TestPushSendsWhatIsNotServed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	summary, err := tarball.Pack(t.Context(), io.Discard, dir, "", tarball.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	const available, unpacked = v1alpha1.ConditionContentAvailable, v1alpha1.ConditionUnpacked
	for _, test := range []struct {
		name       string
		conditions map[string]metav1.ConditionStatus
		generation int64
		sent       bool
	}{
		{"served", map[string]metav1.ConditionStatus{available: metav1.ConditionTrue, unpacked: metav1.ConditionTrue}, 1, false},
		{"lost", map[string]metav1.ConditionStatus{available: metav1.ConditionFalse, unpacked: metav1.ConditionTrue}, 1, true},
		{"not taken for unpacked", map[string]metav1.ConditionStatus{available: metav1.ConditionTrue, unpacked: metav1.ConditionUnknown}, 1, true},
		{"nothing is said of it", nil, 1, true},
		{"of an earlier spec", map[string]metav1.ConditionStatus{available: metav1.ConditionTrue, unpacked: metav1.ConditionTrue}, 2, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &v1alpha1.Bundle{
				TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Bundle"},
				ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team", Generation: test.generation},
				Spec:       v1alpha1.BundleSpec{Source: v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}},
				Status:     v1alpha1.BundleStatus{Content: &v1alpha1.ContentStatus{Generation: 1, UncompressedDigest: summary.UncompressedDigest}},
			}
			for kind, status := range test.conditions {
				b.Status.Conditions = append(b.Status.Conditions, metav1.Condition{Type: kind, Status: status})
			}
			sent := false
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/bundles/app") {
					sent = true
					http.Error(w, "no more than that is asked here", http.StatusForbidden)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				if err := json.NewEncoder(w).Encode(b); err != nil {
					t.Error(err)
				}
			}))
			t.Cleanup(server.Close)
			_, stderr, code := run(t, "push", "app", dir, "-s", server.URL, "-n", "team")
			if sent != test.sent || strings.Contains(stderr, "has this content already") == test.sent || (code == ExitOK) == test.sent {
				t.Errorf("sent is %v, and it ends with %d: %s", sent, code, stderr)
			}
		})
	}
}

// After Ctrl-C the same command goes on only where the client keeps the upload.
func TestPushThatIsInterrupted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(file, make([]byte, 1024), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"unconditional", nil, "the same command goes on where this one was"},
		{"in place of a content", []string{"--if-digest", digestOf(nil)}, "the same command begins anew"},
		{"in place of nothing", []string{"--if-none"}, "the same command begins anew"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			url := serveBundle(t, served(), func(_ http.ResponseWriter, r *http.Request) bool {
				stop()
				<-r.Context().Done()
				return true
			})
			streams, _, _, errOut := genericiooptions.NewTestIOStreams()
			code := Main(ctx, append([]string{"push", "app", file, "-s", url, "-n", "team"}, test.flags...), streams)
			if code != ExitInterrupted || !strings.Contains(errOut.String(), test.want) {
				t.Errorf("it ends with %d: %s", code, errOut)
			}
		})
	}
}

// arriving is an input of which nothing more comes until the test ends.
type arriving struct {
	begun string
	wait  func()
}

func (a *arriving) Read(p []byte) (int, error) {
	if a.begun == "" {
		a.wait()
		return 0, io.EOF
	}
	n := copy(p, a.begun)
	a.begun = a.begun[n:]
	return n, nil
}

// Ctrl-C ends what waits for its input, and no copy of it is left behind, however the program ends.
func TestPushOfAnInputThatDoesNotEnd(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	url := serveBundle(t, served(), func(http.ResponseWriter, *http.Request) bool { return false })
	for _, args := range [][]string{{"push", "app", "-"}, {"create", "app", "--from", "-"}} {
		ctx, stop := context.WithCancel(t.Context())
		ended, late := make(chan struct{}), false
		streams, _, _, errOut := genericiooptions.NewTestIOStreams()
		streams.In = &arriving{begun: strings.Repeat("x", 1<<20), wait: func() {
			if left, err := os.ReadDir(tmp); len(left) > 0 || err != nil {
				t.Errorf("%s: %v has a name, %v", args[0], left, err)
			}
			stop()
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				late = true
			}
		}}
		code := Main(ctx, append(args, "-s", url, "-n", "team"), streams)
		close(ended)
		if code != ExitInterrupted || late || strings.Contains(errOut.String(), "goes on where") {
			t.Errorf("%s ends with %d, too late is %v: %s", args[0], code, late, errOut)
		}
	}
}

// An input that is a file is sent as it is, from where it is read.
func TestPushOfAFileAsInput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app")
	archive := packed(t, "file")
	if err := os.WriteFile(file, append([]byte("#!\n"), archive...), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	upload := served()
	upload.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}
	for at, want := range map[int64]int{3: len(archive), 0: len(archive) + 3, int64(len(archive)) + 3: 0} {
		length := ""
		url := serveBundle(t, upload, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPost {
				length = r.Header.Get("Upload-Length")
				refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no")
				return true
			}
			return strings.HasSuffix(r.URL.Path, "/uploads") && respond(w, `{"uploads":[]}`)
		})
		in, err := os.Open(file)
		if err == nil {
			_, err = in.Seek(at, io.SeekStart)
		}
		if err != nil {
			t.Fatal(err)
		}
		streams, _, _, errOut := genericiooptions.NewTestIOStreams()
		streams.In = in
		code := Main(t.Context(), []string{"push", "app", "-", "-s", url, "-n", "team"}, streams)
		if code != ExitNotAllowed || length != strconv.Itoa(want) {
			t.Errorf("from %d it ends with %d, with a length of %q: %s", at, code, length, errOut)
		}
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	}
}

// respond sends JSON.
func respond(w http.ResponseWriter, text string) bool {
	w.Header().Set("Content-Type", "application/json")
	_, err := io.WriteString(w, text)
	return err == nil
}

// What the server refuses because of the bundle is told from what it refuses because of who asks.
func TestPushToWhatTakesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	upload := served()
	upload.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}
	known := func(provisioner string) *v1alpha1.Bundle {
		b := served()
		b.Status.Provisioner = provisioner
		return b
	}
	archive := filepath.Join(t.TempDir(), "app.tar.gz")
	if err := os.WriteFile(archive, packed(t, "file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		bundle *v1alpha1.Bundle
		from   string
		code   int
		says   string
	}{
		{"a folder to an image's", known(v1alpha1.ProvisionerRaw), dir, ExitNoContent, "create NAME --upload -s "},
		{"a folder to an image's that nobody has looked at", known(""), dir, ExitNoContent, "create NAME --upload -s "},
		{"an archive to an image's", served(), archive, ExitNoContent, "create NAME --upload -s "},
		{"an archive to an upload", upload, archive, ExitNotAllowed, "ask an administrator"},
	} {
		t.Run(test.name, func(t *testing.T) {
			url := serveBundle(t, test.bundle, func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet {
					return false
				}
				refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no")
				return true
			})
			_, stderr, code := run(t, "push", "app", test.from, "-s", url, "-n", "team")
			if code != test.code || !strings.Contains(stderr, test.says) {
				t.Errorf("it ends with %d: %s", code, stderr)
			}
		})
	}
}

// The server is asked where it is not known whose a bundle is that has an image: of another controller's it takes content.
func TestPushAsksTheServer(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for provisioner, asked := range map[string]bool{"": true, "example.com/theirs": true, v1alpha1.ProvisionerPlain: false} {
		b, sent := served(), false
		b.Status.Provisioner = provisioner
		url := serveBundle(t, b, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/bundles/app") {
				return false
			}
			sent = true
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no")
			return true
		})
		if _, stderr, code := run(t, "push", "app", dir, "-s", url, "-n", "team"); sent != asked || code == ExitOK {
			t.Errorf("of %q asked is %v, and it ends with %d: %s", provisioner, sent, code, stderr)
		}
	}
}

// What is no tar is named, and nothing of it is sent, nor a bundle made for it.
func TestPushOfOtherFormats(t *testing.T) {
	sent := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = sent || r.Method != http.MethodGet
		http.Error(w, "no", http.StatusForbidden)
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "app.tar.xz")
	if err := os.WriteFile(file, []byte("\xfd7zXZ\x00 and more"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"push", "app", file}, {"create", "app", "--from", file}} {
		_, stderr, code := run(t, append(args, "-s", server.URL, "-n", "team")...)
		if code != ExitWrongContent || sent || !strings.Contains(stderr, "compressed with xz, and only tar and tar.gz are read") || !strings.Contains(stderr, "hint: unpack it") {
			t.Errorf("%s ends with %d, sent is %v: %s", args[0], code, sent, stderr)
		}
	}
}

// No bundle is made for what is neither a folder nor a file.
func TestCreateFromADevice(t *testing.T) {
	made := false
	url := serveBundle(t, served(), func(_ http.ResponseWriter, r *http.Request) bool {
		made = made || r.Method != http.MethodGet
		return false
	})
	_, stderr, code := run(t, "create", "app", "--from", os.DevNull, "-s", url, "-n", "team")
	if code != ExitUsage || made || !strings.Contains(stderr, "is neither a folder nor a file") {
		t.Errorf("it ends with %d, made is %v: %s", code, made, stderr)
	}
}

// A hint that is pasted has to do with the same server, as the same user, and in the same namespace.
func TestHintsNameTheServer(t *testing.T) {
	s := newSession(streamsTo(io.Discard))
	root := s.command()
	root.SetArgs([]string{
		"version", "--kubeconfig", "my config", "--context=there", "--user", "me", "--as", "it's", "--as-group", "a", "--as-group", "b", "--token", "secret",
		"--insecure-skip-tls-verify", "-n", "team", "-q",
	})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	const server = ` --as 'it'\''s' --as-group a --as-group b --context there --insecure-skip-tls-verify=true --kubeconfig 'my config' --user me`
	for namespace, want := range map[string]string{"": server + " -n team", "other": server + " -n other"} {
		if got := s.where(namespace); got != want {
			t.Errorf("they have %s, not %s", got, want)
		}
	}
	if got, want := s.elsewho(""), " --context there --insecure-skip-tls-verify=true --kubeconfig 'my config' -n team"; got != want {
		t.Errorf("for somebody else they have %s, not %s", got, want)
	}
	if got := s.stateOf(served()).at(); got != "app"+server+" -n team" {
		t.Errorf("it is at %s", got)
	}
	if got := newSession(streamsTo(io.Discard)).where(""); got != "" {
		t.Errorf("without flags they have %q", got)
	}
}

func TestLocalWord(t *testing.T) {
	for path, want := range map[string]string{"app": "./app", "./app": "./app", "/a b": "'/a b'", "app.tar": "app.tar", "bundle/app": "./bundle/app"} {
		if got := localWord(path); got != want {
			t.Errorf("%q is %s, not %s", path, got, want)
		}
	}
}

func TestQuoted(t *testing.T) {
	for word, want := range map[string]string{"./app": "./app", "a b": "'a b'", "it's": `'it'\''s'`, "$HOME": "'$HOME'", "-x": "'-x'", "": "''"} {
		if got := quoted(word); got != want {
			t.Errorf("%q is %s, not %s", word, got, want)
		}
	}
}

// What is refused after the bundle was made would be refused again: it says what to do with the bundle.
func TestCreateOfRefusedContent(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := served()
	b.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}
	url := serveBundle(t, b, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet || strings.HasSuffix(r.URL.Path, "/bundles") {
			return false
		}
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "manifests/a.yaml is no manifest")
		return true
	})
	_, stderr, code := run(t, "create", "app", "--from", dir, "-s", url, "-n", "team")
	if code != ExitWrongContent || !strings.Contains(stderr, "the bundle was made") || !strings.Contains(stderr, "hint: mend the files, and then kubectl bundle push app") || !strings.Contains(stderr, "or kubectl delete bundle app -s "+url+" -n team") {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
}

// What is a directory is listed with the revision and the path that were named.
func TestCatOfADirectory(t *testing.T) {
	digest := digestOf(nil)
	url := serveBundle(t, served(), func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", listing.MediaType)
		w.Header().Set("ETag", `W/"`+digest+`"`)
		list := `{"path":"","entries":[` + "\n" + `{"name":"a b","type":"Directory"}` + "\n]}\n"
		_, _ = io.WriteString(w, list)
		return true
	})
	_, stderr, code := run(t, "cat", "app@"+digest, "a b", "-s", url, "-n", "team")
	if code != ExitNotFound || !strings.Contains(stderr, "hint: kubectl bundle ls app@"+digest+" 'a b' -s "+url+" -n team lists it") {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
}

func TestCatOfNoSuchFile(t *testing.T) {
	url := serveBundle(t, served(), func(w http.ResponseWriter, _ *http.Request) bool {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, `content has no "none"`, metav1.StatusCause{Type: v1alpha1.CauseFileNotFound})
		return true
	})
	for _, command := range []string{"cat", "ls"} {
		_, stderr, code := run(t, command, "app", "none", "-s", url, "-n", "team")
		if code != ExitNotFound || !strings.Contains(stderr, `hint: "kubectl bundle tree app -s `+url+` -n team" shows the files that there are`) {
			t.Errorf("%s ends with %d: %s", command, code, stderr)
		}
	}
}

// Where sending the same again cannot help, the hint says what does.
func TestContentThatTheClassDoesNotTake(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := served()
	b.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}
	for _, test := range []struct {
		name   string
		code   int
		reason metav1.StatusReason
		cause  metav1.StatusCause
		exit   int
		says   string
	}{
		{"no manifests", http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, metav1.StatusCause{Type: v1alpha1.ReasonContentRefused, Field: fieldClass}, ExitWrongContent,
			"the folder has to contain manifests/"},
		{"no class", http.StatusConflict, metav1.StatusReasonConflict, metav1.StatusCause{Type: v1alpha1.ReasonClassMissing}, ExitNoContent, "make that class"},
	} {
		t.Run(test.name, func(t *testing.T) {
			url := serveBundle(t, b, func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet || strings.HasSuffix(r.URL.Path, "/bundles") {
					return false
				}
				refuse(w, test.code, test.reason, "no", test.cause)
				return true
			})
			for _, args := range [][]string{{"push", "app", dir}, {"create", "app", "--from", dir}} {
				_, stderr, code := run(t, append(args, "-s", url, "-n", "team")...)
				again := "kubectl delete bundle app -s " + url + " -n team, and kubectl bundle create app --from " + dir + " --class "
				if code != test.exit || !strings.Contains(stderr, test.says) || !strings.Contains(stderr, again) {
					t.Errorf("%s ends with %d: %s", args[0], code, stderr)
				}
			}
		})
	}
}

// No bundle is made of a class that does not exist, and none is overwritten.
func TestCreateSaysWhatIsThere(t *testing.T) {
	made := false
	url := serveBundle(t, served(), func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodPost:
			made = true
			refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists, "already exists")
		case strings.HasSuffix(r.URL.Path, "/provisionerclasses/plian"):
			refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "not found")
		case strings.HasSuffix(r.URL.Path, "/provisionerclasses"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"apiVersion":"rukpak.io/v1alpha1","kind":"ProvisionerClassList","items":[{"metadata":{"name":"plain"}}]}`)
		default:
			return false
		}
		return true
	})
	_, stderr, code := run(t, "create", "app", "--from", t.TempDir(), "--class", "plian", "-s", url, "-n", "team")
	if code != ExitNotFound || made || !strings.Contains(stderr, `no ProvisionerClass "plian"`) || !strings.Contains(stderr, "--class is one of: plain") {
		t.Errorf("it ends with %d, made is %v: %s", code, made, stderr)
	}
	_, stderr, code = run(t, "create", "app", "--from", t.TempDir(), "-s", url, "-n", "team")
	if code != ExitFailed || strings.Contains(stderr, "push") || !strings.Contains(stderr, "comes from its image, registry.example/app") {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
}

// A name or reference that may not be is a matter of the command, and not of content.
func TestCreateOfWhatIsInvalid(t *testing.T) {
	url := serveBundle(t, served(), func(w http.ResponseWriter, _ *http.Request) bool {
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "no name", metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.source.image.reference"})
		return true
	})
	_, stderr, code := run(t, "create", "app", "--image", "Foo:bar:baz", "-s", url, "-n", "team")
	if code != ExitUsage || !strings.Contains(stderr, `hint: correct that; "kubectl explain bundle.spec.source.image.reference -s `+url+` -n team" says`) {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
}
