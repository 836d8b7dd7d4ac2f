// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package contract is what the server and the program inside unpack pods,
// rukpak-unpack, agree on: the environment that the one sets and the other
// reads, and the report that goes back. It imports the standard library and package
// tarball alone, so that the program stays small.
package contract

import (
	"encoding/json"
	"fmt"
	"regexp"
	"unicode/utf8"
)

// The environment of the program. All of it is set, so that nothing is left to
// the environment that an image brings along.
const (
	// EnvURL is the URL that the content is PUT to.
	EnvURL = "RUKPAK_URL"
	// EnvServerName is the name that the server's certificate must carry.
	EnvServerName = "RUKPAK_SERVER_NAME"
	// EnvCA holds the certificates, in PEM, that the server's must descend from.
	EnvCA = "RUKPAK_CA"
	// EnvTokenFile names the file with the bearer token. It is read anew for each try.
	EnvTokenFile = "RUKPAK_TOKEN_FILE"
	// EnvRoot is the folder that holds the image's files.
	EnvRoot = "RUKPAK_ROOT"
	// EnvPath is the path inside the image whose files are the content.
	EnvPath = "RUKPAK_PATH"
	// EnvCompressedBytes bounds the archive, in bytes.
	EnvCompressedBytes = "RUKPAK_LIMIT_COMPRESSED_BYTES"
	// EnvBytes bounds the uncompressed archive, in bytes.
	EnvBytes = "RUKPAK_LIMIT_BYTES"
	// EnvFiles bounds the entries that are not directories.
	EnvFiles = "RUKPAK_LIMIT_FILES"
	// EnvTraceParent is the span that the upload belongs to, as W3C Trace Context writes it; empty for none.
	EnvTraceParent = "RUKPAK_TRACEPARENT"
	// EnvTimeout bounds the whole run, as time.ParseDuration reads it.
	EnvTimeout = "RUKPAK_TIMEOUT"
	// EnvJobs holds, as a JSON list of Job, what CommandRunAll does, in place of EnvURL, EnvRoot, EnvPath and
	// EnvTraceParent.
	EnvJobs = "RUKPAK_JOBS"
)

// The commands of the program.
const (
	// CommandRun packs the files and sends them.
	CommandRun = "run"
	// CommandRunAll does so for each of several bundles.
	CommandRunAll = "run-all"
	// CommandInstall copies the program to the path that follows.
	CommandInstall = "install"
	// CommandExit ends at once, with success.
	CommandExit = "exit"
)

// Job is what is done for one of several bundles.
type Job struct {
	// URL is the URL that the content is PUT to.
	URL string `json:"url"`
	// Root is the folder that holds the image's files.
	Root string `json:"root"`
	// Path is the path inside the image whose files are the content.
	Path string `json:"path"`
	// TraceParent is what EnvTraceParent is for one bundle; empty for none.
	TraceParent string `json:"traceParent,omitempty"`
}

// TrailerWalk is the trailer field of a PUT that says how long the program has read and packed, as
// time.ParseDuration reads it. The time that it waited for the server to take the bytes is none of it.
const TrailerWalk = "Rukpak-Walk"

// Program is where the program stands in the server's own image.
const Program = "/rukpak-unpack"

// TerminationLog is the file that holds the report when the program ends.
const TerminationLog = "/dev/termination-log"

// The reasons of a report. They are those of package v1alpha1, which the program does without.
const (
	// ReasonContentRefused means that the content may not be what it is.
	ReasonContentRefused = "ContentRefused"
	// ReasonLimitExceeded means that the content is larger than its class allows.
	ReasonLimitExceeded = "LimitExceeded"
	// ReasonContentUnreadable means that the files could not be read.
	ReasonContentUnreadable = "ContentUnreadable"
	// ReasonImageEmpty means that there is not one file where the image's files should be.
	ReasonImageEmpty = "ImageEmpty"
	// ReasonServerUnreachable means that there is no connection to the server.
	ReasonServerUnreachable = "ServerUnreachable"
	// ReasonUploadFailed means that the server was reached and did not take the content.
	ReasonUploadFailed = "UploadFailed"
	// ReasonContentQuotaExceeded means that the bundles of the namespace have as much content as they may.
	ReasonContentQuotaExceeded = "ContentQuotaExceeded"
	// ReasonInvalidConfiguration means that the environment above is not as it should be.
	ReasonInvalidConfiguration = "InvalidConfiguration"
)

// CauseAttemptEnded is the reason of the cause in the server's answer when another try is in vain, since the attempt is
// not the bundle's current one.
const CauseAttemptEnded = "AttemptEnded"

// maxReport is the size in bytes that the kubelet takes from a termination log.
const maxReport = 4096

// maxMessage is how many bytes of a message stay in a report. JSON makes at most
// six bytes of one.
const maxMessage = (maxReport - 256) / 6

// Report says why the program failed.
type Report struct {
	// Reason is one of the reasons above.
	Reason string `json:"reason"`
	// Message says it in words.
	Message string `json:"message"`
}

// Encode makes the content of a termination log, at most 4096 bytes.
func (r Report) Encode() ([]byte, error) {
	r.Message = Shorten(r.Message, maxMessage)
	return json.Marshal(r)
}

var reasonPattern = regexp.MustCompile(`^[A-Z][A-Za-z]{0,63}$`)

// ParseReport reads a termination log. What runs in a pod is not trusted, so
// anything but a report is an error and the message is bounded.
func ParseReport(log string) (Report, error) {
	var r Report
	if err := json.Unmarshal([]byte(log), &r); err != nil {
		return Report{}, fmt.Errorf("termination log: %w", err)
	}
	if !reasonPattern.MatchString(r.Reason) {
		return Report{}, fmt.Errorf("termination log: reason %q is not in CamelCase", Shorten(r.Reason, 64))
	}
	r.Message = Shorten(r.Message, maxMessage)
	return r, nil
}

// Shorten cuts s to at most the given number of bytes, at the border of a character.
func Shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const mark = "..."
	cut := max(most-len(mark), 0)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}
