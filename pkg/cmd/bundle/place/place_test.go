// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree makes files, by their paths, each with a text.
func tree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// expect compares the files below a folder, each as PATH=TEXT.
func expect(t *testing.T, dir string, want ...string) {
	t.Helper()
	got := []string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, relErr := filepath.Rel(dir, path)
		got = append(got, name+"="+string(text))
		return errors.Join(err, relErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("there is %q, not %q", got, want)
	}
}

// opened opens a place and makes the new file "a" for it.
func opened(t *testing.T, path string, replace bool) *Place {
	t.Helper()
	p, err := Open(path, Options{Replace: replace, Healed: func(text string) { t.Log(text) }})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := p.Fresh()
	if err != nil {
		t.Fatal(err)
	}
	tree(t, dir, map[string]string{"a": "new"})
	return p
}

func put(t *testing.T, p *Place) {
	t.Helper()
	if err := errors.Join(p.Put(), p.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestPut(t *testing.T) {
	for _, test := range []struct {
		name    string
		before  map[string]string
		replace bool
	}{
		{"not there", nil, false},
		{"empty", map[string]string{}, false},
		{"replaced", map[string]string{"x/a": "old", "x/b": "old"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			tree(t, dir, test.before)
			if test.before != nil {
				if err := os.MkdirAll(filepath.Join(dir, "x"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			put(t, opened(t, filepath.Join(dir, "x"), test.replace))
			expect(t, dir, "x/a=new")
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("%v is there, %v", left, err)
			}
			if left, err := os.ReadDir(filepath.Join(dir, "x")); err != nil || len(left) != 1 {
				t.Errorf("%v is there, %v", left, err)
			}
		})
	}
}

// What comes to be there since Open is nobody's to move or to delete.
func TestWhatArrivesStays(t *testing.T) {
	for _, test := range []struct {
		name    string
		empty   bool // the folder is there
		arrives map[string]string
		want    []string
		err     error
	}{
		{"into an empty folder", true, map[string]string{"x/notes": "mine"}, []string{"x/notes=mine"}, ErrArrived},
		{"into an empty folder, by the same name", true, map[string]string{"x/a": "mine"}, []string{"x/a=mine"}, ErrArrived},
		{"a folder", false, map[string]string{"x/a": "mine"}, []string{"x/a=mine"}, ErrArrived},
		{"a file", false, map[string]string{"x": "mine"}, []string{"x=mine"}, ErrArrived},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, path := target(t, test.empty)
			p := opened(t, path, false)
			tree(t, dir, test.arrives)
			if err := p.Put(); !errors.Is(err, test.err) {
				t.Errorf("it says %v", err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			expect(t, dir, test.want...)
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{
		"full/a": "mine", "file": "mine",
		"theirs/.kubectl-bundle-pull/settings": "mine", "like/.kubectl-bundle-pull/new/a": "mine", ".for.kubectl-bundle-pull/old/a": "mine",
	})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("nothing", link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		"/": ErrRoot, "full": ErrNotEmpty, "theirs": ErrForeign, "like": ErrForeign, "for": ErrForeign, link: fs.ErrNotExist,
	} {
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if _, err := Open(path, Options{}); !errors.Is(err, want) {
			t.Errorf("of %s it says %v, not %v", path, err, want)
		}
	}
	if _, err := Open(filepath.Join(dir, "file"), Options{Replace: true}); err == nil {
		t.Error("a file is taken for a folder")
	}
	expect(t, dir, "full/a=mine", "file=mine", "theirs/.kubectl-bundle-pull/settings=mine", "like/.kubectl-bundle-pull/new/a=mine", ".for.kubectl-bundle-pull/old/a=mine")
}

// Two do not write to the same folder, and the second takes nothing from the first.
func TestOneAtATime(t *testing.T) {
	for _, empty := range []bool{false, true} {
		dir := t.TempDir()
		path := filepath.Join(dir, "x")
		if empty {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		first := opened(t, path, false)
		for _, replace := range []bool{false, true} {
			if _, err := Open(path, Options{Replace: replace}); !errors.Is(err, ErrBusy) {
				t.Errorf("the second says %v", err)
			}
		}
		other := opened(t, filepath.Join(dir, "y"), false)
		put(t, other)
		put(t, first)
		expect(t, dir, "x/a=new", "y/a=new")
	}
}

// target is a path in a folder of its own, where nothing is, or an empty folder.
func target(t *testing.T, empty bool) (dir, path string) {
	t.Helper()
	dir = t.TempDir()
	path = filepath.Join(dir, "x")
	if empty {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir, path
}

// A name of its own and one that is taken are refused before anything is moved.
func TestNamesThatCannotCome(t *testing.T) {
	for _, test := range []struct {
		name  string
		empty bool
	}{{"new", false}, {"filled", true}} {
		t.Run(test.name, func(t *testing.T) {
			dir, path := target(t, test.empty)
			p := opened(t, path, true)
			fresh := p.work.at(newName)
			if p.name != "" {
				fresh = filepath.Join(fresh, p.name)
			}
			tree(t, fresh, map[string]string{workName + "/b": "new"})
			if err := p.Put(); !errors.Is(err, ErrReserved) {
				t.Errorf("it says %v", err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			expect(t, dir)
		})
	}
}

// inPlace is a place whose folder has files and stays, as that where something is mounted.
func inPlace(t *testing.T, dir string, come map[string]string) *Place {
	t.Helper()
	w, err := openWork(filepath.Join(dir, workName), dir)
	if err != nil {
		t.Fatal(err)
	}
	tree(t, w.at(newName), come)
	return &Place{Options: Options{Replace: true}, path: dir, work: w, all: []*work{w}}
}

// Entries are replaced one by one where the folder stays, and what fails is undone.
func TestChange(t *testing.T) {
	t.Run("it is replaced", func(t *testing.T) {
		dir := t.TempDir()
		tree(t, dir, map[string]string{"old": "old", "same": "old", "d/a": "old"})
		put(t, inPlace(t, dir, map[string]string{"same": "new", "d/b": "new"}))
		expect(t, dir, "d/b=new", "same=new")
	})
	t.Run("it is undone", func(t *testing.T) {
		dir := t.TempDir()
		tree(t, dir, map[string]string{"old": "old", "same": "old"})
		p := inPlace(t, dir, map[string]string{"same": "new", "t": "new"})
		// It came after the look.
		tree(t, dir, map[string]string{"t": "mine"})
		if err := p.work.change([]string{"old", "same"}, []string{"same", "t"}); !errors.Is(err, fs.ErrExist) {
			t.Errorf("it says %v", err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		expect(t, dir, "old=old", "same=old", "t=mine")
	})
	t.Run("it cannot be undone", func(t *testing.T) {
		dir := t.TempDir()
		tree(t, dir, map[string]string{"same": "old"})
		p := inPlace(t, dir, map[string]string{"same": "new"})
		// What was moved away has no way back.
		out := moves([]string{"same"}, dir, p.work.at(oldName))
		if err := os.Mkdir(p.work.at(oldName), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := all(out); err != nil {
			t.Fatal(err)
		}
		tree(t, dir, map[string]string{"same": "mine"})
		why := errors.New("why")
		err := p.work.undone(why, nil, out)
		kept, ok := errors.AsType[*KeptError](err)
		if !ok || !errors.Is(err, why) || !strings.Contains(err.Error(), kept.Dir) {
			t.Fatalf("it says %v", err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if text, err := os.ReadFile(filepath.Join(kept.Dir, oldName, "same")); string(text) != "old" {
			t.Errorf("what was there is %q, %v", text, err)
		}
	})
}

// What a crash has left is brought to an end, or named.
func TestHeal(t *testing.T) {
	beside, inside := ".x"+workName+"/", "x/"+workName+"/"
	for _, test := range []struct {
		name string
		left map[string]string
		want []string
		err  error // of Open
		kept bool
	}{
		{"new files", map[string]string{beside + "lock": "", beside + "new/x/a": "new"}, nil, nil, false},
		{"an archive", map[string]string{beside + "archive.sha256-" + strings.Repeat("0", 64) + ".part": "part"},
			[]string{beside + "archive.sha256-" + strings.Repeat("0", 64) + ".part=part"}, nil, false},
		{"the folder is away", map[string]string{beside + "lock": "", beside + "old/x/a": "old", beside + "new/x/a": "new"}, []string{"x/a=old"}, ErrNotEmpty, false},
		{"the folder is away, and another there", map[string]string{beside + "lock": "", beside + "old/x/a": "old", beside + "new/x/a": "new", "x/b": "mine"},
			[]string{beside + "lock=", beside + "old/x/a=old", beside + "new/x/a=new", "x/b=mine"}, nil, true},
		{"all is away", map[string]string{inside + "lock": "", inside + "old/a": "old", inside + "old/d/b": "old", inside + "new/a": "new"}, []string{"x/a=old", "x/d/b=old"}, ErrNotEmpty, false},
		{"some is away", map[string]string{inside + "lock": "", inside + "old/a": "old", "x/b": "old", inside + "new/a": "new"}, []string{"x/a=old", "x/b=old"}, ErrNotEmpty, false},
		{"some is in place", map[string]string{inside + "lock": "", inside + "replaced/a": "old", "x/b": "new", inside + "new/a": "new"}, []string{"x/a=new", "x/b=new"}, ErrNotEmpty, false},
		{"some is in place, and something else", map[string]string{inside + "lock": "", inside + "replaced/a": "old", "x/a": "mine", inside + "new/a": "new"},
			[]string{inside + "lock=", inside + "replaced/a=old", "x/a=mine", inside + "new/a=new"}, nil, true},
		{"some is in place, and the archive", map[string]string{inside + "lock": "", inside + "replaced/a": "old", inside + "new/a": "new", inside + "archive.sha256-" + strings.Repeat("0", 64) + ".part": "part"},
			[]string{"x/a=new"}, ErrNotEmpty, false},
		{"all is in place", map[string]string{inside + "lock": "", inside + "replaced/a": "old", "x/a": "new"}, []string{"x/a=new"}, ErrNotEmpty, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			tree(t, dir, test.left)
			for _, work := range []string{beside, inside} {
				if err := os.Chmod(filepath.Join(dir, work), 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
			}
			said := ""
			p, err := Open(filepath.Join(dir, "x"), Options{Healed: func(text string) { said = text }})
			if _, kept := errors.AsType[*KeptError](err); kept != test.kept || !test.kept && !errors.Is(err, test.err) {
				t.Fatalf("it says %v", err)
			}
			if err == nil {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
			if (said == "") != (test.kept || test.name == "an archive") {
				t.Errorf("it was told %q", said)
			}
			expect(t, dir, test.want...)
		})
	}
}
