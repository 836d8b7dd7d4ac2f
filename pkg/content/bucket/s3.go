// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
)

const (
	// mostS3 is the greatest object that S3 copies in one request.
	mostS3 = 5 << 30
	// defaultRegion is what object stores that know no regions take in signatures.
	defaultRegion = "us-east-1"

	// attempts is how often a request is made at most.
	attempts = 4
)

// openS3 speaks to Amazon S3, or to an endpoint that speaks its protocol.
func openS3(ctx context.Context, name string, q *query, t tuning) (*blob.Bucket, cloud, error) {
	region, endpoint, pathStyle := q.text("region"), q.address("endpoint"), q.flag("use_path_style")
	profile, caFile := q.text("profile"), q.text("ca-file")
	checksums := q.choice("request_checksum_calculation", "when_supported", "when_required")
	if err := q.end(); err != nil {
		return nil, cloud{}, err
	}
	load := []func(*config.LoadOptions) error{
		config.WithRetryer(func() aws.Retryer { return newRetryer(t.pause) }),
		// Checksums in trailers are an extension that not every object store knows.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
	if checksums == "when_supported" {
		load = append(load, config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenSupported))
	}
	if region != "" {
		load = append(load, config.WithRegion(region))
	}
	if profile != "" {
		load = append(load, config.WithSharedConfigProfile(profile))
	}
	settings, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, cloud{}, err
	}
	if settings.Region == "" && endpoint != "" {
		settings.Region = defaultRegion
	}
	if settings.Region == "" {
		return nil, cloud{}, errors.New("region: neither the URL nor AWS_REGION says it")
	}
	transport, err := s3Transport(settings, caFile)
	if err != nil {
		return nil, cloud{}, err
	}
	settings.HTTPClient = &http.Client{Transport: t.wrap(transport)}
	client := s3.NewFromConfig(settings, func(o *s3.Options) {
		o.UsePathStyle = pathStyle
		if endpoint != "" {
			o.BaseEndpoint = aws.String(endpoint)
		}
	})
	bucket, err := s3blob.OpenBucket(ctx, client, name, &s3blob.Options{RequestChecksumCalculation: settings.RequestChecksumCalculation})
	return bucket, cloud{
		absent: func(err error) bool { return hasStatus(err, http.StatusNotFound) },
		full:   s3Full,
		check:  s3Check,
		abandon: func(ctx context.Context, prefix string, before time.Time) error {
			return abandon(ctx, client, name, prefix, before)
		},
		endsByError: true,
		most:        mostS3,
	}, err
}

// s3Transport trusts what the environment says for AWS (AWS_CA_BUNDLE), else what the system trusts, and the file.
func s3Transport(settings aws.Config, caFile string) (*http.Transport, error) {
	if client, ok := settings.HTTPClient.(*awshttp.BuildableClient); ok {
		if t := client.GetTransport(); t.TLSClientConfig != nil && t.TLSClientConfig.RootCAs != nil {
			pool, err := withFile(t.TLSClientConfig.RootCAs, caFile)
			return newTransport(pool), err
		}
	}
	pool, err := authorities(caFile)
	return newTransport(pool), err
}

func newRetryer(pause time.Duration) aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.MaxBackoff = attempts, pause
		// The pauses are enough: a budget for all requests together would fail some that never were tried.
		o.RateLimiter = ratelimit.None
		// A conflict is that of two requests for one object in the same moment: S3 calls it OperationAborted, versitygw ExistingObjectIsDirectory.
		o.Retryables = append(o.Retryables, retry.RetryableHTTPStatusCode{Codes: map[int]struct{}{http.StatusTooManyRequests: {}, http.StatusConflict: {}}})
	})
}

// s3Check does what checkMD5 does without a copy of the bytes.
func s3Check(o *blob.WriterOptions, md5 []byte) {
	o.BeforeWrite = func(as func(any) bool) error {
		var in *s3.PutObjectInput
		if as(&in) {
			in.ContentMD5 = aws.String(base64.StdEncoding.EncodeToString(md5))
		}
		return nil
	}
}

// s3Full knows what S3, and the servers that speak its protocol, say when there is no space.
func s3Full(err error) bool {
	if hasStatus(err, http.StatusInsufficientStorage) {
		return true
	}
	var e smithy.APIError
	if !errors.As(err, &e) {
		return false
	}
	switch e.ErrorCode() {
	case "QuotaExceeded", "NoSpaceLeft", "StorageFull", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientCapacity":
		return true
	default:
		return false
	}
}

// abandon ends uploads in parts that began before, whose parts take space that no listing shows.
func abandon(ctx context.Context, client *s3.Client, bucket, prefix string, before time.Time) error {
	in := &s3.ListMultipartUploadsInput{Bucket: &bucket, Prefix: &prefix}
	for {
		page, err := client.ListMultipartUploads(ctx, in)
		if err != nil {
			return err
		}
		for _, u := range page.Uploads {
			if u.Initiated == nil || u.Initiated.After(before) {
				continue
			}
			_, err := client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &bucket, Key: u.Key, UploadId: u.UploadId})
			if err != nil && !hasStatus(err, http.StatusNotFound) {
				return fmt.Errorf("upload of %s: %w", aws.ToString(u.Key), err)
			}
		}
		if !aws.ToBool(page.IsTruncated) {
			return nil
		}
		in.KeyMarker, in.UploadIdMarker = page.NextKeyMarker, page.NextUploadIdMarker
	}
}
