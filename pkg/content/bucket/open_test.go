// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rukpak.io/apiserver/pkg/content/bucket"
)

func TestOpenURL(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "google.json")
	noCertificate := filepath.Join(dir, "empty.pem")
	for path, text := range map[string]string{
		key:           `{"type": "authorized_user", "client_id": "x", "client_secret": "y", "refresh_token": "z"}`,
		noCertificate: "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
		"AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_PROFILE": "", "AWS_CA_BUNDLE": "", "AWS_EC2_METADATA_DISABLED": "true",
		"GOOGLE_APPLICATION_CREDENTIALS": key, "AZURE_STORAGE_ACCOUNT": "", "AZURE_STORAGE_KEY": "a2V5", "AZURE_STORAGE_CONNECTION_STRING": "",
	} {
		t.Setenv(name, value)
	}
	for _, tc := range []struct{ text, want string }{ // want is in the error; empty: none
		{"s3://b?region=eu-central-1", ""},
		{"s3://b?endpoint=https://host:9000&use_path_style=true&prefix=a/b", ""},
		{"s3://b?region=x&request_checksum_calculation=when_supported", ""},
		{"gs://b", ""},
		{"gs://b?endpoint=https://host/storage/v1/&prefix=x", ""},
		{"azblob://b?storage_account=acc", ""},
		{"azblob://b?storage_account=acc&domain=host:1&protocol=http", ""},
		{"azblob://b?storage_account=acc&prefix=a/b%20c..d", ""},
		{"azblob://b?storage_account=acc&prefix=a%23b", `parameter "prefix"`},
		{"azblob://b?storage_account=acc&prefix=a/../b", `parameter "prefix"`},
		{"s3://b?region=x&prefix=a%23b", ""},
		{"s3://b", "region"},
		{"s3://b?region=x&regoin=y&zone=z", `unknown parameter "regoin", "zone"`},
		{"gs://b?region=x", `unknown parameter "region"`},
		{"azblob://b?storage_account=a&endpoint=https://x", `unknown parameter "endpoint"`},
		{"s3://b?region=x&region=y", `parameter "region" stands there 2 times`},
		{"s3://b?region=x&use_path_style=maybe", `"maybe"`},
		{"s3://b?endpoint=host:9000", `parameter "endpoint"`},
		{"s3://b?region=x&request_checksum_calculation=never", `"never"`},
		{"s3://b?region=x&ca-file=" + dir + "/none", "ca-file"},
		{"s3://b?region=x&ca-file=" + noCertificate, "no certificate"},
		{"s3://id:secret@b?region=x", "credentials do not belong there"},
		{"s3://b/folder?region=x", "prefix="},
		{"s3://?region=x", "no bucket"},
		{"file:///tmp", "unknown scheme"},
		{"azblob://b", "Account"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			u, err := url.Parse(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			s, err := bucket.Open(t.Context(), u, bucket.Options{})
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want %q in it", err, tc.want)
			case err != nil && strings.Contains(err.Error(), "secret"):
				t.Errorf("the error shows the secret: %v", err)
			}
			if s != nil {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
