// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upload keeps, in etcd, the sessions of uploads that are made in several
// requests, so that any process can go on with what another began.
//
//	PREFIX/uploads/open/NAMESPACE/BUNDLEUID/ID    a Session that takes bytes
//	PREFIX/uploads/done/NAMESPACE/BUNDLEUID/ID    how one ended, for a client that missed the answer
//
// The bytes of a session are blobs of a content store, its parts, in order. Each
// part has a reference record of its own (package reference), whose holder is
// named after the session and the one request that brought the part. So the
// collector leaves parts alone, and a record can be removed without a look at
// what others do: nobody else ever writes it.
//
// # Appending
//
//  1. write the bytes to a content.Writer;
//  2. add the record of the part;
//  3. commit the writer;
//  4. Update the session, with the part, on the condition that it is still the
//     one that was read.
//
// Of two that append at the same offset one fails at the last step and takes its
// record back. Stopping between any two steps leaves a record or a blob that no
// session names, which the collector removes. A session that ends is removed
// first, and the records of its parts after it.
package upload
