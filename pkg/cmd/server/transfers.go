// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
)

// TransferOptions are the flags of reading content.
type TransferOptions struct {
	// MaxReaders and MaxReadersPerUser bound the reads at the same time; 0 means any number.
	MaxReaders, MaxReadersPerUser int
	// Drain is how long reads, and parts of uploads, may go on after the server has stopped to take requests.
	Drain time.Duration
}

func defaultTransferOptions() TransferOptions {
	return TransferOptions{MaxReaders: 2000, MaxReadersPerUser: 100, Drain: 20 * time.Second}
}

func (o *TransferOptions) addFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.MaxReaders, "max-content-readers", o.MaxReaders, "How many reads of content run at the same time; further ones are told to come again (429). 0 means any number.")
	fs.IntVar(&o.MaxReadersPerUser, "max-content-readers-per-user", o.MaxReadersPerUser, "How many of them may be those of one user. 0 means any number.")
	fs.DurationVar(&o.Drain, "content-drain", o.Drain, "How long reads of content, and parts of uploads, may go on once the server has stopped to take requests, at its end. Clients resume what is cut off then. At most a minute counts.")
}

func (o *TransferOptions) validate() []error {
	var errs []error
	if o.MaxReaders < 0 {
		errs = append(errs, fmt.Errorf("--max-content-readers: %d is negative", o.MaxReaders))
	}
	if o.MaxReadersPerUser < 0 {
		errs = append(errs, fmt.Errorf("--max-content-readers-per-user: %d is negative", o.MaxReadersPerUser))
	}
	if o.Drain < 0 {
		errs = append(errs, fmt.Errorf("--content-drain: %v is negative", o.Drain))
	}
	return errs
}

// drainContent bounds how long transfers of content hold up the end of the server: slow ones would do so for the minute
// that requests have, and what a part of an upload has brought until then would be lost. It comes when the end begins, and returns at once.
func (p *process) drainContent() error {
	time.AfterFunc(p.ServerRun.ShutdownDelayDuration+p.Transfers.Drain, func() {
		p.server.Content.EndReads()
		p.server.Uploads.EndAppends()
	})
	return nil
}

// unsentBytes is how much of what is written to a connection may wait in the kernel to be sent. What the line holds is
// not meant. Without a bound it is up to 4 MiB for each reader that is slow, which counts as memory of the server.
const unsentBytes = 128 << 10

// makeFrugal bounds what the connections of a server hold.
func makeFrugal(info *genericapiserver.SecureServingInfo) {
	if info != nil {
		info.Listener = frugalListener{info.Listener}
	}
}

// frugalListener makes connections hold little that is not sent yet.
type frugalListener struct{ net.Listener }

func (l frugalListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		if err := holdLittle(tcp); err != nil {
			klog.Background().V(4).Info("Cannot bound what a connection holds", "err", err)
		}
	}
	return conn, nil
}

func holdLittle(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
	}); err != nil {
		return err
	}
	return set
}
