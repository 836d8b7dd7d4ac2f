// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import "strings"

// cleanName turns a name as foreign archives spell it ("./a//b/") into the
// canonical spelling ("a/b"). The root is "". Only spellings that mean the same
// path to everybody are tolerated.
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", refuse(name, "the name is empty")
	case name[0] == '/':
		return "", refuse(name, "the name is absolute")
	case strings.IndexByte(name, 0) >= 0:
		return "", refuse(name, "the name holds a NUL byte")
	}
	parts := make([]string, 0, strings.Count(name, "/")+1)
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
		case "..":
			return "", refuse(name, `the name has a component ".."`)
		default:
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/"), nil
}

// cleanRoot turns the path of a subtree, as users write it, into the canonical spelling.
func cleanRoot(path string) (string, error) {
	trimmed := strings.TrimLeft(path, "/")
	if trimmed == "" {
		return "", nil
	}
	return cleanName(trimmed)
}

// checkName refuses a name that is not in the canonical spelling or exceeds the limits.
func checkName(name string, limits Limits) error {
	clean, err := cleanName(name)
	if err != nil {
		return err
	}
	if clean != name || name == "" {
		return refuse(name, "the name is not clean")
	}
	return checkLength(name, limits)
}

// checkLength refuses a clean name that exceeds the limits.
func checkLength(name string, limits Limits) error {
	if int64(len(name)) > limits.PathLength {
		return exceeds(LimitPathLength, limits.PathLength, name)
	}
	if int64(strings.Count(name, "/"))+1 > limits.Depth {
		return exceeds(LimitDepth, limits.Depth, name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > MaxComponentLength {
			return refuse(name, "a component of the name is longer than %d bytes", MaxComponentLength)
		}
	}
	return nil
}

// checkLink refuses a symbolic link whose target can lead out of the root.
//
// A target may climb at its start only, and no higher than the root. Every
// directory above an entry is a real one, so that climb ends inside; from there
// on a target only descends, through links for which the same holds. Were ".."
// allowed after a descent, "up/../.." could leave by way of a link "up", which
// no look at this one entry can tell.
func checkLink(name, target string, limits Limits) error {
	switch {
	case target == "":
		return refuse(name, "the symbolic link has no target")
	case strings.IndexByte(target, 0) >= 0:
		return refuse(name, "the target of the symbolic link holds a NUL byte")
	case int64(len(target)) > limits.PathLength:
		return exceeds(LimitPathLength, limits.PathLength, name)
	case target[0] == '/':
		return refuse(name, "the symbolic link has the absolute target %q", target)
	}
	room, descended := strings.Count(name, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if descended {
				return refuse(name, `the target %q of the symbolic link has ".." after a name`, target)
			}
			if room--; room < 0 {
				return refuse(name, "the target %q of the symbolic link leaves the root", target)
			}
		default:
			descended = true
		}
	}
	return nil
}

// under returns the path of name below root and whether it is there. The root
// itself is at "".
func under(name, root string) (string, bool) {
	if root == "" {
		return name, true
	}
	rest, ok := strings.CutPrefix(name, root)
	if !ok || rest == "" {
		return "", ok
	}
	return rest[1:], rest[0] == '/'
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
