// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// run runs the program in this process.
func run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	code = Main(t.Context(), args, streams)
	return out.String(), errOut.String(), code
}

// streamsTo are the streams of a session of which nothing is looked at.
func streamsTo(w io.Writer) genericiooptions.IOStreams {
	return genericiooptions.IOStreams{In: strings.NewReader(""), Out: w, ErrOut: w}
}

// full is an output that takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// What could not be written is not done, whoever writes it.
func TestOutputThatIsFull(t *testing.T) {
	url := serveBundle(t, served(), func(w http.ResponseWriter, r *http.Request) bool {
		return strings.HasSuffix(r.URL.Path, "/bundles") && respond(w, `{"apiVersion":"rukpak.io/v1alpha1","kind":"BundleList","items":[{"metadata":{"name":"app"}}]}`)
	})
	for _, args := range [][]string{
		{"list", "-o", "name"}, {"list", "-o", "yaml"}, {"list", "app", "-o", "name"}, {"list", "-o", "jsonpath={.items[*].metadata.name}"},
		{"create", "app", "--image", "registry.example/app"}, {"describe", "app"}, {"version"}, {"--help"},
	} {
		streams, _, _, errOut := genericiooptions.NewTestIOStreams()
		streams.Out = full{}
		if code := Main(t.Context(), append(args, "-s", url, "-n", "team"), streams); code != ExitLocal || !strings.Contains(errOut.String(), "the disk is full") {
			t.Errorf("%v ends with %d: %s", args, code, errOut)
		}
	}
}

// Each command says what it does, with an example that names it.
func TestHelp(t *testing.T) {
	root := newSession(genericiooptions.NewTestIOStreamsDiscard()).command()
	seen := map[string]bool{}
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		seen[c.Name()] = true
		t.Run(c.Name(), func(t *testing.T) { checkHelp(t, c) })
	}
	for name := range strings.FieldsSeq("create list describe wait pull push ls tree cat diff history retry refresh verify logs doctor version") {
		if !seen[name] {
			t.Errorf("there is no command %s", name)
		}
	}
}

func checkHelp(t *testing.T, c *cobra.Command) {
	if c.Short == "" || !strings.Contains(c.Example, program+" "+c.Name()) {
		t.Errorf("it has no line that says what it does, or no example: %q", c.Example)
	}
	if c.Args == nil || c.ValidArgsFunction == nil {
		t.Error("it does not check its arguments, or does not complete them")
	}
	stdout, stderr, code := run(t, c.Name(), "--help")
	if code != ExitOK || stderr != "" || !strings.Contains(stdout, "Examples:") || !strings.Contains(stdout, "Usage:\n  kubectl bundle "+c.Name()) {
		t.Errorf("--help ends with %d:\n%s%s", code, stdout, stderr)
	}
}

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		text string
	}{
		{"an unknown command", []string{"fetch"}, `unknown command "fetch"`},
		{"an unknown flag", []string{"list", "--none"}, "unknown flag: --none"},
		{"too many arguments", []string{"wait", "a", "b"}, "accepts 1 arg(s), received 2"},
		{"no source", []string{"create", "app"}, "one of --image, --from and --upload"},
		{"two sources", []string{"create", "app", "--image", "x", "--upload"}, "and not 2 of them"},
		{"a source that does not fit", []string{"create", "app", "--upload", "--path", "/x"}, "are for --image"},
		{"a path for a name", []string{"wait", "a/b"}, `"a/b" is no name of a bundle`},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, stderr, code := run(t, test.args...)
			if code != ExitUsage || stdout != "" || !strings.HasPrefix(stderr, "error: ") || !strings.Contains(stderr, test.text) {
				t.Errorf("it ends with %d:\n%s%s", code, stdout, stderr)
			}
		})
	}
}
