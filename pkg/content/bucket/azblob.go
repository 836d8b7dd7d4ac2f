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
		Transport: &http.Client{Transport: t.wrap(newTransport(pool))},
		Retry:     policy.RetryOptions{MaxRetryDelay: t.pause},
	}}
	client, err := azureContainer(account, name, options)
	if err != nil {
		return nil, cloud{}, err
	}
	bucket, err := azureblob.OpenBucket(ctx, client, nil)
	return bucket, cloud{
		absent: func(err error) bool { return azureStatus(err) == http.StatusNotFound },
		full:   func(error) bool { return false },
		check:  checkMD5,
	}, err
}

func azureContainer(account *azureblob.ServiceURLOptions, name string, options *container.ClientOptions) (*container.Client, error) {
	if text := os.Getenv("AZURE_STORAGE_CONNECTION_STRING"); text != "" {
		return container.NewClientFromConnectionString(text, name, options)
	}
	service, err := azureblob.NewServiceURL(account)
	if err != nil {
		return nil, err
	}
	address, err := url.JoinPath(string(service), name)
	if err != nil {
		return nil, err
	}
	if key := os.Getenv("AZURE_STORAGE_KEY"); key != "" {
		credential, err := azblob.NewSharedKeyCredential(account.AccountName, key)
		if err != nil {
			return nil, errors.New("AZURE_STORAGE_KEY: not a key") // the error may quote it
		}
		return container.NewClientWithSharedKeyCredential(address, credential, options)
	}
	if account.SASToken != "" {
		return container.NewClientWithNoCredential(address, options)
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, err
	}
	return container.NewClient(address, credential, options)
}

// azureStatus is the code of an answer, 0 if there was none.
func azureStatus(err error) int {
	var answer *azcore.ResponseError
	if errors.As(err, &answer) {
		return answer.StatusCode
	}
	return 0
}
