// Command controlplane is etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl in one binary.
// The name it is called by, or else its first argument, chooses the component; everything after that is the
// component's own command line.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// components maps a component's name to its main function, which reads os.Args and never returns on failure.
var components = map[string]func(){
	"etcd":                    etcd,
	"kube-apiserver":          apiserver,
	"kube-controller-manager": controllerManager,
	"kube-scheduler":          scheduler,
	"kubectl":                 kubectl,
	"loopback":                loopback,
}

func main() {
	if component, ok := components[filepath.Base(os.Args[0])]; ok {
		component()
		return
	}
	if len(os.Args) > 1 {
		if component, ok := components[os.Args[1]]; ok {
			os.Args = os.Args[1:]
			component()
			return
		}
	}
	names := make([]string, 0, len(components))
	for name := range components {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(os.Stderr, "usage: %s <%s> [flags]\n", os.Args[0], strings.Join(names, "|"))
	os.Exit(2)
}
