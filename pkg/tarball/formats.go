// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"bytes"
	"fmt"
)

// magicSize is how many bytes tell what a file is.
const magicSize = 10

// formats are what people send in place of a tar or tar.gz, by the bytes that it begins with. No tar begins so, whose
// first bytes are the name of a file.
var formats = []struct{ name, magic string }{
	{"a zip archive", "PK\x03\x04"},
	{"an empty zip archive", "PK\x05\x06"},
	{"compressed with xz", "\xfd7zXZ\x00"},
	{"compressed with zstd", "\x28\xb5\x2f\xfd"},
	{"compressed with bzip2", "BZh"},
	{"compressed with lz4", "\x04\x22\x4d\x18"},
	{"a 7z archive", "7z\xbc\xaf\x27\x1c"},
	{"a rar archive", "Rar!\x1a\x07"},
}

// bzip2Block follows the first four bytes of a file of bzip2, three of which could be a name.
const bzip2Block = "\x31\x41\x59\x26\x53\x59"

// CheckFormat returns an error that is ErrNotTar and names the format, if something that begins with head is an archive or
// compressed in a way that Canonicalize does not read. Of head 10 bytes are enough.
func CheckFormat(head []byte) error {
	for _, f := range formats {
		if !bytes.HasPrefix(head, []byte(f.magic)) {
			continue
		}
		if f.magic == "BZh" && (len(head) < magicSize || string(head[4:magicSize]) != bzip2Block) {
			continue
		}
		return fmt.Errorf("%w: it is %s, and only tar and tar.gz are read", ErrNotTar, f.name)
	}
	return nil
}
