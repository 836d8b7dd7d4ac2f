// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bytesize"
	"rukpak.io/apiserver/pkg/diskfull"
	"rukpak.io/apiserver/pkg/flock"
)

// roomPause is the time between two looks whether there is room for a lock.
const roomPause = time.Second

// take makes and locks a volume's lock. It waits until there is room for it. The error is flock.ErrBusy where somebody has it.
func take(ctx context.Context, lock string) (*os.File, error) {
	for said := false; ; said = true {
		if _, err := ours(lock, 0); err != nil {
			return nil, err
		}
		held, err := flock.TryOpen(lock, flock.Exclusive)
		if !diskfull.Is(err) {
			return held, err
		}
		if err = full(filepath.Dir(lock), nil, err); !said {
			klog.FromContext(ctx).Error(err, "There is no room for a lock, and it is waited for")
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-time.After(roomPause):
		}
	}
}

// full says of an error what would have to fit into the volume that is full, as far as that is known, and how much would.
func full(dir string, content *v1alpha1.ContentStatus, err error) error {
	text := ""
	if content != nil && content.UncompressedSize > 0 {
		text = fmt.Sprintf(": the content takes about %s in %d files", bytesize.String(content.UncompressedSize), content.Files)
	}
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil {
		text += fmt.Sprintf(", free are %s", bytesize.String(int64(st.Bavail)*int64(st.Bsize)))
		if st.Files > 0 { // some file systems have no bound
			text += fmt.Sprintf(" and %d entries", st.Ffree)
		}
	}
	return fmt.Errorf("the volume %s is full%s: %w", dir, text, err)
}
