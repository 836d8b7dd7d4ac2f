// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
)

// openAzure speaks to Azure Blob Storage with what stands in AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or
// AZURE_STORAGE_CONNECTION_STRING, else with the identity of the workload.
func openAzure(ctx context.Context, name string, q *query, t tuning) (*blob.Bucket, cloud, error) {
	account := azureblob.NewDefaultServiceURLOptions()
	account.AccountName = cmp.Or(q.text("storage_account"), account.AccountName)
	account.StorageDomain = cmp.Or(q.text("domain"), account.StorageDomain)
	account.Protocol = cmp.Or(q.choice("protocol", "http", "https"), account.Protocol)
	caFile := q.text("ca-file")
	if err := q.end(); err != nil {
		return nil, cloud{}, err
	}
	pool, err := authorities(caFile)
	if err != nil {
		return nil, cloud{}, err
	}
	options := &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: discreet{&http.Client{Transport: t.wrap(newTransport(pool))}},
		Retry:     policy.RetryOptions{MaxRetryDelay: t.pause},
	}}
	client, identity, err := azureContainer(account, name, options)
	if err != nil {
		return nil, cloud{}, err
	}
	copier := &azureCopier{client, identity}
	bucket, err := azureblob.OpenBucket(ctx, client, nil)
	return bucket, cloud{
		absent: func(err error) bool { return azureStatus(err) == http.StatusNotFound },
		full:   func(error) bool { return false },
		check:  checkMD5,
		copy:   copier.copy,
		prefix: azurePrefix,
		most:   mostAzure,
	}, err
}

// azureContainer returns the client of a container, and the identity that its requests are made with, nil if there is none.
func azureContainer(account *azureblob.ServiceURLOptions, name string, options *container.ClientOptions) (*container.Client, azcore.TokenCredential, error) {
	if text := os.Getenv("AZURE_STORAGE_CONNECTION_STRING"); text != "" {
		client, err := container.NewClientFromConnectionString(text, name, options)
		return client, nil, err
	}
	service, err := azureblob.NewServiceURL(account)
	if err != nil {
		return nil, nil, err
	}
	address, err := url.JoinPath(string(service), name)
	if err != nil {
		return nil, nil, err
	}
	if key := os.Getenv("AZURE_STORAGE_KEY"); key != "" {
		credential, err := azblob.NewSharedKeyCredential(account.AccountName, key)
		if err != nil {
			return nil, nil, errors.New("AZURE_STORAGE_KEY: not a key") // the error may quote it
		}
		client, err := container.NewClientWithSharedKeyCredential(address, credential, options)
		return client, nil, err
	}
	if account.SASToken != "" {
		client, err := container.NewClientWithNoCredential(address, options)
		return client, nil, err
	}
	identity, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, nil, err
	}
	client, err := container.NewClient(address, identity, options)
	return client, identity, err
}

// discreet keeps the signature of an address out of the error of a request that had no answer.
type discreet struct{ *http.Client }

func (d discreet) Do(req *http.Request) (*http.Response, error) {
	resp, err := d.Client.Do(req)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		failed.URL, _, _ = strings.Cut(failed.URL, "?")
	}
	return resp, err
}

// azureStatus is the code of an answer, 0 if there was none.
func azureStatus(err error) int {
	var answer *azcore.ResponseError
	if errors.As(err, &answer) {
		return answer.StatusCode
	}
	return 0
}
