// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pod makes unpack pods and reads what became of them.
//
// Build makes the pod of one attempt in mode ImageVolume or ImageCopy, Judge says
// how far it is, and ResolvedReference which image its node took. A Proof in an
// annotation tells the pods that this server made from those that others made.
package pod

// Containers and volumes of an unpack pod.
const (
	// ContainerUnpack reads the files and sends them. It alone decides about the attempt.
	ContainerUnpack = "unpack"
	// ContainerInstall puts the program where the bundle's image can run it.
	ContainerInstall = "install"
	// ContainerResolve runs the program in the bundle's image and ends at once: the
	// status of the pod tells the digest of its image then.
	ContainerResolve = "resolve"

	volumeContent = "content"
	volumeProgram = "program"
	volumeToken   = "token"
)

// Labels of every unpack pod, beside rukpak.io/bundle-uid.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "rukpak-apiserver"
)

// Endpoint is where unpack pods send content.
type Endpoint struct {
	// URL is scheme, host and port of the server's own Service, by its cluster IP: https://10.96.0.7:443.
	URL string
	// ServerName is the name in the server's certificate: rukpak-apiserver.rukpak-system.svc.
	ServerName string
	// CA holds the certificates, in PEM, that the server's descends from.
	CA []byte
}
