// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"context"
	"errors"
	"net/http"

	"cloud.google.com/go/storage"
	"github.com/googleapis/gax-go/v2"
	"gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
)

// openGS speaks to Google Cloud Storage with the application default credentials.
func openGS(ctx context.Context, name string, q *query, t tuning) (*blob.Bucket, cloud, error) {
	endpoint, universe, caFile := q.address("endpoint"), q.text("universe_domain"), q.text("ca-file")
	if err := q.end(); err != nil {
		return nil, cloud{}, err
	}
	pool, err := authorities(caFile)
	if err != nil {
		return nil, cloud{}, err
	}
	credentials, err := gcp.DefaultCredentialsWithParams(context.WithoutCancel(ctx), google.CredentialsParams{UniverseDomain: universe})
	if err != nil {
		return nil, cloud{}, err
	}
	client, err := gcp.NewHTTPClient(t.wrap(newTransport(pool)), credentials.TokenSource)
	if err != nil {
		return nil, cloud{}, err
	}
	options := &gcsblob.Options{}
	if universe != "" {
		options.ClientOptions = append(options.ClientOptions, option.WithUniverseDomain(universe))
	}
	if endpoint != "" {
		options.ClientOptions = append(options.ClientOptions, option.WithEndpoint(endpoint))
	}
	bucket, err := gcsblob.OpenBucket(ctx, client, name, options)
	if err != nil {
		return nil, cloud{}, err
	}
	var service *storage.Client
	if bucket.As(&service) {
		// Whatever is written twice is written with the same bytes.
		service.SetRetry(storage.WithPolicy(storage.RetryAlways), storage.WithMaxAttempts(attempts), storage.WithBackoff(gax.Backoff{Max: t.pause}))
	}
	return bucket, cloud{absent: gsAbsent, full: func(error) bool { return false }, check: checkMD5}, nil
}

func gsAbsent(err error) bool {
	var answer *googleapi.Error
	return errors.Is(err, storage.ErrObjectNotExist) || errors.As(err, &answer) && answer.Code == http.StatusNotFound
}
