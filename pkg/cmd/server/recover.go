// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/etcd"
)

const etcdRecoverLong = `etcd-recover makes an etcd writable again whose database has become as large as it may be (alarm NOSPACE): it drops old
revisions, gives the space that they took back to the disk, and ends the alarm. It works on the etcd that a server with the same
flags uses: one of your own (--etcd-servers), or the embedded one, whether its server is running or not. The etcd
answers nothing for some seconds meanwhile.

Where nothing can be won, --embedded-etcd-quota has to be raised and the server started anew, or objects have to be deleted, first.`

func newEtcdRecoverCommand() *cobra.Command {
	o := NewOptions()
	return newTool("etcd-recover", "Make an etcd writable again that is full", etcdRecoverLong, o, func(*pflag.FlagSet) {}, func(cmd *cobra.Command) error {
		tell := func(s string) { fmt.Fprintln(cmd.OutOrStdout(), s) }
		return o.withProcess(cmd.Context(), (*process).joinEtcd, func(ctx context.Context, p *process) error {
			return p.recoverEtcd(ctx, tell)
		})
	})
}

// joinEtcd connects to the etcd of the flags: to the embedded one of a server that is running, if there is one.
func (p *process) joinEtcd(ctx context.Context, cancel context.CancelCauseFunc) error {
	servers := &p.Recommended.Etcd.StorageConfig.Transport.ServerList
	if len(*servers) == 0 {
		endpoint, err := etcd.Running(p.etcdDir())
		if err != nil {
			return err
		}
		if endpoint != "" {
			*servers = []string{endpoint}
			return nil
		}
	}
	return p.openEtcd(ctx, cancel)
}

func (p *process) recoverEtcd(ctx context.Context, tell func(string)) (err error) {
	client := p.client
	// The client of an embedded etcd has no connection, which defragmenting needs.
	if client == nil || len(client.Endpoints()) == 0 {
		client, err = clientv3.New(clientv3.Config{Endpoints: p.Recommended.Etcd.StorageConfig.Transport.ServerList, DialTimeout: etcdDialTimeout})
		if err != nil {
			return fmt.Errorf("connect to the embedded etcd: %w", err)
		}
		defer func() { err = errors.Join(err, client.Close()) }()
	}
	return etcd.Recover(ctx, client, tell)
}
