// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
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
// wait for ever. What was left by one that was killed before it had anything is removed.
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
	case last == 0 && applied == 0:
		return forgetUnborn(dir)
	case first > 0 && applied == 0:
		return damaged(dir, file, errors.New("it is missing"))
	case last < applied && applied > 1: // the first says who the member is, and may be written before the log has it
		return damaged(dir, log, fmt.Errorf("it ends with entry %d, and the database has entry %d already", last, applied))
	}
	return nil
}

// forgetUnborn removes what an etcd has left that was killed in its first moments, before it had written who it is: the next one would wait for ever
// for somebody who knows. Nothing is in it. One that is alive has a lock on its log.
func forgetUnborn(dir string) error {
	files, err := filepath.Glob(filepath.Join(logDir(dir), "*.wal"))
	if err != nil {
		return err
	}
	for _, file := range files {
		held, err := fileutil.TryLockFile(file, os.O_WRONLY, fileutil.PrivateFileMode)
		if errors.Is(err, fileutil.ErrLocked) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the data of the embedded etcd: %w", err)
		}
		defer held.Close()
	}
	return os.RemoveAll(filepath.Join(dataDir(dir), "member"))
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
		// etcd reads all pages to find those that are free, where a wrong one ends the process.
		return tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error { return inOrder(name, bucket) })
	})
}

// inOrder reads the pages of a bucket.
func inOrder(name []byte, bucket *bbolt.Bucket) error {
	var before []byte
	cursor := bucket.Cursor()
	for key, _ := cursor.First(); key != nil; key, _ = cursor.Next() {
		if before != nil && bytes.Compare(before, key) >= 0 {
			return fmt.Errorf("its bucket %q is not in order", name)
		}
		before = key
	}
	return nil
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
