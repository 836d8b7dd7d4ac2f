// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instance notices when etcd and what belongs to it no longer fit together:
// when one of them was emptied, restored from an older copy, or is somebody else's.
//
// An instance is one etcd and the content stores, and the cluster, that its state
// is about. It has an ID, which stands in etcd, in each store and in the cluster:
//
//	PREFIX/instance                  the record: ID, sequence, and what each place was given
//	mark of each content store       ID, sequence, stamp
//	an object in the cluster         ID, sequence, stamp
//
// # Renewals
//
// An ID alone does not tell an older copy from the latest. So the marks are renewed
// when the server starts, every minute in which etcd has changed, and before content
// is swept. A renewal raises the sequence by one and gives each place a stamp that
// nobody can guess:
//
//  1. a transaction writes the new sequence and stamps to the record;
//  2. each place gets its mark;
//  3. a second transaction notes which places have one, where that is new.
//
// A place may have any mark whose stamp the record lists. An older etcd does not list
// the stamp that a place has got meanwhile; an older place has a stamp that is no
// longer listed; and two copies of one etcd that work on the same store do not list
// each other's. The record keeps the stamp that was seen, the two latest, and
// those of the last two minutes, so that a slow writer's mark is no surprise. Hence
// what is older by less than the last two renewals is not noticed.
//
// The revision of etcd would not do in place of the sequence: tools that restore a
// backup raise it on purpose.
//
// The process may end between any two writes. What it leaves is a place without a
// mark, or with one that is listed, while the record says that none was noted: the next
// start goes on from there. Nobody is needed as a leader: the transactions compare
// the revision of the record, and whoever comes second leaves it at that.
//
// # Judging
//
// The marks are read before the record. So whatever mark is seen was listed before;
// and a disagreement counts only if a second look, with a fresh read of all, finds the same.
//
//	etcd      place                                   verdict
//	no ID     no mark, and no content                 first start: an ID is made
//	no ID     no mark, content; etcd has objects      version without marks: taken over
//	no ID     no mark, content; etcd has none         refused: Unclaimed
//	no ID     store without content; etcd names some  refused: Unmarked
//	no ID     a mark                                  refused: EtcdUnmarked
//	ID        its mark is listed                      fine
//	ID        a mark with another ID                  refused: Foreign
//	ID        a mark with a later sequence            refused: EtcdOlder
//	ID        a mark with an earlier sequence         refused: PlaceOlder
//	ID        a mark of another store                 refused: Misplaced
//	ID        any other mark that is not listed       refused: Diverged
//	ID        store had a mark and has none           refused: Unmarked
//	ID        cluster had a mark and has none         marked again, if all else fits
//	ID        new store without content               marked
//	ID        new store with content                  refused: Unclaimed
//
// A place that cannot be read is no disagreement: its content cannot be served, all
// else can. But without a record nothing is decided before all places have been read.
//
// # Accepting a loss
//
// A refusal names a token, which is made from what disagrees, so that it is good for
// that loss and no later one. Accepting it makes the state of etcd the truth: a new ID is
// made, the marks that were found are listed, and a renewal replaces them. With
// the new ID whoever still works with the lost state is locked out. Nothing is swept
// for a day after: until then the loss can still turn out to be a mistake.
package instance
