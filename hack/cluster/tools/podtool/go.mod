module rukpak.io/apiserver/hack/cluster/tools/podtool

go 1.26
