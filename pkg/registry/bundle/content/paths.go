// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"

	"k8s.io/klog/v2"
)

// Say is the text of an error for a client, in which no file of the server has its name. An error that names one is logged, since
// who looks after the server needs the name.
func Say(doing string, err error) string {
	text := err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		text = tookTooLong + ": " + text
	}
	told := text
	for _, path := range filesOf(err) {
		told = strings.ReplaceAll(told, path, "a file of the server")
	}
	if told != text {
		klog.Background().Error(err, "Cannot "+doing)
	}
	return told
}

// filesOf lists the files that an error names.
func filesOf(err error) []string {
	var files []string
	switch e := err.(type) {
	case *fs.PathError:
		files = append(files, e.Path)
	case *os.LinkError:
		files = append(files, e.Old, e.New)
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			files = append(files, filesOf(inner)...)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			files = append(files, filesOf(inner)...)
		}
	}
	return files
}

// WithoutAddresses is an error of a connection without the addresses of its ends, which are nothing to a client: behind an aggregator
// neither is his.
func WithoutAddresses(err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e.Err
	}
	return err
}
