// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package provisioner holds the provisioners that the server implements itself:
// what they ask of the content of a bundle, and which parameters they know.
//
//	check, err := provisioner.New(class.Provisioner, class.Parameters)
//	summary, err := tarball.Verify(ctx, body, limits, check.Visit)
//	err = check.Finish()
//
// rukpak.io/raw takes any content. rukpak.io/plain takes content that holds
// Kubernetes manifests below manifests/, each of which is valid.
package provisioner

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

// Check looks at one archive while it streams by. It may be used once, by one
// goroutine at a time.
type Check interface {
	// Visit is a tarball.Visitor. Its error is a *ContentError, or that of content.
	Visit(e tarball.Entry, content io.Reader) error
	// Finish judges the archive as a whole, after its last entry. Its error is a
	// *ContentError.
	Finish() error
}

// ErrNotBuiltIn says that a provisioner belongs to somebody else's controller.
var ErrNotBuiltIn = errors.New("not a built-in provisioner")

// ParameterError says that a provisioner does not know a parameter of its class.
type ParameterError struct {
	Provisioner string
	Parameter   string
}

func (e *ParameterError) Error() string {
	return fmt.Sprintf("provisioner %s: unknown parameter %q", e.Provisioner, e.Parameter)
}

// Instead says, behind a *ContentError, whose rule that was, and which class takes such content.
const Instead = "that is the rule of provisioner " + v1alpha1.ProvisionerPlain + ", and a class of " + v1alpha1.ProvisionerRaw + " takes any files"

// ContentError says why a provisioner refuses content.
type ContentError struct {
	// File is the path of the file at fault, empty if there is none.
	File string
	// Document is the number of the YAML document or JSON value in the file,
	// counted from 1; 0 if the file as a whole is meant.
	Document int
	// Reason says what is wrong.
	Reason string
}

func (e *ContentError) Error() string {
	switch {
	case e.File == "":
		return e.Reason
	case e.Document == 0:
		return fmt.Sprintf("file %q: %s", e.File, e.Reason)
	default:
		return fmt.Sprintf("file %q, document %d: %s", e.File, e.Document, e.Reason)
	}
}

// checks makes the Check of each built-in provisioner. None has parameters.
func checks(provisioner string) (Check, bool) {
	switch provisioner {
	case v1alpha1.ProvisionerRaw:
		return raw{}, true
	case v1alpha1.ProvisionerPlain:
		return &plain{}, true
	default:
		return nil, false
	}
}

// BuiltIn reports whether the server implements a provisioner itself.
func BuiltIn(provisioner string) bool {
	_, ok := checks(provisioner)
	return ok
}

// ValidateParameters returns a *ParameterError for the first parameter, in the
// order of their names, that a built-in provisioner does not know. The
// parameters of other provisioners are theirs to judge.
func ValidateParameters(provisioner string, parameters map[string]string) error {
	if !BuiltIn(provisioner) || len(parameters) == 0 {
		return nil
	}
	first := slices.Sorted(maps.Keys(parameters))[0]
	return &ParameterError{Provisioner: provisioner, Parameter: first}
}

// New returns the check of a built-in provisioner for one archive. Its error is
// ErrNotBuiltIn or a *ParameterError.
func New(provisioner string, parameters map[string]string) (Check, error) {
	check, ok := checks(provisioner)
	if !ok {
		return nil, fmt.Errorf("provisioner %q: %w", provisioner, ErrNotBuiltIn)
	}
	if err := ValidateParameters(provisioner, parameters); err != nil {
		return nil, err
	}
	return check, nil
}

// raw takes any content.
type raw struct{}

func (raw) Visit(tarball.Entry, io.Reader) error { return nil }
func (raw) Finish() error                        { return nil }
