// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// oddImage is an image with something in it that not every image has, and what becomes of it.
type oddImage struct {
	name   string
	layers []v1.Layer
	// want is the content, in the words of describe, sorted.
	want []string
	// reason, where the content is refused, and words of the message.
	reason string
	words  []string
}

// oddImages follow docs/format.md from rule to rule.
func (s *scope) oddImages() []oddImage {
	s.Helper()
	one := func(entries ...entry) []v1.Layer { return []v1.Layer{s.layer(zipped, s.tarOf(entries...))} }
	deepDirs, deepWant := nested(98, strings.Repeat("d", 38))
	deep := strings.TrimSuffix(deepDirs[len(deepDirs)-1].Name, "/")
	long := strings.Repeat("ü", 127)
	return []oddImage{
		{
			name: "attributes",
			layers: one(
				dir("sticky", perm(0o1777)),
				file("sticky/setuid", "s", perm(0o4755)),
				file("setgid", "g", perm(0o2755)),
				file("owned", "o", func(h *tar.Header) {
					h.Uid, h.Gid, h.Uname, h.ModTime = 1<<21+1, 1<<21+1, "somebody", time.Unix(1700000000, 5)
					h.Format = tar.FormatPAX
				}),
				file("xattr", "x", record("SCHILY.xattr.user.comment", "a comment")),
				file("records", "r", record("comment", "a comment"), record("VENDOR.key", "value")),
			),
			want: []string{
				aDir("sticky", 0o777), aFile("sticky/setuid", 0o755, "s"), aFile("setgid", 0o755, "g"), aFile("owned", 0o644, "o"),
				aFile("xattr", 0o644, "x"), aFile("records", 0o644, "r"),
			},
		},
		{
			name: "hard-links",
			layers: []v1.Layer{
				s.layer(zipped, s.tarOf(dir("d"), file("d/one", "same", perm(0o755)), hardlink("two", "d/one", 0o755), hardlink("three", "/two", 0o755))),
				s.layer(zipped, s.tarOf(dir("d"), file("d/one", "same", perm(0o755)), hardlink("four", "d/one", 0o755))),
			},
			want: []string{
				aDir("d", 0o755), aFile("d/one", 0o755, "same"), aFile("two", 0o755, "same"), aFile("three", 0o755, "same"), aFile("four", 0o755, "same"),
			},
		},
		{
			name: "links-inside",
			layers: one(dir("a"), dir("a/b"), file("a/file", "f"), symlink("a/beside", "file"), symlink("a/b/up", "../file"), symlink("a/b/top", "../.."),
				symlink("chain", "a/beside"), symlink("dangling", "nowhere/at/all"), symlink("self", "self"), symlink("there", "back"), symlink("back", "there")),
			want: []string{
				aDir("a", 0o755), aDir("a/b", 0o755), aFile("a/file", 0o644, "f"), aLink("a/beside", "file"), aLink("a/b/up", "../file"), aLink("a/b/top", "../.."),
				aLink("chain", "a/beside"), aLink("dangling", "nowhere/at/all"), aLink("self", "self"), aLink("there", "back"), aLink("back", "there"),
			},
		},
		{name: "link-absolute", layers: one(file("fine", "f"), symlink("bad", "/etc/passwd")), reason: contract.ReasonContentRefused, words: []string{`"bad"`, "absolute"}},
		{name: "link-outside", layers: one(dir("d"), symlink("d/bad", "../../secret")), reason: contract.ReasonContentRefused, words: []string{`"d/bad"`, ".."}},
		{name: "link-crooked", layers: one(dir("d"), symlink("bad", "d/../d")), reason: contract.ReasonContentRefused, words: []string{`"bad"`, ".."}},
		{name: "device-char", layers: one(special(tar.TypeChar, "null")), reason: contract.ReasonContentRefused, words: []string{`"null"`, "device"}},
		{name: "device-block", layers: one(dir("dev"), special(tar.TypeBlock, "dev/disk")), reason: contract.ReasonContentRefused, words: []string{`"dev/disk"`, "device"}},
		{name: "fifo", layers: one(special(tar.TypeFifo, "pipe")), reason: contract.ReasonContentRefused, words: []string{`"pipe"`, "FIFO"}},
		{
			name:   "sparse",
			layers: []v1.Layer{s.layer(zipped, s.sparse("holes", 300_000, 200_000, "text"))},
			want:   []string{aFile("holes", 0o644, strings.Repeat("\x00", 200_000)+"text"+strings.Repeat("\x00", 99_996))},
		},
		{
			name: "whiteouts",
			layers: []v1.Layer{
				s.layer(zipped, s.tarOf(file("gone", "1"), file("kept", "1"), dir("dir"), file("dir/gone", "1"), dir("opaque"), file("opaque/old", "1"), dir("opaque/sub"), file("opaque/sub/old", "1"), file("becomes-dir", "1"), dir("becomes-file"), file("becomes-file/old", "1"))),
				s.layer(zipped, s.tarOf(file(".wh.gone", ""), file(".wh.dir", ""), dir("opaque"), file("opaque/.wh..wh..opq", ""), file("opaque/new", "2"), file(".wh.becomes-dir", ""), file(".wh.becomes-file", ""))),
				s.layer(zipped, s.tarOf(dir("becomes-dir"), file("becomes-dir/new", "3"), file("becomes-file", "3"), dir("dir"), file("dir/back", "3"))),
			},
			want: []string{
				aFile("kept", 0o644, "1"), aDir("opaque", 0o755), aFile("opaque/new", 0o644, "2"), aDir("becomes-dir", 0o755), aFile("becomes-dir/new", 0o644, "3"),
				aFile("becomes-file", 0o644, "3"), aDir("dir", 0o755), aFile("dir/back", 0o644, "3"),
			},
		},
		{
			name: "compressions",
			layers: []v1.Layer{
				s.layer(plain, s.tarOf(file("plain", "1"), file("changed", "1"))),
				s.layer(zstded, s.tarOf(file("zstd", "2"), file("changed", "2"))),
				s.layer(zipped, s.tarOf(file("gzip", "3"))),
			},
			want: []string{aFile("plain", 0o644, "1"), aFile("changed", 0o644, "2"), aFile("zstd", 0o644, "2"), aFile("gzip", 0o644, "3")},
		},
		{name: "no-layers", reason: v1alpha1.ReasonImageEmpty, words: []string{"not one file"}},
		{name: "deep", layers: one(append(slices.Clone(deepDirs), file(deep+"/"+"leaf", "l"))...), want: append(slices.Clone(deepWant), aFile(deep+"/leaf", 0o644, "l"))},
		{
			name: "too-deep",
			layers: func() []v1.Layer {
				dirs, _ := nested(101, "d")
				return one(dirs...)
			}(),
			reason: contract.ReasonLimitExceeded, words: []string{"100 components"},
		},
		{
			name: "names",
			layers: one(file("e\u0301", "decomposed"), file("\u00e9", "composed"), file("\U0001F4E6", "emoji"), file("\u202Egpj.exe", "right to left"),
				file("line\nbreak", "n"), file("tab\tand\\", "t"), file("-rf", "dash"), file("...", "dots"), file(" ", "space"), file("a:b*c?", "shell"), file(long, "long"),
				file("not\xff\xfeutf8", "bytes", func(h *tar.Header) { h.Format = tar.FormatGNU })),
			want: []string{
				aFile("e\u0301", 0o644, "decomposed"), aFile("\u00e9", 0o644, "composed"), aFile("\U0001F4E6", 0o644, "emoji"), aFile("\u202Egpj.exe", 0o644, "right to left"),
				aFile("line\nbreak", 0o644, "n"), aFile("tab\tand\\", 0o644, "t"), aFile("-rf", 0o644, "dash"), aFile("...", 0o644, "dots"), aFile(" ", 0o644, "space"),
				aFile("a:b*c?", 0o644, "shell"), aFile(long, 0o644, "long"), aFile("not\xff\xfeutf8", 0o644, "bytes"),
			},
		},
	}
}

