// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"rukpak.io/apiserver/pkg/panics"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/tarball"
)

// TestPackGivesTheMergedTree compares the archive of an image with that of a
// folder that holds what a container runtime would show.
func TestPackGivesTheMergedTree(t *testing.T) {
	long := strings.Repeat("n", 120)
	tests := []struct {
		name   string
		layers [][]item
		path   string
		want   []item
	}{
		{
			name:   "one layer, directories implied",
			layers: [][]item{{file0644("manifests/a.yaml", "a"), file0644("./b", "b"), file0644("/c", "c")}},
			want:   []item{directory("manifests"), file0644("manifests/a.yaml", "a"), file0644("b", "b"), file0644("c", "c")},
		},
		{
			name: "the higher layer wins, and an implied directory keeps its mode",
			layers: [][]item{
				{item{tar.TypeDir, "d", "", 0o700}, file0644("d/a", "old"), file0644("d/b", "kept")},
				{file0644("d/a", "new and longer")},
			},
			want: []item{{tar.TypeDir, "d", "", 0o700}, file0644("d/a", "new and longer"), file0644("d/b", "kept")},
		},
		{
			name: "a directory described again changes its mode and keeps its files",
			layers: [][]item{
				{directory("d"), file0644("d/a", "a")},
				{item{tar.TypeDir, "d/", "", 0o1711}},
			},
			want: []item{{tar.TypeDir, "d", "", 0o711}, file0644("d/a", "a")},
		},
		{
			name: "whiteouts of a file and of a directory",
			layers: [][]item{
				{file0644("a", "a"), file0644("d/x", "x"), file0644("d/y/z", "z"), file0644("k", "k")},
				{whiteout(".wh.a"), whiteout(".wh.d")},
			},
			want: []item{file0644("k", "k")},
		},
		{
			name: "a whiteout of what is not there",
			layers: [][]item{
				{file0644("k", "k")},
				{whiteout("d/.wh.nothing")},
			},
			want: []item{directory("d"), file0644("k", "k")},
		},
		{
			name: "a whiteout hides lower layers only, wherever it stands",
			layers: [][]item{
				{file0644("d/old", "old")},
				{directory("d"), file0644("d/new", "new"), whiteout(".wh.d")},
			},
			want: []item{directory("d"), file0644("d/new", "new")},
		},
		{
			name: "an opaque directory, marked before and after its files",
			layers: [][]item{
				{file0644("d/old", "old"), file0644("d/s/old", "old"), file0644("e/old", "old")},
				{whiteout("d/.wh..wh..opq"), file0644("d/s/new", "new"), file0644("e/new", "new"), whiteout("e/.wh..wh..opq")},
			},
			want: []item{
				directory("d"), directory("d/s"), file0644("d/s/new", "new"),
				directory("e"), file0644("e/new", "new"),
			},
		},
		{
			name: "what was hidden comes back in a higher layer",
			layers: [][]item{
				{file0644("d/a", "1"), file0644("d/b", "1")},
				{whiteout(".wh.d")},
				{file0644("d/b", "3")},
			},
			want: []item{directory("d"), file0644("d/b", "3")},
		},
		{
			name: "a file over a directory, a directory over a file and over a link",
			layers: [][]item{
				{file0644("d/a", "a"), file0644("f", "f"), symlink("l", "d")},
				{file0644("d", "now a file"), file0644("f/x", "x"), file0644("l/y", "y")},
			},
			want: []item{
				file0644("d", "now a file"), directory("f"), file0644("f/x", "x"), directory("l"), file0644("l/y", "y"),
			},
		},
		{
			name:   "the later of two entries in one layer wins",
			layers: [][]item{{file0644("a", "first"), file0644("a", "second"), file0644("b", "b"), symlink("b", "a")}},
			want:   []item{file0644("a", "second"), symlink("b", "a")},
		},
		{
			name: "hard links over layers keep what their target was",
			layers: [][]item{
				{file0644("a", "one"), symlink("s", "a")},
				{hardlink("b", "a"), hardlink("c", "/b"), hardlink("t", "s")},
				{file0644("a", "changed"), whiteout(".wh.b")},
			},
			want: []item{
				file0644("a", "changed"), file0644("c", "one"), symlink("s", "a"), symlink("t", "a"),
			},
		},
		{
			name: "a path is selected, with a hard link out of it",
			layers: [][]item{
				{file0644("shared/x", "x"), file0644("m/d/a", "a")},
				{hardlink("m/d/x", "shared/x"), hardlink("m/y", "shared/x"), file0644("other", "other")},
			},
			path: "/m/d/",
			want: []item{file0644("a", "a"), file0644("x", "x")},
		},
		{
			name: "what AUFS left is passed over",
			layers: [][]item{
				{whiteout(".wh..wh.plnk/5.6"), whiteout(".wh..wh.aufs"), file0644("a", "a")},
			},
			want: []item{file0644("a", "a")},
		},
		{
			name:   "modes without setuid, long and strange names",
			layers: [][]item{{item{tar.TypeReg, long + "/" + long, "x", 0o4711}, file0644("caf\xe9 \n", "latin-1")}},
			want:   []item{directory(long), {tar.TypeReg, long + "/" + long, "x", 0o711}, file0644("caf\xe9 \n", "latin-1")},
		},
	}
	host := serve(t, nil)
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var layers []v1.Layer
			for _, items := range test.layers {
				layers = append(layers, layerOf(t, items...))
			}
			resolved := push(t, host+"/merge:"+string(rune('a'+i)), imageOf(t, layers...))

			var packed bytes.Buffer
			want, err := tarball.Pack(t.Context(), &packed, disk(t, test.want...), "", tarball.Limits{})
			must(t, err)
			var pulled bytes.Buffer
			got, err := New().Pack(t.Context(), resolved, platform.Platform{}, test.path, &pulled, tarball.Limits{}, t.TempDir())
			must(t, err)
			if got != want {
				t.Errorf("got %s\n%s\nwant %s\n%s", got.UncompressedDigest, list(t, pulled.Bytes()), want.UncompressedDigest, list(t, packed.Bytes()))
			}
		})
	}
}

