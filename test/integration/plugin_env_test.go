// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/test/integration/harness"
)

// pluginPatience bounds one run of the plugin.
const pluginPatience = 2 * time.Minute

// buildPlugin and buildFetch build the programs of those names once for all tests.
var (
	buildPlugin = sync.OnceValues(func() (string, error) { return buildProgram("kubectl-bundle") })
	buildFetch  = sync.OnceValues(func() (string, error) { return buildProgram("rukpak-fetch") })
)

func buildProgram(name string) (string, error) {
	program := filepath.Join(shared.Root, "_output", "integration", name)
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "./cmd/"+name)
	build.Dir = shared.Root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return program, nil
}

// plugin runs kubectl-bundle against one server.
type plugin struct {
	program    string
	kubeconfig string
	// home and dir are where it keeps what it learns, and where it runs.
	home, dir string
	namespace string
	bundles   typed.BundleInterface
}

// outcome is how a run ended. On a terminal all that it wrote is in stdout.
type outcome struct {
	stdout, stderr string
	code           int
}

// pluginServers are the two kinds of servers: alone, and behind kube-apiserver.
func pluginServers(t *testing.T) map[string]*plugin {
	t.Helper()
	return map[string]*plugin{"standalone": alone(t).plugin(t), "cluster": clusterPlugin(t, newNamespace(t), shared.Kubeconfig)}
}

// aloneServer is a server without a cluster, for all tests of the plugin.
type aloneServer struct{ *harness.Server }

func alone(t *testing.T) aloneServer {
	t.Helper()
	dir := must(harness.MakeDir())(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := must(harness.StartStandalone(t.Context(), shared.Programs, dir))(t)
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
	return aloneServer{s}
}

func (s aloneServer) plugin(t *testing.T) *plugin {
	t.Helper()
	kubeconfig := filepath.Join(s.Dir, "kubeconfig")
	config := must(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	config.QPS = -1
	client := must(clientset.NewForConfig(config))(t)
	eventually(t, "classes of the standalone server", func() string {
		_, err := client.RukpakV1alpha1().ProvisionerClasses().Get(t.Context(), "raw", metav1.GetOptions{})
		return problem(err)
	})
	return newPlugin(t, "default", kubeconfig, client)
}

func clusterPlugin(t *testing.T, namespace, kubeconfig string) *plugin {
	t.Helper()
	return newPlugin(t, namespace, kubeconfig, shared.Rukpak)
}

func newPlugin(t *testing.T, namespace, kubeconfig string, client clientset.Interface) *plugin {
	t.Helper()
	return &plugin{
		program: must(buildPlugin())(t), kubeconfig: kubeconfig, home: t.TempDir(), dir: t.TempDir(),
		namespace: namespace, bundles: client.RukpakV1alpha1().Bundles(namespace),
	}
}

// as is the same for a user.
func (p *plugin) as(t *testing.T, u user) *plugin {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: shared.URL, CertificateAuthorityData: shared.CA}
	config.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: u.token}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	config.CurrentContext = "c"
	other := *p
	other.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, other.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return &other
}

func (p *plugin) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append(slices.Clone(args), "-n", p.namespace)
	if args[0] == "__complete" {
		// What is completed is the last.
		args = slices.Concat([]string{args[0], "-n", p.namespace}, args[1:len(args)-2])
	}
	cmd := exec.CommandContext(ctx, p.program, args...)
	cmd.Dir = p.dir
	cmd.Env = []string{"KUBECONFIG=" + p.kubeconfig, "HOME=" + p.home, "TMPDIR=" + p.home, "PATH=" + os.Getenv("PATH"), "TERM=xterm"}
	return cmd
}

// pipe runs the plugin with its output in pipes.
func (p *plugin) pipe(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pluginPatience)
	defer cancel()
	stdout, stderr, err := output(p.command(ctx, args...), stdin)
	return outcome{stdout, stderr, exitCode(t, err)}
}

// terminal runs the plugin on a terminal.
func (p *plugin) terminal(t *testing.T, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pluginPatience)
	defer cancel()
	master, slave := openTerminal(t)
	cmd := p.command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := slave.Close(); err != nil {
		t.Error(err)
	}
	// Reading ends with EIO once nobody has the terminal open.
	text, err := io.ReadAll(master)
	if err != nil && !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	return outcome{stdout: strings.ReplaceAll(string(text), "\r\n", "\n"), code: exitCode(t, cmd.Wait())}
}

