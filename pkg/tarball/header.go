// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	blockSize = 512
	// endSize is the length of the two zero blocks that end an archive.
	endSize = 2 * blockSize
	// maxOctalSize is the largest size that the eleven digits of a ustar header hold.
	maxOctalSize = 1<<33 - 1

	// paxName is the name of every extended header. It carries no meaning.
	paxName = "././@PaxHeader"
	typePAX = 'x'
)

// field is a range of bytes of a ustar header block (POSIX.1-2017, pax, "ustar Interchange Format").
type field struct{ start, end int }

func (f field) of(block []byte) []byte { return block[f.start:f.end] }

var (
	fieldName     = field{0, 100}
	fieldMode     = field{100, 108}
	fieldUID      = field{108, 116}
	fieldGID      = field{116, 124}
	fieldSize     = field{124, 136}
	fieldMtime    = field{136, 148}
	fieldChecksum = field{148, 156}
	fieldType     = field{156, 157}
	fieldLinkname = field{157, 257}
	fieldMagic    = field{257, 265}
	fieldDevMajor = field{329, 337}
	fieldDevMinor = field{337, 345}
)

// appendHeader appends the canonical header of e: one ustar block, preceded by
// a pax extended header where the ustar fields cannot hold the entry.
func appendHeader(b []byte, e Entry) []byte {
	name := e.Name
	if e.Type == TypeDirectory {
		name += "/"
	}
	if records := paxRecords(name, e); records != "" {
		b = appendBlock(b, paxName, typePAX, 0o644, int64(len(records)), "")
		b = append(b, records...)
		b = append(b, zeros[:padding(int64(len(records)))]...)
	}
	size := e.Size
	if size > maxOctalSize {
		size = 0
	}
	return appendBlock(b, name, byte(e.Type), e.Mode.Perm(), size, e.Linkname)
}

// paxRecords returns the extended header records that an entry needs, in the
// order of their keywords, and "" if it needs none.
func paxRecords(name string, e Entry) string {
	var records strings.Builder
	if !utf8.ValidString(name) || !utf8.ValidString(e.Linkname) {
		writeRecord(&records, "hdrcharset", "BINARY")
	}
	if !fits(e.Linkname, fieldLinkname) {
		writeRecord(&records, "linkpath", e.Linkname)
	}
	if !fits(name, fieldName) {
		writeRecord(&records, "path", name)
	}
	if e.Size > maxOctalSize {
		writeRecord(&records, "size", strconv.FormatInt(e.Size, 10))
	}
	return records.String()
}

// fits tells whether a ustar field holds s. The format's prefix field stays
// unused: one rule less for those who write or check archives.
func fits(s string, f field) bool {
	return len(s) <= f.end-f.start && strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

// writeRecord writes "LENGTH KEYWORD=VALUE\n", where the length counts itself.
func writeRecord(b *strings.Builder, key, value string) {
	rest := len(" ") + len(key) + len("=") + len(value) + len("\n")
	length := rest
	for length != rest+len(strconv.Itoa(length)) {
		length = rest + len(strconv.Itoa(length))
	}
	b.WriteString(strconv.Itoa(length))
	b.WriteString(" " + key + "=" + value + "\n")
}

func appendBlock(b []byte, name string, typeflag byte, mode fs.FileMode, size int64, linkname string) []byte {
	b = append(b, zeros[:blockSize]...)
	block := b[len(b)-blockSize:]
	copy(fieldName.of(block), name)
	octal(fieldMode.of(block), int64(mode))
	octal(fieldUID.of(block), 0)
	octal(fieldGID.of(block), 0)
	octal(fieldSize.of(block), size)
	octal(fieldMtime.of(block), 0)
	fieldType.of(block)[0] = typeflag
	copy(fieldLinkname.of(block), linkname)
	copy(fieldMagic.of(block), "ustar\x0000")
	octal(fieldDevMajor.of(block), 0)
	octal(fieldDevMinor.of(block), 0)

	sum := fieldChecksum.of(block)
	copy(sum, "        ")
	var total int64
	for _, c := range block {
		total += int64(c)
	}
	octal(sum[:7], total) // six digits, a NUL, and the space that is there already
	return b
}

// octal fills dst with the digits of n, zeros in front, and a NUL at the end.
func octal(dst []byte, n int64) {
	last := len(dst) - 1
	dst[last] = 0
	for i := last - 1; i >= 0; i-- {
		dst[i] = byte('0' + n&7)
		n >>= 3
	}
}

// parseBlock reads the entry that a ustar block describes, and its type flag.
// It does not judge: what is not as appendHeader would have written it shows
// when the entry is encoded again and compared. ok is false if a number cannot
// be read at all.
func parseBlock(block []byte) (e Entry, ok bool) {
	mode, modeOK := parseOctal(fieldMode.of(block))
	size, sizeOK := parseOctal(fieldSize.of(block))
	return Entry{
		Name:     text(fieldName.of(block)),
		Type:     Type(fieldType.of(block)[0]),
		Mode:     fs.FileMode(mode) & fs.ModePerm,
		Size:     size,
		Linkname: text(fieldLinkname.of(block)),
	}, modeOK && sizeOK
}

// parseRecords applies the records of an extended header to an entry. It tells
// whether it understood them all.
func parseRecords(records string, e *Entry) bool {
	for records != "" {
		digits, _, found := strings.Cut(records, " ")
		length, err := strconv.Atoi(digits)
		if !found || err != nil || length <= len(digits)+1 || length > len(records) {
			return false
		}
		record := records[len(digits)+1 : length]
		records = records[length:]
		key, value, found := strings.Cut(strings.TrimSuffix(record, "\n"), "=")
		if !found {
			return false
		}
		switch key {
		case "hdrcharset":
		case "linkpath":
			e.Linkname = value
		case "path":
			e.Name = value
		case "size":
			if e.Size, err = strconv.ParseInt(value, 10, 64); err != nil || e.Size < 0 {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func parseOctal(b []byte) (int64, bool) {
	n, err := strconv.ParseInt(text(b), 8, 64)
	return n, err == nil && n >= 0
}

// text returns what a field holds in front of its first NUL.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// kindOfFlag names a tar type flag that no canonical archive has.
func kindOfFlag(flag byte) string {
	switch flag {
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeChar:
		return "a character device"
	case tar.TypeBlock:
		return "a block device"
	case tar.TypeFifo:
		return "a FIFO"
	default:
		return fmt.Sprintf("of the unsupported type %q", flag)
	}
}

// zeros is padding.
var zeros [endSize]byte

// padding returns how many bytes fill size up to whole blocks.
func padding(size int64) int64 { return -size & (blockSize - 1) }