// nested are as many directories inside each other.
func nested(count int, name string) (dirs []entry, want []string) {
	path := ""
	for i := range count {
		path = strings.TrimPrefix(path+"/"+name, "/")
		if i == count-1 {
			path = strings.TrimSuffix(path, name) + "last"
		}
		dirs, want = append(dirs, dir(path)), append(want, aDir(path, 0o755))
	}
	return dirs, want
}

// TestOddImages unpacks what not every image has, through the node's container runtime and by the server
// itself: both give what docs/format.md says, bit for bit, or refuse it in the same words.
func TestOddImages(t *testing.T) {
	t.Parallel()
	s := begin(t)
	alone := s.standalone()
	images := s.oddImages()
	for _, image := range images {
		digest, _ := s.pushImage(nodeRegistry, image.name, s.layered(v1.Config{}, image.layers...))
		s.bundle(image.name, "raw", digest)
		alone.bundle(image.name, "raw", digest)
	}
	for _, image := range images {
		t.Run(image.name, func(t *testing.T) {
			image.check(s.in(t))
			image.check(alone.in(t))
		})
	}
}

func (o oddImage) check(s *scope) {
	s.Helper()
	if o.reason != "" {
		b := s.says(o.name, metav1.ConditionFalse, o.reason, o.words...)
		if b.Status.Content != nil {
			s.Errorf("mode %s: there is content", b.Status.Unpack.Mode)
		}
		return
	}
	b := s.unpacked(o.name)
	data, err := s.read(o.name, b.Status.Content.Digest)
	s.must(err)
	got, err := describe(data)
	s.must(err)
	want := slices.Sorted(slices.Values(o.want))
	if !slices.Equal(got, want) {
		s.Errorf("mode %s: got\n%s\nwant\n%s", b.Status.Unpack.Mode, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestUnreadableFiles names the file and the remedy, which helps.
func TestUnreadableFiles(t *testing.T) {
	t.Parallel()
	s := begin(t)
	owned := func(h *tar.Header) { h.Uid, h.Gid, h.Mode = 1234, 1234, 0o400 }
	digest, _ := s.pushImage(nodeRegistry, "v1", s.layered(v1.Config{}, s.layer(zipped, s.tarOf(file("open", "o"), dir("private", func(h *tar.Header) { h.Uid, h.Mode = 1234, 0o700 }), file("private/file", "secret", owned)))))
	class := s.impatient("user", func(c *v1alpha1.ProvisionerClass) { c.Provisioner = v1alpha1.ProvisionerRaw })
	s.bundle("app", class, digest)
	s.says("app", metav1.ConditionFalse, contract.ReasonContentUnreadable, `"private"`, "user 65532", "runAsUser")
	s.updateClass(class, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack.PodTemplate = &v1alpha1.UnpackPodTemplate{RunAsUser: ptr.To[int64](1234)}
	})
	b := s.unpacked("app")
	data, err := s.read("app", b.Status.Content.Digest)
	s.must(err)
	got, err := describe(data)
	s.must(err)
	if want := []string{aFile("open", 0o644, "o"), aDir("private", 0o700), aFile("private/file", 0o400, "secret")}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestManyFiles unpacks as many empty files as the limits of a class are by default, 100,000, where
// RUKPAK_MANY_FILES says so, and a tenth of that otherwise; and one more than the class allows.
func TestManyFiles(t *testing.T) {
	t.Parallel()
	s := begin(t)
	count := 10_000
	if text := os.Getenv("RUKPAK_MANY_FILES"); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		s.must(err)
	}
	entries := make([]entry, 0, count+count/100)
	for i := range count {
		if i%100 == 0 {
			entries = append(entries, dir(fmt.Sprintf("d%04d", i/100)))
		}
		entries = append(entries, file(fmt.Sprintf("d%04d/f%02d", i/100, i%100), ""))
	}
	digest, _ := s.pushImage(nodeRegistry, "v1", s.layered(v1.Config{}, s.layer(zipped, s.tarOf(entries...))))
	class := func(suffix string, files int) string {
		return s.class(suffix, v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
			c.Limits = &v1alpha1.ContentLimits{Files: ptr.To(int64(files))}
		})
	}
	s.bundle("fits", class("fits", count), digest)
	s.bundle("exceeds", class("exceeds", count-1), digest)
	alone := s.standalone()
	alone.bundle("fits", "raw", digest)
	b, direct := s.unpacked("fits"), alone.unpacked("fits")
	if got := b.Status.Content; got.Files != int64(count) || got.UncompressedDigest != direct.Status.Content.UncompressedDigest {
		t.Errorf("content is %+v, by the server itself %+v", got, direct.Status.Content)
	}
	s.stalled("exceeds", contract.ReasonLimitExceeded, "files", strconv.Itoa(count-1))
	t.Logf("%d files: %s from creation to commit", count, b.Status.Content.UpdateTime.Sub(b.CreationTimestamp.Time))
}