func list(t *testing.T, archive []byte) string {
	t.Helper()
	var b strings.Builder
	_, err := tarball.Verify(t.Context(), bytes.NewReader(archive), tarball.Limits{}, lister(&b))
	must(t, err)
	return b.String()
}

func TestPackReadsEveryCompression(t *testing.T) {
	raw := tarOf(t, file0644("a", "a"))
	host := serve(t, nil)
	var want string
	for _, test := range []struct {
		name      string
		raw       []byte
		mediaType types.MediaType
	}{
		{"none", raw, types.OCIUncompressedLayer},
		{"gzip", gzipped(t, raw), types.OCILayer},
		{"gzip-docker", gzipped(t, raw), types.DockerLayer},
		{"zstd", zstded(t, raw), types.OCILayerZStd},
		{"zstd-called-gzip", zstded(t, raw), types.OCILayer},
	} {
		t.Run(test.name, func(t *testing.T) {
			resolved := push(t, host+"/c:"+test.name, imageOf(t, staticLayer(test.raw, test.mediaType)))
			got, err := New().Pack(t.Context(), resolved, platform.Platform{}, "", discard{}, tarball.Limits{}, t.TempDir())
			must(t, err)
			if want == "" {
				want = got.UncompressedDigest
			}
			if got.UncompressedDigest != want || got.Files != 1 {
				t.Errorf("got %+v, want the digest %s", got, want)
			}
		})
	}
}

func TestPackRefuses(t *testing.T) {
	fifo := item{tar.TypeFifo, "d/pipe", "", 0o644}
	tests := []struct {
		name   string
		layers [][]item
		path   string
		entry  string
		reason string
	}{
		{"a name that climbs", [][]item{{file0644("d/../../x", "")}}, "", "d/../../x", `".."`},
		{"a link that leaves", [][]item{{symlink("d/l", "../../x")}}, "", "d/l", "leaves the root"},
		{"an absolute link", [][]item{{symlink("l", "/etc/passwd")}}, "", "l", "absolute"},
		{"a FIFO", [][]item{{fifo}}, "", "d/pipe", "FIFO"},
		{"a device", [][]item{{item{tar.TypeChar, "null", "", 0o666}}}, "", "null", "device"},
		{"a hard link to nothing", [][]item{{hardlink("h", "nothing")}}, "", "h", "does not exist"},
		{"a hard link to a hidden file", [][]item{{file0644("a", "")}, {whiteout(".wh.a")}, {hardlink("h", "a")}}, "", "h", "does not exist"},
		{"a hard link to a directory", [][]item{{directory("d"), hardlink("h", "d")}}, "", "h", "a directory"},
		{"a hard link that leaves", [][]item{{hardlink("h", "../x")}}, "", "h", "no path inside"},
		{"an entry through a link of its layer", [][]item{{symlink("l", "d"), file0644("l/x", "")}}, "", "l/x", "not a directory"},
		{"a whiteout without a name", [][]item{{whiteout("d/.wh.")}}, "", "d/.wh.", "without a name"},
		{"an unknown type", [][]item{{item{'V', "v", "", 0}}}, "", "v", "unknown type"},
		{"a path that is not there", [][]item{{file0644("a", "")}}, "d/e", "d/e", "no such directory"},
		{"a path that is a file", [][]item{{file0644("a", "")}}, "a", "a", "not a directory"},
		{"a path through a link", [][]item{{directory("d/e"), symlink("l", "d")}}, "l/e", "l/e", "symbolic link"},
		{"a path that climbs", [][]item{{file0644("a", "")}}, "../a", "../a", `".."`},
	}
	host := serve(t, nil)
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var layers []v1.Layer
			for _, items := range test.layers {
				layers = append(layers, layerOf(t, items...))
			}
			resolved := push(t, host+"/refuse:"+string(rune('a'+i)), imageOf(t, layers...))
			_, err := New().Pack(t.Context(), resolved, platform.Platform{}, test.path, discard{}, tarball.Limits{}, t.TempDir())
			refused, ok := errors.AsType[*tarball.EntryError](err)
			if !ok || refused.Entry != test.entry || !strings.Contains(refused.Reason, test.reason) {
				t.Errorf("got %v, want entry %q refused since %q", err, test.entry, test.reason)
			}
		})
	}
}

