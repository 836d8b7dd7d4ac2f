// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import "math"

// effective replaces the zeros by what they mean, so that nothing below has to
// ask whether a limit is set.
func (l Limits) effective() Limits {
	for _, v := range []*int64{&l.CompressedBytes, &l.Bytes, &l.Files} {
		if *v <= 0 {
			*v = math.MaxInt64
		}
	}
	set := func(v *int64, byDefault int64) {
		if *v <= 0 {
			*v = byDefault
		}
	}
	set(&l.PathLength, DefaultPathLength)
	set(&l.Depth, DefaultDepth)
	set(&l.Ratio, DefaultRatio)
	return l
}

// directories bounds the directories. Were they not bounded, an archive of
// nothing but empty directories would pass any limit on files.
func (l Limits) directories() int64 { return times(l.Files, 2, 1000) }

// times returns n*factor+extra, or the largest number where that overflows.
func times(n, factor, extra int64) int64 {
	if n > (math.MaxInt64-extra)/factor {
		return math.MaxInt64
	}
	return n*factor + extra
}

// checkRatio judges a whole archive. It is judged at the end and not on the
// way: what has been compressed at a given moment depends on buffers, and the
// verdict must not.
func (l Limits) checkRatio(size, uncompressed int64) error {
	if uncompressed > RatioFloor && uncompressed/l.Ratio > size {
		return exceeds(LimitRatio, l.Ratio, "")
	}
	return nil
}

// meter counts the entries of a canonical archive against its limits.
type meter struct {
	limits      Limits
	files       int64
	directories int64
	bytes       int64
}

func newMeter(limits Limits) meter {
	return meter{limits: limits, bytes: endSize}
}

// add counts an entry whose header takes headerSize bytes.
func (m *meter) add(e Entry, headerSize int) error {
	if e.Type == TypeDirectory {
		if m.directories++; m.directories > m.limits.directories() {
			return exceeds(LimitDirectories, m.limits.directories(), e.Name)
		}
	} else if m.files++; m.files > m.limits.Files {
		return exceeds(LimitFiles, m.limits.Files, e.Name)
	}
	room := m.limits.Bytes - m.bytes - int64(headerSize)
	if room < 0 || e.Size > room || padding(e.Size) > room-e.Size {
		return exceeds(LimitBytes, m.limits.Bytes, e.Name)
	}
	m.bytes += int64(headerSize) + e.Size + padding(e.Size)
	return nil
}
