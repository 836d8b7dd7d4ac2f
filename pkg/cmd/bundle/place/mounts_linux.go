// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package place

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// mountPoints are where something is mounted: proc_pid_mountinfo(5).
func mountPoints() (_ []string, err error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("see what is mounted: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var points []string
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			points = append(points, unescape(fields[4]))
		}
	}
	return points, lines.Err()
}

// unescape reads a path in which white space and backslashes are three octal digits after a backslash.
func unescape(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if n, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}
