# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# The same three static programs as in the image of `make image`, and nothing else, for each platform that
# docker buildx build --platform names. They are cross-compiled, not emulated.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG VERSION=v0.1.0 TARGETOS=linux TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY pkg pkg
ENV CGO_ENABLED=0 GOFLAGS="-buildvcs=false -trimpath"
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH go build -o /out/ \
  -ldflags "-s -w -X rukpak.io/apiserver/pkg/cmd/server.version=$VERSION -X rukpak.io/apiserver/pkg/cmd/bundle.release=$VERSION" \
  ./cmd/rukpak-apiserver ./cmd/rukpak-unpack ./cmd/rukpak-fetch

FROM scratch
COPY --from=build /out/rukpak-apiserver /out/rukpak-unpack /out/rukpak-fetch /
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/rukpak-apiserver"]
