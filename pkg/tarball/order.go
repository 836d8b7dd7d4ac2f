// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import "strings"

// order checks that entries come in canonical order: depth first, siblings
// ascending bytewise, each directory before what it holds. Thereby it also
// sees duplicates and entries below something that is no directory, with no
// more memory than one path.
type order struct {
	open []string // components of the directory that was entered last
	last []string // at each level of open, and below it, the name that came last
}

// next takes the next entry of the archive.
func (o *order) next(e Entry) error {
	if o.last == nil {
		o.last = []string{""}
	}
	parts := strings.Split(e.Name, "/")
	depth := len(parts) - 1
	for i, part := range parts[:depth] {
		if i < len(o.open) && o.open[i] == part {
			continue
		}
		switch before := o.last[i]; {
		case before == part:
			return refuse(e.Name, "is below %q, which is not a directory", strings.Join(parts[:i+1], "/"))
		case before > part:
			return notCanonical(e.Name, "is not in canonical order")
		default:
			return notCanonical(e.Name, "its directory %q has no entry before it", strings.Join(parts[:i+1], "/"))
		}
	}
	switch before, name := o.last[depth], parts[depth]; {
	case before == name:
		return refuse(e.Name, "is a duplicate")
	case before > name:
		return notCanonical(e.Name, "is not in canonical order")
	}
	o.open = o.open[:depth]
	o.last = append(o.last[:depth], parts[depth])
	if e.Type == TypeDirectory {
		o.open = append(o.open, parts[depth])
		o.last = append(o.last, "")
	}
	return nil
}
