# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash
# Certificates and kubeconfigs of the local cluster, in $RUN/pki. To be sourced;
# make_pki makes what is missing.

# authority NAME COMMONNAME
authority() {
  [ -e "$1.crt" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -subj "/CN=$2" -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature \
    -keyout "$1.key" -out "$1.crt" 2>/dev/null
}

# certificate NAME AUTHORITY SUBJECT [SUBJECTALTNAMES]
certificate() {
  [ ! -e "$1.crt" ] || return 0
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$3" -keyout "$1.key" -out "$1.csr" 2>/dev/null
  {
    echo "keyUsage=critical,digitalSignature"
    echo "extendedKeyUsage=clientAuth,serverAuth"
    [ -z "${4:-}" ] || echo "subjectAltName=$4"
  } >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -days 3650 -extfile "$1.ext" -out "$1.tmp" 2>/dev/null
  mv "$1.tmp" "$1.crt"
  rm "$1.csr" "$1.ext"
}

# kubeconfig CERTIFICATE FILE: complete in itself, to be copied anywhere.
kubeconfig() {
  [ ! -e "$2" ] || return 0
  cat >"$2.tmp" <<-END
	apiVersion: v1
	kind: Config
	current-context: rukpak-local
	contexts: [{name: rukpak-local, context: {cluster: rukpak-local, user: $1}}]
	clusters:
	- name: rukpak-local
	  cluster:
	    server: https://$NODE_IP:$APISERVER_PORT
	    certificate-authority-data: $(base64 -w0 ca.crt)
	users:
	- name: $1
	  user:
	    client-certificate-data: $(base64 -w0 "$1.crt")
	    client-key-data: $(base64 -w0 "$1.key")
	END
  mv "$2.tmp" "$2"
}

make_pki() {
  local service=kubernetes.default name
  mkdir -p "$RUN/pki"
  (
    cd "$RUN/pki" || exit
    umask 077
    authority ca kubernetes-ca
    authority front-proxy-ca front-proxy-ca
    certificate apiserver ca /CN=kube-apiserver \
      "DNS:kubernetes,DNS:$service,DNS:$service.svc,DNS:$service.svc.cluster.local,IP:$NODE_IP,IP:$KUBERNETES_IP"
    certificate kubelet-serving ca "/O=system:nodes/CN=system:node:$NODE" "DNS:$NODE,IP:$NODE_IP"
    certificate apiserver-kubelet-client ca /O=system:masters/CN=kube-apiserver-kubelet-client
    certificate front-proxy-client front-proxy-ca /CN=front-proxy-client
    certificate admin ca /O=system:masters/CN=kubernetes-admin
    certificate controller-manager ca /CN=system:kube-controller-manager
    certificate scheduler ca /CN=system:kube-scheduler
    certificate node ca "/O=system:nodes/CN=system:node:$NODE"
    certificate proxy ca /CN=system:kube-proxy
    [ -e sa.pub ] || {
      openssl genrsa -out sa.key 2048 2>/dev/null
      openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
    }
    kubeconfig admin "$RUN/kubeconfig"
    for name in controller-manager scheduler node proxy; do kubeconfig "$name" "$RUN/pki/$name.kubeconfig"; done
  )
}
