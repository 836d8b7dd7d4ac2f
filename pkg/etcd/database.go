// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// ErrDamaged means that the database of the embedded etcd is none.
var ErrDamaged = errors.New("the database of the embedded etcd is damaged")

// databaseFile is where an embedded etcd in dir has its database.
func databaseFile(dir string) string { return filepath.Join(dataDir(dir), "member", "snap", "db") }

func dataDir(dir string) string { return filepath.Join(dir, "data") }

// checkDatabase returns ErrDamaged for a database that etcd would not start with, but panic, in a goroutine of its own. It
// looks at its beginning alone.
func checkDatabase(dir string) error {
	file := databaseFile(dir)
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // it is made
	}
	if err == nil {
		err = openDatabase(file)
	}
	switch {
	case err == nil, errors.Is(err, bbolterrors.ErrTimeout):
		return nil // another process has it, which etcd waits for
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("read the database of the embedded etcd: %w", err)
	}
	return fmt.Errorf("%w: %s: %w; put back a copy of the data dir, or, to go on without the bundles that were in it, move %s away: "+
		"the content that is left is refused then, with a token for --accept-data-loss", ErrDamaged, file, err, dataDir(dir))
}

func openDatabase(file string) (err error) {
	// A file that is shorter than it says is a fault of memory where it is read.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("it cannot be read: %v", cause)
		}
	}()
	db, err := bbolt.Open(file, 0, &bbolt.Options{ReadOnly: true, Timeout: time.Millisecond})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func([]byte, *bbolt.Bucket) error { return nil })
	})
}
