// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
)

// ErrDamaged means that the data of the embedded etcd is none, or not whole.
var ErrDamaged = errors.New("the data of the embedded etcd is damaged")

// dataDir is where an embedded etcd in dir has its data, databaseFile its database, and logDir its write-ahead log, in which is what the
// database may not have yet.
func dataDir(dir string) string      { return filepath.Join(dir, "data") }
func databaseFile(dir string) string { return filepath.Join(dataDir(dir), "member", "snap", "db") }
func logDir(dir string) string       { return filepath.Join(dataDir(dir), "member", "wal") }

// checkData returns ErrDamaged for data that etcd would not start with, but panic in a goroutine of its own, end the process, or
// wait for ever. Of the database it looks at the beginning alone.
func checkData(dir string) error {
	file, log := databaseFile(dir), logDir(dir)
	applied, err := databaseIndex(file)
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil // another process has it, which etcd waits for
	}
	if err != nil {
		return damaged(dir, file, err)
	}
	if !wal.Exist(log) {
		if applied > 0 {
			return damaged(dir, log, errors.New("it is missing"))
		}
		return nil // it is made
	}
	first, last, err := logIndexes(log)
	switch {
	case err != nil:
		return damaged(dir, log, err)
	case first > 0 && applied == 0:
		return damaged(dir, file, errors.New("it is missing"))
	case last < applied && applied > 1: // the first says who the member is, and may be written before the log has it
		return damaged(dir, log, fmt.Errorf("it ends with entry %d, and the database has entry %d already", last, applied))
	}
	return nil
}

// damaged says what is wrong with a file or folder.
func damaged(dir, place string, cause error) error {
	if errors.Is(cause, os.ErrPermission) {
		return fmt.Errorf("read the data of the embedded etcd: %w", cause)
	}
	return fmt.Errorf("%w: %s: %w; put back a copy of the data dir, or, to go on without the bundles that were in it, move %s away: "+
		"the content that is left is refused then, with a token for --accept-data-loss", ErrDamaged, place, cause, dataDir(dir))
}

// databaseIndex is the index of the entry of the log that was written to a database last; 0 where there is none.
func databaseIndex(file string) (index uint64, err error) {
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	// A file that is shorter than it says is a fault of memory where it is read.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("it cannot be read: %v", cause)
		}
	}()
	db, err := bbolt.Open(file, 0, &bbolt.Options{ReadOnly: true, Timeout: time.Millisecond})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return index, db.View(func(tx *bbolt.Tx) error {
		if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
			if value := meta.Get(schema.MetaConsistentIndexKeyName); len(value) == 8 {
				index = binary.BigEndian.Uint64(value)
			}
		}
		return tx.ForEach(func([]byte, *bbolt.Bucket) error { return nil })
	})
}

// logIndexes are the indexes that the newest part of a log begins and ends with. A last entry that is cut off, as by a
// kill, is none: etcd drops it.
func logIndexes(log string) (first, last uint64, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("it cannot be read: %v", cause)
		}
	}()
	starts, err := wal.ValidSnapshotEntries(zap.NewNop(), log)
	if err != nil {
		return 0, 0, err
	}
	if len(starts) == 0 {
		return 0, 0, errors.New("it has no beginning")
	}
	newest := starts[len(starts)-1]
	from, err := wal.OpenForRead(zap.NewNop(), log, newest)
	if err != nil {
		return 0, 0, err
	}
	// One that is open for reading alone calls it an error that it has nothing else to close.
	defer func() { _ = from.Close() }()
	first, last = newest.GetIndex(), newest.GetIndex()
	_, _, entries, err := from.ReadAll()
	if n := len(entries); n > 0 {
		last = entries[n-1].GetIndex()
	}
	return first, last, err
}
