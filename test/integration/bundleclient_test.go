// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bundleclient"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// generation is a content whose files all say a mark.
func generation(mark string) []entry {
	var entries []entry
	for i := range 30 {
		entries = append(entries, entry{name: fmt.Sprintf("data/%02d", i), body: mark})
	}
	return entries
}

// markOf is what all files say.
func markOf(files fs.FS) (string, error) {
	mark := ""
	err := fs.WalkDir(files, "data", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(files, path)
		if mark != "" && mark != string(raw) {
			return fmt.Errorf("%s says %q, those before %q", path, raw, mark)
		}
		mark = string(raw)
		return err
	})
	return mark, err
}

// follow watches team's bundle app with the library until the test ends, and sends what all files of each content say.
func follow(t *testing.T, bundles typed.BundlesGetter, namespace string, opts bundleclient.Options) <-chan string {
	t.Helper()
	cache, err := bundleclient.OpenCache(t.TempDir(), bundleclient.CacheOptions{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	opts.Cache, opts.MinBackoff = cache, 50*time.Millisecond
	client := bundleclient.New(bundles, opts)
	ctx, cancel := context.WithCancel(t.Context())
	marks, ended := make(chan string), make(chan error, 1)
	go func() {
		ended <- client.Watch(ctx, namespace, "app", func(ctx context.Context, b *v1alpha1.Bundle, files fs.FS) error {
			mark, err := markOf(files)
			if err != nil {
				return err
			}
			select {
			case marks <- mark:
			case <-ctx.Done():
			}
			// What has become of the bundle meanwhile is no matter.
			if again, err := markOf(files); again != mark {
				t.Errorf("files of %q say %q, %v", mark, again, err)
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return marks
}

// told waits until a mark comes.
func told(t *testing.T, marks <-chan string, want string) {
	t.Helper()
	last, timeout := "", time.After(patience)
	for last != want {
		select {
		case last = <-marks:
		case <-timeout:
			t.Fatalf("%q did not come, the last was %q", want, last)
		}
	}
}

// TestLibraryFollowsThroughRestarts replaces content while servers are killed, and while files are read.
func TestLibraryFollowsThroughRestarts(t *testing.T) {
	t.Parallel()
	s, client := standalone(t)
	own := client.RukpakV1alpha1()
	must(own.Bundles("default").Create(t.Context(), uploadBundle("app", "raw"), metav1.CreateOptions{}))(t)
	marks := follow(t, own, "default", bundleclient.Options{PollInterval: time.Second})
	for i := range 8 {
		mark := fmt.Sprint("generation ", i)
		if i%4 == 3 {
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		archive := canonical(t, generation(mark)...)
		eventually(t, "content is written", func() string {
			_, err := own.Bundles("default").PutContent(t.Context(), "app", bytes.NewReader(archive), typed.PutContentOptions{})
			return problem(err)
		})
		told(t, marks, mark)
	}
}

// as is a config that logs in as a user.
func as(u user) *rest.Config {
	config := rest.AnonymousClientConfig(shared.Config)
	config.BearerToken = u.token
	return config
}

// TestLibraryNeedsOneGrant follows content with get on it alone, and with watch on its bundle: grants for one name.
func TestLibraryNeedsOneGrant(t *testing.T) {
	t.Parallel()
	named := func(resource, verb string) rbacv1.PolicyRule {
		r := rule(resource, verb)
		r.ResourceNames = []string{"app"}
		return r
	}
	for name, rules := range map[string][]rbacv1.PolicyRule{
		"content alone":      {named("bundles/content", "get")},
		"and it is followed": {named("bundles", "watch"), named("bundles/content", "get")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := store(t, "raw", generation("one")...)
			u := newUser(t, s.namespace, rules...)
			interval := 200 * time.Millisecond
			if len(rules) > 1 {
				interval = time.Hour
			}
			client := must(bundleclient.NewForConfig(as(u), bundleclient.Options{}))(t)
			if _, err := client.Open(t.Context(), s.namespace, "other", bundleclient.OpenOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("content of another bundle: %v", err)
			}
			_, err := bundles(s.namespace).GetContent(t.Context(), "app", typed.GetContentOptions{Length: 1, IfNotDigest: digestOf(s.content)})
			if !typed.IsNotModified(err) {
				t.Errorf("content that the client has: %v", err)
			}
			route := must(bundleclient.NewRoute(as(u), bundleclient.RouteOptions{}))(t)
			marks := follow(t, route, s.namespace, bundleclient.Options{PollInterval: interval})
			told(t, marks, "one")
			if err := route.Direct(); !apierrors.IsForbidden(err) {
				t.Errorf("why there is no direct way: %v", err)
			}
			must(bundles(s.namespace).PutContent(t.Context(), "app", bytes.NewReader(canonical(t, generation("two")...)), typed.PutContentOptions{}))(t)
			told(t, marks, "two")
		})
	}
}

// TestRouteGoesStraightToTheServer uses the role that is shipped for it, and a token that is good for nothing else.
func TestRouteGoesStraightToTheServer(t *testing.T) {
	t.Parallel()
	s := store(t, "raw", generation("one")...)
	u := newUser(t, s.namespace, rule("bundles/content", "get"))
	must(shared.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "direct-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "rukpak-direct"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: u.name}},
	}, metav1.CreateOptions{}))(t)
	config := as(u)
	straight := 0
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		// There is no DNS of a cluster here.
		if strings.HasPrefix(address, "rukpak-apiserver.rukpak-system.svc:") {
			straight++
			address = strings.TrimPrefix(shared.server.URL, "https://")
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	eventually(t, "content comes straight", func() string {
		route := must(bundleclient.NewRoute(config, bundleclient.RouteOptions{}))(t)
		files, err := bundleclient.New(route, bundleclient.Options{}).Open(t.Context(), s.namespace, "app", bundleclient.OpenOptions{})
		if err != nil {
			return err.Error()
		}
		if mark, err := markOf(files.FS()); mark != "one" {
			t.Errorf("%q, %v", mark, err)
		}
		if err := files.Close(); err != nil {
			t.Error(err)
		}
		return problem(route.Direct())
	})
	if straight == 0 {
		t.Error("nobody went to the Service")
	}
}

// TestExampleController runs the example with what its rbac.yaml grants.
func TestExampleController(t *testing.T) {
	t.Parallel()
	s := store(t, "raw", configMap("hello"), configMap("more"))
	text := string(must(os.ReadFile(filepath.Join(shared.Root, "artifacts/examples/controller/rbac.yaml")))(t))
	mustKubectl(t, strings.ReplaceAll(text, "namespace: default", "namespace: "+s.namespace), "apply", "-f", "-")

	program, kubeconfig := filepath.Join(t.TempDir(), "controller"), filepath.Join(t.TempDir(), "kubeconfig")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./artifacts/examples/controller")
	build.Dir = shared.Root
	if _, stderr, err := output(build, ""); err != nil {
		t.Fatal(err, stderr)
	}
	login := clientcmdapi.NewConfig()
	login.Clusters["it"] = &clientcmdapi.Cluster{Server: shared.URL, CertificateAuthorityData: shared.CA}
	login.AuthInfos["it"] = &clientcmdapi.AuthInfo{Token: newToken(t, s.namespace, "app-controller", authenticationv1.TokenRequestSpec{})}
	login.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it"}
	login.CurrentContext = "it"
	if err := clientcmd.WriteToFile(*login, kubeconfig); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, s.namespace, "app")
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "TMPDIR=" + t.TempDir()}
	out := must(cmd.StdoutPipe())(t)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, want := range []string{
		s.namespace + "/app has " + digestOf(s.content), "manifests/hello.yaml: ConfigMap hello", "manifests/more.yaml: ConfigMap more",
	} {
		if !lines.Scan() || lines.Text() != want {
			t.Errorf("it says %q, not %q; %v", lines.Text(), want, lines.Err())
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, problems.String())
	}
}
