# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# The same image as hack/image/build.sh makes: three static programs and nothing else.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY pkg pkg
ENV CGO_ENABLED=0 GOFLAGS="-buildvcs=false -trimpath"
RUN go build -ldflags "-s -w" -o /out/ ./cmd/rukpak-apiserver ./cmd/rukpak-unpack ./cmd/rukpak-fetch

FROM scratch
COPY --from=build /out/rukpak-apiserver /out/rukpak-unpack /out/rukpak-fetch /
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/rukpak-apiserver"]
