// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// entry is one of a layer, made from nothing but its header and its bytes.
type entry struct {
	tar.Header
	text string
}

func file(name, text string, changes ...func(*tar.Header)) entry {
	return made(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))}, text, changes)
}

func dir(name string, changes ...func(*tar.Header)) entry {
	return made(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}, "", changes)
}

func symlink(name, target string) entry {
	return made(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, "", nil)
}

// hardlink has a mode of its own in the archive, as tar writes it: that of its target.
func hardlink(name, target string, mode int64) entry {
	return made(tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: mode}, "", nil)
}

func special(kind byte, name string) entry {
	return made(tar.Header{Typeflag: kind, Name: name, Mode: 0o644, Devmajor: 1, Devminor: 3}, "", nil)
}

func made(h tar.Header, text string, changes []func(*tar.Header)) entry {
	for _, change := range changes {
		change(&h)
	}
	return entry{h, text}
}

func perm(mode int64) func(*tar.Header) { return func(h *tar.Header) { h.Mode = mode } }

func record(key, value string) func(*tar.Header) {
	return func(h *tar.Header) {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[key], h.Format = value, tar.FormatPAX
	}
}

// tarOf is the layer of some entries, as it is before it is compressed.
func (s *scope) tarOf(entries ...entry) []byte {
	s.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		s.must(w.WriteHeader(&e.Header))
		if e.Typeflag == tar.TypeReg {
			_, err := io.WriteString(w, e.text)
			s.must(err)
		}
	}
	s.must(w.Close())
	return b.Bytes()
}

// sparse is a layer of one file in the format 1.0 that GNU tar writes for files with
// holes: the map of what is there stands in front of it. Go's own writer makes none.
func (s *scope) sparse(name string, size int64, at int64, text string) []byte {
	s.Helper()
	var b bytes.Buffer
	records := paxRecord("GNU.sparse.major", "1") + paxRecord("GNU.sparse.minor", "0") +
		paxRecord("GNU.sparse.name", name) + paxRecord("GNU.sparse.realsize", fmt.Sprint(size))
	block := func(data string) {
		b.WriteString(data)
		b.Write(make([]byte, (512-len(data)%512)%512))
	}
	b.Write(rawHeader("./PaxHeaders/"+name, 'x', len(records)))
	block(records)
	holes := fmt.Sprintf("2\n%d\n%d\n%d\n0\n", at, len(text), size)
	b.Write(rawHeader("GNUSparseFile.0/"+name, '0', 512+len(text)))
	block(holes)
	block(text)
	b.Write(make([]byte, 1024))
	return b.Bytes()
}

// paxRecord begins with its own length, in which that counts.
func paxRecord(key, value string) string {
	n := len(key) + len(value) + 3
	for size := n; ; size++ {
		if record := fmt.Sprintf("%d %s=%s\n", size, key, value); len(record) == size {
			return record
		}
	}
}

func rawHeader(name string, kind byte, size int) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x000000000\x000000000\x00")
	copy(h[124:], fmt.Sprintf("%011o\x00%011o\x00", size, 0))
	copy(h[148:], "        ")
	h[156] = kind
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

// How a layer is packed.
const (
	plain  = types.OCIUncompressedLayer
	zipped = types.OCILayer
	zstded = types.OCILayerZStd
)

// blob is a layer, and what it is in a registry.
type blob struct {
	raw, packed []byte
	mediaType   types.MediaType
}

var _ v1.Layer = blob{}

func (b blob) Digest() (v1.Hash, error) { return hashOf(b.packed), nil }
func (b blob) DiffID() (v1.Hash, error) { return hashOf(b.raw), nil }
func (b blob) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(b.packed)), nil
}
func (b blob) Uncompressed() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.raw)), nil }
func (b blob) Size() (int64, error)                 { return int64(len(b.packed)), nil }
func (b blob) MediaType() (types.MediaType, error)  { return b.mediaType, nil }

func hashOf(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// layer packs a tar.
func (s *scope) layer(mediaType types.MediaType, raw []byte) v1.Layer {
	s.Helper()
	b := blob{raw: raw, packed: raw, mediaType: mediaType}
	switch mediaType {
	case zipped:
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, err := w.Write(raw)
		s.must(err)
		s.must(w.Close())
		b.packed = out.Bytes()
	case zstded:
		w, err := zstd.NewWriter(nil)
		s.must(err)
		b.packed = w.EncodeAll(raw, nil)
		s.must(w.Close())
	}
	return b
}

// layered is FROM scratch with some layers, the lowest first.
func (s *scope) layered(config v1.Config, layers ...v1.Layer) v1.Image {
	s.Helper()
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layers...)
	s.must(err)
	image, err = mutate.Config(image, config)
	s.must(err)
	return image
}

// describe lists the entries of an archive, each with all that the format keeps of it.
func describe(data []byte) ([]string, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	var lines []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			slices.Sort(lines)
			return lines, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 || h.Uname != "" || xattrs(h) > 0 {
			return nil, fmt.Errorf("entry %q keeps what the format drops: %+v", h.Name, h)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			lines = append(lines, fmt.Sprintf("%q %03o", h.Name, h.Mode))
		case tar.TypeSymlink:
			lines = append(lines, fmt.Sprintf("%q -> %q", h.Name, h.Linkname))
		case tar.TypeReg:
			sum := sha256.New()
			if _, err := io.Copy(sum, r); err != nil {
				return nil, err
			}
			lines = append(lines, fmt.Sprintf("%q %03o %d %x", h.Name, h.Mode, h.Size, sum.Sum(nil)[:4]))
		default:
			return nil, fmt.Errorf("entry %q is of type %q", h.Name, h.Typeflag)
		}
	}
}

func xattrs(h *tar.Header) int {
	n := 0
	for key := range h.PAXRecords {
		if key != "path" && key != "linkpath" && key != "size" && key != "hdrcharset" {
			n++
		}
	}
	return n
}

// What describe says of an entry.
func aFile(name string, mode int64, text string) string {
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%q %03o %d %x", name, mode, len(text), sum[:4])
}
func aDir(name string, mode int64) string { return fmt.Sprintf("%q %03o", name+"/", mode) }
func aLink(name, target string) string    { return fmt.Sprintf("%q -> %q", name, target) }