func TestPackSaysThatAPathDoesNotExist(t *testing.T) {
	resolved := push(t, serve(t, nil)+"/app:v1", imageOf(t, layerOf(t, file0644("a", ""))))
	_, err := New().Pack(t.Context(), resolved, platform.Platform{}, "manifests", discard{}, tarball.Limits{}, t.TempDir())
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
}

// TestRefusedEntriesOutsideThePathDoNotMatter lets manifests be taken out of an
// image of an operating system, which is full of absolute links and devices.
func TestRefusedEntriesOutsideThePathDoNotMatter(t *testing.T) {
	resolved := push(t, serve(t, nil)+"/os:v1", imageOf(t, layerOf(t,
		symlink("etc/mtab", "/proc/mounts"), item{tar.TypeChar, "dev/null", "", 0o666}, file0644("m/a", "a"))))
	got, err := New().Pack(t.Context(), resolved, platform.Platform{}, "m", discard{}, tarball.Limits{Files: 1}, t.TempDir())
	must(t, err)
	if got.Files != 1 {
		t.Errorf("got %d files, want 1", got.Files)
	}
}

func TestPackHoldsLimits(t *testing.T) {
	big := file0644("big", strings.Repeat("0123456789abcdef", 4096))
	img := imageOf(t, layerOf(t, file0644("m/a", "a")), layerOf(t, big, file0644("b", ""), file0644("c", ""), file0644("d", ""), file0644("e", "")))
	resolved := push(t, serve(t, nil)+"/app:v1", img)
	tests := []struct {
		name   string
		puller *Puller
		path   string
		limits tarball.Limits
		want   string
	}{
		{"files of the archive", New(), "", tarball.Limits{Files: 5}, tarball.LimitFiles},
		{"bytes of the archive", New(), "", tarball.Limits{Bytes: 64 << 10}, tarball.LimitBytes},
		{"compressed bytes of the archive", New(), "", tarball.Limits{CompressedBytes: 100}, tarball.LimitCompressedBytes},
		{"files of the image", strict(), "m", tarball.Limits{Files: 1}, tarball.LimitFiles},
		{"bytes of the image", strict(), "m", tarball.Limits{Bytes: 16 << 10}, tarball.LimitBytes},
		{"compressed bytes of the image", strict(), "m", tarball.Limits{CompressedBytes: 100}, tarball.LimitCompressedBytes},
		{"none: a small path of a large image", New(), "m", tarball.Limits{CompressedBytes: 500, Bytes: 8 << 10, Files: 1}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.puller.Pack(t.Context(), resolved, platform.Platform{}, test.path, discard{}, test.limits, t.TempDir())
			limit, ok := errors.AsType[*tarball.LimitError](err)
			if test.want == "" && err != nil || test.want != "" && (!ok || limit.Limit != test.want) {
				t.Errorf("got %v, want the limit %q", err, test.want)
			}
		})
	}
}

// TestImageWithoutFiles is refused as it is where a node mounts it: what a runtime does not unpack looks the same.
func TestImageWithoutFiles(t *testing.T) {
	host := serve(t, nil)
	for name, img := range map[string]v1.Image{"nothing in its layer": imageOf(t, layerOf(t)), "no layers": imageOf(t)} {
		resolved := push(t, host+"/empty:v1", img)
		if _, err := New().Pack(t.Context(), resolved, platform.Platform{}, "", discard{}, tarball.Limits{}, t.TempDir()); !errors.Is(err, ErrEmpty) {
			t.Errorf("%s: got %v, want ErrEmpty", name, err)
		}
	}
}

// brokenFile panics when it is read.
type brokenFile struct{}

func (brokenFile) ReadAt([]byte, int64) (int, error) { panic("a fault") }

// A panic over the layers of an image, which are somebody else's bytes, is the error of that image.
func TestPackPanics(t *testing.T) {
	s := selection{layers: []layer{{file: brokenFile{}, size: 1}}, root: &node{kind: tar.TypeDir, children: map[string]*node{
		"a": {kind: tar.TypeReg, content: &content{}},
	}}}
	_, err := s.pack(t.Context(), io.Discard, tarball.Options{Scratch: t.TempDir()})
	if _, ok := errors.AsType[*panics.Error](err); !ok {
		t.Error(err)
	}
}
