// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"runtime"
	"strconv"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/compatibility"
)

// version is this server's own. The build sets it.
var version = "v0.0.0"

// ownVersion behaves like the version of Kubernetes that the libraries are of, and says that it is
// this server's.
type ownVersion struct {
	compatibility.EffectiveVersion
}

// Info is what GET /version answers.
func (ownVersion) Info() *apimachineryversion.Info {
	info := &apimachineryversion.Info{
		GitVersion: version, GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if v, err := utilversion.ParseSemantic(version); err == nil {
		info.Major, info.Minor = strconv.Itoa(int(v.Major())), strconv.Itoa(int(v.Minor()))
	}
	return info
}
