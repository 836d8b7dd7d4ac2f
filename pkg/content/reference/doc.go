// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reference keeps, in etcd, the records that link bundles to content, and
// the tombstones of content that is about to be deleted.
//
//	PREFIX/refs/STORE/DIGEST/BUNDLEUID    {"namespace": …, "name": …, "time": …}
//	PREFIX/tombstones/STORE/DIGEST        {"state": "pending"|"deleting", "time": …}
//
// STORE is the name of a configured content store, DIGEST is sha256:HEX, times are
// RFC 3339 in UTC. A digest has records or a tombstone, never both, but for a damaged
// blob that is being removed: each transaction that writes one checks for the other.
//
// # Removing what is damaged
//
// A blob that does not have its digest is removed although records name it
// (package verify). Whoever stores the same digest meanwhile must not lose it:
//
//  1. the remover reads the blob, and remembers which one it is, by its size and time;
//  2. StartRemoving, so that Add waits;
//  3. it looks whether it still is that one, and deletes it;
//  4. Unmark.
//
// A committer that has added its record before step 2 waits, after its Commit, until
// no tombstone stands, and looks whether its blob is there. If it was stored before
// step 3 the remover sees another one and leaves it; if it was stored between the look and the
// deletion, the committer sees that it is gone; if the committer looks before
// step 2, so has the blob been there before it, and the remover sees another one.
//
// # Committing
//
// Whoever gives content to a bundle does, in this order:
//
//  1. write the bytes to a content.Writer, which nobody can see;
//  2. Add the record;
//  3. Commit the writer, with the function of that name;
//  4. name the digest in the bundle's status, on the condition that the bundle
//     still is what it was.
//
// Readers go the other way: the status names a digest, Has finds the record, the
// store opens the blob.
//
// This never shows half: a status that names a digest was written after the blob
// was whole and lasting, and readers come to a blob only through a status.
//
// It never loses content: the collector (package collect) deletes a blob only
// while the tombstone of its digest is in the state deleting. A tombstone gets
// into that state only while no record of the digest exists, and in that state no
// record can be added; Add waits until it is gone, or pending again. A deletion that
// failed, or whose process ended, is taken back like that once it is older than twice
// the deadline that it had, so that it cannot be going on. So after Add nobody begins to
// delete the blob for as long as the record stands, and no deletion that began
// earlier is still going on. Commit stores the bytes anew even if they seem to be
// there, so what an earlier deletion took is back before the status names it.
// A record is removed only when no status names it, and when it is older than a
// grace period that is longer than steps 2 to 4 ever take.
//
// Stopping between any two steps leaves at most a record, a blob or both that no
// status names; the collector removes them when the grace period is over. The
// order blob, record, status would not do: the collector could delete the blob
// between the first two steps.
//
// What callers owe:
//
//   - Steps 2 to 4 are bounded by a deadline well below the collector's grace
//     period. When it is over, begin again with step 2. Clocks of replicas may
//     differ by what is left of the grace period.
//   - A status names a digest only after an Add for it in the same attempt, or if
//     the status that it replaces (compared by resourceVersion) named it too.
//   - Remove is for bundles that are gone, since no status of theirs can come
//     back. A digest that only left a bundle's history is left to the collector.
package reference
