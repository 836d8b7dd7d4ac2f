// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// Who waits is told, once, of a server that is away for longer than a moment.
func TestWaitSaysThatTheServerIsAway(t *testing.T) {
	type span struct{ from, to time.Duration } // since the beginning
	minute := span{10 * time.Minute, 11 * time.Minute}
	for name, test := range map[string]struct {
		away    []span
		watches time.Duration // how long a watch lasts, without a word
		timeout time.Duration
		refused bool  // by a server that is there
		lasting error // in place of what goes away by itself
		quiet   bool
		says    int
		until   string
		fails   bool
		after   time.Duration // at which it ends
	}{
		"never":               {after: 20 * time.Minute},
		"for a moment":        {away: []span{{10 * time.Minute, 10*time.Minute + time.Second/2}}, after: 20 * time.Minute},
		"for a minute":        {away: []span{minute}, says: 1, until: "2m", after: 20 * time.Minute},
		"no longer than that": {away: []span{minute}, timeout: 10*time.Minute + 30*time.Second, says: 1, until: "30s", fails: true, after: 10*time.Minute + 30*time.Second},
		"while it is watched": {away: []span{minute}, watches: 10*time.Minute + time.Second/2, says: 1, until: "2m", after: 21 * time.Minute},
		"not to be heard":     {away: []span{minute}, quiet: true, after: 20 * time.Minute},
		"with an answer":      {away: []span{minute}, refused: true, says: 1, until: "2m", after: 20 * time.Minute},
		"twice":               {away: []span{minute, {15 * time.Minute, 16 * time.Minute}}, says: 2, until: "2m", after: 20 * time.Minute},
		"for ever":            {away: []span{{10 * time.Minute, time.Hour}}, says: 1, until: "2m", fails: true, after: 12 * time.Minute},

		"with another certificate": {away: []span{minute}, lasting: &tls.CertificateVerificationError{Err: errors.New("unknown authority")}, fails: true, after: 10 * time.Minute},
		"with no TLS":              {away: []span{minute}, lasting: http.ErrSchemeMismatch, fails: true, after: 10 * time.Minute},
		"with something else":      {away: []span{minute}, lasting: tls.RecordHeaderError{Msg: "no handshake"}, fails: true, after: 10 * time.Minute},
		"without credentials":      {away: []span{minute}, lasting: errors.New("getting credentials: exec: it failed"), fails: true, after: 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				server := roundTrip(func(r *http.Request) (*http.Response, error) {
					at := time.Since(began)
					answer := httptest.NewRecorder()
					answer.Header().Set("Content-Type", "application/json")
					for _, a := range test.away {
						switch {
						case at < a.from || at >= a.to:
						case test.refused:
							answer.WriteHeader(http.StatusServiceUnavailable)
							return answer.Result(), nil
						case test.lasting != nil:
							return nil, test.lasting
						default:
							return nil, errors.New("connection refused")
						}
					}
					if r.URL.Query().Get("watch") != "" {
						time.Sleep(test.watches)
						return answer.Result(), nil
					}
					b := waited(v1alpha1.ReasonUnpacking, nil).Bundle
					if at >= 20*time.Minute {
						b = served()
					}
					err := json.NewEncoder(answer).Encode(b)
					return answer.Result(), err
				})
				client, err := typed.NewForConfigAndClient(&rest.Config{Host: "http://server.invalid"}, &http.Client{Transport: server})
				if err != nil {
					t.Fatal(err)
				}
				var said bytes.Buffer
				s := newSession(streamsTo(&said))
				s.quiet = test.quiet
				s.trials.met.Store(true)
				err = s.waitReady(t.Context(), client.Bundles("team"), "app", waiting{timeout: test.timeout, patient: true})
				if (err != nil) != test.fails {
					t.Errorf("it ends with %v", err)
				}
				if took := time.Since(began); took < test.after || took > test.after+5*time.Second {
					t.Errorf("it takes %v", took)
				}
				if got := strings.Count(said.String(), "trying again, for "+test.until+" at most: "); got != test.says || strings.Count(said.String(), "trying again") != test.says {
					t.Errorf("it says\n%s", said.String())
				}
			})
		})
	}
}
