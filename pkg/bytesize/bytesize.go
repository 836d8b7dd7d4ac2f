// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bytesize writes numbers of bytes for people.
package bytesize

import "fmt"

// String writes a number of bytes with the largest binary unit that leaves a whole part, to a tenth: "1.5 KiB". Bytes are exact.
func String(n int64) string { return write(n, " ") }

// Short is String without the space, for columns.
func Short(n int64) string { return write(n, "") }

func write(n int64, space string) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d%sB", n, space)
	}
	f, i := float64(n)/1024, 0
	// What would be rounded to 1024.0 is one of the next unit.
	for f >= 1023.95 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return fmt.Sprintf("%.1f%s%ciB", f, space, units[i])
}
