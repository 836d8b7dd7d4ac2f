// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Reader is a program that reads the content of a bundle as files, and knows nothing of Kubernetes. Again and again it opens the folder that is its
// argument, and reads all files of its folder "data", each of which says which content it is of. It prints each mark that it
// has not seen just before, with how often it has read all of the files by then, and ends with 1 as soon as two files of one look
// do not say the same.
package main

import (
	"fmt"
	"io/fs"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: reader DIR")
		os.Exit(2)
	}
	last := ""
	for looks := 1; ; looks++ {
		mark, err := look(os.Args[1])
		if err != nil {
			fmt.Println("reader:", err)
			os.Exit(1)
		}
		if mark != last {
			fmt.Println(mark, looks)
			last = mark
		}
	}
}

// look resolves links to the folder once.
func look(dir string) (mark string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), "data")
	if err != nil {
		return "", err
	}
	for i, e := range entries {
		raw, err := root.ReadFile("data/" + e.Name())
		if err != nil {
			return "", err
		}
		if i > 0 && string(raw) != mark {
			return "", fmt.Errorf("a mix: %s says %q, those before it %q", e.Name(), raw, mark)
		}
		mark = string(raw)
	}
	return mark, nil
}
