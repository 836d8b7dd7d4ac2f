// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/bucket"
	"rukpak.io/apiserver/pkg/content/contenttest"
)

// azureKey names the program of a server that speaks the protocol of Azure Blob Storage: make azure.
const azureKey = "RUKPAK_AZURE_SERVER"

// What is greater than 256 MiB is left out: the server has no Put Blob From URL, see TestAzureCopies.
func TestAzure(t *testing.T) {
	program := os.Getenv(azureKey)
	if program == "" {
		t.Skipf("%s is not set: make azure", azureKey)
	}
	const account = "rukpak"
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("key", 20)))
	address := startAzure(t, program, account+":"+key)
	t.Setenv("AZURE_STORAGE_KEY", key)
	credential, err := azblob.NewSharedKeyCredential(account, key)
	if err != nil {
		t.Fatal(err)
	}
	service, err := azblob.NewClientWithSharedKeyCredential("http://"+address+"/"+account, credential, nil)
	if err != nil {
		t.Fatal(err)
	}
	var places atomic.Int64 // tests that are parallel have one each
	contenttest.Run(t, func(t *testing.T) contenttest.Harness {
		place := places.Add(1)
		name, prefix := fmt.Sprintf("container-%d", place), ""
		if place%2 == 0 {
			prefix = "a/folder of+änderungen"
		}
		if _, err := service.CreateContainer(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
		u := &url.URL{Scheme: "azblob", Host: name, RawQuery: url.Values{"storage_account": {account}, "domain": {address}, "protocol": {"http"}, "prefix": {prefix}}.Encode()}
		return contenttest.Harness{
			Open: func(t *testing.T) (content.Store, func() error) {
				s := open(t, u, bucket.Options{})
				return s, s.Close
			},
			Borders: []int64{4 << 20, 8 << 20},
			Faulty: func(t *testing.T, next func() contenttest.Fault) content.Store {
				return open(t, u, bucket.Options{Call: 2 * time.Second, Pause: 10 * time.Millisecond, Wrap: func(base http.RoundTripper) http.RoundTripper {
					return faulty{base, next}
				}})
			},
			Failpoints: []string{"bucket/after-put", "bucket/after-upload", "bucket/after-copy", "bucket/after-delete"},
			Debris: func(t *testing.T) []string {
				var left []string
				for pages := service.NewListBlobsFlatPager(name, nil); pages.More(); {
					page, err := pages.NextPage(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					for _, item := range page.Segment.BlobItems {
						if object := strings.TrimPrefix(strings.TrimPrefix(*item.Name, prefix), "/"); !isOurs(object) {
							left = append(left, object)
						}
					}
				}
				return left
			},
			Child: func(t *testing.T) *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childURL+"="+u.String())
				return cmd
			},
		}
	})
}

// startAzure starts the server, without TLS, with an account, and returns its address.
func startAzure(t *testing.T, program, account string) string {
	t.Helper()
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	cmd := exec.Command(program, "--blobHost=127.0.0.1", "--blobPort="+port, "--location="+t.TempDir(), "--silent", "--disableTelemetry", "--skipApiVersionCheck")
	cmd.Env = append(os.Environ(), "AZURITE_ACCOUNTS="+account)
	cmd.Stderr = os.Stderr
	startEmulator(t, cmd, func() (io.Closer, error) { return net.Dial("tcp", address) })
	return address
}
