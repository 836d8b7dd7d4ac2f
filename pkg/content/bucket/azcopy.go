// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"
)

const (
	// mostAzure is the greatest blob of which Put Blob From URL makes another, mostCopied the greatest of Copy Blob From URL.
	mostAzure  = 5000 << 20
	mostCopied = 256 << 20
	// lendTime is how long a copy may read what is copied.
	lendTime = time.Hour
	// azureScope is that of tokens for Azure Storage, in all of its clouds.
	azureScope = "https://storage.azure.com/.default"
)

// azureCopier has blobs copied while a request lasts.
//
// Copy Blob, which the library uses, may answer before the work is done. Until then, and for good if the copy fails, an empty
// blob stands at the name, in place of one that may be whole. The two that are used here are done when they answer, and
// leave what was there alone if they fail; but they read what is copied as somebody else would, who needs leave to do so.
type azureCopier struct {
	client   *container.Client
	identity azcore.TokenCredential // nil if requests are signed with a key, or carry a signature
}

func (c *azureCopier) copy(ctx context.Context, target, source string, size int64) error {
	address, token, err := c.lend(ctx, source)
	if err != nil {
		return fmt.Errorf("let the object store read what it is to copy: %w", err)
	}
	if size <= mostCopied {
		_, err = c.client.NewBlobClient(target).CopyFromURL(ctx, address, &blob.CopyFromURLOptions{CopySourceAuthorization: token})
	} else {
		_, err = c.client.NewBlockBlobClient(target).UploadBlobFromURL(ctx, address, &blockblob.UploadBlobFromURLOptions{CopySourceAuthorization: token})
	}
	return err
}

// lend returns the address of a blob that the object store may read it at, with a token or without.
func (c *azureCopier) lend(ctx context.Context, name string) (address string, token *string, err error) {
	client := c.client.NewBlobClient(name)
	if c.identity != nil {
		access, err := c.identity.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{azureScope}})
		return client.URL(), to.Ptr("Bearer " + access.Token), err
	}
	address, err = client.GetSASURL(sas.BlobPermissions{Read: true}, time.Now().Add(lendTime), nil)
	if errors.Is(err, bloberror.MissingSharedKeyCredential) {
		return client.URL(), nil, nil // the signature is part of it
	}
	return address, nil, err
}

// azurePrefix refuses a prefix that the library writes in another way than it stands there, for Azure's sake.
func azurePrefix(prefix string) error {
	odd := func(c rune) bool { return c < ' ' || c == 0x7f || strings.ContainsRune("\\\"#%?", c) }
	if strings.ContainsFunc(prefix, odd) || strings.Contains(prefix, "../") {
		return fmt.Errorf("parameter \"prefix\": %q has a character that names in Azure had better not have", prefix)
	}
	return nil
}