// openTerminal makes a pseudo terminal of 100 columns.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master = must(os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _ = master.Close() })
	raw := must(master.SyscallConn())(t)
	var number int
	var err error
	control := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err != nil {
			return
		}
		if number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err != nil {
			return
		}
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 100})
	})
	if err := errors.Join(control, err); err != nil {
		t.Fatal(err)
	}
	return master, must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return -1
}

// whatever is the exit code that is not compared.
const whatever = -1

// expect compares how a run ended, and looks for texts in what it said.
func (o outcome) expect(t *testing.T, code int, texts ...string) outcome {
	t.Helper()
	if code != whatever && o.code != code {
		t.Errorf("exit code %d, want %d\n%s%s", o.code, code, o.stdout, o.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(o.stdout+o.stderr, text) {
			t.Errorf("it does not say %q:\n%s%s", text, o.stdout, o.stderr)
		}
	}
	return o
}

// folder makes a folder of files, by their paths.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// meteredLine is a way to a server that counts what comes back, and is cut.
type meteredLine struct {
	url string
	// bytes is how many came from the server, and sent how many went to it.
	bytes, sent atomic.Int64
	// each connection ends after so many bytes from the server, as long as cuts are left.
	each atomic.Int64
	cuts atomic.Int64
	// rate bounds the bytes a second of each connection, in each direction, if it is not 0.
	rate atomic.Int64
}

func newMeteredLine(t *testing.T, to string) *meteredLine {
	t.Helper()
	target := must(url.Parse(to))(t)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := &meteredLine{url: "https://" + listener.Addr().String()}
	var working sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		working.Wait()
	})
	working.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // it was closed
			}
			working.Go(func() { l.carry(ctx, client, target.Host) })
		}
	})
	return l
}

func (l *meteredLine) carry(ctx context.Context, client net.Conn, to string) {
	defer client.Close()
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = client.Close(), server.Close() })
	defer stop()
	go func() {
		_, _ = io.Copy(server, io.TeeReader(client, slowly{l}))
		_ = server.Close()
	}()
	// What is under way when it is cut is lost, and was counted: as on a real line, that is little.
	_ = client.(*net.TCPConn).SetWriteBuffer(64 << 10)
	buf := make([]byte, 16<<10)
	var here int64
	for {
		n, err := server.Read(buf)
		if n > 0 {
			l.bytes.Add(int64(n))
			here += int64(n)
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
		if each := l.each.Load(); each > 0 && here > each && l.cuts.Add(-1) >= 0 {
			return
		}
		l.pass(n)
	}
}

// pass takes as long as n bytes do.
func (l *meteredLine) pass(n int) {
	if rate := l.rate.Load(); rate > 0 {
		time.Sleep(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	}
}

// slowly counts what goes to a server, and takes its time.
type slowly struct{ *meteredLine }

func (s slowly) Write(p []byte) (int, error) {
	s.sent.Add(int64(len(p)))
	s.pass(len(p))
	return len(p), nil
}

func readAll(t *testing.T, path string) []byte {
	t.Helper()
	return must(os.ReadFile(path))(t)
}

// partsOf are what is kept of a transfer to a path that broke off.
func partsOf(t *testing.T, path string) []string {
	t.Helper()
	return must(filepath.Glob(path + ".sha256-*.part"))(t)
}

// put makes a bundle of class raw with an archive.
func (p *plugin) put(t *testing.T, name string, archive []byte) {
	t.Helper()
	p.putOf(t, name, "raw", archive)
}

func (p *plugin) putOf(t *testing.T, name, class string, archive []byte) {
	t.Helper()
	if _, err := p.bundles.Create(t.Context(), uploadBundle(name, class), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.bundles.PutContent(t.Context(), name, bytes.NewReader(archive), typed.PutContentOptions{}); err != nil {
		t.Fatal(err)
	}
}

func writeFile(path string, data []byte) error { return os.WriteFile(path, data, 0o600) }

// client is a client of everything that the plugin's server has.
func (p *plugin) client(t *testing.T) clientset.Interface {
	t.Helper()
	return must(clientset.NewForConfig(must(clientcmd.BuildConfigFromFlags("", p.kubeconfig))(t)))(t)
}
