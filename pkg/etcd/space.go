// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/flock"
)

// NoSpace reports whether etcd has refused a write because its database is as large as it may be. From then on
// it refuses every write (the alarm NOSPACE) until Recover, whatever is deleted.
func NoSpace(err error) bool { return errors.Is(err, rpctypes.ErrNoSpace) }

// NoSpaceMessage explains that, for those who see it.
const NoSpaceMessage = "the database of etcd, which keeps the objects of this API, is as large as it may be, so nothing can be written (alarm NOSPACE); " +
	"what is stored is served. An administrator mends it with `rukpak-apiserver etcd-recover`"

// Space is what an etcd says about its database.
type Space struct {
	// NoSpace is whether the alarm is raised.
	NoSpace bool
	// Size is that of the largest member's database, in bytes, InUse how much of it is used, and Quota how large
	// it may get; 0 where etcd does not say.
	Size, InUse, Quota int64
}

// ReadSpace asks all members at the same time. Those that do not answer before ctx ends are left out; the error is that none does, or that
// nobody tells of alarms.
func ReadSpace(ctx context.Context, client *clientv3.Client) (Space, error) {
	var s Space
	alarms, err := noSpaceAlarms(ctx, client)
	if err != nil {
		return s, err
	}
	s.NoSpace = len(alarms) > 0
	largest, err := largestMember(ctx, client)
	if err != nil {
		return s, err
	}
	s.Size, s.InUse, s.Quota = largest.DbSize, largest.DbSizeInUse, largest.DbSizeQuota
	return s, nil
}

// Size is that of the largest member's database, in bytes, of those that answer before ctx ends.
func Size(ctx context.Context, client *clientv3.Client) (int64, error) {
	largest, err := largestMember(ctx, client)
	if err != nil {
		return 0, err
	}
	return largest.DbSize, nil
}

// largestMember is what the member with the largest database says, of those that answer. A client of etcd connects to each endpoint
// anew to ask it; to one that is away it tries so until ctx ends.
func largestMember(ctx context.Context, client *clientv3.Client) (*clientv3.StatusResponse, error) {
	endpoints := client.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{""} // a client without a connection has one member and asks for no endpoint
	}
	answers, errs := make([]*clientv3.StatusResponse, len(endpoints)), make([]error, len(endpoints))
	var asking sync.WaitGroup
	for i, endpoint := range endpoints {
		asking.Go(func() { answers[i], errs[i] = client.Status(ctx, endpoint) })
	}
	asking.Wait()
	var largest *clientv3.StatusResponse
	for i, status := range answers {
		if errs[i] == nil && (largest == nil || status.DbSize > largest.DbSize) {
			largest = status
		}
	}
	if largest == nil {
		return nil, fmt.Errorf("ask etcd for its size: %w", errors.Join(errs...))
	}
	return largest, nil
}

func noSpaceAlarms(ctx context.Context, client *clientv3.Client) ([]*pb.AlarmMember, error) {
	resp, err := client.AlarmList(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask etcd for alarms: %w", err)
	}
	var alarms []*pb.AlarmMember
	for _, a := range resp.Alarms {
		if a.Alarm == pb.AlarmType_NOSPACE {
			alarms = append(alarms, a)
		}
	}
	return alarms, nil
}

// HasNoSpace reports whether the alarm is raised.
func HasNoSpace(ctx context.Context, client *clientv3.Client) (bool, error) {
	alarms, err := noSpaceAlarms(ctx, client)
	return len(alarms) > 0, err
}

// ErrStillFull means that what is stored, without anything superfluous, is about as much as there may be.
var ErrStillFull = errors.New("the database of etcd is still nearly full")

// nearly is how full, in percent, a database may be to call it mended.
const nearly = 95

// Recover makes an etcd writable again: it drops old revisions, gives the space that they took back to the disk,
// one member after the other, and ends the alarm NOSPACE. It does no harm where there is no alarm; each member
// answers nothing while it is at work, some seconds for each GiB. The client needs a connection. ErrStillFull if there is
// no space to be won: then the quota has to be raised, or objects be deleted.
func Recover(ctx context.Context, client *clientv3.Client, tell func(string)) error {
	head, err := client.Get(ctx, "health", clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("ask etcd for its revision: %w", err)
	}
	revision := head.Header.Revision
	if _, err := client.Compact(ctx, revision, clientv3.WithCompactPhysical()); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("drop old revisions: %w", err)
	}
	tell(fmt.Sprintf("dropped what is older than revision %d", revision))
	for _, endpoint := range client.Endpoints() {
		before, err := client.Status(ctx, endpoint)
		if err != nil {
			return fmt.Errorf("ask %s for its size: %w", endpoint, err)
		}
		if _, err := client.Defragment(ctx, endpoint); err != nil {
			return fmt.Errorf("defragment %s: %w", endpoint, err)
		}
		after, err := client.Status(ctx, endpoint)
		if err != nil {
			return fmt.Errorf("ask %s for its size: %w", endpoint, err)
		}
		tell(fmt.Sprintf("defragmented %s: %d bytes, were %d", endpoint, after.DbSize, before.DbSize))
	}
	space, err := ReadSpace(ctx, client)
	if err != nil {
		return err
	}
	if space.Quota > 0 && space.Size > space.Quota/100*nearly {
		return fmt.Errorf("%w: %d of %d bytes: raise its quota, or delete objects, and do it again", ErrStillFull, space.Size, space.Quota)
	}
	alarms, err := noSpaceAlarms(ctx, client)
	if err != nil {
		return err
	}
	for _, a := range alarms {
		if _, err := client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: a.MemberID, Alarm: a.Alarm}); err != nil {
			return fmt.Errorf("end the alarm of member %x: %w", a.MemberID, err)
		}
		tell(fmt.Sprintf("ended the alarm NOSPACE of member %x", a.MemberID))
	}
	return nil
}

// Running returns the address of the embedded etcd that another process runs over dir, empty if none does.
func Running(dir string) (string, error) {
	f, err := os.OpenFile(databaseFile(dir), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look at the database of the embedded etcd: %w", err)
	}
	// The lock goes with the file.
	defer f.Close()
	err = flock.Try(f, flock.Exclusive)
	if err == nil {
		return "", nil
	}
	if !errors.Is(err, flock.ErrBusy) {
		return "", fmt.Errorf("look at the lock of the embedded etcd: %w", err)
	}
	socket := filepath.Join(dir, socketName)
	if _, err := os.Stat(socket); err != nil {
		return "", fmt.Errorf("another process uses the embedded etcd in %s, and its socket is elsewhere: stop it", dir)
	}
	return "unix://" + socket, nil
}
